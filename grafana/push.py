"""Puts data source and dashboards into a Grafana that stands elsewhere.

In: its address and a token or user. Out: a line for each thing put there. Run again, it updates and never
doubles: data source, folder and dashboards have fixed uids. grafana-api knows data sources by number only;
where it lacks a call, the request goes through its own session, with its authentication and errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from grafana_api.grafana_api import GrafanaClientError, GrafanaException
from grafana_api.grafana_face import GrafanaFace

from grafana.build import DASHBOARDS, committed
from grafana.datasource import DEFAULT_URL, PLUGIN, UID, data_source

FOLDER_UID: Final = "fabrictime"
FOLDER_TITLE: Final = "fabrictime"
TIMEOUT_S: Final = 15.0
ABSENT: Final = 404
NOT_AS_BEFORE: Final = (409, 412)
"""Grafana's statuses for a name that is taken and for a version that has moved on."""


class PushError(ValueError):
    """Grafana refused a request; one line names it and the reason."""


def push(
    url: str,
    token_file: Path | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    history_url: str | None = None,
    history_user: str = "reader",
    history_password: str | None = None,
) -> list[str]:
    """Create or update the data source, a folder and all dashboards. Returns one line for each.

    `token_file` holds a service account's token; else `user` and `password`. Without `history_url` a data
    source that is there stays as it is. Raises PushError, or ValueError for an address or token of the
    wrong form, OSError where the file or Grafana cannot be reached.
    """
    grafana = _connect(url, token_file, user, password)
    lines = []
    try:
        _ask(grafana, "GET", "/health", f"{url}: no Grafana answers there")
        missing = f"{PLUGIN}: not installed on {url}; install it first (grafana cli plugins install {PLUGIN})"
        _ask(grafana, "GET", f"/plugins/{PLUGIN}/settings", missing)
        lines.append(_put_source(grafana, history_url, history_user, history_password))
        lines.append(_put_folder(grafana))
        lines += [_put_dashboard(grafana, uid) for uid in DASHBOARDS]
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
    """Send a request for which grafana-api has no function, through its session. Raises PushError."""
    try:
        answer: dict[str, Any] = getattr(grafana.api, method)(path, json=body)
    except GrafanaException as error:
        raise PushError(f"{action}: {error.message}") from error
    return answer


def _found(grafana: Any, path: str) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = grafana.api.GET(path)
    except GrafanaClientError as error:
        if error.status_code == ABSENT:
            return None
        raise PushError(f"{path}: {error.message}") from error
    except GrafanaException as error:
        raise PushError(f"{path}: {error.message}") from error
    return answer


def _put_source(grafana: Any, url: str | None, user: str, password: str | None) -> str:
    there = _found(grafana, f"/datasources/uid/{UID}")
    if there is not None and url is None:
        return f"data source {UID}: is there, {there.get('jsonData', {}).get('host')}"
    wanted = data_source(url or DEFAULT_URL, user, password)
    where = f"{wanted['jsonData']['host']}:{wanted['jsonData']['port']}"
    if there is not None:
        changed = {**wanted, "name": there["name"], "version": there.get("version")}
        _ask(grafana, "PUT", f"/datasources/uid/{UID}", f"data source {UID}", changed)
        return f"data source {UID}: updated, {where}"
    try:
        grafana.datasource.create_datasource(wanted)
    except GrafanaException as error:
        taken = " (another data source has this name)" if error.status_code in NOT_AS_BEFORE else ""
        raise PushError(f"data source {UID}: {error.message}{taken}") from error
    return f"data source {UID}: created, {where}" + ("" if password else "; set its password in Grafana")


def _put_folder(grafana: Any) -> str:
    if _found(grafana, f"/folders/{FOLDER_UID}") is not None:
        return f"folder {FOLDER_TITLE}: is there"
    try:
        grafana.folder.create_folder(FOLDER_TITLE, FOLDER_UID)
    except GrafanaException as error:
        if error.status_code not in NOT_AS_BEFORE:
            raise PushError(f"folder {FOLDER_TITLE}: {error.message}") from error
        raise PushError(f"folder {FOLDER_TITLE}: {error.message} (another folder has this name)") from error
    return f"folder {FOLDER_TITLE}: created"


def _put_dashboard(grafana: Any, uid: str) -> str:
    model = {**committed(uid), "id": None}
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
        locked = " (a provisioned dashboard has this name)" if error.status_code in NOT_AS_BEFORE else ""
        raise PushError(f"dashboard {uid}: {error.message}{locked}") from error
    return f"dashboard {uid}: version {answer.get('version')} at {answer.get('url')}"
