"""Readiness: messages of a child to its supervisor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fabrictime.runtime.ready import PARENT_VARIABLE, NotifySocket, die_with_parent


@pytest.fixture
def notify() -> Iterator[NotifySocket]:
    made = NotifySocket()
    yield made
    made.close()


def send(notify: NotifySocket, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, "\0" + notify.address[1:])


def test_messages_of_the_child_are_pairs_of_variable_and_value(notify: NotifySocket) -> None:
    send(notify, b"READY=1\nSTATUS=a=b\nrubbish\n")
    send(notify, b"WATCHDOG=1")
    found = list(notify.messages(os.getpid()))
    assert found == [("READY", "1"), ("STATUS", "a=b"), ("WATCHDOG", "1")]
    assert list(notify.messages(os.getpid())) == []


def test_messages_of_another_process_are_dropped(notify: NotifySocket) -> None:
    code = (
        "import socket; sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
        f"sender.sendto(b'READY=1', '\\0{notify.address[1:]}')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
    send(notify, b"STATUS=mine")
    assert list(notify.messages(os.getpid())) == [("STATUS", "mine")]


def test_two_sockets_have_different_addresses(notify: NotifySocket) -> None:
    other = NotifySocket()
    assert other.address != notify.address
    other.close()


def test_a_child_without_a_living_supervisor_ends() -> None:
    code = "from fabrictime.runtime.ready import die_with_parent; die_with_parent(); print('lives')"
    for parent, lives in ((os.getpid(), True), (1, False)):
        environment = {**os.environ, PARENT_VARIABLE: str(parent)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode == 0, "lives" in done.stdout) == (lives, lives), done.stderr


def test_a_process_without_a_supervisor_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)
    die_with_parent()
