"""Reads alerts with their notes from the log, and publishes new notes.

`changed_note` and the functions that call it are pure: they take the former note and return its successor.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from typing import Any, Final

from actuators.notify.notes import NoteIndex
from fabrictime.runtime.user import user_name
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.kafka.publisher import Publisher, PublishFailed
from schemas.kafka.reader import BEGINNING, Start, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.records import Alert, AlertNote, AlertState, NoteScope
from schemas.topics import ALERT_NOTES, ALERTS, INVENTORY, TOPICS, Topic

MAX_COMMENTS: Final = 32
SCOPES: Final = {"host": NoteScope.HOST, "rack": NoteScope.RACK, "link": NoteScope.LINK}
PUBLISH_S: Final = 12.0
NS_PER_S: Final = 1_000_000_000


def author() -> str:
    """Return the author of a note: the user and host that run this command."""
    return f"{user_name()}@{socket.gethostname()}"


def selector(scope: str, pattern: str) -> str:
    """Return the subject of a note about alerts that match a pattern: `scope:pattern`. Raises ValueError."""
    if scope not in SCOPES:
        raise InputError(f"scope {scope!r}: expected one of {', '.join(SCOPES)}")
    if not pattern:
        raise InputError(f"{scope}: expected a pattern such as 'h1*'")
    return f"{scope}:{pattern}"


def new_note(subject: str, now_ns: int, scope: NoteScope = NoteScope.SUBJECT, pattern: str = "") -> AlertNote:
    """Return an empty note about a subject, or about all alerts that match a pattern."""
    return {
        "subject": subject,
        "scope": scope,
        "pattern": pattern,
        "created_ns": now_ns,
        "updated_ns": now_ns,
        "author": author(),
        "owner": "",
        "acknowledged_ns": None,
        "silent_from_ns": None,
        "silent_until_ns": None,
        "comments": [],
    }


def changed_note(
    note: AlertNote,
    now_ns: int,
    *,
    comment: str = "",
    owner: str | None = None,
    acknowledge: bool = False,
    silence: tuple[int, int] | None = None,
) -> AlertNote:
    """Return the successor of a note. `silence`: (start, end), ns. Raises ValueError if it is invalid."""
    new: AlertNote = {**note, "updated_ns": now_ns, "author": author(), "comments": list(note["comments"])}
    if comment:
        new["comments"] += [{"at_ns": now_ns, "author": new["author"], "text": comment}]
        new["comments"] = new["comments"][-MAX_COMMENTS:]
    if owner is not None:
        new["owner"] = owner
    if acknowledge:
        new["acknowledged_ns"] = now_ns
    if silence is not None:
        new["silent_from_ns"], new["silent_until_ns"] = _joined(note, silence, now_ns)
    try:
        codec.decode(codec.encode(ALERT_NOTES.type, new), ALERT_NOTES.type)
    except ValueError as error:
        raise InputError(str(error)) from None
    return new


def _joined(note: AlertNote, silence: tuple[int, int], now_ns: int) -> tuple[int, int]:
    """Return the start and end of a note's new silence, ns; a silence in force keeps its start."""
    start_ns, until_ns = silence
    old_from_ns, old_until_ns = note["silent_from_ns"], note["silent_until_ns"]
    is_in_force = (
        old_from_ns is not None and old_until_ns is not None and old_from_ns <= now_ns < old_until_ns
    )
    return min(start_ns, old_from_ns) if is_in_force and old_from_ns is not None else start_ns, until_ns


def ended_note(note: AlertNote, now_ns: int) -> AlertNote:
    """Return a note whose silence and acknowledgement end now. Raises ValueError if there is neither."""
    until_ns = note["silent_until_ns"]
    is_silent = until_ns is not None and until_ns > now_ns
    if not is_silent and note["acknowledged_ns"] is None:
        raise InputError(f"{note['subject']}: has no silence, window or acknowledgement to end")
    new = changed_note(note, now_ns)
    new["acknowledged_ns"] = None
    if is_silent and until_ns is not None:
        new["silent_from_ns"] = min(note["silent_from_ns"] or now_ns, now_ns)
        new["silent_until_ns"] = now_ns
    return new


class AlertNotes:
    """The active alerts of a log, and all notes."""

    def __init__(self, cluster: KafkaSettings | str, registry: codec.Registry | None = None) -> None:
        """Read alerts, notes and racks. Raises ValueError if the log does not answer or lacks a topic."""
        self._cluster, self._registry = cluster, registry
        self.index = NoteIndex()
        self.alerts: dict[str, Alert] = {}
        starts: dict[Topic, Start] = dict.fromkeys((ALERTS, ALERT_NOTES, INVENTORY), BEGINNING)
        with TopicReader.open(cluster, starts) as reader:
            for message in reader.read_to_end():
                self._take(message)

    def _take(self, message: Message) -> None:
        record = self._decoded(message)
        if message.topic == ALERT_NOTES.name:
            self.index.take(message.key, record)
        elif record is None:
            return
        elif message.topic == INVENTORY.name:
            self.index.take_rack(record["host"], record["rack"])
        else:
            previous = self.alerts.get(record["alert_id"])
            if previous is None or previous["update"] <= record["update"]:
                self.alerts[record["alert_id"]] = record

    def _decoded(self, message: Message) -> Any:
        if message.value is None:
            return None
        try:
            return message.decoded(TOPICS[message.topic], self._registry)
        except codec.BadRecord:  # an unreadable record counts as missing
            return None

    def active(self) -> list[Alert]:
        """Return the active alerts, the newest first."""
        active = [alert for alert in self.alerts.values() if alert["state"] != AlertState.CLEARED]
        return sorted(active, key=lambda alert: -alert["raised_ns"])

    def subject_of(self, name: str) -> str:
        """Return the subject of an alert, given by its id or subject. Raises ValueError if unknown."""
        if name in self.alerts:
            return self.alerts[name]["subject"]
        subjects = {alert["subject"] for alert in self.alerts.values()}
        if name in subjects or name in self.index.notes:
            return name
        matches = sorted(subject for subject in subjects if name in subject)
        if len(matches) == 1:
            return matches[0]
        expected = f"one of {', '.join(matches[:5])}" if matches else "a subject of `fabrictime alert list`"
        raise InputError(f"alert {name!r}: expected {expected}")

    def note_of(self, subject: str, now_ns: int) -> AlertNote:
        """Return the note about a subject; an empty note if the subject has none."""
        return self.index.notes.get(subject) or new_note(subject, now_ns)

    def window_note(self, scope: str, pattern: str, now_ns: int) -> AlertNote:
        """Return the note about a pattern; an empty note if the pattern has none. Raises ValueError."""
        name = selector(scope, pattern)
        return self.index.notes.get(name) or new_note(name, now_ns, SCOPES[scope], pattern)

    def publish(self, notes: Iterable[AlertNote]) -> None:
        """Publish notes and wait until the log has them. Raises ValueError if the log refuses a note."""
        publisher = Publisher(self._cluster, self._registry)
        try:
            for note in notes:
                publisher.publish(ALERT_NOTES, note["subject"], note)
                self.index.take(note["subject"], note)
            publisher.flush(PUBLISH_S)
        except PublishFailed as error:
            raise InputError(f"{error}; the note is not stored") from None


def time_ns(text: str, now_ns: int) -> int:
    """Return a time as ns since the Unix epoch. Raises ValueError.

    `text` is ISO 8601, by default UTC, or a duration from now such as `+30m`.
    """
    from datetime import UTC, datetime

    from fabrictime.commands.options import duration_s

    if text.startswith("+"):
        return now_ns + round(duration_s(text[1:]) * NS_PER_S)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{text!r}: expected a time such as 2026-11-29T22:00, or +30m") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp()) * NS_PER_S


def now_ns() -> int:
    """Return the system clock's time, ns since the Unix epoch."""
    return time.time_ns()
