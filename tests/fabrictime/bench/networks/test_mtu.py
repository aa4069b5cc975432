"""Links that drop large packets, found by the probers' own checks and the detector."""

from __future__ import annotations

from fabrictime.bench import Figure
from fabrictime.bench.networks import TARGETS
from fabrictime.bench.networks.mtu import SEED, SHAPE, Network, plant
from producers.sim.topology import Fleet


def test_a_link_is_found_with_its_exact_size_and_cleared() -> None:
    fleet = Fleet(SHAPE, SEED)
    link = next(
        n for n, name in enumerate(fleet.link_ids) if name.startswith("leaf1:") and ">spine2:" in name
    )
    outcome = plant(fleet, link, 1_400, 1)
    assert outcome.found_s is not None
    assert outcome.cleared_s is not None
    assert outcome.false == set()


def test_losses_alone_make_no_link_grey() -> None:
    fleet = Fleet(SHAPE, SEED)
    network = Network(fleet, SEED)
    network.loss[:-1] = 0.3
    network.run(30.0)
    assert network.grey == {}


def test_the_figures_have_targets() -> None:
    assert TARGETS["mtu_fault_found_with_size"].met(1.0)
    assert not TARGETS["mtu_false_grey"].met(Figure(1.0).value)
