"""Converts unchecked values from files: numbers within their range, printable short texts."""

from __future__ import annotations

import re
from typing import Any, Final

TEXT_MAX: Final = 200
NS_MAX: Final = 4_611_686_018_427_387_904
_DIGITS: Final = re.compile(r"[+-]?\d{1,20}")


def whole(value: Any, limit: int = NS_MAX) -> int | None:
    """Return a whole number from 0 to `limit`, also from decimal text; None for any other value."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= limit else None


def count(value: Any, limit: int = NS_MAX) -> int:
    """Return a whole number as `whole` does, but 0 instead of None."""
    return whole(value, limit) or 0


def real(value: Any, limit: float = 1e18) -> float:
    """Return a number from 0 to `limit`; 0 for any other value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= limit else 0.0


def text(value: Any) -> str:
    """Return a string or whole number as a short printable text; empty for any other value."""
    if type(value) is int and abs(value) <= NS_MAX:
        value = str(value)
    if not isinstance(value, str):
        return ""
    return "".join(char if char.isprintable() else "?" for char in value[:TEXT_MAX])


def members(value: Any, limit: int) -> tuple[int, ...]:
    """Return ranks from a list, or from text such as `[0, 1]` or `0,1`."""
    if isinstance(value, str):
        value = re.findall(r"\d{1,8}", value[: 10 * limit])
    if not isinstance(value, list | tuple):
        return ()
    ranks = (whole(rank, limit) for rank in value[:limit])
    return tuple(sorted({rank for rank in ranks if rank is not None}))


def clean_function(name: str) -> str:
    """Return a function's normalized name: all_gather for `nccl:_all_gather_base` and AllGather."""
    lower = re.sub(r"[^a-z]", "", name.lower())
    return next((plain for part, plain in _FUNCTIONS if part in lower), name.strip().lower()[:40])


_FUNCTIONS: Final = (
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("sendrecv", "send_recv"),
    ("send", "send"),
    ("recv", "recv"),
)
"""Part of a name without its punctuation, and the function. The first entry that matches applies."""
