"""The course of the tour on a testbed and a log that are imitated: order, healing, and failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fabrictime.bench._fabric import CannotRun
from fabrictime.demo import tour as module
from fabrictime.demo.draw import Draw
from fabrictime.demo.pipeline import Pipeline
from fabrictime.demo.script import STEPS, FabricUnfit, Fault, Step
from fabrictime.demo.story import Event, Line
from fabrictime.demo.tour import Tour
from schemas.ids import cable_id
from schemas.kafka.settings import KafkaSettings
from schemas.topics import CONTENTION, LINK_HEALTH
from tests.fabrictime.demo.fabrics import flow, shown
from tests.records import make

LINKS = [f"leaf1:swp{spine + 2}>spine{spine}:swp1" for spine in range(1, 5)]


class FakeLog:
    """A log in which every fault is detected at once."""

    def __init__(self) -> None:
        self.movable = 100
        self.failure: str | None = None
        self.blind = False
        self.stuck = False
        self.behind_s: float | None = 0.1
        self.health: dict[str, str] = {}
        self.open: set[str] = set()
        self._events: list[Event] = []
        self._drops = 0

    def flows(self) -> dict[str, Any]:
        jobs = ("job-a", "job-b")
        return {f"h1/b/sock:{n}": flow(f"h1/b/sock:{n}", jobs[n % 2], LINKS[n % 4]) for n in range(8)}

    def links_of(self, flow_id: str, port: int | None = None) -> tuple[str, ...]:
        return tuple(self.flows()[flow_id]["links"])

    def states(self) -> dict[str, str]:
        return dict(self.health)

    def queues(self) -> set[str]:
        return set(self.open)

    def queues_behind_s(self) -> float | None:
        return self.behind_s

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def break_link(self, kind: str, link: str, lasting: int) -> None:
        state = "GREY" if kind == "grey" else "FLAPPING" if lasting >= 3 else "DOWN"
        self.health[cable_id(link)] = state
        if not self.blind:
            record = make("LinkHealth", subject=cable_id(link), state=state, flaps_hour=lasting)
            self._events.append(Event(LINK_HEALTH.name, record, time.time_ns()))

    def fill(self, link: str, kind: str) -> None:
        if self.blind:
            return
        record = make(
            "ContentionWindow", link=link, kind=kind, state="OPENED", opened_ns=time.time_ns() + 10**6
        )
        self._events.append(Event(CONTENTION.name, record, time.time_ns() + 10**6))


class FakeControl:
    """A testbed that keeps a list of its faults."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.lines: list[str] = []
        self.active: dict[int, str] = {}

    def ask(self, command: str, **values: Any) -> Any:
        return getattr(self, f"_{command}")(**values)

    def _show(self) -> dict[str, Any]:
        return shown() | {"faults": [{"text": line} for line in self.active.values()]}

    def _fault(self, line: str) -> dict[str, Any]:
        self.lines.append(line)
        number = len(self.lines)
        self.active[number] = line
        link = next(part for part in line.split() if ">" in part)
        self.log.break_link(line.split()[0], link, sum(link in each for each in self.lines))
        return {"fault": number, "start_begin_ns": time.time_ns()}

    def _clear(self, fault: str) -> list[dict[str, Any]]:
        line = self.active.pop(int(fault))
        link = next(part for part in line.split() if ">" in part)
        if not self.log.stuck:
            self.log.health[cable_id(link)] = "UP"
        return [{"clear_end_ns": time.time_ns()}]

    def tcp_route(self, source: str, destination: str, sport: int, dport: int) -> list[str]:
        return [LINKS[sport % 4]]


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def control(log: FakeLog) -> FakeControl:
    return FakeControl(log)


@pytest.fixture
def make_tour(
    monkeypatch: pytest.MonkeyPatch, log: FakeLog, control: FakeControl
) -> Callable[..., tuple[Tour, list[str]]]:
    """Return a maker of tours and of their output, with short waits."""

    class FakeRun:
        def __init__(self, control: Any, **spec: Any) -> None:
            self.iterations: list[tuple[float, float]] = []
            self.ports = {("h1", 1, 1)}
            if spec["job"] == "transfer":
                link = LINKS[spec["sport"] % 4]
                log.fill(link, "COLLISION")
            if spec["job"] == "incast":
                host = spec["hosts"][0]
                log.fill(next(link for link in shown()["links"] if f">{host}:" in link), "INCAST")

        def leave(self) -> None:
            pass

        join = leave

    monkeypatch.setattr(module, "JobRun", FakeRun)
    monkeypatch.setattr(module, "FlowRun", FakeRun)
    monkeypatch.setattr(Draw, "pause_s", lambda draw: 0.01)
    monkeypatch.setattr(Draw, "drop_s", lambda draw: 0.02)
    steps = tuple(replace(step, min_s=0.05, max_s=0.4) for step in STEPS)
    for name in (
        "RECOVER_S",
        "BASE_S",
        "SETTLE_S",
        "REPORT_S",
        "SEEN_S",
        "DROP_MAX_S",
        "RETURN_MAX_S",
    ):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(module, "OVER_S", 0.1)
    monkeypatch.setattr(module, "CAUGHT_UP_S", 0.1)

    class Printed:
        def __init__(self, lines: list[str]) -> None:
            self.lines = lines

        def heading(self, number: int, step: Step) -> None:
            self.lines.append(f"# {step.fault}")

        def line(self, line: Line) -> None:
            self.lines.append(f"{line.label}: {line.text}")

        def remark(self, text: str) -> None:
            self.lines.append(text)

        def phase(self, text: str) -> None:
            pass

    def made() -> tuple[Tour, list[str]]:
        printed: list[str] = []
        pipeline = Pipeline(control, KafkaSettings(), None, None)  # type: ignore[arg-type]
        return Tour(pipeline, log, Printed(printed), Draw(7), acting=True, steps=steps), printed  # type: ignore[arg-type]

    return made


def test_every_fault_is_injected_detected_and_healed_in_order(
    make_tour: Callable[..., tuple[Tour, list[str]]], control: FakeControl
) -> None:
    tour, printed = make_tour()
    tour.run()
    assert [line[2:] for line in printed if line.startswith("# ")] == [fault.value for fault in Fault]
    assert [outcome.named for outcome in tour.outcomes] == ["yes"] * 5
    assert all(outcome.is_in_time for outcome in tour.outcomes)
    assert all(outcome.healed for outcome in tour.outcomes)
    assert control.active == {}
    assert len({outcome.link for outcome in tour.outcomes}) == 5, "each fault has a link of its own"
    assert all(" for " in line for line in control.lines), "a fault heals by itself if the tour is killed"
    assert sum("after 3 drops" in line for line in printed) == 1


def test_an_undetected_fault_is_reported_and_healed(
    make_tour: Callable[..., tuple[Tour, list[str]]], log: FakeLog, control: FakeControl
) -> None:
    log.blind = True
    tour, printed = make_tour()
    tour.run()
    assert sum(line.startswith("missed: not detected") for line in printed) == 5
    assert [outcome.detected_ms for outcome in tour.outcomes] == [None] * 5
    assert not [line for line in printed if "busy" in line]
    assert control.active == {}


@pytest.mark.parametrize(("behind_s", "age"), [(7.31, "7.3 s old"), (None, "not there yet")])
def test_evidence_that_is_late_is_named_before_the_first_fault_and_beside_a_missed_one(
    make_tour: Callable[..., tuple[Tour, list[str]]], log: FakeLog, behind_s: float | None, age: str
) -> None:
    log.blind, log.behind_s = True, behind_s
    tour, printed = make_tour()
    tour.run()
    assert f"This machine is busy: evidence about queues is {age}. Expect late detections." in printed
    assert (
        sum(line.endswith(f"evidence about queues is {age}: this machine is busy") for line in printed) == 2
    )


def test_a_link_that_stays_unhealthy_and_a_queue_that_stays_are_not_healed(
    make_tour: Callable[..., tuple[Tour, list[str]]], log: FakeLog
) -> None:
    log.stuck = True
    log.open = {link for link in shown()["links"] if ">h" in link}
    tour, _ = make_tour()
    tour.run()
    healed = {outcome.fault: outcome.healed for outcome in tour.outcomes}
    assert healed == {
        "grey link": False,
        "blackhole": False,
        "flapping": True,
        "collision": True,
        "incast": False,
    }, "FLAPPING is a link that works again"


def test_an_interrupt_heals_the_fault_in_force(
    make_tour: Callable[..., tuple[Tour, list[str]]], control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    tour, _ = make_tour()

    def interrupt(*arguments: Any) -> None:
        assert len(control.active) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(tour, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tour.run()
    assert control.active == {}


def test_a_log_that_fails_ends_the_tour_and_heals(
    make_tour: Callable[..., tuple[Tour, list[str]]], log: FakeLog, control: FakeControl
) -> None:
    tour, _ = make_tour()
    log.failure = "log 127.0.0.1:9: does not answer"
    with pytest.raises(CannotRun, match="does not answer"):
        tour.run()
    assert control.active == {}


def test_a_fabric_with_a_fault_in_force_or_without_a_busy_link_is_refused(
    make_tour: Callable[..., tuple[Tour, list[str]]], log: FakeLog, control: FakeControl
) -> None:
    control.active = {7: "blackhole leaf1>spine1"}
    with pytest.raises(CannotRun, match="'blackhole leaf1>spine1' is in force"):
        make_tour()
    control.active = {}
    log.health = {cable_id(link): "FLAPPING" for link in LINKS}
    tour, _ = make_tour()
    with pytest.raises(CannotRun, match="no healthy link"):
        tour.run()


def test_a_small_fabric_is_refused(
    make_tour: Callable[..., tuple[Tour, list[str]]], control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_show", lambda: shown(spines=1))
    with pytest.raises(FabricUnfit, match="1 spine"):
        make_tour()
