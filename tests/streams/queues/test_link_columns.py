"""Link columns: links that no probe can distinguish are one unknown."""

from __future__ import annotations

import numpy as np

from streams.queues.cells import Cells
from streams.queues.link_columns import LinkColumns

ROUTES = [(0, 1, 2), (0, 1, 3)]
"""Links 0 and 1 are crossed by the same routes, 2 and 3 by one each."""


def test_links_with_the_same_routes_share_a_column() -> None:
    columns = LinkColumns.of(ROUTES, 4)
    assert columns.column[0] == columns.column[1]
    assert columns.count == len(set(columns.column.tolist())) == 3
    assert columns.last.tolist() == [2, 3]
    groups = columns.groups
    assert groups[0] == groups[1] > 0
    assert groups[2:] == [0, 0], "each of these stands alone"


def test_probes_are_counted_by_link() -> None:
    count = np.array([5.0, 1.0, 2.0])
    zero = np.zeros(3)
    cells = Cells(np.zeros(3, np.int64), np.array([0, 1, 1], np.int32), zero, count, zero, zero, zero)
    assert LinkColumns.of(ROUTES, 4).probes_by_link(cells).tolist() == [8, 8, 5, 3]


def test_states_survive_a_new_numbering_of_the_links() -> None:
    columns = LinkColumns.of(ROUTES, 4)
    solver = columns.solver(np.full(4, 1e9))
    columns.restore(solver, "abcd", {"a": (7.0, 3.0), "b": (7.0, 3.0), "d": (2.0, 1.0)})
    states = columns.states(solver, "abcd")
    other = LinkColumns.of([(3, 2, 1), (3, 2, 0)], 4)
    new = other.solver(np.full(4, 1e9))
    other.restore(new, "dcba", states)
    assert other.states(new, "dcba") == states
    assert states == {"a": (7.0, 3.0), "b": (7.0, 3.0), "c": (0.0, 0.0), "d": (2.0, 1.0)}
