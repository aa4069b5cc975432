"""Node checks of the machine: DIMMs, machine checks, NUMA and processors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from producers.audit.base import Checks, Fact, Finding, checked, stated
from producers.audit.host.base import Host, Missing
from producers.audit.node.state import CPU, cpu_list, meminfo_bytes
from schemas.audit_remedy import remedy

NODES: Final = "/sys/devices/system/node"
LARGE_BYTES: Final = 2 << 20
"""Size of a large free block: a huge page of x86, and of Arm with pages of 4 KiB."""
KERNEL_HUGE_PAGE: Final = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
PAGE_TABLE_ENTRY_BYTES: Final = 8
"""A huge page is what one page of entries of a page table leads to, so its size states that of a page."""
ORDERS: Final = {14: 64 << 10, 12: 16 << 10}
"""Size of a page by the number of orders in /proc/buddyinfo (arch/arm64/Kconfig, ARCH_FORCE_MAX_ORDER)."""
SLOT_FIELDS: Final = {
    "size": ("Size",),
    "configured speed": ("Configured Memory Speed", "Configured Clock Speed"),
}
"""Fields of a memory device that are compared, by their names in dmidecode: before 3.2, clock speed."""
NO_MODULE: Final = frozenset({"", "No Module Installed", "Not Installed"})
MAX_MEMORY_SPREAD: Final = 0.1
"""Largest relative difference between NUMA nodes' memory. Azure allows 3% of the host's memory in all, but
firmware takes its part from one node."""
CHECKS: Final = Checks()


def blocks(text: str) -> list[dict[str, str]]:
    """Return the fields of each memory device that `dmidecode --type 17` prints."""
    devices: list[dict[str, str]] = []
    for line in text.splitlines():
        if line.strip() == "Memory Device":
            devices.append({})
        elif devices and line.startswith("\t"):
            name, _, value = line.strip().partition(":")
            devices[-1][name] = value.strip()
    return devices


def interrupts(text: str, name: str) -> int | None:
    """Return the sum of a row of /proc/interrupts over all processors; None if there is no such row."""
    for line in text.splitlines():
        first, _, rest = line.strip().partition(":")
        if first == name:
            return sum(int(value) for value in rest.split() if value.isdigit())
    return None


def free_blocks(text: str) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of free blocks, from order 0 up, for each (node, zone) of /proc/buddyinfo."""
    free_counts = {}
    for line in text.splitlines():
        parts = line.replace(",", " ").split()
        if len(parts) < 5 or parts[0] != "Node" or parts[2] != "zone":
            raise ValueError(f"/proc/buddyinfo: {line!r:.60}, expected a node and a zone")
        free_counts[parts[1], parts[3]] = [int(count) for count in parts[4:]]
    return free_counts


def _is_virtual(host: Host) -> bool:
    """Return whether the processor says that it runs a virtual machine."""
    try:
        return re.search(r"^flags\s.* hypervisor\b", host.read("/proc/cpuinfo"), re.MULTILINE) is not None
    except Missing:
        return False


@CHECKS.error("node.dimms", "DIMMs of a type are the same", 86)
@remedy.replace("Reseat or replace the DIMM that differs")
def _dimms(host: Host) -> Iterator[Finding]:
    if _is_virtual(host):
        raise Missing("a virtual machine: its memory devices are made up")
    slots = blocks(host.run("dmidecode", "--type", "17"))
    filled = [slot for slot in slots if slot.get("Size", "") not in NO_MODULE]
    if not filled:
        raise Missing("the firmware describes no memory device")
    by_type: dict[str, list[dict[str, str]]] = {}
    for dimm in filled:  # persistent memory beside DRAM is a type of its own
        by_type.setdefault(dimm.get("Type", ""), []).append(dimm)
    for dimms in by_type.values():
        for field, names in SLOT_FIELDS.items():
            majority = Counter(slot_value(dimm, names) for dimm in dimms).most_common(1)[0][0]
            for number, dimm in enumerate(dimms):
                value = slot_value(dimm, names)
                text = f"{field} {value}, the host's majority {majority}"
                yield checked(value == majority, text, dimm.get("Locator", f"DIMM {number}"))
    yield stated("dimms", len(filled))


def slot_value(dimm: Mapping[str, str], names: Sequence[str]) -> str:
    """Return the first field of a memory device that the firmware states; else `not stated`."""
    return next((dimm[name] for name in names if name in dimm), "not stated")


MODULES: Final = ("dimm", "rank")
"""Beginnings of the folders of memory modules. Without DIMMs, controllers name ranks (kernel, edac.rst)."""


@CHECKS.error("node.dimm-errors", "DIMMs have no uncorrectable errors", 86)
@remedy.replace("Replace the DIMM")
def _dimm_errors(host: Host) -> Iterator[Finding]:
    base, any_module = "/sys/devices/system/edac/mc", False
    for controller in host.names(base):
        if not controller.startswith("mc"):
            continue
        for dimm in host.names(f"{base}/{controller}"):
            if dimm.startswith(MODULES):
                any_module = True
                folder = f"{base}/{controller}/{dimm}"
                lost = int(host.read(f"{folder}/dimm_ue_count"))
                yield checked(not lost, f"{lost:,} uncorrectable errors", host.read(f"{folder}/dimm_label"))
    if not any_module:
        raise Missing("no DIMM reports errors (EDAC)")


@CHECKS.error("node.machine-checks", "Processors raised no machine check", 86)
@remedy.replace("Read `ras-mc-ctl --errors` or /var/log/mcelog; replace the part that it names")
def _machine_checks(host: Host) -> Iterator[Finding]:
    count = interrupts(host.read("/proc/interrupts"), "MCE")
    if count is None:
        raise Missing(
            "no MCE row in /proc/interrupts: firmware reports (APEI) are read by kernel-log.machine"
        )
    finding = checked(not count, f"{count:,} machine check exceptions since boot, expected 0")
    yield replace(finding, fact=Fact("machine_checks", str(count), float(count)))


@CHECKS.warning("node.fragmentation", "Memory has large free blocks", 86)
@remedy.monitor("echo 1 > /proc/sys/vm/compact_memory; drop caches")
def _fragmentation(host: Host) -> Iterator[Finding]:
    for (node, zone), counts in free_blocks(host.read("/proc/buddyinfo")).items():
        if zone == "Normal":
            order = (LARGE_BYTES // page_bytes(host, len(counts))).bit_length() - 1
            large = sum(counts[order:])
            yield checked(large > 0, f"{large:,} free blocks of 2 MiB or more, expected some", f"node {node}")


def page_bytes(host: Host, orders: int) -> int:
    """Return the size of a page, by that of a huge page, else by the number of orders of free blocks."""
    try:
        huge_bytes = int(host.read(KERNEL_HUGE_PAGE))
    except Missing:
        return ORDERS.get(orders, 4 << 10)
    return math.isqrt(huge_bytes * PAGE_TABLE_ENTRY_BYTES)


def _nodes_with_processors(host: Host) -> list[str]:
    names = [name for name in host.names(NODES) if name.removeprefix("node").isdigit()]
    return [name for name in names if host.read(f"{NODES}/{name}/cpulist")]


@CHECKS.error("node.numa-memory", "NUMA nodes have the same memory", 86)
@remedy.replace("Find the DIMM that is not detected: dmidecode --type 17")
def _numa(host: Host) -> Iterator[Finding]:
    """Compare the memory of nodes with processors. Memory of GPUs and CXL forms nodes without any."""
    nodes = _nodes_with_processors(host)
    memory = {}
    for node in nodes:
        lines = host.read(f"{NODES}/{node}/meminfo").splitlines()
        memory[node] = meminfo_bytes("\n".join(line.partition(node[4:])[2].strip() for line in lines))[
            "MemTotal"
        ]
    top = max(memory.values())
    for node, size in memory.items():
        share = size / top if top else 0.0
        text = f"{size / 2**30:,.0f} GiB, the largest node {top / 2**30:,.0f} GiB"
        yield checked(share >= 1 - MAX_MEMORY_SPREAD, text, node)
    yield stated("numa_nodes", len(nodes))


@CHECKS.error("node.topology", "Sockets have the same processors", 83)
@remedy.reboot("Look for a disabled core in the firmware; reboot")
def _topology(host: Host) -> Iterator[Finding]:
    sockets: Counter[str] = Counter()
    cores = set()
    for number in cpu_list(host.read(f"{CPU}/online")):
        folder = f"{CPU}/cpu{number}/topology"
        socket = host.read(f"{folder}/physical_package_id")
        sockets[socket] += 1
        cores.add((socket, host.read(f"{folder}/core_id")))
    expected = max(sockets.values())
    for socket, count in sorted(sockets.items()):
        yield checked(count == expected, f"{count} processors, expected {expected}", f"socket {socket}")
    for name, value in (("sockets", len(sockets)), ("cores", len(cores)), ("processors", sockets.total())):
        yield stated(name, value)


@CHECKS.warning("node.frequency", "Processor frequency is not limited", 84)
@remedy.monitor("cpupower frequency-set --max; check the firmware's power limits")
def _frequency(host: Host) -> Iterator[Finding]:
    lowered = []
    for number in cpu_list(host.read(f"{CPU}/online")):
        folder = f"{CPU}/cpu{number}/cpufreq"
        limit, top = (int(host.read(f"{folder}/{name}")) for name in ("scaling_max_freq", "cpuinfo_max_freq"))
        if limit < top:
            lowered.append(f"cpu{number} {limit // 1000} of {top // 1000} MHz")
    text = f"limited: {', '.join(lowered[:4])}" if lowered else "no limit below the processor's maximum"
    yield checked(not lowered, text)


@CHECKS.warning("node.firmware", "Processors run the same microcode", 57)
@remedy.reboot("Update the microcode, then reboot")
def _microcode(host: Host) -> Iterator[Finding]:
    online = cpu_list(host.read(f"{CPU}/online"))
    if "microcode" in host.names(f"{CPU}/cpu{online[0]}"):  # processors of Arm have none
        versions = {host.read(f"{CPU}/cpu{number}/microcode/version") for number in online}
        yield checked(len(versions) == 1, f"microcode {', '.join(sorted(versions))}, expected one version")
        for version in versions:
            yield stated("microcode", version)
    for name in ("bios_version", "product_name", "board_name"):
        try:
            yield stated(name, host.read(f"/sys/class/dmi/id/{name}"))
        except Missing:
            continue
