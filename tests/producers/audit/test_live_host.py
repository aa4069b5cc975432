"""Reads of the real host: absent, refused and slow things, and output of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from producers.audit import live_host as module
from producers.audit.host import Missing, Unreadable
from producers.audit.live_host import LiveHost


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
