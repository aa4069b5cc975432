"""The command `fabrictime token`, which creates a user of the web page."""

from __future__ import annotations

from typing import Annotated

import typer

from fabrictime.commands.options import stop


def token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")],
    role: Annotated[str, typer.Option("--role", help="look, configure or act.")] = "look",
) -> None:
    """Print a line for `web.login.users_file`: a new user of the page, with a random token.

    For example `umask 077; fabrictime token alice --role act >> users`. The user logs in with the last word.
    """
    from fabrictime.web.users import new_token, parse_users

    line = f"{name} {role} {new_token()}"
    try:
        parse_users(line)
    except ValueError as error:
        stop(str(error).removeprefix("line 1: "))
    typer.echo(line)
