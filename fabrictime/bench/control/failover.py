"""Measures failover on the fabric of real packets: silent blackholes under steady TCP flows, through Kafka
and Faust.

The figures are the time from a fault until each affected flow has 90 % of its throughput again, over random
directed links; successive failures; failback after the hold-down; flows that moved onto a dead path; the time
from a decision to its effect. Seeds are drawn at run time. Command: `fabrictime bench control failover`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import CannotRun, running_fabric
from fabrictime.bench.control.failback import Away, could_be_home, times_away
from fabrictime.bench.control.watch import Watch
from fabrictime.testbed.control import ControlClient
from schemas.ids import host_of
from schemas.records import Flow

SETTINGS: Final = """
[up]
web = false
workers = 1
clock_pages = false
[streams]
stages = ["map", "solve", "links", "policy"]
[fabric]
hosts = 8
leaves = 2
spines = 4
host_rate_bps = {rate}
fabric_rate_bps = {rate}
[probes]
rate_pps = 300
[flows]
poll_ms = 50
[actuators]
local_repair_ms = {local_repair_ms}
"""
RATE_BPS: Final = 50_000_000
FLOW_BPS: Final = 5_000_000
NEVER_MS: Final = 10_000
SLOT_S: Final = 0.005
OVER_SLOTS: Final = 4
"""Number of slots, 20 ms in total, over which throughput is averaged, because TCP sends in bursts."""
TRIALS, QUICK_TRIALS = 24, 6
FAULT_S: Final = 1.2
REST_S: Final = (0.4, 0.9)
READY_S: Final = 60.0
KNOWN_S: Final = 20.0
HEAL_S: Final = 20.0
AWAY_S: Final = 40.0
"""Longest time to wait for flows that are away from their own paths."""
LOST_MS: Final = 1_000.0
"""A flow that needs longer than this to recover does not count as failed over."""


@dataclass(slots=True)
class Steady:
    """One steady TCP flow, and its received bytes once it has ended."""

    source: str
    peer: str
    sport: int
    dport: int
    result: dict[str, Any] = field(default_factory=dict)


@contextmanager
def watched_fabric(
    progress: Progress, rate_bps: int, local_repair_ms: int = NEVER_MS
) -> Iterator[tuple[ControlClient, str, Path, Watch]]:
    """Run a fabric; yield its control, its log's address, its data directory and a `Watch`."""
    settings = SETTINGS.format(rate=rate_bps, local_repair_ms=local_repair_ms)
    with running_fabric(progress, settings) as fabric, Watch(fabric.bootstrap) as watch:
        yield *fabric, watch


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about two minutes, or one with `quick`."""
    with watched_fabric(progress, RATE_BPS) as (control, _, _, watch):
        return _trials(control, watch, progress, QUICK_TRIALS if quick else TRIALS)


def _trials(control: ControlClient, watch: Watch, progress: Progress, trials: int) -> dict[str, Value]:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret
    progress(f"failover: seed {seed}")
    faults: list[tuple[float, set[str], list[str], str]] = []
    dead_spans: list[tuple[str, float, float]] = []
    survived: list[bool] = []
    duration_s = 40 + trials * (FAULT_S + REST_S[1] + 1.5) + HEAL_S + AWAY_S
    with steady_flows(control, watch, chance, duration_s, progress) as flows:
        for trial in range(trials):
            link = chance.choice(crossed(watch, flows))
            hit = over(watch, flows, link)
            began_s = fault(control, link)
            time.sleep(FAULT_S)
            control.ask("clear")
            dead_spans.append((link, began_s, time.time()))
            faults.append((began_s, {link}, hit, f"trial {trial + 1}: blackhole {link}"))
            time.sleep(chance.uniform(*REST_S))
        progress("failover: three spines in a row")
        row = _successive(control, watch, flows, chance)
        failback_s = _failback(watch, progress)
    took: list[float] = []
    for began_s, _, hit, text in faults:
        regained = [regained_ms(flow_of(flows, name), began_s) for name in hit]
        took += [ms for ms in regained if ms is not None]
        progress(f"failover: {text}: {', '.join(f'{ms:.0f}' for ms in regained if ms is not None)} ms")
    for began_s, hit in row:
        survived += [
            (ms := regained_ms(flow_of(flows, name), began_s)) is not None and ms < LOST_MS for name in hit
        ]
    if not took:
        raise CannotRun("no fault hit a flow")
    onto = _onto_dead(watch, dead_spans)
    applied = _decision_ms(watch)
    every = np.array(took)
    return {
        "failover_to_90pct_ms_p50": Figure(
            float(np.percentile(every, 50)),
            note=f"{len(took)} flows hit in {len(faults)} blackholes, worst {every.max():.0f}, seed {seed}",
        ),
        "failover_to_90pct_ms_p99": Figure(float(np.percentile(every, 99))),
        "failover_lost": Figure(float(np.mean(every >= LOST_MS)), "1", "not back within a second"),
        "second_failure_survived": Figure(
            float(np.mean(survived)) if survived else 0.0, note=f"{len(survived)} flows, up to 3 in a row"
        ),
        "failback_within_s": failback_s,
        "flows_moved_onto_dead_path": Figure(float(len(onto)), note="; ".join(onto[:3])),
        "decision_to_applied_ms_p99": Figure(
            float(np.percentile(applied, 99)),
            note=f"p50 {np.median(applied):.1f}, most {max(applied):.0f}, of {len(applied)}",
        )
        if applied
        else Missing("nothing was applied"),
        "flows_moved": Figure(float(len(watch.decisions)), "decisions"),
    }


@contextmanager
def steady_flows(
    control: ControlClient, watch: Watch, chance: random.Random, duration_s: float, progress: Progress
) -> Iterator[list[Steady]]:
    """Run a TCP flow from each host to one on the other leaf; the results are complete after the context."""
    hosts = [nic["host"] for nic in control.ask("show")["nics"]]
    half = len(hosts) // 2
    pairs = [(a, hosts[half + (i + shift) % half]) for shift in (0, 1) for i, a in enumerate(hosts[:half])]
    pairs = [pair if i % 2 else pair[::-1] for i, pair in enumerate(pairs)]
    flows: list[Steady] = []
    ready = threading.Barrier(len(pairs) + 1)

    def run(pair: tuple[str, str], sport: int) -> None:
        stream = control.stream(
            "flow",
            source=pair[0],
            destination=pair[1],
            protocol="tcp",
            rate_bps=FLOW_BPS,
            sport=sport,
            duration_s=duration_s,
            interval_s=SLOT_S,
            job="steady",
        )
        started = next(stream)
        steady = Steady(*pair, started["sport"], started["dport"])
        flows.append(steady)
        ready.wait(30)
        steady.result = next(stream)

    with ThreadPoolExecutor(len(pairs)) as pool:
        sports = chance.sample(range(20_000, 32_000), len(pairs))
        running = [pool.submit(run, pair, sport) for pair, sport in zip(pairs, sports, strict=True)]
        ready.wait(30)
        began_s = time.monotonic()
        watch.until(lambda: len(_known(watch, flows)) == len(flows), READY_S, "paths of all flows")
        watch.until(lambda: watch.movable >= len(flows), READY_S, "ways of all flows")
        progress(f"{len(flows)} flows known after {time.monotonic() - began_s:.1f} s")
        time.sleep(2)
        yield flows
        progress("waiting for the flows' end")
        for running_flow in running:
            running_flow.result(duration_s + 30)


def _known(watch: Watch, flows: list[Steady]) -> dict[str, Flow]:
    """Return, by id, the watched flows that belong to `flows` and whose links are known."""
    dports = {(flow.source, flow.dport): flow for flow in flows}
    return {
        name: flow
        for name, flow in watch.flows.items()
        if flow["links"] and (host_of(flow["nic"]), flow["peer_port"]) in dports
    }


def flow_of(flows: list[Steady], key: str) -> Steady:
    """Return the flow with the key `key`, which is host:dport."""
    host, _, dport = key.partition(":")
    return next(flow for flow in flows if (flow.source, flow.dport) == (host, int(dport)))


def crossed(watch: Watch, flows: list[Steady]) -> list[str]:
    """Return the links between leaves and spines that carry the data of the flows."""
    links = {link for flow in _known(watch, flows).values() for link in flow["links"][1:-1]}
    return sorted(links)


def over(watch: Watch, flows: list[Steady], link: str) -> list[str]:
    """Return the keys, host:dport, of the flows whose data cross a link."""
    return [
        f"{flow['nic'].split('/')[0]}:{flow['peer_port']}"
        for flow in _known(watch, flows).values()
        if link in flow["links"]
    ]


def fault(control: ControlClient, link: str) -> float:
    """Make a directed link lose all packets silently; return the time just before, s since the Unix epoch."""
    ends = ">".join(end.partition(":")[0] for end in link.split(">"))
    return float(control.ask("fault", line=f"blackhole {ends}")["start_begin_ns"]) / 1e9


def regained_ms(flow: Steady, began_s: float) -> float | None:
    """Return the ms from a fault until the flow again reaches 90 % of its earlier throughput, over 20 ms.

    Returns None if the throughput never fell below that.
    """
    result = flow.result
    slots = np.array(result["interval_bytes"], float)
    wall_s = time.time() - time.monotonic() + result["begin_monotonic_ns"] / 1e9
    at = int((began_s - wall_s) / SLOT_S)
    if not 0 < at < len(slots) - OVER_SLOTS:
        return None
    before = slots[max(0, at - 200) : at].mean()
    if not before:
        return None
    over = np.convolve(slots[at:], np.ones(OVER_SLOTS) / OVER_SLOTS, "valid")
    low = np.flatnonzero(over < 0.1 * before)
    if not len(low) or low[0] > 0.2 / SLOT_S:
        return None
    back = np.flatnonzero(over[low[0] :] >= 0.9 * before)
    if not len(back):
        return 1e6
    return float((low[0] + back[0] + OVER_SLOTS) * SLOT_S * 1e3)


def _successive(
    control: ControlClient, watch: Watch, flows: list[Steady], chance: random.Random
) -> list[tuple[float, list[str]]]:
    """Cut the same flow's path three times in a row; return each fault's time and the flows it affected."""
    faults = []
    names = sorted(_known(watch, flows))
    name = chance.choice(names)
    for _ in range(3):
        flow = watch.flows[name]
        link = flow["links"][1]
        hit = over(watch, flows, link)
        faults.append((fault(control, link), hit))
        old = flow["source_port"]
        watch.soon(lambda old=old: watch.flows[name]["source_port"] != old, 3.0)  # type: ignore[misc]
        watch.soon(lambda: bool(watch.flows[name]["links"]), 3.0)
        time.sleep(0.5)
    control.ask("clear")
    return faults


def _failback(watch: Watch, progress: Progress) -> Value:
    """Return the longest time, s, that a flow stayed away although its own path was healthy again.

    A path is healthy once the hold-downs of all its links have ended. All flows of the run count.
    """

    def aways() -> tuple[list[Away], list[Away]]:
        return times_away(list(watch.decisions.values()), list(watch.actions))

    watch.soon(lambda: all(record["state"] == "UP" for record in watch.health.values()), HEAL_S)
    flows = dict(watch.flows)
    progress(f"failback: {len(aways()[1])} flows are away; waiting for hold-downs, {AWAY_S:g} s at most")
    watch.soon(lambda: not aways()[1], AWAY_S)
    ended, lasting = aways()
    every = [*ended, *(away._replace(end_s=time.time()) for away in lasting)]
    routes = [
        watch.route_of(flows[away.flow_id], away.home) if away.flow_id in flows else () for away in every
    ]
    waited, early = could_be_home(every, routes, list(watch.health_records))
    back = [waited[number] for number, away in enumerate(ended) if away.back]
    if not back and not any(waited):
        return Missing("no flow could go back: all links that flows had left are held down still")
    return Figure(
        max(waited),
        note=f"{len(back)} back, p50 {np.median(back or [0.0]):.2f}, {early} too early; {len(lasting)} away",
    )


def _onto_dead(watch: Watch, spans: list[tuple[str, float, float]]) -> list[str]:
    """Return a line of text for each flow that was moved onto a link that a fault had cut at that time."""
    lines = []
    for action in watch.actions:
        decision = watch.decisions.get(action["decision_id"])
        if action["outcome"] != "APPLIED" or decision is None or decision["to_path"] is None:
            continue
        flow = watch.flows.get(action["flow_id"])
        links = () if flow is None else watch.route_of(flow, decision["to_path"])
        at_s = decision["at_ns"] / 1e9
        for link, from_s, to_s in spans:
            if link in links and from_s + 0.2 < at_s < to_s:
                lines.append(f"{action['flow_id']} onto {link}")
    return lines


def _decision_ms(watch: Watch) -> list[float]:
    return [
        (action["at_ns"] - decision["at_ns"]) / 1e6
        for action in watch.actions
        if action["outcome"] == "APPLIED"
        and (decision := watch.decisions.get(action["decision_id"])) is not None
    ]
