"""Classes of a host's NICs: recorded hosts of several kinds, and a real namespace."""

import os

import pytest

from fabrictime.install.host_nics import NicClass, host_nics
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.host.live import LiveHost
from producers.audit.host.network import Interface, Route
from tests.producers.audit.host.namespaces import named_namespaces

UP = frozenset({"UP", "LOWER_UP"})


def nic(name, address="", kind="", master="", flags=UP):
    addresses = (address,) if address else ()
    return Interface(
        name, abs(hash(name)) % 10_000, 1500, "up", flags, kind, master=master, addresses=addresses
    )


def host(*interfaces, routes=(), files=None, links=None):
    other = HEALTHY.copy()
    other.files = dict(files or {})
    other.links = dict(links or {})
    lo = Interface("lo", 1, 65536, "unknown", frozenset({"UP", "LOOPBACK"}), addresses=("127.0.0.1/8",))
    other.network |= {"interfaces": [lo, *interfaces], "routes": list(routes)}
    return other


def classes(nics):
    return {nic.device: nic.nic_class.value for nic in nics}


DEFAULT = Route("0.0.0.0/0", "192.168.0.1", "eno1", metric=100)
FRONT = nic("eno1", "192.168.0.12/24")


def test_a_host_with_gpus_probes_from_its_rdma_nics():
    recorded = HEALTHY.copy()
    for number in (2, 3):  # IP over InfiniBand
        recorded.files[f"/sys/class/infiniband/mlx5_{number}/device/net/eth{number}/x"] = ""
    nics = host_nics(recorded)
    assert classes(nics) == {
        **dict.fromkeys(("eth0", "eth1", "eth2", "eth3"), "fabric"),
        **dict.fromkeys(("eno1", "eno2"), "front-end"),
    }
    fabric = [nic for nic in nics if nic.nic_class is NicClass.FABRIC]
    assert [(nic.device, nic.rail, nic.rdma_device) for nic in fabric] == [
        ("eth0", 0, "mlx5_0"),
        ("eth1", 1, "mlx5_1"),
        ("eth2", 2, "mlx5_2"),
        ("eth3", 3, "mlx5_3"),
    ]
    assert [nic.ptp_clock for nic in fabric] == ["ptp2", "ptp3", "ptp4", "ptp5"]
    assert next(nic.reason for nic in nics if nic.device == "eno1") == "holds the default route"


def test_mounts_and_names_show_storage_nics():
    server = host(
        FRONT,
        nic("enp1s0", "10.0.0.1/24"),
        nic("enp2s0", "10.9.0.1/24"),
        nic("enp3s0", "10.8.0.1/24"),
        nic("stor0", "10.7.0.1/24"),
        routes=(DEFAULT, Route("10.9.0.0/24", "", "enp2s0"), Route("10.8.0.0/24", "", "enp3s0")),
        files={
            "/proc/mounts": "filer:/home /home nfs4 rw,vers=4.2,addr=10.9.0.250 0 0\n",
            "/sys/class/nvme/nvme4/address": "traddr=10.8.0.7,trsvcid=4420\n",
        },
    )
    nics = host_nics(server)
    assert classes(nics) == {
        "enp1s0": "fabric",
        "eno1": "front-end",
        **dict.fromkeys(("enp2s0", "enp3s0", "stor0"), "storage"),
    }
    reasons = {nic.device: nic.reason for nic in nics}
    assert reasons["enp2s0"] == "leads to 10.9.0.250 (nfs4 at /home)"
    assert reasons["enp3s0"] == "leads to 10.8.0.7 (NVMe drive nvme4)"


def test_virtual_management_and_unused_interfaces_are_no_nics():
    server = host(
        FRONT,
        nic("enp1s0", "10.0.0.1/24"),
        nic("enp2s0", "10.0.1.1/24", flags=frozenset({"BROADCAST"})),
        nic("enp3s0"),
        nic("usb0", "169.254.3.1/24"),
        nic("docker0", "172.17.0.1/16", kind="bridge"),
        nic("veth12ab", "", kind="veth", master="docker0"),
        nic("wg0", "10.99.0.1/24", kind="wireguard"),
        routes=(DEFAULT,),
        links={"/sys/class/net/usb0/device/driver": "/sys/bus/usb/drivers/cdc_ether"},
    )
    assert classes(host_nics(server)) == {
        "enp1s0": "fabric",
        "eno1": "front-end",
        "usb0": "management",
        **dict.fromkeys(("docker0", "veth12ab", "wg0"), "virtual"),
        **dict.fromkeys(("enp2s0", "enp3s0"), "unused"),
    }


def test_a_bond_stands_for_its_members():
    server = host(
        FRONT,
        nic("bond0", "10.0.0.1/24", kind="bond"),
        nic("enp1s0", master="bond0"),
        nic("enp2s0", master="bond0"),
        nic("bond0.7", "10.7.0.1/24", kind="vlan"),
        routes=(DEFAULT,),
        files={"/sys/class/net/bond0.7/lower_bond0/x": ""},
    )
    nics = host_nics(server)
    assert classes(nics) == {
        **dict.fromkeys(("bond0", "bond0.7"), "fabric"),
        "eno1": "front-end",
        **dict.fromkeys(("enp1s0", "enp2s0"), "unused"),
    }
    assert {nic.reason for nic in nics if nic.device.startswith("enp")} == {"member of bond0"}


def test_a_host_with_one_nic_probes_from_it():
    (only,) = host_nics(host(FRONT, routes=(DEFAULT,)))
    assert only.nic_class is NicClass.FABRIC
    assert only.reason == "holds the default route, but there is no other NIC to probe from"


def test_a_default_route_over_several_nics_is_the_fabrics():
    server = host(
        nic("eth1", "10.0.0.1/31"),
        nic("eth2", "10.0.1.1/31"),
        routes=[Route("0.0.0.0/0", "10.0.0.0", name, paths=2) for name in ("eth1", "eth2")],
    )
    assert classes(host_nics(server)) == {"eth1": "fabric", "eth2": "fabric"}


def test_a_container_probes_from_its_veth():
    container = host(nic("eth0", "10.0.0.5/24", kind="veth"), routes=[Route("0.0.0.0/0", "10.0.0.1", "eth0")])
    assert classes(host_nics(container)) == {"eth0": "fabric"}


def test_named_devices_alone_are_the_fabric():
    server = host(FRONT, nic("enp1s0", "10.0.0.1/24"), nic("enp2s0"), routes=(DEFAULT,))
    assert classes(host_nics(server, ["eno1"])) == {
        "eno1": "fabric",
        "enp1s0": "unused",
        "enp2s0": "unused",
    }
    assert host_nics(server, ["lo"])[0].address == "127.0.0.1"
    with pytest.raises(ValueError, match="eth9: no such interface, this host has eno1, enp1s0, enp2s0"):
        host_nics(server, ["eth9"])
    with pytest.raises(ValueError, match="device enp2s0: has no address"):
        host_nics(server, ["enp2s0"])


def test_unreadable_sources_leave_a_nic_in_the_fabric():
    server = host(nic("enp1s0", "10.0.0.1/24"))
    server.denied |= {"/proc/mounts", "/sys/class/infiniband", "/sys/class/nvme"}
    assert classes(host_nics(server)) == {"enp1s0": "fabric"}


def test_the_first_nic_is_down_and_the_others_keep_their_rails():
    drivers = dict.fromkeys(("eth0", "eth1", "eth2"), "mlx5_core") | {"eno1": "tg3", "a0": "tg3"}
    server = host(
        FRONT,
        nic("a0", flags=frozenset()),
        nic("eth0", flags=frozenset()),
        nic("eth1", "10.0.1.17/24"),
        nic("eth2", "10.0.2.17/24"),
        routes=(DEFAULT,),
        links={f"/sys/class/net/{name}/device/driver": f"../{driver}" for name, driver in drivers.items()},
    )
    rails = {nic.device: nic.rail for nic in host_nics(server)}
    assert rails == {"eth1": 1, "eth2": 2, "eth0": None, "a0": None, "eno1": None}


def test_the_nics_of_a_namespace():
    from pyroute2 import NetNS

    name = f"ft-init-{os.getpid()}"
    with named_namespaces(name), NetNS(name) as ip:
        for number in range(2):
            ip.link("add", ifname=f"ft{number}", kind="veth", peer={"ifname": f"peer{number}"})
            index = ip.link_lookup(ifname=f"ft{number}")[0]
            ip.addr("add", index=index, address=f"10.7.{number}.1", prefixlen=24)
            ip.link("set", index=index, state="up")
        nics = host_nics(LiveHost(netns=f"/run/netns/{name}"))
        assert [(nic.device, nic.address, nic.rail) for nic in nics if nic.nic_class is NicClass.FABRIC] == [
            ("ft0", "10.7.0.1", 0),
            ("ft1", "10.7.1.1", 1),
        ]
