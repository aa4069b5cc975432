"""Machine types of GPU hosts and the values that a healthy one reaches.

A type is recognised by the PCI id of its GPUs, which needs no driver. Thresholds come from published health
checks: (1) Azure's azurehpc-health-checks, (2) Oracle's oci-hpc and oci-dr-hpc, (3) Meta's GCM, (4) Azure's
ai-infrastructure-on-azure. Where two differ, the lower one is here.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from producers.audit.host import Host, Missing

__all__ = ["AMD", "NVIDIA", "SKUS", "Sku", "gpu_addresses", "sku_of"]

NVIDIA: Final = "0x10de"
AMD: Final = "0x1002"
DEVICES: Final = "/sys/bus/pci/devices"
GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Display controllers, and processing accelerators (MI300X)."""


class Sku(NamedTuple):
    """Expected values of a machine type; 0 where no source states one."""

    name: str
    gpus: int
    nvlinks: int
    """NVLinks of each GPU."""
    nvlink_mbps: int
    """MB/s of a NVLink, as NVML states it (2)."""
    sm_mhz: int
    """Highest clock of the processors of a GPU (2, 3)."""
    nic_gbps: float
    """Rate of a NIC of the back-end."""
    write_gbps: float
    """ib_write_bw from host memory (1, 2)."""
    write_us: float
    """ib_write_lat, 2 bytes (2)."""
    all_reduce_gb_per_s: float
    """Bus bandwidth of nccl-tests or rccl-tests within the host (1, 2, 4)."""
    copy_gb_per_s: float
    """Host to GPU, and back (1, 2)."""
    memory_gb_per_s: float
    """STREAM triad of all processors (1)."""
    training_tflops: float
    """Small training run: 40% of the data sheet's rate for dense bfloat16, of MI300X 30%."""


_SXM: Final = (18, 25_000, 1980, 400.0, 375.0, 5.0)
SKUS: Final = (
    Sku("a100", 8, 12, 25_000, 1155, 200.0, 180.0, 5.0, 185.0, 20.0, 0.0, 124.8),
    Sku("h100", 8, *_SXM, 440.0, 48.0, 665.5, 395.6),
    Sku("h200", 8, *_SXM, 431.0, 48.0, 665.5, 395.6),
    Sku("b200", 8, 18, 50_000, 1965, 400.0, 375.0, 5.0, 440.0, 48.0, 0.0, 900.0),
    Sku("b300", 8, 18, 50_000, 0, 800.0, 0.0, 5.0, 800.0, 48.0, 0.0, 900.0),
    Sku("gb200", 4, 18, 50_000, 0, 400.0, 375.0, 9.0, 0.0, 0.0, 0.0, 1000.0),
    Sku("mi300x", 8, 0, 0, 0, 400.0, 375.0, 5.0, 314.0, 48.0, 0.0, 392.1),
)
_BY_NAME: Final = {sku.name: sku for sku in SKUS}
_PCI_IDS: Final = {
    ("0x10de", "0x20b0"): "a100",
    ("0x10de", "0x20b2"): "a100",
    ("0x10de", "0x2330"): "h100",
    ("0x10de", "0x2335"): "h200",
    ("0x10de", "0x2901"): "b200",
    ("0x10de", "0x3182"): "b300",
    ("0x10de", "0x2941"): "gb200",
    ("0x1002", "0x74a1"): "mi300x",
}
"""Vendor and device id of the GPUs (pci.ids)."""


def gpu_addresses(host: Host, vendor: str) -> list[str]:
    """Return the PCI addresses of a vendor's GPUs. Raises Missing without PCI, Unreadable."""
    return [
        address
        for address in host.names(DEVICES)
        if host.read(f"{DEVICES}/{address}/class")[:6] in GPU_CLASSES
        and host.read(f"{DEVICES}/{address}/vendor") == vendor
    ]


def sku_of(host: Host, vendors: tuple[str, ...] = (NVIDIA, AMD)) -> Sku | None:
    """Return the type that most GPUs of the host belong to; None if unknown. Raises Unreadable."""
    found: Counter[str] = Counter()
    for vendor in vendors:
        try:
            addresses = gpu_addresses(host, vendor)
        except Missing:
            return None
        for address in addresses:
            name = _PCI_IDS.get((vendor, host.read(f"{DEVICES}/{address}/device")))
            if name is not None:
                found[name] += 1
    return _BY_NAME[found.most_common(1)[0][0]] if found else None
