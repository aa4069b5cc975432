"""Revival of DOWN subjects: answers over a dead element end the outage once the answers persist."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from schemas.records import DetectedBy, HealthKind
from streams.links.health.subjects import Subject, SubjectTable
from streams.links.localise.nics import nics_of_host
from streams.links.rules import GUARD_NS, LOSS_MARGIN, RECENT_NS, RETRACT_NS, SUPPRESS_NS


def revive_subjects(
    table: SubjectTable, is_member: Callable[[str], bool], suspects: NDArray[np.intp], now_ns: int
) -> list[Subject]:
    """End the outages that are over; return the subjects that answer again, but not for long enough yet."""
    _end_suppression(table, now_ns)
    for s in [s for s in table.by_name.values() if s.dead]:
        if s.kind == HealthKind.HOST:
            _mark_new_nics(table, is_member, s)
        if not s.carrier_down:
            _revive(table, s, suspects, now_ns)
    return [s for s in table.by_name.values() if s.reviving]


def _end_suppression(table: SubjectTable, now_ns: int) -> None:
    evidence = table.evidence
    suppressed = evidence.suppressed_ns > 0
    if suppressed.any():
        has_answers = evidence.last_answer_ns > evidence.suppressed_ns - SUPPRESS_NS
        over = suppressed & ((evidence.suppressed_ns <= now_ns) | has_answers)
        evidence.recovered_ns[over] = now_ns
        evidence.suppressed_ns[over] = 0


def _mark_new_nics(table: SubjectTable, is_member: Callable[[str], bool], s: Subject) -> None:
    """Mark as dead the NICs of a dead host that became known only after the host died."""
    evidence = table.evidence
    for nic in nics_of_host(evidence, is_member, s.name):
        if nic not in s.dead and not evidence.down[nic] and evidence.last_answer_ns[nic] <= s.since_ns:
            table.mark(s, nic, s.since_ns)


def _revive(table: SubjectTable, s: Subject, suspects: NDArray[np.intp], now_ns: int) -> None:
    last_ns = 0
    for element in list(s.dead):
        alive_ns = _alive_since_ns(table, s, element, suspects, now_ns)
        if alive_ns is None:
            continue
        last_ns = max(last_ns, alive_ns)
        table.clear(s, element)
        if s.kind != HealthKind.LINK:  # one NIC of the host lives, so the others are evaluated on their own
            for rest in list(s.dead):
                table.clear(s, rest)
            break
    if last_ns:
        table.settle(s, now_ns, last_ns, DetectedBy.PROBES)


def _alive_since_ns(
    table: SubjectTable, s: Subject, element: int, suspects: NDArray[np.intp], now_ns: int
) -> int | None:
    """Return the time, ns, since which an element is alive; None if it is dead or alive too briefly."""
    answer_ns = int(table.evidence.last_answer_ns[element])
    if answer_ns <= s.dead[element] or table.is_settled(s):
        return None
    first_ns = s.reviving.setdefault(element, answer_ns)
    if now_ns - first_ns < table.thresholds.ns("up_delay_ms"):
        return None
    if len(suspects) and _has_new_losses(table, s, element, suspects, now_ns):
        return None
    return first_ns


def _has_new_losses(
    table: SubjectTable, s: Subject, element: int, suspects: NDArray[np.intp], now_ns: int
) -> bool:
    """Return whether losses after an element's first new answer show that the element is still dead."""
    evidence = table.evidence
    answer_ns, first_ns = int(evidence.last_answer_ns[element]), s.reviving[element]
    rows = evidence.rows[suspects]
    here = (rows == element).any(axis=1) & (evidence.path_event_ns[suspects] > now_ns - RECENT_NS)
    after_ns = np.full(len(suspects), first_ns + GUARD_NS)
    lost = evidence.losses_within(suspects, after_ns, evidence.last_lost_ns[suspects])
    if int(lost[here].sum()) >= LOSS_MARGIN and answer_ns <= first_ns + GUARD_NS:
        s.dead[element] = answer_ns  # one answer, and dead again
        del s.reviving[element]
        return True
    own = np.isin(rows, list(s.dead))
    here &= ~(evidence.down[rows] & ~own).any(axis=1)
    return int(lost[here].sum()) >= LOSS_MARGIN and now_ns - first_ns < RETRACT_NS
