"""Grades paths by the health of their worst link: healthy, dampened, lossy or dead.

A link that has recovered is dampened for a while. This time doubles with each outage within the hour. Route
flap damping (RFC 2439) is similar, but its penalty decays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from schemas.ids import cable_id, host_of
from schemas.reasons import NO_REASON, Reason
from schemas.records import HealthKind, LinkHealth, LinkState
from streams.runtime.units import NS_PER_S

NS_PER_HOUR: Final = 3600 * NS_PER_S
BAD_STATES: Final = frozenset({LinkState.DOWN, LinkState.GREY})


class Grade(IntEnum):
    """Quality of a path; a lower grade is better."""

    HEALTHY = 0
    DAMPENED = 1
    """A link recovered recently, is flapping, or may be the cause of another subject's losses."""
    LOSSY = 2
    DEAD = 3


class Health(NamedTuple):
    """Health of a path's worst link. `reason` identifies the health record of this link."""

    grade: Grade
    loss: float
    reason: Reason


HEALTHY: Final = Health(Grade.HEALTHY, 0.0, NO_REASON)


@dataclass(slots=True)
class _Subject:
    state: LinkState = LinkState.UP
    seq: int = -1
    links: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    """Other cables that may be the cause of the subject's losses."""
    loss: float = 0.0
    dampened_until_ns: int = 0
    outages: deque[int] = field(default_factory=deque)
    """Start of each outage within the past hour, ns."""

    def update_outages(self, record: LinkHealth, hold_ns: int, max_hold_ns: int) -> None:
        """Apply a record: note the start of an outage, or dampen the subject from the end of the outage."""
        is_bad, was_bad = record["state"] in BAD_STATES, self.state in BAD_STATES
        since_ns = record["since_ns"]
        if is_bad and not was_bad:
            self.outages.append(since_ns)
        while self.outages and self.outages[0] < since_ns - NS_PER_HOUR:
            self.outages.popleft()
        if was_bad and not is_bad:
            count = max(record["flaps_hour"], len(self.outages), 1)
            self.dampened_until_ns = since_ns + min(hold_ns << min(count - 1, 30), max_hold_ns)


class PathHealth:
    """Health of the links, NICs and hosts of one shard."""

    def __init__(self, hold_down_ns: int, max_hold_down_ns: int) -> None:
        self._hold_down_ns, self._max_hold_down_ns = hold_down_ns, max_hold_down_ns
        self._subjects: dict[str, _Subject] = {}
        self._links: dict[str, str] = {}
        """Subject whose record last named each directed link."""
        self._suspects: dict[str, set[str]] = {}
        """Subjects whose losses each candidate cable may explain."""
        self._hosts: dict[str, str] = {}
        """NICs and hosts with a record; each maps to its subject, which has the same name."""
        self._bad: set[str] = set()
        """Subjects that are dead or lossy now."""
        self._reported: frozenset[str] | None = None
        """Cached value of `reported`; None if outdated."""
        self._changed: set[str] = set()
        """Directed links whose health changed since `pop_changed` was last called."""
        self.version = 0
        """Grows with every change of state."""

    def take(self, subject: str, record: LinkHealth | None) -> None:
        """Apply a subject's `LinkHealth`; None removes the subject. Ignore a record older than the last."""
        self._reported = None
        if record is None:
            self._remove(subject)
            return
        if record["kind"] in (
            HealthKind.PATHS,
            HealthKind.TRACES,
            HealthKind.CLASSES,
        ):  # no link is known to be at fault
            return
        subject_state = self._subjects.get(subject) or self._subjects.setdefault(subject, _Subject())
        if record["seq"] < subject_state.seq:
            return
        links, candidates = tuple(record["links"]), tuple(record["candidates"])
        drops_large = record["max_packet_bytes"] is not None  # as good as dead for data
        loss = 1.0 if drops_large else record["loss_rate"] or 0.0
        state = record["state"]
        if state == LinkState.FLAPPING and loss:  # up now, but it loses packets
            state = LinkState.GREY
        is_bad = state in BAD_STATES
        (self._bad.add if is_bad else self._bad.discard)(subject)
        subject_state.update_outages(record, self._hold_down_ns, self._max_hold_down_ns)
        if (state, links, candidates) != (subject_state.state, subject_state.links, subject_state.candidates):
            self.version += 1
            self._changed.update(
                subject_state.links, links, _both_directions((*subject_state.candidates, *candidates))
            )
        active_candidates = candidates if is_bad else ()
        self._set_candidates(subject, subject_state.candidates, active_candidates)
        subject_state.candidates = active_candidates
        subject_state.loss, subject_state.state, subject_state.seq = loss, state, record["seq"]
        if record["kind"] in (HealthKind.NIC, HealthKind.HOST):
            self._hosts[subject] = subject
        self._set_links(subject, subject_state, links or subject_state.links, is_bad)

    def _remove(self, subject: str) -> None:
        subject_state = self._subjects.pop(subject, None)
        if subject_state is None:
            return
        self._changed.update(subject_state.links, _both_directions(subject_state.candidates))
        self._set_candidates(subject, subject_state.candidates, ())
        self._bad.discard(subject)
        self._hosts.pop(subject, None)
        self._links = {link: name for link, name in self._links.items() if name != subject}
        self.version += 1

    def _set_links(self, subject: str, subject_state: _Subject, links: tuple[str, ...], is_bad: bool) -> None:
        if is_bad:  # the record no longer concerns a direction that only the previous record named
            for link in set(subject_state.links) - set(links):
                self._links.pop(link, None)
        else:  # links that were bad before are dampened, whichever links the new record names
            links = (*links, *(link for link in subject_state.links if link not in links))
        subject_state.links = links
        for link in links:
            self._links[link] = subject

    def _set_candidates(self, subject: str, before: Iterable[str], now: Iterable[str]) -> None:
        for cable in before:
            self._suspects.get(cable, set()).discard(subject)
        for cable in now:
            self._suspects.setdefault(cable, set()).add(subject)

    def reason(self, subject: str) -> Reason:
        """Return a `Reason` that refers to a subject's newest record."""
        subject_state = self._subjects.get(subject)
        return Reason(subject, subject_state.seq if subject_state is not None else None)

    @property
    def all_good(self) -> bool:
        """True if no link, NIC or host is dead or lossy now."""
        return not self._bad

    @property
    def reported(self) -> frozenset[str]:
        """Directed links that any record names, also as candidates; all other links are healthy."""
        if self._reported is None:
            suspects = _both_directions(cable for cable, subjects in self._suspects.items() if subjects)
            self._reported = frozenset(self._links).union(suspects)
        return self._reported

    def pop_changed(self) -> frozenset[str]:
        """Return the directed links whose health changed since the last call."""
        changed = frozenset(self._changed)
        self._changed.clear()
        return changed

    @property
    def no_records(self) -> bool:
        """True if no record names any link."""
        return not self._links and not self._suspects

    def of_end(self, nic: str) -> Health:
        """Return the health of a path's end: DEAD if the NIC or its host is DOWN, else HEALTHY."""
        if not self._hosts:
            return HEALTHY
        for name in (nic, host_of(nic)):
            subject_state = self._subjects.get(self._hosts.get(name, ""))
            if subject_state is not None and subject_state.state == LinkState.DOWN:
                return Health(Grade.DEAD, 1.0, self.reason(name))
        return HEALTHY

    def of_links(self, links: Iterable[str], now_ns: int) -> Health:
        """Return the health of the worst of these directed links."""
        worst = HEALTHY
        if self.no_records:
            return worst
        for link in links:
            health = self._of_link(link, now_ns)
            if health[:2] > worst[:2]:
                worst = health
        return worst

    def _of_link(self, link: str, now_ns: int) -> Health:
        name = self._links.get(link)
        if name is not None:
            subject_state, reason = self._subjects[name], self.reason(name)
            if subject_state.state == LinkState.DOWN:
                return Health(Grade.DEAD, 1.0, reason)
            if subject_state.state == LinkState.GREY:
                return Health(Grade.LOSSY, subject_state.loss, reason)
            if subject_state.state == LinkState.FLAPPING or now_ns < subject_state.dampened_until_ns:
                return Health(Grade.DAMPENED, 0.0, reason)
        if self._suspects and self._suspects.get(cable_id(link)):
            return Health(Grade.DAMPENED, 0.0, self.reason(min(self._suspects[cable_id(link)])))
        return HEALTHY


def _both_directions(cables: Iterable[str]) -> Iterator[str]:
    """Yield both directed links of each cable; skip names that are not cables."""
    for cable in cables:
        near, between, far = cable.partition("<>")
        if between:
            yield f"{near}>{far}"
            yield f"{far}>{near}"
