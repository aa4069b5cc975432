"""Agents on networks whose switches answer traces in other ways: names of links, and dead links."""

from __future__ import annotations

import pytest

from fabrictime.bench.networks.testbed import measure_form

pytestmark = pytest.mark.fabric


@pytest.mark.parametrize("form", ["loopback", "anycast"])
def test_a_dead_link_is_down_by_its_name(inside, form):
    found = inside(lambda: measure_form(form, max_links=2))
    assert found.invented == []
    assert found.complete_share == 1.0
    assert len(found.deaths) == 2
    for link, death in found.deaths.items():
        assert (link, death.named, death.cables, death.false) == (link, True, 1, [])
        assert death.took_s < 2
    assert found.alerts_s == [], "a known link explains the losses"
    assert found.leaves == {
        frozenset(nics) for nics in (("h1/eth1", "h2/eth1"), ("h3/eth1",), ("h4/eth1",))
    }, "one gateway address joins no leaves"


@pytest.mark.parametrize(("form", "known_share"), [("silent_spines", 0.5), ("flat", 1.0)])
def test_where_links_have_no_names_losses_are_stated_with_a_set(inside, form, known_share):
    found = inside(lambda: measure_form(form, max_links=2))
    assert found.invented == []
    assert found.complete_share <= known_share
    for link, death in found.deaths.items():
        assert (link, death.named, death.false) == (link, True, [])
        assert 1 < death.cables <= 4, "the cables of one switch"
        assert death.took_s < 10


@pytest.mark.parametrize(
    ("form", "learn_s", "known_share"),
    [
        ("transit_24", None, 1.0),
        ("anycast_loopback", None, 1.0),
        ("tunnel", None, 1.0),
        ("rate_limited", 12, 0.1),
    ],
)
def test_no_link_is_invented(inside, form, learn_s, known_share):
    found = inside(lambda: measure_form(form, max_links=0, learn_s=learn_s))
    assert found.invented == []
    assert found.complete_share >= known_share


def test_blind_tracing_is_reported_and_a_dead_link_alerts(inside):
    found = inside(lambda: measure_form("silent", max_links=1, learn_s=17))
    assert found.is_blind
    assert found.complete_share == 0.0
    assert [(death.named, death.false) for death in found.deaths.values()] == [(True, [])]
    assert len(found.alerts_s) == 1
    assert found.alerts_s[0] < 10
