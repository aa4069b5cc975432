"""The best assignment and its bound: against all assignments on tiny fabrics, and against arithmetic."""

from __future__ import annotations

import itertools
import random

import pytest

from fabrictime.testbed.jobs.optimum import (
    Shape,
    best_goodputs_bps,
    choose_ports,
    link_loads,
    shape_of,
    spread,
    wire_bytes,
)
from fabrictime.testbed.jobs.plan import make_job_plan

RATE = 100_000_000
EIGHT = Shape({f"h{n}": f"leaf{1 + n // 4}" for n in range(8)}, 4, RATE, RATE)


def job(kind, hosts, connections=1, size=1448 * 1000):
    plan = make_job_plan(kind, len(hosts), connections, size * len(hosts) * connections)
    return [(hosts[a], hosts[b], bytes_) for phase in plan.phases() for a, b, bytes_ in phase]


@pytest.mark.parametrize("seed", range(30))
def test_no_assignment_has_a_less_loaded_worst_link(seed):
    draw = random.Random(seed)
    leaves = draw.choice([2, 3])
    shape = Shape({f"h{n}": f"leaf{n % leaves}" for n in range(6)}, draw.choice([2, 3]), RATE, RATE)
    flows = [tuple(draw.sample(sorted(shape.leaf_of), 2)) for _ in range(draw.randrange(2, 8))]
    far = [at for at, (a, b) in enumerate(flows) if shape.leaf_of[a] != shape.leaf_of[b]]

    def worst(spines):
        return max(link_loads(shape, flows, spines).values(), default=0)

    def every():
        for chosen in itertools.product(range(shape.spines), repeat=len(far)):
            spines = [None] * len(flows)
            for at, spine in zip(far, chosen, strict=True):
                spines[at] = spine
            yield worst(spines)

    ours = spread(shape, flows)
    assert [at for at, spine in enumerate(ours) if spine is not None] == far
    assert worst(ours) == min(every())


@pytest.mark.parametrize("connections", [1, 2, 3, 4])
def test_every_step_of_an_all_to_all_fits_a_non_blocking_fabric(connections):
    plan = make_job_plan("alltoall", 8, connections, 8 * connections)
    for phase in plan.phases():
        pairs = [(f"h{a}", f"h{b}") for a, b, _ in phase]
        loads = link_loads(EIGHT, pairs, spread(EIGHT, pairs))
        assert max(loads.values()) <= connections, "a link carries what one NIC gives, and no more"


@pytest.mark.parametrize("seed", range(20))
def test_large_random_steps_are_spread_to_the_last_connection(seed):
    draw = random.Random(seed)
    shape = Shape({f"h{n}": f"leaf{n % 5}" for n in range(40)}, draw.randrange(1, 9), RATE, RATE)
    flows = [tuple(draw.sample(sorted(shape.leaf_of), 2)) for _ in range(300)]
    loads = link_loads(shape, flows, spread(shape, flows))
    degree = {}
    for (side, leaf, _), count in loads.items():
        degree[side, leaf] = degree.get((side, leaf), 0) + count
    for (side, leaf, _), count in loads.items():
        assert count <= -(-degree[side, leaf] // shape.spines)


def test_the_best_is_line_rate_less_headers():
    assert wire_bytes(1448 * 10) == 15140
    assert wire_bytes(1449) == 1449 + 2 * 66
    assert wire_bytes(4144 * 3, 4196) == 4144 * 3 + 3 * 66, "larger packets, fewer headers"
    (alone,) = best_goodputs_bps(EIGHT, [job("alltoall", sorted(EIGHT.leaf_of))])
    assert alone == pytest.approx(8 * RATE * 1448 / 1514)
    (ring,) = best_goodputs_bps(EIGHT, [job("allreduce", sorted(EIGHT.leaf_of))])
    assert ring == pytest.approx(8 * RATE * 1448 / 1514)
    (incast,) = best_goodputs_bps(EIGHT, [[(f"h{n}", "h0", 1448) for n in range(1, 8)]])
    assert incast == pytest.approx(RATE * 1448 / 1514)
    (acked,) = best_goodputs_bps(EIGHT, [job("alltoall", sorted(EIGHT.leaf_of))], packets_per_ack=2)
    assert acked == pytest.approx(8 * RATE * 1448 / (1514 + 33))


def test_concurrent_jobs_share_only_the_links_that_both_cross():
    hosts = sorted(EIGHT.leaf_of)
    one, other = best_goodputs_bps(EIGHT, [job("alltoall", hosts)] * 2)
    assert one == pytest.approx(other)
    assert one + other == pytest.approx(8 * RATE * 1448 / 1514)
    left, right = best_goodputs_bps(EIGHT, [job("alltoall", hosts[:4]), job("alltoall", hosts[4:])])
    assert left == pytest.approx(right)
    assert left == pytest.approx(4 * RATE * 1448 / 1514)


def test_fewer_spines_or_slower_links_are_the_limit():
    narrow = Shape(EIGHT.leaf_of, 2, RATE, RATE)
    hosts = sorted(EIGHT.leaf_of)
    (best,) = best_goodputs_bps(narrow, [job("alltoall", hosts)])
    # Of the seven peers of each host four are on the other leaf: 16 chunks through 2 links, 28 in all.
    assert best == pytest.approx(56 / 16 * 2 * RATE * 1448 / 1514)
    with pytest.raises(ValueError, match="no link limits"):
        best_goodputs_bps(Shape(EIGHT.leaf_of, 4, 0, 0), [job("alltoall", hosts)])
    with pytest.raises(ValueError, match="0 spines"):
        shape_of(EIGHT.leaf_of, 0, RATE, RATE)


def test_ports_are_chosen_by_where_they_lead_and_none_is_used_twice_by_a_pair():
    plan = make_job_plan("alltoall", 8, 4, 8_000)
    hosts = sorted(EIGHT.leaf_of)
    ports = choose_ports(EIGHT, plan, hosts, lambda source, peer, port: port % 4, range(1000, 1040))
    used = {(plan.ends[route.stream], port) for route, port in zip(plan.routes, ports, strict=True)}
    assert len(used) == len(plan.routes)
    with pytest.raises(ValueError, match="no candidate of 40 leads over spine"):
        choose_ports(EIGHT, plan, hosts, lambda source, peer, port: 0, range(1000, 1040))
