"""Records of a fabric: the routes that count, and the hosts of links and subjects."""

from __future__ import annotations

from fabrictime.testbed.audit.simulated import Simulated, railed
from schemas.records import AuditStatus, FlowRoutes, PathMaps
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET
from tests.records import make, make_part

RECORDS = Simulated(railed(16, 4)).records()


def test_a_link_belongs_to_the_nic_at_its_end() -> None:
    found = RECORDS.of_link("h1:eth1<>leaf1:swp1", AuditStatus.FAILED, "down")
    assert (found.host, found.subject) == ("h1", "eth1")
    found = RECORDS.of_link("leaf1:swp9>spine1:swp1", AuditStatus.FAILED, "down")
    assert (found.host, found.subject) == (FLEET, "leaf1:swp9>spine1:swp1")
    assert RECORDS.of_subject("h2", AuditStatus.FAILED, "down").host == "h2"
    assert RECORDS.of_subject("h2/eth3", AuditStatus.FAILED, "down").subject == "eth3"


def test_routes_of_the_plan_alone_and_broken_ones_are_no_traces() -> None:
    rows = [
        make_part(PathMaps, "PathMap", links=["a:1>b:1"], complete=True, found="TOPOLOGY"),
        make_part(PathMaps, "PathMap", links=["a:1>b:1"], complete=False, found="TRACED"),
        make_part(PathMaps, "PathMap", links=["a:1>c:1"], complete=True, found="TRACED"),
    ]
    flows = make(FlowRoutes, nic="a/1", peer="d/1", routes=[
        make_part(FlowRoutes, "FlowRoute", links=["a:1>d:1"], complete=True)])  # fmt: skip
    records = FabricRecords([], paths=[make(PathMaps, nic="a/1", peer="c/1", paths=rows)], routes=[flows])
    assert [each.links for each in records.traced] == [("a:1>c:1",), ("a:1>d:1",)]


def test_nics_without_a_finding_passed() -> None:
    failed = RECORDS.of_nic("h1/eth1", AuditStatus.FAILED, "bad")
    found = list(RECORDS.all_passed([failed], ["h1/eth1", "h1/eth2"], "fine"))
    assert [(each.subject, each.status) for each in found] == [("eth1", "FAILED"), ("eth2", "PASSED")]
