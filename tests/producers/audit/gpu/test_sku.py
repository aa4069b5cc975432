"""Machine types from the PCI ids of GPUs."""

from __future__ import annotations

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_gpu import AMD_ADDRESSES
from producers.audit.gpu.sku import AMD, NVIDIA, gpu_addresses, sku_of


def test_the_majority_names_the_type() -> None:
    found = sku_of(HEALTHY)
    assert found is not None
    assert found.name == "h100"
    amd = sku_of(HEALTHY, (AMD,))
    assert amd is not None
    assert amd.name == "mi300x"


def test_hosts_without_a_known_gpu() -> None:
    host = HEALTHY.copy()
    for path in [path for path in host.files if path.endswith("/device")]:
        host.files[path] = "0xffff"
    assert sku_of(host) is None
    host.files = {}
    assert sku_of(host) is None


def test_addresses_by_vendor() -> None:
    assert len(gpu_addresses(HEALTHY, NVIDIA)) == 8
    assert tuple(gpu_addresses(HEALTHY, AMD)) == AMD_ADDRESSES
