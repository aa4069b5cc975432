"""Fixtures for the tests of the web page: history, page processes, a browser, a log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_log import EmbeddedLog
from tests.fabrictime.evidence import FreshEvidence
from tests.fabrictime.web.history_rows import Filled
from tests.fabrictime.web.processes import Page, Server, until

collect_ignore = [
    name
    for name, wanted in (
        ("test_screenshot.py", "FABRICTIME_WEB_SCREENSHOT"),
        ("tabs/test_frame_times.py", "FABRICTIME_WEB_FRAME_TIMES"),
    )
    if not os.environ.get(wanted)
]
"""The screenshot and the measurement run only on request: neither is a test."""


@pytest.fixture(scope="session")
def _engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    filled = Filled(tmp_path_factory.mktemp("chdb"))
    yield filled
    filled.client.close()


@pytest.fixture
def filled(_engine: Filled) -> Filled:
    """Tables without a row."""
    _engine.fresh()
    return _engine


@pytest.fixture(name="until", scope="session")
def _until() -> Callable[..., Any]:
    """Waits for a condition."""
    return until


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Server]:
    """A history server of this test's own."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One history server for the tests that leave it running."""
    server = Server(tmp_path_factory.mktemp("history"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def start_page(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Starts pages that end with the test."""
    pages: list[Page] = []

    def start(server: Server, **settings: Any) -> Page:
        folder = tmp_path / f"page{len(pages)}"
        folder.mkdir()
        pages.append(Page(folder, server.url, server.folder / "data" / "read.token", **settings))
        return pages[-1]

    yield start
    for page in pages:
        page.process.stop()


@pytest.fixture
def page_client() -> Iterator[Any]:
    """A client of the page without a browser; the elements that a test makes belong to it."""
    from nicegui.client import Client
    from nicegui.page import page

    client = Client(page("/test"))
    with client:
        yield client
    client.delete()


@pytest.fixture
def log_address(tmp_path: Path) -> Iterator[str]:
    """An embedded log of this test's own, in a thread of this process; its address."""
    with EmbeddedLog(tmp_path / "log") as started:
        yield started.bootstrap


@pytest.fixture
def fresh_evidence(log_address: str) -> Iterator[None]:
    """Fresh evidence in the log, as long as the test runs."""
    with FreshEvidence(log_address):
        yield
