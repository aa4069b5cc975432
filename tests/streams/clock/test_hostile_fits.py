"""Hostile fits, old windows that are published again, and late sources: fabric time does not move."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace
from typing import Any

import pytest

from schemas import codec
from streams.clock.solver import SYNCED, ShardClocks
from streams.clock.validation import validate_fits
from streams.clock.window_barrier import WindowBarrier

WINDOW_NS = 1_000_000_000
SOURCES = 4
WARM, HOSTILE, CLEAN = 8, 22, 25
"""Windows before, with and after hostile records."""
EXTREMES = (-(2**63), 2**63 - 1, -1, 0, 1_795_632_065_339_913_141, 2**62)
REAL_EXTREMES = (float("nan"), float("inf"), 1e308, 1.7e13, -1.0, 1e9, 3e8)


@pytest.mark.parametrize("nics", [2, 4, 8])
@pytest.mark.parametrize("seed", range(6))
def test_fabric_time_stays_and_clocks_recover(sim: SimpleNamespace, nics: int, seed: int) -> None:
    """Records with one changed field once moved fabric time by up to an hour, for good: a window with few
    others believed them."""
    rng = random.Random(1000 * nics + seed)
    fleet = sim.random_fleet(nics, seed=seed)
    shard = _Shard()
    late_share = rng.choice((0.0, 0.3, 0.6, 0.8))
    past: list[list[dict[str, Any]]] = []
    for number in range(WARM + HOSTILE + CLEAN):
        window = sim.FIRST + number
        records = _by_source(fleet.fits(window)[0])
        is_hostile = WARM <= number < WARM + HOSTILE
        shard.run(window, _hostile(records, past, late_share, rng) if is_hostile else records)
        past.append(records)
    assert shard.barrier.last_solved >= window - 1
    assert shard.barrier.renumbered == {}
    assert abs(shard.clocks.log_offset_ns) < 100_000_000
    found = sim.states(shard.records)
    assert {found[name]["state"] for name in fleet.clocks} == {SYNCED}
    errors = {name: _error_ns(fleet.clocks[name], found[name]) for name in fleet.clocks}
    assert max(map(abs, errors.values())) < 1_000_000, errors


def _hostile(
    records: list[dict[str, Any]], past: list[list[dict[str, Any]]], late_share: float, rng: random.Random
) -> list[dict[str, Any]]:
    """Return what comes instead of a window's records: some are late, some are changed, and old ones."""
    lost = 1.0 if rng.random() < 0.2 else late_share
    sent = [each for each in records if rng.random() >= lost]
    if rng.random() < 0.7:
        sent += [_changed(rng.choice(records), rng) for _ in range(rng.choice((1, 3, 8)))]
    if rng.random() < 0.5:
        sent += [rng.choice(each) for each in past[-rng.randrange(2, 16) :][:3]]
    return sent


def _error_ns(clock: Any, state: dict[str, Any]) -> int:
    """Return fabric time minus true time at a solved clock's instant."""
    true_ns = state["at_ns"]
    for _ in range(4):
        true_ns -= clock.reading(true_ns) - state["at_ns"]
    return int(state["at_ns"] + state["offset_ns"] - true_ns)


class _Shard:
    """Barrier and solver as the clock stage joins them."""

    def __init__(self) -> None:
        self.clocks = ShardClocks("fabric")
        self.barrier = WindowBarrier([f"p/{number}" for number in range(SOURCES)], WINDOW_NS // 2)
        self.records: list[Any] = []
        self._sent = 0

    def run(self, window: int, records: list[dict[str, Any]]) -> None:
        """Add the records at the end of a window, and solve the windows that are ready."""
        end_ns = (window + 1) * WINDOW_NS
        for record in records:
            try:
                fits, _ = validate_fits(record, end_ns, WINDOW_NS)  # type: ignore[arg-type]  # a test's record
            except codec.BadRecord:
                continue
            self._sent += 1
            self.barrier.add(fits, self._sent, end_ns, self._sent)
        for now_ns in (end_ns + WINDOW_NS // 10, end_ns + WINDOW_NS - 1):
            for each in self.barrier.ready(now_ns):
                self.records = self.clocks.solve(each.window, WINDOW_NS, each.fits, {})


def _by_source(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Cut a window's record into those of several sources."""
    names = sorted(nic["nic"] for nic in record["nics"])
    begin_ns = record["window"] * WINDOW_NS
    found = []
    for number in range(SOURCES):
        mine = set(names[number::SOURCES])
        part = {
            "source": f"p/{number}",
            "window_start_ns": begin_ns,
            "window_end_ns": begin_ns + WINDOW_NS,
            "nics": [nic for nic in record["nics"] if nic["nic"] in mine],
            "pairs": [pair for pair in record["pairs"] if pair["prober"] in mine],
        }
        found.append(record | part)
    return found


def _changed(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a record with one field of one element at an extreme, with another bit, or in the past."""
    changed = copy.deepcopy(record)
    elements = changed[rng.choice(("nics", "pairs"))]
    if not elements:
        return changed
    element = rng.choice(elements)
    name = rng.choice([key for key, value in element.items() if isinstance(value, int | float)])
    value = element[name]
    if isinstance(value, float):
        element[name] = rng.choice(
            (rng.choice(REAL_EXTREMES), value + rng.uniform(-1, 1) * 10 ** rng.uniform(0, 12))
        )
    else:
        past_ns = rng.randint(3600, 10 * 365 * 86_400) * WINDOW_NS
        element[name] = rng.choice((rng.choice(EXTREMES), value ^ (1 << rng.randrange(62)), value - past_ns))
    return changed
