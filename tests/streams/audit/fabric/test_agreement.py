"""MTU, egress, ECN and classes along the fleet: who differs, and what cannot be said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemas.records import AuditStatus
from streams.audit.fabric.agreement import classes, ecn, egress, mtus
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import Found

NICS = [f"h{n}/eth1" for n in range(1, 6)]
Check = Callable[[FabricRecords], Iterator[Found]]


def nic(name: str, **other: Any) -> Any:
    host = name.split("/")[0]
    return {
        "nic": name,
        "host": host,
        "shard": "fabric",
        "rail": None,
        "mtu_bytes": 9000,
        "egress": None,
        **other,
    }


def path(peer: str, count: int = 100, capable: int = 100, dscp: int = 0) -> Any:
    return {"peer": peer, "path": 9320, "count": count, "ecn": capable, "dscp": dscp}


def fabric(
    nics: list[Any] | None = None, capable: Callable[[str, str], int] | None = None, **dscps: Any
) -> FabricRecords:
    """All pairs, with the packets of 100 that arrive ECN-capable and the classes of each NIC."""
    delays = [
        {
            "nic": a,
            "paths": [
                path(b, capable=100 if capable is None else capable(a, b), dscp=dscp)
                for b in NICS
                if b != a
                for dscp in dscps.get(a.split("/")[0], (0, 26))
            ],
        }
        for a in NICS
    ]
    return FabricRecords([nic(name) for name in NICS] if nics is None else nics, delays=delays)  # type: ignore[arg-type]


def failed(check: Check, records: FabricRecords) -> dict[str, str]:
    return {f"{e.host}/{e.subject}": e.text for e in check(records) if e.status is AuditStatus.FAILED}


@pytest.mark.parametrize("check", [mtus, egress, ecn, classes])
def test_a_fleet_that_agrees_passes_on_every_nic(check: Check) -> None:
    found = list(check(fabric()))
    assert {each.status for each in found} == {AuditStatus.PASSED}
    assert {f"{each.host}/{each.subject}" for each in found} == set(NICS)


def test_the_nic_with_another_mtu_is_named() -> None:
    nics = [nic(name, mtu_bytes=1500 if name == NICS[2] else 9000) for name in NICS]
    assert failed(mtus, fabric(nics)) == {NICS[2]: "MTU 1,500 bytes, most of 5 NICs have 9,000"}


def test_rails_may_have_mtus_of_their_own() -> None:
    nics = [nic(name, rail=n % 2, mtu_bytes=1500 if n % 2 else 9000) for n, name in enumerate(NICS)]
    assert failed(mtus, fabric(nics)) == {}


def test_nics_without_an_mtu_are_left_out() -> None:
    assert [e.status for e in mtus(fabric([nic(NICS[0], mtu_bytes=None)]))] == [AuditStatus.UNKNOWN]


def test_a_nic_that_another_one_sends_for_is_named() -> None:
    nics = [nic(name, egress="eth0" if name == NICS[0] else None) for name in NICS]
    assert failed(egress, fabric(nics)) == {NICS[0]: "its packets leave by eth0"}


def test_the_nic_at_which_ecn_is_cleared_is_named_and_not_its_peers() -> None:
    records = fabric(capable=lambda a, b: 0 if NICS[1] in (a, b) else 100)
    assert failed(ecn, records) == {NICS[1]: "the ECN field is cleared on 8 of 8 pairs from or to it"}


def test_a_pair_alone_is_named_as_a_pair() -> None:
    records = fabric(capable=lambda a, b: 0 if (a, b) == (NICS[0], NICS[1]) else 100)
    assert failed(ecn, records) == {NICS[0]: f"the ECN field is cleared between it and {NICS[1]}"}


def test_without_ecn_anywhere_the_result_is_unknown() -> None:
    assert [e.status for e in ecn(fabric(capable=lambda a, b: 0))] == [AuditStatus.UNKNOWN]
    assert [e.status for e in ecn(FabricRecords([nic(NICS[0])]))] == [AuditStatus.UNKNOWN]


def test_the_nic_with_other_classes_is_named() -> None:
    assert failed(classes, fabric(h4=(0,))) == {NICS[3]: "probes DSCP 0, most NICs probe 0, 26"}
    assert [e.status for e in classes(FabricRecords([]))] == [AuditStatus.UNKNOWN]
