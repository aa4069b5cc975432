"""Alerts and decisions of a time range, as marks on the time control."""

from __future__ import annotations

from typing import Final, TypeAlias

from fabrictime.state.labels import arrow, kind_label
from fabrictime.web.history_client import History
from fabrictime.web.history_sql import SECOND_NS, in_range, rows
from schemas import tables
from schemas.units import counted

MAX_MARKS: Final = 200
"""Largest number of marks of each kind; the newest ones are shown."""
STEPS: Final = 300
"""Number of parts of the range; decisions for one reason in one part are one mark."""
NS_PER_MS: Final = 1_000_000

Mark: TypeAlias = tuple[int, str, str]
"""Time in ms, kind (`action` or the severity of an alert), and text."""


def marks(history: History, since_ns: int, until_ns: int) -> list[Mark]:
    """Return the alerts and decisions of a range, the oldest first. Raises HistoryError."""
    span = {"since_ns": since_ns, "until_ns": until_ns}
    raised = (
        "SELECT toUnixTimestamp64Nano(raised), toString(severity), toString(kind), subject "
        f"FROM {history.database}.{tables.ALERTS} FINAL WHERE {in_range('raised')} "
        f"ORDER BY raised DESC LIMIT {MAX_MARKS}"
    )
    decided = (
        "SELECT min(toUnixTimestamp64Nano(decided)) AS at, toString(reason_kind), reason_subject, "
        f"uniqExact(decision_id) FROM {history.database}.{tables.DECISIONS} WHERE {in_range('decided')} "
        "GROUP BY intDiv(toUnixTimestamp64Nano(decided), {step_ns:Int64}), reason_kind, reason_subject "
        f"ORDER BY at DESC LIMIT {MAX_MARKS}"
    )
    step_ns = max(SECOND_NS, (until_ns - since_ns) // STEPS)
    alerts = [
        (int(at_ns) // NS_PER_MS, str(severity), f"{kind_label(kind)}: {arrow(subject)}")
        for at_ns, severity, kind, subject in rows(history, raised, **span)
    ]
    actions = [
        (
            int(at_ns) // NS_PER_MS,
            "action",
            f"{counted(count, 'decision')}, {kind_label(kind)}: {arrow(subject)}",
        )
        for at_ns, kind, subject, count in rows(history, decided, step_ns=step_ns, **span)
    ]
    return sorted(alerts + actions)
