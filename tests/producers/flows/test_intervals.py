"""What a host's flow reporter says of TCP flows that run and of flows that programs register."""

from __future__ import annotations

from typing import Any

import pytest

from producers.flows.intervals import FlowRules, FlowTable, Registration
from producers.flows.socket_diag import TcpSocket
from schemas import codec

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
