"""The explanation that each rule returns, and text functions that all rules share. Does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from fabrictime.postmortem.observations import Observations

_Name = TypeVar("_Name", str, int)
SHOWN: Final = 8
"""Largest number of names in a sentence."""


class Explanation(NamedTuple):
    """One verdict with its culprits, most specific first, and the reason. `missing` names lacking data."""

    verdict: str
    culprits: tuple[str, ...]
    confidence: float
    text: str
    evidence: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def rank_name(rank: int) -> str:
    """Return the name of a rank in a list of culprits, such as `rank 3`."""
    return f"rank {rank}"


def host_names(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return the names of hosts in a list of culprits, such as `host h1`."""
    return tuple(f"host {host}" for host in hosts)


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as text for a sentence, such as `rank 3` or `ranks 1, 2 and 9 more`."""
    numbers = sorted(set(ranks))
    text = ", ".join(map(str, numbers[:SHOWN]))
    rest = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"rank{'s' if len(numbers) != 1 else ''} {text}{rest}"


def names_text(names: Sequence[str]) -> str:
    """Return names as text for a sentence, at most `SHOWN` of them."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def clock_text(ns: int) -> str:
    """Return a time (ns since the Unix epoch) as a time of day; empty if it is unknown."""
    if not 10**17 < ns < 4 * 10**18:
        return ""
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def whole_hosts(ranks: Iterable[int], out: Observations) -> list[str]:
    """Return the hosts with at least two known ranks, if all of these are among `ranks`."""
    numbers = set(ranks)
    sizes = Counter(host for rank, host in out.hosts.items() if rank in out.ranks)
    own_sizes = Counter(out.host_of(rank) for rank in numbers)
    return sorted(host for host, number in own_sizes.items() if host and number == sizes[host] and number > 1)


def culprits_of(ranks: Iterable[int], out: Observations) -> tuple[str, ...]:
    """Return culprits for ranks: hosts with all their ranks in `ranks`, then the ranks, then their hosts."""
    numbers = sorted(set(ranks))
    complete = whole_hosts(numbers, out)
    covers_all = bool(complete) and all(out.host_of(rank) in complete for rank in numbers)
    hosts = list(host_names(filter(None, dict.fromkeys(out.host_of(rank) for rank in numbers))))
    names = list(map(rank_name, numbers))
    return tuple(hosts + names if covers_all else names + hosts)


def shared_by(slow: Collection[Collection[_Name]], fast: Collection[Collection[_Name]]) -> list[_Name]:
    """Return the members that the largest number of slow groups have in common and that no fast group has.

    If each member of slow groups is in a fast group too, return the member with the largest share of slow
    groups, if most of its groups are slow.
    """
    counts = Counter(name for names in slow for name in set(names))
    in_fast = Counter(name for names in fast for name in set(names))
    suspects = [name for name in counts if name not in in_fast]
    if suspects:
        largest = max(counts[name] for name in suspects)
        return sorted(name for name in suspects if counts[name] == largest)
    best = max(counts, key=lambda name: counts[name] / (counts[name] + in_fast[name]), default=None)
    return [best] if best is not None and counts[best] > in_fast[best] else []
