"""Measures whether dead links are found and named, for each kind of switch answers.

A simulated fleet of 6 hosts, 3 leaves and 3 spines is probed; its switches answer in each form (answers.py),
without and with a topology file that lists the addresses. In each form, links die one by one, alone. A link
is found if its cable is DOWN, or if the cables, switches or NICs of a report contain the link. A switch named
by a report of hidden losses stands for all of its cables, a NIC for all cables of its leaf.

`simulated_false_links` counts names that stood for cables between different switches on complete paths, and
cables that were DOWN although they live. Other figures are the size of the stated sets, and the time from the
death of a link without a name to the record that raises an alert.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.networks.answers import Form, NamedFleet
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import cable_id
from schemas.records import HealthKind, LinkState
from streams.links.health.shard_health import Change, ShardHealth

SEED: Final = 7
MS: Final = 1_000_000
STEP_NS: Final = 5 * MS
WARM_NS: Final = 2_200 * MS
OBSERVED_NS: Final = 3_500 * MS
FOUND_NS: Final = 300 * MS
"""How much longer the fleet is observed after a link was found, to catch false verdicts about other links."""
SHAPE: Final = Shape(hosts=6, hosts_per_rack=2, spines=3)
RATE_HZ: Final = 600.0
QUICK_LINKS: Final = 1
BLIND: Final = (Form.SILENT, Form.SILENT_SPINES, Form.TUNNEL, Form.FLAT)


@dataclass(slots=True)
class Outcome:
    """The verdicts after one link failed."""

    named: bool = False
    """Whether the stated set of cables contains that of the link."""
    cables: int = 0
    """Number of cables in the stated set."""
    false: list[str] = field(default_factory=list)
    """Subjects that were DOWN although all cables they stand for were working."""
    took_s: float | None = None
    """Time until a report stated the set; None if none did."""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Let every link fail in turn, for every kind of switch answers; `quick` takes only two links each."""
    fleet = Fleet(SHAPE, SEED)
    outcomes: dict[str, list[Outcome]] = {}
    invented: list[str] = []
    for form in Form:
        for with_file in (False, True):
            names = NamedFleet(
                ProbedFleet(fleet, peers=7, seed=SEED, rate_hz=RATE_HZ), form, with_file=with_file
            )
            invented += (
                [f"{form}: {name}" for name in names.names.merged()] if form is not Form.TUNNEL else []
            )
            links = list(range(fleet.links))[-QUICK_LINKS if quick else 0 :]
            key = f"{form}{' with a file' if with_file else ''}"
            outcomes[key] = [kill(fleet, names, link) for link in links]
            named = sum(outcome.named for outcome in outcomes[key])
            progress(f"{key}: {named} of {len(links)} dead links named or in the stated set")
    return _figures(outcomes, invented)


def kill(fleet: Fleet, names: NamedFleet, link: int) -> Outcome:
    """Let one directed link fail; return the verdicts."""
    probes = ProbedFleet(fleet, peers=7, seed=SEED, rate_hz=RATE_HZ)
    health = ShardHealth("fabric")
    health.topology = names.topology
    deque(_observe(probes, health, names, WARM_NS), maxlen=0)
    probes.down[link] = True
    died_ns, cable, outcome = probes.now_ns, cable_id(fleet.link_ids[link]), Outcome()
    for at_ns, (subject, record) in _observe(probes, health, names, OBSERVED_NS, lambda: outcome.named):
        if record is None or record["state"] == LinkState.UP:
            continue
        if record["kind"] == HealthKind.PATHS:
            stated = names.names.cables_beside(record["candidates"])
        else:
            stated = names.names.cables_of([subject, *record["candidates"]])
        if cable in stated:
            outcome.named, outcome.cables = True, len(stated)
            outcome.took_s = outcome.took_s if outcome.took_s is not None else (at_ns - died_ns) / 1e9
        elif record["state"] == LinkState.DOWN:
            outcome.false.append(subject)
    return outcome


def _observe(
    probes: ProbedFleet,
    health: ShardHealth,
    names: NamedFleet,
    for_ns: int,
    is_found: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Change]]:
    """Advance time by `for_ns`, or until shortly after `is_found()`; yield the changes with their times."""
    end_ns = probes.now_ns + for_ns
    while probes.now_ns < end_ns:
        if is_found():
            end_ns, is_found = probes.now_ns + FOUND_NS, lambda: False
        changes: list[Change] = []
        for append_ns, event in probes.run(STEP_NS):
            changes += health.ingest(event, append_ns, names.book)
        changes += health.evaluate(probes.now_ns)
        yield from ((probes.now_ns, change) for change in changes)


def _figures(outcomes: dict[str, list[Outcome]], invented: list[str]) -> dict[str, Value]:
    every = [outcome for group in outcomes.values() for outcome in group]
    missed = [
        f"{key} {sum(not outcome.named for outcome in group)}"
        for key, group in outcomes.items()
        if not _all(group)
    ]
    false = [*invented, *(name for outcome in every for name in outcome.false)]
    blind = [
        outcome.took_s
        for key, group in outcomes.items()
        if key in BLIND
        for outcome in group
        if outcome.took_s is not None
    ]
    sizes = [outcome.cables for outcome in every if outcome.named]
    largest = max(outcomes, key=lambda key: max(outcome.cables for outcome in outcomes[key]))
    return {
        "simulated_dead_link_named_or_in_set": Figure(
            float(np.mean([outcome.named for outcome in every])),
            note=f"{len(every)} deaths in {len(outcomes)} networks; missed: {', '.join(missed) or 'none'}",
        ),
        "simulated_false_links": Figure(float(len(false)), note="; ".join(false[:3])),
        "simulated_dead_link_set_size_p50": Figure(
            float(np.median(sizes or [0])), note=f"largest {max(sizes, default=0)}, {largest}"
        ),
        "simulated_unexplained_loss_alert_s": Figure(
            max(blind, default=float("nan")),
            note=f"the slowest of {len(blind)} in blind networks without a file",
        ),
    }


def _all(outcomes: Iterable[Outcome]) -> bool:
    return all(outcome.named for outcome in outcomes)
