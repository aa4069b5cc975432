"""The socket of profilers: segments that are taken, and everything that is refused."""

from __future__ import annotations

import os
import selectors
import socket
import time

import pytest

from producers.collectives.listener import Listener, ProcessId, is_alive, process_id, socket_of
from schemas.ipc import CHECK_S
from tests.producers.collectives.segments import Segment


class Served:
    """A listener, and what it took and lost."""

    def __init__(self, path, limit=1 << 30, refusal=None):
        self.path, self.taken, self.lost, self.refusal = path, [], [], refusal
        self.selector, self.clients = selectors.DefaultSelector(), []
        self.listener = Listener(path, self.selector, limit, self.take, self.lost.append)

    def take(self, passed):
        self.taken.append(passed)
        return self.refusal

    def serve(self):
        while ready := self.selector.select(0):
            for key, _ in ready:
                key.data(key.fd)

    def connect(self):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(5)
        client.connect(str(self.path))
        self.clients.append(client)
        return client

    def close(self):
        for client in self.clients:
            client.close()
        self.listener.close()
        self.selector.close()

    def send(self, text, *descriptors, client=None):
        client = client or self.connect()
        socket.send_fds(client, [text], list(descriptors)) if descriptors else client.send(text)
        self.serve()
        return client, client.recv(300).decode()


@pytest.fixture
def served(tmp_path):
    made = Served(tmp_path / "c.sock")
    yield made
    made.close()
    assert not made.path.exists()


@pytest.fixture
def segment():
    made = Segment(64)
    yield made
    made.close()


def test_a_segment_is_taken_and_its_end_is_noticed(served, segment):
    client, answer = served.send(b"SEGMENT 1", segment.fd)
    assert answer == "OK"
    (passed,) = served.taken
    assert (passed.process, passed.inode) == (process_id(os.getpid()), os.fstat(segment.fd).st_ino)
    assert passed.reader.job == "train"
    client.close()
    served.serve()
    assert served.lost == [passed.inode]
    passed.reader.close()


@pytest.mark.parametrize("text", [b"SEGMENT 2", b"", b"x" * 64])
def test_another_greeting_is_refused(served, segment, text):
    _, answer = served.send(text, segment.fd)
    assert answer.startswith("ERROR packet")
    assert not served.taken


def test_descriptors_are_checked(served, segment, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with (tmp_path / "file").open("wb+") as file:
        answers = [
            served.send(b"SEGMENT 1")[1],
            served.send(b"SEGMENT 1", segment.fd, segment.fd)[1],
            served.send(b"SEGMENT 1", file.fileno())[1],
            served.send(b"x" * 100, segment.fd)[1],
        ]
    assert "expected SEGMENT 1 with a descriptor" in answers[0]
    assert "2 descriptors: expected at most" in answers[1]
    assert "expected a memfd sealed" in answers[2]
    assert "packet of 64 bytes and 1 descriptors" in answers[3]
    assert not served.taken
    assert len(os.listdir("/proc/self/fd")) == before + 4, "only the clients are open"
    assert served.listener.refused == 4


def test_a_second_segment_on_one_connection_is_refused(served, segment):
    client, answer = served.send(b"SEGMENT 1", segment.fd)
    assert answer == "OK"
    _, answer = served.send(b"SEGMENT 1", segment.fd, client=client)
    assert answer.startswith("ERROR")
    assert served.lost == [os.fstat(segment.fd).st_ino]
    served.taken[0].reader.close()


def test_a_large_segment_and_one_too_many_are_refused(tmp_path, segment):
    small = Served(tmp_path / "a.sock", limit=1000)
    assert "expected at most 1000" in small.send(b"SEGMENT 1", segment.fd)[1]
    full = Served(tmp_path / "b.sock", refusal="8 processes are connected already")
    assert full.send(b"SEGMENT 1", segment.fd)[1] == "ERROR 8 processes are connected already"
    for each in (small, full):
        each.close()


def test_a_removed_socket_is_made_again_and_keeps_its_connections(served, segment):
    _, answer = served.send(b"SEGMENT 1", segment.fd)
    assert answer == "OK"
    served.path.unlink()
    assert served.listener.check(time.monotonic() + CHECK_S) is None
    served.serve()
    assert served.lost == []
    other = Segment(64)
    assert served.send(b"SEGMENT 1", other.fd)[1] == "OK"
    other.close()
    for passed in served.taken:
        passed.reader.close()


def test_silent_connections_are_limited(served):
    clients = [served.connect() for _ in range(100)]
    served.serve()
    clients += [served.connect() for _ in range(100)]
    served.serve()
    clients += [served.connect() for _ in range(60)]
    served.serve()
    assert served.listener.refused == 4
    assert clients[-1].recv(300).startswith(b"ERROR 256 connections have passed no segment")


def test_a_process_is_known_by_its_start_time():
    here = process_id(os.getpid())
    assert here.ticks > 0
    assert is_alive(here)
    assert not is_alive(here._replace(ticks=here.ticks - 1)), "another process has the id now"
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not is_alive(process_id(child)), "it is a zombie"
    os.waitpid(child, 0)
    assert process_id(child) == ProcessId(child, 0)
    assert not is_alive(ProcessId(child, 0))
    assert is_alive(ProcessId(0, 0)), "another namespace of process ids"


def test_hosts_of_one_machine_have_sockets_of_their_own(tmp_path):
    assert socket_of(tmp_path / "c.sock", "h1", 1) == tmp_path / "c.sock"
    assert socket_of(tmp_path / "c.sock", "h1", 2) == tmp_path / "c-h1.sock"
