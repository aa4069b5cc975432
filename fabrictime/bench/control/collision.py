"""Measures a collision inside the fabric of real packets: probe delays before and after steering.

The figure is the 99th percentile of the delay of all probes across the link where two heavy flows meet: after
steering over before (OBSERVE), in one run, seed by seed. Each seed draws new hosts and source ports. The
NICs' clocks agree on this fabric, so a probe's timestamps are its delay. Command: `fabrictime bench control
collision [--quick]`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.control.failover import watched_fabric
from fabrictime.bench.control.live_fabric import FlowRun, JobRun, Loop, Span
from fabrictime.bench.control.watch import Watch
from fabrictime.commands.config import pause
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.testbed.control import ControlClient
from schemas import codec
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import FlowAction, Leg
from schemas.topics import PATHS, PROBES, R, Topic

RATE_BPS: Final = 20_000_000
"""Rate of every link: two cores carry it with ease, so that the delays are mostly queues."""
FLOW_BPS: Final = 14_000_000
SEEDS, QUICK_SEEDS = 10, 2
MET_S: Final = 4.0
CLEAR_S: Final = 12.0
"""Time from the start of acting within which the two flows must be on different links."""
SETTLE_S: Final = 1.0
AFTER_S: Final = 4.0
KNOWN_S: Final = 4.0
START_S: Final = 20.0
PORTS: Final = range(20_000, 32_000)
LIGHT_BYTES, LIGHT_GAP_S = 40_000, 0.5
"""Size and gap of a light all-to-all beside the two flows, 0.6 Mbit/s per host. Without it the policy's
limits, which are shares of all flows, would apply to two flows only."""
TRIED: Final = 64
"""Number of source ports tried to make two flows meet; with four spines about one in four does."""

Delays = dict[str, list[tuple[float, float]]]
"""By link: (send time, s since the Unix epoch; delay, ns) of the probes that crossed it."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about four minutes, or one with `quick`."""
    with watched_fabric(progress, RATE_BPS) as (control, bootstrap, _, watch):
        light = JobRun(
            control,
            kind="alltoall",
            connections=1,
            size_bytes=LIGHT_BYTES,
            gap_s=LIGHT_GAP_S,
            duration_s=1_000,
            slot_s=0,
            job="light",
            seed=random.SystemRandom().randrange(2**31),
        )
        watch.until(lambda: len(watch.flows_of("light")) == len(light.ports), START_S, "light flows")
        try:
            return _seeds(control, bootstrap, watch, progress, QUICK_SEEDS if quick else SEEDS)
        finally:
            light.leave()


def _seeds(
    control: ControlClient, bootstrap: str, watch: Watch, progress: Progress, seeds: int
) -> dict[str, Value]:
    nics = control.ask("show")["nics"]
    met: list[tuple[str, Span, Span]] = []
    took, moved, decisions = [], [], []
    cores: tuple[list[float], list[float]] = ([], [])
    for number in range(seeds):
        seed = random.SystemRandom().randrange(2**31)
        chance = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret
        pause.pause(LiveRecords(bootstrap), revert=False)
        job = f"collision-{number}"
        decided, acted = len(watch.decisions), len(watch.actions)
        link, specs = _meeting(control, nics, chance)
        total_s = KNOWN_S + MET_S + CLEAR_S + SETTLE_S + AFTER_S
        ends_s = time.time() + total_s
        flows = [FlowRun(control, **spec, duration_s=total_s, job=job) for spec in specs]
        watch.until(lambda: len(watch.flows_of(job)) == len(flows), KNOWN_S, "paths of both flows")  # noqa: B023  # used at once
        loop = Loop()
        before = _span(MET_S)
        cores[0].append(loop.cores())
        resumed_s = time.time()
        pause.resume(LiveRecords(bootstrap))
        apart = watch.soon(lambda: not _shared(watch, job), CLEAR_S)  # noqa: B023  # used at once
        took.append(time.time() - resumed_s if apart else float("inf"))
        time.sleep(SETTLE_S)
        loop.cores()
        after = time.time(), ends_s - 0.5
        names = watch.flows_of(job)
        time.sleep(max(0.0, ends_s - time.time()))
        cores[1].append(loop.cores())
        decisions.append(len(watch.decisions) - decided)
        moved.append(len(watch.applied(FlowAction.REROUTE, acted, names)) / len(flows))
        met.append((link, before, after))
        progress(
            f"collision: seed {seed}: two flows over {link},"
            f" {f'apart {took[-1]:.1f} s after acting began' if apart else 'not parted'};"
            f" {decisions[-1]} decisions"
        )
        for flow in flows:
            flow.join()
        watch.soon(lambda: not watch.flows_of(job), 10)  # noqa: B023  # used at once
    links = set(control.ask("show")["links"])
    delays = _delays(bootstrap, links)
    ratios, both, elsewhere = [], [], []
    for link, before, after in met:
        p99 = [_p99_us(delays.get(link, []), span) for span in (before, after)]
        other = [name for name in links if name != link and _between(name) == _between(link)]
        elsewhere.append(_p99_us([delay for name in other for delay in delays.get(name, [])], after))
        both.append(p99)
        ratios.append(p99[1] / p99[0])
        progress(
            f"collision: {link}: probes' p99 {p99[0]:.0f} us while they met, {p99[1]:.0f} us after,"
            f" {elsewhere[-1]:.0f} us then over the leaf's other links"
        )
    return {
        "probe_delay_p99_after_vs_before": Figure(
            float(np.median(ratios)), note=f"worst {max(ratios):.3f} of {seeds} seeds"
        ),
        "collision_probe_p99_us_observe": Figure(float(np.median([p99[0] for p99 in both])), "us"),
        "collision_probe_p99_us_cleared": Figure(
            float(np.median([p99[1] for p99 in both])), "us", f"worst {max(p99[1] for p99 in both):.0f}"
        ),
        "collision_probe_p99_us_elsewhere": Figure(
            float(np.median(elsewhere)), "us", "over the leaf's other links then: what the machine adds"
        ),
        "collision_parted_s": Figure(float(np.median(took)), "s", f"worst {max(took):.1f}, from ACT on"),
        "collision_flows_moved_share": Figure(float(np.median(moved)), "1", f"most {max(moved):.2f}"),
        "collision_decisions": Figure(float(np.median(decisions)), "decisions", "of a seed"),
        "collision_loop_cores_observe": Figure(float(np.median(cores[0])), "cores"),
        "collision_loop_cores": Figure(float(np.median(cores[1])), "cores"),
    }


def _meeting(
    control: ControlClient, nics: list[dict[str, Any]], chance: random.Random
) -> tuple[str, list[dict[str, Any]]]:
    """Return a link from a leaf to a spine, and two flows between four different hosts that both cross it."""
    leaf = chance.choice(sorted({nic["leaf"] for nic in nics}))
    near = chance.sample(sorted(nic["host"] for nic in nics if nic["leaf"] == leaf), 2)
    far = chance.sample(sorted(nic["host"] for nic in nics if nic["leaf"] != leaf), 2)
    dports = chance.sample(range(40_000, 45_000), 2)
    link = ""
    specs: list[dict[str, Any]] = []
    for source, destination, dport in zip(near, far, dports, strict=True):
        for sport in chance.sample(PORTS, TRIED):
            path = control.tcp_route(source, destination, sport, dport)
            if not link or path[1] == link:
                link = path[1]
                specs.append(
                    {
                        "source": source,
                        "destination": destination,
                        "rate_bps": FLOW_BPS,
                        "sport": sport,
                        "dport": dport,
                    }
                )
                break
    if len(specs) < len(near):
        raise CannotRun(f"no port of {TRIED} leads over {link}")
    return link, specs


def _between(link: str) -> tuple[str, str]:
    """Return the node at which a link begins, and the kind of node at its other end."""
    begin, _, end = link.partition(">")
    return begin.partition(":")[0], end.partition(":")[0].rstrip("0123456789")


def _shared(watch: Watch, job: str) -> bool:
    """Return whether two of a job's flows share a link, according to the flow reports."""
    flows = [set(flow["links"]) for flow in watch.flows_of(job).values()]
    return len(flows) < 2 or bool(flows[0] & flows[1])


def _span(seconds: float) -> Span:
    begin_s = time.time()
    time.sleep(seconds)
    return begin_s, time.time()


def _p99_us(delays: Iterable[tuple[float, float]], span: Span) -> float:
    """Return the 99th percentile of delays, us, within a span. Raises CannotRun if no probe crossed."""
    delays_us = [ns / 1e3 for at_s, ns in delays if span[0] <= at_s <= span[1]]
    if not delays_us:
        raise CannotRun("no probe crossed the link")
    return float(np.percentile(delays_us, 99))


def _delays(bootstrap: str, links: set[str]) -> Delays:
    """Return the delays of all requests in the log that crossed the given links."""
    crossing: dict[tuple[str, str, int], set[str]] = {}
    for record in _records(bootstrap, PATHS):
        for path in record["paths"]:
            if path["leg"] == Leg.REQUEST:
                key = (record["nic"], record["peer"], path["path"])
                crossing[key] = links.intersection(path["links"])
    delays_of_link: Delays = {}
    for batch in _records(bootstrap, PROBES):
        ahead_ns = batch["system_ns"] - batch["clock_ns"]
        for samples in batch["samples"]:
            for link in crossing.get((batch["nic"], samples["peer"], samples["path"]), ()):
                sent = np.cumsum(samples["sent"]) + ahead_ns
                delays_of_link.setdefault(link, []).extend(
                    zip((sent / 1e9).tolist(), samples["forward"], strict=True)
                )
    return delays_of_link


def _records(bootstrap: str, topic: Topic[R]) -> Iterable[R]:
    """Yield all records that a topic holds at the time of the call."""
    with TopicReader(bootstrap, {topic: BEGINNING}) as reader:
        for message in reader.connect(10).read_to_end():
            if message.value is not None:
                yield codec.decode(message.value, topic.type)
