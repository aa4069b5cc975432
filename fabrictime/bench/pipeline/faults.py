"""Measures dead links and failover on the default `up`: from a planted fault to the records in the log.

Random links between switches that live flows cross either drop all packets or lose their carrier. Times run
from the moment before the testbed plants the fault. They end at the append of the link's verdict, of the
first decision, and of the first report of an action for each flow that crossed the link.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fabrictime.bench import Progress, Value
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.control.failover import steady_flows
from fabrictime.bench.control.watch import Watch
from fabrictime.bench.pipeline._events import Event, events_of, latency_figures
from fabrictime.bench.pipeline._product import running_product
from fabrictime.testbed.control import ControlClient, socket_path
from schemas.ids import cable_id
from schemas.records import ActionReport, Decision, LinkHealth, LinkState
from schemas.topics import ACTIONS, DECISIONS, LINK_HEALTH

TRIALS, QUICK_TRIALS = 30, 4
KINDS: Final = ("blackhole", "down")
WARM_S: Final = 10.0
FAULT_S: Final = 1.2
REST_S: Final = (0.6, 1.4)
DOWN: Final = (LinkState.DOWN, LinkState.FLAPPING)
ACTED: Final = ("APPLIED", "LOCAL_REPAIR")
HEALTHY_S: Final = 20.0
GIVE_UP_S: Final = 5.0
"""A record that comes later than this after a fault does not count as its effect."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault and the flows that crossed its link."""

    begin_s: float
    cable: str
    flow_ids: frozenset[str]


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about three minutes, or one with `quick`."""
    count = QUICK_TRIALS if quick else TRIALS
    with running_product(progress, None) as product, Watch(product.bootstrap) as watch:
        control = ControlClient(socket_path(product.data))
        chance = random.SystemRandom()
        begin_s, flows_s = time.time(), 30 + WARM_S + count * (FAULT_S + REST_S[1] + 0.5)
        with steady_flows(control, watch, chance, flows_s, progress):
            time.sleep(WARM_S)
            trials = planted(lambda: _crossed(watch), control, count, progress)
        health = events_of(product.bootstrap, LINK_HEALTH, begin_s)
        decisions = events_of(product.bootstrap, DECISIONS, begin_s)
        actions = events_of(product.bootstrap, ACTIONS, begin_s)
    hit = sum(len(trial.flow_ids) for trial in trials)
    return (
        latency_figures("dead_link", verdicts_ms(trials, health), len(trials))
        | latency_figures("decision", _decisions_ms(trials, decisions), hit)
        | latency_figures("failover", _actions_ms(trials, actions), hit)
    )


def planted(
    candidates: Callable[[], Mapping[str, Iterable[str]]],
    control: ControlClient,
    count: int,
    progress: Progress,
) -> list[Trial]:
    """Break links one at a time, the least often broken first; return the trials.

    `candidates` returns the links that may be broken now, with the flows that cross them. Raises CannotRun if
    it returns none for some time.
    """
    chance = random.SystemRandom()
    trials: list[Trial] = []
    broken: Counter[str] = Counter()
    while len(trials) < count:
        if wait_for(candidates, HEALTHY_S, 0.02) is None:
            raise CannotRun(f"no link is healthy within {HEALTHY_S:g} s")
        flows_by_link = candidates()
        fewest = min(broken[cable_id(link)] for link in flows_by_link)
        link = chance.choice([link for link in sorted(flows_by_link) if broken[cable_id(link)] == fewest])
        kind, cable, flow_ids = (
            KINDS[len(trials) % len(KINDS)],
            cable_id(link),
            frozenset(flows_by_link[link]),
        )
        broken[cable] += 1
        begin_s = control.ask("fault", line=f"{kind} {link}")["start_begin_ns"] / 1e9
        time.sleep(FAULT_S)
        control.ask("clear")
        trials.append(Trial(begin_s, cable, flow_ids))
        progress(f"faults: {len(trials)} of {count}: {kind} {link} under {len(flow_ids)} flows")
        time.sleep(chance.uniform(*REST_S))
    return trials


def is_up(watch: Watch, cable: str) -> bool:
    """Return whether link health reports no fault of a cable."""
    health = watch.health.get(cable)
    return health is None or health["state"] == LinkState.UP


def _crossed(watch: Watch) -> dict[str, list[str]]:
    """Return the healthy links between switches that flows cross in either direction, with the flows' ids."""
    flows: dict[str, list[str]] = {}
    for flow_id, flow in list(watch.flows.items()):
        for link in watch.links_of(flow):
            if "spine" in link and is_up(watch, cable_id(link)):
                flows.setdefault(link, []).append(flow_id)
    return flows


def verdicts_ms(trials: list[Trial], health: list[Event[LinkHealth]]) -> list[float]:
    """Return the ms from each fault to the verdict about its cable, only for verdicts in time."""
    return _firsts_ms(
        trials,
        [(event.at_s, event.record["subject"]) for event in health if event.record["state"] in DOWN],
        lambda trial: [trial.cable],
    )


def _decisions_ms(trials: list[Trial], decisions: list[Event[Decision]]) -> list[float]:
    rerouted = [
        (event.at_s, event.record["flow_id"]) for event in decisions if event.record["action"] == "REROUTE"
    ]
    return _firsts_ms(trials, rerouted, lambda trial: trial.flow_ids)


def _actions_ms(trials: list[Trial], actions: list[Event[ActionReport]]) -> list[float]:
    acted = [(event.at_s, event.record["flow_id"]) for event in actions if event.record["outcome"] in ACTED]
    return _firsts_ms(trials, acted, lambda trial: trial.flow_ids)


def _firsts_ms(
    trials: list[Trial], effects: list[tuple[float, str]], subjects_of: Callable[[Trial], Iterable[str]]
) -> list[float]:
    """Return the ms from each trial's fault to the first effect on each subject, only for effects in time."""
    took_ms = []
    for trial in trials:
        for subject in subjects_of(trial):
            first_s = next(
                (at_s for at_s, name in effects if name == subject and at_s >= trial.begin_s - 0.001), None
            )
            if first_s is not None and first_s - trial.begin_s < GIVE_UP_S:
                took_ms.append((first_s - trial.begin_s) * 1e3)
    return took_ms
