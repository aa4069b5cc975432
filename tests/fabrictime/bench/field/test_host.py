"""A case changes the recorded host, or begins with an empty one."""

import pytest

from fabrictime.bench.field._cases import BadCase
from fabrictime.bench.field._host import host_of, recorded_commands

[TIMED, WARNINGS] = sorted(recorded_commands("dmesg"), key=len)


def test_a_case_changes_files_commands_interfaces_and_gpus() -> None:
    host = host_of(
        {
            "files": {"/etc/a": "b\n"},
            "append": {"/etc/a": "c\n"},
            "bytes": {"/etc/b": "00ff"},
            "commands": [{"command": ["dmesg"], "output": "a line"}],
            "interfaces": [{"name": "eth0", "mtu": 1500}, {"name": "ib0"}, {"name": "eno2", "gone": True}],
            "gpus": [{"index": 1, "temperature_c": 99}],
        }
    )
    assert host.read("/etc/a") == "b\nc"
    assert host.read_bytes("/etc/b") == b"\x00\xff"
    assert host.run(*TIMED) == "a line"
    mtus = {interface.name: interface.mtu for interface in host.interfaces()}
    assert mtus["eth0"] == mtus["ib0"] == 1500
    assert "eno2" not in mtus
    assert '"temperature_c": 99' in host.run("nvml")


def test_an_empty_host_has_nothing_else() -> None:
    host = host_of({"base": "empty", "files": {"/proc/loadavg": "1 1 1 1/1 1\n"}})
    assert host.readable()[:1] == ["/proc/loadavg"]
    assert [interface.name for interface in host.interfaces()] == ["lo"]


@pytest.mark.parametrize("table", [{"base": "other"}, {"gpus": [{"no_such_field": 1}]}])
def test_a_host_that_cannot_be_made_is_refused(table) -> None:
    with pytest.raises(BadCase):
        host_of(table)


def test_a_kernel_log_is_printed_with_and_without_times_and_by_level() -> None:
    host = host_of({"kernel_log": "a fault\n", "kernel_info": "[5.000000] a card\n"})
    assert "--notime" in WARNINGS
    assert host.run(*TIMED).splitlines() == ["[5.000000] a card", "[859000.000000] a fault"]
    assert host.run(*WARNINGS) == "a fault\n"


def test_files_are_repeated_for_numbers_and_pairs() -> None:
    host = host_of(
        {
            "base": "empty",
            "each": [
                {"n": [9, 10], "files": {"/d/{n:02x}": "{n}"}},
                {"n": [1, 2, 3], "m": [1, 2, 3], "files": {"/p/{n}/{i}": "{m}"}},
            ],
        }
    )
    assert (host.read("/d/0a"), host.read("/p/2/0"), host.read("/p/2/1")) == ("10", "1", "3")


def test_a_unit_has_other_properties() -> None:
    host = host_of({"units": {"slurmd": {"ActiveState": "failed"}}})
    [command] = [each for each in host.commands if each[:2] == ("systemctl", "show")]
    assert "Id=slurmd.service\nLoadState=loaded\nActiveState=failed" in host.run(*command)
