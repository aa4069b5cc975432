"""Registrations: lines of programs on the owner-only socket, their checks, floods and ends."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import stat
import threading
import time
from typing import Any

import pytest

from producers.flows.intervals import FlowTable
from producers.flows.registrations import Registrations, parse_registration
from schemas import codec
from schemas.ipc import connect
from tests.waiting import wait_until

UDP = ("UDP", "10.0.0.1", 5000, "10.0.0.2", 6000)


def reported(of: FlowTable, whole: bool = False) -> list[dict[str, Any]]:
    records = of.report(whole, 1, iter(range(10**6)).__next__)
    for record in records:
        codec.encode("FlowReports", record)
    return [flow for record in records for flow in record["flows"]]


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
        ({"job": ""}, "job '': expected 1 to 128 characters"),
        ({"job": "x" * 129}, "expected 1 to 128 characters"),
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


def served(registrations: Registrations, until: Any) -> None:
    end = time.monotonic() + 10
    while not until():
        assert time.monotonic() < end
        registrations.serve(time.monotonic() + 0.01)


@pytest.mark.parametrize(
    ("raw", "job"),
    [("训练一".encode(), "训练一"), (b"two\\nlines", "two\\x0alines"), (b"caf\xe9", "caf\\xe9")],
)
def test_a_job_has_the_name_that_its_operations_have(raw, job):
    line = json.dumps(REGISTERED | {"job": "NAME"}).encode().replace(b"NAME", raw)
    assert parse_registration(line)[1].job == job


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


def test_a_removed_socket_is_made_again(tmp_path):
    path = tmp_path / "flows.sock"
    registrations = Registrations(path, {"127.0.0.1"}.__contains__)
    with contextlib.closing(registrations):
        path.unlink()
        wait_until(lambda: registrations.check() is None and path.exists(), 10.0)
        with connect(path, 5) as program:
            program.sendall(json.dumps(PAIR).encode() + b"\n")
            served(registrations, lambda: registrations.queue_pairs)
