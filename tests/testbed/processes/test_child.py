"""Work in a child with namespaces of its own: results, errors, time-outs and deaths reach the caller."""

from __future__ import annotations

import gc
import os
import signal
from typing import ClassVar

import pytest

from fabrictime.testbed.processes.child import ChildFailed, run_inside


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_a_result_comes_back_and_memory_is_the_callers(inside) -> None:
    seen = [1]

    def work() -> tuple[list[int], int]:
        seen.append(2)
        return seen, os.getpid()

    found, child = inside(work)
    assert (found, seen) == ([1, 2], [1])
    assert child != os.getpid()
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


class Client:
    """Stands for a client whose destructor waits for threads of the process that made it."""

    closed_by: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.closed_by.append(os.getpid())


def test_garbage_of_the_caller_is_not_collected_in_the_child(inside) -> None:
    def work() -> list[int]:
        gc.collect()
        return Client.closed_by

    gc.disable()
    try:
        Client()
        assert inside(work) == []
    finally:
        gc.enable()
    gc.collect()
    assert Client.closed_by == [os.getpid()]


def test_an_error_is_raised_here_with_the_childs_traceback(inside) -> None:
    def work() -> None:
        raise KeyError("no such NIC")

    with pytest.raises(KeyError, match="no such NIC") as raised:
        inside(work)
    assert "in work" in raised.value.__notes__[0]


def test_an_error_that_does_not_travel_is_its_text(inside) -> None:
    def work() -> None:
        raise Unpicklable(1, 2)

    with pytest.raises(ChildFailed, match="1 and 2"):
        inside(work)


def test_a_child_that_dies_or_takes_too_long_is_no_hang(inside) -> None:
    with pytest.raises(ChildFailed, match="wait status 9"):
        inside(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(TimeoutError):
        run_inside(signal.pause, 0.05)
