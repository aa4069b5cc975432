"""GPU checks of AMD GPUs, from sysfs: count, ECC, bad pages, XGMI, temperature, power, firmware."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Final

from producers.audit.base import Checks, Fact, Finding, checked, failed, passed
from producers.audit.gpu.sku import AMD, DEVICES, gpu_addresses, sku_of
from producers.audit.host.base import Host, Missing, Unreadable
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

NODES: Final = "/sys/class/kfd/kfd/topology/nodes"
XGMI: Final = 11
"""Number of the link type XGMI in the topology of KFD, AMD's kernel driver."""
MAX_CORRECTABLE: Final = 20_000_000
"""Largest number of correctable ECC errors (Azure's checks)."""
MARGIN_C: Final = 3
CHECKS: Final = Checks()


def ras_counts(text: str) -> dict[str, int]:
    """Return the number of errors by kind from a RAS counter's lines, such as `ue: 0` and `ce: 0`."""
    counts = {}
    for line in text.splitlines():
        kind, _, value = line.partition(":")
        counts[kind.strip()] = int(value)
    if "ue" not in counts:
        raise ValueError(f"RAS counter {text!r:.60}, expected a line 'ue'")
    return counts


def bad_pages(text: str) -> Counter[str]:
    """Return the count of bad pages by state in `gpu_vram_bad_pages`: R retired, P pending, F not retired."""
    states: Counter[str] = Counter()
    for line in text.splitlines():
        state = line.rpartition(":")[2].strip()
        if state not in ("R", "P", "F"):
            raise ValueError(f"bad page {line!r:.60}, expected R, P or F at its end")
        states[state] += 1
    return states


def properties(text: str) -> dict[str, int]:
    """Return the values by name in a `properties` file of KFD."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in text.splitlines())}


def _addresses(host: Host) -> list[str]:
    addresses = gpu_addresses(host, AMD)
    if not addresses:
        raise Missing("no AMD GPU on PCIe")
    return addresses


def _of_each(find: Callable[[Host, str], Iterator[Finding]]) -> Callable[[Host], Iterator[Finding]]:
    """Return a check's function that runs `find` on each GPU's folder, also after one that cannot be read."""

    def find_all(host: Host) -> Iterator[Finding]:
        for address in _addresses(host):
            subject = f"GPU {address}"
            try:
                yield from (
                    replace(finding, subject=subject) for finding in find(host, f"{DEVICES}/{address}")
                )
            except Missing as error:
                yield Finding(subject, AuditStatus.SKIPPED, str(error))
            except (Unreadable, ValueError) as error:
                yield Finding(subject, AuditStatus.UNKNOWN, str(error))

    return find_all


def _gpu_nodes(host: Host) -> Iterator[str]:
    """Yield the KFD nodes that are GPUs, recognised by their SIMD units."""
    for node in host.names(NODES):
        if properties(host.read(f"{NODES}/{node}/properties")).get("simd_count", 0):
            yield node


@CHECKS.error("gpu.amd-count", "All AMD GPUs are there", 59, 80)
@remedy.reboot("Read the kernel log for amdgpu; reboot; reseat or replace the GPU")
def _count(host: Host) -> Iterator[Finding]:
    on_bus = len(_addresses(host))
    sku = sku_of(host, (AMD,))
    if sku is not None:
        is_whole = on_bus == sku.gpus or sku.is_part(on_bus)
        yield checked(is_whole, f"{on_bus} on PCIe, expected {sku.gpus} or an even part of them ({sku.name})")
    try:
        count = len(list(_gpu_nodes(host)))
    except Missing as error:
        yield failed(f"the driver amdgpu has no compute nodes: {error}", "KFD")
        return
    finding = checked(count >= on_bus, f"KFD has {count} GPUs, PCIe {on_bus}", "KFD")
    yield replace(finding, fact=Fact("gpus", str(count), float(count)))


@CHECKS.error("gpu.amd-ecc", "AMD GPUs have no uncorrectable errors", 63, 80)
@remedy.reset("rocm-smi --gpureset after its jobs have ended; replace the GPU if they return")
@_of_each
def _ecc(host: Host, folder: str) -> Iterator[Finding]:
    names = [name for name in host.names(f"{folder}/ras") if name.endswith("_err_count")]
    if not names:
        raise Missing("no RAS counter")
    lost = mended = 0
    for name in names:
        counts = ras_counts(host.read(f"{folder}/ras/{name}"))
        lost, mended = lost + counts["ue"], mended + counts.get("ce", 0)
    yield replace(
        checked(
            not lost and mended < MAX_CORRECTABLE,
            f"{lost:,} uncorrectable and {mended:,} correctable errors, expected 0 and below 20,000,000",
        ),
        fact=Fact("ecc_correctable", str(mended), float(mended)),
    )


@CHECKS.error("gpu.amd-bad-pages", "AMD GPUs have few bad pages", 64, 80)
@remedy.replace("Reboot; replace the GPU if pages remain")
@_of_each
def _bad_pages(host: Host, folder: str) -> Iterator[Finding]:
    states = bad_pages(host.read(f"{folder}/ras/gpu_vram_bad_pages"))
    text = f"{states['R']} pages retired, {states['P']} pending, {states['F']} could not be retired"
    yield checked(not states["F"] and not states["P"] and states["R"] <= 10, text + "; expected at most 10")


@CHECKS.error("gpu.amd-xgmi", "AMD GPUs of a hive are linked to each other", 65, 80)
@remedy.reboot("Reboot; reseat or replace the GPU if a link stays down")
def _xgmi(host: Host) -> Iterator[Finding]:
    """Check that each GPU has an XGMI link to every other GPU of its hive, and that hives have one size.

    A hive is a set of GPUs that links connect; bridges may make several of them (ROCm/k8s-device-plugin,
    testdata/topo-mi210-xgmi-pcie). A GPU that has lost all links is a hive of one, smaller than the others.
    """
    if len(_addresses(host)) < 2:
        raise Missing("one GPU: no link between GPUs")
    linked = {node: _linked_nodes(host, node) for node in _gpu_nodes(host)}
    if len(linked) < 2:
        raise Missing("the driver serves one GPU: no link between GPUs")
    hive_by_node = hives(linked)
    largest = max(map(len, hive_by_node.values()), default=0)
    sku = sku_of(host, (AMD,))
    if largest < 2 and (sku is None or not sku.gpus):
        raise Missing("no link of XGMI joins GPUs: they reach each other by PCIe")
    for node, hive in sorted(hive_by_node.items()):
        lacking = sorted(hive - linked[node] - {node})
        text = f"XGMI links to {len(hive) - 1 - len(lacking)} of {len(hive) - 1} GPUs of its hive"
        if lacking:
            text += f"; none to nodes {', '.join(lacking)}"
        elif len(hive) < largest:
            text += f"; the largest hive of this host has {largest} GPUs"
        yield checked(not lacking and 1 < len(hive) == largest, text, f"node {node}")


def _linked_nodes(host: Host, node: str) -> set[str]:
    """Return the nodes to which a node has a link of XGMI."""
    linked = set()
    for link in host.names(f"{NODES}/{node}/io_links"):
        link_properties = properties(host.read(f"{NODES}/{node}/io_links/{link}/properties"))
        if link_properties.get("type") == XGMI:
            linked.add(str(link_properties.get("node_to")))
    return linked


def hives(linked: Mapping[str, Set[str]]) -> dict[str, frozenset[str]]:
    """Return each node's hive: the nodes that links connect, in either direction. `linked`: links by node."""
    neighbours: dict[str, set[str]] = {node: set() for node in linked}
    for node, peers in linked.items():
        for peer in peers & linked.keys():
            neighbours[node].add(peer)
            neighbours[peer].add(node)
    hive_by_node: dict[str, frozenset[str]] = {}
    for node in neighbours:
        hive, waiting = {node}, [node]
        while waiting and node not in hive_by_node:
            new_nodes = neighbours[waiting.pop()] - hive
            hive |= new_nodes
            waiting += new_nodes
        hive_by_node |= {member: frozenset(hive) for member in hive if member not in hive_by_node}
    return hive_by_node


def _sensors(host: Host, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the hwmon folder and the name of each temperature sensor, such as `temp1`."""
    for name in host.names(f"{folder}/hwmon"):
        for sensor in host.names(f"{folder}/hwmon/{name}"):
            if sensor.startswith("temp") and sensor.endswith("_input"):
                yield f"{folder}/hwmon/{name}", sensor.removesuffix("_input")


@CHECKS.error("gpu.amd-temperature", "AMD GPUs are cool", 68, 80)
@remedy.monitor("Check fans and coolant of the host")
@_of_each
def _temperature(host: Host, folder: str) -> Iterator[Finding]:
    for place, sensor in _sensors(host, folder):
        try:
            label = host.read(f"{place}/{sensor}_label")
            now, limit = (int(host.read(f"{place}/{sensor}_{kind}")) // 1000 for kind in ("input", "crit"))
        except Missing as error:  # one sensor without a limit hides no other
            yield Finding("", AuditStatus.SKIPPED, str(error))
            continue
        if limit <= 0:
            yield Finding("", AuditStatus.SKIPPED, f"{label}: no limit")
            continue
        yield replace(
            checked(now <= limit - MARGIN_C, f"{label} {now} C, critical from {limit} C"),
            fact=Fact(f"temperature_{label}_celsius", str(now), float(now)),
        )


@CHECKS.warning("gpu.amd-power-limit", "AMD GPUs may use their full power", 68, 80)
@remedy.monitor("rocm-smi --resetpoweroverdrive")
@_of_each
def _power(host: Host, folder: str) -> Iterator[Finding]:
    for name in host.names(f"{folder}/hwmon"):
        place = f"{folder}/hwmon/{name}"
        limit, default = (int(host.read(f"{place}/power1_{kind}")) for kind in ("cap", "cap_default"))
        yield checked(limit >= default, f"power limit {limit // 10**6} W, default {default // 10**6} W")


@CHECKS.error("gpu.amd-same", "AMD GPUs of a host are the same", 70, 80)
@remedy.replace("Flash the VBIOS of the others, or replace the GPU")
def _same(host: Host) -> Iterator[Finding]:
    for name in ("vbios_version", "mem_info_vram_total", "current_compute_partition"):
        values = {}
        for address in _addresses(host):
            try:
                values[address] = host.read(f"{DEVICES}/{address}/{name}")
            except Missing:
                continue
        majority = Counter(values.values()).most_common(1)
        for address, value in values.items():
            text = f"{name} {value}, the host's majority {majority[0][0]}"
            yield replace(checked(value == majority[0][0], text, f"GPU {address}"), fact=Fact(name, value))


@CHECKS.error("gpu.amd-driver", "The driver of AMD GPUs is live", 57, 80)
@remedy.reboot("modprobe amdgpu")
def _driver(host: Host) -> Iterator[Finding]:
    _addresses(host)
    try:
        version = host.read("/sys/module/amdgpu/version")
    except Missing:  # the kernel's own driver has no version
        version = host.read("/proc/sys/kernel/osrelease")
    yield replace(passed(f"driver amdgpu {version}"), fact=Fact("driver", version))
    try:
        state = host.read("/sys/module/amdgpu/initstate")
    except Missing:
        yield passed("amdgpu is built into the kernel")  # only a module has a state (kernel/module/sysfs.c)
        return
    yield checked(state == "live", f"module amdgpu is {state}, expected live")
