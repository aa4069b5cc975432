"""Expands the host lists of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice


def host_names(pattern: str, max_names: int) -> Iterator[str]:
    """Yield the names of a host list, such as `h[1-3,07],g1`.

    Raises ValueError for an invalid list, and for one of more than `max_names` names.
    """
    items = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", pattern)
    names = (name for item in items for name in _names_of(item))
    yield from islice(names, max_names)
    if next(names, None) is not None:
        raise ValueError(f"host list {pattern[:60]!r}: more than {max_names} names")


def _names_of(item: str) -> Iterator[str]:
    match = re.match(r"([^\[]*)\[([^\]]*)\](.*)", item)
    if match is None:
        if item:
            yield item
        return
    head, ranges, rest = match.groups()
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(low) > 9 or len(high) > 9:
            raise ValueError(f"host list {item[:60]!r}: expected numbers in the brackets")
        for number in range(int(low), int(high or low) + 1):
            for tail in _names_of(rest) if rest else ("",):
                yield f"{head}{number:0{len(low)}d}{tail}"
