"""Flow: the pause between steering moves, and the delay above its minimum."""

from __future__ import annotations

from streams.policy.flows.flow import Flow
from streams.runtime.flow_table import LiveFlow
from streams.runtime.units import NS_PER_S


def live(flow_id: str = "h1/b/qp:eth1:1:1", rtt_ns: int | None = None) -> LiveFlow:
    return LiveFlow(flow_id, "h1/eth1", "h5/eth1", "job", None, 1e8, False, False, (), 100, rtt_ns, 4791)


def test_the_pause_doubles_with_each_recent_move_up_to_a_limit() -> None:
    flow = Flow(live())
    assert flow.cooldown_end_ns(NS_PER_S, 5 * NS_PER_S) == 0
    ends = []
    for second in range(5):
        flow.steered.append((second * NS_PER_S, ("a",)))
        ends.append(flow.cooldown_end_ns(NS_PER_S, 5 * NS_PER_S) // NS_PER_S - second)
    assert ends == [1, 2, 4, 5, 5]


def test_forgotten_moves_shorten_the_pause() -> None:
    flow = Flow(live())
    for second in range(3):
        flow.steered.append((second * NS_PER_S, ("a",)))
    flow.forget_steering(1 * NS_PER_S)
    assert [at_ns for at_ns, _ in flow.steered] == [2 * NS_PER_S]
    assert flow.cooldown_end_ns(NS_PER_S, 60 * NS_PER_S) == 3 * NS_PER_S


def test_a_flow_is_slow_from_the_first_report_above_its_minimum() -> None:
    flow = Flow(live())
    for now_ns, rtt_ns, since_ns in (
        (10, 1000, None),
        (20, 1500, None),
        (30, 1501, 30),
        (40, None, 30),
        (50, 9000, 30),
        (60, 1200, None),
        (70, 100, None),
        (80, 1000, 80),
    ):
        flow.live = live(rtt_ns=rtt_ns)
        flow.update_delay(now_ns, slow_ns=500)
        assert flow.slow_since_ns == since_ns, now_ns
    assert flow.min_rtt_ns == 100


def test_sockets_need_a_source_port_of_their_own_and_queue_pairs_do_not() -> None:
    assert Flow(live("h1/b/sock:77")).exclusive
    assert not Flow(live("h1/b/qp:eth1:1:1")).exclusive


def test_a_flow_is_grouped_by_nic_peer_and_job() -> None:
    flow = Flow(live())
    assert flow.host == "h1"
    assert flow.group == ("h1/eth1", "h5/eth1", "job")
    assert flow.ends == ("h1/eth1", "h5/eth1", 4791)
