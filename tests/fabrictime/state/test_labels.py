"""Names of links as people read them."""

import pytest

from fabrictime.state.labels import arrow


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("leaf1:swp3>spine2:swp1", "leaf1:swp3 → spine2:swp1"),
        ("leaf1:swp3<>spine2:swp1", "leaf1:swp3 ⇄ spine2:swp1"),
        ("h1/eth0", "h1/eth0"),
        ("", ""),
    ],
)
def test_a_link_points_one_way_and_a_cable_both(name: str, text: str) -> None:
    assert arrow(name) == text
