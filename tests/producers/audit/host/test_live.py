"""Reads of the real host: absent, refused and slow things, and output of commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from producers.audit.host import live as module
from producers.audit.host.base import Missing, Unreadable
from producers.audit.host.live import LiveHost


def test_files_and_directories_below_a_root(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/uptime").write_bytes(b"12.5 7\n\0")
    host = LiveHost(tmp_path)
    assert host.read("/proc/uptime") == "12.5 7"
    assert host.names("/proc") == ["uptime"]
    for read in (host.read, host.names, host.space):
        with pytest.raises(Missing, match="/sys/none: No such file"):
            read("/sys/none")
    with pytest.raises(Unreadable, match="Is a directory") as refused:
        host.read("/proc")
    assert not isinstance(refused.value, Missing)


def test_this_host_answers() -> None:
    host = LiveHost()
    assert "MemAvailable" in host.read("/proc/meminfo")
    assert int(host.read("/proc/sys/kernel/pid_max")) > 0
    size, free, _, _ = host.space("/")
    assert 0 <= free <= size
    assert host.clock_status() >= 0


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    host = LiveHost()
    assert host.run("echo", "a b") == "a b\n"
    with pytest.raises(Missing, match="no-such-command: not installed"):
        host.run("no-such-command")
    with pytest.raises(Unreadable, match="ls /no-such-file: exit code 2, ls: "):
        host.run("ls", "/no-such-file")
    assert host.load(5.0, "NCCL_IB_QPS_PER_CONNECTION=2", "printenv", "NCCL_IB_QPS_PER_CONNECTION") == "2\n"
    monkeypatch.setattr(module, "COMMAND_S", 0.1)
    with pytest.raises(Unreadable, match=r"sleep 60: no end within 0\.1 s"):
        host.run("sleep", "60")


def test_checks_share_the_output_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    host = LiveHost()
    stamp = ("date", "+%s%N")
    assert host.run(*stamp) == host.run(*stamp)
    assert host.load(5.0, *stamp) != host.load(5.0, *stamp)
    errors = []
    for _ in range(2):
        with pytest.raises(Unreadable) as refused:
            host.run("ls", "/no-such-file")
        errors.append(refused.value)
    assert str(errors[0]) == str(errors[1])
    before = host.run(*stamp)
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    assert host.run(*stamp) != before


def test_links(tmp_path: Path) -> None:
    (tmp_path / "devices/pci0000:00").mkdir(parents=True)
    (tmp_path / "bus").symlink_to(tmp_path / "devices/pci0000:00")
    host = LiveHost(tmp_path)
    assert host.target("/bus") == "/devices/pci0000:00"
    with pytest.raises(Missing, match="/none: No such file"):
        host.target("/none")


def test_a_part_of_a_large_file_or_output_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    (tmp_path / "log").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(Unreadable, match="log: larger than 1 MiB"):
        LiveHost(tmp_path).read("/log")
    with pytest.raises(Unreadable, match="yes: prints more than 1 MiB"):
        LiveHost().load(30.0, "yes")
    with pytest.raises(Unreadable, match="exit code 3"):
        LiveHost().load(30.0, "sh", "-c", "yes | head -c 3000000 >&2; exit 3")


def test_a_process_that_cannot_be_killed_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KILLED_S", 0.0)
    monkeypatch.setattr(os, "killpg", lambda *_: None)  # as in an uninterruptible wait
    command = ("sleep", "7.25")
    with pytest.raises(Unreadable, match=r"no end within 0\.1 s$"):
        LiveHost().load(0.1, *command)
    stuck = module._stuck[None, "sleep 7.25"]
    with pytest.raises(Unreadable, match=f"no end within 5 s; process {stuck.pid} still hangs"):
        LiveHost().load(5.0, *command)
    stuck.kill()
    stuck.wait()
    monkeypatch.undo()
    with pytest.raises(Unreadable, match=r"no end within 0\.1 s$"):
        LiveHost().load(0.1, *command)
    assert module._stuck == {}
