"""The commands of `fabrictime grafana`, which install dashboards or write them to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fabrictime.commands.options import stop
from grafana.dashboard_files import PAGE_URL

PageUrl = Annotated[
    str, typer.Option("--page", metavar="URL", help="Address of the live page in the viewers' browsers.")
]
grafana_app = typer.Typer(no_args_is_help=True, help="Grafana dashboards.")


@grafana_app.command("push")
def grafana_push(
    url: Annotated[str, typer.Argument(help="Address of the Grafana: http://host:port.")],
    token_file: Annotated[Path | None, typer.Option(help="File with a service account's token.")] = None,
    user: Annotated[str | None, typer.Option(help="User name, without a token.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="File with that user's password.")] = None,
    history: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of ClickHouse as Grafana reaches it.")
    ] = None,
    history_user: Annotated[str, typer.Option(help="ClickHouse user.")] = "reader",
    history_password_file: Annotated[
        Path | None, typer.Option(help="File with the password of that user.")
    ] = None,
    page: PageUrl = PAGE_URL,
    rules: Annotated[bool, typer.Option("--rules", help="Also install the alert rules.")] = False,
) -> None:
    """Install the data source, the dashboards and the alert rules in a Grafana."""
    from grafana import push

    try:
        lines = push.push(
            url,
            token_file,
            user=user,
            password=_secret(password_file),
            history_url=history,
            history_user=history_user,
            history_password=_secret(history_password_file),
            page_url=page,
            has_rules=rules,
        )
    except (ValueError, OSError) as error:
        stop(str(error))
    for line in lines:
        typer.echo(line)


@grafana_app.command("write")
def grafana_write(
    folder: Annotated[Path, typer.Argument(help="Folder for one JSON file a dashboard.")],
    page: PageUrl = PAGE_URL,
    rules: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the alert rules, into this folder.")
    ] = None,
) -> None:
    """Write the dashboards and the alert rules to files, for the provisioning of a Grafana."""
    from grafana import alert_rules, dashboard_files

    try:
        dashboard_files.write_all(folder, dashboard_files.read_all(page_url=page))
        if rules is not None:
            alert_rules.write(rules)
    except (ValueError, OSError) as error:
        stop(str(error))


def _secret(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8").strip()
