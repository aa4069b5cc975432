"""Loss rates of links among a job's NICs: lossy links are named, other causes of losses are not."""

from __future__ import annotations

import pytest

from schemas.ids import cable_id, reverse_link
from schemas.records import ClockSync
from streams.diagnosis.network.losses import LossyLink, lossy_links
from streams.diagnosis.network.view import NetworkView
from tests.streams.diagnosis.probed import Loss, probe, trace
from tests.streams.diagnosis.scenario import BEGIN, S, nic, route

HOSTS = (0, 2, 4)
"""One host a leaf, so that all probes cross a spine."""
NICS = {nic(host) for host in HOSTS}
LOSSY = route(0, 2, 1)[1]
SEEDS = range(1, 9)


def found(loss: Loss, seconds: int = 15, seed: int = 1, **settings: object) -> list[LossyLink]:
    view = NetworkView()
    trace(view, HOSTS)
    end_ns = probe(view, HOSTS, BEGIN, seconds, loss, seed=seed, **settings)  # type: ignore[arg-type]
    return lossy_links(view, NICS, end_ns)


def over(share: float, since_s: int = 0) -> Loss:
    """Losses of the lossy link alone."""
    return lambda source, target, links, second: share * (LOSSY in links and second >= since_s)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lossy_link_is_named_with_its_rate_and_begin(seed: int) -> None:
    [lossy] = found(over(0.1, since_s=20), 30, seed, per_path=4)
    assert lossy.cable == cable_id(LOSSY)
    assert LOSSY in lossy.links
    assert lossy.candidates == ()
    assert abs(lossy.since_ns - (BEGIN + 20 * S)) <= 2 * S
    assert lossy.elsewhere == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_that_has_lasted_is_right(seed: int) -> None:
    [lossy] = found(over(0.1), 60, seed)
    assert abs(lossy.rate - 0.1) < 0.04
    assert lossy.lost / lossy.requests == pytest.approx(lossy.rate, rel=0.05)


@pytest.mark.parametrize(("late_s", "names"), [(10, True), (16, False)])
def test_workers_that_are_behind_hide_no_losses_until_these_are_old(late_s: int, names: bool) -> None:
    view = NetworkView()
    trace(view, HOSTS)
    end_ns = probe(view, HOSTS, BEGIN, 15, over(0.1), seed=1)
    assert [each.cable for each in lossy_links(view, NICS, end_ns + late_s * S)] == [cable_id(LOSSY)] * names


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_host_makes_no_link_lossy(seed: int) -> None:
    """It answers nothing for half of each third second, on all paths."""

    def late(source: int, target: int, links: list[str], second: int) -> float:
        return 0.5 * (second % 3 == 0 and 2 in (source, target))

    assert {lossy.nic for lossy in found(late, seed=seed)} == {nic(2)}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_only_nic_of_a_leaf_is_named_by_the_probes_of_its_neighbours(seed: int) -> None:
    """All routes between the job's two NICs cross the same links; the neighbours' routes tell them apart."""
    view = NetworkView()
    trace(view, (0, 1, 4))
    end_ns = probe(
        view, (0, 1, 4), BEGIN, 15, lambda source, target, *_: 0.06 * (0 in (source, target)), seed=seed
    )
    [lossy] = lossy_links(view, {nic(0), nic(4)}, end_ns)
    uplink = route(0, 4, 0)[0]
    assert (lossy.nic, lossy.cable) == (nic(0), cable_id(uplink))
    assert set(lossy.links) == {uplink, reverse_link(uplink)}


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_of_a_full_queue_make_no_link_lossy(seed: int) -> None:
    def loss(source: int, target: int, links: list[str], second: int) -> float:
        return 0.05 * (LOSSY in links)

    def queue_ms(source: int, target: int, links: list[str], second: int) -> float:
        return 60.0 if LOSSY in links else 2.0

    assert found(loss, seed=seed, queue_ms=queue_ms) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_that_is_never_full_hides_no_losses(seed: int) -> None:
    def queue_ms(source: int, target: int, links: list[str], second: int) -> float:
        return 3.0 if second % 2 else 1.0

    [lossy] = found(over(0.1), seed=seed, queue_ms=queue_ms)
    assert lossy.cable == cable_id(LOSSY)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_losses_everywhere_make_no_link_lossy(share: float) -> None:
    for seed in SEEDS:
        assert found(lambda *_: share, seed=seed) == [], seed


def test_a_moment_of_losses_makes_no_link_lossy() -> None:
    burst: Loss = lambda source, target, links, second: 0.9 * (LOSSY in links and second in (4, 5))  # noqa: E731
    assert found(burst) == []


def test_a_low_rate_is_left_to_the_links_service() -> None:
    assert found(over(0.005)) == []


def test_routes_without_an_alternative_show_nothing() -> None:
    """All paths of the two hosts cross all of the links: nothing shows which one loses, or whether a host
    does."""
    view = NetworkView()
    trace(view, HOSTS)
    one_route: Loss = lambda source, target, links, second: 0.1  # noqa: E731
    end_ns = probe(view, (0, 2), BEGIN, 15, one_route)
    assert lossy_links(view, {nic(0), nic(2)}, end_ns) == []


def test_probes_without_a_route_without_a_sample_or_of_other_nics_do_not_count() -> None:
    view = NetworkView()
    end_ns = probe(view, HOSTS, BEGIN, 15, over(0.3))
    assert lossy_links(view, NICS, end_ns) == [], "no route is known"
    trace(view, HOSTS)
    assert lossy_links(view, NICS, end_ns) != []
    assert lossy_links(view, {nic(6)}, end_ns) == []
    assert lossy_links(view, NICS, end_ns + 20 * S) == [], "these are old"
    dead = NetworkView()
    trace(dead, HOSTS)
    assert lossy_links(dead, NICS, probe(dead, HOSTS, BEGIN, 15, lambda *_: 1.0)) == []


def test_clocks_that_are_not_synchronised_hide_nothing() -> None:
    [lossy] = found(over(0.1), state=ClockSync.UNSYNCED)
    assert lossy.cable == cable_id(LOSSY)
