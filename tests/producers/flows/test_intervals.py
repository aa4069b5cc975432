"""What a host's flow reporter says of TCP flows that run and of flows that programs register."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from producers.flows.intervals import FlowRules, FlowTable, Registration
from producers.flows.registrations import Registrations, parse_registration
from producers.flows.service import AddressTable, FlowReporter
from producers.flows.socket_diag import TcpSocket
from producers.inventory.nics import nic_record
from producers.settings import FlowSettings, NicSettings
from schemas import codec
from schemas.ipc import connect

MS = 1_000_000
LOCAL = {"10.0.0.1": "a/eth0"}
FLEET = {"10.0.0.1": "a/eth0", "10.0.0.2": "b/eth0", "10.0.0.3": "a/eth1"}
UDP = ("UDP", "10.0.0.1", 5000, "10.0.0.2", 6000)


def table(**rules: Any) -> FlowTable:
    return FlowTable("a", "boot", "fabric", LOCAL, FLEET.get, FlowRules(**rules))


def tcp(sent: int, *, cookie: int = 7, peer: str = "10.0.0.2", **more: Any) -> TcpSocket:
    values: dict[str, Any] = {
        "cookie": cookie,
        "source": "10.0.0.1",
        "source_port": 4000,
        "peer": peer,
        "peer_port": 80,
        "bytes_sent": sent,
        "segments_sent": sent // 1000,
        "header_bytes": 66,
        "retransmits": 0,
        "rtt_us": 250,
        "busy_us": 0,
        "receiver_limited_us": 0,
        "buffer_limited_us": 0,
        "rate_limit_bps": None,
    }
    return TcpSocket(**(values | more))


def reported(of: FlowTable, whole: bool = False) -> list[dict[str, Any]]:
    records = of.report(whole, 1, iter(range(10**6)).__next__)
    for record in records:
        codec.encode("FlowReports", record)
    return [flow for record in records for flow in record["flows"]]


def test_a_new_flow_is_reported_at_once_with_the_rate_of_its_frames():
    flows = table()
    flows.read([], [], {}, 0)
    flows.read([tcp(1_000_000)], [], {}, 100 * MS)
    (first,) = reported(flows)
    assert first["flow_id"] == "a/boot/sock:7"
    assert (first["nic"], first["peer"], first["state"]) == ("a/eth0", "b/eth0", "OPEN")
    assert first["bytes"] == first["bytes_total"] == 1_000_000 + 1000 * 66
    assert first["rate_bps"] == pytest.approx(1_066_000 * 8 / 0.1)
    assert first["rtt_ns"] == 250_000
    flows.read([tcp(2_000_000)], [], {}, 200 * MS)
    assert reported(flows) == [], "the same rate is no news"
    flows.read([tcp(2_100_000)], [], {}, 300 * MS)
    before, slower = reported(flows)
    assert (before["interval_ns"], before["bytes"]) == (100 * MS, 1_066_000), "nothing goes untold"
    assert (slower["interval_ns"], slower["bytes"]) == (100 * MS, 106_600), "and the change stands by itself"


@pytest.mark.parametrize(("kernel", "can"), [(False, ["MOVE"]), (True, ["MOVE", "PACE"])])
def test_kernel_pacing_makes_any_flow_paceable(kernel, can):
    flows = table(kernel_pacing=kernel)
    key = ("TCP", "10.0.0.1", 4000, "10.0.0.2", 80)
    flows.read([], [], {}, 0)
    flows.read([tcp(10**6)], [], {key: Registration(can=("MOVE",))}, 100 * MS)
    assert [flow["can"] for flow in reported(flows)] == [can]


def test_all_flows_are_reported_each_second_and_an_end_at_once():
    flows = table()
    flows.read([], [], {}, 0)
    flows.read([tcp(10**6)], [], {}, 100 * MS)
    reported(flows)
    flows.read([tcp(2 * 10**6)], [], {}, 200 * MS)
    assert [flow["state"] for flow in reported(flows, whole=True)] == ["OPEN"]
    flows.read([], [tcp(3 * 10**6)], {}, 300 * MS)
    (last,) = reported(flows)
    assert last["state"] == "CLOSED"
    assert last["bytes_total"] == 3 * 10**6 * 1.066
    assert reported(flows, whole=True) == []
    flows.read([], [tcp(3 * 10**6)], {}, 400 * MS)
    assert reported(flows) == [], "an end is told once"


def test_a_late_end_notice_has_the_last_bytes_and_a_missing_notice_ends_the_flow_too():
    flows = table()
    flows.read([], [], {}, 0)
    flows.read([tcp(10**6), tcp(10**6, cookie=8)], [], {}, 100 * MS)
    reported(flows)
    flows.read([], [], {}, 200 * MS)
    flows.read([], [], {}, 300 * MS)
    assert [flow["state"] for flow in reported(flows)] == []
    flows.read([], [tcp(4 * 10**6)], {}, 400 * MS)
    ended = {flow["flow_id"][-1]: flow for flow in reported(flows)}
    assert ended["7"]["bytes_total"] == 4 * 10**6 * 1.066
    assert ended["8"]["state"] == "CLOSED"


def test_a_flow_that_lived_between_two_readings_is_reported():
    flows = table()
    flows.read([], [], {}, 0)
    flows.read([], [tcp(10**6)], {}, 100 * MS)
    (flow,) = reported(flows)
    assert (flow["state"], flow["interval_ns"]) == ("CLOSED", 100 * MS)


@pytest.mark.parametrize("known_late", [False, True], ids=["reporter started late", "peer known late"])
def test_bytes_from_before_the_first_reading_are_no_rate(known_late):
    fleet = {} if known_late else dict(FLEET)
    flows = FlowTable("a", "boot", "fabric", LOCAL, fleet.get)
    if known_late:
        flows.read([tcp(10**12)], [], {}, 0)
        assert reported(flows, whole=True) == []
        fleet.update(FLEET)
    flows.read([tcp(10**12)], [], {}, 100 * MS)
    (first,) = reported(flows)
    assert (first["interval_ns"], first["bytes"], first["rate_bps"]) == (0, 0, 0.0)
    assert first["bytes_total"] >= 10**12
    flows.read([tcp(10**12 + 10**6, segments_sent=10**9 + 1000)], [], {}, 200 * MS)
    assert reported(flows)[0]["bytes"] == 1_066_000


def test_only_flows_between_hosts_of_the_fleet_are_reported():
    flows = table()
    flows.read([], [], {}, 0)
    outside = tcp(10**6, peer="192.0.2.1", cookie=1)
    from_elsewhere = tcp(10**6, cookie=2)._replace(source="192.0.2.7")
    to_itself = tcp(10**6, peer="10.0.0.3", cookie=3)
    small = tcp(1000, cookie=4)
    flows.read([outside, from_elsewhere, to_itself, small], [], {}, 100 * MS)
    assert reported(flows, whole=True) == []


def test_a_connection_that_only_acknowledges_is_no_flow_of_its_own():
    flows = table(min_bytes=65_536)
    flows.read([], [], {}, 0)
    acknowledges = tcp(0, cookie=1, segments_sent=10**6)
    little = tcp(65_535, cookie=2, segments_sent=10**6)
    enough = tcp(65_536, cookie=3)
    flows.read([acknowledges, little, enough], [], {}, 100 * MS)
    assert [flow["flow_id"] for flow in reported(flows, whole=True)] == ["a/boot/sock:3"]
    flows.read([], [acknowledges, little, enough], {}, 200 * MS)
    assert [flow["flow_id"] for flow in reported(flows)] == ["a/boot/sock:3"], "nor are their ends"
    key = ("TCP", "10.0.0.1", 4000, "10.0.0.2", 80)
    flows.read([tcp(0, cookie=4, segments_sent=9)], [], {key: Registration("train")}, 300 * MS)
    assert [flow["job"] for flow in reported(flows)] == ["train"], "unless a program said so"


def test_a_registered_flow_is_reported_with_its_job_even_if_small():
    flows = table()
    flows.read([], [], {}, 0)
    key = ("TCP", "10.0.0.1", 4000, "10.0.0.2", 80)
    flows.read([tcp(1000)], [], {key: Registration("train", "blue")}, 100 * MS)
    assert [(flow["job"], flow["tenant"]) for flow in reported(flows)] == [("train", "blue")]
    flows.read([tcp(2000)], [], {}, 200 * MS)
    assert reported(flows, whole=True)[0]["job"] == "train", "the program hung up, the flow is still its"


def test_counters_that_wrap_or_run_back_make_no_negative_figure():
    flows = table()
    flows.read([tcp(10**6, segments_sent=2**32 - 10, retransmits=2**32 - 1)], [], {}, 0)
    reported(flows)
    flows.read([tcp(10**6 + 5000, segments_sent=5, retransmits=1)], [], {}, 100 * MS)
    (flow,) = reported(flows, whole=True)
    assert (flow["bytes"], flow["retransmits"]) == (5000 + 15 * 66, 2)
    flows.read([], [tcp(0, segments_sent=0, retransmits=0)], {}, 200 * MS)
    (flow,) = reported(flows)
    assert (flow["bytes"], flow["rate_bps"], flow["state"]) == (0, 0.0, "CLOSED"), "reset by the peer"
    assert flow["bytes_total"] >= 10**6


def test_the_end_that_limits_a_flow_is_reported():
    flows = table()
    flows.read([tcp(10**6)], [], {}, 0)
    reported(flows)
    slow_receiver = tcp(2 * 10**6, busy_us=100_000, receiver_limited_us=80_000)
    flows.read([slow_receiver], [], {}, 100 * MS)
    (flow,) = reported(flows, whole=True)
    assert flow["busy_share"] == 1.0
    assert flow["receiver_limited_share"] == pytest.approx(0.8)
    assert flow["sender_limited_share"] == pytest.approx(0.0)
    idle = slow_receiver._replace(bytes_sent=2_100_000, busy_us=110_000)
    flows.read([idle], [], {}, 200 * MS)
    assert reported(flows)[0]["sender_limited_share"] == pytest.approx(0.9)
    paced = idle._replace(
        bytes_sent=3_100_000, segments_sent=3100, busy_us=210_000, rate_limit_bps=80_000_000
    )
    flows.read([paced], [], {}, 300 * MS)
    (flow,) = reported(flows)
    assert flow["rate_limit_bps"] == 80_000_000
    assert flow["sender_limited_share"] == 1.0


def test_a_sender_that_counts_for_itself_is_taken_by_its_own_clock():
    flows = table()
    flows.read([], [], {UDP: Registration("j", cookie=9, sent_bytes=0, at_ns=90 * MS)}, 100 * MS)
    flows.read([], [], {UDP: Registration("j", cookie=9, sent_bytes=10**6, at_ns=190 * MS)}, 230 * MS)
    (flow,) = reported(flows)
    assert (flow["interval_ns"], flow["bytes"], flow["protocol"]) == (100 * MS, 10**6, "UDP")
    assert flow["rate_bps"] == pytest.approx(80e6)
    assert flow["retransmits"] is None
    still = {UDP: Registration("j", cookie=9, sent_bytes=10**6, at_ns=190 * MS)}
    flows.read([], [], still, 330 * MS)
    assert reported(flows) == [], "no word yet is no news"
    flows.read([], [], still, 1190 * MS)
    assert reported(flows)[0]["rate_bps"] == 0, "a second without a word: it hangs"
    flows.read([], [], {}, 1290 * MS)
    assert [flow["state"] for flow in reported(flows)] == ["CLOSED"]


FIRST = ("TCP", "10.0.0.1", 4000, "10.0.0.2", 80)
SECOND = ("TCP", "10.0.0.1", 61_000, "10.0.0.2", 80)
MOVABLE = Registration("train", cookie=7, can=("MOVE",))


def second(sent: int, **more: Any) -> TcpSocket:
    return tcp(sent, cookie=8, source_port=61_000, **more)


def movable_flow(flows: FlowTable) -> None:
    flows.read([], [], {}, 0)
    flows.read([tcp(10**6)], [], {FIRST: MOVABLE}, 100 * MS)
    (flow,) = reported(flows)
    assert (flow["source_port"], flow["can"]) == (4000, ["MOVE"])


@pytest.mark.parametrize("old_ends", ["before", "with", "after"])
@pytest.mark.parametrize("line_late", [False, True], ids=["line first", "kernel first"])
def test_a_flow_that_moved_to_another_socket_goes_on_as_one(old_ends, line_late):
    """Whatever comes first: the new socket, its registration, or the end of the old socket."""
    flows = table()
    movable_flow(flows)
    moved = {SECOND: Registration("train", flow="sock:7", can=("MOVE",))}
    all_reported = []

    def read(at_ms: int, sockets: list[TcpSocket], ended: list[TcpSocket], registration: Any) -> None:
        flows.read(sockets, ended, registration, at_ms * MS)
        all_reported.extend(reported(flows))

    if old_ends == "before":
        read(200, [], [tcp(2 * 10**6)], {FIRST: MOVABLE})
    if line_late:
        old = [] if old_ends == "before" else [tcp(2 * 10**6)]
        read(300, [second(10**6), *old], [], {FIRST: MOVABLE})
    old = [tcp(2 * 10**6)] if old_ends == "after" else []
    read(400, [second(2 * 10**6), *old], [tcp(2 * 10**6)] if old_ends == "with" else [], moved)
    read(500, [second(3 * 10**6)], [tcp(2 * 10**6)] if old_ends == "after" else [], moved)
    read(600, [second(4 * 10**6)], [], moved)
    flows.read([second(5 * 10**6)], [], moved, 700 * MS)
    all_reported += reported(flows, whole=True)
    assert {flow["flow_id"] for flow in all_reported} == {"a/boot/sock:7"}, "nothing else shows"
    assert {flow["state"] for flow in all_reported} == {"OPEN"}
    assert all_reported[-1]["source_port"] == 61_000
    assert all_reported[-1]["bytes_total"] == 7 * 10**6 * 1.066, "of both sockets"
    assert 10**6 * 1.066 + sum(flow["bytes"] for flow in all_reported) == all_reported[-1]["bytes_total"]
    flows.read([], [second(5 * 10**6)], {}, 800 * MS)
    assert [flow["state"] for flow in reported(flows)] == ["CLOSED"]


def test_a_movable_flow_without_a_next_socket_is_reported_as_closed():
    flows = table()
    movable_flow(flows)
    flows.read([], [tcp(2 * 10**6)], {FIRST: MOVABLE}, 200 * MS)
    assert [flow["state"] for flow in reported(flows)] == []
    flows.read([], [], {FIRST: MOVABLE}, 400 * MS)
    flows.read([], [], {FIRST: MOVABLE}, 900 * MS)
    (flow,) = reported(flows)
    assert (flow["state"], flow["bytes_total"]) == ("CLOSED", 2 * 10**6 * 1.066)


def test_a_connection_beside_a_movable_flow_is_reported_once_no_flow_claimed_it():
    flows = table()
    movable_flow(flows)
    for at in range(2, 12):
        flows.read([tcp(at * 10**6), second(at * 10**6)], [], {FIRST: MOVABLE}, at * 100 * MS)
        assert not any(flow["flow_id"].endswith(":8") for flow in reported(flows))
    flows.read([tcp(12 * 10**6), second(12 * 10**6)], [], {FIRST: MOVABLE}, 1300 * MS)
    assert any(flow["flow_id"].endswith(":8") for flow in reported(flows, whole=True))


def test_a_flow_moves_many_times_and_back():
    flows = table()
    movable_flow(flows)
    sent = 1
    for iteration in range(1, 6):
        port = 4000 if iteration % 2 == 0 else 61_000
        key = ("TCP", "10.0.0.1", port, "10.0.0.2", 80)
        registration = {key: Registration("train", flow="sock:7", can=("MOVE",))}
        found = tcp(10**6, cookie=100 + iteration, source_port=port)
        flows.read([found], [], registration, (100 + 100 * iteration) * MS)
        sent += 1
        reported(flows)
    (flow,) = reported(flows, whole=True)
    assert (flow["flow_id"], flow["source_port"]) == ("a/boot/sock:7", 61_000)
    assert flow["bytes_total"] == sent * 10**6 * 1.066


def test_a_udp_flow_that_moved_keeps_its_id_and_count():
    flows = table()
    moved = ("UDP", "10.0.0.1", 61_000, "10.0.0.2", 6000)
    flows.read([], [], {UDP: Registration("j", cookie=9, sent_bytes=0, at_ns=0, can=("MOVE",))}, 0)
    registration = Registration("j", cookie=9, sent_bytes=10**6, at_ns=100 * MS, can=("MOVE",))
    flows.read([], [], {UDP: registration}, 100 * MS)
    reported(flows)
    registration = Registration(
        "j", cookie=10, flow="sock:9", sent_bytes=2 * 10**6, at_ns=200 * MS, can=("MOVE",)
    )
    flows.read([], [], {moved: registration}, 200 * MS)
    (flow,) = reported(flows)
    assert (flow["flow_id"], flow["state"], flow["source_port"]) == ("a/boot/sock:9", "OPEN", 61_000)
    assert (flow["bytes"], flow["bytes_total"]) == (10**6, 2 * 10**6)


def test_hops_are_those_of_the_ports_that_a_flow_has_now():
    flows = table()
    movable_flow(flows)
    known = {FIRST: ("a:eth0>l:1", "l:2>b:eth0")}
    flows.trace(lambda nic, peer, key: known.get(key, ()))
    (flow,) = reported(flows)
    assert flow["links"] == list(known[FIRST]), "told at once"
    moved = {SECOND: Registration("train", flow="sock:7", can=("MOVE",))}
    flows.read([tcp(10**6), second(0)], [], moved, 200 * MS)
    (flow,) = reported(flows)
    assert (flow["source_port"], flow["links"]) == (61_000, []), "never another port's"
    known[SECOND] = ("a:eth0>l:1", "l:3>b:eth0")
    flows.trace(lambda nic, peer, key: known.get(key, ()))
    assert [flow["links"] for flow in reported(flows)] == [list(known[SECOND])]


def test_more_flows_than_a_record_holds_go_into_several():
    flows = table()
    flows.read([], [], {}, 0)
    flows.read([tcp(10**6, cookie=n) for n in range(1, 5001)], [], {}, 100 * MS)
    records = flows.report(True, 1, iter(range(10)).__next__)
    assert [len(record["flows"]) for record in records] == [4096, 904]
    assert [record["report"] for record in records] == [0, 1]
    assert not any(record["whole"] for record in records), "none of them is all"


def test_addresses_follow_the_inventory():
    addresses = AddressTable()
    addresses.update("a/e0", {"addresses": ["10.0.0.1", "2001:DB8::1"]}, 0)
    assert addresses.nic_of("10.0.0.1") == addresses.nic_of("2001:db8::1") == "a/e0"
    addresses.update("b/e0", {"addresses": ["10.0.0.1"]}, 1)
    addresses.update("a/e0", {"addresses": ["10.0.0.9"]}, 2)
    assert addresses.nic_of("10.0.0.1") == "b/e0", "it moved, and its old owner's news does not take it away"
    assert addresses.nic_of("2001:db8::1") is None
    addresses.update("b/e0", None, 3)
    assert addresses.nic_of("10.0.0.1") is None


REGISTERED = {
    "protocol": "udp",
    "source_address": "127.0.0.1",
    "source_port": 5,
    "peer_address": "127.0.0.2",
    "peer_port": 6,
    "job": "j",
    "tenant": None,
    "cookie": 3,
    "sent_bytes": 10,
    "at_ns": 11,
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol": "sctp"}, "protocol 'sctp': expected tcp, udp or roce"),
        ({"source_address": "localhost"}, "source_address 'localhost': expected an IPv4 or IPv6 address"),
        ({"source_port": 0}, "source_port 0: expected a whole number from 1 to 65535"),
        ({"source_port": True}, "source_port True"),
        ({"peer_port": "80"}, "peer_port '80'"),
        ({"sent_bytes": -1}, "sent_bytes -1: expected a whole number from 0"),
        ({"sent_bytes": 1e300}, "sent_bytes 1e"),
        ({"cookie": None}, "cookie None"),
        ({"job": "two\nlines"}, "job 'two"),
        ({"job": "x" * 129}, "expected 1 to 128 printable"),
        ({"colour": 1}, "colour: unknown"),
        ({"flow": "sock:0"}, "flow 'sock:0': expected sock:<cookie>"),
        ({"flow": "sock:1\n"}, "flow 'sock:1"),
        ({"flow": 7}, "flow 7: expected"),
        ({"flow": "qp:rxe0:17:99"}, "flow 'qp:rxe0:17:99': expected sock:<cookie>"),
        ({"closed": True}, "closed True: expected .* of roce alone"),
        ({"can": "MOVE"}, "can 'MOVE': expected a list out of MOVE, PACE"),
        ({"can": ["MOVE", "FLY"]}, "can .*: expected a list out of MOVE, PACE"),
    ],
)
def test_a_registration_that_cannot_be_is_refused_in_one_line(change, reason):
    with pytest.raises(ValueError, match=reason) as refused:
        parse_registration(json.dumps(REGISTERED | change).encode())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_line_that_is_no_flow_is_refused(line):
    with pytest.raises(ValueError, match="expected one JSON object"):
        parse_registration(line)


PAIR = {
    "protocol": "roce",
    "source_address": "127.0.0.1",
    "source_port": 49441,
    "peer_address": "127.0.0.2",
    "peer_port": 4791,
    "flow": "qp:rxe0:17:99",
    "sent_bytes": 10,
    "at_ns": 11,
    "can": ["MOVE"],
}


def test_a_queue_pair_names_itself():
    key, registration = parse_registration(json.dumps(PAIR).encode())
    assert key == ("ROCE", "127.0.0.1", 49441, "127.0.0.2", 4791)
    assert (registration.name, registration.can, registration.sent_bytes) == ("qp:rxe0:17:99", ("MOVE",), 10)
    _, long_up = parse_registration(json.dumps(PAIR | {"flow": f"qp:mlx5_0:1234567:{10**13}"}).encode())
    assert long_up.name == f"qp:mlx5_0:1234567:{10**13}", "microseconds of many days"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flow": None}, "flow None: expected qp:<device>:<qpn>:<create count>"),
        ({"flow": "qp:a/b:1:2"}, "flow 'qp:a/b:1:2'"),
        ({"flow": "sock:7"}, "flow 'sock:7': expected qp:"),
        ({"sent_bytes": None}, "sent_bytes None"),
        ({"closed": "yes"}, "closed 'yes': expected true or false"),
    ],
)
def test_a_queue_pair_that_cannot_be_is_refused_in_one_line(change, reason):
    with pytest.raises(ValueError, match=reason):
        parse_registration(json.dumps(PAIR | change).encode())


def pair(port: int, sent: int, at_ms: int, name: str = "qp:rxe0:17:99") -> Any:
    key = ("ROCE", "10.0.0.1", port, "10.0.0.2", 4791)
    return key, Registration(flow=name, sent_bytes=sent, at_ns=at_ms * MS, can=("MOVE",))


def test_a_queue_pair_that_is_moved_is_the_same_flow_on_another_path():
    flows = table()
    flows.read([], [], {}, 100 * MS, [pair(49_441, 0, 90)])
    (first,) = reported(flows)
    assert (first["flow_id"], first["protocol"], first["can"]) == ("a/boot/qp:rxe0:17:99", "ROCE", ["MOVE"])
    known = {49_441: ("a:eth0>l:1",), 50_000: ("a:eth0>l:2",)}
    flows.trace(lambda nic, peer, key: known[key[2]])
    assert reported(flows)[-1]["links"] == ["a:eth0>l:1"]
    flows.read([], [], {}, 200 * MS, [pair(50_000, 10**6, 190)])
    found = reported(flows)[-1]
    assert (found["source_port"], found["bytes_total"], found["state"]) == (50_000, 10**6, "OPEN")
    assert found["links"] == [], "never another port's"
    flows.trace(lambda nic, peer, key: known[key[2]])
    assert reported(flows)[-1]["links"] == ["a:eth0>l:2"]
    flows.read([], [], {}, 300 * MS)
    assert [flow["state"] for flow in reported(flows)] == ["CLOSED"]


def test_queue_pairs_that_share_their_ports_are_flows_of_their_own():
    flows = table()
    flows.read([], [], {}, 100 * MS, [pair(49_441, 0, 90), pair(49_441, 5, 90, "qp:rxe0:18:100")])
    assert {flow["flow_id"]: flow["bytes_total"] for flow in reported(flows)} == {
        "a/boot/qp:rxe0:17:99": 0,
        "a/boot/qp:rxe0:18:100": 5,
    }


def served(registrations: Registrations, until: Any) -> None:
    end = time.monotonic() + 10
    while not until():
        assert time.monotonic() < end
        registrations.serve(time.monotonic() + 0.01)


def test_queue_pairs_of_one_program_come_and_go_on_one_connection(tmp_path):
    path = tmp_path / "flows.sock"
    registrations = Registrations(path, {"127.0.0.1"}.__contains__)
    other = PAIR | {"flow": "qp:rxe0:18:100"}
    with contextlib.closing(registrations), connect(path, 5) as program, connect(path, 5) as thief:
        for registration in (PAIR, other):
            program.sendall(json.dumps(registration).encode() + b"\n")
        served(registrations, lambda: len(registrations.queue_pairs) == 2)
        registrations.sweep()
        thief.sendall(json.dumps(PAIR).encode() + b"\n")
        served(registrations, lambda: select.select([thief], [], [], 0)[0])
        assert "registered by another program already" in json.loads(thief.recv(4096))["error"]
        changes = registrations.changes
        program.sendall(json.dumps(PAIR | {"source_port": 50000, "sent_bytes": 11}).encode() + b"\n")
        served(registrations, lambda: registrations.queue_pairs["qp:rxe0:17:99"][0][2] == 50000)
        assert registrations.changes == changes + 1, "its new way is traced at once"
        closing = {"protocol": "roce", "flow": "qp:rxe0:17:99", "closed": True}
        program.sendall(json.dumps(closing).encode() + b"\n")

        def swept() -> bool:
            registrations.sweep()
            return list(registrations.queue_pairs) == ["qp:rxe0:18:100"]

        served(registrations, swept)
        program.close()
        served(registrations, lambda: registrations.sweep() or not registrations.queue_pairs)


def test_the_socket_is_its_owners_and_lets_go_of_a_flow_after_its_last_counters(tmp_path):
    path = tmp_path / ("d" * 100) / "flows.sock"
    registrations = Registrations(path, {"127.0.0.1"}.__contains__)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    program = connect(path, 5)
    program.sendall(json.dumps(REGISTERED).encode() + b"\n")
    served(registrations, lambda: registrations.flows)
    ((key, registration),) = registrations.flows.items()
    assert key == ("UDP", "127.0.0.1", 5, "127.0.0.2", 6)
    assert (registration.job, registration.sent_bytes) == ("j", 10)

    other = connect(path, 5)
    for line, reason in (
        (REGISTERED, "registered by another"),
        (REGISTERED | {"source_address": "127.0.0.9"}, "no NIC of this host"),
    ):
        other.sendall(json.dumps(line).encode() + b"\n")
        registrations.serve(time.monotonic() + 0.05)
        assert reason in json.loads(other.recv(1000))["error"]
    other.sendall(b"x" * 5000)
    served(registrations, lambda: len(registrations._clients) == 1)
    assert "expected at most 4096" in json.loads(other.recv(1000))["error"]
    other.close()

    program.sendall(json.dumps(REGISTERED | {"sent_bytes": 9, "at_ns": 12}).encode() + b"\n")
    registrations.serve(time.monotonic() + 0.05)
    assert "expected 10 or more" in json.loads(program.recv(1000))["error"]
    program.sendall(json.dumps(REGISTERED | {"sent_bytes": 99, "at_ns": 12}).encode() + b"\n")
    program.close()
    served(registrations, lambda: not registrations._clients)
    assert registrations.flows[key].sent_bytes == 99
    registrations.sweep()
    assert not registrations.flows
    with pytest.raises(OSError, match="another process listens there"):
        Registrations(path, {}.__contains__)
    registrations.close()
    assert not path.exists()


def test_a_flood_of_garbage_and_many_flows_that_end_at_once_hold_up_nothing(tmp_path, caplog):
    registrations = Registrations(tmp_path / "flows.sock", {"127.0.0.1"}.__contains__)
    lines = [REGISTERED | {"source_port": port, "cookie": port} for port in range(1, 20_001)]
    reported = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    for _ in range(2):  # a program that ends, and its next run, which takes them all over before a sweep
        program = connect(tmp_path / "flows.sock", None)
        teller = threading.Thread(target=program.sendall, args=(reported,))
        teller.start()
        before = registrations.changes
        while teller.is_alive() or registrations._selector.select(0):
            registrations.serve(0)
        teller.join()
        program.close()
        served(registrations, lambda: not registrations._clients)
    assert (len(registrations.flows), registrations.changes) == (20_000, before)
    garbage = [
        b"x\n",
        b"[" * 4000 + b"\n",
        b'{"a\\nb": 1}\n',
        b"5" * 4000 + b"\n",
        b"\xff\xfe\n",
        b'{"job": NaN}\n',
        b'"' + b"x" * 8000 + b'"\n',
        json.dumps(REGISTERED | {"peer_address": "fe80::1%" + "x" * 900}).encode() + b"\n",
    ]
    program = connect(tmp_path / "flows.sock", 5)
    for number in range(400):
        program.sendall(garbage[number % len(garbage)])
        registrations.serve(0)
    registrations.serve(time.monotonic() + 0.05)
    assert registrations.refused == 400
    assert len(caplog.records) <= 20
    assert all("\n" not in record.getMessage() for record in caplog.records)
    program.close()
    served(registrations, lambda: not registrations._clients)
    registrations.sweep()
    assert not registrations.flows
    registrations.close()


def test_without_descriptors_left_registrations_neither_end_nor_spin(tmp_path):
    registrations = Registrations(tmp_path / "flows.sock", {"127.0.0.1"}.__contains__)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = connect(tmp_path / "flows.sock", 5)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        registrations.serve(time.monotonic() + 0.2)
        assert 0 < registrations.refused <= 3, "it is looked at again now and then, not all the time"
        assert not registrations._clients
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    served(registrations, lambda: registrations._clients)
    program.close()
    registrations.close()


def test_a_moved_flow_lets_go_of_its_former_ports(tmp_path):
    registrations = Registrations(tmp_path / "flows.sock", {"127.0.0.1"}.__contains__)
    program, other = connect(tmp_path / "flows.sock", 5), connect(tmp_path / "flows.sock", 5)
    first = REGISTERED | {"can": ["PACE", "MOVE"]}
    moved = first | {"source_port": 61_000, "flow": "sock:3", "cookie": 4, "sent_bytes": 12}
    program.sendall(json.dumps(first).encode() + b"\n")
    served(registrations, lambda: registrations.flows)
    other.sendall(json.dumps(moved).encode() + b"\n")
    registrations.serve(time.monotonic() + 0.05)
    assert "flow sock:3: registered by another program" in json.loads(other.recv(1000))["error"]
    program.sendall(json.dumps(moved | {"sent_bytes": 9}).encode() + b"\n")
    registrations.serve(time.monotonic() + 0.05)
    assert "expected 10 or more" in json.loads(program.recv(1000))["error"], "its count goes on"
    changes = registrations.changes
    program.sendall(json.dumps(moved).encode() + b"\n")
    served(registrations, lambda: registrations.changes > changes)
    ((key, registration),) = registrations.flows.items()
    assert (key[2], registration.name, registration.can) == (61_000, "sock:3", ("MOVE", "PACE"))
    other.sendall(json.dumps(REGISTERED | {"cookie": 5}).encode() + b"\n")
    served(registrations, lambda: len(registrations.flows) == 2)
    for each in (program, other):
        each.close()
    served(registrations, lambda: not registrations._clients)
    registrations.sweep()
    assert not registrations.flows
    registrations.close()


HOSTS = [NicSettings(host=f"lo{n}", device="lo", address=f"127.0.0.{n}") for n in (1, 2)]


@contextlib.contextmanager
def connection(
    family: socket.AddressFamily = socket.AF_INET,
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP connection from lo1 to lo2, over the machine's loopback."""
    mapped = "::ffff:" if family == socket.AF_INET6 else ""
    with socket.socket(family) as listener, socket.socket(family) as sender:
        listener.bind((f"{mapped}127.0.0.2", 0))
        listener.listen(1)
        sender.bind((f"{mapped}127.0.0.1", 0))
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        with receiver:
            yield sender, receiver


@pytest.fixture
def reporter(tmp_path) -> Iterator[FlowReporter]:
    addresses = AddressTable()
    for nic in HOSTS:
        addresses.update(f"{nic.host}/lo", {"addresses": [nic.address]}, 0)
    made = FlowReporter(FlowSettings(socket=tmp_path / "flows.sock"), HOSTS, addresses)
    made.read()
    yield made
    made.close()


def pump(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    reading = threading.Thread(target=lambda: [receiver.recv(1 << 20, socket.MSG_WAITALL)])
    reading.start()
    sender.sendall(bytes(size))
    reading.join(10)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_real_connection_is_reported_with_its_bytes_and_its_end(reporter, family):
    with connection(family) as (sender, receiver):
        cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        port = sender.getsockname()[1]
        pump(sender, receiver, 1 << 20)
        reporter.read()
        mine = [flow for record in reporter.report(True) for flow in record["flows"]]
        (flow,) = [flow for flow in mine if flow["flow_id"].endswith(f"sock:{cookie}")]
        assert (flow["nic"], flow["peer"], flow["source_port"]) == ("lo1/lo", "lo2/lo", port)
        assert flow["protocol"] == "TCP"
        assert (flow["source_address"], flow["peer_address"]) == ("127.0.0.1", "127.0.0.2")
        assert 1 << 20 <= flow["bytes"] < 1.02 * (1 << 20)
        assert flow["rtt_ns"] > 0
        pump(sender, receiver, 1 << 20)
    end = time.monotonic() + 10
    closed: list[dict[str, Any]] = []
    while not closed:
        assert time.monotonic() < end
        reporter.read()
        reported = [flow for record in reporter.report(False) for flow in record["flows"]]
        closed = [
            each for each in reported if each["flow_id"] == flow["flow_id"] and each["state"] == "CLOSED"
        ]
    assert 2 << 20 <= closed[0]["bytes_total"] < 1.02 * (2 << 20)


def test_a_receiver_that_does_not_read_is_seen_to_hold_the_flow_back(reporter):
    with connection() as (sender, receiver):
        cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 20))
        end = time.monotonic() + 20
        share = 0.0
        while share < 0.9:
            assert time.monotonic() < end, share
            threading.Event().wait(0.05)
            reporter.read()
            for record in reporter.report(True):
                for flow in record["flows"]:
                    if flow["flow_id"].endswith(f":{cookie}"):
                        share = flow["receiver_limited_share"] or 0.0
        assert receiver.fileno() >= 0


def test_reports_count_up_over_restarts(tmp_path, reporter):
    before = reporter.report(True)
    again = FlowReporter(FlowSettings(socket=tmp_path / "other.sock"), HOSTS, AddressTable())
    after = again.report(True)
    again.close()
    assert min(record["report"] for record in after) > max(record["report"] for record in before)
    assert {record["host"] for record in after} == {"lo1", "lo2"}
    assert all(record["whole"] and record["boot"] for record in after)


def test_a_namespace_that_is_not_there_is_named(tmp_path):
    nic = NicSettings(host="x", device="e", address="10.0.0.1", netns=str(tmp_path / "none"))
    with pytest.raises(OSError, match="none"):
        FlowReporter(FlowSettings(socket=tmp_path / "f.sock"), [nic], AddressTable())


_RUN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.flows.service import main
from producers.settings import FlowSettings, NicSettings
settings, nics = json.loads(sys.argv[1])
sys.exit(main(FlowSettings(**settings), [NicSettings(**nic) for nic in nics]))
"""


def announce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for nic in HOSTS:
        record = nic_record(
            nic,
            run=1,
            probe_port=9,
            phc_index=None,
            speed_bps=None,
            mtu_bytes=None,
            since_ns=1,
            announced_ns=1,
        )
        producer.produce("fabric.inventory", codec.encode("Nic", record), f"{nic.host}/lo")
    assert producer.flush(10) == 0


def test_the_service_publishes_by_host_and_stops_on_a_signal(tmp_path, log, read):
    announce(log.bootstrap)
    settings = {
        "kafka": {"bootstrap": log.bootstrap},
        "socket": str(tmp_path / "flows.sock"),
        "whole_ms": 100,
    }
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps([settings, [nic.model_dump(mode="json") for nic in HOSTS]])],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with connection() as (sender, receiver):
            cookie = struct.unpack("=Q", sender.getsockopt(socket.SOL_SOCKET, 57, 8))[0]
            pump(sender, receiver, 1 << 20)
            mine = f":{cookie}"
            reader = read("fabric.flows")
            reader.until(lambda got: any(f["flow_id"].endswith(mine) for r in got for f in r["flows"]))
        reader.until(
            lambda got: any(
                f["flow_id"].endswith(mine) and f["state"] == "CLOSED" for r in got for f in r["flows"]
            )
        )
        reports = [record["report"] for record in reader.records if record["host"] == "lo1"]
        assert reports == sorted(set(reports))
        process.send_signal(signal.SIGTERM)
        _, text = process.communicate(timeout=10)
        assert process.returncode == 0, text
        assert not (tmp_path / "flows.sock").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
