"""ASGI wrapper that refuses requests and websockets of users without a login, and the page with the login
form.

The application sees only admitted requests. Below /api, requests other than reads need at least the role
configure, and each route checks its own role.
"""

from __future__ import annotations

import html
import logging
import time
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from fabrictime.web.users import COOKIE_S, Role, User, Users
from schemas.repeat_filter import RepeatFilter

COOKIE: Final = "fabrictime"
MAX_FORM_BYTES: Final = 4096
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PAGE: Final = """<!doctype html><html lang="en"><title>fabrictime: login</title>
<meta name="viewport" content="width=device-width">
<style>body{font:16px sans-serif;background:#151a21;color:#dde;display:grid;place-items:center;height:90vh}
input,button{font:inherit;padding:.4em;margin:.2em}</style>
<form method="post" action="/login"><p>%s</p><input type="hidden" name="next" value="%s">
<input type="password" name="token" aria-label="Token" autofocus required autocomplete="current-password">
<button>Log in</button></form></html>"""

_log = logging.getLogger(__name__)


class LoginGuard:
    """Admits the users in `Users`. The application finds the user in `request.state.user`."""

    def __init__(
        self, app: Any, users: Users, header: str, *, secure: bool, clock_s: Callable[[], float] = time.time
    ) -> None:
        """Guard `app`. `header`: the proxy's header with the user's name; `secure`: the page itself has
        TLS.
        """
        self._app, self._users, self._secure, self._clock_s = app, users, secure, clock_s
        self._header = header.lower().encode()
        self.refused = 0
        """Number of requests refused."""
        self._repeats = RepeatFilter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request or websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] in ("/login", "/logout"):
            await self._login(scope, receive, send)
            return
        user = self._user(scope)
        method = scope.get("method", "GET")
        is_api = scope["path"].startswith("/api")
        if user is not None and (method in _READS or not is_api or user.role >= Role.CONFIGURE):
            scope.setdefault("state", {})["user"] = user
            await self._app(scope, receive, send)
            return
        self.refused += 1
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif user is not None:
            await _answer(send, 403, f'{{"detail":"user {user.name}: expected the role configure"}}')
        elif is_api or method != "GET":
            await _answer(send, 401, '{"detail":"expected a login"}', (b"www-authenticate", b"Bearer"))
        else:
            target = f"{scope['path']}?{scope.get('query_string', b'').decode('latin-1')}".rstrip("?")
            location = f"/login?next={quote(_next(target), safe='')}"
            await _answer(send, 303, "", (b"location", location.encode()))

    def _user(self, scope: Any) -> User | None:
        """Return the user of a request by the proxy's header, a bearer token or the cookie, in this order."""
        client = scope.get("client") or ("", 0)
        named = [value.decode("latin-1") for name, value in scope["headers"] if name == self._header]
        if named and (user := self._users.by_proxy(client[0], named)) is not None:
            return user
        headers = dict(scope["headers"])
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer":
            return self._users.by_token(token.strip())
        cookies = SimpleCookie()
        try:
            cookies.load(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return None
        cookie = cookies.get(COOKIE)
        return None if cookie is None else self._users.by_cookie(cookie.value, self._clock_s())

    async def _login(self, scope: Any, receive: Any, send: Any) -> None:
        secure = "; Secure" if self._secure else ""
        cookie = f"{COOKIE}=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%d{secure}"
        if scope["path"] == "/logout":
            header = (b"set-cookie", (cookie % ("", 0)).encode())
            await _answer(send, 303, "", (b"location", b"/login"), header)
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if scope["method"] != "POST":
            await _answer(send, 200, _form("Token of this page", query), kind=b"text/html; charset=utf-8")
            return
        fields = parse_qs((await _body(receive)).decode("latin-1"))
        value = self._users.cookie(fields.get("token", [""])[0].encode("latin-1"), self._clock_s())
        if value is None:
            self.refused += 1
            line = f"login refused, from {(scope.get('client') or ('unknown',))[0]}"
            if (due := self._repeats.due(line)) is not None:
                _log.warning("%s", due)
            await _answer(send, 401, _form("Unknown token", fields), kind=b"text/html; charset=utf-8")
            return
        _log.info("user %s logged in", value.partition(":")[0])
        header = (b"set-cookie", (cookie % (value, COOKIE_S)).encode())
        await _answer(send, 303, "", (b"location", _next(fields.get("next", ["/"])[0]).encode()), header)


async def _body(receive: Any) -> bytes:
    """Return the body of a form; empty if it is too long."""
    body, more = b"", True
    while more and len(body) <= MAX_FORM_BYTES:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return b"" if len(body) > MAX_FORM_BYTES else body


def _next(target: str) -> str:
    """Return `target` if it is a path of this page, else `/`: a login must not lead to a foreign page."""
    is_plain = target.isascii() and target.isprintable() and not set(target) & set("\\ ")
    is_path = is_plain and target.startswith("/") and not urlsplit(target).netloc
    return target if is_path else "/"


def _form(text: str, fields: dict[str, list[str]]) -> str:
    return _PAGE % (text, html.escape(_next(fields.get("next", ["/"])[0]), quote=True))


async def _answer(
    send: Any, status: int, body: str, *headers: tuple[bytes, bytes], kind: bytes = b"application/json"
) -> None:
    data = body.encode()
    start = [
        (b"content-type", kind),
        (b"content-length", str(len(data)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*start, *headers]})
    await send({"type": "http.response.body", "body": data})
