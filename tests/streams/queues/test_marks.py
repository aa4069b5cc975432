"""CE marks of routes become marks of links: of one marking link, of two on a route, and of aliased links."""

from __future__ import annotations

import numpy as np
import pytest

from streams.queues.cells import Cells
from streams.queues.link_columns import LinkColumns
from streams.queues.marks import marked_shares

# leaf-spine: 2 leaves, 3 spines, 2 NICs on each leaf. Links: 0-2 leaf1>spine, 3-5 spine>leaf2, 6-7 leaf2>NIC
ROUTES = [(spine, 3 + spine, 6 + nic) for spine in range(3) for nic in range(2)]
LINKS = 8


def cells_of(routes, packets, marks, slots=1):
    """Cells of one block: [slots][routes] packets and marks."""
    slot = np.repeat(np.arange(slots), len(routes))
    route = np.tile(np.arange(len(routes)), slots).astype(np.int32)
    none = np.zeros(len(slot))
    packets, marks = np.ravel(packets).astype(float), np.ravel(marks).astype(float)
    return Cells(slot, route, none, packets, none, none, marks), slot


def shares(routes, packets, marks, slots=1, links=LINKS):
    cells, slot = cells_of(routes, packets, marks, slots)
    marked = marked_shares(cells, LinkColumns.of(routes, links), slot, slots)
    return np.zeros((slots, links)) if marked is None else marked


def drawn(rng, routes, of_link, packets):
    """Marks of routes whose links mark each packet independently."""
    passed = np.array([np.prod([1 - of_link[link] for link in route]) for route in routes])
    return rng.binomial(packets, 1 - passed)


def test_no_marks_no_link():
    assert not shares(ROUTES, [10] * 6, [0] * 6).any()


def test_the_link_that_all_marked_routes_share_has_them_all():
    found = shares(ROUTES, [20] * 6, [10, 10, 0, 0, 0, 0])[0]
    # both halves of spine 1's path are aliased: no probe separates leaf1>spine1 from spine1>leaf2
    assert found[[0, 3]] == pytest.approx([0.5, 0.5], abs=0.02)
    assert not np.delete(found, [0, 3]).any()
    last = shares(ROUTES, [20] * 6, [10, 0] * 3)[0]
    assert last[6] == pytest.approx(0.5, abs=0.02)
    assert not np.delete(last, 6).any()


@pytest.mark.parametrize("seed", range(20))
def test_two_marking_links_on_crossing_routes(seed):
    rng = np.random.default_rng(seed)
    of_link = np.zeros(LINKS)
    of_link[[1, 6]] = 0.3, 0.5
    found = shares(ROUTES, [200] * 6, drawn(rng, ROUTES, of_link, 200))[0]
    assert found[[1, 6]] == pytest.approx([0.3, 0.5], abs=0.09)
    assert found[[0, 2, 7]].max() < 0.06


def test_a_slot_has_the_marks_of_its_time():
    found = shares(ROUTES, [[10] * 6] * 2, [[0] * 6, [10, 10, 0, 0, 0, 0]], slots=2)
    assert not found[0].any()
    assert found[1][0] == pytest.approx(1.0, abs=0.02)


def test_few_probes_name_no_wrong_link_for_long():
    """Two probes a route and block: over ten blocks, the marking link gets most of the marks."""
    rng = np.random.default_rng(3)
    of_link = np.zeros(LINKS)
    of_link[7] = 0.3
    total = sum(shares(ROUTES, [2] * 6, drawn(rng, ROUTES, of_link, 2))[0] for _ in range(40)) / 40
    assert total[7] == pytest.approx(0.3, abs=0.12)
    assert np.delete(total, 7).max() < 0.12
