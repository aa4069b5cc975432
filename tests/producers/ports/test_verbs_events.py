"""Verbs events come out of a process of their own; without pyverbs, or a device, it says so and is done.

The pyverbs here is made by the test: it has the calls of the real one that are used, and an eventfd for the
device. A real one needs a kernel with RDMA.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from producers.ports.verbs_events import VerbsEventReader
from tests.interpreter import interpreter

FAKE = """
import os, threading
class Event:
    def __init__(self, number): self.event_type, self.acked = number, False
    def ack(self): self.acked = True
class Context:
    def __init__(self, name):
        if name != "rxe0":
            raise RuntimeError(f"no device {name}")
        self.fd = os.eventfd(3, os.EFD_SEMAPHORE)
        self.numbers = [10, 9, 77]
    def get_async_event(self):
        os.eventfd_read(self.fd)
        return Event(self.numbers.pop(0))
"""


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[[str], VerbsEventReader]]:
    started = []

    def start(device: str, fake: bool = True) -> VerbsEventReader:
        packages = tmp_path / "packages"
        package = packages / "pyverbs"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("" if fake else "raise ImportError('not here')")
        (package / "device.py").write_text(FAKE)
        started.append(VerbsEventReader(device, interpreter(tmp_path / "python", packages)))
        return started[-1]

    yield start
    for each in started:
        each.close()


def until(done: Callable[[], bool], watch: VerbsEventReader) -> None:
    end = time.monotonic() + 20
    while not done():
        assert time.monotonic() < end, "not in 20 s"
        select.select([watch.fileno()], [], [], 0.1)


def test_events_come_by_name_and_unknown_ones_by_number(watch: Callable[..., VerbsEventReader]) -> None:
    watching, found = watch("rxe0"), []
    until(lambda: len(found.extend(watching.read()) or found) >= 3, watching)
    assert found == ["PORT_ERR", "PORT_ACTIVE", "77"]
    assert watching.ended is None
    assert watching.read() == []


@pytest.mark.parametrize(
    ("device", "fake", "reason"), [("mlx5_7", True, "no device mlx5_7"), ("rxe0", False, "pyverbs: not here")]
)
def test_a_device_that_cannot_be_watched_ends_with_its_reason(
    watch: Callable[..., VerbsEventReader], device: str, fake: bool, reason: str
) -> None:
    watching = watch(device, fake)
    until(lambda: watching.read() == [] and watching.ended is not None, watching)
    assert watching.ended == f"{device}: {reason}"
