"""Dead links in simulated networks: named, or in the stated set."""

from __future__ import annotations

import pytest

from fabrictime.bench.detect.link_evidence import ProbedFleet
from fabrictime.bench.networks.answers import Form, NamedFleet
from fabrictime.bench.networks.links import RATE_HZ, SEED, SHAPE, kill
from producers.sim.topology import Fleet

FLEET = Fleet(SHAPE, SEED)
SPINE_LINK = len(FLEET.link_ids) - 1


@pytest.mark.parametrize(("form", "largest"), [(Form.ANYCAST_LOOPBACK, 1), (Form.TUNNEL, 5)])
def test_a_dead_link_is_in_the_stated_set(form: Form, largest: int) -> None:
    names = NamedFleet(ProbedFleet(FLEET, peers=7, seed=SEED, rate_hz=RATE_HZ), form)
    found = kill(FLEET, names, SPINE_LINK)
    assert (found.named, found.false) == (True, [])
    assert 1 <= found.cables <= largest
    assert found.took_s is not None
    assert found.took_s < 10
