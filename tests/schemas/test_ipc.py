"""Owner-only Unix sockets."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import tempfile
from functools import partial
from pathlib import Path

import pytest

from schemas.ipc import (
    CHECK_S,
    InUse,
    SocketFile,
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
from schemas.socket_access import SocketAccess, access_of


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


def test_a_removed_socket_is_made_again_and_serves_in_place_of_the_former(tmp_path):
    path = tmp_path / "run" / "s.sock"
    file, selector = SocketFile(path, listen), selectors.DefaultSelector()
    now_s = file._check_at_s
    selector.register(file.socket, selectors.EVENT_READ, "accept")
    before = connect(path, 2.0)
    connected, _ = file.socket.accept()
    file.check(now_s, selector)
    assert file.remade == 0, "a file in place is left alone"
    for n, remove in enumerate((lambda: path.unlink(), lambda: shutil.rmtree(path.parent)), 1):
        remove()
        file.check(now_s + CHECK_S * (n - 0.5), selector)
        assert file.remade == n - 1, "it is checked once a second"
        file.check(now_s + CHECK_S * n, selector)
        assert (file.remade, file.fault) == (n, None)
        assert os.stat(path).st_mode & 0o777 == 0o600
        with connect(path, 2.0):
            [(key, _)] = selector.select(2.0)
            assert (key.fileobj, key.data) == (file.socket, "accept")
            file.socket.accept()[0].close()
    before.sendall(b"still there")
    assert connected.recv(100) == b"still there"
    for opened in (before, connected, selector, file):
        opened.close()
    assert not path.exists()


def test_a_socket_that_another_program_replaced_is_a_fault_until_that_one_ends(tmp_path):
    path = tmp_path / "s.sock"
    file = SocketFile(path, listen)
    now_s = file._check_at_s
    path.unlink()
    other = listen(path)
    file.check(now_s)
    assert file.fault is not None
    assert "another process listens there already" in file.fault
    leave(path, other)
    file.check(now_s + CHECK_S)
    assert (file.remade, file.fault) == (1, None)
    file.close()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path):
    path = tmp_path / "s.sock"
    path.write_text("settings")
    with pytest.raises(FileExistsError, match="not a socket, expected a socket or no file"):
        listen(path)
    path.rename(tmp_path / "kept")
    file = SocketFile(path, listen)
    path.unlink()
    (tmp_path / "kept").rename(path)
    file.check(file._check_at_s)
    assert "not a socket" in file.fault
    file.close()
    assert path.read_text() == "settings"


def test_a_link_in_place_of_a_socket_is_replaced_and_its_target_kept(tmp_path):
    path, target = tmp_path / "s.sock", tmp_path / "target"
    target.write_text("settings")
    path.symlink_to(target)
    file = SocketFile(path, listen)
    assert path.is_socket()
    assert target.read_text() == "settings"
    file.close()


def test_a_name_that_no_address_holds_is_stated(tmp_path):
    with pytest.raises(OSError, match=r"n\.sock: name of 126 bytes, expected a shorter one"):
        listen(tmp_path / f"{'n' * 121}.sock")


def test_a_strict_umask_keeps_no_user_of_a_shared_socket_out():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        former = os.umask(0o077)
        try:
            file = SocketFile(Path(folder) / "a" / "b" / "s.sock", partial(listen, access=access_of("all")))
        finally:
            os.umask(former)
        assert [os.stat(f"{folder}/{part}").st_mode & 0o777 for part in ("a", "a/b")] == [0o711, 0o711]
        file.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_group_that_the_owner_is_not_in_is_named():
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65_534, 65_534)
        os.chmod(folder, 0o711)
        groups = os.getgroups()
        os.setgroups([])
        os.seteuid(65_534)
        try:
            with pytest.raises(PermissionError, match="user 65534 is not in the group 1 that socket_users"):
                listen(Path(folder) / "s.sock", access=SocketAccess(group=1))
        finally:
            os.seteuid(0)
            os.setgroups(groups)
