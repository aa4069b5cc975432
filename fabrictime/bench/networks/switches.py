"""Measures two traffic classes on the testbed's switches, which queue by class and mark.

A flow in one class exceeds the rate of one link, and probes of both classes cross all links. The truth comes
from the switches: the bytes that wait at the link, and the packets that each port has marked. The same probes
pass queue inference and contention twice, with their marks and without, to compare when a window opens.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import require_namespaces
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.fabric import FabricNic
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.processes.child import run_inside
from fabrictime.testbed.settings import FabricClass, FabricSettings
from producers.sim.traces import KnownPath
from schemas.ids import end_parts, host_of, link_ends

if TYPE_CHECKING:
    from native.core import ProbeColumns
    from native.core.probe import Engine

DATA_DSCP: Final = 26
DSCPS: Final = (0, DATA_DSCP)
LINK_BPS: Final = 20_000_000
HOST_BPS: Final = 2 * LINK_BPS
SETTINGS: Final = FabricSettings(
    hosts=4,
    leaves=2,
    spines=2,
    host_rate_bps=HOST_BPS,
    fabric_rate_bps=LINK_BPS,
    buffer_bytes=1_000_000,
    classes=(FabricClass(mark_percent=90), FabricClass(dscp=DATA_DSCP, priority=1, mark_percent=90)),
)
"""Settings in which hosts send faster than a link between switches, which therefore has the queue. Its buffer
is so large that it drops nothing."""
LOAD_BPS: Final = 21_500_000
LOAD_PORTS: Final = (7_000, 7_001)
PROBE_PORT, FIRST_PATH_PORT, PATHS = 9_319, 9_320, 2
PROBES_PPS: Final = 200.0
TIMEOUT_MS: Final = 2_000.0
SETTLE_S, DRAIN_S = 0.5, 1.0
KEY: Final = bytes(16)
QUANTILE: Final = 0.9
SLOT_NS: Final = 10_000_000
"""Slot length of queue inference, which is that for slow links."""
DELAYED_SHARE, FREE_SHARE = 0.4, 0.2
"""Thresholds as shares of the deepest recorded queue: the delay of a class that waits there must be above the
first, that of any other class below the second."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Probe results of one path, class and direction; `waits` if the loaded class crosses the loaded link."""

    dscp: int
    waits: bool
    samples: int
    delay_ns: float
    marked: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's result: probe results, and the switches' deepest queue, as a delay, and marks by DSCP."""

    directions: list[Seen]
    deepest_ns: float
    marked_by_switches: dict[int, int]
    lost: int
    loaded: tuple[str, ...]
    """The loaded link, followed by the other links that all its paths cross."""
    opened_ns: dict[str, int]
    """By link: the end of the data with which its first contention window opened."""
    opened_unmarked_ns: dict[str, int]
    """The same times as in `opened_ns`, but computed without the marks of the probes."""

    @property
    def open_by_ce_ms(self) -> float:
        """Opening time of the loaded link's window with marks minus without, ms; NaN if it never opened."""
        times = [
            min((at_ns for link, at_ns in opened.items() if link in self.loaded), default=None)
            for opened in (self.opened_ns, self.opened_unmarked_ns)
        ]
        if times[0] is None or times[1] is None:
            return float("nan")
        return (times[0] - times[1]) / 1e6

    @property
    def right_share(self) -> float:
        """Share of paths, classes and directions whose delay and marks show exactly the load on them."""
        right = [
            direction.delay_ns > DELAYED_SHARE * self.deepest_ns and direction.marked > 0
            if direction.waits
            else direction.delay_ns < FREE_SHARE * self.deepest_ns and not direction.marked
            for direction in self.directions
        ]
        return sum(right) / len(right)

    @property
    def count_error(self) -> float:
        """Return the differences to the switches' mark counts, summed over all classes, as a share of their
        marks."""
        wrong = sum(
            abs(sum(direction.marked for direction in self.directions if direction.dscp == dscp) - count)
            for dscp, count in self.marked_by_switches.items()
        )
        return wrong / max(1, sum(self.marked_by_switches.values()))


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Load one class for some seconds, and return the figures by key."""
    require_namespaces()
    outcome = run_inside(lambda: measure_load(2.0 if quick else 6.0), timeout_s=60)
    marks = sum(outcome.marked_by_switches.values())
    progress(
        f"switches: {marks} packets marked, queue of {outcome.deepest_ns / 1e6:.0f} ms, {outcome.lost} lost"
    )
    note = (
        f"{len(outcome.directions)} paths, classes and directions; {marks} marks; {outcome.lost} probes lost"
    )
    return {
        "switch_classes_told_apart": Figure(outcome.right_share, "1", note),
        "switch_ce_count_error": Figure(outcome.count_error, "1", "against the counters of switches"),
        "switch_contention_open_by_ce_ms": Figure(outcome.open_by_ce_ms, "ms", "over by delay alone"),
    }


def measure_load(load_s: float) -> Outcome:
    """Load one class for `load_s`; return the outcome. Call it inside namespaces."""
    with Testbed(SETTINGS) as testbed:
        probers = _Probers(testbed)
        try:
            probers.collect(SETTLE_S)
            probers.batches.clear()
            flow = testbed.traffic.start(
                FlowSpec("h1", "h3", LOAD_BPS, load_s, "udp", *LOAD_PORTS, dscp=DATA_DSCP)
            )
            loaded = testbed.truth.likely_path_of("h1", "h3", *LOAD_PORTS)[1]
            deepest_bytes, until_s = 0, time.monotonic() + load_s
            while time.monotonic() < until_s:
                probers.collect(0.1)
                deepest_bytes = max(deepest_bytes, *testbed.truth.queued([loaded]))
            during = list(probers.batches)
            flow.wait()
            probers.collect(DRAIN_S)
        finally:
            probers.close()
        marked: dict[int, int] = dict.fromkeys(DSCPS, 0)
        for counts in testbed.truth.marked().values():
            for dscp, count in counts.items():
                marked[dscp] += count
        directions = _seen(testbed, loaded, probers.batches, len(during))
        lost = sum(int(batch.lost.sum()) for batch in probers.batches)
        routes = _routes(testbed)
    aliased = _aliased(routes, loaded)
    opened, unmarked = (_opened_ns(probers.batches, routes, marking) for marking in (True, False))
    return Outcome(directions, deepest_bytes * 8e9 / LINK_BPS, marked, lost, aliased, opened, unmarked)


def _routes(testbed: Testbed) -> list[KnownPath]:
    """Return the true paths from each NIC to each peer."""
    names = [nic.nic for nic in testbed.fabric.nics()]
    path_of = testbed.truth.likely_path_of
    return [
        KnownPath(a, b, path, path_of(a, b, path, PROBE_PORT), path_of(b, a, PROBE_PORT, path))
        for a in names
        for b in names
        if host_of(a) != host_of(b)
        for path in range(FIRST_PATH_PORT, FIRST_PATH_PORT + PATHS)
    ]


def _aliased(paths: Iterable[KnownPath], link: str) -> tuple[str, ...]:
    """Return a link, followed by the other links that exactly the same routes cross."""
    crossed: dict[str, set[tuple[str, str, int, bool]]] = defaultdict(set)
    for path in paths:
        for is_answer, links in enumerate((path.requests, path.answers)):
            for name in links:
                crossed[name].add((path.nic, path.peer, path.path, bool(is_answer)))
    return tuple(sorted(other for other in crossed if crossed[other] == crossed[link]))


def _opened_ns(batches: Sequence[ProbeColumns], paths: Iterable[KnownPath], marking: bool) -> dict[str, int]:
    """Return, by link, the end of the data, ns, at which contention opens.

    Without `marking`, the probes' marks are removed first.
    """
    import numpy as np

    from fabrictime.bench.detect.shared_fabric import table_of
    from fabrictime.bench.networks.classes import inferred, opened_ns

    none = np.zeros(0, np.int64)
    input_batches = [
        batch if marking else replace(batch, forward_ce=none, reverse_ce=none) for batch in batches
    ]
    round_ns = {batch.batch: batch.system_ns for batch in input_batches}  # all NICs flush together
    flushed = [(round_ns[batch.batch], batch) for batch in input_batches]
    records = inferred(flushed, table_of(paths), _rate_of, SLOT_NS)
    return opened_ns(records, _rate_of, len({batch.nic for batch in input_batches}))


def _rate_of(link: str) -> int:
    """Return the rate of a link, bit/s; links of hosts are faster."""
    return HOST_BPS if any(end_parts(end).node.startswith("h") for end in link_ends(link)) else LINK_BPS


def _seen(testbed: Testbed, loaded: str, batches: list[ProbeColumns], during: int) -> list[Seen]:
    """Group probes by path, class and direction; delays come from the first `during` batches, under load."""
    import numpy as np

    delays: dict[tuple[str, str, int, int, bool], list[int]] = defaultdict(list)
    marks: dict[tuple[str, str, int, int, bool], int] = defaultdict(int)
    for number, batch in enumerate(batches):
        for group, peer in enumerate(batch.peers):
            first, end = int(batch.start[group]), int(batch.start[group + 1])
            for forward, delay, ce in (
                (True, batch.forward, batch.forward_ce),
                (False, batch.reverse, batch.reverse_ce),
            ):
                key = (batch.nic, peer, int(batch.path[group]), int(batch.dscp[group]), forward)
                marks[key] += int(((ce >= first) & (ce < end)).sum())
                if number < during:
                    delays[key] += delay[first:end].tolist()
    directions = []
    for key, values in delays.items():
        nic, peer, port, dscp, forward = key
        ends = (nic, peer, port, PROBE_PORT) if forward else (peer, nic, PROBE_PORT, port)
        waits = dscp == DATA_DSCP and loaded in testbed.truth.likely_path_of(*ends)
        directions.append(Seen(dscp, waits, len(values), float(np.quantile(values, QUANTILE)), marks[key]))
    return directions


class _Probers:
    """A probe engine on each NIC of a testbed; each probes all other NICs in both classes."""

    def __init__(self, testbed: Testbed) -> None:
        from native.core.probe import Engine, Peer

        nics = testbed.fabric.nics()
        self.batches: list[ProbeColumns] = []
        self._engines: list[Engine] = []
        self._threads: list[threading.Thread] = []
        for nic in nics:
            engine = Engine(
                _opened(testbed, nic),
                nic=nic.nic,
                key=KEY,
                rate_pps=PROBES_PPS,
                timeout_ms=TIMEOUT_MS,
                collect_delay_ms=5.0,
                classes=tuple((dscp, None) for dscp in DSCPS),
            )
            engine.set_peers([Peer(to.nic, to.address, PROBE_PORT) for to in nics if to.host != nic.host])
            self._engines.append(engine)
        for engine in self._engines:
            self._threads.append(threading.Thread(target=engine.run, daemon=True))
            self._threads[-1].start()

    def collect(self, seconds: float) -> None:
        """Wait for `seconds`, then take the probes that were answered meanwhile."""
        time.sleep(seconds)
        self.batches += [engine.drain() for engine in self._engines]

    def close(self) -> None:
        """Stop the engines."""
        for engine in self._engines:
            engine.stop()
        for thread in self._threads:
            thread.join(10)
        for engine in self._engines:
            engine.close()


def _opened(testbed: Testbed, nic: FabricNic) -> Any:
    from native.core.probe import open_sockets

    return testbed.fabric.open_in(
        nic.host, lambda: open_sockets(nic.address, PROBE_PORT, FIRST_PATH_PORT, PATHS)
    )
