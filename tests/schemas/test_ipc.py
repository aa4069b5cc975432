"""Owner-only Unix sockets."""

from __future__ import annotations

import os
import socket

import pytest

from schemas.ipc import InUse, check_owner, connect, leave, listen, read_line, receive_at, received


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
