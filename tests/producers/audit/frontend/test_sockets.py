"""Formats of /proc/net and of packet filters, and this machine's own."""

from __future__ import annotations

import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.frontend.sockets import Filtered, columns, filtered, listeners, socket_statistics, tables
from producers.audit.host.live import LiveHost
from schemas.records import AuditStatus


def test_columns_are_summed_over_processors() -> None:
    assert columns("entries drop\n0000000a 00000001\n0000000a 0000000f\n") == {"entries": 20, "drop": 16}


def test_tables_are_pairs_of_lines() -> None:
    assert tables("Tcp: A B\nTcp: 1 -1\nUdp: C\nUdp: 3\n") == {"Tcp": {"A": 1, "B": -1}, "Udp": {"C": 3}}


def test_rules_that_refuse_are_found() -> None:
    text = "[7:420] -A FORWARD -s 10.0.0.0/8 -j DROP\n[1:2] -A INPUT -j ACCEPT\n[0:0] -A X -j REJECT --b\n"
    assert filtered(text) == [Filtered("FORWARD", "DROP", 7), Filtered("X", "REJECT", 0)]


def test_socket_statistics() -> None:
    assert socket_statistics("sockets: used 5\nTCP: inuse 2 mem 1") == {
        "sockets": {"used": 5},
        "TCP": {"inuse": 2, "mem": 1},
    }


@given(st.text(max_size=200))
def test_odd_text_raises_value_error_at_worst(text: str) -> None:
    filtered(text)
    for read in (columns, tables, socket_statistics):
        with contextlib.suppress(ValueError):
            read(text)


def test_a_listener_of_this_machine_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in listeners(LiveHost())


@pytest.mark.parametrize("name", ["tcp", "receive-drops", "sockets", "port-clash", "interface-drops"])
def test_this_machine_can_be_read(name: str) -> None:
    result = run_check(CHECKS[f"frontend.{name}"], LiveHost())
    assert result.status in (AuditStatus.PASSED, AuditStatus.FAILED), result.text
