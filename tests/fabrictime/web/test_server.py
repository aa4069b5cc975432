"""The page's process: readiness, health, headers, foreign callers, a port in use, shutdown."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fabrictime.web.history_client import HistoryDown, HistoryRefused, connect_http
from fabrictime.web.settings import WebSettings


class Nowhere:
    """A history URL where nothing listens."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        self.folder = folder
        (folder / "data").mkdir()
        (folder / "data" / "read.token").write_text("secret\n")


@pytest.fixture
def lonely(tmp_path: Path, start_page: Callable[..., Any]) -> Any:
    """A page without history."""
    return start_page(Nowhere(tmp_path))


def ask(page: Any, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    connection.putrequest("GET", path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{page.port}", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def test_without_history_the_page_is_up_and_reports_it(lonely: Any) -> None:
    status, body = lonely.healthz()
    assert status == 503
    assert "does not answer" in body["history"]
    status, headers, text = ask(lonely, "/")
    assert status == 200
    assert "fabrictime" in text
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers
    status, _, text = ask(lonely, "/<docs>")
    assert (status, text) == (404, '<p>There is no page /&lt;docs&gt;. <a href="/">Open the tab Now.</a></p>')
    assert json.loads(ask(lonely, "/api/openapi.json")[2])["paths"] == {}  # without a log there is no state


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_foreign_names_and_pages_are_turned_away(lonely: Any, headers: dict[str, str]) -> None:
    assert ask(lonely, "/", **headers)[0] == 403
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **headers,
    }
    assert ask(lonely, "/_nicegui_ws/socket.io/?EIO=4&transport=websocket", **upgrade)[0] in (400, 403)
    assert ask(lonely, "/", Host=f"localhost:{lonely.port}")[0] == 200


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_soon(lonely: Any, sign: int) -> None:
    ask(lonely, "/")
    start = time.monotonic()
    assert lonely.process.stop(sign) == 0
    assert time.monotonic() - start < 8
    text = lonely.process.log.read_text()
    assert "web page stopped" in text
    assert "Traceback" not in text
    assert not (lonely.process.log.parent / ".nicegui").exists()


def test_the_supervisor_is_notified_when_it_listens(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        notify.settimeout(30)
        settings = WebSettings(port=0, history_url=Nowhere(tmp_path).url)  # type: ignore[arg-type]
        code = (
            "import sys; from fabrictime.web.server import main; from fabrictime.web.settings import *;"
            "sys.exit(main(WebSettings.model_validate_json(sys.argv[1])))"
        )
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        environment |= {"NOTIFY_SOCKET": str(path), "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.Popen([sys.executable, "-c", code, settings.model_dump_json()], env=environment)
        try:
            message = notify.recv(4096).decode()
        finally:
            child.terminate()
            assert child.wait(20) == 0
    assert message.startswith("READY=1\nSTATUS=http://127.0.0.1:")


def test_a_taken_port_is_one_line(lonely: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from fabrictime.web.server import main

    assert main(WebSettings(port=lonely.port)) == 1
    assert capfd.readouterr().err.strip() == (
        f"fabrictime web: web.port {lonely.port} on 127.0.0.1: Address already in use, expected a free port"
    )


def test_settings_refuse_unknown_keys() -> None:
    for wrong in ({"port": 70_000}, {"refresh_ms": 1}, {"history_url": "ftp://x"}, {"colour": "red"}):
        with pytest.raises(ValidationError):
            WebSettings.model_validate(wrong)


def test_absent_refusing_and_tokenless_histories_differ(tmp_path: Path, shared_server: Any) -> None:
    nowhere = connect_http(Nowhere(tmp_path).url, "reader", None, "fabrictime", 2.0, 1)
    with pytest.raises(HistoryDown, match="does not answer"):
        nowhere.columns("SELECT 1")
    wrong = tmp_path / "wrong.token"
    wrong.write_text("wrong")
    with pytest.raises(HistoryRefused, match="refuses the user or token"):
        connect_http(shared_server.url, "reader", wrong, "fabrictime", 2.0, 1).columns("SELECT 1")
    with pytest.raises(HistoryRefused, match=r"missing\.token cannot be read: No such file"):
        connect_http(shared_server.url, "reader", tmp_path / "missing.token", "fabrictime", 2.0, 1).columns(
            "SELECT 1"
        )
    right = connect_http(
        shared_server.url, "reader", shared_server.folder / "data" / "read.token", "fabrictime", 5.0, 1
    )
    assert list(right.columns("SELECT 1 + {a:Int64}", {"a": 2})[0]) == [3]
    right.close()
