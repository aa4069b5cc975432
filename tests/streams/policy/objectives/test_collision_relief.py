"""Collision relief: flows leave overloaded links inside the fabric."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from streams.policy.inputs import PolicyInputs
from tests.streams.policy.closed_loop import Loop, open_colliding
from tests.streams.policy.log_fabric import EPOCH, HOSTS, PARTITIONS, Log, leaf, links_of
from tests.streams.policy.small_fabric import RATE, World


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_fewest_moves_clear_a_collision_and_cause_no_other(count: int) -> None:
    loop = Loop()
    for n in range(6, 16):
        loop.open(n, 47 + n, loop.port_over(n, 47 + n, loop.link(f"leaf{1 + n // 8}", "spine2")), 1e10)
    flows = open_colliding(loop, count)
    loop.advance(2)
    assert len({d["flow_id"] for d in loop.decisions}) == len(loop.decisions) == count - 1
    assert {d["flow_id"] for d in loop.decisions} < {flow.flow_id for flow in flows}, "only heavy flows move"
    assert {d["reason"]["kind"] for d in loop.decisions} == {"COLLISION"}
    assert dict(loop.contention_opened) == {loop.link("leaf1", "spine1"): 1}
    loop.advance(5)
    assert loop.run.contention() == []
    live = loop.live_flows()
    assert [live[flow.flow_id].rate_bps for flow in flows] == pytest.approx([4e11] * count, rel=0.01)
    assert len(loop.decisions) == count - 1


def test_no_flow_moves_if_no_path_has_capacity():
    w = World(16, max_moved_share=1.0)
    w.paths = {name: 100 + n // 2 for n, name in enumerate(w.paths)}
    w.rate_bps = dict.fromkeys(w.paths, 9e8)
    for _ in range(300):
        w.decide()
    link = "leaf1:u1>spine1:p1"
    assert len(w.crossing(link)) > 1
    w.window(link, opened_ns=w.now_ns)
    assert w.decide() == []
    assert {h.cause for h in w.suppressed} == {"NO_BETTER_PATH"}


def test_an_incast_moves_no_flow():
    w = World(8, max_moved_share=1.0)
    w.rate_bps = dict.fromkeys(w.paths, 9e8)
    w.window("leaf2:p5>h5:eth1", kind="INCAST")
    for _ in range(20):
        assert w.decide() == []


def test_connections_of_a_collective_spread_over_the_spines_and_stay() -> None:
    """An all-to-all sends to one peer at a time over four connections.

    Its mean rates are even long before its steps are.
    """
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    log.rate_bps, log.mean_bps = RATE / 8, RATE / 28
    rng = random.Random(5)
    pairs = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if leaf(a) != leaf(b)]
    for a, b in pairs:
        for port in rng.sample(range(6000, 6016), 4):
            log.open(a, b, port)

    def met() -> dict[str, float]:
        """Return link to the highest load of any step, as a share of its rate."""
        of_source: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        for name, port in log.ports.items():
            source, peer = log.ends_of[name]
            for link in links_of(source, peer, port % 4)[1:-1]:
                of_source[link, source][peer] += 1
        found: dict[str, float] = defaultdict(float)
        for (link, _), peers in of_source.items():
            found[link] += max(peers.values()) / 4
        return found

    began = max(met().values())
    assert began > 1.4, "otherwise the test shows nothing"
    opened: dict[str, int] = {}
    for step in range(150):
        if step % 5 == 0:
            log.report()
        for link, load in met().items():
            if load > 1.2 or link in opened:
                state = "UPDATED" if load > 1.2 else "CLOSED"
                log.window(link, state, opened.setdefault(link, log.now_ns), step)
                if state == "CLOSED":
                    del opened[link]
        log.run_cycles(inputs)
    assert max(met().values()) <= 1.25
    assert len(log.decisions) < 0.6 * len(log.ports)
    assert len({decision["flow_id"] for decision, _ in log.decisions}) >= 0.8 * len(log.decisions)
    rested = len(log.decisions)
    for step in range(150, 250):
        if step % 5 == 0:
            log.report()
        log.run_cycles(inputs)
    assert len(log.decisions) == rested
