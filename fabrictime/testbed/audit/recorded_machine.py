"""The machine of the recorded host: PCIe tree, NUMA nodes, processors, BMC, drives, versions, services."""

from __future__ import annotations

import json
from typing import Any

from fabrictime.testbed.audit.recorded_gpu import AMD_ADDRESSES, GPUS, address, on_pcie
from fabrictime.testbed.audit.recorded_services import DEVICES, EFA, EFA_ADDRESS
from producers.audit.software.units import SHOW, UNITS

NICS = tuple(DEVICES.values())
"""PCI addresses of mlx5_0 to mlx5_3, each beside two GPUs."""
DMIDECODE = ("dmidecode", "--type", "17")
EVENTS = ("ipmitool", "sel", "elist")
SENSORS = ("ipmitool", "sdr", "elist", "all")
SMART = ("smartctl", "--json", "--all", "/dev/nvme0n1")
PACKAGES = ("dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Abbrev}\n")
FIRMWARE = ("devlink", "--json", "dev", "info")
CONTAINERS = ("nvidia-container-cli", "info")
WARNINGS = """ACPI BIOS Warning (bug): Incorrect checksum in table [BGRT] - 0xDF, should be 0xA4
MDS CPU bug present and SMT on, data leak possible.
nvidia: loading out-of-tree module taints kernel.
NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.08  Tue Oct  8 08:15:16 UTC 2024
pci 0000:00:01.0: bridge window [io  size 0x1000]: can't assign; no space
"""
"""Lines of the kernel log with the level warning or above."""
MOUNTS = ("/shared home", "/data")
MACHINE_HEALTH: dict[str, dict[str, Any]] = {
    "smart_status": {"passed": True},
    "nvme_smart_health_information_log": {
        "critical_warning": 0,
        "media_errors": 0,
        "percentage_used": 3,
        "available_spare": 100,
        "available_spare_threshold": 10,
    },
}


def _places() -> dict[str, tuple[str, int]]:
    """Return (path in the PCIe tree, NUMA node) by PCI address; each switch has a NIC and two GPUs."""
    places = {}
    for index in range(len(NICS)):
        bus = 0x15 + 0x20 * index
        switch = f"/sys/devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{bus + 1:02x}:00.0"
        devices = [NICS[index], address(2 * index), address(2 * index + 1)]
        if index == len(NICS) - 1:
            devices += [*AMD_ADDRESSES, EFA_ADDRESS]
        for device in devices:
            places[device] = f"{switch}/{device}", index // 2
    return places


def links() -> dict[str, str]:
    """Return the symbolic links from devices to their paths in the PCIe tree."""
    link_targets = {f"/sys/bus/pci/devices/{device}": path for device, (path, _) in _places().items()}
    for device, nic in (DEVICES | {EFA: EFA_ADDRESS}).items():
        link_targets[f"/sys/class/infiniband/{device}/device"] = link_targets[f"/sys/bus/pci/devices/{nic}"]
        link_targets[f"/sys/bus/pci/devices/{nic}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
    return link_targets


def files() -> dict[str, str | bytes]:
    """Return the machine's files, by path."""
    contents: dict[str, str | bytes] = {
        "/proc/interrupts": (
            "           CPU0       CPU1\n   0:         12          0   IO-APIC   2-edge      timer\n"
            " MCE:          0          0   Machine check exceptions\nERR:          0\n"
        ),
        "/proc/buddyinfo": (
            "Node 0, zone      DMA      1      0      0      0      0      0      0      0    1    1    3\n"
            "Node 0, zone   Normal   4117   2210   1100    560    280    140     70     35   17    8  900\n"
            "Node 1, zone   Normal   4000   2210   1100    560    280    140     70     35   17    8  900\n"
        ),
        "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.8.0-45-generic root=UUID=1 ro iommu=pt\n",
        "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
        "/etc/environment": 'PATH="/usr/local/bin:/usr/bin:/bin"\n',
        "/etc/nccl.conf": "# set by the site\nNCCL_IB_HCA=mlx5\n",
        "/etc/profile.d/site.sh": "export EDITOR=vi\n",
        "/lib/modules/6.8.0-45-generic/modules.dep": "",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5": "",
        "/usr/lib/x86_64-linux-gnu/libnccl.so.2": "",
        "/usr/local/cuda/version.json": json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}),
        "/opt/rocm/.info/version": "6.2.0-66\n",
        "/sys/module/mlx5_core/version": "24.04-0.6.6\n",
        "/sys/module/mlx5_ib/version": "24.04-0.6.6\n",
        "/sys/module/ib_core/version": "24.04-0.6.6\n",
        "/sys/module/nvidia/version": "550.127.08\n",
        "/sys/class/dmi/id/bios_version": "2.1.7\n",
        "/sys/class/dmi/id/product_name": "an HGX host\n",
        "/sys/block/nvme0n1/size": "7501476528\n",
        "/sys/class/nvme/nvme0/nvme0n1/size": "7501476528\n",
        "/sys/bus/pci/devices/0000:c5:00.0/class": "0x068000\n",
        "/sys/bus/pci/devices/0000:c5:00.0/vendor": "0x10de\n",
        "/sys/fs/pstore/.keep": "",
        "/proc/spl/kstat/zfs/tank/state": "ONLINE\n",
        "/proc/spl/kstat/zfs/arcstats": "1 1 0x01\n",
        "/dev/ipmi0": "",
        "/sys/devices/system/edac/mc/mc0/dimm0/dimm_ue_count": "0\n",
        "/sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count": "3\n",
        "/sys/devices/system/edac/mc/mc0/dimm0/dimm_label": "CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n",
    }
    for name, value in (
        ("vm/zone_reclaim_mode", 0),
        ("vm/overcommit_memory", 0),
        ("vm/max_map_count", 65_530),
        ("vm/swappiness", 10),
        ("vm/nr_hugepages", 0),
        ("kernel/threads-max", 16_000_000),
        ("net/core/rmem_max", 212_992),
        ("net/core/wmem_max", 212_992),
        ("net/core/somaxconn", 4096),
    ):
        contents[f"/proc/sys/{name}"] = f"{value}\n"
    for number in range(2):
        folder = f"/sys/devices/system/cpu/cpu{number}"
        contents |= {
            f"{folder}/topology/physical_package_id": f"{number}\n",
            f"{folder}/topology/core_id": "0\n",
            f"{folder}/cpufreq/scaling_max_freq": "3800000\n",
            f"{folder}/cpufreq/cpuinfo_max_freq": "3800000\n",
            f"{folder}/microcode/version": "0x2b000590\n",
            f"/sys/devices/system/node/node{number}/cpulist": f"{number}\n",
            f"/sys/devices/system/node/node{number}/meminfo": (
                f"Node {number} MemTotal:       1056500000 kB\nNode {number} MemFree:        1000000000 kB\n"
            ),
        }
    for name, nic in DEVICES.items():
        contents |= on_pcie(nic, "0x020700", "0x15b3", "0x1021")
        contents[f"/sys/bus/pci/devices/{nic}/infiniband/{name}/node_type"] = "1: CA\n"
    for device, (_, node) in _places().items():
        contents[f"/sys/bus/pci/devices/{device}/numa_node"] = f"{node}\n"
        contents[f"/sys/bus/pci/devices/{device}/iommu_group/type"] = "identity\n"
    return contents


def _dimm(slot: str) -> str:
    return (
        f"Handle 0x1100, DMI type 17, 92 bytes\nMemory Device\n\tSize: 64 GB\n\tLocator: {slot}\n"
        "\tSpeed: 4800 MT/s\n\tConfigured Memory Speed: 4800 MT/s\n\n"
    )


def _units() -> str:
    return "\n".join(
        f"Id={name}.service\nLoadState=loaded\nActiveState=active\nNRestarts=0\n"
        for name in UNITS
        if name in ("chrony", "containerd", "slurmd", "munge", "nvidia-persistenced", "nvidia-fabricmanager")
    )


def commands() -> dict[tuple[str, ...], str]:
    """Return the output of the machine's commands, by command."""
    outputs = {
        DMIDECODE: _dimm("A1") + _dimm("B1") + _dimm("C1"),
        EVENTS: "   1 | 11/20/2026 | 10:00:00 | System Event #0x83 | Timestamp Clock Sync | Asserted\n",
        SENSORS: (
            "Inlet Temp       | 04h | ok  |  7.1 | 22 degrees C\n"
            "P12V             | 20h | ok  |  7.1 | 12.1 Volts\n"
            "Fan1             | 30h | ok  | 29.1 | 9000 RPM\nFan2             | 31h | ok  | 29.2 | 9100 RPM\n"
            "PS1 Status       | 85h | ok  | 10.1 | Presence detected\n"
            "PS2 Status       | 86h | ok  | 10.2 | Presence detected\n"
            "DIMM A1          | 40h | ok  | 32.1 | Presence Detected\n"
            "DIMM A1 Temp     | 41h | ok  | 32.1 | 40 degrees C\n"
        ),
        SMART: json.dumps(MACHINE_HEALTH),
        PACKAGES: "libnccl2\t2.21.5-1+cuda12.4\tii \nbash\t5.2\tii \nslurm-wlm\t23.11\tii \n",
        FIRMWARE: json.dumps(
            {
                "info": {
                    f"pci/{nic}": {
                        "versions": {
                            "running": {"fw.version": "28.41.1000"},
                            "stored": {"fw.version": "28.41.1000"},
                        }
                    }
                    for nic in NICS
                }
            }
        ),
        CONTAINERS: "NVRM version:   550.127.08\nCUDA version:   12.4\n\n"
        + "".join(f"Device Index:   {index}\n" for index in range(GPUS)),
        SHOW: _units(),
    }
    for point in MOUNTS:
        file = f"{point}/.fabrictime-audit-gpu012.cluster"
        outputs |= {
            ("stat", "--file-system", point): "  File: ...\n",
            ("dd", "if=/dev/zero", f"of={file}", "bs=1M", "count=16", "conv=fsync,excl"): "",
            ("dd", f"if={file}", "of=/dev/null", "bs=1M", "iflag=nofollow"): "",
            ("rm", "--force", file): "",
        }
    return outputs
