"""The connection to an agent: subjects are published again, nothing waits, and garbage ends it."""

import select

import pytest

from fabrictime_client import _connection
from fabrictime_client._connection import LINE_BYTES, AgentConnection
from schemas.ipc import listen


@pytest.fixture
def agent(tmp_path):
    server = listen(tmp_path / "agent.sock", blocking=True)
    server.settimeout(5)
    yield server
    server.close()


@pytest.fixture
def connection(tmp_path, monkeypatch):
    monkeypatch.setattr(_connection, "_RETRY_S", 0.0)
    with select.epoll() as epoll:
        made = AgentConnection(str(tmp_path / "agent.sock"), epoll)
        yield made
        made.close()


def accept(agent):
    peer, _ = agent.accept()
    peer.settimeout(5)
    return peer


def test_without_an_agent_lines_are_dropped_and_subjects_kept(tmp_path, connection):
    connection.publish("flow 1", "FLOW 1")
    connection.send("DONE 7")
    assert connection.exchange() == []
    agent = listen(tmp_path / "agent.sock", blocking=True)
    connection.exchange()
    with accept(agent) as peer:
        assert peer.recv(4096) == b"FLOW 1\n"
    agent.close()


def test_a_new_connection_gets_the_newest_line_of_every_living_subject(agent, connection):
    connection.publish("a", "FLOW a 1")
    connection.publish("b", "FLOW b 1")
    connection.exchange()
    with accept(agent) as peer:
        assert peer.recv(4096) == b"FLOW a 1\nFLOW b 1\n"
        connection.publish("a", "FLOW a 2")
        connection.publish("a", "FLOW a 2")
        connection.withdraw("b", "GONE b")
        connection.withdraw("nobody", "GONE nobody")
        connection.flush()
        assert sorted(peer.recv(4096).splitlines()) == [b"FLOW a 2", b"GONE b"]
    assert connection.exchange() == [], "the agent hung up"
    connection.exchange()
    with accept(agent) as peer:
        assert peer.recv(4096) == b"FLOW a 2\n"


def test_lines_arrive_whole_in_pieces_of_any_size(agent, connection):
    connection.exchange()
    with accept(agent) as peer:
        peer.sendall(b"MOVE 1\nPA")
        assert connection.exchange() == ["MOVE 1"]
        peer.sendall(b"CE 2\n\xff\n")
        assert connection.exchange() == ["PACE 2", "\ufffd"]
        peer.sendall(b"x" * (8 * LINE_BYTES + 1))
        connection.exchange()
        assert peer.recv(1) == b"", "a line without an end closes the connection"


def test_an_agent_that_does_not_read_costs_bounded_memory(agent, connection):
    connection.exchange()
    with accept(agent):
        for _ in range(3_000):
            connection.send("x" * 1000)
        assert len(connection._unsent) <= _connection._UNSENT_BYTES + 1001
    assert not connection.refused


def test_only_the_last_refusals_are_kept(connection):
    connection.note_refusals([f"ERROR {number}" + "x" * 9999 for number in range(1000)])
    assert len(connection.refused) == 16
    assert connection.refused[-1].startswith("ERROR 999x")
    assert len(connection.refused[-1]) == LINE_BYTES


def test_letters_of_another_alphabet_stay_one_line_of_ascii(agent, connection):
    connection.publish("a", "FLOW é")
    connection.exchange()
    with accept(agent) as peer:
        assert peer.recv(4096) == b"FLOW \\xe9\n"
