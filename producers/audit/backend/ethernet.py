"""Checks of back-end links: duplex, flags, bit error ratios and FEC, LLDP neighbours, authentication.

The counters are those of the driver mlx5 in `ethtool -S`. mlxlink (NVIDIA's firmware tools) covers InfiniBand
too, and recommends repairs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from producers.audit.backend.rdma_devices import nvidia_devices
from producers.audit.backend.rdma_ports import backend_interfaces, board_by_interface, interfaces
from producers.audit.base import Checks, Finding, checked, failed, passed, short_lines, stated
from producers.audit.host.base import Host, Missing
from producers.ports.ethtool import LinkSettings
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

MAX_RAW: Final = 1e-5
"""Largest bit error ratio before FEC (Oracle's checks)."""
MAX_EFFECTIVE: Final = 1e-12
"""Largest bit error ratio after FEC (IBTA)."""
MIN_BITS: Final = 1e12
"""Fewest received bits that suffice to state an effective ratio of 1e-12."""
MAX_DISCARDS: Final = 100
"""Largest number of packets discarded since the driver's start that is no error (Oracle's checks)."""
REMAINING: Final = ("rx_pcs_symbol_err_phy", "rx_symbol_err_phy")
"""Counters of errors that remain after FEC (mlx5/counters.rst)."""
NO_ISSUE: Final = "No issue was observed"
"""Beginning of mlxlink's recommendation for a good link; some versions end it with a full stop."""
UNWANTED_FLAGS: Final = frozenset({"PROMISC", "ALLMULTI", "NOARP"})
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_RAW: Final = re.compile(r"rx_err_lane_(\d+)_phy")
_PAIR: Final = re.compile(r"^[ \t]*([A-Za-z][^:\n]*?)\s*:\s+(\S.*?)\s*$", re.MULTILINE)
CHECKS: Final = Checks()


@CHECKS.error("backend.duplex", "Links are full duplex and negotiate alike", 18, 19)
@remedy.monitor("Set autonegotiation alike on NIC and switch port")
def duplex(host: Host) -> Iterator[Finding]:
    """Find links that are not full duplex, or whose autonegotiation differs from the links of like cards."""
    settings = {name: host.link_settings(name) for name in backend_interfaces(host)}
    links = {name: link for name, link in settings.items() if link is not None and link.duplex is not None}
    if not links:
        raise Missing("no driver of a NIC reports duplex")
    boards = board_by_interface(host)
    for name, link in links.items():
        peers = [other for peer, other in links.items() if boards.get(peer) == boards.get(name)]
        majority = Counter(_negotiation(peer) for peer in peers).most_common(1)[0][0]
        right = link.duplex == "full" and _negotiation(link) == majority
        text = f"{link.duplex} duplex, autonegotiation {_negotiation(link)}; expected full, {majority}"
        yield checked(right, text, name)
        yield stated("autonegotiation", _negotiation(link), name)


def _negotiation(link: LinkSettings) -> str:
    return "on" if link.autonegotiation else "off"


@CHECKS.warning("backend.flags", "Interfaces have usual flags", 19)
@remedy.monitor("ip link set dev INTERFACE promisc off allmulticast off arp on")
def flags(host: Host) -> Iterator[Finding]:
    """Find interfaces that receive packets for all hosts, or do not resolve addresses (ARP)."""
    backend = set(backend_interfaces(host))
    for interface in host.interfaces():
        if interface.name in backend:
            wrong = sorted(UNWANTED_FLAGS & interface.flags)
            yield checked(
                not wrong, f"flags {', '.join(wrong)}" if wrong else "no unusual flag", interface.name
            )


def raw_errors(statistics: Mapping[str, int]) -> dict[int, int]:
    """Return the number of raw bit errors by lane, from the driver's counters."""
    matches = {name: _RAW.fullmatch(name) for name in statistics}
    return {int(match[1]): statistics[name] for name, match in matches.items() if match}


@CHECKS.error("backend.error-ratios", "Bit error ratios are low on every lane", 17)
@remedy.replace("Clean or replace cable and transceiver")
def error_ratios(host: Host) -> Iterator[Finding]:
    """Find ports with too many bit errors: raw ones on any lane, or errors that remain after FEC."""
    any_port = False
    for name in backend_interfaces(host):
        statistics = host.ethtool_statistics(name)
        bits, raw = statistics.get("rx_bits_phy", 0), raw_errors(statistics)
        if not bits or not raw:
            continue
        any_port = True
        for index, errors in sorted(raw.items()):
            ratio = errors * len(raw) / bits
            text = f"raw bit error ratio {ratio:.1e}, expected at most {MAX_RAW:g}"
            yield checked(ratio <= MAX_RAW, text, f"{name} lane {index}")
        remaining_counts = [statistics[counter] for counter in REMAINING if counter in statistics]
        if remaining_counts:
            left = max(remaining_counts)
            ratio = left / max(bits, MIN_BITS)
            text = f"effective error ratio {ratio:.1e}, expected at most {MAX_EFFECTIVE:g}"
            yield checked(ratio <= MAX_EFFECTIVE, text, name)
        yield stated("raw_bit_errors_total", sum(raw.values()), name)
        yield stated("received_bits_total", bits, name)
        if "link_down_events_phy" in statistics:
            yield stated("link_down_total", statistics["link_down_events_phy"], name)
    if not any_port:
        raise Missing("no driver of a NIC counts bit errors")


@CHECKS.warning("backend.discards", "NICs discard few packets", 13)
@remedy.monitor("Check PFC and the PCIe bandwidth of the slot")
def discards(host: Host) -> Iterator[Finding]:
    """Find NICs that discarded many packets because a buffer was full."""
    any_discard = False
    for name in backend_interfaces(host):
        statistics = host.ethtool_statistics(name)
        for counter in ("rx_discards_phy", "tx_discards_phy"):
            if counter in statistics:
                any_discard = True
                text = f"{counter} = {statistics[counter]:,}, expected at most {MAX_DISCARDS}"
                yield checked(statistics[counter] <= MAX_DISCARDS, text, name)
    if not any_discard:
        raise Missing("no driver of a NIC counts discards")


@CHECKS.warning("backend.drivers", "NICs of one model have one driver", 18)
@remedy.monitor("Install the same driver on all hosts")
def drivers(host: Host) -> Iterator[Finding]:
    """Find NICs whose driver or version differs from most NICs of their model on this host."""
    driver_by_nic = {name: _driver(host, name) for name in backend_interfaces(host)}
    model_by_nic = {name: _model(host, name) for name in driver_by_nic}
    for name, (driver, version) in driver_by_nic.items():
        peers = (peer for peer in driver_by_nic if model_by_nic[peer] == model_by_nic[name])
        majority = Counter(driver_by_nic[peer] for peer in peers).most_common(1)[0][0]
        text = f"{driver} {version}, most NICs of this model have {' '.join(majority)}"
        yield checked((driver, version) == majority, text, name)
        yield stated("nic_driver", driver, name)
        yield stated("nic_driver_version", version, name)


def _model(host: Host, name: str) -> str:
    """Return the PCI vendor and device of a NIC; empty if the NIC states none."""
    try:
        return " ".join(host.read(f"/sys/class/net/{name}/device/{part}") for part in ("vendor", "device"))
    except Missing:
        return ""


def _driver(host: Host, name: str) -> tuple[str, str]:
    """Return (driver, version) of a NIC; the kernel's release if the driver has no version."""
    match = re.search(r"^DRIVER=(\S+)", host.read(f"/sys/class/net/{name}/device/uevent"), re.MULTILINE)
    if match is None:
        raise ValueError(f"{name}: no driver in its uevent file")
    try:
        return match[1], host.read(f"/sys/module/{match[1]}/version")
    except Missing:
        return match[1], host.read("/proc/sys/kernel/osrelease")


def module_report(text: str) -> dict[str, str]:
    """Return the values by name in the output of mlxlink or `ethtool -m`, without colour codes."""
    return dict(_PAIR.findall(short_lines(_COLOUR.sub("", text))))


def _reports(host: Host) -> Iterator[tuple[str, dict[str, str]]]:
    for device, address in nvidia_devices(host):
        yield device, module_report(host.run("mlxlink", "-d", address, "-c", "-e"))


@CHECKS.error("backend.link-quality", "The firmware recommends no repair of a link", 17, limit_s=60.0)
@remedy.replace("Follow mlxlink's recommendation; clean or replace the cable")
def link_quality(host: Host) -> Iterator[Finding]:
    """Find ports of which the firmware reports bit errors or recommends a repair."""
    limits = (("Effective Physical BER", MAX_EFFECTIVE), ("Raw Physical BER", MAX_RAW))
    ethernet = {port.device for port, _ in interfaces(host)}
    for subject, report in _reports(host):
        for name, limit in limits:
            ratio = float(report[name])
            yield checked(ratio <= limit, f"{name} {ratio:.1e}, expected at most {limit:g}", subject)
        advice = report["Recommendation"]
        yield checked(advice.startswith(NO_ISSUE), f"mlxlink: {advice}", subject)
        if subject not in ethernet:  # of Ethernet, `backend.error-ratios` states the counters
            yield stated("raw_bit_error_ratio", float(report["Raw Physical BER"]), subject)
            if report.get("Link Down Counter", "").isdecimal():
                yield stated("link_down_total", int(report["Link Down Counter"]), subject)


@CHECKS.error("backend.fec", "Links of one speed use the same FEC", 17, limit_s=60.0)
@remedy.monitor("Set FEC alike on NIC and switch port: mlxlink --fec")
def link_fec(host: Host) -> Iterator[Finding]:
    """Find ports whose FEC differs from the host's other ports of the same speed."""
    modes = {subject: (report["Speed"], report["FEC"]) for subject, report in _reports(host)}
    for subject, (speed, fec) in modes.items():
        majority = Counter(mode[1] for mode in modes.values() if mode[0] == speed).most_common(1)[0][0]
        yield checked(fec == majority, f"{fec} at {speed}, most ports have {majority}", subject)
        yield stated("fec", fec, subject)


def lldp_neighbours(text: str) -> dict[str, str]:
    """Return `SWITCH PORT`, the neighbour of each interface, from the output of `lldpctl -f keyvalue`."""
    values = dict(line.partition("=")[::2] for line in text.splitlines() if line.startswith("lldp."))
    neighbours = {}
    for key, name in values.items():
        match = re.fullmatch(r"lldp\.(.+)\.chassis\.name", key)
        if match:
            port = f"lldp.{match[1]}.port"
            neighbours[match[1]] = (
                f"{name} {values.get(f'{port}.ifname') or values.get(f'{port}.descr', '')}".strip()
            )
    return neighbours


@CHECKS.warning("backend.lldp", "A switch announces itself to each NIC", 45)
@remedy.monitor("Start lldpd, and enable LLDP on the switch port")
def lldp(host: Host) -> Iterator[Finding]:
    """Find NICs to which no switch announces itself by LLDP; the host must run lldpd."""
    neighbours = lldp_neighbours(host.run("lldpctl", "-f", "keyvalue"))
    for name in backend_interfaces(host):
        yield passed(neighbours[name], name) if name in neighbours else failed("no neighbour by LLDP", name)


@CHECKS.error("backend.authentication", "Switches admit the NICs (802.1X)", 23)
@remedy.monitor("Restart wpa_supplicant; renew the host's certificate")
def authentication(host: Host) -> Iterator[Finding]:
    """Find NICs that wpa_supplicant serves and that the switch has not admitted by 802.1X."""
    served = set(host.names("/run/wpa_supplicant"))
    names = [name for name in backend_interfaces(host) if name in served]
    if not names:
        raise Missing("wpa_supplicant serves no NIC")
    for name in names:
        output = host.run("wpa_cli", "-i", name, "status")
        status = dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
        state = status.get("wpa_state")
        if state is None:
            yield Finding(name, AuditStatus.UNKNOWN, "wpa_cli prints no wpa_state")
            continue
        port = status.get("suppPortStatus", "Authorized")
        yield checked(state == "COMPLETED" and port == "Authorized", f"{state}, port {port}", name)
