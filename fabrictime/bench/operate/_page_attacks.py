"""Attacks on the page, its interface, its websockets and the MCP server with bad or no credentials."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fabrictime.web.login import COOKIE
from fabrictime.web.settings import LoginSettings
from fabrictime.web.users import COOKIE_S, Users

Attempt = tuple[str, str, bool]
"""Interface, name of the attempt, and whether it was accepted."""
PATHS: Final = (
    "/", "/now", "/delays", "/fabric", "/contention", "/jobs", "/alerts", "/audit", "/healthz",
    "/api/openapi.json", "/api/v1/health", "/api/v1/links", "/api/v1/alerts", "/api/v1/jobs",
    "/api/v1/actions", "/_nicegui_ws/socket.io/?EIO=4&transport=polling", "//api/v1/health",
    "/login/../api/v1/health",
)  # fmt: skip
CHANGES: Final = ("/api/v1/notes", "/api/v1/pause", "/api/v1/resume")
TIMEOUT_S: Final = 30.0
UPGRADE: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def attack(page: str, tokens: Mapping[str, str], users_file: Path) -> Iterator[Attempt]:
    """Yield each attempt. Raises RuntimeError if the page does not serve its users."""
    users = Users(LoginSettings(users_file=users_file))
    genuine = users.cookie(tokens["act"].encode(), time.time())
    for path in ("/delays", "/api/v1/health"):
        for headers in (_bearer(tokens["look"]), {"Cookie": f"{COOKIE}={genuine}"}):
            if not _is_served(page, "GET", path, headers):
                raise RuntimeError(f"{page}{path}: not served to its users")
    strangers = _strangers(tokens, users)
    for name, headers in strangers.items():
        for path in PATHS:
            yield (
                "page" if "/api" not in path else "API",
                f"{path}, {name}",
                _is_served(page, "GET", path, headers),
            )
        for path in CHANGES:
            yield "API", f"POST {path}, {name}", _is_served(page, "POST", path, headers)
        socket_path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
        yield "websocket", name, _is_served(page, "GET", socket_path, {**headers, **UPGRADE})
    for role, paths in (("look", CHANGES), ("configure", CHANGES[1:])):
        for path in paths:
            yield "API", f"POST {path}, role {role}", _is_served(page, "POST", path, _bearer(tokens[role]))
    foreign = {"Cookie": f"{COOKIE}={genuine}", "Origin": "http://evil.example"}
    for path in CHANGES:
        yield "API", f"POST {path}, foreign page", _is_served(page, "POST", path, foreign)
    rebound = {"Cookie": f"{COOKIE}={genuine}", "Host": "evil.example"}
    yield "page", "name of a foreign host", _is_served(page, "GET", "/delays", rebound)
    yield from _assistants(page, tokens)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _strangers(tokens: Mapping[str, str], users: Users) -> dict[str, dict[str, str]]:
    """Return, by name, HTTP headers of callers without permission."""
    token = tokens["act"]
    over = users.cookie(token.encode(), time.time() - COOKIE_S - 1)
    genuine = users.cookie(token.encode(), time.time()) or ""
    basic = base64.b64encode(f"acter:{token}".encode()).decode()
    return {
        "no credential": {},
        "wrong token": _bearer("x" * len(token)),
        "half a token": _bearer(token[: len(token) // 2]),
        "empty token": {"Authorization": "Bearer "},
        "basic": {"Authorization": f"Basic {basic}"},
        "header of no proxy": {"X-Forwarded-User": "acter"},
        "forwarded for a proxy": {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-User": "acter"},
        "cookie that is over": {"Cookie": f"{COOKIE}={over}"},
        "cookie of another role": {"Cookie": f"{COOKIE}={genuine.replace('acter', 'looker')}"},
        "forged cookie": {"Cookie": f"{COOKIE}=acter:99999999999:{'0' * 64}"},
        "token as cookie": {"Cookie": f"{COOKIE}={token}"},
    }


def _is_served(page: str, method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return whether the page answers a request with content, or accepts a websocket."""
    address = urlsplit(page)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)
    body = json.dumps({"subject": "h1", "comment": "x"}) if method == "POST" else None
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        status = connection.getresponse().status
    finally:
        connection.close()
    return status < 300 or status in (409, 422, 503)


def _assistants(page: str, tokens: Mapping[str, str]) -> Iterator[Attempt]:
    """Yield the attempts of the MCP server's tools with wrong tokens."""
    if find_spec("mcp") is None or find_spec("httpx") is None:
        return
    from mcp.server.mcpserver.exceptions import ToolError

    from fabrictime.mcp.server import Fleet

    async def call(token: str | None) -> list[bool]:
        fleet = Fleet(page, token)
        results = []
        for tool in (
            fleet.fleet_health,
            fleet.list_jobs,
            fleet.list_links,
            fleet.list_contention,
            fleet.list_actions,
        ):
            try:
                await tool()
            except ToolError:
                results.append(False)
            else:
                results.append(True)
        await fleet.close()
        return results

    if not all(asyncio.run(call(tokens["look"]))):
        raise RuntimeError("mcp: the tools do not answer their user")
    for name, token in (("no token", None), ("wrong token", "x" * 40)):
        yield from (
            ("MCP", f"tool {number}, {name}", is_ok) for number, is_ok in enumerate(asyncio.run(call(token)))
        )
