"""Describes the history database as a Grafana data source: the ClickHouse plugin over HTTP.

The description is used by Grafana's API and by its provisioning. Dashboards refer to the source by its uid.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

PLUGIN: Final = "grafana-clickhouse-datasource"
PLUGIN_VERSION: Final = "4.11.2"
UID: Final = "fabrictime"
NAME: Final = "fabrictime history"
DATABASE: Final = "fabrictime"
TABLE_FORMAT: Final = 1
SERIES_FORMAT: Final = 0
DEFAULT_URL: Final = "http://127.0.0.1:18123"


def data_source(url: str, user: str, password: str | None) -> dict[str, Any]:
    """Return the data source in the format of Grafana's API.

    Without a password, Grafana keeps the stored password. Raises ValueError if `url` is not
    http(s)://host[:port].
    """
    parts = urlsplit(url)
    try:
        port = parts.port or (8443 if parts.scheme == "https" else 8123)
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.username:
        raise ValueError(f"history URL {url!r}: expected http://host:port")
    return {
        "uid": UID,
        "name": NAME,
        "type": PLUGIN,
        "access": "proxy",
        "isDefault": False,
        "jsonData": {
            "version": PLUGIN_VERSION,
            "host": parts.hostname,
            "port": port,
            "protocol": "http",
            "secure": parts.scheme == "https",
            "username": user,
            "defaultDatabase": DATABASE,
        },
        "secureJsonData": {} if password is None else {"password": password},
    }


def target(sql: str, ref_id: str, series: bool = False) -> dict[str, Any]:
    """Return a query in the plugin's stored format, read as a time series if `series`, else as a table."""
    return {
        "refId": ref_id,
        "datasource": {"type": PLUGIN, "uid": UID},
        "editorType": "sql",
        "queryType": "timeseries" if series else "table",
        "format": SERIES_FORMAT if series else TABLE_FORMAT,
        "rawSql": sql,
        "pluginVersion": PLUGIN_VERSION,
    }
