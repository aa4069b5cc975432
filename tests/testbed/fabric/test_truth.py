"""The recorder of truth: ends that are none, and where a flow may go."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fabrictime.testbed.fabric.topology import make_plan
from fabrictime.testbed.fabric.truth import PathUnclear, Truth
from fabrictime.testbed.settings import FabricSettings


class Fabric:
    """The plan of a fabric, without namespaces."""

    def __init__(self) -> None:
        self.plan = make_plan(FabricSettings(hosts=4, leaves=2, spines=2))
        self.links = self.plan.links()
        self.generation = self.layout = 0

    def on_close(self, close: object) -> None:
        pass

    def nic(self, name: str) -> SimpleNamespace:
        return next(each for each in self.nics() if name in (each.nic, each.host))

    def nics(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                nic=f"{port.node}/{port.name}", host=port.node, device=port.name, leaf=leaf.node, clock=None
            )
            for port, leaf, _ in self.plan.nics()
        ]


@pytest.fixture
def truth() -> Truth:
    return Truth(Fabric())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ends", "fragment"),
    [
        (("h1", "h1", 1, 2, "udp"), "expected two hosts"),
        (("h1", "h2", 0, 2, "udp"), "sport 0: expected 1 to 65535"),
        (("h1", "h2", 1, 65536, "udp"), "dport 65536"),
        (("h1", "h2", 1, 2, "sctp"), "expected udp or tcp"),
    ],
)
def test_ends_that_cannot_be_are_one_line(truth: Truth, ends, fragment: str) -> None:
    with pytest.raises(ValueError, match=fragment):
        truth.likely_path_of(*ends)


def test_an_unknown_link_or_interval_is_refused(truth: Truth) -> None:
    with pytest.raises(ValueError, match="no such link here"):
        truth.queued(["leaf1:swp1>mars:swp1"])
    with pytest.raises(ValueError, match=r"expected 0\.001 to 3600"):
        truth.record(0)
    assert (truth.samples(), truth.faults()) == ([], [])


def test_a_flow_goes_up_to_any_spine_and_down_to_its_own_leaf_and_nic(truth: Truth) -> None:
    fabric = truth._fabric
    end = fabric.nic("h4")
    leads = {link for link in fabric.links if truth._leads(link, end)}
    leaves = {nic.host: nic.leaf for nic in fabric.nics()}
    for link in fabric.links:
        source, target = (part.partition(":")[0] for part in link.split(">"))
        if source.startswith("spine"):
            assert (link in leads) == (target == end.leaf)
        elif target.startswith("spine"):
            assert (link in leads) == (source != end.leaf)
        elif target.startswith("h"):
            assert (link in leads) == (target == "h4")
        else:
            assert leaves[source] == target


def test_a_hidden_burst_is_unclear_and_names_the_hop(truth: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabrictime.testbed.fabric import truth as module

    monkeypatch.setattr(module, "_BURST_TIMEOUT_S", 0.0)
    idle = {link: module.LinkTruth() for link in truth._fabric.links}
    monkeypatch.setattr(truth, "links", lambda: idle)
    with pytest.raises(PathUnclear, match="no link out of h1 carried 32 packets"):
        truth._follow(truth._fabric.nic("h1"), truth._fabric.nic("h4"), idle, 32)
