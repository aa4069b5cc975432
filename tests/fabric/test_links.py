"""Evidence of broken links from real packets: lost paths, living paths, and the cause."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.truth import PathUnclear
from fabrictime.testbed.settings import FabricSettings

pytestmark = pytest.mark.fabric

PORT, FIRST_PATH_PORT, PATHS = 9319, 9320, 4
SMALL = FabricSettings(hosts=4, leaves=2, spines=2)
WAIT_S = 20.0

ProbedPath = tuple[str, str, int]


class Watch:
    """Takes the evidence of a fleet's engines whenever one rings; keeps the newest word on each way."""

    def __init__(self, fleet: Any) -> None:
        self.engines = fleet.engines
        self.row: dict[ProbedPath, int] = {}
        self.lost: dict[ProbedPath, int] = {}
        self.answered: dict[ProbedPath, int] = {}
        self.late: dict[ProbedPath, int] = {}
        self.trouble: dict[str, set[str]] = {name: set() for name in self.engines}
        self.events: list[tuple[str, Any]] = []

    def forget(self) -> None:
        """Begin anew: what was there before counts no more."""
        self.take()
        self.__init__(self)  # type: ignore[misc]  # the engines are all that stays

    def take(self) -> None:
        from producers.ports.link_events import agent_trouble

        for name, engine in self.engines.items():
            evidence = engine.evidence()
            self.events.append((name, evidence))
            self.trouble[name] |= set(agent_trouble(evidence))
            for news in evidence.paths:
                probed = (name, news.peer, news.path)
                self.row[probed] = news.loss_streak
                for count, more in (
                    (self.lost, news.lost),
                    (self.answered, news.answered),
                    (self.late, news.late),
                ):
                    count[probed] = count.get(probed, 0) + more

    def until(self, done: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
        """Take until it is so; return whether it became so."""
        end = time.monotonic() + timeout_s
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return False
            select.select([engine.evidence_fd for engine in self.engines.values()], [], [], min(left, 0.1))
            self.take()
        return True

    def dead(self) -> set[ProbedPath]:
        """Ways of whom several were lost in a row, and none answered since."""
        return {probed for probed, row in self.row.items() if row >= 3}


def ring(names: list[str], count: int) -> dict[str, list[str]]:
    return {name: [names[(i + k) % len(names)] for k in range(1, count + 1)] for i, name in enumerate(names)}


def crossing(testbed: Testbed, probed: ProbedPath) -> set[str]:
    """Return the links that a probe of this way and its answer take."""
    source, destination, sport = probed
    links: set[str] = set()
    try:
        links |= set(testbed.truth.likely_path_of(source, destination, sport, PORT))
        links |= set(testbed.truth.likely_path_of(destination, source, PORT, sport))
    except PathUnclear:
        pass
    return links


def warm(watch: Watch) -> None:
    """Until each way is known well enough for its time-outs to be short."""
    assert watch.until(lambda: len(watch.answered) >= 4 * 3 * PATHS and min(watch.answered.values()) > 60)
    watch.forget()


@pytest.mark.parametrize("line", ["blackhole leaf1>spine2", "blackhole spine1>leaf2"])
def test_a_blackhole_kills_exactly_the_paths_that_cross_it(inside, probers, line):
    def body():
        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=1000.0, spacing_ns=0, paths=PATHS)
            watch = Watch(fleet)
            try:
                warm(watch)
                probed_paths = {
                    (a, b, FIRST_PATH_PORT + p) for a in names for b in names if a != b for p in range(PATHS)
                }
                (link,) = testbed.faults.add(line).links
                crossed = {probed for probed in probed_paths if link in crossing(testbed, probed)}
                declared = watch.until(lambda: watch.dead() >= crossed)
                watch.answered.clear()
                # On a busy machine a living path may lose a probe too, until its next answer.
                living = watch.until(
                    lambda: watch.answered.keys() >= probed_paths - crossed and watch.dead() == crossed
                )
                dead = watch.dead()
                timeouts = [n.timeout_ns for _, e in watch.events for n in e.paths if n.loss_streak]
                testbed.faults.clear()
                healed = watch.until(lambda: not watch.dead() and watch.answered.keys() >= probed_paths)
                return probed_paths, crossed, declared, living, dead, healed, min(timeouts)
            finally:
                fleet.close()

    probed_paths, crossed, declared, living, dead, healed, timeout_ns = inside(body)
    assert 0 < len(crossed) < len(probed_paths)
    assert declared, "a path that crosses the fault is not told dead"
    assert dead == crossed, "others are told dead"
    assert living, "a path that does not cross it is not answered"
    assert healed, "paths are not told to live again"
    assert timeout_ns >= 2_000_000


def test_a_grey_link_loses_its_share_and_only_on_paths_that_cross_it(inside, probers):
    def body():
        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=1000.0, spacing_ns=0, paths=PATHS)
            watch = Watch(fleet)
            try:
                warm(watch)
                (link,) = testbed.faults.add("grey 20% leaf1>spine2 seed 7").links
                watch.forget()

                def counted() -> bool:
                    crossed = [probed for probed in watch.answered if link in crossing(testbed, probed)]
                    return sum(watch.answered[probed] + watch.lost[probed] for probed in crossed) > 1500

                assert watch.until(counted)
                counters = {True: [0, 0], False: [0, 0]}
                for probed in watch.answered:
                    hit = counters[link in crossing(testbed, probed)]
                    hit[0] += watch.lost[probed] - watch.late[probed]
                    hit[1] += watch.answered[probed]
                return counters
            finally:
                fleet.close()

    counters = inside(body)
    lost, answered = counters[True]
    # a probe crosses the link once: on its way out, or its answer on the way back
    assert 0.13 < lost / (lost + answered) < 0.27
    lost, answered = counters[False]
    assert lost <= 2 + answered // 200, "paths beside it lose packets as well"


def test_a_dead_peer_is_declared_lost_on_all_paths_by_all_its_probers(inside, probers):
    def body():
        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=1000.0, spacing_ns=0, paths=PATHS)
            watch = Watch(fleet)
            try:
                warm(watch)
                gone = names[2]
                fleet.engines[gone].stop()
                probed_paths = {
                    (a, gone, FIRST_PATH_PORT + p) for a in names if a != gone for p in range(PATHS)
                }
                declared = watch.until(lambda: watch.dead() >= probed_paths)
                watch.answered.clear()
                others = {
                    (a, b, FIRST_PATH_PORT + p)
                    for a in names
                    for b in names
                    for p in range(PATHS)
                    if a != b and gone not in (a, b)
                }
                living = watch.until(lambda: watch.answered.keys() >= others)
                return declared, living, watch.dead() == probed_paths
            finally:
                fleet.close()

    declared, living, exactly = inside(body)
    assert declared, "not all who ask it tell it lost on all paths"
    assert living, "others are not answered any more"
    assert exactly


def test_a_queue_that_stands_makes_late_answers_and_no_dead_paths(inside, probers):
    slow = SMALL.model_copy(update={"host_rate_bps": 20_000_000, "fabric_rate_bps": 20_000_000})

    def body():
        from fabrictime.testbed.jobs.traffic import FlowSpec

        with Testbed(slow) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=300.0, spacing_ns=0, paths=PATHS)
            watch = Watch(fleet)
            try:
                assert watch.until(lambda: len(watch.answered) >= 48 and min(watch.answered.values()) > 20)
                watch.forget()
                # 2 x 10.5 Mbit/s into a port of 20: its queue grows for a second, up to 60 ms
                flows = [
                    testbed.traffic.start(
                        FlowSpec(
                            source=source,
                            destination="h4",
                            rate_bps=10_500_000,
                            duration_s=1.2,
                            protocol="udp",
                            sport=sport,
                        )
                    )
                    for source, sport in (("h1", 40_001), ("h2", 40_002))
                ]
                for flow in flows:
                    flow.wait()
                assert watch.until(lambda: len(watch.answered) >= 48 and min(watch.answered.values()) > 40)
                into = [probed for probed in watch.answered if probed[1] == "h4/eth1"]
                worst = max((n.loss_streak for _, e in watch.events for n in e.paths), default=0)
                stayed = sum(watch.lost.values()) - sum(watch.late.values())
                return worst, stayed, sum(watch.answered.values()), watch.dead(), len(into)
            finally:
                fleet.close()

    worst, stayed, answered, dead, into = inside(body)
    assert into == 12
    assert not dead
    assert stayed <= answered // 20, "lost for good without an overflow"
    assert worst < 10


def test_the_hosts_own_port_going_down_is_detected_at_once_and_counts_no_losses(inside, probers):
    def body():
        from producers.ports.device import PortWatch

        with Testbed(SMALL) as testbed:
            nics = testbed.fabric.nics()
            names = [nic.nic for nic in nics]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=1000.0, spacing_ns=0, paths=PATHS)
            watch, port = Watch(fleet), PortWatch(nics[0].device, nics[0].netns)
            try:
                before = port.read()
                warm(watch)
                testbed.faults.add(f"down {names[0]}")
                ready, _, _ = select.select([port.fileno()], [], [], 5)
                down = port.read()
                probed_paths = {(names[0], b, FIRST_PATH_PORT + p) for b in names[1:] for p in range(PATHS)}
                others = {(a, names[0], path) for _, a, path in probed_paths}
                declared = watch.until(
                    lambda: watch.dead() >= others and "LOCAL_DROP" in watch.trouble[names[0]]
                )
                watch.until(lambda: False, 0.3)  # what was under way when the port went is lost, and told so
                in_flight = [watch.row.get(probed, 0) for probed in probed_paths]
                watch.until(lambda: False, 0.3)
                rows = [watch.row.get(probed, 0) for probed in probed_paths]
                testbed.faults.clear()
                up = []
                end = time.monotonic() + 5
                while not up and time.monotonic() < end:
                    select.select([port.fileno()], [], [], 0.1)
                    up = port.read()
                return before, bool(ready), down, declared, in_flight, rows, up
            finally:
                port.close()
                fleet.close()

    before, ready, down, declared, in_flight, rows, up = inside(body)
    assert [seen.carrier for seen in before] == [True]
    assert before[0].speed_bps
    assert ready
    assert [seen.carrier for seen in down] == [False]
    assert declared, "its peers do not tell it lost, or it does not say that its requests stay with it"
    assert rows == in_flight, "requests that never left the host are told as losses of the network"
    assert max(rows) <= 8, "but for a tenth of a second of a path: those that had left when the port went"
    assert [seen.carrier for seen in up] == [True]


def carriers(events: list[Any]) -> list[bool]:
    return [event["carrier"] for event in events if event["carrier"] is not None]


def test_carrier_is_reported_by_an_agent_that_never_has_time_to_wait(inside, probers):
    def body():
        import os

        from producers.ports.link_reporter import LinkReporter
        from producers.settings import NicSettings, ProbeSettings

        with Testbed(SMALL) as testbed:
            nic = testbed.fabric.nics()[0]
            fleet = probers(testbed.fabric, {})
            settings = NicSettings(host=nic.host, device=nic.device, address=nic.address, netns=nic.netns)
            events: list[Any] = []
            wake_fd = os.eventfd(0)
            reporter = LinkReporter(
                fleet.engines[nic.nic], ProbeSettings(key_file="unused"), settings, events.append, wake_fd
            )
            try:
                reporter.publish()
                testbed.faults.add(f"down {nic.nic}")
                reporter.publish()
                unwaited = carriers(events)
                testbed.faults.clear()
                end = time.monotonic() + WAIT_S
                while carriers(events) == unwaited and time.monotonic() < end:
                    reporter.wait(end)
                    reporter.publish()
                return unwaited, carriers(events)
            finally:
                reporter.close()
                fleet.close()
                os.close(wake_fd)

    unwaited, waited = inside(body)
    assert unwaited == [True, False]
    assert waited == [True, False, True]


def test_hogs_beside_the_agents_make_trouble_and_no_dead_paths_without_it(inside, probers):
    def body():
        import os
        import subprocess
        import sys

        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=500.0, timeout_ms=3000.0, paths=PATHS)
            watch = Watch(fleet)
            hogs = []
            try:
                assert watch.until(lambda: len(watch.answered) >= 48 and min(watch.answered.values()) > 30)
                for _ in range(2 * (os.cpu_count() or 1)):
                    hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                watch.forget()
                assert watch.until(lambda: len(watch.answered) >= 48 and min(watch.answered.values()) > 60)
                dead = {(name, n.peer) for name, e in watch.events for n in e.paths if n.loss_streak >= 3}
                cpu_starved = {name for name, trouble in watch.trouble.items() if "STARVED" in trouble}
                for hog in hogs:
                    hog.kill()
                healed = watch.until(lambda: not watch.dead())
                return dead, cpu_starved, healed, sum(watch.answered.values())
            finally:
                for hog in hogs:
                    hog.kill()
                    hog.wait()
                fleet.close()

    dead, cpu_starved, healed, answered = inside(body)
    assert answered > 48 * 60
    assert {peer for _, peer in dead} <= cpu_starved, "told dead, and it says that it was well"
    assert healed
