"""Parts of one process: a failing one starts again alone, faults and states are those of all."""

from __future__ import annotations

import threading

import pytest

from fabrictime.runtime import parts
from fabrictime.runtime.parts import PartNotifiers, run_parts
from schemas.process_part import Part, own_process
from schemas.service_notifier import ServiceNotifier


class Recorder(ServiceNotifier):
    """Keeps the messages to the service manager."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def notify(self, state: str) -> None:
        self.messages.append(state)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    sent = Recorder()
    process = own_process()
    monkeypatch.setattr(parts, "own_process", lambda: Part(process.stop, sent))
    return sent


@pytest.mark.parametrize("outcome", [ValueError("a bad record"), 1, 2])
def test_a_part_that_fails_starts_again_alone(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, outcome: Exception | int
) -> None:
    monkeypatch.setattr(parts, "RESTART_DELAYS_S", (0.0,))
    monkeypatch.setattr(parts, "REFUSED_DELAYS_S", (0.0,))
    starts: list[int] = []
    is_well = threading.Event()

    def flaky(part: Part) -> int:
        starts.append(len(starts))
        if len(starts) < 4:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        is_well.set()
        part.stop.wait(60)
        return 0

    def prober(part: Part) -> int:
        part.notifier.notify("READY=1")
        assert is_well.wait(60)
        return 7

    assert run_parts(("prober", prober), {"flows": flaky}) == 7
    assert len(starts) == 4
    faults = [message for message in recorder.messages if message.startswith("X_FAULT")]
    assert faults[-1] == "X_FAULT="
    assert sum("flows: " in fault for fault in faults) == 3
    assert recorder.messages.count("READY=1") == 1


def test_the_end_of_the_main_part_stops_the_others(recorder: Recorder) -> None:
    stopped: list[str] = []

    def waits(part: Part) -> int:
        part.stop.wait(60)
        stopped.append("collectives")
        return 0

    assert run_parts(("prober", lambda part: None), {"collectives": waits}) == 0
    assert stopped == ["collectives"]
    assert recorder.messages == []


def test_states_of_parts_are_one_line_and_the_main_part_alone_is_ready() -> None:
    sent = Recorder()
    notifiers = PartNotifiers("prober", sent)
    prober, flows = notifiers.of("prober"), notifiers.of("flows")
    for message in ("READY=1", "STATUS=2 flows", "STOPPING=1", "WATCHDOG=1"):
        flows.notify(message)
    prober.notify("STATUS=8 NICs")
    prober.notify("READY=1")
    assert sent.messages == [
        "STATUS=flows: 2 flows",
        "WATCHDOG=1",
        "STATUS=8 NICs; flows: 2 flows",
        "READY=1",
    ]
