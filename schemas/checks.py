"""Compiles the checks of a record's values from its schema.

A schema's field limits its values by attributes: `min` and `max` for numbers (in `.avsc` files also by names,
see `schemas.ranges`), `format` for strings (see `schemas.formats`), `max_items` for arrays. Every number must
be finite and every length bounded, with or without attributes. No correct writer sends a value outside its
limits, so readers refuse such records. An array with `leave_out` collects the results of many NICs: readers
drop a bad element of it and keep the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from schemas.formats import FORMATS, Format

MAX_STRING: Final = 512
MAX_BYTES: Final = 4096
MAX_ARRAY: Final = 65_536
MAX_LIMIT: Final = 2**64
"""Largest limit, positive or negative, that a schema may state for a number or a length."""

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1

log = logging.getLogger(__name__)

Check = Callable[[list[Any], str], None]
"""Checks all values of one field together, which is faster than one by one.

The arguments are the values and the field's place in the record."""


class BadRecord(ValueError):
    """A message that cannot be used. `reason` is a symbol of `Reject.reason`; the text has the bad value."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Limits(NamedTuple):
    """The limits of one record field's values, as the attributes of the field's schema state them."""

    min: float | None = None
    max: float | None = None
    format: Format | None = None
    max_items: int = MAX_ARRAY
    leaves_out: bool = False
    """True if a bad element of the array is left out, and the record kept."""

    @classmethod
    def of_field(cls, field: Mapping[str, Any]) -> Limits:
        """Return the limits of a record schema's field. Raises ValueError for a limit that is no number."""
        low, high, longest = field.get("min"), field.get("max"), field.get("max_items", MAX_ARRAY)
        for limit in (low, high, longest):
            if limit is not None and not (isinstance(limit, int | float) and abs(limit) <= MAX_LIMIT):
                raise ValueError(f"{field['name']}: {limit!r:.40}, expected a number up to {MAX_LIMIT}")
        return cls(
            low,
            high,
            FORMATS.get(field.get("format", "")),  # a foreign writer's schema may name others
            MAX_ARRAY if longest is None else longest,
            field.get("leave_out", False),
        )


NO_LIMITS: Final = Limits()


def check_of(schema: Any, limits: Limits) -> Check | None:
    """Compile the checks of a schema in which enums are ints with the attribute `symbols`.

    The check may change the values: it replaces an enum's number with its symbol. None: any value passes.
    """
    if isinstance(schema, list):
        return _union_check(schema, limits)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return _record_check(schema)
    if kind == "array":
        return _array_check(schema["items"], limits)
    if kind in ("double", "float"):
        return lambda values, where: _check_numbers(values, where, limits)
    if kind == "int" and "symbols" in schema:
        last = len(schema["symbols"]) - 1
        return lambda values, where: _check_range(values, where, 0, last)
    if kind == "int":
        low = INT_MIN if limits.min is None else max(limits.min, INT_MIN)
        high = INT_MAX if limits.max is None else min(limits.max, INT_MAX)
        return lambda values, where: _check_range(values, where, low, high)
    if kind == "long":
        return lambda values, where: _check_range(values, where, limits.min, limits.max)
    if kind == "string":
        return lambda values, where: _check_strings(values, where, limits.format)
    if kind == "bytes":
        return lambda values, where: _check_lengths(values, where, MAX_BYTES, "bytes")
    return None


def _union_check(branches: list[Any], limits: Limits) -> Check | None:
    checks = [check_of(branch, limits) for branch in branches if branch != "null"]
    inner = checks[0] if len(checks) == 1 else None
    if inner is None:
        return None
    return lambda values, where: inner([value for value in values if value is not None], where)


def _record_check(schema: Any) -> Check:
    enums = {
        field["name"]: field["type"]["symbols"]
        for field in schema["fields"]
        if isinstance(field["type"], dict) and "symbols" in field["type"]
    }
    checks = [(field["name"], check_of(field["type"], Limits.of_field(field))) for field in schema["fields"]]
    active = [(field, check) for field, check in checks if check is not None and field not in enums]

    def check_records(values: list[Any], where: str) -> None:
        for field, symbols in enums.items():
            for value in values:
                number = value[field]
                if isinstance(number, str):
                    continue
                if not 0 <= number < len(symbols):
                    raise BadRecord(
                        "OUT_OF_RANGE", f"{where}.{field}: enum number {number}, expected one of {symbols}"
                    )
                value[field] = symbols[number]
        for field, check in active:
            check([value[field] for value in values], f"{where}.{field}")

    return check_records


def _array_check(items: Any, limits: Limits) -> Check:
    inner = check_of(items, limits)

    def check_arrays(values: list[Any], where: str) -> None:
        longest = max(map(len, values), default=0)
        if longest > limits.max_items:
            raise BadRecord("TOO_LARGE", f"{where}: {longest} elements, expected at most {limits.max_items}")
        if inner is None:
            return
        try:
            inner(list(chain.from_iterable(values)), where)
        except BadRecord:
            if not limits.leaves_out:
                raise
            for array in values:
                array[:] = [element for element in array if _passes(inner, element, where)]

    return check_arrays


def _passes(check: Check, element: Any, where: str) -> bool:
    try:
        check([element], where)
    except BadRecord as error:
        log.info("left out an element: %s", error)
        return False
    return True


def _check_numbers(values: list[float], where: str, limits: Limits) -> None:
    if not all(map(math.isfinite, values)):
        wrong = next(value for value in values if not math.isfinite(value))
        raise BadRecord("OUT_OF_RANGE", f"{where}: {wrong}, expected a finite number")
    _check_range(values, where, limits.min, limits.max)


def _check_range(values: list[Any], where: str, low: float | None, high: float | None) -> None:
    if not values:
        return
    if low is not None and min(values) < low:
        raise BadRecord("OUT_OF_RANGE", f"{where}: {min(values)}, expected at least {low:.19g}")
    if high is not None and max(values) > high:
        raise BadRecord("OUT_OF_RANGE", f"{where}: {max(values)}, expected at most {high:.19g}")


def _check_strings(values: list[str], where: str, form: Format | None) -> None:
    if form is not None and form.has_passed(values):
        return
    _check_lengths(values, where, MAX_STRING, "characters")
    wrong = None if form is None else form.first_wrong(values)
    if wrong is not None and form is not None:
        raise BadRecord("OUT_OF_RANGE", f"{where}: {wrong!r:.100}, expected {form.expected}")


def _check_lengths(values: list[Any], where: str, longest_allowed: int, unit: str) -> None:
    longest = max(map(len, values), default=0)
    if longest > longest_allowed:
        raise BadRecord("TOO_LARGE", f"{where}: {longest} {unit}, expected at most {longest_allowed}")
