"""Candidate ports: the source ports that a flow may be moved to."""

from __future__ import annotations

from producers.trace.candidate_ports import flow_candidate_ports

A, B = "10.0.0.1", "10.0.1.1"


def test_the_ports_to_try_are_the_same_for_everybody_and_none_that_the_kernel_gives_away():
    ports = flow_candidate_ports(A, B, 5201, 32, 61_000)
    assert ports == flow_candidate_ports(A, B, 5201, 32, 61_000)
    assert len(set(ports)) == 32
    assert all(61_000 <= port <= 65_535 for port in ports)
    assert (
        ports != flow_candidate_ports(B, A, 5201, 32, 61_000) != flow_candidate_ports(A, B, 5202, 32, 61_000)
    )
    assert flow_candidate_ports(A, B, 5201, 32, 65_530) == tuple(range(65_530, 65_536)), "all there are"


def test_32_ports_see_four_spines_twice_or_more():
    """As the module says: all but one in two hundred groups."""
    few = 0
    for number in range(2000):
        ports = flow_candidate_ports(A, f"10.0.{number // 250}.{number % 250}", 5201, 32, 61_000)
        spines = [hash((port, number, "seed")) % 4 for port in ports]
        few += min(spines.count(spine) for spine in range(4)) < 2
    assert few / 2000 < 0.02
