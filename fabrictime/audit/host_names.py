"""Writes many host names in one line, in Slurm's notation: `node[001-014,017],login1`.

The notation can be pasted into `scontrol`, `clush` or `pdsh`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

_NUMBERED = re.compile(r"(.*?)(\d{1,18})(\D*)")


def name_order(host: str) -> tuple[str, int, str]:
    """Return a sorting key that puts node2 before node10."""
    match = _NUMBERED.fullmatch(host)
    return (match[1], int(match[2]), host) if match else (host, -1, host)


def folded(hosts: Iterable[str]) -> str:
    """Return the names in one line. Names that differ only in their last number share a bracket."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    alone: list[str] = []
    for host in sorted(set(hosts), key=name_order):
        match = _NUMBERED.fullmatch(host)
        if match is None:
            alone.append(host)
        else:
            groups[match[1], match[3]].append(match[2])
    parts = [part for (before, after), digits in groups.items() for part in _parts(before, after, digits)]
    return ",".join([*parts, *alone])


def _parts(before: str, after: str, digits: list[str]) -> Iterator[str]:
    """Yield the folded names with one prefix and suffix. Numbers with leading zeros fold by length."""
    by_width: dict[int, list[int]] = defaultdict(list)
    padded = any(number[0] == "0" for number in digits)
    for number in digits:
        by_width[len(number) if padded else 0].append(int(number))
    for width, numbers in by_width.items():
        ranges = [
            f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}"
            for first, last in _runs(numbers)
        ]
        inside = ranges[0] if len(numbers) == 1 else f"[{','.join(ranges)}]"
        yield f"{before}{inside}{after}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of each run of consecutive numbers in the ascending `numbers`."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
