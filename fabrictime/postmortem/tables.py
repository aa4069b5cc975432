"""Compares runs of nccl-tests: hosts of slow runs, wrong results, truncated tables. Does no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from fabrictime.postmortem.base import Explanation, host_names, names_text, shared_by
from fabrictime.postmortem.observations import Observations, Table

SLOW_RUN: Final = 0.85
"""Bus bandwidth beside that of other runs below which a run is slow."""
CLEARLY_SLOW: Final = 0.6
"""Bus bandwidth beside the median of like runs below which a run is slow although its hosts are fast."""
MIN_BYTES: Final = 1 << 20
"""Size from which a bandwidth says something about the network."""
MIN_RDMA_GBS: Final = 8.0
"""Bus bandwidth below which NCCL does not use RDMA: equal runs may all use sockets, and are not healthy."""


def slow_runs(out: Observations) -> Iterator[Explanation]:
    """Yield explanations: the hosts that slow runs share, runs with wrong results, and truncated tables."""
    yield from _wrong_results(out.tables)
    yield from _stopped(out.tables)
    likes: dict[tuple[str, int, int], dict[int, float]] = defaultdict(dict)
    for index, table in enumerate(out.tables):
        rate = bus_gbs(table)
        if rate > 0:
            likes[table.test, table.ranks, len(table.hosts)][index] = rate
    choices = [choice for rates in likes.values() if (choice := _slow_run(rates, out.tables)) is not None]
    if choices:
        yield max(choices, key=lambda choice: choice.confidence)


def bus_gbs(table: Table) -> float:
    """Return the bus bandwidth of a run's largest sizes, GB/s; 0 if the run has none."""
    largest = max((row.bytes for row in table.rows), default=0)
    rates = [row.bus_gbs for row in table.rows if row.bytes >= max(MIN_BYTES, largest / 4)]
    return median(rates) if rates else 0.0


def healthy_rates(tables: Sequence[Table]) -> Mapping[int, float]:
    """Return the bus bandwidth, GB/s, of each finished run, by index in `tables`."""
    rates = {index: bus_gbs(table) for index, table in enumerate(tables) if table.is_finished}
    return {index: rate for index, rate in rates.items() if rate > 0}


def _slow_run(rates: Mapping[int, float], tables: Sequence[Table]) -> Explanation | None:
    """Explain the slow runs among comparable runs by common hosts. `rates`: GB/s by index in `tables`."""
    best = max(rates.values())
    slow = {index: rate for index, rate in rates.items() if rate < SLOW_RUN * best}
    fast = rates.keys() - slow.keys()
    has_devices = all(tables[index].device for index in rates)
    places = {index: _places(tables[index], has_devices) for index in rates}
    suspects = shared_by([places[index] for index in slow], [places[index] for index in fast])
    if not suspects:
        return _scattered(slow, rates, tables)
    explained = [index for index in slow if not set(suspects).isdisjoint(places[index])]
    ordered = [*explained, *sorted(slow.keys() - set(explained))]
    count = sum(not set(suspects).isdisjoint(names) for names in places.values())
    share = len(explained) / len(slow)
    text = (
        f"{tables[min(slow)].test or 'nccl-tests'} reaches {median(slow.values()):.1f} GB/s in "
        f"{len(explained)} of {count} runs with {names_text(suspects)}, {best:.1f} GB/s in fast ones"
    )
    if share < 1:
        text += f"; {len(slow) - len(explained)} other runs are slow too: their paths may collide"
    evidence = tuple(
        f"{tables[index].name}: {rates[index]:.1f} GB/s on {names_text(tables[index].hosts)}"
        for index in ordered[:6]
    )
    confidence = max(0.5, (0.85 if len(suspects) == 1 else 0.6) * share)
    if has_devices:
        hosts = dict.fromkeys(name.rpartition("/")[0] for name in suspects)
        culprits = (*(f"nic {name}" for name in suspects), *host_names(hosts))
        return Explanation("SLOW_NIC", culprits, confidence, text, evidence)
    missing = ("a run for each NIC (NCCL_IB_HCA) on it would name the NIC",)
    return Explanation("SLOW_NIC", host_names(suspects), confidence, text, evidence, missing)


def _scattered(
    slow: Mapping[int, float], rates: Mapping[int, float], tables: Sequence[Table]
) -> Explanation | None:
    """Explain runs that are clearly slow and have no host in common; None if there are none."""
    lowest = [index for index, rate in slow.items() if rate < CLEARLY_SLOW * median(rates.values())]
    if not lowest:
        return None
    text = (
        f"{tables[min(lowest)].test or 'nccl-tests'} reaches {median(slow[at] for at in lowest):.1f} GB/s in "
        f"{len(lowest)} of {len(rates)} runs, {median(rates.values()):.1f} GB/s in the median one; "
        f"no host has most of them, so paths between hosts may collide"
    )
    evidence = tuple(f"{tables[at].name}: {slow[at]:.1f} GB/s" for at in lowest[:6])
    return Explanation("UNKNOWN", (), 0.45, text, evidence, ("a second run: collisions move to other pairs",))


def _places(table: Table, has_devices: bool) -> list[str]:
    """Return the hosts of a run; if every run states its NIC, as HOST/DEVICE."""
    return [f"{host}/{table.device}" for host in table.hosts] if has_devices else table.hosts


def _wrong_results(tables: Sequence[Table]) -> Iterator[Explanation]:
    wrong = [table for table in tables if any(row.errors for row in table.rows)]
    if not wrong:
        return
    sizes = sorted({row.bytes for table in wrong for row in table.rows if row.errors})
    places = names_text([f"{size:,} bytes" for size in sizes])
    text = f"{wrong[0].test or 'nccl-tests'} computed wrong results at {places}"
    evidence = tuple(f"{table.name}: hosts {names_text(table.hosts)}" for table in wrong[:6])
    yield Explanation("UNKNOWN", (), 0.5, text, evidence, ("a run on each host alone would name the one",))


def _stopped(tables: Sequence[Table]) -> Iterator[Explanation]:
    if not tables or any(table.is_finished for table in tables):
        return
    table = tables[0]
    place = f"after {table.rows[-1].bytes:,} bytes" if table.rows else "before its first size"
    reason = f": {table.failures[0]}" if table.failures else ""
    text = f"{table.test or 'nccl-tests'} stopped {place}{reason}"
    yield Explanation("HANG", (), 0.45, text, (), ("logs of NCCL_DEBUG=INFO of that run",))
