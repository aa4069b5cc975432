"""The fluid simulation against exact results: M/D/1, max-min fairness, conservation, its own sums."""

from __future__ import annotations

import numpy as np
import pytest

from fabrictime.bench._truth import LeafSpine, LinkQueueing, Traffic
from fabrictime.bench._truth.traffic import PACKET_BYTES
from native.core import decode_probe_batch
from native.sim.fluid import Fluid, packet_waits
from producers.sim.shape import Shape
from producers.sim.topology import Fleet

RATE = 400_000_000_000
MS = 1e6


def fluid_of(fleet, **more):
    return Fluid(
        **{
            "rate_bps": fleet.rate_bps,
            "delay_ns": fleet.delay_ns,
            "buffer_bytes": fleet.buffer_bytes,
            "kind": fleet.kind,
            "nics": fleet.nics,
            "rate_pps": 0,
            **more,
        }
    )


def funnel(senders, **more):
    """`senders` NICs with a link each, and one shared link to NIC `senders`."""
    links = senders + 1
    return Fluid(
        **{
            "rate_bps": np.full(links, RATE),
            "delay_ns": np.full(links, 600),
            "buffer_bytes": np.full(links, 1_000_000),
            "kind": [0] * senders + [1],
            "nics": senders + 1,
            "rate_pps": 0,
            **more,
        }
    )


def line_of(fluid, count):
    """A flow from each of the funnel's NICs."""
    flows = [fluid.add_flow(nic, RATE) for nic in range(count)]
    for nic, flow in enumerate(flows):
        fluid.set_flow_path(flow, [nic, count])
    return flows


def water_filling(routes, capacity):
    """Exact max-min shares (Bertsekas and Gallager): fill all evenly, freeze the flows of each full link."""
    rate, free = np.zeros(len(routes)), dict(enumerate(capacity))
    growing = set(range(len(routes)))
    while growing:
        users = {link: [f for f in growing if link in routes[f]] for link in free}
        step = min(free[link] / len(flows) for link, flows in users.items() if flows)
        for link, flows in users.items():
            free[link] -= step * len(flows)
        for f in growing:
            rate[f] += step
        full = {link for link, flows in users.items() if flows and free[link] < 1e-6 * capacity[link]}
        growing -= {f for f in growing if full & set(routes[f])}
    return rate


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 0.95])
def test_packet_scale_queue_has_the_law_of_md1(load):
    """Mean and second moment by Pollaczek and Khinchine, and the share of empty finds; S = 1000 ns."""
    service = 1000.0
    waits = packet_waits(load, service, 1e9, 400_000, seed=3)
    mean = load * service / (2 * (1 - load))
    second = 2 * mean**2 + load * service**2 / (3 * (1 - load))
    assert waits.mean() == pytest.approx(mean, rel=0.03)
    assert (waits**2).mean() == pytest.approx(second, rel=0.06)
    assert (waits == 0).mean() == pytest.approx(1 - load, abs=0.005)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_packet_scale_queue_is_that_of_single_packets(load):
    """Waits behind Poisson packets of one size, by Lindley's recursion: the same quantiles."""
    fabric = LeafSpine(nics=2, leaves=1, spines=1)
    traffic = Traffic(load=(load, load), idle=0, batch_packets=1, swing=0, incast_every_ns=0)
    rng = np.random.default_rng(5)
    queues, waits = LinkQueueing(fabric, traffic, rng), []
    for stretch in range(6):
        queues.advance((stretch + 1) * 200e6)
        at = rng.uniform(queues.begin_ns, queues.end_ns, 40_000)
        waits.append(queues.wait_ns(rng.integers(0, fabric.links, len(at)), at))
    waited = np.concatenate(waits)
    ours = packet_waits(load, PACKET_BYTES * 8e9 / fabric.rate_bps, 1e9, 200_000, seed=2)
    assert waited.mean() == pytest.approx(ours.mean(), rel=0.06)
    for share in (0.5, 0.9, 0.99):
        scale = max(np.quantile(ours, share), 200.0)
        assert abs(np.quantile(waited, share) - np.quantile(ours, share)) < 0.08 * scale


@pytest.mark.parametrize("load", [0.5, 0.9])
def test_packet_scale_queue_decorrelates_like_a_real_one(load):
    """Integral of the autocorrelation, against an M/D/1 by Lindley's recursion, within a factor of 1.6."""
    rng = np.random.default_rng(4)
    n = 1 << 18
    gaps = rng.exponential(1 / load, n)
    increments = 1.0 - gaps
    path = np.concatenate([[0.0], np.cumsum(increments)])[:-1]
    work = path - np.minimum.accumulate(path)  # what each arrival finds
    grid = 0.25
    at = np.cumsum(gaps)
    times = at[0] + grid * np.arange(1 << 19)
    last = np.searchsorted(at, times, "right") - 1
    sampled = np.maximum(work[last] + 1.0 - (times - at[last]), 0.0)

    def integral(values, step, lags):
        x = values - values.mean()
        spectrum = np.abs(np.fft.rfft(x, 2 * len(x))) ** 2
        covariance = np.fft.irfft(spectrum)[:lags] / len(x)
        return step * (covariance.sum() / covariance[0] - 0.5)

    span = 10 * load / (1 - load) ** 2 + 5
    real = integral(sampled, grid, int(span / grid))
    ours = integral(packet_waits(load, 1.0, grid, len(times), seed=6), grid, int(span / grid))
    assert real / 1.6 < ours < real * 1.6


def test_probes_meet_the_queue_that_the_load_makes():
    """Base load 0.8 on the shared link alone: mean delay above the path's own is M/D/1's."""
    fleet = Fleet(Shape.of(8))
    fluid = fluid_of(fleet, rate_pps=20_000, spacing_ns=0, seed=3)
    there, back = fleet.round_trips([0], [7], [9320])
    fluid.set_groups([0], [7], [9320])
    fluid.set_legs(there.start, there.link, there.reached, back.start, back.link, back.reached)
    fluid.set_nic_name(0, "a/0")
    fluid.set_nic_name(7, "b/0")
    slow = int(there.link[1])
    fluid.set_link(slow, base_load=0.8)
    fluid.advance(2_000 * MS)
    columns = decode_probe_batch(fluid.flush(0, 1, 0)[0])
    service = 4170 * 8e9 / fleet.rate_bps[slow]
    extra = columns.forward - fleet.base_delay_ns(there, 128)[0]
    assert extra.mean() == pytest.approx(0.8 * service / (2 * 0.2), rel=0.05)
    assert np.abs(columns.reverse - fleet.base_delay_ns(back, 128)[0]).max() <= 1.5  # timestamps are whole ns
    sums = fluid.link_sums()
    assert sums[2][slow] / fluid.steps == pytest.approx(0.8, rel=1e-3)
    assert sums[1][slow] / fluid.steps == pytest.approx(4170 * 0.8 / 0.4, rel=1e-3)


@pytest.mark.parametrize("senders", [1, 2, 4, 16])
def test_flows_of_one_link_share_it_evenly_and_fill_it(senders):
    fluid = funnel(senders)
    for flow in line_of(fluid, senders):
        fluid.send(flow)
    fluid.advance(100 * MS)
    before = fluid.flow_sums()[0][:, 0]
    fluid.advance(1_100 * MS)
    rates = (fluid.flow_sums()[0][:, 0] - before) * 8
    assert rates.sum() == pytest.approx(RATE, rel=0.02)
    assert rates == pytest.approx(np.full(senders, RATE / senders), rel=0.1)


def test_rates_of_many_flows_come_to_max_min_fairness():
    """40 long flows over a fabric of 16 NICs, each by its own hash: mean rates, and exact water-filling."""
    fleet = Fleet(Shape.of(16), 2)
    fluid = fluid_of(fleet, seed=2)
    rng = np.random.default_rng(5)
    src = np.arange(40) % 16
    dst = (src + rng.integers(1, 16, 40)) % 16
    paths = fleet.paths(src, dst, rng.integers(49_152, 65_536, 40), 4791)
    for f in range(40):
        number = fluid.add_flow(int(src[f]), RATE)
        fluid.set_flow_path(number, paths.of(f))
        fluid.send(number)
    fluid.advance(200 * MS)
    before = fluid.flow_sums()[0][:, 0]
    fluid.advance(1_200 * MS)
    got = (fluid.flow_sums()[0][:, 0] - before) * 8
    fair = water_filling([paths.of(f).tolist() for f in range(40)], fleet.rate_bps.tolist())
    assert got.sum() == pytest.approx(fair.sum(), rel=0.08)
    error = np.abs(got / fair - 1)
    assert (
        error.mean() < 0.15
    )  # flows with several full links get less than their share, as with DCQCN itself
    assert (error < 0.25).mean() >= 0.85


def test_demand_and_limits_hold_and_the_rest_goes_to_the_others():
    fluid = funnel(3)
    modest, paced, greedy = line_of(fluid, 3)
    fluid.set_flow_limits(modest, demand_bps=4e10)
    fluid.set_flow_limits(paced, limit_bps=6e10)
    for flow in (modest, paced, greedy):
        fluid.send(flow)
    fluid.advance(100 * MS)
    before = fluid.flow_sums()[0][:, 0]
    fluid.advance(600 * MS)
    rates = (fluid.flow_sums()[0][:, 0] - before) * 16
    assert rates == pytest.approx([4e10, 6e10, 3e11], rel=0.03)


def test_every_byte_is_sent_once_and_arrives():
    """Finite flows through a shared link: the link carries exactly their data; then all is idle."""
    fluid = funnel(5)
    sizes = [1e6, 5e6, 2.5e7, 3e7, 1e8]
    for flow, size in zip(line_of(fluid, 5), sizes, strict=True):
        fluid.send(flow, size)
    fluid.advance(20 * MS)
    sums, active = fluid.flow_sums()
    assert sums[:, 0] == pytest.approx(sizes, abs=1)
    assert not active.any()
    assert fluid.working == (0, 0)
    assert fluid.link_sums()[3][5] == pytest.approx(sum(sizes), abs=1)
    assert fluid.link_sums()[5].max() == 0


def test_bytes_beyond_a_buffer_are_sent_again_in_a_lossy_fabric():
    without_loss, dropping = funnel(8, lossless=True), funnel(8, lossless=False)
    for fluid in (without_loss, dropping):
        for flow in line_of(fluid, 8):
            fluid.send(flow, 2e7)
        fluid.advance(60 * MS)
        assert fluid.flow_sums()[0][:, 0] == pytest.approx(np.full(8, 2e7), abs=1)
    assert without_loss.flow_sums()[0][:, 1].sum() == 0
    assert dropping.flow_sums()[0][:, 1].sum() > 1e5
    assert without_loss.link_max()[8] == pytest.approx(1_000_000)


def test_quiet_flows_are_counted_as_if_each_step_were_computed():
    """Half of the load is steady and not computed; a colliding flow wakes it; sums stay exact."""
    fluid = funnel(4)
    flows = line_of(fluid, 4)
    for flow in flows[:3]:
        fluid.set_flow_limits(flow, demand_bps=1e11)
        fluid.send(flow)
    fluid.advance(50 * MS)
    assert fluid.working == (0, 0)
    sums = fluid.flow_sums()[0]
    assert sums[:3, 0] == pytest.approx(np.full(3, 1e11 / 8 * 0.05), rel=1e-9)
    assert sums[:3, 2] == pytest.approx(np.full(3, fluid.steps))
    assert fluid.link_sums()[2][4] / fluid.steps == pytest.approx(0.75)
    fluid.send(flows[3])
    fluid.advance(100 * MS)
    assert fluid.working[0] == 4
    fluid.send(flows[3], 0)
    fluid.advance(200 * MS)
    assert fluid.working == (0, 0)
    assert fluid.link_sums()[3][4] == pytest.approx(fluid.flow_sums()[0][:, 0].sum(), rel=1e-9)


def test_a_standing_queue_delays_probes_by_its_depth():
    """A slow receiver: the queue at its leaf equals the wait of probes through it."""
    fluid = funnel(2, rate_pps=5_000, spacing_ns=0, seed=3)
    for nic in range(3):
        fluid.set_nic_name(nic, f"n/{nic}")
    fluid.set_groups([0], [2], [1])
    fluid.set_legs([0, 2], [0, 2], [True], [0, 1], [1], [True])
    fluid.set_link(2, share=0.1)
    for flow in line_of(fluid, 2):
        fluid.send(flow)
    fluid.advance(50 * MS)
    fluid.flush(0, 1, 0)
    depth0, steps0 = fluid.link_sums()[0][2], fluid.steps
    fluid.advance(1_050 * MS)
    columns = decode_probe_batch(fluid.flush(0, 1, 1)[0])
    mean_bytes = (fluid.link_sums()[0][2] - depth0) / (fluid.steps - steps0)
    assert mean_bytes > 100_000
    packet_ns = 0.95 / (2 * 0.05) * 4170 * 8e9 / (RATE * 0.1)
    own_ns = 2 * (600 + 128 * 8e9 / RATE)
    waited = columns.forward.mean() - own_ns - packet_ns
    assert waited == pytest.approx(mean_bytes * 8e9 / (RATE * 0.1), rel=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: funnel(2, step_ns=10), "step_ns 10: expected 1,000 to 100,000,000"),
        (lambda: funnel(2, mark_begin=0.5), "mark_begin 0.5, mark_full 0.4"),
        (lambda: funnel(2, kind=[0, 0, 9]), "rate_bps, buffer_bytes, kind"),
        (lambda: funnel(2).set_nic(3), "NIC 3: expected 0 to 2"),
        (lambda: funnel(2).send(0), "flow 0: expected 0 to -1"),
        (lambda: funnel(2).set_link(3), "link 3: expected 0 to 2"),
        (lambda: funnel(2).set_link(0, loss=2), "link 0: loss 2"),
        (lambda: funnel(2).set_groups([1, 0], [0, 1], [1, 1]), "groups: expected NICs 0 to 2 in"),
        (lambda: funnel(2).add_job([]), "job: expected at least one phase"),
        (lambda: packet_waits(1.0, 1, 1, 1), "load 1.0, count 1"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def fork(routes, **more):
    """One NIC with a link of its own and then `routes` parallel links, each of which leads to NIC 1."""
    return Fluid(
        **{
            "rate_bps": np.full(routes + 2, RATE),
            "delay_ns": np.full(routes + 2, 600),
            "buffer_bytes": np.full(routes + 2, 1_000_000),
            "kind": [0, *[2] * routes, 1],
            "nics": 2,
            "rate_pps": 0,
            **more,
        }
    )


def used(fluid, before):
    """The parallel links of a fork that carried bytes since `before`."""
    return np.flatnonzero(fluid.link_sums()[3] - before > 1)


def test_each_flowlet_takes_any_route_and_stays_on_it():
    fluid = fork(8, flowlet_ns=500_000, step_ns=100_000)
    flow = fluid.add_flow(0, RATE)
    fluid.set_flow_path(flow, [0, 1, 9])
    fluid.set_flow_routes(flow, [[0, 1 + route, 9] for route in range(8)])
    taken = []
    for _ in range(200):
        before = fluid.link_sums()[3].copy()
        fluid.send(flow, 20e6)  # four steps at line rate: no gaps
        fluid.advance(fluid.now_ns + 2 * MS)
        (inner,) = [link for link in used(fluid, before) if 1 <= link <= 8]
        taken.append(inner)
    counts = np.bincount(taken, minlength=10)[1:9]
    assert counts.min() >= 8, "an eighth of 200 each, five standard deviations below"
    assert counts.max() <= 48


def test_messages_that_follow_closely_are_one_flowlet():
    fluid = fork(8, flowlet_ns=1_000_000, step_ns=100_000)
    flow = fluid.add_flow(0, RATE)
    fluid.set_flow_path(flow, [0, 1, 9])
    fluid.set_flow_routes(flow, [[0, 1 + route, 9] for route in range(8)])
    before = fluid.link_sums()[3].copy()
    for _ in range(50):
        fluid.send(flow, 10e6)
        fluid.advance(fluid.now_ns + 0.5 * MS)
    assert len([link for link in used(fluid, before) if 1 <= link <= 8]) == 1


def test_without_flowlets_a_flow_keeps_its_route():
    fluid = fork(4)
    flow = fluid.add_flow(0, RATE)
    fluid.set_flow_path(flow, [0, 2, 5])
    fluid.set_flow_routes(flow, [[0, 1 + route, 5] for route in range(4)])
    for _ in range(20):
        fluid.send(flow, 1e6)
        fluid.advance(fluid.now_ns + 5 * MS)
    assert used(fluid, 0).tolist() == [0, 2, 5]


def test_a_step_begins_for_two_ends_once_both_have_done_the_one_before():
    """Four ranks in a line with their own links: 0 and 1 are quick, 2 and 3 take ten times as long. The
    second step of 0 with 1 does not wait for them; the one of 1 with 2 does.
    """
    links = 6
    fluid = Fluid(
        rate_bps=np.full(links, RATE),
        delay_ns=np.full(links, 600),
        buffer_bytes=np.full(links, 1_000_000),
        kind=[0] * links,
        nics=links,
        rate_pps=0,
    )
    flows = [fluid.add_flow(nic, RATE) for nic in range(links)]
    for nic, flow in enumerate(flows):
        fluid.set_flow_path(flow, [nic])
    quick, slow = 5e6, 50e6  # 0.1 and 1 ms
    phases = [([0, 1], [quick, slow]), ([2, 3], [quick, quick]), ([4, 5], [quick, quick])]
    ends = [[(0, 1), (2, 3)], [(0, 1), (2, 3)], [(1, 2), (0, 3)]]
    fluid.add_job(phases, gap_ns=1e9, ends=ends)
    done = {}
    while len(done) < links and fluid.now_ns < 10 * MS:
        fluid.advance(fluid.now_ns + 0.1 * MS)
        sums, active = fluid.flow_sums()
        for flow in range(links):
            if sums[flow, 0] > 0 and not active[flow]:
                done.setdefault(flow, fluid.now_ns)
    assert done[2] < done[1], "0 and 1 go on while 2 and 3 are in their first step"
    assert done[4] > done[3] > done[1]
    assert done[5] > done[3]
    assert len(fluid.iterations()) == 1


def test_ends_must_be_of_all_flows():
    fluid = funnel(2)
    flows = line_of(fluid, 2)
    with pytest.raises(ValueError, match="1 ends, expected 2"):
        fluid.add_job([(flows, 1e6)], ends=[[(0, 1)]])
    with pytest.raises(ValueError, match="expected 1 to 6 links"):
        fluid.set_flow_routes(flows[0], [[0, 99]])


def test_times_of_a_traced_job_follow_its_phases_and_its_gap():
    fluid = funnel(2)
    flows = line_of(fluid, 2)
    job = fluid.add_job([(flows[:1], 5e6), (flows[1:], 5e6)], gap_ns=2 * MS)
    with pytest.raises(ValueError, match="expected a traced one"):
        fluid.job_times(job)
    fluid.trace_job(job)
    assert fluid.job_times(job)[1] < 0, "it waits for its begin"
    fluid.advance(0.1 * MS)
    number, begin, times = fluid.job_times(job)
    assert (number, begin >= 0, times[0, 0], times[1].tolist()) == (0, True, begin, [-1, -1])
    fluid.advance(5 * MS)
    (_, _, began, end, ended), *_ = fluid.iterations()
    assert began == ended[0, 0]
    assert ended[1, 0] == ended[0, 1]
    assert ended[1, 1] == end
    fluid.set_job_gap(job, float("inf"))
    fluid.advance(100 * MS)
    fluid.iterations()
    fluid.advance(200 * MS)
    assert not fluid.iterations()
    assert fluid.job_times(job)[1] < 0
    fluid.set_job_gap(job, 2 * MS)
    fluid.advance(205 * MS)
    assert fluid.job_times(job)[1] >= 200 * MS or fluid.iterations()


def test_a_senders_line_limits_its_flow_and_cuts_are_counted():
    fluid = funnel(2)
    first, second = line_of(fluid, 2)
    fluid.set_flow_line(first, RATE / 10)
    fluid.send(first)
    fluid.advance(10 * MS)
    sums = fluid.flow_sums_of(first)
    assert sums[0] * 8e9 / (10 * MS) == pytest.approx(RATE / 10, rel=0.02)
    assert sums[3] == 0
    assert fluid.flow_cuts().tolist() == [0, 0]
    fluid.set_flow_line(first, RATE)
    fluid.send(second)
    fluid.advance(100 * MS)
    assert (fluid.flow_cuts() > 0).all()
    with pytest.raises(ValueError, match="expected above 0"):
        fluid.set_flow_line(first, 0)
