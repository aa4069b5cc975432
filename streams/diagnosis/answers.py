"""Keeps a job's verdict over time until another verdict has been the best for a while.

Evidence comes and goes within a second, and a verdict that changes ten times in half a minute is useless.
Evaluated intervals overlap, so several of them show one bad moment. A passing cause must last before it
becomes the answer, unless the job is clearly slow. A cause that would replace another one must last, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from schemas.records import Verdict
from streams.diagnosis.candidate import Candidate
from streams.runtime.pipeline_constants import DIAGNOSIS_INTERVAL_NS
from streams.runtime.units import NS_PER_S

LASTING_NS: Final = DIAGNOSIS_INTERVAL_NS
"""Time for which a cause that may pass must be seen, and any cause that would replace another one."""
HEALTHY_NS: Final = 3 * NS_PER_S
"""Time for which a job must be HEALTHY before it loses its cause."""
CLEAR_RATIO: Final = 1.5
"""Ratio of a job's time to its baseline from which on it is clearly slow: its answer is named at once."""
GAP_NS: Final = 10 * NS_PER_S
"""Time for which a slow job keeps its answer although nothing explains it, as `CAUSE_GAP_NS`; and for which a
clearly slow one that is HEALTHY otherwise keeps a cause that is still seen."""
NEEDED_NS: Final = {Verdict.UNKNOWN: GAP_NS, Verdict.HEALTHY: HEALTHY_NS}
"""Time for which an answer must be the best before it replaces another one; others need `LASTING_NS`."""
CERTAIN: Final = (Verdict.DEAD_RANK, Verdict.PROGRAM_MISMATCH)
"""Verdicts with evidence of their own, which replace the cause of a stopped operation."""
WITHOUT_PROOF: Final = (Verdict.HANG, Verdict.STALLED)
"""Verdicts that others replace while the operation still runs."""
QUEUED: Final = (Verdict.CONTENTION, Verdict.FEW_QUEUE_PAIRS)
"""Verdicts about a queue, which several links of a path can show."""
LEAD: Final = 0.1
"""Confidence by which another link must lead to replace the one that was named."""
WITHOUT_CAUSE: Final = (Verdict.HEALTHY, Verdict.UNKNOWN)
Key = tuple[str, str]
"""A pair of NICs, or verdict and subject of an answer."""
ANY_CAUSE: Final[Key] = (Verdict.UNKNOWN, "any")
NO_EVIDENCE: Final[Key] = (Verdict.UNKNOWN, "no evidence")
"""Stand for all causes, and for all answers, once nothing shows the present one: the best may alternate."""


class Lasting:
    """Tells causes that last from causes that a single moment shows."""

    def __init__(self) -> None:
        self._since_ns: dict[Key, int] = {}
        """Time since which each NIC pair, else verdict and subject, has had a cause."""

    def of(self, causes: list[Candidate], end_ns: int) -> list[Candidate]:
        """Note the causes at `end_ns`; return those that lasted for `LASTING_NS`, or need not last."""
        subjects = {subject for cause in causes for subject in _subjects(cause)}
        self._since_ns = {key: min(self._since_ns.get(key, end_ns), end_ns) for key in subjects}
        return [cause for cause in causes if not cause.may_pass or end_ns - self._since(cause) >= LASTING_NS]

    def _since(self, cause: Candidate) -> int:
        return min(self._since_ns[subject] for subject in _subjects(cause))


@dataclass(slots=True)
class Answers:
    """The present answer of a job, and the candidate that may replace the answer."""

    answer: Candidate | None = None
    stopped: tuple[int, int] | None = None
    """Communicator and number of the operation that the answer's cause stopped."""
    _since_ns: dict[Key, int] = field(default_factory=dict)  # of the answers that may replace it
    _lasting: Lasting = field(default_factory=Lasting)
    beside: Lasting = field(default_factory=Lasting)
    """Those causes that hold beside the answer."""

    def lasting(self, verdicts: list[Candidate], end_ns: int, *, is_clear: bool) -> Candidate | None:
        """Return the most probable verdict that has lasted for long enough; None if there is none.

        If the job is clearly slow, or its answer is a cause, verdicts of any age count.
        """
        lasting = self._lasting.of(verdicts, end_ns)
        has_cause = self.answer is not None and self.answer.verdict not in WITHOUT_CAUSE
        return next(iter(verdicts if has_cause or is_clear else lasting), None)

    def settle(
        self,
        best: Candidate,
        ranked: list[Candidate],
        stopped: tuple[int, int] | None,
        end_ns: int,
        *,
        is_clear: bool,
    ) -> Candidate:
        """Return the answer at `end_ns`, given the best candidate of the newest interval.

        `stopped`: communicator and number of the operation that does not end; None if there is none.
        `is_clear`: whether the job is clearly slow.
        """
        answer = self.answer
        same = next((other for other in ranked if answer is not None and _key(other) == _key(answer)), None)
        if answer is not None and self._is_kept(answer, best, same, stopped, end_ns, is_clear):
            if same is None and stopped is not None and stopped == self.stopped:
                return _after_repair(answer)
            self.answer = answer if same is None else same
            return self.answer
        self.answer, self._since_ns = best, {}
        self.stopped = stopped if best.decisive and best.verdict not in WITHOUT_PROOF else None
        return best

    def _is_kept(
        self,
        answer: Candidate,
        best: Candidate,
        same: Candidate | None,
        stopped: tuple[int, int] | None,
        end_ns: int,
        is_clear: bool,
    ) -> bool:
        """Return whether the former answer is kept although another candidate is the best now.

        `same`: the former answer as a candidate of the newest interval; None if it is no candidate now.
        `is_clear`: whether the job is clearly slow.
        """
        if _key(best) == _key(answer):
            return False
        is_stopped = stopped is not None and stopped == self.stopped and best.verdict not in CERTAIN
        if is_stopped or _is_same_queue(best, same):
            self._since_ns = {}
            return True
        if _replaces_at_once(best, answer, is_clear):
            return False
        rival = _key(best) if same is not None or best.verdict in WITHOUT_CAUSE else ANY_CAUSE
        rivals = {rival} if same is not None else {rival, NO_EVIDENCE}
        self._since_ns = {key: min(self._since_ns.get(key, end_ns), end_ns) for key in rivals}
        has_evidence = end_ns - self._since_ns.get(NO_EVIDENCE, end_ns) < GAP_NS
        return has_evidence and end_ns - self._since_ns[rival] < _needed_ns(best, same, is_clear)


def _needed_ns(best: Candidate, same: Candidate | None, is_clear: bool) -> int:
    """Return for how long, ns, `best` must be the best candidate to replace the former answer, `same`."""
    if best.verdict == Verdict.HEALTHY and same is not None and is_clear:
        return GAP_NS
    return NEEDED_NS.get(best.verdict, LASTING_NS)


def _replaces_at_once(best: Candidate, answer: Candidate, is_clear: bool) -> bool:
    if best.verdict == Verdict.UNKNOWN and answer.verdict == Verdict.HEALTHY:
        return is_clear
    is_cause = answer.verdict == Verdict.UNKNOWN and best.verdict != Verdict.HEALTHY
    had_none = is_cause or answer.verdict in (Verdict.HEALTHY, Verdict.STALLED)
    return best.decisive or had_none or _refines(best, answer)


def _refines(best: Candidate, answer: Candidate) -> bool:
    """Return whether `best` names the cause of the same fault: why a flow is slow, or that a link flaps."""
    if answer.verdict == Verdict.SLOW_FLOW:
        return bool(best.pairs & answer.pairs)
    return best.verdict == Verdict.FLAPPING_LINK and best.subject == answer.subject


def _is_same_queue(best: Candidate, same: Candidate | None) -> bool:
    """Return whether two likely answers are queues that delay the same pairs, or that the same jobs share."""
    if same is None or best.verdict != same.verdict or best.verdict not in QUEUED:
        return False
    is_likely = same.loss_share > 0 and best.confidence < same.confidence + LEAD
    return is_likely and bool(best.pairs & same.pairs or set(best.jobs) & set(same.jobs))


def _subjects(verdict: Candidate) -> set[Key]:
    return verdict.pairs or {_key(verdict)}


def _key(candidate: Candidate) -> Key:
    return candidate.verdict, candidate.subject


def _after_repair(answer: Candidate) -> Candidate:
    """Return an answer whose evidence is over, with the remark that the stopped operation still runs."""
    return replace(answer, text=f"{answer.text}; the operation that it stopped still runs")
