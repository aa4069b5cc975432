"""One traffic class on real links: a broken queue and a changed DSCP are named with class and place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.truth import PathUnclear
from fabrictime.testbed.settings import FabricClass, FabricSettings

pytestmark = pytest.mark.fabric

DATA_DSCP = 26
PORT, FIRST_PATH_PORT, PATHS = 9319, 9320, 4
SMALL = FabricSettings(hosts=6, leaves=3, spines=2, classes=(FabricClass(), FabricClass(dscp=DATA_DSCP)))
"""Three leaves: between two, links of one spine are crossed by the same paths and cannot be told apart."""
CHANGES = "classes@fabric"
HALF = 0.5
"""Loss rate of the broken class once the window holds little of the time before."""


class ClassWatch:
    """The evidence of a fleet's engines, the true routes of their paths, and the health of the links."""

    def __init__(self, testbed: Testbed, fleet: Any) -> None:
        from producers.ports.link_events import LinkEvents
        from streams.links.health.shard_health import ShardHealth

        self.fleet = fleet
        names = list(fleet.engines)
        self.events = {name: LinkEvents(name, "fabric", fleet.engines[name].run_id) for name in names}
        self.health = ShardHealth("fabric")
        self.records: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.routes: dict[tuple[str, str, int], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        truth = testbed.truth
        for a in names:
            for b in names:
                for path in range(FIRST_PATH_PORT, FIRST_PATH_PORT + PATHS) if a != b else ():
                    there = tuple(truth.likely_path_of(a, b, path, PORT))
                    self.routes[a, b, path] = there, tuple(truth.likely_path_of(b, a, PORT, path))

    def changed(self, since: int) -> set[tuple[str, str]]:
        return set()

    def known(self, nic: str, peer: str, path: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self.routes[nic, peer, path]

    def forward(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return self.routes[nic, peer, path][0]

    def reverse(self, nic: str, peer: str, path: int) -> tuple[str, ...]:
        return self.routes[nic, peer, path][1]

    def until(self, done: Callable[[], bool], timeout_s: float = 30.0) -> bool:
        end = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > end:
                return False
            for name, engine in self.fleet.engines.items():
                for event in self.events[name].probes(engine.evidence()):
                    self._take(self.health.ingest(event, time.time_ns(), self))
            self._take(self.health.evaluate(time.time_ns()))
            time.sleep(0.1)
        return True

    def _take(self, changes: Any) -> None:
        self.records |= {name: dict(record) for name, record in changes if record is not None}

    def grey(self) -> dict[str, dict[str, Any]]:
        return {name: record for name, record in self.records.items() if record["state"] == "GREY"}

    def worst_class(self) -> float:
        """Return the highest loss rate of a class that is named."""
        classes = [each for record in self.grey().values() for each in record["classes"]]
        return max((float(each["loss_rate"]) for each in classes if each["is_lossy"]), default=0.0)


def watched(inside: Any, probers: Any, body: Callable[[Testbed, ClassWatch], Any]) -> Any:
    def run() -> Any:
        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            peers = {a: [b for b in names if b != a] for a in names}
            classes = ((0, None), (DATA_DSCP, None))
            fleet = probers(testbed.fabric, peers, rate_pps=400.0, spacing_ns=0, paths=PATHS, classes=classes)
            try:
                watch = ClassWatch(testbed, fleet)
                end = time.monotonic() + 4.0  # time-outs adapt, and no loss of this time counts
                watch.until(lambda: time.monotonic() > end)
                return body(testbed, watch)
            except PathUnclear as unclear:  # a burst was lost on a busy machine
                raise AssertionError(str(unclear)) from None
            finally:
                fleet.close()

    return inside(run)


def test_a_broken_queue_of_one_class_is_named_with_the_class(inside: Any, probers: Any) -> None:
    def body(testbed: Testbed, watch: ClassWatch) -> Any:
        (link,) = testbed.faults.add(f"blackhole leaf1>spine2 dscp {DATA_DSCP}").links
        watch.until(lambda: watch.worst_class() > HALF)
        found = watch.grey()
        testbed.faults.clear()
        healed = watch.until(lambda: not watch.grey())
        return link, found, healed, watch.records

    link, found, healed, records = watched(inside, probers, body)
    ((_, record),) = found.items()
    assert link in record["links"]
    lossy = {each["dscp"]: each["loss_rate"] for each in record["classes"] if each["is_lossy"]}
    assert set(lossy) == {DATA_DSCP}
    assert lossy[DATA_DSCP] > HALF
    assert f"of DSCP {DATA_DSCP}" in record["text"]
    assert healed
    assert all(each["state"] == "UP" for each in records.values())


def test_a_changed_dscp_is_named_with_the_cable(inside: Any, probers: Any) -> None:
    def body(testbed: Testbed, watch: ClassWatch) -> Any:
        (link,) = testbed.faults.add(f"remark {DATA_DSCP} 0 leaf1>spine2").links
        watch.until(lambda: CHANGES in watch.grey())
        found = watch.grey()
        testbed.faults.clear()
        healed = watch.until(lambda: not watch.grey())
        return link, found, healed

    link, found, healed = watched(inside, probers, body)
    assert set(found) == {CHANGES}
    near, far = link.split(">")
    assert found[CHANGES]["candidates"] == ["<>".join(sorted((near, far)))]
    assert f"DSCP {DATA_DSCP} arrives as DSCP 0" in found[CHANGES]["text"]
    assert healed
