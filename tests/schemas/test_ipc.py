"""Owner-only Unix sockets."""

from __future__ import annotations

import os
import socket

import pytest

from schemas.ipc import (
    InUse,
    check_owner,
    connect,
    leave,
    listen,
    listen_for_packets,
    read_line,
    receive_at,
    receive_descriptor,
    received,
)


def test_a_stream_socket_serves_its_owner_at_a_long_path(tmp_path):
    path = tmp_path / ("x" * 120) / "s.sock"
    listener = listen(path, blocking=True)
    assert os.stat(path).st_mode & 0o777 == 0o600
    with connect(path, 2.0) as client:
        served, _ = listener.accept()
        with served:
            check_owner(served)
            client.sendall(b"hello\nworld")
            assert read_line(served, 100, 2.0) == b"hello"
            with pytest.raises(TimeoutError):
                read_line(served, 100, 0.05)
    with pytest.raises(InUse, match="another process listens there already"):
        listen(path)
    leave(path, listener)
    assert not path.exists()


def test_a_socket_left_by_a_killed_program_is_replaced(tmp_path):
    path = tmp_path / "s.sock"
    listen(path).close()
    assert path.exists()
    listener = listen(path)
    assert listener.getblocking() is False
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


def test_datagrams_carry_their_sender(tmp_path):
    path = tmp_path / "d.sock"
    receiver = receive_at(path, 65_536)
    assert received(receiver, 100) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(path))
        sender.send(b"one")
        sender.send(b"x" * 200)
    assert received(receiver, 100) == b"one"
    with pytest.raises(ValueError, match="above 100 bytes"):
        received(receiver, 100)
    with pytest.raises(InUse):
        receive_at(path, 1000)
    leave(path, receiver)
    assert not path.exists()


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="expected one that other users cannot write to"):
        listen(folder / "s.sock")


def test_a_packet_carries_one_descriptor(tmp_path):
    path = tmp_path / "p.sock"
    listener = listen_for_packets(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, open(os.devnull, "rb") as file:
        client.connect(str(path))
        served, _ = listener.accept()
        with served:
            served.setblocking(False)
            assert check_owner(served) == os.getpid()
            with pytest.raises(BlockingIOError):
                receive_descriptor(served, 16)
            socket.send_fds(client, [b"SEGMENT 1"], [file.fileno()])
            text, descriptor = receive_descriptor(served, 16)
            assert (text, os.get_inheritable(descriptor)) == (b"SEGMENT 1", False)
            assert os.fstat(descriptor).st_ino == os.fstat(file.fileno()).st_ino
            os.close(descriptor)
            client.send(b"no descriptor")
            assert receive_descriptor(served, 16) == (b"no descriptor", None)
            open_before = len(os.listdir("/proc/self/fd"))
            socket.send_fds(client, [b"two"], [file.fileno()] * 2)
            with pytest.raises(ValueError, match="2 descriptors: expected at most 16 and 1"):
                receive_descriptor(served, 16)
            socket.send_fds(client, [b"x" * 100], [file.fileno()])
            with pytest.raises(ValueError, match="packet of 16 bytes and 1 descriptors"):
                receive_descriptor(served, 16)
            assert len(os.listdir("/proc/self/fd")) == open_before, "refused descriptors are closed"
            client.close()
            assert receive_descriptor(served, 16) is None
    leave(path, listener)
    assert not path.exists()
