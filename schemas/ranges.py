"""Defines ranges of the numbers in records, named by the attribute `range` of `.avsc` fields.

A schema names a range if several fields share it; otherwise it states `min` and `max`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "share": (0, 1),
    "dscp": (0, 63),
    "uint16": (0, 2**16 - 1),
    "uint24": (0, 2**24 - 1),
    "uint62": (0, 2**62),
    "uint63": (0, 2**63 - 1),
    "int63": (-(2**62), 2**62),  # times: the difference of two fits in 64 bits
    "position": (-1, 2**62),  # offsets in the log, and ages; -1: none
    "part_count": (1, 2**16),
    "rank_count": (0, 2**24),
    "delay_ns": (-60 * 10**9, 60 * 10**9),
    "rtt_ns": (0, 60 * 10**9),
    "up_to_1e6": (0, 10**6),
    "up_to_1e7": (0, 10**7),
    "up_to_1e9": (0, 10**9),
    "up_to_1e12": (0, 10**12),
    "up_to_1e15": (0, 10**15),
    "up_to_1e18": (0, 10**18),
    "within_1e18": (-(10**18), 10**18),
}


def range_of(name: str) -> tuple[int, int]:
    """Return (minimum, maximum) of a named range. Raises KeyError, with all known names, for other names."""
    try:
        return RANGES[name]
    except KeyError:
        raise KeyError(f"range {name!r}: expected one of {sorted(RANGES)}") from None
