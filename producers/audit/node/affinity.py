"""PCIe checks of where GPUs and NICs are: NUMA nodes, pairing in the PCIe tree, IOMMU.

A device's place in the tree is the path that its link in sysfs leads to: root bus, bridges, device. Two
devices that share a bridge below the root bus exchange data without the processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from producers.audit.backend.rdma_ports import DEVICES as DEVICES_OF_RDMA
from producers.audit.backend.rdma_ports import ports, spare_ports
from producers.audit.base import Checks, Fact, Finding, checked
from producers.audit.gpu.sku import AMD, DEVICES, NVIDIA, gpu_addresses
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

MIN_FAR_SHARE: Final = 0.25
"""From this share on, GPUs without a near NIC show the host's design and no fault."""
DIRECT: Final = frozenset({"identity", ""})
"""IOMMU group types without address translation."""
CHECKS: Final = Checks()


def shared_bridges(one: str, other: str) -> int:
    """Return the number of bridges below the root bus that two devices with these sysfs paths share."""
    parts = zip(one.split("/")[:-1], other.split("/")[:-1], strict=False)
    shared = 0
    for left, right in parts:
        if left != right:
            break
        shared += left.count(":") == 2  # a bridge's address; the root bus has one colon
    return shared


def _gpus(host: Host) -> list[str]:
    addresses = [*gpu_addresses(host, NVIDIA), *gpu_addresses(host, AMD)]
    if not addresses:
        raise Missing("no GPU on PCIe")
    return addresses


def _nics(host: Host) -> list[str]:
    """Return the PCI addresses of the RDMA devices that carry data. Raises Missing without RDMA.

    Emulated devices have no address. Spare ports are left out, unless no port is in use.
    """
    addresses, data_ports = set(), ports(host)
    spare = spare_ports(host)
    for port in [port for port in data_ports if port not in spare] or data_ports:
        try:
            addresses.add(host.target(f"{DEVICES_OF_RDMA}/{port.device}/device").rpartition("/")[2])
        except Missing:  # an emulated device
            continue
    return sorted(address for address in addresses if address.count(":") == 2)


def _node(host: Host, address: str) -> int:
    return int(host.read(f"{DEVICES}/{address}/numa_node"))


@CHECKS.warning("pcie.numa-node", "The firmware states the NUMA node of GPUs and NICs", 77)
@remedy.reboot("Update the firmware, or enable NUMA in it")
def _numa_known(host: Host) -> Iterator[Finding]:
    nodes = [name for name in host.names("/sys/devices/system/node") if name.removeprefix("node").isdigit()]
    if len(nodes) < 2:
        raise Missing("one NUMA node")
    for address in [*_gpus(host), *_nics(host)]:
        node = _node(host, address)
        yield checked(node >= 0, f"NUMA node {node}, expected 0 or more", address)


@CHECKS.error("pcie.gpu-nic", "Each GPU has a NIC near it", 77)
@remedy.replace("Compare with the vendor's slots; move the card or reconnect its PCIe cable")
def _pairs(host: Host) -> Iterator[Finding]:
    """Check that each GPU has a NIC as near as the nearest NIC of most GPUs of the host.

    A pair is nearer the more bridges it shares, then if it shares the NUMA node. The data of a GPU with a
    farther NIC passes another processor, or a root complex that the other GPUs do not need. Where NICs are
    fewer than GPUs, many GPUs are far by design; the pairing is then compared across the fleet.
    """
    gpus, nics = _gpus(host), _nics(host)
    if not nics:
        raise Missing("no RDMA device on PCIe")
    places = {address: host.target(f"{DEVICES}/{address}") for address in [*gpus, *nics]}
    nodes = {address: _node(host, address) for address in [*gpus, *nics]}
    near = {}
    for gpu in gpus:
        near[gpu] = max(
            (
                min(shared_bridges(places[gpu], places[nic]), 1),
                nodes[gpu] == nodes[nic] or min(nodes[gpu], nodes[nic]) < 0,
                nic,
            )
            for nic in nics
        )
    majority = sorted(kind[:2] for kind in near.values())[len(near) // 2]
    far = {gpu for gpu, kind in near.items() if kind[:2] < majority or not kind[1]}
    if len(nics) < len(gpus) and len(far) >= MIN_FAR_SHARE * len(gpus):
        far = set()
    for gpu, (bridges, same_node, nic) in near.items():
        kind = "a PCIe switch" if bridges else "a NUMA node" if same_node else "no NUMA node"
        text = f"shares {kind} with its nearest NIC {nic}"
        status = AuditStatus.FAILED if gpu in far else AuditStatus.PASSED
        yield Finding(f"GPU {gpu}", status, text, Fact("nearest_nic", kind))


@CHECKS.warning("pcie.iommu", "The IOMMU does not translate addresses of GPUs and NICs", 78)
@remedy.reboot("Boot with iommu=pt; virtual machines need translation")
def _iommu(host: Host) -> Iterator[Finding]:
    for address in [*_gpus(host), *_nics(host)]:
        try:
            kind = host.read(f"{DEVICES}/{address}/iommu_group/type")
        except Missing:  # no IOMMU
            kind = ""
        yield checked(kind in DIRECT, f"IOMMU {kind or 'off'}, expected identity (pass-through)", address)
