"""A machine has the processors, memory and GPUs that its table states, in the kernel's forms."""

import json

from fabrictime.bench.field._host import empty_host
from fabrictime.bench.field._machines import add_machine
from fabrictime.testbed.audit.recorded import RecordedHost

COMMON = {"product": "a server", "vendor": "a maker"}


def made(**parts: object) -> RecordedHost:
    host = empty_host()
    add_machine(host, COMMON | parts)
    return host


def test_pages_of_64_kib_have_14_free_lists() -> None:
    host = made(kernel={"page_kib": 64}, memory={"gib": 64}, processors={"nodes": 1})
    assert len(host.read("/proc/buddyinfo").split()) == 4 + 14
    assert "Hugepagesize: 524288 kB" in host.read("/proc/meminfo")


def test_processors_are_spread_over_sockets_and_nodes() -> None:
    host = made(processors={"sockets": 2, "cores": 2, "threads": 2, "nodes": 2})
    cpu = "/sys/devices/system/cpu"
    assert host.read(f"{cpu}/online") == "0-7"
    assert [host.read(f"{cpu}/cpu{n}/topology/physical_package_id") for n in range(4)] == ["0", "0", "1", "1"]
    assert host.read("/sys/devices/system/node/node1/cpulist") == "2,3,6,7"


def test_gpus_are_on_pcie_and_in_the_drivers_report() -> None:
    gpus = {
        "device": "0x2330",
        "name": "H100",
        "memory_gib": 80,
        "addresses": ["0000:19:00.0", "0000:29:00.0"],
    }
    host = made(nvidia=gpus | {"nvlinks": 18, "unsupported": ["mig"]})
    report = json.loads(host.run("nvml"))
    assert [gpu["address"] for gpu in report["gpus"]] == gpus["addresses"]
    assert report["gpus"][0]["mig"] is None
    assert host.read("/sys/bus/pci/devices/0000:29:00.0/device") == "0x2330"


def test_hives_of_amd_gpus_are_linked_within() -> None:
    gpus = {
        "device": "0x740f",
        "memory_gib": 64,
        "hives": 2,
        "addresses": [f"0000:{n}0:00.0" for n in range(1, 5)],
    }
    host = made(amd=gpus)
    links = "/sys/class/kfd/kfd/topology/nodes/2/io_links"
    assert host.names(links) == ["0", "1"]
    assert "node_to 3" in host.read(f"{links}/1/properties")
