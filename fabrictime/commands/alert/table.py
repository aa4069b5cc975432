"""Shows alerts with their notes: as a table, or as rows for JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from actuators.notify.notes import state_text
from fabrictime.commands.alert.notes import AlertNotes, now_ns
from fabrictime.commands.screen import table_of, terminal
from schemas.records import Alert, AlertNote


def until_text(note: AlertNote) -> str:
    """Return the interval of a note's silence as text, ` from T until T UTC`; empty without a silence."""
    if note["silent_from_ns"] is None or note["silent_until_ns"] is None:
        return ""
    return f" from {_time(note['silent_from_ns'])} until {_time(note['silent_until_ns'])} UTC"


def _time(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M:%S}"


def _other_notes(notes: AlertNotes) -> list[AlertNote]:
    """Return the notes that concern no active alert."""
    used = {note["subject"] for alert in notes.active() for note in notes.index.of(alert)}
    return [note for subject, note in sorted(notes.index.notes.items()) if subject not in used]


def as_json(notes: AlertNotes, *, everything: bool) -> dict[str, Any]:
    """Return the active alerts with their notes for JSON; with `everything`, all other notes too."""
    rows = [_alert_json(notes, alert) for alert in notes.active()]
    return {"alerts": rows, **({"notes": _other_notes(notes)} if everything else {})}


def _alert_json(notes: AlertNotes, alert: Alert) -> dict[str, Any]:
    index, silence = notes.index, notes.index.silence_at(alert, now_ns())
    return {
        "alert_id": alert["alert_id"],
        "kind": alert["kind"],
        "severity": alert["severity"],
        "subject": alert["subject"],
        "raised_ns": alert["raised_ns"],
        "text": alert["text"],
        "acknowledged": index.is_acknowledged(alert),
        "silent_until_ns": None if silence is None else silence.until_ns,
        "owner": index.owner_of(alert),
        "comments": index.comments_of(alert),
    }


def show(notes: AlertNotes, *, everything: bool) -> None:
    """Print the active alerts and their notes as a table; with `everything`, all other notes too."""
    console, active = terminal(200), notes.active()
    if active:
        titles = ("severity", "kind", "subject", "raised (UTC)", "notes", "last comment")
        console.print(table_of(titles, [_cells(notes, alert) for alert in active], wrapped=titles[3:]))
    else:
        console.print("no alert is active")
    for note in _other_notes(notes) if everything else ():
        owner = f", owner {note['owner']}" if note["owner"] else ""
        console.print(f"note {note['subject']}:{until_text(note)}{owner}", markup=False)


def _cells(notes: AlertNotes, alert: Alert) -> tuple[str, ...]:
    comments = notes.index.comments_of(alert)
    return (
        alert["severity"],
        alert["kind"],
        alert["subject"],
        _time(alert["raised_ns"]),
        state_text(notes.index, alert, now_ns()) or "-",
        f"{comments[-1]['author']}: {comments[-1]['text']}" if comments else "-",
    )
