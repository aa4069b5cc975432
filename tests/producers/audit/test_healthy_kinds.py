"""Healthy hosts of other kinds than the recorded one: none of them has an error."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fabrictime.testbed.audit.faults import PORT, XID, logged, text
from fabrictime.testbed.audit.faults_gpu import GPU_FAULTS
from fabrictime.testbed.audit.faults_network import both, counted, interface
from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from fabrictime.testbed.audit.recorded_gpu import AMD_ADDRESSES, address
from fabrictime.testbed.audit.recorded_machine import DMIDECODE, NICS, SENSORS
from fabrictime.testbed.audit.recorded_services import SERVICES
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.host.base import NVML
from producers.audit.host.network import Route, Rule
from producers.audit.software.units import SHOW
from schemas.records import AuditStatus

PASSED, SKIPPED, FAILED = AuditStatus.PASSED, AuditStatus.SKIPPED, AuditStatus.FAILED
UNKNOWN = AuditStatus.UNKNOWN
NIC = "/sys/bus/pci/devices/0000:17:00.0"
PCI, SLOT = "/sys/bus/pci/devices", "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0"
CPU = "/sys/devices/system/cpu"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
Plant = Callable[[RecordedHost], None]


def later(path: str, content: str) -> Plant:
    """Change a file between two readings."""
    return lambda host: host.later.__setitem__(path, content)


def without(part: str) -> Plant:
    """Remove the files with this part in their paths."""

    def plant(host: RecordedHost) -> None:
        host.files = {path: content for path, content in host.files.items() if part not in path}

    return plant


def added(path: str, content: str) -> Plant:
    """Add to a file."""
    return lambda host: host.files.__setitem__(path, str(host.files[path]) + content)


def printed(command: tuple[str, ...], content: str) -> Plant:
    """Change what a command prints."""

    def plant(host: RecordedHost) -> None:
        assert command in host.commands
        host.commands[command] = content

    return plant


def added_output(command: tuple[str, ...], more: str) -> Plant:
    return lambda host: host.commands.__setitem__(command, host.commands[command] + more)


def linked(path: str, target: str) -> Plant:
    return lambda host: host.links.__setitem__(path, target)


def unlinked(path: str) -> Plant:
    return lambda host: host.links.__delitem__(path)


def routed(route: Route) -> Plant:
    return lambda host: host.network["routes"].append(route)


def ruled(rule: Rule) -> Plant:
    return lambda host: host.network["rules"].append(rule)


def without_route(destination: str) -> Plant:
    def plant(host: RecordedHost) -> None:
        found = host.network["routes"]
        host.network["routes"] = [each for each in found if each.destination != destination]

    return plant


SINFO = ("sinfo", "--noheader", "--format", "%T %D")
SPARE = both(
    text(f"{PORT.format(1)}/state", "1: DOWN"),
    text(f"{PORT.format(1)}/phys_state", "3: Disabled"),
    interface("eth1", flags=frozenset({"BROADCAST"}), operstate="down", addresses=()),
    lambda host: setattr(host, "nics", ("eth0",)),
)
SECOND_PORTS = both(
    *(
        each
        for n, function in ((0, 0), (1, 1), (2, 0), (3, 1))
        for each in (
            linked(
                f"/sys/class/infiniband/mlx5_{n}/device",
                f"/sys/devices/pci0000:15/0000:{17 + n}:00.{function}",
            ),
            text(f"{PORT.format(n)}/state", f"{1 if function else 4}: {'DOWN' if function else 'ACTIVE'}"),
            text(f"{PORT.format(n)}/phys_state", "2: Polling" if function else "5: LinkUp"),
        )
    ),
    interface("eth1", operstate="down", addresses=("fe80::1/64",)),
    lambda host: setattr(host, "nics", ("eth0",)),
)
VPD = "/sys/class/infiniband/mlx5_{}/device/vpd"
BLOCKED = "812 (python) D 1 812 812 0 -1"
KINDS: dict[str, tuple[str, Plant, AuditStatus]] = {
    "Hyper-V": (
        "node.clock-source",
        text(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource", "hyperv_clocksource_tsc_page"
        ),
        PASSED,
    ),
    "multithreading off": (
        "node.processors",
        both(text(f"{CPU}/present", "0-3"), text(f"{CPU}/smt/control", "off")),
        PASSED,
    ),
    "a core is off beside multithreading": (
        "node.processors",
        both(text(f"{CPU}/present", "0-4"), text(f"{CPU}/smt/control", "off")),
        FAILED,
    ),
    "idle pages in swap": (
        "node.memory",
        text(
            "/proc/meminfo",
            "MemTotal: 2113000000 kB\nMemAvailable: 2050000000 kB\n"
            "SwapTotal: 8000000 kB\nSwapFree: 7900000 kB",
        ),
        PASSED,
    ),
    "a write that takes a moment": (
        "node.blocked",
        both(text("/proc/812/stat", BLOCKED), later("/proc/812/stat", "812 (python) R 1 812 812 0 -1")),
        PASSED,
    ),
    "a write that takes seconds": ("node.blocked", text("/proc/812/stat", BLOCKED), FAILED),
    "no RDMA needs no locked memory": ("software.memlock", without("/sys/class/infiniband/"), SKIPPED),
    "systemd's own limit": (
        "software.memlock",
        text("/proc/1/limits", "Max locked memory         67108864             67108864    bytes"),
        PASSED,
    ),
    "AMD only": ("software.gpu-direct", text("/proc/modules", "amdgpu 1 0 - Live 0x0"), SKIPPED),
    "power supplies of another make": (
        "node.power-supplies",
        printed(SENSORS, "PS Redundancy | 77h | ok | 7.1 | Fully Redundant\nPS1 | 85h | ok | 10.1 |\n"),
        PASSED,
    ),
    "power supplies without redundancy": (
        "node.power-supplies",
        printed(SENSORS, "PS Redundancy | 77h | ok | 7.1 | Redundancy Lost\n"),
        FAILED,
    ),
    "memory of a virtual machine": (
        "node.dimms",
        both(
            text("/proc/cpuinfo", "flags\t\t: fpu vme hypervisor lahf_lm\n"),
            printed(DMIDECODE, "Memory Device\n\tSize: 16 GB\n\nMemory Device\n\tSize: 9 GB\n"),
        ),
        SKIPPED,
    ),
    "Arm": ("node.firmware", without("/microcode/"), PASSED),
    "MI300X in a narrow link": (
        "pcie.link",
        text(f"{PCI}/{AMD_ADDRESSES[0]}/current_link_width", "8"),
        FAILED,
    ),
    "card in a smaller slot": (
        "pcie.link",
        both(
            *(text(f"{path}_link_width", "8") for path in (f"{PCI}/0000:17:00.0/current", f"{SLOT}/max")),
            text(f"{SLOT}/max_link_speed", "32.0 GT/s PCIe"),
        ),
        PASSED,
    ),
    "virtual function": (
        "pcie.link",
        text(f"{PCI}/0000:17:00.0/current_link_speed", "Unknown speed"),
        PASSED,
    ),
    "GPU at rest": (
        "pcie.link",
        both(
            *(
                each
                for index in range(8)
                for each in (
                    text(f"{PCI}/{address(index)}/device", "0x26b9"),
                    text(f"{PCI}/{address(index)}/current_link_speed", "2.5 GT/s PCIe"),
                )
            ),
        ),
        PASSED,
    ),
    "one of the GPUs at rest": (
        "pcie.link",
        both(
            *(text(f"{PCI}/{address(index)}/device", "0x26b9") for index in range(8)),
            text(f"{PCI}/{address(3)}/current_link_speed", "2.5 GT/s PCIe"),
        ),
        UNKNOWN,
    ),
    "backup of a bond": (
        "frontend.interface-drops",
        both(
            text(
                "/proc/net/bonding/bond0",
                "Bonding Mode: fault-tolerance (active-backup)\nCurrently Active Slave: eno5\n\n"
                "Slave Interface: eno5\nMII Status: up\n\nSlave Interface: eno1\nMII Status: up\n",
            ),
            counted("eno1", rx_dropped=10**6),
        ),
        PASSED,
    ),
    "carrier of a VLAN": (
        "frontend.addresses",
        both(
            interface("eno1", addresses=()),
            text(
                "/proc/net/vlan/config",
                "VLAN Dev name    | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n"
                "storage        | 100  | eno1\n",
            ),
        ),
        PASSED,
    ),
    "interface without a carrier": (
        "frontend.addresses",
        interface("eno2", addresses=(), flags=frozenset({"UP", "BROADCAST"}), operstate="down"),
        PASSED,
    ),
    "one NIC for all GPUs": (
        "pcie.gpu-nic",
        both(*(without(f"infiniband/{name}") for name in ("mlx5_1", "mlx5_2", "mlx5_3", "rdmap"))),
        PASSED,
    ),
    "spare port of InfiniBand": (
        "backend.port-state",
        both(
            text(f"{PORT.format(2)}/state", "1: DOWN"),
            text(f"{PORT.format(2)}/phys_state", "2: Polling"),
            linked("/sys/class/infiniband/mlx5_2/device", "/sys/devices/pci0000:15/0000:ab:00.1"),
        ),
        PASSED,
    ),
    "second port of a card that carries data": (
        "backend.port-state",
        both(
            text(f"{PORT.format(2)}/state", "1: DOWN"),
            text(f"{PORT.format(2)}/phys_state", "2: Polling"),
        ),
        FAILED,
    ),
    "second ports of all cards without a cable": ("backend.port-state", SECOND_PORTS, PASSED),
    "MTU of second ports without a cable": (
        "backend.mtu",
        both(SECOND_PORTS, interface("eth1", mtu=1500)),
        PASSED,
    ),
    "second port with an address": (
        "backend.port-state",
        both(SECOND_PORTS, interface("eth1", addresses=("10.0.1.2/31",))),
        FAILED,
    ),
    "device of an NVSwitch": (
        "backend.port-state",
        both(text(f"{PORT.format(3)}/state", "1: DOWN"), text(VPD.format(3), "V1 SMDL=SW_MNG")),
        PASSED,
    ),
    "device for subnet management": (
        "backend.port-rate",
        both(
            *(
                text(f"/sys/class/infiniband/smi1/ports/{plane}/{name}", value)
                for plane in range(1, 5)
                for name, value in (
                    ("state", "4: ACTIVE"),
                    ("phys_state", "5: LinkUp"),
                    ("rate", "200 Gb/sec (1X XDR)"),
                    ("link_layer", "InfiniBand"),
                )
            )
        ),
        PASSED,
    ),
    "cards whose subnet another device manages": ("backend.management-files", without("issm"), PASSED),
    "cards for storage of another board": (
        "backend.like-cards",
        both(
            *(
                text(f"/sys/class/infiniband/mlx5_{n}/{name}", value)
                for n in (2, 3)
                for name, value in (("board_id", "MT_0000000080"), ("fw_ver", "28.36.1010"))
            )
        ),
        PASSED,
    ),
    "one card for storage at another rate": (
        "backend.like-cards",
        both(
            text("/sys/class/infiniband/mlx5_3/board_id", "MT_0000000080"),
            text(f"{PORT.format(3)}/rate", "100 Gb/sec (2X HDR)"),
        ),
        PASSED,
    ),
    "MTU of cards for storage": (
        "backend.mtu",
        both(
            text("/sys/class/infiniband/mlx5_1/board_id", "MT_0000000080"),
            interface("eth1", mtu=1500),
        ),
        PASSED,
    ),
    "EFA alone": (
        "backend.character-devices",
        both(without("/infiniband/mlx5_"), without("/dev/infiniband/rdma_cm")),
        PASSED,
    ),
    "full stop after no issue": (
        "backend.link-quality",
        lambda host: host.commands.update(
            {
                command: printed.replace("No issue was observed", "No issue was observed.")
                for command, printed in host.commands.items()
                if command[0] == "mlxlink"
            }
        ),
        PASSED,
    ),
    "overruns of long ago": (
        "backend.link-errors",
        text(f"{PORT.format(2)}/counters/excessive_buffer_overrun_errors", "15"),
        PASSED,
    ),
    "manager of NVLink in a container": (
        "software.fabric-manager",
        both(
            printed(SHOW, "Id=chrony.service\nLoadState=loaded\nActiveState=active\n"),
            text("/proc/920/stat", "920 (nv-fabricmanage) S 1 920 920 0 -1"),
        ),
        PASSED,
    ),
    "cards of A100 without a bridge": (
        "gpu.nvlinks",
        both(
            *(text(f"{PCI}/{address(index)}/device", "0x20b5") for index in range(8)),
            lambda host: host.commands.__setitem__(
                (NVML,),
                host.commands[NVML,].replace(json.dumps([1] * 18), json.dumps([0] * 12)),
            ),
        ),
        SKIPPED,
    ),
    "ports of a card in a bond": (
        "backend.vanished",
        both(
            *(
                text(f"{PCI}/0000:17:00.1/{name}", value)
                for name, value in (
                    ("class", "0x020000"),
                    ("vendor", "0x15b3"),
                    ("device", "0x1021"),
                    ("revision", "0x00"),
                )
            ),
            linked(f"{PCI}/0000:17:00.1/driver", "/sys/bus/pci/drivers/mlx5_core"),
            text(f"{NIC}/infiniband/mlx5_bond_0/node_type", "1: CA"),
        ),
        PASSED,
    ),
    "GPUs of no NVLink fabric": (
        "gpu.fabric",
        lambda host: host.commands.__setitem__(
            (NVML,), host.commands[NVML,].replace('"fabric": [3, 0, 2]', '"fabric": [0, 0, 0]')
        ),
        SKIPPED,
    ),
    "NICs of two other makes": (
        "backend.port-rate",
        both(
            *(
                change
                for n, (device, rate) in enumerate(
                    (("0x1750", "400 Gb/sec (4X NDR)"), ("0x1593", "25 Gb/sec (1X EDR)"))
                )
                for change in (
                    lambda host, n=n: host.files.__delitem__(f"/sys/class/infiniband/mlx5_{n}/board_id"),
                    text(f"{PCI}/{NICS[n]}/device", device),
                    text(f"{PORT.format(n)}/rate", rate),
                )
            )
        ),
        PASSED,
    ),
    "temporary disk of a cloud that is not there": (
        "storage.fstab",
        added("/etc/fstab", "/dev/disk/cloud/azure_resource-part1 /mnt auto defaults,nofail 0 2\n"),
        PASSED,
    ),
    "shared directory that may be absent": (
        "storage.fstab",
        added("/etc/fstab", "nfs1:/scratch /scratch nfs4 defaults,nofail 0 0\n"),
        FAILED,
    ),
    "GPU memory of a Grace superchip of another type": (
        "gpu.orphan-memory",
        both(
            *(text(f"{PCI}/{address(index)}/device", "0x2345") for index in range(8)),
            GPU_FAULTS["GPU: orphan memory"][1],
            lambda host: host.commands.__setitem__(
                (NVML,), host.commands[NVML,].replace("NVIDIA H100 80GB HBM3", "NVIDIA GH200 144G HBM3e")
            ),
        ),
        SKIPPED,
    ),
    "card that reads as ff": (
        "backend.vanished",
        lambda host: host.files.__setitem__(f"{NIC}/config", b"\xff" * 64),
        FAILED,
    ),
    "GIDs of link-local addresses alone": (
        "backend.gids",
        without("mlx5_0/ports/1/gids/3"),
        FAILED,
    ),
    "link-local GIDs of an interface without an address": (
        "backend.gids",
        both(without("mlx5_0/ports/1/gids/3"), interface("eth0", addresses=("fe80::1/64",))),
        PASSED,
    ),
    "spare port of Ethernet": ("backend.port-state", SPARE, PASSED),
    "spare interface": ("backend.carrier", SPARE, PASSED),
    "cards for storage": (
        "backend.port-rate",
        both(
            *(text(f"{PORT.format(n)}/rate", "200 Gb/sec (4X HDR)") for n in (2, 3)),
            *(text(f"/sys/class/infiniband/mlx5_{n}/board_id", "MT_0000000080") for n in (2, 3)),
        ),
        PASSED,
    ),
    "one cable of another speed": (
        "backend.port-rate",
        text(f"{PORT.format(2)}/rate", "200 Gb/sec (4X HDR)"),
        FAILED,
    ),
    "module of verbs not loaded": (
        "backend.character-devices",
        both(without("/dev/infiniband/"), without("infiniband_verbs")),
        FAILED,
    ),
    "module of management not loaded": ("backend.management-files", without("/dev/infiniband/"), FAILED),
    "front end on a card with RDMA": (
        "backend.mtu",
        both(
            text(f"{PORT.format(2)}/gid_attrs/ndevs/0", "eno1"),
            text("/sys/class/net/eno1/device/uevent", "DRIVER=mlx5_core"),
        ),
        PASSED,
    ),
    "card without a driver": (
        "backend.vanished",
        both(without(f"{NIC}/infiniband"), unlinked(f"{NIC}/driver")),
        FAILED,
    ),
    "virtual function for a container": (
        "backend.vanished",
        both(without(f"{NIC}/infiniband"), text(f"{NIC}/physfn/vendor", "0x15b3")),
        PASSED,
    ),
    "members of a bond": (
        "backend.addresses",
        interface("eth1", addresses=(), master="bond1"),
        PASSED,
    ),
    "routes of bonds": ("backend.plane-routes", interface("eth1", addresses=(), master="bond1"), PASSED),
    "default route of two hops": (
        "frontend.default-route",
        both(
            without_route("0.0.0.0/0"),
            *(
                routed(Route("0.0.0.0/0", f"192.168.4.{n}", name, metric=100, paths=2))
                for n, name in enumerate(("eno1", "eno2"), 1)
            ),
        ),
        PASSED,
    ),
    "rule for a container": (
        "frontend.policy-rules",
        both(ruled(Rule(1536, 101, source="10.9.9.9/32")), routed(Route("10.9.9.9/32", "", "eni1"))),
        PASSED,
    ),
    "strict reverse path with rules": (
        "frontend.reverse-path",
        both(
            text("/proc/sys/net/ipv4/conf/all/rp_filter", "1"),
            text("/proc/sys/net/ipv4/conf/eno1/rp_filter", "1"),
            text("/proc/sys/net/ipv4/conf/eno2/rp_filter", "1"),
            *(ruled(Rule(900 + n, 101, source=f"192.168.4.{n}/32")) for n in (12, 13)),
        ),
        PASSED,
    ),
    "races of containers' name requests": (
        "frontend.conntrack-drops",
        text(
            "/proc/net/stat/nf_conntrack",
            "entries found insert_failed drop early_drop\n78 12 000000a0 000000a0 0\n",
        ),
        PASSED,
    ),
    "no packet filter": ("frontend.packet-filters", text("/proc/modules", "nvidia 1 0 - Live 0x0"), SKIPPED),
    "cluster that saves power": ("frontend.slurm-cluster", printed(SINFO, "idle~ 40\nmixed- 20\n"), PASSED),
    "port of remote login in a part": (
        "frontend.ssh",
        both(
            text("/etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\n"),
            text("/etc/ssh/sshd_config.d/port.conf", "Port 2222\n"),
        ),
        FAILED,
    ),
    "virtual functions of NVIDIA": (
        "backend.link-quality",
        both(*(text(f"/sys/class/infiniband/mlx5_{n}/hca_type", "MT4126") for n in range(4))),
        SKIPPED,
    ),
    "corrected machine check": (
        "kernel-log.machine",
        logged("mce: [Hardware Error]: Machine check events logged"),
        PASSED,
    ),
    "floppy drive of a virtual machine": (
        "kernel-log.machine",
        logged("blk_update_request: I/O error, dev fd0, sector 0"),
        PASSED,
    ),
    "errors of programs in a month": (
        "kernel-log.xid",
        logged(XID.format(31), 9, 3600.0),
        PASSED,
    ),
    "slot of a virtual machine": (
        "backend.slot-bandwidth",
        logged(
            "mlx5_core 6c9d:00:02.0: 0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at "
            "6c9d:00:02.0 (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)"
        ),
        PASSED,
    ),
    "GPU memory that is a NUMA node": (
        "gpu.orphan-memory",
        both(
            *(text(f"{PCI}/{address(index)}/device", "0x2941") for index in range(8)),
            GPU_FAULTS["GPU: orphan memory"][1],
        ),
        SKIPPED,
    ),
    "remote login on demand": (
        "frontend.daemons",
        added_output(SERVICES, "ssh.service loaded inactive dead OpenSSH server\n"),
        PASSED,
    ),
    "daemon that is not enabled": (
        "frontend.daemons",
        both(
            added_output(SERVICES, "lldpd.service loaded inactive dead LLDP daemon\n"),
            added_output(SHOW, "\nId=lldpd.service\nLoadState=loaded\nUnitFileState=disabled\n"),
        ),
        PASSED,
    ),
    "another MI300X sensor": (
        "gpu.amd-temperature",
        both(
            text(f"{PCI}/{AMD_ADDRESSES[0]}/hwmon/hwmon1/temp1_input", "40000"),
            text(f"{PCI}/{AMD_ADDRESSES[0]}/hwmon/hwmon1/temp2_input", "99000"),
        ),
        FAILED,
    ),
    "RAID without redundancy": (
        "storage.raid",
        text("/proc/mdstat", "md0 : active raid0 sdb[1] sda[0]\n      7500 blocks super 1.2 512k chunks\n"),
        PASSED,
    ),
    "volume of a container": (
        "storage.read-only",
        added("/proc/mounts", "/dev/nvme0n1p2 /var/lib/kubelet/pods/1/volume ext4 ro 0 0\n"),
        PASSED,
    ),
    "verified system image": (
        "storage.read-only",
        both(added("/proc/mounts", "/dev/dm-0 /usr ext4 ro 0 0\n"), text("/sys/class/block/dm-0/ro", "1\n")),
        PASSED,
    ),
    "slash at the end in fstab": (
        "storage.fstab",
        added("/etc/fstab", "nfs1:/data /data/ nfs4 rw,hard 0 0\n"),
        PASSED,
    ),
    "several algorithms of NCCL": (
        "software.environment",
        text("/etc/nccl.conf", "NCCL_ALGO=Ring,Tree\nNCCL_PROTO=LL,LL128,Simple\n"),
        PASSED,
    ),
    "comment after a variable": (
        "software.environment",
        text("/etc/profile.d/x.sh", "export NCCL_IB_DISABLE=1 # no NIC\n"),
        FAILED,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_host_of_another_kind_has_no_error(kind: str) -> None:
    check_id, plant, status = KINDS[kind]
    host = HEALTHY.copy()
    plant(host)
    result = run_check(CHECKS[check_id], host)
    assert result.status is status, result.text
