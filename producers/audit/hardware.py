"""Node checks of the machine: DIMMs, machine checks, NUMA, processors, and the sensors of its BMC."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from producers.audit.base import Checks, Fact, Finding, checked, failed, passed, stated
from producers.audit.host import Host, Missing
from producers.audit.node import CPU, cpu_list, meminfo_bytes
from schemas.audit_remedy import remedy

NODES: Final = "/sys/devices/system/node"
HUGE_ORDER: Final = 9
"""Order of a free block of 2 MiB, in pages of 4 KiB."""
MAX_MEMORY_SPREAD: Final = 0.1
"""Largest relative difference between NUMA nodes' memory. Azure allows 3% of the host's memory in all, but
firmware takes its part from one node."""
_SERIOUS: Final = re.compile(
    r"\b(?:uncorrectable|(?<!non-)critical|failure|failed|non-recoverable|lost|faulty?|thermal trip|ierr"
    r"|machine check|predictive|degraded|bus fatal|out[ -]of[ -]range|error)\b(?<!correctable error)",
    re.IGNORECASE,
)
"""Words that name a fault, in the text of an event or in the reading of a sensor."""
GOOD_SENSORS: Final = frozenset({"ok", "ns"})
"""States of a good sensor: ok is within its limits, ns is without a reading."""
_BMC_S: Final = 35.0
"""Limit of checks that read from the BMC, which may take half a minute."""
CHECKS: Final = Checks()


class Sensor(NamedTuple):
    """A sensor of the BMC."""

    name: str
    status: str
    reading: str


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


def sensors(text: str) -> list[Sensor]:
    """Return the sensors that `ipmitool sdr elist` prints."""
    entries = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 5:
            raise ValueError(f"sensor {line!r:.60}, expected five columns")
        entries.append(Sensor(parts[0], parts[2].lower(), parts[4]))
    if not entries:
        raise ValueError("the BMC lists no sensor")
    return entries


def _is_virtual(host: Host) -> bool:
    """Return whether the processor says that it runs a virtual machine."""
    try:
        return re.search(r"^flags\s.* hypervisor\b", host.read("/proc/cpuinfo"), re.MULTILINE) is not None
    except Missing:
        return False


@CHECKS.error("node.dimms", "DIMMs are the same", 86)
@remedy.replace("Reseat or replace the DIMM that differs")
def _dimms(host: Host) -> Iterator[Finding]:
    if _is_virtual(host):
        raise Missing("a virtual machine: its memory devices are made up")
    slots = blocks(host.run("dmidecode", "--type", "17"))
    filled = [slot for slot in slots if slot["Size"] != "No Module Installed"]
    if not filled:
        raise Missing("the firmware describes no memory device")
    for field in ("Size", "Configured Memory Speed"):
        majority = Counter(dimm[field] for dimm in filled).most_common(1)[0][0]
        for dimm in filled:
            text = f"{field.lower()} {dimm[field]}, the host's majority {majority}"
            yield checked(dimm[field] == majority, text, dimm["Locator"])
    yield stated("dimms", len(filled))


@CHECKS.error("node.dimm-errors", "DIMMs have no uncorrectable errors", 86)
@remedy.replace("Replace the DIMM")
def _dimm_errors(host: Host) -> Iterator[Finding]:
    base, any_module = "/sys/devices/system/edac/mc", False
    for controller in host.names(base):
        if not controller.startswith("mc"):
            continue
        for dimm in host.names(f"{base}/{controller}"):
            if dimm.startswith("dimm"):
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
        raise Missing("the processor has no machine check interrupt")
    finding = checked(not count, f"{count:,} machine check exceptions since boot, expected 0")
    yield replace(finding, fact=Fact("machine_checks", str(count), float(count)))


@CHECKS.warning("node.fragmentation", "Memory has large free blocks", 86)
@remedy.monitor("echo 1 > /proc/sys/vm/compact_memory; drop caches")
def _fragmentation(host: Host) -> Iterator[Finding]:
    for (node, zone), counts in free_blocks(host.read("/proc/buddyinfo")).items():
        if zone == "Normal":
            large = sum(counts[HUGE_ORDER:])
            yield checked(large > 0, f"{large:,} free blocks of 2 MiB or more, expected some", f"node {node}")


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


def _bmc(host: Host) -> None:
    """Raise Missing if the host has no BMC."""
    if not any(name.startswith("ipmi") for name in host.names("/dev")):
        raise Missing("no BMC: no /dev/ipmi0")


def events(text: str) -> dict[tuple[str, str], int]:
    """Return how often `ipmitool sel elist` lists each (sensor, fault); faults that ended are left out."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) > 4 and _SERIOUS.search(parts[4]):
            key = parts[3], parts[4]
            if "deassert" in " ".join(parts[5:]).lower():
                counts.pop(key, None)
            else:
                counts[key] += 1
    return counts


@CHECKS.error("node.events", "The system event log has no fault", 98, limit_s=_BMC_S)
@remedy.replace("Replace the part that `ipmitool sel elist` names, then `ipmitool sel clear`")
def _events(host: Host) -> Iterator[Finding]:
    _bmc(host)
    counts = events(host.run("ipmitool", "sel", "elist"))
    for (sensor, text), count in sorted(counts.items()):
        yield failed(f"{text}, {count} times" if count > 1 else text, sensor)
    if not counts:
        yield passed("no fault in the system event log")


def _of_bmc(
    host: Host, is_chosen: Callable[[Sensor], bool], is_right: Callable[[Sensor], bool]
) -> Iterator[Finding]:
    _bmc(host)
    selection = [
        sensor for sensor in sensors(host.run("ipmitool", "sdr", "elist", "all")) if is_chosen(sensor)
    ]
    if not selection:
        raise Missing("the BMC has no such sensor")
    for sensor in selection:
        yield checked(is_right(sensor), f"{sensor.status}, {sensor.reading or 'no reading'}", sensor.name)


@CHECKS.error("node.sensors", "Temperatures and voltages are in their limits", 98, limit_s=_BMC_S)
@remedy.monitor("ipmitool sdr elist; check cooling and power")
def _sensors(host: Host) -> Iterator[Finding]:
    return _of_bmc(host, lambda sensor: not _is_fan(sensor) and not _is_supply(sensor), _is_good)


@CHECKS.error("node.fans", "Fans run", 98, limit_s=_BMC_S)
@remedy.replace("Replace the fan")
def _fans(host: Host) -> Iterator[Finding]:
    return _of_bmc(host, _is_fan, _spins)


@CHECKS.error("node.power-supplies", "Power supplies work", 98, limit_s=_BMC_S)
@remedy.replace("Check the power cord and feed, then replace the power supply")
def _power_supplies(host: Host) -> Iterator[Finding]:
    return _of_bmc(host, _is_supply, _is_good)


def _is_fan(sensor: Sensor) -> bool:
    return sensor.reading.endswith("RPM") or "fan" in sensor.name.lower()


def _is_supply(sensor: Sensor) -> bool:
    name = sensor.name.lower()
    return name.startswith(("ps", "power supply")) and not any(
        char in sensor.reading for char in "0123456789"
    )


def _spins(sensor: Sensor) -> bool:
    return _is_good(sensor) and sensor.reading != "0 RPM"


def _is_good(sensor: Sensor) -> bool:
    """Return whether a sensor is within its limits and its reading names no fault.

    The reading is needed as well: a sensor without limits always has the status ok.
    """
    return sensor.status in GOOD_SENSORS and not _SERIOUS.search(sensor.reading)
