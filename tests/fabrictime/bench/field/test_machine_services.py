"""Drives, BMC, clock programs and units are printed as their tools print them."""

from fabrictime.bench.field._host import empty_host
from fabrictime.bench.field._machine_services import add_services


def test_a_bmc_prints_its_sensors() -> None:
    host = empty_host()
    add_services(host, {"bmc": "dgx"})
    assert "STATUS_PSU1      | C9h | ok  | 10.2 | Presence detected" in host.run(
        "ipmitool", "sdr", "elist", "all"
    )


def test_a_host_without_chrony_has_no_chronyc() -> None:
    host = empty_host()
    add_services(host, {"clock": "systemd-timesyn", "units": ["docker"], "processes": ["nvlsm"]})
    assert not [command for command in host.commands if command[0] == "chronyc"]
    assert host.read("/proc/901/comm") == "nvlsm"
    [command] = [each for each in host.commands if each[:2] == ("systemctl", "show")]
    assert "Id=docker.service" in host.run(*command)


def test_mounts_are_in_fstab_unless_the_image_has_none() -> None:
    host = empty_host()
    add_services(host, {"mounts": "/dev/vda1 / ext4 rw 0 0\n"})
    assert host.read("/etc/fstab") == "/dev/vda1 / ext4 defaults 0 1"
    host = empty_host()
    add_services(host, {"fstab": False})
    assert "/etc/fstab" not in host.files
