"""Checks of RDMA cards: presence on the bus, like firmware, firmware settings, management files."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from producers.audit.backend.rdma_ports import DEVICES, is_active, is_efa, names_or_none, port_rate, ports
from producers.audit.base import Checks, Finding, checked, failed, passed, short_lines, stated
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

PCI: Final = "/sys/bus/pci/devices"
RDMA_CARDS: Final = (("0x15b3", "0x"), ("0x1d0f", "0xefa"))
"""(PCI vendor, beginning of the device number) of network cards with RDMA: NVIDIA's and Amazon's EFA."""
VIRTUAL: Final = frozenset(f"MT{number}" for number in (4100, 4116, 4118, 4120, 4122, 4124, 4126))
"""Types of virtual functions: MT and the device number (pci.ids) in decimal."""
READS: Final = frozenset({0, 44, 128})
"""Good values of MAX_ACC_OUT_READ, the limit of outstanding PCIe reads (Oracle's checks)."""
PPCC: Final = "local_port=1,pnat=0,lp_msb=0,algo_slot=0,algo_param_index=0"
"""Index of the register PPCC (programmable congestion control) for a port's first algorithm."""
_PROBED: Final = re.compile(r"mlx5_core (\S+): .*available PCIe bandwidth")
_SETTING: Final = re.compile(r"^\*?\s*([A-Z][A-Z0-9_]+)\s+(\S+)\s*$", re.MULTILINE)
_NUMBER: Final = re.compile(r"\w+\((\d+)\)|(\d+)")
_REGISTER: Final = re.compile(r"^\s*value\s*\|\s*(0x[0-9a-fA-F]+)\s*$", re.MULTILINE)
_TEST: Final = re.compile(r"^(.+?)\s*\.{2,}\s*(PASS|FAIL|NA)\b", re.MULTILINE)
CHECKS: Final = Checks()


def settings(text: str) -> dict[str, int]:
    """Return the numeric settings in the output of `mlxconfig query`, such as `True(1)` or `44`."""
    numbers = {}
    for name, value in _SETTING.findall(short_lines(text)):
        number = _NUMBER.fullmatch(value)
        if number:
            numbers[name] = int(number[1] or number[2])
    return numbers


def outcomes(text: str) -> dict[str, str]:
    """Return the outcome of each part of hca_self_test: PASS, FAIL or NA."""
    return {name.strip(): outcome for name, outcome in _TEST.findall(short_lines(text))}


def _is_rdma_card(host: Host, folder: str) -> bool:
    if not host.read(f"{folder}/class").startswith("0x02"):
        return False
    vendor, device = host.read(f"{folder}/vendor"), host.read(f"{folder}/device")
    return any(vendor == card_vendor and device.startswith(begin) for card_vendor, begin in RDMA_CARDS)


@CHECKS.error("backend.vanished", "RDMA cards are on the bus and have a device", 3, 32)
@remedy.reboot("Power the host off and on; reseat or replace the card if it stays away")
def vanished(host: Host) -> Iterator[Finding]:
    """Find RDMA cards that do not answer on the bus, have no RDMA device, or left the bus since boot.

    Virtual functions of this host's cards are left out: they may belong to containers or virtual machines.
    """
    present = host.names(PCI)
    cards = [
        address
        for address in present
        if _is_rdma_card(host, f"{PCI}/{address}") and not names_or_none(host, f"{PCI}/{address}/physfn")
    ]
    for address in cards:
        if _is_silent(host, address):
            yield failed("does not answer on the bus: its configuration reads as ff", address)
        else:
            yield _rdma_device(host, address)
    started = {match[1] for match in _PROBED.finditer(host.run("dmesg", "--kernel"))}
    for address in sorted(started - set(present)):
        yield failed("left the bus since boot", address)
    if not cards and not started:
        raise Missing("no RDMA card on PCIe")


def _is_silent(host: Host, address: str) -> bool:
    """Return whether a card reads as ff. The kernel keeps most values of the time when it found the card."""
    if host.read(f"{PCI}/{address}/revision") == "0xff":
        return True
    try:
        return host.read_bytes(f"{PCI}/{address}/config").startswith(b"\xff\xff")
    except Missing:
        return False


def _rdma_device(host: Host, address: str) -> Finding:
    try:
        names = host.names(f"{PCI}/{address}/infiniband")
    except Missing:
        try:
            driver = host.target(f"{PCI}/{address}/driver").rpartition("/")[2]
        except Missing:
            return failed("no driver serves it", address)
        if driver == "vfio-pci":
            return passed("given to a virtual machine", address)
        bonds = _bond_devices(host, address)
        if bonds:
            return passed(f"served by the bond's RDMA device {', '.join(bonds)}", address)
        return failed(f"driver {driver} shows no RDMA device", address)
    return passed(f"RDMA device {', '.join(names)}", address)


def _bond_devices(host: Host, address: str) -> list[str]:
    """Return the bond RDMA devices of a card's other PCI functions: mlx5 has one device for all ports."""
    card = address.rpartition(".")[0]
    functions = [other for other in host.names(PCI) if other.startswith(f"{card}.") and other != address]
    devices = set().union(*(names_or_none(host, f"{PCI}/{other}/infiniband") for other in functions))
    return sorted(device for device in devices if "bond" in device)


def _devices(host: Host) -> list[str]:
    return sorted({port.device for port in ports(host)})


def _kind(host: Host, device: str) -> str:
    """Return a card's type, such as MT4129; empty if the driver does not report it."""
    try:
        return host.read(f"{DEVICES}/{device}/hca_type")
    except Missing:
        return ""


class Card(NamedTuple):
    """A card with RDMA, with the values that tell rails from cards for storage."""

    version: str
    board: str
    network: tuple[str, float, int]
    """Link layer and rate (Gbit/s) of its first port, and the number of its ports."""


@CHECKS.warning("backend.like-cards", "RDMA cards of one type have the same firmware", 4, 18)
@remedy.reset("Update the firmware (mlxfwmanager), then reset the card")
def like_cards(host: Host) -> Iterator[Finding]:
    """Find cards whose firmware differs from their board's majority, and a card that alone has another board.

    Two or more cards of another board, or one for another network, are a class of their own, as for storage.
    Firmware and board are compared across the fleet too.
    """
    groups: dict[str, dict[str, Card]] = defaultdict(dict)
    for device in _devices(host):
        kind = _kind(host, device)
        if kind:
            groups[kind][device] = _card(host, device)
    if not groups:
        raise Missing("no driver of an RDMA device reports its type")
    for kind, cards in groups.items():
        for device, card in cards.items():
            text = f"{kind}, firmware {card.version}, board {card.board}"
            difference = _difference(device, cards)
            yield checked(not difference, text + difference, device)
            yield stated("nic_firmware", card.version, device)
            yield stated("nic_board", card.board, device)


def _card(host: Host, device: str) -> Card:
    folder = f"{DEVICES}/{device}"
    first, *others = (port for port in ports(host) if port.device == device)
    network = (
        host.read(f"{first.folder}/link_layer"),
        port_rate(host.read(f"{first.folder}/rate")).gbps,
        1 + len(others),
    )
    return Card(host.read(f"{folder}/fw_ver"), host.read(f"{folder}/board_id"), network)


def _difference(device: str, cards: Mapping[str, Card]) -> str:
    """Return how a card differs from cards of its board, or its board from its peers; empty if alike."""
    card = cards[device]
    versions = Counter(other.version for other in cards.values() if other.board == card.board)
    majority = versions.most_common(1)[0][0]
    if card.version != majority:
        return f"; most of this board have firmware {majority}"
    boards = Counter(other.board for other in cards.values())
    main_board, count = boards.most_common(1)[0]
    networks = {other.network for other in cards.values() if other.board == main_board}
    if boards[card.board] == 1 and count > 1 and card.network in networks:
        return f"; most of this type are of board {main_board}"
    return ""


@CHECKS.error("backend.management-files", "InfiniBand ports have their management files", 22)
@remedy.monitor("modprobe ib_umad")
def management_files(host: Host) -> Iterator[Finding]:
    """Find InfiniBand ports without the files for management datagrams and subnet managers.

    Newer kernels make the file issm only for ports that take part in subnet management. Multi-plane cards
    leave that to a second device (Mellanox/rdmamap#17). So a port may lack it if all cards of its type do.
    """
    layers = {port: host.read(f"{port.folder}/link_layer") for port in ports(host)}
    devices = sorted({port.device for port, layer in layers.items() if layer == "InfiniBand"})
    if not devices:
        raise Missing("no InfiniBand port")
    present, files_by_device = names_or_none(host, "/dev/infiniband"), _management_names(host)
    managers = {_kind(host, device) for device in devices if files_by_device[device, "issm"]}
    for device in devices:
        for kind in ("umad", "issm"):
            names = files_by_device[device, kind]
            if not names and kind == "issm" and _kind(host, device) not in managers:
                text = "no issm: another device or host manages this card's subnet"
                yield Finding(device, AuditStatus.SKIPPED, text)
            else:
                is_there = bool(names) and present.issuperset(names)
                yield checked(is_there, f"/dev/infiniband/{names[0] if names else kind}", device)


def _management_names(host: Host) -> dict[tuple[str, str], list[str]]:
    """Return the names of management files by (device, kind); the kind is umad or issm."""
    files_by_device: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names_or_none(host, "/sys/class/infiniband_mad"):
        kind = name.rstrip("0123456789")
        if kind in ("umad", "issm"):
            files_by_device[host.read(f"/sys/class/infiniband_mad/{name}/ibdev"), kind].append(name)
    return files_by_device


def _address(host: Host, device: str) -> str:
    return host.target(f"{DEVICES}/{device}/device").rpartition("/")[2]


def nvidia_devices(host: Host) -> Iterator[tuple[str, str]]:
    """Yield (device, PCI address) of NVIDIA's active cards, the only ones that NVIDIA's tools support.

    The tools do not support virtual functions either. Raises Missing without such a card.
    """
    any_device = False
    for device in sorted({port.device for port in ports(host) if is_active(host, port)}):
        kind = _kind(host, device)
        if kind.startswith("MT") and kind not in VIRTUAL:
            any_device = True
            yield device, _address(host, device)
    if not any_device:
        raise Missing("no active RDMA card of NVIDIA")


@CHECKS.warning("backend.firmware-settings", "Cards have a good limit of outstanding reads", 25, limit_s=60.0)
@remedy.reboot("mlxconfig -d ADDRESS set ADVANCED_PCI_SETTINGS=1 MAX_ACC_OUT_READ=0, then reboot")
def firmware_settings(host: Host) -> Iterator[Finding]:
    """Find cards with an unusual limit of outstanding PCIe reads."""
    for device, address in nvidia_devices(host):
        values = settings(host.run("mlxconfig", "-d", address, "query"))
        if "MAX_ACC_OUT_READ" not in values:
            if values.get("ADVANCED_PCI_SETTINGS") == 0:
                yield passed("MAX_ACC_OUT_READ is the firmware's own: ADVANCED_PCI_SETTINGS is off", device)
                continue
            raise ValueError(f"{device}: mlxconfig lists no MAX_ACC_OUT_READ")
        value = values["MAX_ACC_OUT_READ"]
        good = ", ".join(map(str, sorted(READS)))
        yield checked(value in READS, f"MAX_ACC_OUT_READ is {value}, expected one of {good}", device)


@CHECKS.warning("backend.round-trip-control", "Round-trip congestion control is off", 24, limit_s=60.0)
@remedy.monitor("Turn RTTCC off by mlxreg (register PPCC)")
def roundtrip_control(host: Host) -> Iterator[Finding]:
    """Find cards on which round-trip congestion control is on; it works only if all senders use it."""
    for device, address in nvidia_devices(host):
        command = ("mlxreg", "-d", address, "--get", "--reg_name", "PPCC", "--indexes", PPCC)
        match = _REGISTER.search(host.run(*command))
        if match is None:
            raise ValueError(f"{device}: mlxreg prints no value of PPCC")
        value = int(match[1], 16)
        yield checked(value == 0, f"round-trip congestion control is {'on' if value else 'off'}", device)


@CHECKS.error("backend.self-test", "Cards pass the driver's self-test", 26, limit_s=70.0, active=True)
@remedy.replace("`hca_self_test.ofed` names the failed part")
def self_test(host: Host) -> Iterator[Finding]:
    """Run the driver's self-test of all cards."""
    results = outcomes(host.load(60.0, "hca_self_test.ofed"))
    if not results:
        raise ValueError("hca_self_test prints no result")
    for name, outcome in results.items():
        if outcome != "NA":
            yield checked(outcome == "PASS", outcome, name)


@CHECKS.error("backend.efa-provider", "libfabric offers every EFA device", 32)
@remedy.monitor("Install the EFA driver and libfabric of one release")
def efa_provider(host: Host) -> Iterator[Finding]:
    """Find EFA devices that libfabric does not offer."""
    devices = [name for name in _devices(host) if is_efa(name)]
    if not devices:
        raise Missing("no EFA device")
    offered = set(
        re.findall(r"^\s*domain:\s*(\S+?)-(?:rdm|dgrm)\s*$", host.run("fi_info", "-p", "efa"), re.M)
    )
    for device in devices:
        text = "offered" if device in offered else "not offered"
        yield checked(device in offered, f"{text} by libfabric's provider efa", device)
