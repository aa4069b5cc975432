"""Requested acknowledgements: the answers that a peer's record asks for, until the peer is silent."""

from __future__ import annotations

from typing import Any

import pytest

from producers.trace.requested_acks import ROCE_PORT, SILENT_PEER_S, RequestedAcks
from schemas.records import FlowLeg, FlowProtocol, FlowRoutes
from tests.records import make, make_part


def record(*rows: Any) -> FlowRoutes:
    return make(FlowRoutes, routes=list(rows))


def row(path: int, peer_port: int = 80, leg: str = "DATA", protocol: str = "TCP") -> Any:
    return make_part("FlowRoutes", "FlowRoute", path=path, peer_port=peer_port, leg=leg, protocol=protocol)


def test_each_flow_needs_the_answer_on_its_ports() -> None:
    found = RequestedAcks(8).take("b/e", record(row(5000), row(6000, 90, protocol="UDP")), 0.0)
    assert {(key.leg, key.peer, key.port, key.peer_port): shape for key, shape in found.items()} == {
        (FlowLeg.ACK, "b/e", 5000, 80): FlowProtocol.TCP,
        (FlowLeg.ACK, "b/e", 6000, 90): FlowProtocol.UDP,
    }


@pytest.mark.parametrize("other", [row(1, leg="ACK"), row(1, ROCE_PORT, protocol="UDP")])
def test_answers_and_roce_need_none(other: Any) -> None:
    acks = RequestedAcks(8)
    assert acks.take("b/e", record(other), 0.0) == {}
    assert acks.by_peer(0.0) == {}


def test_the_number_per_peer_is_limited() -> None:
    assert len(RequestedAcks(3).take("b/e", record(*(row(path) for path in range(9))), 0.0)) == 3


def test_a_tombstone_or_silence_ends_the_answers() -> None:
    acks = RequestedAcks(8)
    acks.take("b/e", record(row(1)), 0.0)
    acks.take("c/e", record(row(2)), 10.0)
    assert acks.by_peer(SILENT_PEER_S).keys() == {"b/e", "c/e"}
    assert acks.by_peer(SILENT_PEER_S + 1).keys() == {"c/e"}
    acks.take("c/e", None, SILENT_PEER_S + 1)
    assert acks.by_peer(SILENT_PEER_S + 1) == {}
