"""Implements `fabrictime audit repairs`: prints break-fix records of nodes; resets the circuit breaker."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from actuators.nodes.operator import LIVE, DrainOperator, OperatorSettings
from actuators.settings import NodeSettings
from fabrictime.commands.config.live_config import LiveRecords, successor
from fabrictime.commands.screen import table_of, terminal
from schemas.limits import EVERYONE
from schemas.records import Repair


def selected(repairs: Sequence[Repair], names: Sequence[str], *, everything: bool) -> list[Repair]:
    """Return the open repairs of the named nodes, hosts or racks; with `everything`, finished repairs too."""
    return [
        repair
        for repair in repairs
        if (everything or repair["state"] in LIVE)
        and (not names or any(name in (repair["node"], repair["host"], repair["rack"]) for name in names))
    ]


def breaker_line(repairs: Sequence[Repair], live: LiveRecords, settings: NodeSettings) -> str:
    """Return a line with the time since which the circuit breaker is open; empty if it is closed."""
    operator = DrainOperator(OperatorSettings(settings.rules_of, breaker=settings.breaker))
    for repair in repairs:
        operator.take_repair(repair)
    for key, record in live.records.items():
        operator.take_config(key, record)
    opened_ns = operator.opened_ns()
    if opened_ns is None:
        return ""
    return f"circuit breaker open since {_time(opened_ns)} UTC: no drains until --reset"


def reset(live: LiveRecords) -> None:
    """Close the circuit breaker, so that drains before now no longer count. Raises ValueError."""
    record = successor(live.records.get(EVERYONE), EVERYONE)
    live.publish({**record, "drains_reset_ns": time.time_ns()})


def show(repairs: Sequence[Repair], breaker: str, *, as_json: bool) -> None:
    """Print the repairs as a table or as a line of JSON."""
    if as_json:
        print(json.dumps({"breaker": breaker, "repairs": list(repairs)}))
        return
    from rich.text import Text

    console = terminal(250)
    if breaker:
        console.print(Text(breaker, "bold red"))
    if repairs:
        titles = ("node", "state", "opened (UTC)", "by", "jobs", "cause", "remedy", "end")
        console.print(table_of(titles, map(_row, repairs), wrapped=titles[2:]))
    else:
        console.print("no repair")


def _row(repair: Repair) -> tuple[str, ...]:
    notified = sum(job["notified"] for job in repair["jobs"])
    jobs = f"{len(repair['jobs'])}, {notified} notified" if repair["jobs"] else "0"
    remedies = dict.fromkeys(row["remedy"] for row in repair["evidence"] if row["remedy"])
    end = (
        ""
        if repair["ended_ns"] is None
        else f"{_time(repair['ended_ns'])} {repair['ended_by']}: {repair['end_reason']}"
    )
    opened = _time(repair["opened_ns"])
    return (
        repair["node"],
        repair["state"],
        opened,
        repair["by"],
        jobs,
        repair["reason"],
        "; ".join(remedies),
        end,
    )


def _time(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S}"
