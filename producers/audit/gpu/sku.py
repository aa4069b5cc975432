"""Finds the GPUs of a host on PCIe, and the machine type that follows from them, without the GPU driver."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Final

from producers.audit.host.base import Host, Missing
from schemas.skus import Sku, load_skus

NVIDIA: Final = "0x10de"
AMD: Final = "0x1002"
DEVICES: Final = "/sys/bus/pci/devices"
GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""PCI classes of GPUs: display controllers, and processing accelerators (MI300X)."""


def gpu_addresses(host: Host, vendor: str) -> list[str]:
    """Return the PCI addresses of a vendor's GPUs. Raises Missing without PCI, Unreadable."""
    return [
        address
        for address in host.names(DEVICES)
        if host.read(f"{DEVICES}/{address}/class")[:6] in GPU_CLASSES
        and host.read(f"{DEVICES}/{address}/vendor") == vendor
    ]


@cache
def _names() -> dict[str, str]:
    """Return the name of the machine type by the PCI id of its GPUs."""
    return {pci: name for name, sku in load_skus().items() for pci in sku.pci}


def saves_power(host: Host, address: str) -> bool:
    """Return whether a GPU lowers the speed of its link at rest: cards of no listed machine type do."""
    vendor, device = (host.read(f"{DEVICES}/{address}/{name}") for name in ("vendor", "device"))
    return f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}" not in _names()


def sku_of(host: Host, vendors: tuple[str, ...] = (NVIDIA, AMD)) -> Sku | None:
    """Return the machine type of most of the host's GPUs; None if it is unknown. Raises Unreadable."""
    skus, by_id = load_skus(), _names()
    counts: Counter[str] = Counter()
    for vendor in vendors:
        try:
            addresses = gpu_addresses(host, vendor)
        except Missing:
            return None
        for address in addresses:
            device = host.read(f"{DEVICES}/{address}/device")
            name = by_id.get(f"{vendor.removeprefix('0x')}:{device.removeprefix('0x')}")
            if name is not None:
                counts[name] += 1
    return skus[counts.most_common(1)[0][0]] if counts else None
