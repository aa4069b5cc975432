"""Faults of the machine, its versions and services, each with the audit check that must find it."""

from __future__ import annotations

import json
from collections.abc import Callable

from fabrictime.testbed.audit.recorded import RecordedHost
from fabrictime.testbed.audit.recorded_gpu import address
from fabrictime.testbed.audit.recorded_machine import (
    CONTAINERS,
    DMIDECODE,
    EVENTS,
    FIRMWARE,
    MACHINE_HEALTH,
    PACKAGES,
    SENSORS,
    SMART,
)
from fabrictime.testbed.audit.recorded_network import require
from producers.audit.software.units import SHOW

Plant = Callable[[RecordedHost], None]
CPU1 = "/sys/devices/system/cpu/cpu1"
PCI = "/sys/bus/pci/devices"


def _file(path: str, content: str) -> Plant:
    return lambda host: host.files.__setitem__(path, content)


def _printed(command: tuple[str, ...], old: str, new: str) -> Plant:
    def plant(host: RecordedHost) -> None:
        require(old in host.commands[command], f"{old} in the recorded host")
        host.commands[command] = host.commands[command].replace(old, new, 1)

    return plant


def _event(text: str) -> Plant:
    line = f"   2 | 11/21/2026 | 11:00:00 | {text} | Asserted\n"
    return lambda host: host.commands.__setitem__(EVENTS, host.commands[EVENTS] + line)


def _smart(**values: int) -> Plant:
    name = "nvme_smart_health_information_log"
    changed = {**MACHINE_HEALTH, name: {**MACHINE_HEALTH[name], **values}}
    return lambda host: host.commands.__setitem__(SMART, json.dumps(changed))


def _unit(name: str, old: str, new: str) -> Plant:
    def plant(host: RecordedHost) -> None:
        before, unit_line, after = host.commands[SHOW].partition(f"Id={name}.service")
        require(old in after, f"{old} in the recorded host")
        host.commands[SHOW] = before + unit_line + after.replace(old, new, 1)

    return plant


def _no_answer(*command: str) -> Plant:
    """Return a fault that makes a command exceed its time limit."""

    def plant(host: RecordedHost) -> None:
        del host.commands[command]
        host.slow.add(command)

    return plant


def _zombies(host: RecordedHost) -> None:
    for pid in range(2000, 2020):
        host.files[f"/proc/{pid}/stat"] = f"{pid} (python) Z 1 1 1 0 -1"


def _other_kernel(host: RecordedHost) -> None:
    """Replace the modules of the running kernel with those of another kernel version."""
    del host.files["/lib/modules/6.8.0-45-generic/modules.dep"]
    host.files["/lib/modules/6.8.0-50-generic/modules.dep"] = ""


def _uneven_sockets(host: RecordedHost) -> None:
    """Give CPU socket 0 one processor more than socket 1."""
    cpus = "/sys/devices/system/cpu"
    for path, content in list(host.files.items()):
        if path.startswith(f"{cpus}/cpu0/"):
            host.files[path.replace("cpu0", "cpu2", 1)] = content
    host.files |= {f"{cpus}/present": "0-2", f"{cpus}/online": "0-2"}


def _far_nic(host: RecordedHost) -> None:
    """Move a GPU below another PCIe root bus, so that it shares no PCIe switch with a NIC."""
    host.links[f"{PCI}/{address(2)}"] = f"/sys/devices/pci0000:d0/0000:d0:01.0/{address(2)}"


def _other_node(host: RecordedHost) -> None:
    """Move a GPU to a NUMA node without a NIC."""
    host.files[f"{PCI}/{address(2)}/numa_node"] = "2"
    host.links[f"{PCI}/{address(2)}"] = f"/sys/devices/pci0000:d0/0000:d0:01.0/{address(2)}"


DATA = "/data/.fabrictime-audit-gpu012.cluster"
MACHINE_FAULTS: dict[str, tuple[str, Plant]] = {
    "another DIMM": ("node.dimms", _printed(DMIDECODE, "Size: 64 GB", "Size: 32 GB")),
    "slow DIMM": (
        "node.dimms",
        _printed(DMIDECODE, "Configured Memory Speed: 4800", "Configured Memory Speed: 4000"),
    ),
    "DIMM errors": ("node.dimm-errors", _file("/sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count", "1")),
    "machine check exception": (
        "node.machine-checks",
        _file("/proc/interrupts", " MCE:          0          2   Machine check exceptions\n"),
    ),
    "fragmented memory": (
        "node.fragmentation",
        _file("/proc/buddyinfo", "Node 0, zone   Normal   4117   2210   1100    560    280 0 0 0 0 0 0\n"),
    ),
    "node with less memory": (
        "node.numa-memory",
        _file("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       900000000 kB\n"),
    ),
    "uneven sockets": ("node.topology", _uneven_sockets),
    "limited frequency": ("node.frequency", _file(f"{CPU1}/cpufreq/scaling_max_freq", "2000000")),
    "old microcode": ("node.firmware", _file(f"{CPU1}/microcode/version", "0x2b000571")),
    "memory event": ("node.events", _event("Memory #0x53 | Uncorrectable ECC")),
    "power event": ("node.events", _event("Power Supply #0x85 | Power Supply AC lost")),
    "redundancy lost": ("node.events", _event("PS Redundancy | Redundancy Lost")),
    "panic in the event log": (
        "node.events",
        lambda host: host.commands.__setitem__(
            EVENTS, host.commands[EVENTS] + "   3 | Linux kernel panic: Fatal excep\n"
        ),
    ),
    "disabled DIMM": (
        "node.parts",
        _printed(SENSORS, "Presence Detected", "Memory Device Disabled, Presence Detected"),
    ),
    "hot DIMM": ("node.sensors", _printed(SENSORS, "41h | ok ", "41h | cr ")),
    "power supply without its name": (
        "node.power-supplies",
        _printed(
            SENSORS,
            "PS2 Status       | 86h | ok  | 10.2 | Presence detected",
            "Status           | 86h | ok  | 10.2 | 0 Watts, Presence detected, AC lost",
        ),
    ),
    "hot inlet": ("node.sensors", _printed(SENSORS, "04h | ok ", "04h | cr ")),
    "stopped fan": ("node.fans", _printed(SENSORS, "9100 RPM", "0 RPM")),
    "slow fan": ("node.fans", _printed(SENSORS, "30h | ok ", "30h | nc ")),
    "no power": (
        "node.power-supplies",
        _printed(SENSORS, "Presence detected", "Presence detected, Power Supply AC lost"),
    ),
    "NUMA node unknown": ("pcie.numa-node", _file(f"{PCI}/0000:b9:00.0/numa_node", "-1")),
    "GPU without a NIC near it": ("pcie.gpu-nic", _far_nic),
    "GPU at another socket": ("pcie.gpu-nic", _other_node),
    "IOMMU translates": ("pcie.iommu", _file(f"{PCI}/{address(4)}/iommu_group/type", "DMA-FQ")),
    "SMART": ("storage.smart", _printed(SMART, '"passed": true', '"passed": false')),
    "worn drive": ("storage.nvme-wear", _smart(percentage_used=97)),
    "media errors": ("storage.nvme-wear", _smart(media_errors=4)),
    "no spare": ("storage.nvme-wear", _smart(available_spare=5)),
    "NVMe without drive": ("storage.nvme-drives", _file("/sys/class/nvme/nvme1/state", "live")),
    "degraded pool": ("storage.zfs", _file("/proc/spl/kstat/zfs/tank/state", "DEGRADED")),
    "shared mount hangs": ("storage.shared-mounts", _no_answer("stat", "--file-system", "/data")),
    "shared write hangs": (
        "storage.shared-writes",
        _no_answer("dd", "if=/dev/zero", f"of={DATA}", "bs=1M", "count=16", "conv=fsync,excl"),
    ),
    "kernel without modules": ("software.kernel", _other_kernel),
    "half installed package": ("software.packages", _printed(PACKAGES, "23.11\tii ", "23.11\tiF ")),
    "two versions of NCCL": ("software.libraries", _file("/usr/local/cuda/lib64/libnccl.so.2.18.3", "")),
    "mixed RDMA modules": ("software.module-versions", _file("/sys/module/mlx5_ib/version", "5.8-1.1.2")),
    "overcommit": ("software.sysctls", _file("/proc/sys/vm/overcommit_memory", "2")),
    "zone reclaim": ("software.sysctls", _file("/proc/sys/vm/zone_reclaim_mode", "1")),
    "pending firmware": (
        "software.nic-firmware",
        _printed(FIRMWARE, '"stored": {"fw.version": "28.41', '"stored": {"fw.version": "28.43'),
    ),
    "restarting service": ("software.service-restarts", _unit("slurmd", "NRestarts=0", "NRestarts=7")),
    "no fabric manager": (
        "software.fabric-manager",
        _unit("nvidia-fabricmanager", "ActiveState=active", "ActiveState=failed"),
    ),
    "scheduled shutdown": (
        "software.maintenance",
        _file("/run/systemd/shutdown/scheduled", "USEC=1795000000000000"),
    ),
    "panic": ("software.crash", _file("/sys/fs/pstore/dmesg-efi-1", "Panic#1")),
    "kernel dump": ("software.crash", _file("/var/crash/202611200801/dmesg", "panic")),
    "containers miss a GPU": ("software.container-runtime", _printed(CONTAINERS, "Device Index:   7\n", "")),
    "NCCL without RDMA": ("software.environment", _file("/etc/nccl.conf", "NCCL_IB_DISABLE=1\n")),
    "blocking launches": (
        "software.environment",
        _file("/etc/profile.d/x.sh", "export CUDA_LAUNCH_BLOCKING=1\n"),
    ),
    "hidden GPUs": ("software.environment", _file("/etc/environment", 'CUDA_VISIBLE_DEVICES="0,1"\n')),
    "display server": ("software.programs", _file("/proc/900/stat", "900 (Xorg) S 1 900 900 0 -1")),
    "coin miner": ("software.programs", _file("/proc/901/stat", "901 (xmrig) R 1 901 901 0 -1")),
    "nouveau": (
        "software.modules-denied",
        lambda host: host.files.__setitem__(
            "/proc/modules", str(host.files["/proc/modules"]) + "nouveau 3000000 0 - Live 0x0\n"
        ),
    ),
    "zombies": ("software.zombies", _zombies),
    "overload": ("software.load", _file("/proc/loadavg", "9.10 9.00 8.80 4/2900 81220")),
}
