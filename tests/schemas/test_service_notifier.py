"""Notices to the service manager, and none without one."""

import socket
import warnings

from schemas.service_notifier import ServiceNotifier


def test_a_notice_reaches_the_service_manager(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notifier = ServiceNotifier()
        notifier.notify("READY=1")
        assert manager.recv(100) == b"READY=1"
        notifier.socket.close()


def test_without_a_service_manager_no_socket_is_left_open(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always")
        ServiceNotifier().notify("READY=1")
    assert [str(leak.message) for leak in leaks] == []
