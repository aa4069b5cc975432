"""Stop requests: signals end a wait and make a descriptor readable."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from schemas.stop_request import StopRequest


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    request = StopRequest()
    yield request
    os.close(request.fd)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_request_ends_a_wait_of_another_thread(stop: StopRequest) -> None:
    assert not stop.wait(0)
    timer = threading.Timer(0.05, stop.set)
    begin = time.monotonic()
    timer.start()
    assert stop.wait(10)
    assert time.monotonic() - begin < 5
    timer.join()


def test_a_request_stays_and_its_descriptor_stays_readable(stop: StopRequest) -> None:
    stop.set()
    stop.set()
    for _ in range(2):
        assert stop.wait(0)
        assert select.select([stop.fd], [], [], 0)[0] == [stop.fd]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_requests_the_stop(stop: StopRequest, number: signal.Signals) -> None:
    assert stop.set_on_signals()
    os.kill(os.getpid(), number)
    assert stop.wait(5)
    assert stop.is_set()


def test_handlers_need_the_main_thread(stop: StopRequest) -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(stop.set_on_signals()))
    thread.start()
    thread.join()
    assert found == [False]
