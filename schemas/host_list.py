"""Expands Slurm host lists, such as `h[1-3,07]`, to host names, and compresses host names to a list."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Final

_NUMBERED: Final = re.compile(r"([^\[\],]*?)([0-9]{1,9})([^0-9\[\],]*)")
"""A name with its last number."""


def host_names(pattern: str, max_names: int) -> Iterator[str]:
    """Yield the names of a host list, such as `h[1-3,07],g1`.

    Raises ValueError for an invalid list, and for a list of more than `max_names` names.
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


def host_list(names: Collection[str]) -> str:
    """Return names as a Slurm host list, such as `h[1-3,07],g1`; only a name's last number is compressed.

    `host_names` expands the list again, without repeated names and perhaps in another order.
    """
    numbered = {match.groups() for name in names if (match := _NUMBERED.fullmatch(name))}
    padded = {
        (head, len(digits), tail) for head, digits, tail in numbered if len(str(int(digits))) < len(digits)
    }
    numbers: dict[tuple[str, int, str], set[int]] = {}
    for head, digits, tail in numbered:
        width = len(digits) if (head, len(digits), tail) in padded else 0
        numbers.setdefault((head, width, tail), set()).add(int(digits))
    plain = {name for name in names if not _NUMBERED.fullmatch(name)}
    return ",".join([*(_folded(*key, sorted(numbers[key])) for key in sorted(numbers)), *sorted(plain)])


def _folded(head: str, width: int, tail: str, numbers: Sequence[int]) -> str:
    """Return one item of a host list for ascending numbers of `width` digits (0: without leading zeros)."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    texts = [f"{low:0{width}d}" + (f"-{high:0{width}d}" if high > low else "") for low, high in ranges]
    if len(numbers) == 1:
        return f"{head}{texts[0]}{tail}"
    return f"{head}[{','.join(texts)}]{tail}"
