"""Names of links and verdicts as people read them."""

import pytest

from fabrictime.state.labels import aliased_text, arrow, readable, verdict_label
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


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("leaf1 to h2/eth1: incast, 36 kB queued, 3 us", "leaf1 to h2/eth1: incast, 36 kB queued, 3 µs"),
        ("aliased with a:1>b:2, c:1<>d:2", "aliased with a:1 → b:2, c:1 ⇄ d:2"),
        ("job train: SLOW_FLOW: h1 to h2 is slow", "job train: slow flow: h1 to h2 is slow"),
        ("job train: HANG: rank 3 waits; now HOST_DOWN", "job train: hang: rank 3 waits; now host down"),
        ("set NCCL_IB_HCA; p99 > 3 ms; NIC: no GPU", "set NCCL_IB_HCA; p99 > 3 ms; NIC: no GPU"),
        ("eth0 of us, NIC_DOWN", "eth0 of us, NIC down"),
    ],
)
def test_texts_of_records_are_readable(raw: str, text: str) -> None:
    assert readable(raw) == text
    assert readable(text) == text


def test_all_cables_of_a_dead_host_are_no_other_explanation() -> None:
    cables = ["h2:eth1<>leaf1:swp2", "h2:eth2<>leaf2:swp2"]
    assert aliased_text(cables, "h2") == ""
    assert aliased_text(cables[:1], "h2").startswith("May be h2:eth1 ⇄ leaf1:swp2 instead")
    assert aliased_text(cables, "leaf1:swp5<>spine1:swp1").startswith("May be h2:eth1 ⇄ leaf1:swp2, h2:eth2")
