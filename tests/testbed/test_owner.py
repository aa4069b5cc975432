"""The flow endpoint: lines of the actuator, registrations, and sockets that come and go."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.owner import Command, OwnedFlow, Owner, cookie_of, parse_command
from schemas.ipc import listen


def flow(key: str = "sock:1", host: str = "h1", **fields: object) -> OwnedFlow:
    return OwnedFlow(key, host, "tcp", "10.0.0.1", 50_001, "10.0.0.2", 5001, ("MOVE",), **fields)


FLOWS = {(host, "sock:1"): flow(host=host) for host in ("h1", "h2")}


@given(
    st.binary(max_size=80)
    | st.text(st.sampled_from("MOVEPACE 0123456789:sockh"), max_size=40).map(str.encode)
)
def test_any_line_is_a_command_or_refused(line: bytes) -> None:
    try:
        found = parse_command(line, FLOWS)
    except (ValueError, LookupError):
        return
    assert found.flow in FLOWS.values()
    assert found.value >= 0


def test_a_command_names_its_flow_with_or_without_a_host() -> None:
    assert parse_command(b"MOVE 7 sock:1 50002 h2", FLOWS) == Command(
        "MOVE", 7, FLOWS["h2", "sock:1"], 50_002
    )
    assert parse_command(b"PACE 8 sock:1 0", FLOWS).flow is FLOWS["h1", "sock:1"]
    with pytest.raises(LookupError) as unknown:
        parse_command(b"MOVE 9 sock:2 1", FLOWS)
    assert unknown.value.args == ("9",)
    with pytest.raises(ValueError, match="whole numbers"):
        parse_command(b"MOVE 9 sock:1 -1", FLOWS)


def test_a_udp_flow_registers_its_bytes_and_a_tcp_flow_leaves_them_to_the_kernel() -> None:
    assert "sent_bytes" not in flow().registration(5)
    udp = OwnedFlow("sock:77", "h1", "udp", "10.0.0.1", 1, "10.0.0.2", 2, sent_bytes=9)
    found = udp.registration(5)
    assert (found["cookie"], found["sent_bytes"], found["at_ns"], found["can"]) == (77, 9, 5, [])


def test_without_sockets_nothing_waits_and_nothing_fails() -> None:
    owner = Owner(None, None)
    owner.add(flow())
    assert (owner.tend(), owner.sockets(), owner.refused) == ([], [], [])
    owner.close()


def test_every_flow_is_told_to_an_actuator_that_appears_late(tmp_path) -> None:
    path = tmp_path / "control.sock"
    owner = Owner(None, path)
    owner.add(flow())
    owner.add(flow("sock:2"))
    server = listen(path, blocking=True)
    owner.tend()
    peer, _ = server.accept()
    assert peer.recv(4096).decode().splitlines() == ["FLOW sock:1 50001 MOVE h1", "FLOW sock:2 50001 MOVE h1"]
    peer.sendall(
        b"MOVE 1 sock:1 50009 h1\nPACE 2 sock:1 5 h1\nMOVE 3 sock:9 1 h1\nHELLO\nERROR no such host\n"
    )
    [command] = owner.tend()
    assert (command.verb, command.value) == ("MOVE", 50_009)
    owner.done(command, 50_009, "SOCKET")
    answers = peer.recv(4096).decode().splitlines()
    assert answers[0] == "FAILED 2 sock:1 does not pace"
    assert answers[1] == "FAILED 3 no such flow here"
    assert answers[2].startswith("ERROR 'HELLO' of 1 words")
    assert answers[3] == "DONE 1 50009 SOCKET"
    assert owner.refused == ["ERROR no such host"]
    owner.close()
    assert peer.recv(4096).decode().splitlines() == ["GONE sock:1 h1", "GONE sock:2 h1"]
    peer.close()
    server.close()


def test_each_socket_has_a_cookie_of_its_own() -> None:
    with socket.socket() as one, socket.socket() as two:
        assert cookie_of(one) == cookie_of(one) != cookie_of(two)
