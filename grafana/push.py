"""Puts data source, dashboards and alert rules into an existing Grafana server.

It needs the server's address and a token or user, and returns a line of text for each object. Data source,
folder and dashboards have fixed uids, so that another run updates them and adds no copies.

grafana-api supports data sources by number only. Requests that grafana-api lacks use its session, with its
authentication and errors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from grafana_api.grafana_api import GrafanaException
from grafana_api.grafana_face import GrafanaFace

from grafana import alert_rules
from grafana.alert_rules import FOLDER_TITLE
from grafana.dashboard_files import PAGE_URL, read_all
from grafana.datasource import DEFAULT_URL, PLUGIN, UID, data_source

FOLDER_UID: Final = "fabrictime"
TIMEOUT_S: Final = 15.0
ABSENT: Final = 404
MAX_MESSAGE: Final = 200
NO_JSON: Final = "a page answers in place of Grafana's API, perhaps a login page; expected Grafana itself"
NOT_AS_BEFORE: Final = (409, 412)
"""Grafana's HTTP statuses for a name that is in use, and for a version that changed in the meantime."""


class PushError(ValueError):
    """Grafana refused a request; the text is one line with the request and the reason."""


def push(
    url: str,
    token_file: Path | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    history_url: str | None = None,
    history_user: str = "reader",
    history_password: str | None = None,
    page_url: str = PAGE_URL,
    has_rules: bool = False,
) -> list[str]:
    """Create or update the data source, a folder and all dashboards. Returns a line of text for each.

    `page_url` is the live page's address for viewers' browsers; with `has_rules`, push the alert rules too.

    `token_file` contains a service account's token; without it, `user` and `password` are used. Without
    `history_url` an existing data source is not changed.

    Raises PushError if Grafana refuses a request, and OSError if the file or Grafana cannot be reached.
    Raises ValueError for an invalid address or token, and if the dashboards are not built.
    """
    dashboards = read_all(page_url=page_url)
    grafana = _connect(url, token_file, user, password)
    lines = []
    try:
        if _found(grafana, "/health", url) is None:
            raise PushError(f"{url}: no Grafana answers there, expected Grafana's own address")
        if _found(grafana, f"/plugins/{PLUGIN}/settings", f"{url}: plugin {PLUGIN}") is None:
            remedy = f"install it first (grafana cli plugins install {PLUGIN})"
            raise PushError(f"{PLUGIN}: not installed on {url}; {remedy}")
        lines.append(_put_source(grafana, history_url, history_user, history_password))
        lines.append(_put_folder(grafana))
        lines += [_put_dashboard(grafana, uid, model) for uid, model in dashboards.items()]
        if has_rules:
            lines.append(_put_rules(grafana))
    except requests.JSONDecodeError:
        raise PushError(f"{url}: {NO_JSON}") from None
    except requests.RequestException as error:
        raise PushError(f"{url}: {type(error).__name__}: {error}"[:300]) from error
    finally:
        grafana.api.s.close()
    return lines


def _connect(url: str, token_file: Path | None, user: str | None, password: str | None) -> Any:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise ValueError(f"Grafana URL {url!r}: expected http://host:port")
    auth: Any
    if token_file is not None:
        auth = token_file.read_text(encoding="utf-8").strip()
        if not auth:
            raise ValueError(f"{token_file}: empty, expected an API token")
    elif user is not None and password is not None:
        auth = (user, password)
    else:
        raise ValueError(f"{url}: no token, expected --token-file with a service account's token")
    prefix = parts.path.strip("/")
    return GrafanaFace(
        auth=auth,
        host=parts.hostname,
        port=parts.port,
        protocol=parts.scheme,
        url_path_prefix=f"{prefix}/" if prefix else "",
        timeout=TIMEOUT_S,
    )


def _ask(
    grafana: Any, method: str, path: str, action: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Send a request that grafana-api lacks, by its session, and return the answer. Raises PushError."""
    try:
        answer: dict[str, Any] = getattr(grafana.api, method)(path, json=body)
    except GrafanaException as error:
        raise PushError(refusal(action, error.status_code, error.message)) from error
    if not isinstance(answer, dict):
        raise PushError(f"{action}: {NO_JSON}")
    return answer


def refusal(action: str, status: int | None, message: object, conflict: str = "") -> str:
    """Return a line about a request that Grafana refused: the action, Grafana's message, and the remedy.

    `conflict` explains the meaning of a conflict (HTTP 409 or 412) for this request.
    """
    text = " ".join(str(message).split())[:MAX_MESSAGE]
    text = re.sub(r"^(Client Error|Server Error) ?\d*:? ?", "", text) or f"status {status}"
    if status in NOT_AS_BEFORE and conflict:
        return f"{action}: {text} ({conflict})"
    remedy = _REMEDIES.get(status or 0)
    return f"{action}: {text}" if remedy is None else f"{action}: Grafana answers {status}, {text}; {remedy}"


_REMEDIES: Final[dict[int, str]] = {
    401: "the token or password is wrong or has expired: create a service account's token",
    403: "the account may not do this: give it the role Admin",
}


def _found(grafana: Any, path: str, action: str) -> dict[str, Any] | None:
    """Return the object at a path of Grafana's API; None if it does not exist. Raises PushError."""
    try:
        answer: dict[str, Any] = grafana.api.GET(path)
    except GrafanaException as error:
        if error.status_code == ABSENT:
            return None
        raise PushError(refusal(action, error.status_code, error.message)) from error
    if not isinstance(answer, dict):
        raise PushError(f"{action}: {NO_JSON}")
    return answer


def _put_source(grafana: Any, url: str | None, user: str, password: str | None) -> str:
    there = _found(grafana, f"/datasources/uid/{UID}", f"data source {UID}")
    if there is not None and url is None:
        return f"data source {UID}: is there, {there.get('jsonData', {}).get('host')}"
    source = data_source(url or DEFAULT_URL, user, password)
    where = f"{source['jsonData']['host']}:{source['jsonData']['port']}"
    if there is not None:
        if there.get("readOnly"):
            raise PushError(
                f"data source {UID}: is provisioned, Grafana refuses changes; change its provisioning file, "
                "or leave out --history"
            )
        changed = {**source, "name": there["name"], "version": there.get("version")}
        _ask(grafana, "PUT", f"/datasources/uid/{UID}", f"data source {UID}", changed)
        return f"data source {UID}: updated, {where}"
    try:
        grafana.datasource.create_datasource(source)
    except GrafanaException as error:
        conflict = "another data source has this name: rename or delete it"
        raise PushError(refusal(f"data source {UID}", error.status_code, error.message, conflict)) from error
    return f"data source {UID}: created, {where}" + ("" if password else "; set its password in Grafana")


def _put_folder(grafana: Any) -> str:
    if _found(grafana, f"/folders/{FOLDER_UID}", f"folder {FOLDER_TITLE}") is not None:
        return f"folder {FOLDER_TITLE}: is there"
    try:
        grafana.folder.create_folder(FOLDER_TITLE, FOLDER_UID)
    except GrafanaException as error:
        place, conflict = f"folder {FOLDER_TITLE}", "another folder has this name: rename or delete it"
        raise PushError(refusal(place, error.status_code, error.message, conflict)) from error
    return f"folder {FOLDER_TITLE}: created"


def _put_rules(grafana: Any) -> str:
    group = alert_rules.group()
    name, place = group["title"], f"/v1/provisioning/folder/{FOLDER_UID}/rule-groups/{alert_rules.GROUP}"
    _ask(grafana, "PUT", place, f"alert rules {name}", {**group, "folderUid": FOLDER_UID})
    return f"alert rules {name}: {len(group['rules'])} rules, evaluated every {group['interval']} s"


def _put_dashboard(grafana: Any, uid: str, dashboard: dict[str, Any]) -> str:
    model = {**dashboard, "id": None}
    model.pop("version", None)
    body = {
        "dashboard": model,
        "folderUid": FOLDER_UID,
        "overwrite": True,
        "message": "fabrictime grafana push",
    }
    try:
        answer = grafana.dashboard.update_dashboard(body)
    except GrafanaException as error:
        conflict = "a provisioned dashboard has this name: remove its provisioning file"
        raise PushError(refusal(f"dashboard {uid}", error.status_code, error.message, conflict)) from error
    return f"dashboard {uid}: version {answer.get('version')} at {answer.get('url')}"
