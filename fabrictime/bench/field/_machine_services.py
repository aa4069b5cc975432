"""Adds drives, the BMC, clock programs and daemons to a simulated host."""

from __future__ import annotations

import json
from typing import Final

from fabrictime.bench.field._cases import Table
from fabrictime.bench.field._host import recorded_commands
from fabrictime.testbed.audit.recorded import RecordedHost

SENSORS: Final = {
    "dgx": (
        "TEMP_AMBIENT|01h|ok|64.1|24 degrees C",
        "FAN_1_F|30h|ok|29.1|7040 RPM",
        "FAN_2_F|31h|ok|29.2|7168 RPM",
        "STATUS_PSU0|C8h|ok|10.1|Presence detected",
        "STATUS_PSU1|C9h|ok|10.2|Presence detected",
    ),
    "dell": (
        "Inlet Temp|04h|ok|7.1|22 degrees C",
        "Fan1A|30h|ok|7.1|8160 RPM",
        "Fan Redundancy|75h|ok|7.1|Fully Redundant",
        "Status|62h|ok|10.1|Presence detected",
        "Status|63h|ok|10.2|Presence detected",
        "PS Redundancy|77h|ok|7.1|Fully Redundant",
    ),
    "supermicro": (
        "CPU1 Temp|01h|ok|3.1|48 degrees C",
        "12V|30h|ok|7.17|12.19 Volts",
        "FAN1|41h|ok|29.1|8400 RPM",
        "FAN5|45h|ns|29.5|No Reading",
        "PS1 Status|C8h|ok|10.1|Presence detected",
        "PS2 Status|C9h|ok|10.2|Presence detected",
    ),
    "hpe": (
        "01-Inlet Ambient|10h|ok|64.1|21 degrees C",
        "Fan 1|1Ch|ok|29.1|25.09 percent",
        "Power Supply 1|29h|ok|10.1|310 Watts, Presence detected",
        "Power Supply 2|2Ah|ok|10.2|305 Watts, Presence detected",
    ),
}
"""Sensors of BMCs, as `ipmitool sdr elist all` prints them, by make."""

TRACKING: Final = (
    "A9FEA97B,169.254.169.123,4,1794999985.3,-0.0000015,0.0000008,0.0000099,12.3,0.0,0.01,0.0003,0.0001,16.1,"
    "Normal\n"
)
"""What `chronyc -c tracking` prints."""


def add_services(host: RecordedHost, machine: Table) -> None:
    """Add the drives, mounts, BMC, clock programs, units and daemons that `machine` states."""
    _drives(host, machine)
    if "bmc" in machine:
        host.files["/dev/ipmi0"] = ""
        rows = [line.split("|") for line in SENSORS[machine["bmc"]]]
        text = "".join(f"{a:16} | {b:3} | {c:3} | {d:4} | {e}\n" for a, b, c, d, e in rows)
        _print(host, ("ipmitool", "sdr"), text)
        event = "   1 | 11/20/2026 | 10:00:00 | System Event #0x83 | Timestamp Clock Sync | Asserted\n"
        _print(host, ("ipmitool", "sel"), event)
    _clock(host, machine.get("clock", "chronyd"))
    _units(host, machine.get("units", ()))
    for number, name in enumerate(machine.get("processes", ()), start=901):
        host.files[f"/proc/{number}/comm"] = f"{name}\n"
        host.files[f"/proc/{number}/stat"] = f"{number} ({name}) S 1 {number} {number} 0 -1\n"
    host.files |= {
        "/proc/1/comm": "systemd\n",
        "/proc/1/stat": "1 (systemd) S 0 1 1 0 -1\n",
        "/proc/1/limits": "Max locked memory         unlimited            unlimited            bytes\n",
        "/etc/resolv.conf": "nameserver 192.168.4.2\nnameserver 192.168.4.3\n",
        "/etc/ssh/sshd_config": "PermitRootLogin no\n",
        "/etc/ssh/ssh_host_ed25519_key.pub": "ssh-ed25519 AAAA root@node1\n",
        "/proc/net/tcp": (
            "  sl  local_address rem_address   st tx_queue rx_queue\n"
            "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000\n"
        ),
        "/proc/sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
        "/proc/net/sockstat": "sockets: used 300\nTCP: inuse 20 orphan 0 tw 1 alloc 30 mem 9\n",
        "/proc/net/snmp": "Tcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 90000000 1200\n",
        "/proc/net/netstat": "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 0 0\n",
    }


def _print(host: RecordedHost, beginning: tuple[str, ...], text: str) -> None:
    host.commands |= dict.fromkeys(recorded_commands(*beginning), text)


def _drives(host: RecordedHost, machine: Table) -> None:
    mounts = machine.get("mounts", "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n")
    host.files["/proc/mounts"] = "proc /proc proc rw,nosuid 0 0\n" + mounts
    if machine.get("fstab", True):
        fields = [line.split() for line in mounts.splitlines()]
        host.files["/etc/fstab"] = "".join(
            f"{device} {point} {kind} defaults 0 1\n" for device, point, kind, *_ in fields
        )
    if "mdstat" in machine:
        host.files["/proc/mdstat"] = machine["mdstat"]
    for number in range(machine.get("nvme", 1)):
        name = f"nvme{number}"
        host.files |= {
            f"/sys/class/nvme/{name}/state": "live\n",
            f"/sys/class/nvme/{name}/{name}n1/size": "7501476528\n",
            f"/sys/block/{name}n1/size": "7501476528\n",
        }
        health = {"critical_warning": 0, "media_errors": 0, "percentage_used": 2}
        spare = {"available_spare": 100, "available_spare_threshold": 10}
        smart = {"smart_status": {"passed": True}, "nvme_smart_health_information_log": health | spare}
        host.commands["smartctl", "--json", "--all", f"/dev/{name}n1"] = json.dumps(smart)


def _clock(host: RecordedHost, program: str) -> None:
    host.files["/proc/700/comm"] = f"{program}\n"
    host.files["/proc/700/stat"] = f"700 ({program}) S 1 700 700 0 -1\n"
    if program == "chronyd":
        _print(host, ("chronyc",), TRACKING)


def _units(host: RecordedHost, units: list[str]) -> None:
    host.files["/run/systemd/system/.keep"] = ""
    _print(host, ("systemctl", "list-units", "--state=failed"), "")
    services = "".join(f"{unit}.service loaded active running {unit}\n" for unit in units)
    _print(host, ("systemctl", "list-units", "--type=service"), services)
    blocks = [f"Id={unit}.service\nLoadState=loaded\nActiveState=active\nNRestarts=0\n" for unit in units]
    _print(host, ("systemctl", "show"), "\n".join(blocks))
