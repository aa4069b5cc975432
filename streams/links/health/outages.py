"""Counts short outages of lossy links: pauses in which routing bypasses the link, or few probes cross it."""

from __future__ import annotations

from streams.links.health.subjects import Subject, SubjectTable
from streams.links.localise.lossy import LossyFaults
from streams.links.rules import PAUSE_LOSSES, WINDOW_PARTS


def count_outages(table: SubjectTable, s: Subject, faults: LossyFaults, now_ns: int) -> None:
    """Count a flap of a lossy subject if its losses resumed after a pause that is too long to be chance."""
    evidence = table.evidence
    for element, lossy in [
        (element, faults.by_element[element]) for element in s.grey if element in faults.by_element
    ]:
        resumed_ns, pause_ns = int(evidence.resumed_ns[element]), int(evidence.pause_ns[element])
        begin_ns = resumed_ns - pause_ns
        is_new = resumed_ns > s.counted_ns and begin_ns >= s.since_ns  # a pause of these losses
        is_new = is_new and evidence.time_jump_ns < begin_ns  # and not time that no probe lived through
        if not is_new or evidence.is_nic[element] or table.is_settled(s):
            continue
        requests = float(faults.requests[evidence.paths_over(element)].sum())
        windows = pause_ns / (evidence.bucket_ns * WINDOW_PARTS)
        if requests * windows * lossy.rate >= PAUSE_LOSSES:
            s.counted_ns = resumed_ns
            s.add_flap(resumed_ns + table.log_offset_ns)
            table.settle(s, now_ns, resumed_ns, s.detected_by)
