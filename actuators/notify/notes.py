"""The notes of operators, and the alerts that they concern.

A note concerns the alerts of its subject, or alerts whose links, hosts or racks *all* match its pattern. So
the maintenance of one rack does not silence an alert about the whole fabric.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from schemas.ids import cable_id, end_parts, host_of
from schemas.records import Alert, AlertNote, NoteComment, NoteScope


@dataclass(frozen=True, slots=True)
class Silence:
    """A period in which an alert causes no notification, and the note that sets it."""

    from_ns: int
    until_ns: int
    note: AlertNote


def _cable(name: str) -> str:
    """Return the cable of a directed link; return any other name unchanged."""
    return cable_id(name) if name.count(">") == 1 and "<>" not in name else name


def hosts_of(alert: Alert, hosts: Container[str]) -> Iterator[str]:
    """Yield the hosts that an alert concerns; `hosts`: all hosts in the inventory."""
    yield from (host_of(nic) for nic in alert["nics"])
    for name in (alert["subject"], *alert["grouped"]):
        ends = name.replace("<>", ">").split(">") if ">" in name else []
        nodes = [end_parts(end).node for end in ends] or [host_of(name)]
        yield from (node for node in nodes if node in hosts)


class NoteIndex:
    """The newest note of each key, and the racks of the hosts, to find the notes about an alert."""

    def __init__(self) -> None:
        self.notes: dict[str, AlertNote] = {}
        self._racks: dict[str, str | None] = {}
        """Maps host to its rack, for all hosts of the inventory."""

    def take(self, key: str, note: AlertNote | None) -> None:
        """Keep a record of `fabric.alert-notes`; None removes the notes of the key."""
        if note is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = note

    def take_rack(self, host: str, rack: str | None) -> None:
        """Set the rack of a host of the inventory."""
        self._racks[host] = rack

    def of(self, alert: Alert) -> list[AlertNote]:
        """Return the notes that concern an alert, first the note of its subject."""
        own = self.notes.get(alert["subject"])
        selected = (note for note in self.notes.values() if note["pattern"] and self._selects(note, alert))
        return [*([own] if own is not None else []), *selected]

    def _selects(self, note: AlertNote, alert: Alert) -> bool:
        names = self._names(alert, note["scope"])
        return bool(names) and all(fnmatchcase(name, note["pattern"]) for name in names)

    def _names(self, alert: Alert, scope: NoteScope) -> set[str]:
        """Return the names in an alert that must match the pattern of a note with this scope."""
        if scope == NoteScope.LINK:
            names = (alert["subject"], *alert["grouped"], *alert["links"])
            return {_cable(name) for name in names if ">" in name}
        hosts = set(hosts_of(alert, self._racks))
        return hosts if scope == NoteScope.HOST else {self._racks.get(host) or "" for host in hosts}

    def silences(self, alert: Alert) -> list[Silence]:
        """Return all silences and maintenance windows of an alert: past, present and future."""
        return [
            Silence(note["silent_from_ns"], note["silent_until_ns"], note)
            for note in self.of(alert)
            if note["silent_from_ns"] is not None and note["silent_until_ns"] is not None
        ]

    def silence_at(self, alert: Alert, at_ns: int) -> Silence | None:
        """Return the silence in force at a time; of several, the last to end; None if there is none."""
        in_force = [one for one in self.silences(alert) if one.from_ns <= at_ns < one.until_ns]
        return max(in_force, key=lambda one: one.until_ns, default=None)

    def is_acknowledged(self, alert: Alert) -> bool:
        """Return whether an operator has acknowledged an alert since it was raised."""
        return any((note["acknowledged_ns"] or 0) > alert["raised_ns"] for note in self.of(alert))

    def is_quiet(self, alert: Alert, at_ns: int) -> bool:
        """Return whether an alert is acknowledged, or is silenced at `at_ns`."""
        return self.is_acknowledged(alert) or self.silence_at(alert, at_ns) is not None

    def owner_of(self, alert: Alert) -> str:
        """Return the owner that operators set for an alert; empty if there is none."""
        return next((note["owner"] for note in self.of(alert) if note["owner"]), "")

    def comments_of(self, alert: Alert) -> list[NoteComment]:
        """Return the comments about an alert, the newest last."""
        return sorted((c for note in self.of(alert) for c in note["comments"]), key=lambda c: c["at_ns"])


def state_text(index: NoteIndex, alert: Alert, at_ns: int) -> str:
    """Return a short text on an alert's notes, for tables: acknowledged, silent, owner."""
    silence = index.silence_at(alert, at_ns)
    return ", ".join(_state_parts(index, alert, silence))


def _state_parts(index: NoteIndex, alert: Alert, silence: Silence | None) -> Iterable[str]:
    if index.is_acknowledged(alert):
        yield "acknowledged"
    if silence is not None:
        yield "maintenance" if silence.note["pattern"] else "silenced"
    if owner := index.owner_of(alert):
        yield f"owner {owner}"
