"""Time of the evidence: log time, less what passed at no host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.links.evidence.evidence_time import LATE_NS, WINDOW_NS, EvidenceTime

MS = 1_000_000
STEP_NS = 10 * MS


def test_a_late_agent_among_others_does_not_stop_time() -> None:
    time = EvidenceTime()
    for number in range(1, 200):
        time.note(number * STEP_NS, number * STEP_NS - (900 * MS if number % 3 == 0 else MS))
        assert time.of(number * STEP_NS) == number * STEP_NS


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.4, 1.0]), st.integers(0, 5000)), min_size=1, max_size=40))
def test_time_follows_the_hosts_and_returns_to_log_time(parts: list[tuple[float, int]]) -> None:
    time, log_ns, host_ns = EvidenceTime(), 0, 0
    for pace, stall_ms in parts:
        log_ns += stall_ms * MS
        for _ in range(50):
            log_ns += STEP_NS
            host_ns += round(pace * STEP_NS)
            time.note(log_ns, host_ns)
        slow = round((1 - pace) * (LATE_NS + WINDOW_NS))
        assert abs(time.of(log_ns) - host_ns) <= LATE_NS + slow
    for _ in range(2 * WINDOW_NS // STEP_NS):
        log_ns += STEP_NS
        time.note(log_ns, log_ns - MS)
    assert time.lost_ns == 0
    assert time.of(log_ns) == log_ns
