"""Names of links and verdicts as people read them."""

import pytest

from fabrictime.state.labels import arrow, verdict_label
from schemas.records import Verdict


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


def test_every_verdict_has_a_label() -> None:
    assert verdict_label("SLOW_FLOW") == "slow flow"
    assert verdict_label("PCIE_LIMIT") == "PCIe limit"
    assert all("_" not in verdict_label(each) for each in Verdict)
