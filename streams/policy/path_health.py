"""How far links can be relied on, as policy takes it: well, held down, lossy, dead.

In: `LinkHealth` records. Out: `PathHealth`, which grades a path by its worst link. A link that has healed is
held down for a while, twice as long with each time that it went bad within the hour: an old rule of routers
(RFC 2439, route flap damping), here without its decay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from schemas.ids import cable_id

__all__ = ["Grade", "PathHealth", "State"]

SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3600 * SECOND_NS


class Grade(IntEnum):
    """How good a path is; a lower one is better."""

    WELL = 0
    HELD = 1
    """Healed a moment ago, flaps, or may be what explains another's losses."""
    GREY = 2
    DEAD = 3


class State(NamedTuple):
    """What is known of a path's worst link. `reason`: subject/seq of the record that says so."""

    grade: Grade
    loss: float
    reason: str


WELL: Final = State(Grade.WELL, 0.0, "")


@dataclass(slots=True)
class _Subject:
    state: str = "UP"
    seq: int = -1
    links: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    loss: float = 0.0
    held_until_ns: int = 0
    spells: deque[int] = field(default_factory=deque)
    """When it went bad, within the past hour, ns."""


class PathHealth:
    """The links, NICs and hosts of one shard."""

    def __init__(self, hold_down_ns: int, hold_down_most_ns: int) -> None:
        self._hold_ns, self._hold_most_ns = hold_down_ns, hold_down_most_ns
        self._subjects: dict[str, _Subject] = {}
        self._links: dict[str, str] = {}
        """Directed link to the subject that has said something of it."""
        self._suspects: dict[str, set[str]] = {}
        """Cable that may be what is bad to the subjects that say so."""
        self._hosts: dict[str, str] = {}
        """NIC or host to the subject, which is of the same name."""
        self._bad: set[str] = set()
        """Subjects that are dead or lossy now."""
        self._touched: frozenset[str] | None = None
        """What `touched` gives, None where it is to be found anew."""
        self._changed: set[str] = set()
        """Directed links of which something new was said."""
        self.version = 0
        """Grows with every change of state."""

    def take(self, subject: str, record: Mapping[str, Any] | None) -> None:
        """Take a subject's `LinkHealth`; None: it is forgotten. An older record changes nothing."""
        self._touched = None
        known = self._subjects.get(subject)
        if record is None:
            if known is not None:
                self._changed.update(known.links, _either_way(known.others))
                self._suspect(subject, known.others, ())
                del self._subjects[subject]
                self._bad.discard(subject)
                self._hosts.pop(subject, None)
                self._links = {link: name for link, name in self._links.items() if name != subject}
                self.version += 1
            return
        s = known or self._subjects.setdefault(subject, _Subject())
        if record["seq"] < s.seq:
            return
        state, was = record["state"], s.state
        bad, was_bad = state in ("DOWN", "GREY"), was in ("DOWN", "GREY")
        (self._bad.add if bad else self._bad.discard)(subject)
        since_ns = record["since_ns"]
        if bad and not was_bad:
            s.spells.append(since_ns)
        while s.spells and s.spells[0] < since_ns - HOUR_NS:
            s.spells.popleft()
        if was_bad and not bad:
            times = max(record["flaps_hour"], len(s.spells), 1)
            s.held_until_ns = since_ns + min(self._hold_ns << min(times - 1, 30), self._hold_most_ns)
        if (state, tuple(record["links"]), tuple(record["candidates"])) != (was, s.links, s.others):
            self.version += 1
            self._changed.update(s.links, record["links"], _either_way((*s.others, *record["candidates"])))
        self._suspect(subject, s.others, tuple(record["candidates"]) if bad else ())
        s.others = tuple(record["candidates"]) if bad else ()
        s.state, s.seq, s.loss = state, record["seq"], record["loss_rate"] or 0.0
        if record["kind"] in ("NIC", "HOST"):
            self._hosts[subject] = subject
        links = tuple(record["links"]) or s.links
        if bad:  # the other direction may have been bad before: it is not what this is about
            for link in set(s.links) - set(links):
                self._links.pop(link, None)
        else:  # what was bad before is held down, whatever is named now
            links = (*links, *(link for link in s.links if link not in links))
        s.links = links
        for link in s.links:
            self._links[link] = subject

    def _suspect(self, subject: str, before: Iterable[str], now: Iterable[str]) -> None:
        for other in before:
            self._suspects.get(other, set()).discard(subject)
        for other in now:
            self._suspects.setdefault(other, set()).add(subject)

    def reason(self, subject: str) -> str:
        """Return subject/seq of what was said of a subject last."""
        known = self._subjects.get(subject)
        return f"{subject}/{known.seq}" if known is not None else subject

    @property
    def sound(self) -> bool:
        """Whether nothing is dead or lossy now."""
        return not self._bad

    @property
    def touched(self) -> frozenset[str]:
        """The directed links of which anything was said: all others are well."""
        if self._touched is None:
            suspects = _either_way(cable for cable, by in self._suspects.items() if by)
            self._touched = frozenset(self._links).union(suspects)
        return self._touched

    def changed(self) -> frozenset[str]:
        """Take the directed links of which something new was said since they were taken last."""
        found = frozenset(self._changed)
        self._changed.clear()
        return found

    @property
    def calm(self) -> bool:
        """Whether nothing has ever been said of any link."""
        return not self._links and not self._suspects

    def of_end(self, nic: str) -> State:
        """Return what is known of a NIC and its host: DEAD where no path reaches it."""
        if not self._hosts:
            return WELL
        for name in (nic, nic.partition("/")[0]):
            s = self._subjects.get(self._hosts.get(name, ""))
            if s is not None and s.state == "DOWN":
                return State(Grade.DEAD, 1.0, self.reason(name))
        return WELL

    def of_links(self, links: Iterable[str], now_ns: int) -> State:
        """Return what is known of the worst of these directed links."""
        worst = WELL
        if not self._links and not self._suspects:
            return worst
        for link in links:
            found = self._of_link(link, now_ns)
            if found[:2] > worst[:2]:
                worst = found
        return worst

    def _of_link(self, link: str, now_ns: int) -> State:
        name = self._links.get(link)
        if name is not None:
            s = self._subjects[name]
            reason = self.reason(name)
            if s.state == "DOWN":
                return State(Grade.DEAD, 1.0, reason)
            if s.state == "GREY":
                return State(Grade.GREY, s.loss, reason)
            if s.state == "FLAPPING" or now_ns < s.held_until_ns:
                return State(Grade.HELD, 0.0, reason)
        if self._suspects and self._suspects.get(cable_id(link)):
            return State(Grade.HELD, 0.0, self.reason(min(self._suspects[cable_id(link)])))
        return WELL


def _either_way(cables: Iterable[str]) -> Iterator[str]:
    """Give both directed links of each cable; what is no cable has none."""
    for cable in cables:
        near, between, far = cable.partition("<>")
        if between:
            yield f"{near}>{far}"
            yield f"{far}>{near}"
