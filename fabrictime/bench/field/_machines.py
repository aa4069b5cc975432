"""Composes simulated hosts from parts: kernel, processors, memory, GPUs, NICs, drives, BMC, services.

A host's table states its parts; file formats follow the kernel's documentation and the tools' manuals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fabrictime.bench.field import _machine_nics, _machine_services
from fabrictime.bench.field._cases import Table
from fabrictime.bench.field._host import recorded_commands
from fabrictime.bench.field._machine_nics import place_on_pcie
from fabrictime.testbed.audit.recorded import RecordedHost
from fabrictime.testbed.audit.recorded_gpu import activity, report
from producers.audit.gpu.nvml import ACTIVITY
from producers.audit.host.base import NVML

SYS: Final = "/sys/devices/system"
PCI: Final = "/sys/bus/pci/devices"
KFD: Final = "/sys/class/kfd/kfd/topology/nodes"
ORDERS: Final = {4: 11, 64: 14}
"""Number of free lists of the page allocator, by the size of a page in KiB."""


def add_machine(host: RecordedHost, machine: Table) -> None:
    """Add the files, commands and network of a machine to a host."""
    kernel = {"page_kib": 4, "release": "5.15.0-1053-generic", "os": "Ubuntu 22.04.4 LTS"}
    _kernel(host, kernel | machine.get("kernel", {}), machine)
    _processors(host, {"sockets": 2, "cores": 4, "threads": 1, "nodes": 2} | machine.get("processors", {}))
    _memory(host, {"gib": 1024} | machine.get("memory", {}), machine)
    if "nvidia" in machine:
        _nvidia(host, machine["nvidia"], machine.get("pcie_switches", 8))
    if "amd" in machine:
        _amd(host, machine["amd"], machine.get("pcie_switches", 8))
    for index, address in enumerate(machine.get("nvswitches", ())):
        _device(host, address, ("0x068000", "0x10de", "0x22a3"), index % 2, 20)
    _machine_nics.add_nics(host, machine)
    _machine_services.add_services(host, machine)


def _kernel(host: RecordedHost, kernel: Table, machine: Table) -> None:
    release = kernel["release"]
    host.files |= {
        "/proc/sys/kernel/osrelease": f"{release}\n",
        "/proc/sys/kernel/tainted": f"{kernel.get('tainted', 12288)}\n",
        "/proc/sys/kernel/numa_balancing": "0\n",
        "/proc/sys/kernel/pid_max": "4194304\n",
        "/proc/sys/kernel/threads-max": "8000000\n",
        "/proc/sys/kernel/hostname": "node1\n",
        "/proc/sys/fs/file-nr": "9216\t0\t9223372036854775807\n",
        "/proc/loadavg": "1.20 1.10 1.00 2/1800 44871\n",
        "/proc/uptime": "860000.12 9000000.00\n",
        "/proc/vmstat": "nr_free_pages 500\noom_kill 0\n",
        "/proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{release} root=UUID=1 ro iommu=pt\n",
        "/etc/os-release": f'PRETTY_NAME="{kernel["os"]}"\n',
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size": f"{kernel['page_kib'] ** 2 << 17}\n",
        "/sys/class/dmi/id/product_name": f"{machine['product']}\n",
        "/sys/class/dmi/id/sys_vendor": f"{machine['vendor']}\n",
        "/sys/class/dmi/id/bios_version": "1.4.2\n",
        f"{SYS}/clocksource/clocksource0/current_clocksource": f"{kernel.get('clock', 'tsc')}\n",
        "/proc/modules": "".join(f"{name} 1024 0 - Live 0x0\n" for name in machine.get("modules", ())),
    }
    if kernel.get("modules_dep", True):
        host.files[f"/lib/modules/{release}/modules.dep"] = ""
    swappiness = {"vm/swappiness": 60, "vm/zone_reclaim_mode": 0, "vm/overcommit_memory": 0}
    limits = {"vm/max_map_count": 65_530, "vm/nr_hugepages": 0, "net/core/somaxconn": 4096}
    limits |= dict.fromkeys(("net/core/rmem_max", "net/core/wmem_max"), 212_992)
    for name, value in (swappiness | limits).items():
        host.files[f"/proc/sys/{name}"] = f"{value}\n"
    host.spaces = {"/": (10**12, 6 * 10**11, 10**7, 9 * 10**6)}
    for command in recorded_commands("dmesg"):
        host.commands[command] = kernel.get("log", "")


def _processors(host: RecordedHost, processors: Table) -> None:
    sockets, cores, threads = processors["sockets"], processors["cores"], processors["threads"]
    count, nodes = sockets * cores * threads, processors["nodes"]
    host.files |= {
        f"{SYS}/cpu/present": f"0-{count - 1}\n",
        f"{SYS}/cpu/online": f"0-{count - 1}\n",
        f"{SYS}/cpu/smt/control": "on\n" if threads > 1 else processors.get("smt", "notsupported") + "\n",
        "/proc/cpuinfo": "".join(f"processor\t: {n}\n" for n in range(count)),
    }
    for n in range(count):
        folder, core = f"{SYS}/cpu/cpu{n}", n % (sockets * cores)
        host.files[f"{folder}/topology/physical_package_id"] = f"{core // cores}\n"
        host.files[f"{folder}/topology/core_id"] = f"{core % cores}\n"
        if processors.get("frequency", True):
            host.files[f"{folder}/cpufreq/scaling_governor"] = "performance\n"
            host.files[f"{folder}/cpufreq/scaling_max_freq"] = "3400000\n"
            host.files[f"{folder}/cpufreq/cpuinfo_max_freq"] = "3400000\n"
    for node in range(nodes):
        cpu_list = [
            str(n) for n in range(count) if n % (sockets * cores) * nodes // (sockets * cores) == node
        ]
        host.files[f"{SYS}/node/node{node}/cpulist"] = ",".join(cpu_list) + "\n"
    lines = processors.get("interrupts", " MCE:" + "          0" * count + "   Machine check exceptions\n")
    host.files["/proc/interrupts"] = "     " + "".join(f"  CPU{n}" for n in range(count)) + "\n" + lines


def _memory(host: RecordedHost, memory: Table, machine: Table) -> None:
    page_kib, nodes = machine.get("kernel", {}).get("page_kib", 4), memory.get("node_gib", ())
    cpu_nodes = machine.get("processors", {}).get("nodes", 2)
    nodes = nodes or [memory["gib"] // cpu_nodes] * cpu_nodes
    total_kib = sum(nodes) << 20
    host.files["/proc/meminfo"] = (
        f"MemTotal: {total_kib} kB\nMemAvailable: {total_kib * 9 // 10} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
        f"HardwareCorrupted: 0 kB\nHugePages_Total: 0\nHugepagesize: {page_kib * page_kib * 128} kB\n"
    )
    for node, gib in enumerate(nodes):
        host.files[f"{SYS}/node/node{node}/meminfo"] = (
            f"Node {node} MemTotal: {gib << 20} kB\nNode {node} MemFree: {(gib << 20) * 9 // 10} kB\n"
        )
        host.files.setdefault(f"{SYS}/node/node{node}/cpulist", "\n")
    free = "".join(f"{max(0, 4000 >> order):8}" for order in range(ORDERS[page_kib] - 1))
    host.files["/proc/buddyinfo"] = "".join(
        f"Node {node}, zone   Normal{free}{gib * 200:8}\n" for node, gib in enumerate(nodes) if gib
    )
    host.files["/proc/self/smaps"] = (
        f"00400000-00410000 r-xp 0 0:0 1 /bin/cat\nKernelPageSize: {page_kib} kB\n"
    )
    if "dimms" in memory:
        for command in recorded_commands("dmidecode"):
            host.commands[command] = _dimms(memory)
    if memory.get("edac"):
        for name in ("ue_count", "ce_count"):
            host.files[f"{SYS}/edac/mc/mc0/{name}"] = "0\n"


def _dimms(memory: Table) -> str:
    mhz, is_old = memory.get("mhz", 4800), memory.get("dmidecode", "3.5") < "3.2"
    unit, label = ("MHz", "Clock") if is_old else ("MT/s", "Memory")
    one = (
        f"\tSpeed: {mhz} {unit}\n\tType: {memory.get('type', 'DDR5')}\n\tManufacturer: A\n"
        f"\tConfigured {label} Speed: {mhz} {unit}\n\n"
    )
    heads = [
        f"Handle 0x{0x1100 + n:04x}, DMI type 17, 92 bytes\nMemory Device\n\tSize: {memory['dimm_gb']} GB\n"
        f"\tLocator: DIMM_{n}\n"
        for n in range(memory["dimms"])
    ]
    return f"# dmidecode {memory.get('dmidecode', '3.5')}\n\n" + "".join(head + one for head in heads)


def _device(
    host: RecordedHost,
    address: str,
    kind: tuple[str, str, str],
    node: int,
    bus: int,
    link: Mapping[str, str] | None = None,
) -> None:
    """Add a device on PCIe, below the switch `bus`; `kind` is its class, vendor and device id."""
    folder = f"{PCI}/{address}"
    width, speed = (link or {}).get("width", "16"), (link or {}).get("speed", "32.0 GT/s PCIe")
    for name, value in zip(("class", "vendor", "device"), kind, strict=True):
        host.files[f"{folder}/{name}"] = f"{value}\n"
    for when in ("current", "max"):
        host.files[f"{folder}/{when}_link_width"] = f"{width}\n"
        host.files[f"{folder}/{when}_link_speed"] = f"{speed}\n"
    host.files |= {f"{folder}/revision": "0x00\n", f"{folder}/numa_node": f"{node}\n"}
    host.files[f"{folder}/iommu_group/type"] = "identity\n"
    for name in ("fatal", "nonfatal", "correctable"):
        host.files[f"{folder}/aer_dev_{name}"] = f"Undefined 0\nDLP 0\nTOTAL_ERR_{name.upper()} 0\n"
    place_on_pcie(host, address, bus)


def _nvidia(host: RecordedHost, nvidia: Table, switches: int) -> None:
    addresses, driver = nvidia["addresses"], nvidia.get("driver", "570.124.06")
    for index, address in enumerate(addresses):
        kind = (nvidia.get("class", "0x030200"), "0x10de", nvidia["device"])
        node, bus = index * 2 // max(2, len(addresses)), index * switches // len(addresses)
        _device(host, address, kind, node, bus, nvidia.get("pcie"))
    links = nvidia.get("nvlinks", 0)
    fields: dict[str, Any] = {
        "name": nvidia["name"],
        "nvlink_active": [1] * links,
        "nvlink_errors": [0] * links,
        "nvlink_mbps": nvidia.get("nvlink_mbps", 0),
        "peers": [0] * len(addresses),
        "memory_total_bytes": nvidia["memory_gib"] << 30,
        "gsp_version": driver,
    }
    fields |= nvidia.get("fields", {}) | dict.fromkeys(nvidia.get("unsupported", ()))
    gpu = report()["gpus"][0]
    gpus = [gpu | fields | {"address": address} for address in addresses]
    nvml_report = {"driver": driver, "cuda": "12.8", "nvml": f"12.{driver}", "gpus": gpus}
    host.commands[(NVML,)] = json.dumps(nvml_report)
    host.commands[NVML, ACTIVITY] = json.dumps({"gpus": activity()["gpus"][: len(addresses)]})
    host.files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
    )
    host.files["/sys/module/nvidia/version"] = f"{driver}\n"


def _amd(host: RecordedHost, amd: Table, switches: int) -> None:
    addresses, hives = amd["addresses"], amd.get("hives", 1)
    parts = amd.get("partitions", 1)
    host.files |= {"/sys/module/amdgpu/version": "6.10.5\n", "/sys/module/amdgpu/initstate": "live\n"}
    host.files |= {f"{KFD}/{n}/properties": "cpu_cores_count 64\nsimd_count 0\n" for n in range(2)}
    nodes = range(2, 2 + len(addresses) * parts)
    size = len(nodes) // hives
    for index, address in enumerate(addresses):
        folder = f"{PCI}/{address}"
        kind = (amd.get("class", "0x120000"), "0x1002", amd["device"])
        node, bus = index * 2 // len(addresses), index * switches // len(addresses)
        _device(host, address, kind, node, bus)
        host.files |= {
            f"{folder}/ras/umc_err_count": "ue: 0\nce: 0\n",
            f"{folder}/ras/gpu_vram_bad_pages": "",
            f"{folder}/vbios_version": "113-M3000100-102\n",
            f"{folder}/mem_info_vram_total": f"{amd['memory_gib'] << 30}\n",
            f"{folder}/current_compute_partition": amd.get("mode", "SPX") + "\n",
            f"{folder}/hwmon/hwmon{index}/temp2_input": "44000\n",
            f"{folder}/hwmon/hwmon{index}/temp2_crit": "100000\n",
            f"{folder}/hwmon/hwmon{index}/temp2_label": "junction\n",
        }
    for node in nodes:
        hive = (node - 2) // size
        peers = [peer for peer in nodes if (peer - 2) // size == hive and peer != node]
        host.files |= _kfd_node(node, peers, amd.get("simds", 1216), hive)


def _kfd_node(node: int, peers: Iterable[int], simds: int, hive: int) -> dict[str, str]:
    folder = f"{KFD}/{node}"
    files = {
        f"{folder}/properties": f"cpu_cores_count 0\nsimd_count {simds}\nhive_id {7000 + hive}\n",
        f"{folder}/io_links/0/properties": f"type 2\nnode_from {node}\nnode_to 0\n",
    }
    for index, peer in enumerate(peers, start=1):
        files[f"{folder}/io_links/{index}/properties"] = f"type 11\nnode_from {node}\nnode_to {peer}\n"
    return files
