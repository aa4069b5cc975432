"""Adds NICs to a whole host: RDMA devices with their ports, interfaces, routes and counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fabrictime.bench.field._cases import Table
from fabrictime.testbed.audit.recorded import PORT_COUNTERS, RecordedHost
from producers.audit.host.network import Dcb, Interface, Neighbour, Route, Rule
from producers.ports.ethtool import LinkSettings

RDMA: Final = "/sys/class/infiniband"
UP: Final = frozenset({"UP", "LOWER_UP", "RUNNING", "BROADCAST", "MULTICAST"})
DRIVER_COUNTERS: Final = {
    "mlx5_core": ("local_ack_timeout_err", "out_of_sequence", "packet_seq_err", "rnr_nak_retry_err"),
    "bnxt_en": ("active_qps", "recoverable_errors", "to_retransmits", "seq_err_naks_rcvd"),
    "ice": ("InRdmaSends", "tcpRetransSegs", "ip4InDiscards"),
    "efa": ("rx_drops", "retrans_timeout_events", "unresponsive_remote_events", "cmds_err"),
}
"""Counters of RDMA devices by their driver, as the kernel names them."""


@dataclass(frozen=True, slots=True)
class Nic:
    """One NIC of a group of identical NICs."""

    index: int
    address: str
    device: str
    """RDMA device; empty if the NIC has none."""
    interface: str
    group: Table

    @property
    def is_ethernet(self) -> bool:
        """Whether the NIC's link is Ethernet."""
        return bool(self.group.get("layer", "Ethernet") == "Ethernet")


def add_nics(host: RecordedHost, machine: Table) -> None:
    """Add the front-end interface, and each group of NICs of `machine.nics`."""
    _front_end(host, machine)
    index = 0
    for group in machine.get("nics", ()):
        for number, address in enumerate(group["addresses"]):
            names = [group.get(key, "").format(n=number, i=index) for key in ("device", "interface")]
            nic = Nic(index, address, names[0], names[1], group)
            count = len(group["addresses"])
            _pci(host, nic, 2 * number // count, number * machine.get("pcie_switches", 8) // count)
            if nic.device:
                _port(host, nic)
            if nic.interface:
                _interface(host, nic)
            index += 1


def _front_end(host: RecordedHost, machine: Table) -> None:
    name, mtu = machine.get("front_end", "eno1"), machine.get("front_end_mtu", 1500)
    host.network["interfaces"].append(_made(name, 2, mtu, "192.168.4.12/24"))
    host.network["link_settings"][name] = LinkSettings(25_000_000_000, "full", True)
    host.network["routes"] += [
        Route("0.0.0.0/0", "192.168.4.1", name, metric=100),
        Route("192.168.4.0/24", "", name, source="192.168.4.12"),
    ]
    host.network["rules"] += [Rule(0, 255), Rule(32766, 254), Rule(32767, 253)]
    host.network["neighbours"].append(Neighbour("192.168.4.1", "08:00:27:01:00:00", name, "REACHABLE"))


def _made(name: str, index: int, mtu: int, address: str) -> Interface:
    counters = dict.fromkeys(("rx_dropped", "rx_errors", "tx_dropped", "tx_errors"), 0)
    counters |= dict.fromkeys(("rx_packets", "tx_packets"), 10**9)
    mac = f"08:00:27:00:00:{index:02x}"
    return Interface(name, index, mtu, "up", UP, mac=mac, addresses=(address,), counters=counters)


def place_on_pcie(host: RecordedHost, address: str, bus: int) -> None:
    """Put a device below the PCIe switch with the number `bus`."""
    root = f"{address[:4]}:{bus:02x}"
    host.links[f"/sys/bus/pci/devices/{address}"] = f"/sys/devices/pci{root}/{root}:01.0/{address}"


def _pci(host: RecordedHost, nic: Nic, node: int, bus: int) -> None:
    group, folder = nic.group, f"/sys/bus/pci/devices/{nic.address}"
    values: dict[str, Any] = {
        "class": "0x020000" if nic.is_ethernet else "0x020700",
        "vendor": group["vendor"],
        "device": group["pci_device"],
        "revision": "0x00",
        "numa_node": node,
        "iommu_group/type": "identity",
    }
    for when in ("current", "max"):
        values[f"{when}_link_width"] = group.get("width", 16)
        values[f"{when}_link_speed"] = group.get("speed", "32.0 GT/s PCIe")
    for name in ("fatal", "nonfatal", "correctable"):
        values[f"aer_dev_{name}"] = f"Undefined 0\nTOTAL_ERR_{name.upper()} 0"
    host.files |= {f"{folder}/{name}": f"{value}\n" for name, value in values.items()}
    place_on_pcie(host, nic.address, bus)
    host.links[f"{folder}/driver"] = f"/sys/bus/pci/drivers/{group['driver']}"
    if nic.device:
        host.links[f"{RDMA}/{nic.device}/device"] = host.links[folder]
        host.files[f"{folder}/infiniband/{nic.device}/node_type"] = "1: CA\n"


def _port(host: RecordedHost, nic: Nic) -> None:
    group, folder = nic.group, f"{RDMA}/{nic.device}"
    port = f"{folder}/ports/1"
    values = {
        f"{folder}/fw_ver": group.get("firmware", "28.43.2026"),
        f"{folder}/hca_type": group.get("hca", "MT4129"),
        f"{folder}/board_id": group.get("board", "MT_0000000838"),
        f"{port}/state": "4: ACTIVE",
        f"{port}/phys_state": "5: LinkUp",
        f"{port}/rate": group["rate"],
        f"{port}/link_layer": group.get("layer", "Ethernet"),
        f"/sys/class/infiniband_verbs/uverbs{nic.index}/ibdev": nic.device,
        f"/dev/infiniband/uverbs{nic.index}": "",
        "/dev/infiniband/rdma_cm": "",
    }
    if group["driver"] == "efa":
        values = {path: value for path, value in values.items() if "hca_type" not in path}
    elif group["driver"] == "mlx5_core":
        values |= {f"{port}/counters/{name}": "0" for name in PORT_COUNTERS}
    values |= {f"{port}/hw_counters/{name}": "0" for name in DRIVER_COUNTERS.get(group["driver"], ())}
    values |= _roce(nic, port) if nic.is_ethernet else _infiniband(nic, port)
    host.files |= {path: f"{value}\n" for path, value in values.items()}


def _infiniband(nic: Nic, port: str) -> dict[str, str]:
    if nic.group.get("layer") != "InfiniBand":
        return {}
    values = {
        f"{port}/pkeys/0": "0xffff",
        f"{port}/gids/0": f"fe80:0000:0000:0000:a088:c203:00:00{nic.index:02x}",
    }
    for kind in ("umad", "issm") if nic.group.get("issm", True) else ("umad",):
        values[f"/sys/class/infiniband_mad/{kind}{nic.index}/ibdev"] = nic.device
        values[f"/dev/infiniband/{kind}{nic.index}"] = ""
    return values


def _roce(nic: Nic, port: str) -> dict[str, str]:
    link_local = f"fe80:0000:0000:0000:0a00:27ff:fe00:00{nic.index:02x}"
    mapped = f"0000:0000:0000:0000:0000:ffff:0a00:{nic.index:02x}02"
    values = {}
    for number, (gid, kind) in enumerate(
        ((link_local, "IB/RoCE v1"), (link_local, "RoCE v2"), (mapped, "IB/RoCE v1"), (mapped, "RoCE v2"))
    ):
        values[f"{port}/gids/{number}"] = gid
        values[f"{port}/gid_attrs/types/{number}"] = kind
        values[f"{port}/gid_attrs/ndevs/{number}"] = nic.interface
    return values


def _interface(host: RecordedHost, nic: Nic) -> None:
    group, name, index = nic.group, nic.interface, nic.index
    address = f"10.0.{index}.2"
    host.network["interfaces"].append(_made(name, 10 + index, group.get("mtu", 9000), f"{address}/31"))
    host.network["routes"] += [
        Route(f"{address}/31", "", name, source=address),
        Route("10.0.0.0/8", f"10.0.{index}.3", name, table=100 + index),
    ]
    host.network["rules"].append(Rule(1000 + index, 100 + index, source=f"{address}/32"))
    mac = f"08:00:27:01:01:{index:02x}"
    host.network["neighbours"].append(Neighbour(f"10.0.{index}.3", mac, name, "REACHABLE"))
    host.files[f"/proc/sys/net/ipv4/conf/{name}/rp_filter"] = "2\n"
    host.files[f"/sys/class/net/{name}/device/uevent"] = f"DRIVER={group['driver']}\n"
    if nic.is_ethernet:
        rate_bps = int(group["rate"].split()[0]) * 10**9
        host.network["link_settings"][name] = LinkSettings(rate_bps, "full", True)
        host.nics = (*host.nics, name)
        if group.get("lossless"):
            host.network["dcb"][name] = _lossless()


def _lossless() -> Dcb:
    return Dcb(
        pfc_priorities=frozenset({3}),
        pfc_pauses=(0, 0),
        dscp_priority={26: 3, 48: 6},
        trust=("dscp",),
        priority_class=(0, 0, 0, 3, 0, 0, 6, 0),
        class_percent=(50, 0, 0, 50, 0, 0, 0, 0),
    )
