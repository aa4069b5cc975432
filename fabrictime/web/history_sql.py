"""SQL fragments that the history queries of all tabs share, and conversion of rows into dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from fabrictime.web.history_client import History
from schemas.queries import Dialect
from schemas.validation import MAX_NS

Record = TypeVar("Record")
Direction = Literal["forward", "reverse"]
"""Forward: from the prober to its peer."""

SECOND_NS = 1_000_000_000
MAX_POINTS = 300
"""Largest number of steps in a series."""

_SINCE = "{0} >= fromUnixTimestamp64Nano({{since_ns:Int64}}, 'UTC')"
_UNTIL = "{0} < fromUnixTimestamp64Nano({{until_ns:Int64}}, 'UTC')"


def in_range(time: str) -> str:
    """Return the SQL condition that a time column is in a query's range, which ends at the shown moment."""
    return f"{_SINCE.format(time)} AND {_UNTIL.format(time)}"


SINCE = in_range("window_start")
START = "toUnixTimestamp64Nano(window_start)"
END = "toUnixTimestamp64Nano(window_end)"
# A window belongs to the step that contains its middle: its ends lie near a step's edge, and jitter.
MIDDLE = f"intDiv({START} + {END}, 2)"
STEP = f"intDiv({MIDDLE}, {{step_ns:Int64}}) * {{step_ns:Int64}}"
# The offset of the window nearest to the step's middle, extrapolated to the middle by its drift. An
# incomplete step and one with missing windows thus have the same value as a full one.
_TO_MIDDLE = f"({{step_ns:Int64}} - 2 * positiveModulo({MIDDLE}, {{step_ns:Int64}})) / 2"
_AT_MIDDLE = f"argMin((offset_ns, offset_fraction_ns + drift_ppb * 1e-9 * {_TO_MIDDLE}), abs({_TO_MIDDLE}))"
# Whole ns and the rest: a double holds the offset of a clock that counts from power-on to 256 ns only.
MIDDLE_OFFSET = f"tupleElement({_AT_MIDDLE}, 1)"
MIDDLE_REST = f"tupleElement({_AT_MIDDLE}, 2)"


@dataclass(frozen=True, slots=True)
class Span:
    """A time range, and the length of the steps of a series over it, in ns."""

    start_ns: int
    end_ns: int
    step_ns: int = SECOND_NS

    @staticmethod
    def before(end_ns: int | None, span_s: int) -> Span:
        """Return the span of `span_s` seconds that ends at `end_ns` (None counts as 0). Its steps are whole
        seconds, and about `MAX_POINTS` at most.
        """
        end_ns = end_ns or 0
        return Span(end_ns - span_s * SECOND_NS, end_ns, max(1, span_s // MAX_POINTS) * SECOND_NS)


def series_period_s(span_s: int) -> float:
    """Return the period with which a series is polled, s; the longer its steps, the longer the period."""
    return min(Span.before(None, span_s).step_ns / 1e9, 2.0) / 2


def dialect(history: History) -> Dialect:
    """Return the SQL dialect of the page's queries, with `since_ns` and `step_ns` as their parameters."""
    return Dialect(history.database, SINCE, STEP)


def rows(
    history: History, sql: str, span: Span | None = None, /, **parameters: Any
) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a query. `span` provides the query's parameters `since_ns` and `step_ns`.

    A history at a past moment provides the parameter `until_ns`, unless the caller passes it.
    """
    parameters = {"until_ns": getattr(history, "until_ns", MAX_NS), **parameters}
    if span is not None:
        parameters = {"since_ns": span.start_ns, "step_ns": span.step_ns, **parameters}
    return zip(*history.columns(sql, parameters), strict=True)


def records(
    kind: type[Record], history: History, sql: str, span: Span | None = None, /, **parameters: Any
) -> list[Record]:
    """Return the rows of a query as dataclasses. The columns must have the order of the fields; values are
    converted to the fields' types.
    """
    convert = [_converter(hint) for hint in get_type_hints(kind).values()]
    return [
        kind(*(converter(value) for converter, value in zip(convert, row, strict=True)))
        for row in rows(history, sql, span, **parameters)
    ]


def _converter(hint: Any) -> Callable[[Any], Any]:
    if hint in (float | None, int | None):
        return to_int if hint == int | None else to_float
    plain = get_origin(hint) or hint
    return plain if isinstance(plain, type) and plain is not UnionType else lambda value: value


def to_float(value: Any) -> float | None:
    """Return a float, or None for NULL and NaN."""
    return None if value is None or value != value else float(value)


def to_int(value: Any) -> int | None:
    """Return an int, or None for NULL."""
    return None if value is None else int(value)
