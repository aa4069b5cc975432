"""NICs have ports, interfaces, routes and counters in the forms of their drivers."""

from fabrictime.bench.field._host import empty_host
from fabrictime.bench.field._machine_nics import add_nics

GROUP = {
    "driver": "mlx5_core",
    "vendor": "0x15b3",
    "pci_device": "0x1021",
    "addresses": ["0000:17:00.0", "0000:97:00.0"],
    "device": "mlx5_{n}",
    "rate": "400 Gb/sec (4X NDR)",
}


def test_ethernet_has_interfaces_gids_and_routes() -> None:
    host = empty_host()
    add_nics(host, {"nics": [GROUP | {"interface": "eth{n}", "lossless": True}]})
    assert [each.name for each in host.interfaces()] == ["lo", "eno1", "eth0", "eth1"]
    assert host.nics == ("eth0", "eth1")
    assert host.read("/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0") == "eth1"
    assert host.dcb("eth0") is not None
    assert {route.interface for route in host.routes()} == {"eno1", "eth0", "eth1"}


def test_infiniband_has_management_files_except_where_issm_is_absent() -> None:
    host = empty_host()
    add_nics(host, {"nics": [GROUP | {"layer": "InfiniBand", "issm": False}]})
    assert host.names("/dev/infiniband") == ["rdma_cm", "umad0", "umad1", "uverbs0", "uverbs1"]
    assert host.nics == ()


def test_a_nic_is_below_the_switch_of_its_place() -> None:
    host = empty_host()
    add_nics(host, {"nics": [GROUP], "pcie_switches": 2})
    assert (
        host.target("/sys/bus/pci/devices/0000:97:00.0")
        == "/sys/devices/pci0000:01/0000:01:01.0/0000:97:00.0"
    )
