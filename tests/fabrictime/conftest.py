"""Fixtures for the tests of the application."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from fabrictime.runtime.supervisor import Child, Supervisor
from fabrictime.state.fabric_state import FabricState
from tests.embedded_log import EmbeddedLog
from tests.fabrictime.children import program
from tests.fabrictime.fabric_records import FabricRecords
from tests.fabrictime.fill import decode_flows
from tests.fabrictime.web.browser import CHROMEDRIVER, CHROMIUM, Browser


@pytest.fixture(scope="session")
def records() -> type[FabricRecords]:
    """Return the maker of a fabric's records."""
    return FabricRecords


@pytest.fixture
def fabric(records):
    """Return records of eight NICs under four leaves and four spines."""
    return records()


@pytest.fixture
def state():
    """Return an empty state."""
    return FabricState(decode_flows)


@pytest.fixture
def steady():
    """Make a child that is ready at once and runs until SIGTERM."""

    def make(name: str, **fields) -> Child:
        body = "notify('READY=1\\nSTATUS=serving'); print('up', flush=True); signal.pause()"
        return program(name, body, **fields)

    return make


@pytest.fixture
def child():
    return program


@pytest.fixture
def supervised(tmp_path):
    """A supervisor whose events are kept, and a way to wait for something to become true."""
    events = []
    supervisor = Supervisor(tmp_path, events.append)
    supervisor.events = events
    return supervisor


async def until(condition, limit_s: float = 20.0):
    """Wait until `condition()` is true and return its value."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        await asyncio.sleep(0.02)
    return value


@pytest.fixture(name="until")
def until_fixture():
    return until


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """An embedded log in a thread of this process; its address."""
    with EmbeddedLog(tmp_path_factory.mktemp("log")) as started:
        yield started.bootstrap


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium; skips where it or its driver is missing."""
    for path in (CHROMIUM, CHROMEDRIVER):
        if not os.access(path, os.X_OK):
            pytest.skip(f"{path} is missing (Debian: apt-get install chromium chromium-driver)")
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.driver.quit()
