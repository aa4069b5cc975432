"""Many host names in one line."""

import pytest

from fabrictime.audit.host_names import folded, name_order


@pytest.mark.parametrize(
    ("hosts", "line"),
    [
        ([], ""),
        (["login"], "login"),
        (["node7"], "node7"),
        (["node2", "node10", "node9", "node1"], "node[1-2,9-10]"),
        (["node001", "node003", "node002", "node100"], "node[001-003,100]"),
        (["a1-ib", "a2-ib", "b1", "login"], "a[1-2]-ib,b1,login"),
        (["rack1-node4", "rack1-node5", "rack2-node4"], "rack1-node[4-5],rack2-node4"),
        (["h1", "h1"], "h1"),
        (["h" + "9" * 30], "h" + "9" * 30),
    ],
)
def test_names_that_differ_in_their_last_number_share_a_bracket(hosts: list[str], line: str) -> None:
    assert folded(hosts) == line


def test_numbers_sort_by_their_value() -> None:
    assert sorted(["node10", "node2", "login", "node1"], key=name_order) == [
        "login",
        "node1",
        "node2",
        "node10",
    ]
