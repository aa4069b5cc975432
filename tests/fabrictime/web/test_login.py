"""Users of the page: tokens, cookies, proxies, roles; and the real page with a login."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from fabrictime.web.login import COOKIE, LoginGuard
from fabrictime.web.settings import LoginSettings, WebSettings
from fabrictime.web.users import COOKIE_S, Role, Users
from tests.fabrictime.web.test_server import Nowhere

TOKENS = {name: f"{name}-0123456789abcdef0123" for name in ("look", "configure", "act")}
PROXY = "10.0.0.7"


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.touch(mode=0o600)
    path.write_text("# people\n" + "".join(f"{name}@x {name} {token}\n" for name, token in TOKENS.items()))
    return path


@pytest.fixture
def settings(users_file: Path) -> LoginSettings:
    return LoginSettings(
        users_file=users_file,
        proxies=(PROXY,),  # type: ignore[arg-type]
        proxy_roles={"root": "act"},
        hosts=("page",),
    )


class Guarded:
    """A guard around an application that answers with the user's name."""

    def __init__(self, settings: LoginSettings) -> None:
        self.now_s = 1_000_000.0
        self.users = Users(settings)
        self.guard = LoginGuard(
            self.app, self.users, settings.proxy_header, secure=True, clock_s=lambda: self.now_s
        )

    @staticmethod
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = scope["state"]["user"].name.encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def client(self, address: str = "10.9.9.9", **headers: str) -> TestClient:
        return TestClient(
            self.guard, "https://page", client=(address, 1), headers=headers, follow_redirects=False
        )

    def cookie(self, token: str) -> str:
        answer = self.client().post("/login", data={"token": token})
        assert answer.status_code == 303
        return answer.cookies[COOKIE].strip('"')


@pytest.fixture
def guarded(settings: LoginSettings) -> Guarded:
    return Guarded(settings)


def test_nobody_is_admitted_without_a_login(guarded: Guarded) -> None:
    client = guarded.client()
    assert client.get("/api/v1/health").status_code == 401
    answer = client.get("/alerts?alert=a%2Fb")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=%2Falerts%3Falert%3Da%252Fb",
    )
    assert client.post("/_nicegui_ws/socket.io/").status_code == 401
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/_nicegui_ws/socket.io/", "headers": [], "client": ("::1", 1)}
    asyncio.run(guarded.guard(scope, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert guarded.guard.refused == 4


def test_a_token_admits_as_bearer_and_by_the_form(guarded: Guarded) -> None:
    bearer = guarded.client(Authorization=f"Bearer {TOKENS['look']}")
    assert bearer.get("/").text == "look@x"
    client = guarded.client()
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    answer = client.post("/login", data={"token": TOKENS["act"], "next": "/alerts?alert=a"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/alerts?alert=a")
    assert {"HttpOnly", "SameSite=Strict", "Secure"} <= set(answer.headers["set-cookie"].split("; "))
    assert TOKENS["act"] not in answer.headers["set-cookie"]
    assert client.get("/").text == "act@x"
    client.get("/logout")
    assert client.get("/").status_code == 303


@pytest.mark.parametrize("target", ["//evil", "https://evil", "/\\evil", "/a\r\nx: y", "evil", "/ /evil", ""])
def test_a_login_leads_to_no_foreign_page(guarded: Guarded, target: str) -> None:
    answer = guarded.client().post("/login", data={"token": TOKENS["act"], "next": target})
    assert answer.headers["location"] == "/"


def test_a_cookie_ends_with_its_time_its_token_and_its_user(guarded: Guarded, users_file: Path) -> None:
    value = guarded.cookie(TOKENS["act"])
    assert guarded.users.by_cookie(value, guarded.now_s + COOKIE_S - 1)
    assert guarded.users.by_cookie(value, guarded.now_s + COOKIE_S) is None
    users_file.write_text(f"act@x act another-token-0123456789\nlook@x look {TOKENS['look']}\n")
    assert guarded.users.by_cookie(value, guarded.now_s) is None
    assert guarded.users.by_token(TOKENS["look"].encode())
    users_file.write_text("act@x act short\n")
    assert guarded.users.by_token(TOKENS["look"].encode()) is None
    users_file.unlink()
    assert guarded.users.by_token(TOKENS["look"].encode()) is None


def test_a_header_counts_from_the_proxy_alone(guarded: Guarded) -> None:
    header = {"X-Forwarded-User": "root"}
    assert guarded.client(**header).get("/api/x").status_code == 401
    assert guarded.client(PROXY, **header).get("/api/x").text == "root"
    assert guarded.client(PROXY).get("/api/x").status_code == 401
    assert guarded.client(PROXY, **{"X-Forwarded-User": "a b"}).get("/api/x").status_code == 401
    twice = guarded.client(PROXY).get(
        "/api/x", headers=[("X-Forwarded-User", "a"), ("X-Forwarded-User", "b")]
    )
    assert twice.status_code == 401
    assert guarded.users.by_proxy(PROXY, ["root"]).role is Role.ACT  # type: ignore[union-attr]
    assert guarded.users.by_proxy(PROXY, ["guest"]).role is Role.READ  # type: ignore[union-attr]


def test_the_interface_takes_no_changes_of_readers(guarded: Guarded) -> None:
    for name, status in (("look", 403), ("configure", 200), ("act", 200)):
        client = guarded.client(Authorization=f"Bearer {TOKENS[name]}")
        assert client.post("/api/v1/notes").status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "fabric.example"])
def test_another_address_than_loopback_needs_a_login(host: str, users_file: Path) -> None:
    with pytest.raises(ValidationError, match=f"host {host}: expected login.users_file or login.proxies"):
        WebSettings(host=host)
    WebSettings(host=host, login=LoginSettings(users_file=users_file))


def test_proxies_need_the_names_of_the_page() -> None:
    with pytest.raises(ValidationError, match="proxies: expected hosts as well"):
        LoginSettings(proxies=(PROXY,))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="together with tls_key_file"):
        WebSettings(tls_certificate_file=Path("page.pem"))


def test_the_page_serves_its_users_by_tls(
    tmp_path: Path, users_file: Path, start_page: Callable[..., Any]
) -> None:
    certificate, key = tmp_path / "page.pem", tmp_path / "page.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
         "-out", certificate, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o600)
    page = start_page(
        Nowhere(tmp_path),
        login={"users_file": str(users_file)},
        tls_certificate_file=str(certificate),
        tls_key_file=str(key),
    )
    context = ssl.create_default_context(cafile=str(certificate))

    def status(path: str, token: str) -> int:
        request = urllib.request.Request(
            f"https://127.0.0.1:{page.port}{path}", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert status("/delays", TOKENS["look"]) == 200
    assert status("/healthz", TOKENS["look"]) == 503  # without history
    assert status("/login", "wrong") == 200
    assert status("/api/openapi.json", "wrong") == 401
    text = page.process.log.read_text()
    assert f"web page on https://127.0.0.1:{page.port}/" in text
    assert not any(token in text for token in TOKENS.values())
