"""Active checks: messages to name servers, and findings from the answers of peers."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.frontend.reach import peers, question, response_code
from schemas.records import AuditStatus


def test_a_question_has_the_names_labels() -> None:
    assert question("gpu012.cluster.").endswith(b"\x06gpu012\x07cluster\x00\x00\x01\x00\x01")


def test_a_response_has_our_number_and_a_code() -> None:
    request = question("a")
    assert response_code(request[:2] + b"\x81\x83" + request[4:]) == 3
    with pytest.raises(ValueError, match="not a response"):
        response_code(request)
    with pytest.raises(ValueError, match="3 bytes"):
        response_code(b"abc")


@given(st.binary(max_size=40), st.text(max_size=80))
def test_odd_messages_raise_value_error_at_worst(answer: bytes, name: str) -> None:
    with contextlib.suppress(ValueError):
        response_code(answer)
    with contextlib.suppress(ValueError):
        question(name)


def test_peers_are_the_gateway_and_live_neighbours() -> None:
    host = HEALTHY.copy()
    assert ("eno1", "192.168.4.1") in peers(host)
    assert len(peers(host)) == 5
    host.network["neighbours"] = []
    assert peers(host) == [("eno1", "192.168.4.1")]


def test_a_black_hole_names_the_size_that_passes() -> None:
    host = HEALTHY.copy()
    host.network["reach"]["largest"] = 1500
    result = run_check(CHECKS["frontend.path-mtu"], host)
    assert result.text.startswith("eth0 to 10.0.0.3: the MTU is 9000, and 1500 bytes pass, 9000 do not")


def test_a_peer_that_never_answers_is_unknown() -> None:
    host = HEALTHY.copy()
    host.network["reach"]["silent"] = {"192.168.4.1"}
    for check in ("frontend.path-mtu", "frontend.round-trips"):
        assert run_check(CHECKS[check], host).status is AuditStatus.UNKNOWN
