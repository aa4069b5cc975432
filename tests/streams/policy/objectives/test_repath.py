"""Repath: flows on untraced paths try another one."""

from __future__ import annotations

from itertools import pairwise

from tests.streams.policy.small_fabric import S, World


def test_a_flow_on_an_untraced_path_tries_another_after_sustained_delay_and_then_cools_down():
    w = World(4, routes=False, hops=False, max_moved_share=1.0)
    for _ in range(50):
        assert w.decide() == []
    slow = sorted(w.paths)[0]
    w.rtt_ns[slow] = 900_000
    for _ in range(90):
        assert w.decide() == [], "a short delay does not count"
    for _ in range(1400):
        w.decide()
    assert {(d["flow_id"], d["reason"]["kind"]) for d in w.decisions} == {(slow, "DELAY")}
    gaps_s = [(b["at_ns"] - a["at_ns"]) / S for a, b in pairwise(w.decisions)]
    assert gaps_s[0] >= 5
    assert all(b >= 2 * a - 0.1 for a, b in pairwise(gaps_s))
    assert all(49_152 <= d["to_path"] <= 65_535 for d in w.decisions)
