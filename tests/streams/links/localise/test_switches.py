"""Dead switches: all cables of a dead spine, and of no other."""

from __future__ import annotations

import pytest

from schemas.ids import cable_id
from tests.examples import draws
from tests.streams.links.watched import MS, WARM, small


@pytest.mark.parametrize("seed", draws(range(1, 6), 2))
@pytest.mark.parametrize("rate_hz", [300.0, 1000.0])
def test_a_dead_spine_is_all_its_cables_and_soon(seed: int, rate_hz: float) -> None:
    it = small(seed, rate_hz=rate_hz)
    it.run(WARM)
    spine = [i for i, name in enumerate(it.fleet.link_ids) if "spine3:" in name]
    cables = {cable_id(it.fleet.link_ids[i]) for i in spine}
    it.probes.down[spine] = True
    it.run(250 * MS, until=lambda: cables <= it.ever_in("DOWN"))
    it.run(1500 * MS)
    assert it.ever_in("DOWN") == cables
    assert {it.last(cable)["flaps_total"] for cable in cables} == {1}, "none was said to be UP meanwhile"
    assert any("nothing crosses spine3 any more" in it.last(cable)["text"] for cable in cables)
    it.probes.down[:] = False
    it.run(1000 * MS, until=lambda: all(it.state(cable) == "UP" for cable in cables))


@pytest.mark.parametrize("seed", draws(range(1, 6), 2))
def test_a_spine_that_some_paths_still_cross_is_not_dead(seed: int) -> None:
    it = small(seed, rate_hz=300.0)
    it.run(WARM)
    ends = [("leaf1", "spine3"), ("leaf2", "spine3")]
    for near, far in ends:
        it.probes.down[[it.link(near, far), it.link(far, near)]] = True
    it.run(1500 * MS)
    cables = {it.cable(near, far) for near, far in ends}
    assert {each for each in it.ever_in("DOWN") if it.state(each) == "DOWN"} == cables
    assert not any(
        "nothing crosses" in r["text"] and "any more" in r["text"] for _, (_, r) in it.changes if r
    )
