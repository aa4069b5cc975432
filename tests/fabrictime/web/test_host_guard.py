"""Host guard: requests of foreign pages are refused, and all responses carry strict headers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fabrictime.web.host_guard import HEADERS, HostGuard


def request(
    host: str, origin: str | None = None, *, bound: str = "127.0.0.1", kind: str = "http"
) -> list[Any]:
    """Return the messages that one request is answered with."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"X-Frame-Options", b"SAMEORIGIN")]
        await send({"type": f"{kind}.response.start", "status": 200, "headers": headers})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    asyncio.run(HostGuard(app, bound)({"type": kind, "headers": headers}, None, send))
    return sent


@pytest.mark.parametrize(
    "host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "a.localhost", "127.9.9.9"]
)
def test_a_loopback_name_is_served(host: str) -> None:
    assert request(host)[0]["status"] == 200
    assert request(host, f"http://{host}")[0]["status"] == 200


@pytest.mark.parametrize("host", ["evil.example", "", "localhost.evil.example", "10.0.0.1:8080"])
def test_another_name_is_refused_on_loopback(host: str) -> None:
    assert request(host)[0]["status"] == 403


def test_any_name_is_served_on_another_address() -> None:
    assert request("fabric.example", bound="10.0.0.1")[0]["status"] == 200


def test_a_foreign_origin_is_refused_everywhere() -> None:
    for bound in ("127.0.0.1", "10.0.0.1"):
        assert request("localhost", "http://evil.example", bound=bound)[0]["status"] == 403
    assert request("localhost", "null")[0]["status"] == 403


def test_a_foreign_websocket_is_closed() -> None:
    assert request("localhost", "http://evil.example", kind="websocket") == [
        {"type": "websocket.close", "code": 1008}
    ]


def test_headers_are_added_and_those_of_the_application_are_kept() -> None:
    headers = request("localhost")[0]["headers"]
    names = [name.lower() for name, _ in headers]
    assert sorted(names) == sorted(HEADERS)
    assert dict(headers)[b"X-Frame-Options"] == b"SAMEORIGIN"
