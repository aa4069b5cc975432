"""The history server and the web page as child processes.

A page is forked from a server that has loaded its modules: to import them takes two seconds of a processor.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.fabrictime.web.history_rows import Writer
from tests.waiting import wait_until

HISTORY = """
import sys
from pathlib import Path
from fabrictime.history.server import main
from fabrictime.history.settings import HistorySettings
sys.exit(main(HistorySettings(directory=Path(sys.argv[1]), port=int(sys.argv[2]))))
"""
DEADLINE_S = 60.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "clickhouse_connect",
        "fastapi",
        "nicegui.ui",
        "uvicorn.protocols.http.auto",
        "uvicorn.protocols.websockets.auto",
        "fabrictime.web.history_reader",
        "fabrictime.web.server",
        *(
            f"fabrictime.web.tabs.{name}.view"
            for name in ("actions", "alerts", "audit", "clocks", "contention", "delays", "fabric", "jobs")
        ),
        "fabrictime.web.tabs.now.view",
    ]
)
"""Forks pages; a module that cannot be loaded beforehand is loaded by each page."""

T = TypeVar("T")


def until(condition: str, ask: Callable[[], T], deadline_s: float = DEADLINE_S) -> T:
    """Return the first truthy answer of `ask`. At the deadline, fail with `condition` and the last answer."""
    return wait_until(ask, deadline_s, name=condition)


class Process:
    """A service of ours as a child, its output in a file."""

    def __init__(self, code: str, log: Path, *arguments: str) -> None:
        self.log = log
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                cwd=log.parent,
            )

    def stop(self, sign: int = signal.SIGTERM) -> int:
        if self.child.poll() is None:
            self.child.send_signal(sign)
        return self.child.wait(20)

    def alive(self) -> None:
        assert self.child.poll() is None, self.log.read_text()


def serve_page(log: Path, settings: str) -> None:
    """Run a page in this process, with its output in a file."""
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(log.parent)
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # with it NiceGUI behaves otherwise
    from fabrictime.web.server import main
    from fabrictime.web.settings import WebSettings

    logging.basicConfig(level=logging.INFO)
    sys.exit(main(WebSettings.model_validate_json(settings)))


class PageProcess:
    """A page in a process of its own, its output in a file."""

    def __init__(self, log: Path, settings: str) -> None:
        self.log = log
        self.child = FORKS.Process(target=serve_page, args=(log, settings))
        self.child.start()

    def stop(self, sign: int = signal.SIGTERM) -> int:
        if self.child.is_alive():
            assert self.child.pid
            os.kill(self.child.pid, sign)
        self.child.join(20)
        assert self.child.exitcode is not None, "still running"
        return self.child.exitcode

    def alive(self) -> None:
        assert self.child.is_alive(), self.log.read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A real history server on a directory, with a writer for any database in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None

    def start(self) -> None:
        self.process = Process(
            HISTORY, self.folder / "history.log", str(self.folder / "data"), str(self.port)
        )
        until("history answers", self._answers)

    def stop(self, sign: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.stop(sign)

    def writer(self, database: str = "fabrictime") -> Writer:
        import clickhouse_connect

        client = clickhouse_connect.get_client(
            host="127.0.0.1",
            port=self.port,
            username="fabrictime",
            password=(self.folder / "data" / "write.token").read_text().strip(),
        )
        return Writer(client, database)

    def _answers(self) -> bool:
        assert self.process is not None
        self.process.alive()
        try:
            with urllib.request.urlopen(f"{self.url}/ping", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Page:
    """A live page's process."""

    def __init__(self, folder: Path, server_url: str, token_file: Path | None, **settings: Any) -> None:
        port_file = folder / "page.port"
        given = {
            "port": 0,
            "history_url": server_url,
            "refresh_ms": 200,
            "port_file": str(port_file),
            "stale_after_s": 600.0,
            "history_token_file": str(token_file) if token_file else None,
            **settings,
        }
        self.process = PageProcess(folder / "page.log", json.dumps(given))
        self.port = int(until("the page listens", lambda: self._port(port_file)))
        self.url = f"http://127.0.0.1:{self.port}/"

    def _port(self, path: Path) -> str:
        self.process.alive()
        return path.read_text().strip() if path.exists() else ""

    def healthz(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}healthz", timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def calm(browser: Any, page: Page) -> None:
    """Neither the browser nor the page's process complained."""
    assert browser.errors() == []
    assert "Traceback" not in page.process.log.read_text()
