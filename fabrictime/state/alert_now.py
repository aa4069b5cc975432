"""The present state of an active alert's subject: whether it has recovered, and its present text.

An alert stays active for a while after its subject has recovered. The alert's own text is of the time when it
was raised, so readers of an active alert need both texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fabrictime.state.fabric_state import FabricState, is_cleared
from fabrictime.state.labels import verdict_label
from schemas.records import Alert, AlertKind, ContentionState, LinkState, Verdict

IN_TIME: Final = 1.05
"""A mean iteration of less than this multiple of the baseline is not slow: it costs less than the share of
the time from which on the diagnosis names a cause."""
JOB_KINDS: Final = frozenset({AlertKind.JOB_HANG, AlertKind.JOB_SLOW, AlertKind.JOB_STRAGGLER})
HANGS: Final = frozenset({Verdict.HANG, Verdict.STALLED, Verdict.DEAD_RANK, Verdict.PROGRAM_MISMATCH})
_HEALTH_KINDS: Final = frozenset(
    {
        AlertKind.LINK_DOWN,
        AlertKind.LINK_GREY,
        AlertKind.LINK_FLAPPING,
        AlertKind.NIC_DOWN,
        AlertKind.HOST_DOWN,
    }
)
_RENEWED_STATES: Final[Mapping[str, tuple[LinkState, ...]]] = {
    AlertKind.LINK_GREY: (LinkState.GREY,),
    AlertKind.LINK_FLAPPING: (LinkState.FLAPPING, LinkState.DOWN),
}
"""Maps kind of alert to the states of its link whose record has the newest figures about it."""


def is_slow(head: Mapping[str, Any]) -> bool:
    """Return whether a job has a fault: its verdict is not HEALTHY or UNKNOWN, and it hangs or is late."""
    verdict = head["verdict"]
    if verdict in (Verdict.HEALTHY, Verdict.UNKNOWN):
        return False
    return verdict in HANGS or not _is_in_time(head)


def has_recovered(state: FabricState, alert: Alert) -> bool:
    """Return whether the trouble that an active alert reports is over."""
    if alert["kind"] in _HEALTH_KINDS:
        return _is_up(state, alert)
    if alert["kind"] == AlertKind.CONTENTION:
        return _is_drained(state, alert)
    head = _head(state, alert)
    return head is not None and not (is_slow(head) and _is_about(alert["kind"], head))


def text_now(state: FabricState, alert: Alert) -> str:
    """Return an alert's present text: for a link with its newest loss or flaps, or the note that the link is
    UP; for a job with its newest verdict.
    """
    if is_cleared(alert):
        return alert["text"]
    if alert["kind"] in _HEALTH_KINDS and _is_up(state, alert):
        return f"now UP; before: {alert['text']}"
    if alert["grouped"]:
        return alert["text"]
    if alert["kind"] == AlertKind.CONTENTION and _is_drained(state, alert):
        return f"no queue persists now; before: {alert['text']}"
    subject = state.subjects.get(alert["subject"])
    if subject is not None and subject.record["state"] in _RENEWED_STATES.get(alert["kind"], ()):
        return subject.record["text"]
    head = _head(state, alert)
    return alert["text"] if head is None else _job_text(alert, head)


def _job_text(alert: Alert, head: Mapping[str, Any]) -> str:
    """Return the text of an alert about a job. `head` is the head of the job's newest known verdict."""
    if head["verdict"] == Verdict.HEALTHY:
        return f"its newest verdict is healthy; before: {alert['text']}"
    if not is_slow(head):
        return f"its iterations take the expected time again; before: {alert['text']}"
    if not _is_about(alert["kind"], head):
        return f"its newest verdict is {verdict_label(head['verdict'])}; before: {alert['text']}"
    return f"job {alert['subject']}: {head['verdict']}: {head['text']}"


def _is_up(state: FabricState, alert: Alert) -> bool:
    """Return whether all subjects of an alert are UP. Subjects without a known state do not count."""
    subjects = [state.subjects.get(name) for name in (alert["subject"], *alert["grouped"])]
    states = [subject.record["state"] for subject in subjects if subject is not None]
    return bool(states) and all(name == LinkState.UP for name in states)


def _is_drained(state: FabricState, alert: Alert) -> bool:
    """Return whether all contention windows of the queue in a contention alert are closed."""
    link = alert["subject"]
    states = [
        window["state"]
        for window in state.contention.values()
        if link == window["link"] or link in window["candidates"]
    ]
    return bool(states) and all(name == ContentionState.CLOSED for name in states)


def _is_in_time(head: Mapping[str, Any]) -> bool:
    iteration_ns, expected_ns = head["iteration_ns"], head["expected_iteration_ns"]
    return bool(iteration_ns and expected_ns and iteration_ns < IN_TIME * expected_ns)


def _head(state: FabricState, alert: Alert) -> Mapping[str, Any] | None:
    """Return the newest verdict about the job of an alert. Return None if the alert is not about a job, or if
    the verdict does not show the job's state.
    """
    job = state.jobs.jobs.get(alert["subject"]) if alert["kind"] in JOB_KINDS else None
    if job is None or (job.head["verdict"] == Verdict.UNKNOWN and not _is_in_time(job.head)):
        return None
    return job.head


def _is_about(kind: AlertKind, head: Mapping[str, Any]) -> bool:
    """Return whether a verdict is of the same kind as an alert about its job."""
    verdict = head["verdict"]
    if kind == AlertKind.JOB_SLOW:
        return head["blames_network"] and verdict not in HANGS
    return verdict in HANGS if kind == AlertKind.JOB_HANG else verdict == Verdict.STRAGGLER
