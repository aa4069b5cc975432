"""The packet simulation against queueing theory, conservation, and results counted by hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.sim import Dcqcn, PacketSim
from producers.sim.shape import Shape
from producers.sim.topology import Fleet, LinkKind
from tests.examples import examples

ONE = ([0, 1], [0])
"""One path over link 0."""
LINE = 10e9
PACKET_NS = 800.0
"""1,000 bytes at LINE."""


def path(*links):
    return [0, len(links)], list(links)


def copies(n, *links):
    """n paths over the same links."""
    return np.arange(n + 1) * len(links), np.tile(links, n)


def standard_error(values):
    return values.std() / np.sqrt(len(values))


# ---- queueing theory ----


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7, 0.85])
def test_mean_backlog_of_poisson_packets_is_pollaczek_khinchine(load):
    """M/D/1: mean work = load * service / (2 (1 - load)), by the exact sums and by Poisson probes."""
    sim = PacketSim(LINE, 500, 1e9, slot_ns=1_000_000, links=2)
    sim.add_poisson(ONE, load * LINE, 1000)
    sim.add_probes(ONE, path(1), 0, 1, 2, 20_000, packet_bytes=1)
    sim.run(3e9)
    truth, probes = sim.truth(), sim.probes()
    wanted = 1000 * load / (2 * (1 - load))
    depth = truth.depth_bytes[:, 0]  # slots of 1,250 packets' time are nearly independent
    assert truth.busy[:, 0].mean() == pytest.approx(load, abs=0.002)
    assert depth.mean() == pytest.approx(wanted, abs=4 * standard_error(depth))
    waited = probes.wait_ns * LINE / 8e9
    assert waited.mean() == pytest.approx(wanted, abs=4 * standard_error(waited))


def test_packets_of_two_sizes_queue_by_their_second_moment():
    """M/G/1: mean work = sum of rate * service^2 / (2 (1 - load))."""
    sim = PacketSim(LINE, 500, 1e9, slot_ns=1_000_000)
    sim.add_poisson(copies(2, 0), [1e9, 5e9], [100, 4_000])
    sim.run(3e9)
    depth = sim.truth().depth_bytes[:, 0]
    service = np.array([100, 4_000]) * 8 / LINE
    rate = np.array([1e9, 5e9]) / np.array([100, 4_000]) / 8
    wanted = (rate * service**2).sum() / (2 * (1 - 0.6)) * LINE / 8
    assert depth.mean() == pytest.approx(wanted, abs=4 * standard_error(depth))


def test_a_buffer_of_one_packet_drops_as_erlang_predicts():
    """M/D/1/1: the share lost is load / (1 + load), whatever the service's distribution."""
    sim = PacketSim(LINE, 500, 1000, slot_ns=1_000_000)
    sim.add_poisson(ONE, 0.8 * LINE, 1000)
    sim.run(1e9)
    flow, truth = sim.flows(), sim.truth()
    sent = flow.sent_bytes[0] / 1000
    wanted = 0.8 / 1.8
    assert flow.dropped[0] / sent == pytest.approx(wanted, abs=4 * np.sqrt(wanted * (1 - wanted) / sent))
    assert truth.drops.sum() == flow.dropped[0]
    assert truth.deepest_bytes.max() == 1000


def test_bursts_queue_as_batches_do():
    """M^X/D/1 with geometric batches of mean m: mean work = load * service * (2 m - 1) / (2 (1 - load)).

    A peak a thousand times the link's rate makes batches of bursts, many flows make their arrival Poisson.
    """
    sim = PacketSim(LINE, 500, 1e9, slot_ns=5_000_000)
    sim.add_bursty(copies(50, 0), 0.6 * LINE / 50, 1e13, burst_bytes=20_000)
    sim.run(4e9)
    truth = sim.truth()
    depth = truth.depth_bytes[2:, 0]
    assert truth.busy.mean() == pytest.approx(0.6, abs=0.01)
    assert depth.mean() == pytest.approx(1000 * 0.6 * (2 * 20 - 1) / (2 * 0.4), abs=4 * standard_error(depth))


def test_in_a_chain_of_equal_links_only_the_first_has_a_queue():
    sim = PacketSim(LINE, 500, 1e9, slot_ns=1_000_000, links=3)
    sim.add_poisson(path(0, 1, 2), 0.8 * LINE, 1000)
    sim.run(5e8)
    truth = sim.truth()
    assert truth.deepest_bytes[:, 0].max() > 10_000
    assert (truth.deepest_bytes[:, 1:] == 1000).all()
    # a packet in service has 500 bytes left on average
    assert truth.depth_bytes[:, 1:] == pytest.approx(truth.busy[:, 1:] * 500, rel=1e-3, abs=1)


def test_a_slower_link_behind_a_faster_one_queues_as_if_alone():
    """Packets that a fast link has hardly delayed arrive at the slow one nearly as Poisson."""
    sim = PacketSim([100e9, 10e9], 500, 1e9, slot_ns=1_000_000)
    sim.add_poisson(path(0, 1), 7e9, 1000)
    sim.run(2e9)
    depth = sim.truth().depth_bytes[:, 1]
    assert depth.mean() == pytest.approx(1000 * 0.7 / (2 * 0.3), rel=0.06)


# ---- counted by hand ----


def test_an_empty_network_delays_by_serialisation_and_wires_alone():
    sim = PacketSim([10e9, 40e9, 25e9, 100e9], [500, 700, 900, 1_100], 1e6)
    sim.add_probes(path(0, 1, 2), path(3, 1), 4, 5, 6, 10, packet_bytes=125)
    sim.run(1e10)
    probes = sim.probes()
    assert 60 < len(probes.t1_ns) < 140
    assert probes.forward_ns == pytest.approx(500 + 700 + 900 + 100 + 25 + 40, abs=1e-6)
    assert probes.reverse_ns == pytest.approx(1_100 + 700 + 10 + 25, abs=1e-6)
    assert not probes.wait_ns.any()
    assert not probes.turnaround_ns.any()
    assert (np.diff(probes.t1_ns) > 0).all()
    assert (set(probes.nic), set(probes.peer), set(probes.path)) == ({4}, {5}, {6})


def test_truth_of_one_burst_across_a_slots_end():
    """20 packets at once at 96 us: a triangle of 16 us across two slots."""
    sim = PacketSim(LINE, 500, 1e6, slot_ns=100_000)
    sim.add_messages(copies(20, 0), 1000, 1e13, at_ns=96_000)
    sim.run(300_000)
    truth = sim.truth()
    assert (truth.first_slot, truth.slot_ns) == (0, 100_000)
    assert truth.busy[:, 0] == pytest.approx([0.04, 0.12, 0])
    assert truth.deepest_bytes[:, 0] == pytest.approx([20_000, 15_000, 0])
    assert truth.depth_bytes[:, 0] == pytest.approx([0.04 * 17_500, 0.12 * 7_500, 0])
    assert truth.accepted_bytes[:, 0].tolist() == [20_000, 0, 0]
    assert sim.flows().done_ns == pytest.approx(96_000 + PACKET_NS * np.arange(1, 21) + 500)


def test_a_probe_behind_a_burst_waits_in_its_own_queue_and_on_its_path():
    sim = PacketSim([40e9, 10e9, 10e9], 0, 1e6)
    sim.add_messages(
        path(0, 1), 10_000, 1e13, at_ns=0
    )  # 10 packets: 200 ns each on the first link, 800 on the next
    sim.add_probes(path(0, 1), path(2), 0, 1, 2, 1e9, packet_bytes=100, start_ns=100, stop_ns=200)
    sim.run(1e6)
    probes = sim.probes()
    first = {name: getattr(probes, name)[0] for name in ("t1_ns", "wait_ns", "forward_ns", "reverse_ns")}
    assert first["t1_ns"] == 2_000
    assert 1_800 < first["wait_ns"] < 1_900
    assert first["forward_ns"] == 200 + 10 * 800 + 80 - 2_000
    assert first["reverse_ns"] == 80


def test_a_full_buffer_drops_the_tail():
    sim = PacketSim(LINE, 0, 5_500, slot_ns=1_000_000)
    sim.add_messages(copies(20, 0), 1000, 1e13, at_ns=0)
    sim.run(1_000)
    assert sim.flows().dropped_bytes.sum() >= 15_000  # five fit
    sim.run(1e6)
    flows, truth = sim.flows(), sim.truth()
    assert (flows.delivered_bytes[:20] == 1000).all()  # dropped packets were sent again
    assert truth.deepest_bytes.max() <= 5_500
    assert truth.drops.sum() == flows.dropped.sum()


def test_coded_pairs_leave_with_their_spacing():
    sim = PacketSim(LINE, 500, 1e6, links=2)
    sim.add_probes(ONE, path(1), 0, 1, 2, 2_000, spacing_ns=20_000)
    sim.run(1e9)
    t1 = sim.probes().t1_ns
    assert len(t1) == pytest.approx(2_000, abs=6 * np.sqrt(2_000))
    gaps = np.diff(t1)
    assert gaps[::2] == pytest.approx(20_000, abs=PACKET_NS)
    assert np.median(gaps[1::2]) == pytest.approx(np.log(2) * 980_000, rel=0.15)


def test_scheduled_probes_come_once_per_slot_within_its_first_part():
    sim = PacketSim(LINE, 500, 1e6, links=2)
    sim.add_probes(ONE, path(1), 0, 1, 2, 2_000, start_ns=3_000_000, jitter_ns=100_000)
    sim.run(1e9)
    late = sim.probes().t1_ns - 3_000_000 - np.arange(1_994) * 500_000
    assert (late > -PACKET_NS).all()
    assert (late <= 100_000 + PACKET_NS).all()
    assert late.mean() == pytest.approx(50_000, abs=5 * 29_000 / np.sqrt(1_994))
    pairs = PacketSim(LINE, 500, 1e6, links=2)
    pairs.add_probes(ONE, path(1), 0, 1, 2, 2_000, spacing_ns=20_000, start_ns=0, jitter_ns=0)
    pairs.run(1e8)
    assert np.diff(pairs.probes().t1_ns) == pytest.approx(np.resize([20_000, 980_000], 199), abs=PACKET_NS)


# ---- fairness, order, conservation ----


def test_two_flows_share_a_link():
    sim = PacketSim(LINE, 500, 100_000, links=3)
    sim.add_poisson(([0, 2, 4], [0, 2, 1, 2]), 0.9 * LINE)
    sim.run(2e8)
    flows, truth = sim.flows(), sim.truth()
    assert truth.busy[1:, 2] == pytest.approx(1, abs=1e-3)
    rates = flows.delivered_bytes * 8 / 0.2
    assert rates == pytest.approx(LINE / 2, rel=0.02)


def test_probes_of_one_path_never_overtake():
    sim = PacketSim(LINE, 500, 1e6, links=4)
    sim.add_bursty(([0, 2, 4], [0, 2, 1, 2]), 4e9, LINE, 30_000)
    sim.add_probes(copies(3, 0, 2), copies(3, 3), 0, 1, [0, 1, 2], 50_000)
    sim.run(1e8)
    probes = sim.probes()
    assert (np.diff(probes.t1_ns) > 0).all()
    assert (np.diff(probes.t1_ns + probes.forward_ns) > 0).all()
    back = np.argsort(probes.t1_ns + probes.forward_ns + probes.turnaround_ns)
    assert (
        np.diff((probes.t1_ns + probes.forward_ns + probes.turnaround_ns + probes.reverse_ns)[back]) > 0
    ).all()


@given(
    seed=st.integers(0, 2**64 - 1),
    links=st.integers(1, 6),
    flows=st.integers(1, 12),
    buffer_packets=st.integers(1, 40),
    until=st.lists(st.floats(0, 3e5), min_size=1, max_size=4),
    lossy=st.booleans(),
)
@settings(max_examples=examples(60))
def test_nothing_is_lost_unseen(seed, links, flows, buffer_packets, until, lossy):
    rng = np.random.default_rng(seed)
    sim = PacketSim(
        rng.uniform(1e9, 1e11, links),
        rng.integers(0, 2_000, links),
        buffer_packets * 1000,
        slot_ns=50_000,
        seed=seed,
        ecn=(2_000, 20_000, 0.2),
    )
    if lossy:
        sim.set_loss(range(links), rng.random(links) * 0.2)

    def some_paths(n):
        hops = rng.integers(1, 5, n)
        return np.concatenate([[0], np.cumsum(hops)]), rng.integers(0, links, hops.sum()), rng.random(n) < 0.9

    sizes = rng.integers(64, 1_500, flows)
    sim.add_poisson(some_paths(flows), rng.uniform(1e8, 2e10, flows), sizes)
    sim.add_bursty(some_paths(flows), 1e9, 2e10, 1e5, sizes, start_ns=rng.uniform(0, 1e5, flows))
    whole = rng.integers(1, 50_000, flows)
    sim.add_messages(some_paths(flows), whole, 1e10, rng.uniform(0, 1e5, flows), sizes, Dcqcn())
    sim.add_probes(some_paths(flows), some_paths(flows), 0, 1, 2, 1e6)
    asked, accepted, drops = 0, np.zeros(links), 0
    for end in np.cumsum(until):
        sim.run(end)
        state, in_flight = sim.flows(), sim.in_flight_bytes()
        assert state.sent_bytes.sum() == (state.delivered_bytes + state.dropped_bytes).sum() + in_flight[0]
        assert (state.delivered_bytes[-flows:] <= whole).all()
        assert (np.isfinite(state.done_ns[-flows:]) == (state.delivered_bytes[-flows:] == whole)).all()
        truth = sim.truth()
        assert truth.depth_bytes.shape == (int(end // 50_000) - asked, links)
        asked += len(truth.busy)
        accepted += truth.accepted_bytes.sum(axis=0)
        drops += truth.drops.sum()
        assert ((truth.busy >= 0) & (truth.busy <= 1 + 1e-6)).all()
        assert (truth.depth_bytes <= truth.deepest_bytes * (1 + 1e-6)).all()
        assert (truth.deepest_bytes <= buffer_packets * 1000 + 1).all()
        probes = sim.probes()
        known = np.isfinite(probes.reverse_ns)
        assert np.isfinite(probes.forward_ns[known]).all()
        assert (probes.forward_ns[known] > 0).all()


def test_same_seed_same_run_and_another_seed_another():
    def run(seed, steps):
        sim = PacketSim(LINE, 500, 20_000, slot_ns=100_000, seed=seed, links=3, ecn=(5_000, 15_000, 0.1))
        sim.add_poisson(path(0, 2), 4e9)
        sim.add_bursty(path(1, 2), 5e9, 1.1e10, 30_000)
        sim.add_messages(path(1, 2), 0, LINE, control=Dcqcn())
        sim.add_probes(path(0, 2), path(1), 0, 1, 2, 10_000)
        for until in steps:
            sim.run(until)
        probes, truth, flows = sim.probes(), sim.truth(), sim.flows()
        assert truth.drops.sum() > 0
        assert flows.marked.sum() > 0
        return [probes.t1_ns, probes.forward_ns, truth.depth_bytes, truth.drops, flows.marked, flows.rate_bps]

    one = run(1, [2e7])
    for a, b in zip(one, run(1, [3e6, 3.3e6, 2e7]), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one[2], run(2, [2e7])[2])


# ---- congestion ----


def test_incast_fills_the_receivers_link_and_no_other():
    fleet = Fleet(Shape.of(64, rate_bps=10_000_000_000))
    sim = PacketSim(fleet.rate_bps, fleet.delay_ns, 1e7, slot_ns=100_000)
    senders = np.arange(8, 24)
    sim.add_messages(fleet.paths(senders, 3, 50_000 + senders), 50_000, LINE, at_ns=10_000)
    sim.run(1e6)
    truth, flows = sim.truth(), sim.flows()
    last = fleet.kind == LinkKind.LEAF_DOWN
    # 16 x 50,000 bytes leave at 10 Gbit/s, so it takes 640 us
    assert np.nanmax(flows.done_ns) == pytest.approx(10_000 + 640_000, abs=10_000)
    assert np.argmax(truth.deepest_bytes.max(axis=0)) == 2 * 3 + 1
    assert 400_000 < truth.deepest_bytes[:, last].max() < 800_000
    assert truth.depth_bytes[:, last].sum() > 3 * truth.depth_bytes[:, ~last].sum()


def test_rate_control_shares_a_link_keeps_it_busy_and_its_queue_short():
    def run(control):
        sim = PacketSim([40e9] * 4 + [LINE], 1_000, 2e6, slot_ns=1_000_000, ecn=(20_000, 200_000, 0.1))
        sim.add_messages((np.arange(5) * 2, np.ravel([[i, 4] for i in range(4)])), 0, LINE, control=control)
        sim.run(1e8)
        sim.truth()
        before = sim.flows().delivered_bytes
        sim.run(3e8)
        return sim.truth(), (sim.flows().delivered_bytes - before) * 8 / 0.2

    free, _ = run(None)
    truth, rates = run(Dcqcn())
    assert free.drops.sum() > 0
    assert free.depth_bytes[:, 4].mean() > 1.9e6
    assert truth.drops.sum() == 0
    assert truth.busy[:, 4].mean() > 0.9
    assert truth.depth_bytes[:, 4].mean() < 150_000
    assert rates.sum() > 0.9 * LINE
    assert rates.sum() ** 2 / (4 * (rates**2).sum()) > 0.9  # Jain's index


def test_a_controlled_flow_returns_to_its_maximum_when_alone():
    sim = PacketSim([40e9, 40e9, LINE], 1_000, 2e6, ecn=(20_000, 200_000, 0.1))
    long = sim.add_messages(path(0, 2), 0, LINE, control=Dcqcn())
    sim.add_messages(path(1, 2), 20_000_000, LINE, at_ns=0, control=Dcqcn())
    sim.run(1.5e7)
    assert sim.flows().rate_bps[long[0]] < 0.8 * LINE
    sim.run(1e9)
    flows = sim.flows()
    assert flows.done_ns[1] < 1e9
    assert flows.rate_bps[long[0]] == pytest.approx(LINE, rel=0.01)


def test_marks_follow_the_backlog():
    def marked(load):
        sim = PacketSim(LINE, 500, 1e6, ecn=(5_000, 50_000, 0.2))
        sim.add_poisson(ONE, load * LINE)
        sim.run(1e8)
        flows = sim.flows()
        return flows.marked[0] * 1000 / flows.delivered_bytes[0]

    shares = [marked(load) for load in (0.3, 0.8, 0.95, 1.5)]
    assert shares[0] == 0
    assert shares[0] < shares[1] < shares[2] < 0.2
    assert shares[3] > 0.9


# ---- faults and decisions ----


def test_a_lossy_wire_loses_its_share_and_a_blackhole_all():
    sim = PacketSim(LINE, 500, 1e6, links=4)
    sim.add_probes(([0, 1, 2, 3], [0, 1, 2]), copies(3, 3), 0, 1, [0, 1, 2], 10_000)
    message = sim.add_messages(path(1), 1_000_000, 5e9)
    sim.set_loss([1, 2], [0.05, 1.0])
    sim.run(1e9)
    probes = sim.probes()
    lost = [np.isnan(probes.reverse_ns[probes.path == row]) for row in range(3)]
    assert [share.mean() for share in lost] == pytest.approx([0, 0.05, 1], abs=0.01)
    assert np.isnan(probes.forward_ns[probes.path == 2]).all()
    flows = sim.flows()
    assert flows.delivered_bytes[message[0]] == 1_000_000
    assert flows.sent_bytes[message[0]] == 1_000_000 + flows.dropped_bytes[message[0]]
    assert 20 < flows.dropped[message[0]] < 90
    sim.set_loss(2, 0)
    sim.run(1.1e9)
    healed = sim.probes()
    assert not np.isnan(healed.reverse_ns[healed.path == 2]).any()


def test_a_probe_lost_on_the_reverse_path_keeps_its_forward_delay():
    sim = PacketSim(LINE, 500, 1e6, links=2)
    sim.set_loss(1, 1)
    sim.add_probes(ONE, path(1), 0, 1, 2, 10_000)
    sim.run(1e7)
    probes = sim.probes()
    assert len(probes.t1_ns) > 50
    assert np.isfinite(probes.forward_ns).all()
    assert np.isnan(probes.reverse_ns).all()


def test_packets_without_a_route_are_lost_at_its_end():
    fleet = Fleet(Shape.of(64, rate_bps=10_000_000_000))
    living = np.ones(fleet.links, bool)
    living[2 * 5 + 1] = False
    sim = PacketSim(fleet.rate_bps, fleet.delay_ns, 1e6)
    sim.add_poisson(fleet.paths([0, 0], [5, 6], 50_000, living=living), 1e9)
    sim.run(1e7)
    flows = sim.flows()
    assert flows.delivered_bytes[0] == 0
    assert flows.dropped_bytes[0] == pytest.approx(1.25e6, rel=0.2)
    assert flows.dropped[1] == 0
    assert sim.truth().drops.sum() == 0  # no queue was full


def test_flows_move_and_slow_down_on_request():
    sim = PacketSim(LINE, 500, 1e6, slot_ns=1_000_000, links=2)
    flows = sim.add_messages(copies(2, 0), 0, 8e9)
    sim.run(1e7)
    assert sim.truth().busy[1:].mean(axis=0) == pytest.approx([1, 0], abs=1e-3)
    sim.move(flows[1], path(1))
    sim.set_rate(flows[0], 2e9)
    sim.run(2e7)
    assert sim.truth().busy[-3:].mean(axis=0) == pytest.approx([0.2, 0.8], abs=1e-3)


def test_a_link_that_serves_slower_queues():
    sim = PacketSim(LINE, 500, 1e6, slot_ns=1_000_000)
    sim.add_poisson(ONE, 5e9)
    sim.run(1e7)
    sim.set_link_rate(0, 4e9)
    sim.run(3e7)
    truth = sim.truth()
    busy, depth = truth.busy[:, 0], truth.depth_bytes[:, 0]
    assert busy[:10].mean() == pytest.approx(0.5, abs=0.02)
    assert busy[11:] == pytest.approx(1, abs=1e-3)
    assert depth[-1] > 0.9e6  # 20 ms at 1 Gbit/s too much: the buffer is full


# ---- the whole fleet ----


def test_probes_see_the_queues_that_they_cross():
    """Poisson observers: the mean wait in the first queue is its mean backlog.

    Behind it they are no longer Poisson, because a small packet catches up with the large one before it; but
    nearly.
    """
    fleet = Fleet(Shape.of(16, rate_bps=10_000_000_000), 2)
    rng = np.random.default_rng(2)
    sim = PacketSim(fleet.rate_bps, fleet.delay_ns, 1e7, slot_ns=1_000_000, seed=2)
    src = np.repeat(np.arange(16), 15)
    dst = (src + np.tile(np.arange(1, 16), 16)) % 16
    sim.add_bursty(fleet.paths(src, dst, rng.integers(1024, 65536, 240)), 6e9 / 15, 2 * LINE, 3_000)
    nic = np.repeat(np.arange(16), 20)
    peer = (nic + rng.integers(1, 16, 320)) % 16
    entropy = rng.integers(1024, 65536, 320)
    there, back = fleet.round_trips(nic, peer, entropy)
    sim.add_probes(there, back, nic, peer, entropy, 500)
    sim.run(2e8)
    probes, truth = sim.probes(), sim.truth()
    waits = truth.depth_bytes.mean(axis=0) * 8e9 / fleet.rate_bps
    for paths, own, delay in (
        (there, probes.wait_ns, probes.forward_ns),
        (back, probes.turnaround_ns, probes.reverse_ns),
    ):
        extra = own + delay - fleet.base_delay_ns(paths, 82)[probes.prober]
        assert extra.min() > -1e-3
        wanted = np.add.reduceat(waits[paths.link], paths.start[:-1])
        by_path = np.bincount(probes.prober, extra) / np.bincount(probes.prober)
        assert own.mean() == pytest.approx(
            waits[paths.link[paths.start[:-1]]][probes.prober].mean(), rel=0.05
        )
        assert extra.mean() == pytest.approx(wanted[probes.prober].mean(), rel=0.15)
        assert np.corrcoef(by_path, wanted)[0, 1] > 0.75


def test_probes_and_slots_are_returned_once():
    sim = PacketSim(LINE, 500, 1e6, slot_ns=1_000_000, links=2)
    sim.add_probes(ONE, path(1), 0, 1, 2, 100_000)
    whole, slots = [], []
    for until in (1.5e6, 1.6e6, 4e6, 4e6):
        sim.run(until)
        whole.append(sim.probes().t1_ns)
        slots.append((sim.truth().first_slot, sim.now_ns))
    t1 = np.concatenate(whole)
    assert (np.diff(t1) > 0).all()
    assert [first for first, _ in slots] == [0, 1, 1, 4]
    assert len(t1) > 300


def test_runs_beside_other_threads_and_excludes_concurrent_calls():
    sim = PacketSim(LINE, 500, 1e6)
    sim.add_poisson(ONE, 6e9)
    seen = threading.Event()

    def go():
        while not seen.is_set():
            sim.run(sim.now_ns + 2e7)

    runner = threading.Thread(target=go)
    runner.start()
    try:
        refused = None
        while runner.is_alive() and refused is None:
            try:
                sim.in_flight_bytes()
            except RuntimeError as error:
                refused = str(error)
    finally:
        seen.set()
        runner.join()
    assert refused == "the simulation runs in another thread: expected one caller at a time"
    assert sim.flows().delivered_bytes[0] > 0


# ---- validation ----


def fresh(**kwargs):
    return PacketSim(**{"rate_bps": LINE, "delay_ns": 500, "buffer_bytes": 1e6, "links": 3} | kwargs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fresh(rate_bps=0), "rate_bps 0: expected 100000 to 1e\\+13"),
        (lambda: fresh(rate_bps=[1e9, 1e9]), r"rate_bps: shape \(2,\), expected \(3,\) or a scalar"),
        (lambda: fresh(delay_ns=float("nan")), "delay_ns nan: expected 0"),
        (lambda: fresh(buffer_bytes=1e12, rate_bps=1e9), "link 0: a full buffer takes 8000 s"),
        (lambda: fresh(slot_ns=0), "slot_ns 0: expected 1 to"),
        (lambda: fresh(ecn=(5, 5, 0.1)), r"ecn \(5, 5, 0.1\): expected"),
        (lambda: fresh(links=0), "0 links: expected 1"),
        (lambda: fresh().add_poisson(path(3), 1e9), "link 3: expected 0 to 2"),
        (lambda: fresh().add_poisson(path(), 1e9), "path 0: no link"),
        (lambda: fresh().add_poisson([0], 1e9), "paths: expected"),
        (lambda: fresh().add_poisson(([0, 2], [1]), 1e9), "paths: starts must rise from 0 to 1"),
        (lambda: fresh().add_poisson(ONE, -1), "rate_bps -1: expected"),
        (lambda: fresh().add_poisson(ONE, 1e9, 70_000), "packet_bytes 70000: expected 1 to 65535"),
        (lambda: fresh().add_poisson(ONE, 1e9, 1.5), "packet_bytes 1.5: expected a whole number"),
        (lambda: fresh().add_bursty(ONE, 1e9, 1e9, 1e4), "peak_bps 1e\\+09: expected above rate_bps"),
        (lambda: fresh().add_bursty(ONE, 1e9, 2e9, 10), "burst_bytes 10: expected at least packet_bytes"),
        (lambda: fresh().add_messages(ONE, -5, 1e9), "size_bytes -5: expected"),
        (lambda: fresh().add_messages(ONE, 5, 1e9, control=Dcqcn(g=2)), "control: g 2, expected 0 to 1"),
        (lambda: fresh().add_probes(ONE, copies(2, 0), 0, 1, 2, 1), "reverse: 2 paths, expected 1 as in"),
        (lambda: fresh().add_probes(ONE, ONE, 0, 1, 2, 1e5, spacing_ns=20_000), "spacing_ns 20000: expected"),
        (
            lambda: fresh().add_probes(ONE, ONE, 0, 1, 2, 1e5, jitter_ns=10_000),
            "jitter_ns 10000: expected below",
        ),
        (lambda: fresh().set_loss(7, 0.1), "link 7: expected 0 to 2"),
        (lambda: fresh().set_loss(0, 1.1), "share 1.1: expected 0 to 1"),
        (lambda: fresh().move(0, ONE), "flow 0: expected 0 to -1"),
        (lambda: fresh().run(-1), "until_ns -1: expected 0 "),
        (lambda: fresh(slot_ns=1).run(1e13), "until_ns 10000000000000.0: 10000000000000 slots of 3 links"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_times_before_now_are_refused():
    sim = fresh()
    sim.run(1e6)
    with pytest.raises(ValueError, match=r"^start_ns 0: expected 1e\+06"):
        sim.add_poisson(ONE, 1e9, start_ns=0)
    with pytest.raises(ValueError, match=r"^until_ns 10: expected 1000000 \(now\)"):
        sim.run(10)
    sim.add_poisson(ONE, 1e9)  # from now on
    sim.run(2e6)
    assert sim.flows().start_ns == [1e6]
