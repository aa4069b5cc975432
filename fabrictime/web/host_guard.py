"""ASGI wrapper that sets strict headers and keeps foreign web pages in the same browser from reaching this
page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fabrictime.web.settings import is_loopback

HEADERS = {
    b"content-security-policy": (
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
        b"style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        b"object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",  # with no-referrer, a form posts the origin null
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}


class HostGuard:
    """Adds headers and refuses requests from other origins. On loopback, or with `hosts`, it also refuses
    requests whose Host header names another host.

    The checks prevent DNS rebinding and cross-site websockets.
    """

    def __init__(self, app: Any, host: str, hosts: Sequence[str] = ()) -> None:
        """Guard `app`. `host` is the page's address, and `hosts` are its further names."""
        self._app, self._hosts = app, {name.lower() for name in hosts}
        self._limited = is_loopback(host) or bool(hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request or websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        foreign = origin not in ("", f"http://{host}", f"https://{host}")
        if foreign or (self._limited and not self._is_ours(_name(host).lower())):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await send(
                {"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]}
            )
            await send({"type": "http.response.body", "body": b"wrong host or origin\n"})
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [(name, value) for name, value in HEADERS.items() if name not in present]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _is_ours(self, name: str) -> bool:
        return is_loopback(name) or name in self._hosts


def _name(host: str) -> str:
    return host[1 : host.index("]")] if host.startswith("[") and "]" in host else host.partition(":")[0]
