"""SQL that the history queries share: steps by a window's middle, unknown delays, and values of NULL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from fabrictime.audit.groups import Level
from fabrictime.web import history_sql
from fabrictime.web.history_sql import SECOND_NS
from schemas import queries
from schemas.validation import MAX_NS


class Fixed:
    """A history with one answer."""

    database = "fabrictime"

    def __init__(self, *columns: list[Any]) -> None:
        self.answer = columns

    def columns(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Any:
        self.asked = sql, parameters
        return self.answer


def test_rows_are_columns_turned_and_none_without_rows() -> None:
    history = Fixed(["a", "b"], [1, 2])
    assert list(history_sql.rows(history, "SELECT", since_ns=5)) == [("a", 1), ("b", 2)]
    assert history.asked == ("SELECT", {"since_ns": 5, "until_ns": MAX_NS})
    assert list(history_sql.rows(Fixed([], []), "SELECT")) == []
    with pytest.raises(ValueError, match="longer"):
        list(history_sql.rows(Fixed([1], [1, 2]), "SELECT"))


@dataclass(frozen=True, slots=True)
class Figures:
    name: str
    count: int
    mean: float
    bound: float | None
    rail: int | None
    direction: Literal["forward", "reverse"]
    level: Level
    findings: tuple[tuple[str, str], ...]


def test_records_have_the_types_of_their_fields() -> None:
    history = Fixed(["a"], ["3"], [4], [math.nan], [None], ["forward"], ["error"], [[("b", "c")]])
    span = history_sql.Span(5, 15, 2)
    assert history_sql.records(Figures, history, "SELECT", span, limit=1) == [
        Figures("a", 3, 4.0, None, None, "forward", Level.ERROR, (("b", "c"),))
    ]
    assert history.asked == ("SELECT", {"since_ns": 5, "until_ns": MAX_NS, "step_ns": 2, "limit": 1})
    assert history_sql.Span.before(None, 60) == history_sql.Span(-60 * SECOND_NS, 0, SECOND_NS)
    assert history_sql.Span.before(SECOND_NS, 3_600).step_ns == 12 * SECOND_NS


def test_null_and_nan_are_no_value() -> None:
    assert [history_sql.to_float(value) for value in (None, math.nan, 0, 1.5)] == [None, None, 0.0, 1.5]
    assert [history_sql.to_int(value) for value in (None, 0, 7)] == [None, 0, 7]


def test_windows_near_a_steps_edge_belong_to_the_step_of_their_middle(filled: Any) -> None:
    step_ns = 10 * SECOND_NS
    sql = f"SELECT {history_sql.STEP} FROM (SELECT {{a:Int64}} AS s, {{b:Int64}} AS e, "
    sql += (
        "fromUnixTimestamp64Nano(s, 'UTC') AS window_start, fromUnixTimestamp64Nano(e, 'UTC') AS window_end)"
    )
    for start, end, step in ((9_999, 11_001, 10), (9_400, 10_401, 0), (10_000, 20_000, 10)):
        [[found]] = filled.history.columns(
            sql, {"a": start * 1_000_000, "b": end * 1_000_000, "step_ns": step_ns}
        )
        assert found == step * SECOND_NS


def test_a_delay_is_unknown_above_20_round_trips_of_error(filled: Any) -> None:
    row = "SELECT {b:Nullable(Float64)} AS bound_ns, 10 AS rtt"
    sql = f"SELECT {queries.unknown_delay('rtt')} FROM ({row})"
    found = [filled.history.columns(sql, {"b": bound})[0][0] for bound in (200.0, 200.1, None)]
    assert found == [0, 1, 0]
