"""Measures the detection time of a dead link on a fabric of real packets, with `fabrictime up` unchanged.

The time runs from a fault to the append of the `LinkHealth` DOWN of its cable, over random directed links
between leaves and spines, half of them blackholes and half with the carrier lost. Further figures: the share
of correct cables; the intervals of probes on each directed link and on the route of each live flow
(`probe_intervals.py`); the agents' processor time and probe rate. To run only this part: `fabrictime bench
detect dead_links [--quick]`.

The fault's time is the moment before the testbed begins to make it, so the duration of making it counts too.
Agents, workers, log and the fabric share the cores.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final, Generic

import numpy as np
import psutil

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import CannotRun, running_fabric
from fabrictime.bench.detect.probe_intervals import Flow, Times, figures_of, live_flows, times_of
from fabrictime.runtime import status
from fabrictime.testbed.control import ControlClient
from schemas import codec
from schemas.ids import cable_id
from schemas.kafka.reader import BEGINNING, END, TopicReader
from schemas.records import Leg, LinkHealth, LinkState, PathMaps, ProbeBatch
from schemas.topics import INVENTORY, LINK_HEALTH, PATHS, PROBES, R, Topic

TRIALS: Final = 40
QUICK_TRIALS: Final = 6
SEED: Final = 20_240_601
KINDS: Final = ("blackhole", "down")
START_S: Final = 90.0
WARM_S: Final = 12.0
CALM_S: Final = 10.0
"""Interval over which probes and processor time are counted."""
FLOWS_S: Final = 600.0
MAX_PPS: Final = 10_000
"""Maximum number of probes per second of all NICs together."""
GIVE_UP_S: Final = 5.0
HEAL_S: Final = 20.0
REST_S: Final = (0.3, 0.8)
"""Range of the pause between the healing of a link and the next fault, which is drawn at random."""
RATE_PPS: Final = 600
"""Requests per second of each of the eight NICs, 4,800 in all. A probe that leaves its leaf crosses four of
the 32 directed links between switches, out and back. So a probe crosses each link every 2 ms."""
FLOW_PPS: Final = 500
"""Maximum of the additional probes for flow routes, per second; with two per NIC the total is 8,800."""
FLOW_GAP_MS: Final = 3.3
"""Objective for the gap between probes of a flow: a probe leaves within the first half of its slot, so two
are at most 1.5 slots apart."""
SETTINGS: Final = f"""
[up]
web = false
workers = 1
clock_pages = false
[probes]
rate_pps = {RATE_PPS}
flow_pps = {FLOW_PPS}
flow_gap_ms = {FLOW_GAP_MS}
"""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about three minutes, or one with `quick`."""
    with running_fabric(progress, SETTINGS) as fabric:
        return _trials(*fabric, progress, QUICK_TRIALS if quick else TRIALS)


def _trials(
    control: ControlClient, bootstrap: str, data: Path, progress: Progress, trials: int
) -> dict[str, Value]:
    fabric_state = control.ask("show")
    links = sorted(link for link in fabric_state["links"] if "spine" in link)
    nics = sorted(nic["nic"] for nic in fabric_state["nics"])
    paths, flaps = _Tail(bootstrap, PATHS), _Tail(bootstrap, LINK_HEALTH)
    pairs = [(nic, nics[(at + len(nics) // 2) % len(nics)]) for at, nic in enumerate(nics)]
    with ExitStack() as stack:
        stack.callback(paths.close)
        stack.callback(flaps.close)
        _wait_traced(paths, len(nics))
        flows = stack.enter_context(live_flows(control, pairs, FLOWS_S))
        progress(f"fabric: traced, {len(flows)} flows, {WARM_S:g} s for the agents to know their ways")
        flaps.until(lambda record: False, WARM_S)
        load, figures = _calm(control, bootstrap, data, fabric_state["links"], flows)
        times_ms: dict[str, list[float]] = {kind: [] for kind in KINDS}
        missed, wrong = [], []
        chance = random.Random(SEED)  # noqa: S311  # a draw that can be drawn again, no secret
        for trial in range(trials):
            kind, link = KINDS[trial % 2], chance.choice(links)
            took_ms, others = _one(control, flaps, f"{kind} {link}", cable_id(link))
            if took_ms is None:
                missed.append(f"{kind} {link}")
            else:
                times_ms[kind].append(took_ms)
            wrong += others
            lines = "not within 5 s" if took_ms is None else f"{took_ms:.0f} ms"
            beside = f", beside it {', '.join(others)}" if others else ""
            progress(f"fabric: {kind} {link}: {lines}{beside}")
            flaps.until(lambda record: False, chance.uniform(*REST_S))
    every = np.array([took for kind in KINDS for took in times_ms[kind]])
    if not len(every):
        missing = Missing(f"none of {trials} dead links was found")
        return {f"dead_link_detect_ms_{percentile}": missing for percentile in ("p50", "p99")} | figures
    per_kind = ", ".join(
        f"{kind} p50 {np.median(times_ms[kind]):.0f} most {max(times_ms[kind]):.0f} of {len(times_ms[kind])}"
        for kind in KINDS
        if times_ms[kind]
    )
    beside = f"{len(missed)} missed" + (f" ({', '.join(missed[:3])})" if missed else "")
    note = f"{per_kind}; {beside}; at {load['probes']:,.0f} probes/s and {load['agents']:.2f} processors"
    return {
        "dead_link_detect_ms_p50": Figure(float(np.percentile(every, 50)), note=note),
        "dead_link_detect_ms_p99": Figure(float(np.percentile(every, 99))),
        "dead_link_detect_missed": Figure(len(missed) / trials, "1"),
        "dead_link_detect_wrong": Figure(len(wrong) / trials, "1", "; ".join(wrong[:3])),
        "agents_processors": Figure(load["agents"], "1", "all eight probers together, nothing lost"),
        "agents_probes_per_second": Figure(
            load["probes"], "1/s", f"requests of all eight NICs, {MAX_PPS:,} allowed"
        ),
    } | figures


def _one(
    control: ControlClient, flaps: _Tail[LinkHealth], line: str, cable: str
) -> tuple[float | None, list[str]]:
    """Break a link and heal it; return the ms until its cable was DOWN, or None after the limit.

    The second result lists the other cables that were DOWN meanwhile.
    """
    others: list[str] = []
    down: list[float] = []

    def named(record: LinkHealth) -> bool:
        if record["state"] != LinkState.DOWN:
            return False
        if record["subject"] == cable:
            return True
        if cable not in record["candidates"]:
            others.append(record["subject"])
        return False

    began_ms = control.ask("fault", line=line)["start_begin_ns"] / 1e6
    at_ms = flaps.until(named, GIVE_UP_S)
    if at_ms is not None:
        down.append(at_ms - began_ms)
        flaps.until(lambda record: named(record) and False, 0.3)  # other verdicts while the fault is active
    control.ask("clear")
    if down:
        flaps.until(lambda record: record["subject"] == cable and record["state"] != LinkState.DOWN, HEAL_S)
    return (down[0] if down else None), others


class _Tail(Generic[R]):
    """Reads a topic, from its beginning or, with `new`, from now on."""

    def __init__(self, bootstrap: str, topic: Topic[R], new: bool = False) -> None:
        self._topic = topic
        start = END if new else BEGINNING
        self._reader = TopicReader.open(bootstrap, {topic: start}, fetch_wait_ms=10)

    def until(self, matches: Callable[[R], Any], seconds: float) -> float | None:
        """Return the append time, ms, of the next record for which `matches` is true; None if none comes in
        `seconds`."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for message in self._reader.poll(min(left, 0.5), 1, at_once=True):
                value = message.value
                if value is not None and matches(codec.decode(value, self._topic.type)):
                    return message.append_ns / 1e6
        return None

    def close(self) -> None:
        """Close the consumer."""
        self._reader.close()


def _wait_traced(paths: _Tail[PathMaps], nics: int) -> None:
    """Wait until the paths between all `nics` NICs are known. Raises CannotRun after START_S."""
    traced_pairs: set[tuple[str, str]] = set()

    def all_known(record: PathMaps) -> bool:
        rows = [row for row in record["paths"] if row["leg"] == Leg.REQUEST]
        if rows and all(row["complete"] for row in rows):
            traced_pairs.add((record["nic"], record["peer"]))
        return len(traced_pairs) == nics * (nics - 1)

    if paths.until(all_known, START_S) is None:
        raise CannotRun(f"paths: {len(traced_pairs)} of {nics * (nics - 1)} traced after {START_S:g} s")


def _calm(
    control: ControlClient, bootstrap: str, data: Path, links: Sequence[str], flows: Sequence[Flow]
) -> tuple[dict[str, float], dict[str, Value]]:
    """Return figures of an interval without faults.

    The first result has the processors that agents use, `agents`, and the requests per second, `probes`. The
    second has the probe intervals of links and flow routes.
    """
    probers = [
        psutil.Process(row["pid"])
        for row in status.read(data)["children"]
        if row["name"].startswith("prober")
    ]

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in probers)

    batches: list[ProbeBatch] = []
    tail, inventory = _Tail(bootstrap, PROBES, new=True), _Tail(bootstrap, INVENTORY)
    ports: dict[str, int] = {}
    try:
        inventory.until(lambda record: ports.update({record["nic"]: record["probe_port"]}), 2.0)
        tail.until(batches.append, 1.0)
        before, start, begin_ns = used(), time.monotonic(), time.time_ns()
        tail.until(batches.append, CALM_S)
        end_ns = time.time_ns()
        agents = (used() - before) / (time.monotonic() - start)
        tail.until(batches.append, 1.0)  # messages in flight
    finally:
        tail.close()
        inventory.close()
    times: Times = times_of(batches, begin_ns, end_ns)
    lost = sum(element["lost"] for batch in batches for element in batch["samples"])

    @cache
    def route(source: str, destination: str, sport: int, dport: int) -> tuple[str, ...]:
        return tuple(
            control.ask("path", source=source, destination=destination, sport=sport, dport=dport, likely=True)
        )

    figures = figures_of(times, ports, links, flows, route, (begin_ns, end_ns))
    sent = sum(map(len, times.values())) + lost
    return {"agents": agents, "probes": sent / (end_ns - begin_ns) * 1e9}, figures
