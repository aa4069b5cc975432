"""History queries about jobs: the jobs of the last days, the intervals of a long span, and one complete
interval.

The queries' aggregates ignore repeated rows, so the queries read without FINAL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fabrictime.state.job_state import Interval, interval_of
from fabrictime.web.history_client import History
from fabrictime.web.history_sql import in_range, rows
from schemas import tables
from schemas.records import Alternative, Diagnosis, DiagnosisEvidence, JobFlow, RankTime, Verdict

MAX_JOBS: Final = 100
STEPS: Final = 400
"""Number of steps of a long span; each shows its worst interval."""
_BEGAN_NS: Final = "toUnixTimestamp64Nano(began)"
_SINCE: Final = in_range("began")
_ONE: Final = (
    "job = {job:String} AND number = {number:Int64} "
    "AND began = fromUnixTimestamp64Nano({began_ns:Int64}, 'UTC')"
)
_NEAR: Final = (
    "job = {job:String} AND began > fromUnixTimestamp64Nano({began_ns:Int64} - {back_ns:Int64}, 'UTC') "
    "AND began <= fromUnixTimestamp64Nano({began_ns:Int64}, 'UTC')"
)
BACK_NS: Final = 90_000_000_000
"""How far before an interval its ranks and flows are searched, ns: with an unchanged verdict they are
published once a minute.
"""
_EVIDENCE: Final = tuple(name for name in DiagnosisEvidence.__annotations__ if name != "at_ns")
_ALTERNATIVES: Final = tuple(Alternative.__annotations__)
_RANKS: Final = tuple(RankTime.__annotations__)
_FLOWS: Final = tuple(JobFlow.__annotations__)
_ELSEWHERE: Final = ("begin_ns", "evidence", "alternatives", "time_splits", "flows")
_HEAD: Final = tuple(name for name in Diagnosis.__annotations__ if name not in _ELSEWHERE)
_FIGURES: Final = ("number", *(name for name in Interval._fields if name not in ("key", "begin_ns")))


def jobs(history: History, since_ns: int) -> list[dict[str, Any]]:
    """Return the head of each job's newest diagnosis since `since_ns`, the newest first."""
    sql = (
        f"SELECT {_BEGAN_NS} AS begin_ns, {', '.join(_HEAD)} FROM {_table(history, tables.DIAGNOSES)} "
        f"WHERE {_SINCE} ORDER BY job, began DESC, number DESC LIMIT 1 BY job"
    )
    sql = f"SELECT * FROM ({sql}) ORDER BY end_ns DESC LIMIT {MAX_JOBS}"
    return [_head(row) for row in rows(history, sql, since_ns=since_ns)]


def intervals(history: History, job: str, since_ns: int, span_ns: int) -> list[Interval]:
    """Return a job's intervals from `since_ns` on: the worst of each step, with `STEPS` steps in
    `span_ns`.
    """
    worst = "(blames_network, verdict != 'HEALTHY', loss_share, began, number)"
    names = ", ".join(_FIGURES)
    sql = (
        f"SELECT newest.1, {', '.join(f'newest.{k + 2}' for k in range(len(_FIGURES)))} FROM ("
        f"SELECT argMax(tuple({_BEGAN_NS}, {names}), {worst}) AS newest "
        f"FROM {_table(history, tables.DIAGNOSES)} WHERE job = {{job:String}} AND {_SINCE} "
        f"GROUP BY intDiv({_BEGAN_NS}, {{step_ns:Int64}})) ORDER BY newest.1"
    )
    step_ns = max(1, span_ns // STEPS)
    interval_rows = rows(history, sql, job=job, since_ns=since_ns, step_ns=step_ns)
    return [
        interval_of(_typed(dict(zip(("begin_ns", *_FIGURES), row, strict=True)))) for row in interval_rows
    ]


def diagnosis(history: History, job: str, key: str) -> Diagnosis | None:
    """Return an interval's diagnosis; None if there is none. `key` is the field `Interval.key`."""
    began_ns, _, number = key.rpartition("-")
    if not (began_ns.lstrip("-").isdecimal() and number.isdecimal()):
        return None
    at = {"job": job, "began_ns": int(began_ns), "number": int(number)}
    arrays = [f"evidence_{name}" for name in _EVIDENCE] + [f"alternative_{name}" for name in _ALTERNATIVES]
    columns = ", ".join((*_HEAD, *arrays))
    sql = (
        f"SELECT {_BEGAN_NS}, {columns} FROM {_table(history, tables.DIAGNOSES)} WHERE {_ONE} "
        "ORDER BY recorded_ns DESC LIMIT 1"
    )
    row = next(iter(rows(history, sql, **at)), None)
    if row is None:
        return None
    first, second = len(_HEAD) + 1, len(_HEAD) + 1 + len(_EVIDENCE)
    record = {
        **_head(row[:first]),
        "evidence": [{**evidence, "at_ns": None} for evidence in _items(_EVIDENCE, row[first:second])],
        "alternatives": _items(_ALTERNATIVES, row[second:]),
        "time_splits": _parts(history, tables.RANK_TIMES, _RANKS, "rank", at),
        "flows": _parts(history, tables.JOB_FLOWS, _FLOWS, "nic, peer", at),
    }
    return cast(Diagnosis, record)


def _items(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the elements of a list that is stored as one array column per field."""
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _parts(
    history: History, table: str, names: Sequence[str], order: str, at: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows of an interval, each once. An interval without rows gets the rows of the nearest
    earlier interval that has some.
    """
    name, newest = _table(history, table), "(began, number)"
    sql = (
        f"SELECT {', '.join(names)} FROM {name} WHERE {_NEAR} "
        f"AND {newest} = (SELECT max({newest}) FROM {name} WHERE {_NEAR} AND number <= {{number:Int64}}) "
        f"ORDER BY recorded_ns DESC LIMIT 1 BY {order}"
    )
    return [dict(zip(names, row, strict=True)) for row in rows(history, sql, back_ns=BACK_NS, **at)]


def _head(row: Sequence[Any]) -> dict[str, Any]:
    return _typed(dict(zip(("begin_ns", *_HEAD), row, strict=True)))


def _typed(head: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its values converted to the types of the record."""
    return {**head, "verdict": Verdict(head["verdict"]), "blames_network": bool(head["blames_network"])}


def _table(history: History, name: str) -> str:
    return f"{history.database}.{name}"
