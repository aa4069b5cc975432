"""Faults of the network to plant in a recorded host, each with the audit check that must find it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fabrictime.testbed.audit.faults import PORT, Plant, gone, instead, text
from fabrictime.testbed.audit.recorded import RecordedHost
from fabrictime.testbed.audit.recorded_network import UP, require
from fabrictime.testbed.audit.recorded_services import (
    BOND,
    CERTIFICATE,
    DEVICES,
    EFA,
    EFA_ADDRESS,
    LLDP,
    LOG,
    MARKING,
    MLXLINK,
    MLXLINK_MODULE,
    PMC,
    PPCC,
    PTP,
    SERVICES,
    TIMED,
    UFM,
    UPTIME_S,
)
from producers.audit.backend.marking import RULESET
from producers.audit.backend.ufm import TAIL
from producers.audit.host.network import Dcb, Interface, Neighbour, Route, Rule
from producers.ports.ethtool import LinkSettings

COUNTERS = ("rx_packets", "rx_dropped", "rx_errors", "tx_packets", "tx_dropped", "tx_errors")
HW = "/sys/class/infiniband/{}/ports/1/hw_counters/{}"
CARD = "/sys/bus/pci/devices/0000:17:00.0"
BACK = DEVICES["mlx5_1"]


def interface(name: str, **changes: Any) -> Plant:
    """Return a fault that changes the fields `changes` of an interface."""

    def plant(host: RecordedHost) -> None:
        interfaces = host.network["interfaces"]
        host.network["interfaces"] = [
            replace(nic, **changes) if nic.name == name else nic for nic in interfaces
        ]

    return plant


def counted(name: str, **counters: int) -> Plant:
    """Return a fault that changes counters of an interface."""

    def plant(host: RecordedHost) -> None:
        before = next(nic for nic in host.network["interfaces"] if nic.name == name)
        interface(name, counters=before.counters | counters)(host)

    return plant


def added(read: str, value: Any) -> Plant:
    """Return a fault that adds `value` to the routes, rules or neighbours, as `read` names."""
    return lambda host: host.network[read].append(value)


def without(read: str, **fields: Any) -> Plant:
    """Return a fault that removes the routes, rules or neighbours (`read`) with these field values."""

    def plant(host: RecordedHost) -> None:
        entries = host.network[read]
        other_entries = [
            entry for entry in entries if any(getattr(entry, name) != value for name, value in fields.items())
        ]
        require(len(other_entries) < len(entries), f"{read} with {fields}")
        host.network[read] = other_entries

    return plant


def neighbour(address: str, state: str) -> Plant:
    """Return a fault that changes a neighbour's state."""

    def plant(host: RecordedHost) -> None:
        without("neighbours", address=address)(host)
        added("neighbours", Neighbour(address, "", "eno1", state))(host)

    return plant


def dcb(name: str, **changes: Any) -> Plant:
    """Return a fault that changes a NIC's priority flow control settings."""

    def plant(host: RecordedHost) -> None:
        before: Dcb = host.network["dcb"][name]
        host.network["dcb"][name] = replace(before, **changes)

    return plant


def statistics(name: str, **counters: int) -> Plant:
    """Return a fault that changes ethtool counters of an interface's driver."""
    return lambda host: host.network["ethtool_statistics"][name].update(counters)


def reach(**changes: Any) -> Plant:
    """Return a fault that changes which hosts answer requests."""
    return lambda host: host.network["reach"].update(changes)


def link(name: str, settings: LinkSettings) -> Plant:
    """Return a fault that changes the ethtool link settings of an interface."""
    return lambda host: host.network["link_settings"].__setitem__(name, settings)


def later(path: str, value: int) -> Plant:
    """Return a fault that sets a counter's file to `value` between two readings."""
    return lambda host: host.later.__setitem__(path, str(value))


def prints(command: tuple[str, ...], output: str) -> Plant:
    """Return a fault that changes the output of a command."""

    def plant(host: RecordedHost) -> None:
        require(command in host.commands, f"{command} in the recorded host")
        host.commands[command] = output

    return plant


def both(*plants: Plant) -> Plant:
    """Return a fault that consists of several faults."""

    def plant(host: RecordedHost) -> None:
        for plant_fault in plants:
            plant_fault(host)

    return plant


def events(*lines: tuple[float, str]) -> Plant:
    """Return a fault that adds (age in seconds, line) entries to the kernel log."""
    more = "".join(f"[{UPTIME_S - ago_s:12.6f}] {line}\n" for ago_s, line in lines)
    return prints(TIMED, LOG + more)


def flaps(count: int, apart_s: float, down_s: float) -> Plant:
    """Return a fault that makes a link go down and up `count` times."""
    return events(
        *(
            (count * apart_s - number * apart_s + 60 - at_s, f"mlx5_core 0000:17:00.0 eth0: Link {state}")
            for number in range(count)
            for at_s, state in ((0.0, "down"), (down_s, "up"))
        )
    )


def mlxlink(old: str, new: str) -> Plant:
    """Return a fault that replaces `old` by `new` in mlxlink's report on a link."""
    require(old in MLXLINK + MLXLINK_MODULE, f"{old} in the recorded host")
    return both(
        prints(("mlxlink", "-d", BACK, "-c", "-e"), MLXLINK.replace(old, new)),
        prints(("mlxlink", "-d", BACK, "-m"), MLXLINK_MODULE.replace(old, new)),
    )


FRONTEND: dict[str, tuple[str, Plant]] = {
    "no address": (
        "frontend.addresses",
        both(
            added("interfaces", Interface("eno3", 9, 1500, "up", UP, counters=dict.fromkeys(COUNTERS, 0))),
            text("/sys/class/net/eno3/device/ptp/ptp0/clock_name", "mlx5_ptp"),
        ),
    ),
    "no default route": ("frontend.default-route", without("routes", destination="0.0.0.0/0")),
    "two default routes": (
        "frontend.default-route",
        added("routes", Route("0.0.0.0/0", "192.168.4.9", "eno2", metric=100)),
    ),
    "gateway of IPv6 silent": (
        "frontend.gateways",
        both(
            added("routes", Route("::/0", "fe80::1", "eno1")),
            added("neighbours", Neighbour("fe80::1", "", "eno1", "FAILED")),
        ),
    ),
    "gateway silent": ("frontend.gateway", neighbour("192.168.4.1", "FAILED")),
    "rule to an empty table": ("frontend.policy-rules", added("rules", Rule(500, 77, source="10.0.1.2/32"))),
    "rule of another host": ("frontend.policy-rules", added("rules", Rule(500, 101, source="10.9.9.9/32"))),
    "strict reverse path": (
        "frontend.reverse-path",
        both(*(text(f"/proc/sys/net/ipv4/conf/{name}/rp_filter", "1") for name in ("all", "eno1", "eno2"))),
    ),
    "ARP of all": (
        "frontend.arp",
        both(*(text(f"/proc/sys/net/ipv4/conf/{name}/arp_ignore", "0") for name in ("all", "eno1"))),
    ),
    "no name server": ("frontend.name-servers", text("/etc/resolv.conf", "search cluster\n")),
    "no clock program": ("frontend.clock-service", text("/proc/812/comm", "python\n")),
    "clock without source": (
        "frontend.chrony",
        prints(("chronyc", "-c", "tracking"), "7F7F0101,,0,0.0,0.0,0,0,0,0,0,0,0,0,Not synchronised\n"),
    ),
    "clock far from source": (
        "frontend.chrony",
        prints(("chronyc", "-c", "tracking"), "C0A80401,a,3,1.1,0.004,0,0,0,0,0,0,0,64,Normal\n"),
    ),
    "NIC without clock": (
        "frontend.hardware-clocks",
        gone("/sys/class/net/eth1/device/ptp/ptp3/clock_name"),
    ),
    "PTP port lost": ("frontend.ptp", prints(PMC, PTP.replace("SLAVE", "UNCALIBRATED"))),
    "PTP far from master": ("frontend.ptp", prints(PMC, PTP.replace("-12.0", "48000.0"))),
    "bond member down": (
        "frontend.bonds",
        text("/proc/net/bonding/bond0", BOND.replace("up\nSpeed", "down\nSpeed")),
    ),
    "bond member left out": (
        "frontend.bonds",
        text("/proc/net/bonding/bond0", BOND.replace("ID: 1\ndetails", "ID: 2\ndetails")),
    ),
    "no topology": (
        "frontend.slurm-topology",
        prints(("scontrol", "show", "topology", "node=gpu012"), "No topology information available\n"),
    ),
    "no remote login": ("frontend.ssh", text("/etc/ssh/sshd_config", "Port 2222\n")),
    "no host key": ("frontend.host-keys", gone("/etc/ssh/ssh_host_ed25519_key.pub")),
    "weak host key": ("frontend.host-keys", text("/etc/ssh/ssh_host_dsa_key.pub", "ssh-dss AAAA")),
    "certificate at its end": (
        "frontend.certificates",
        prints(
            ("openssl", "x509", "-noout", "-enddate", "-in", CERTIFICATE), "notAfter=Nov 20 10:00:00 2026 GMT"
        ),
    ),
    "no token": ("frontend.munge", prints(("munge", "-n"), "munge: Error: Socket communication error\n")),
    "daemon dead": (
        "frontend.daemons",
        prints(SERVICES, "slurmd.service loaded inactive dead Slurm node daemon\n"),
    ),
    "drained": (
        "frontend.slurm-node",
        prints(
            ("scontrol", "show", "node", "gpu012"), "NodeName=gpu012\n   State=IDLE+DRAIN\n   Reason=fan\n"
        ),
    ),
    "cluster out": (
        "frontend.slurm-cluster",
        prints(("sinfo", "--noheader", "--format", "%T %D"), "idle 20\ndown* 5\n"),
    ),
    "kubelet sick": (
        "frontend.kubelet",
        prints(("curl", "--silent", "--max-time", "3", "http://127.0.0.1:10248/healthz"), "syncloop"),
    ),
    "retransmissions": ("frontend.tcp", instead("/proc/net/snmp", "90000000 1200", "90000000 1800000")),
    "listen overflows": ("frontend.tcp", instead("/proc/net/netstat", "TcpExt: 0 0", "TcpExt: 0 31")),
    "backlog drops": (
        "frontend.receive-drops",
        instead("/proc/net/softnet_stat", "0098a0c1 00000000", "0098a0c1 00010000"),
    ),
    "UDP drops": ("frontend.receive-drops", instead("/proc/net/snmp", "8000000 12 0", "8000000 12 9000")),
    "interface drops": ("frontend.interface-drops", counted("eno1", rx_dropped=10**6)),
    "damaged packets": ("frontend.interface-drops", counted("eth3", tx_errors=2 * 10**5)),
    "PPS exceeded": ("frontend.allowances", statistics("eno1", pps_allowance_exceeded=12)),
    "conntrack drops": (
        "frontend.conntrack-drops",
        instead("/proc/net/stat/nf_conntrack", "12 00000000 00000000", "12 00000000 0000001f"),
    ),
    "rejected packets": (
        "frontend.packet-filters",
        prints(("iptables-save", "-c"), "*filter\n[7:420] -A FORWARD -s 10.0.0.0/8 -j DROP\nCOMMIT\n"),
    ),
    "port clash": ("frontend.port-clash", text("/proc/sys/net/ipv4/ip_local_port_range", "1024 60999")),
    "TCP memory": ("frontend.sockets", instead("/proc/net/sockstat", "mem 30", "mem 7900000")),
    "outgoing ports": ("frontend.sockets", instead("/proc/net/sockstat", "tw 12", "tw 27000")),
    "MTU black hole": ("frontend.path-mtu", reach(largest=1500)),
    "late gateway": ("frontend.round-trips", reach(seconds=0.02)),
    "filtered neighbour": ("frontend.tcp-reach", reach(filtered={"10.0.2.3"})),
    "name server silent": ("frontend.lookups", reach(silent={"192.168.4.3"})),
    "name server fails": ("frontend.lookups", reach(code=2)),
}
BACKEND: dict[str, tuple[str, Plant]] = {
    "small MTU": ("backend.mtu", interface("eth1", mtu=1500)),
    "interface down": ("backend.carrier", interface("eth1", operstate="dormant")),
    "card silent": ("backend.vanished", text(f"{CARD}/revision", "0xff")),
    "no RDMA device": ("backend.vanished", gone(f"{CARD}/infiniband/mlx5_0/node_type")),
    "card left the bus": (
        "backend.vanished",
        events((9.0, "mlx5_core 0000:db:00.0: 504 Gb/s available PCIe bandwidth")),
    ),
    "other firmware": ("backend.like-cards", text("/sys/class/infiniband/mlx5_2/fw_ver", "28.38.1900")),
    "other board": ("backend.like-cards", text("/sys/class/infiniband/mlx5_2/board_id", "MT_0000000839")),
    "no umad": ("backend.management-files", gone("/dev/infiniband/umad2")),
    "no issm": ("backend.management-files", gone("/sys/class/infiniband_mad/issm3/ibdev")),
    "few reads": (
        "backend.firmware-settings",
        prints(("mlxconfig", "-d", BACK, "query"), "     MAX_ACC_OUT_READ          16\n"),
    ),
    "RTTCC on": (
        "backend.round-trip-control",
        prints(
            ("mlxreg", "-d", BACK, "--get", "--reg_name", "PPCC", "--indexes", PPCC),
            "value               | 0x00000001\n",
        ),
    ),
    "self-test": ("backend.self-test", prints(("hca_self_test.ofed",), "Kernel Syslog Check ..... FAIL\n")),
    "EFA not offered": ("backend.efa-provider", prints(("fi_info", "-p", "efa"), "provider: efa\n")),
    "symbol errors grow": ("backend.error-rates", later(PORT.format(2) + "/counters/symbol_error", 2)),
    "recoveries grow": ("backend.error-rates", later(PORT.format(2) + "/counters/link_error_recovery", 2)),
    "receive errors grow": ("backend.error-rates", later(PORT.format(3) + "/counters/port_rcv_errors", 30)),
    "discards grow": ("backend.error-rates", later(PORT.format(0) + "/counters/port_xmit_discards", 900)),
    "time-outs": ("backend.transport-rates", later(HW.format("mlx5_0", "local_ack_timeout_err"), 9)),
    "time-outs since boot": (
        "backend.transport-rates",
        text(HW.format("mlx5_0", "local_ack_timeout_err"), "900000"),
    ),
    "slow restarts": ("backend.transport-rates", later(HW.format("mlx5_1", "roce_slow_restart"), 31)),
    "out of sequence": ("backend.transport-rates", later(HW.format("mlx5_1", "out_of_sequence"), 500)),
    "damaged RoCE packets": (
        "backend.transport-rates",
        later(HW.format("mlx5_1", "rx_icrc_encapsulated"), 9),
    ),
    "receiver not ready": ("backend.receiver-not-ready", later(HW.format("mlx5_1", "rnr_nak_retry_err"), 1)),
    "EFA drops": ("backend.efa-rates", later(HW.format(EFA, "rx_drops"), 300)),
    "EFA peers lost": ("backend.efa-rates", later(HW.format(EFA, "unresponsive_remote_events"), 9)),
    "EFA commands": ("backend.efa-rates", later(HW.format(EFA, "cmds_err"), 2)),
    "EFA without driver": (
        "backend.vanished",
        both(
            gone(f"/sys/bus/pci/devices/{EFA_ADDRESS}/infiniband/{EFA}/node_type"),
            lambda host: host.links.__setitem__(
                f"/sys/bus/pci/devices/{EFA_ADDRESS}/driver", "/sys/bus/pci/drivers/efa"
            ),
        ),
    ),
    "six flaps a day": ("backend.link-flaps", flaps(6, 7_200.0, 2.0)),
    "three outages": ("backend.link-flaps", flaps(3, 7_200.0, 30.0)),
    "three faults an hour": ("backend.repeated-faults", flaps(3, 600.0, 2.0)),
    "cable unplugged": (
        "backend.module-events",
        events(
            (7_200.0, "mlx5_core 0000:2a:00.0: Port module event: module 1, Cable plugged"),
            (7_300.0, "mlx5_core 0000:2a:00.0: Port module event: module 1, Cable unplugged"),
        ),
    ),
    "narrow slot": (
        "backend.slot-bandwidth",
        events(
            (
                859_990.0,
                "mlx5_core 0000:17:00.0: 126.016 Gb/s available PCIe bandwidth, limited by "
                "16.0 GT/s PCIe x8 link at 0000:29:00.0 (capable of 504.112 Gb/s)",
            )
        ),
    ),
    "UFM": ("backend.ufm-events", prints(TAIL, UFM.replace("2026-11-17", "2026-11-18"))),
    "half duplex": ("backend.duplex", link("eth1", LinkSettings(400_000_000_000, "half", True))),
    "no autonegotiation": ("backend.duplex", link("eth1", LinkSettings(400_000_000_000, "full", False))),
    "promiscuous": ("backend.flags", interface("eth1", flags=UP | {"PROMISC"})),
    "raw errors of a lane": ("backend.error-ratios", statistics("eth0", rx_err_lane_2_phy=10**10)),
    "errors after FEC": ("backend.error-ratios", statistics("eth0", rx_pcs_symbol_err_phy=5_000)),
    "NIC discards": ("backend.discards", statistics("eth1", rx_discards_phy=101)),
    "effective BER": ("backend.link-quality", mlxlink("15E-255", "3E-9")),
    "raw BER": ("backend.link-quality", mlxlink("2E-10", "4E-4")),
    "recommendation": ("backend.link-quality", mlxlink("No issue was observed", "Bad signal integrity")),
    "little light": ("backend.modules", mlxlink("2.21,1.97", "-10.9,1.97")),
    "hot module": ("backend.modules", mlxlink("54 [", "76 [")),
    "other FEC": ("backend.fec", mlxlink("Standard_RS-FEC - (544,514)", "No FEC")),
    "no LLDP neighbour": (
        "backend.lldp",
        prints(("lldpctl", "-f", "keyvalue"), "lldp.eth0.chassis.name=leaf0\n"),
    ),
    "not admitted": (
        "backend.authentication",
        prints(("wpa_cli", "-i", "eth0", "status"), "wpa_state=ASSOCIATED\nsuppPortStatus=Unauthorized\n"),
    ),
    "no PFC": ("backend.trust", dcb("eth1", trust=("pcp",))),
    "other lossless priority": (
        "backend.pfc",
        both(
            dcb("eth1", pfc_priorities=frozenset({3, 4})),
            text("/sys/class/net/eth1/ecn/roce_np/enable/4", "1"),
            text("/sys/class/net/eth1/ecn/roce_rp/enable/4", "1"),
        ),
    ),
    "other DSCP map": ("backend.dscp-map", dcb("eth1", dscp_priority={26: 3, 48: 5})),
    "rule against the DSCP map": (
        "backend.dscp-rules",
        prints(RULESET, json.dumps({"nftables": [MARKING]}).replace("0:3", "0:0")),
    ),
    "other shares": ("backend.traffic-classes", dcb("eth1", class_percent=(90, 0, 0, 10, 0, 0, 0, 0))),
    "no ECN": ("backend.ecn", text("/sys/class/net/eth1/ecn/roce_rp/enable/3", "0")),
    "other DSCP of notifications": ("backend.ecn", text("/sys/class/net/eth1/ecn/roce_np/cnp_dscp", "46")),
    "lossy class": (
        "backend.lossless-class",
        text("/sys/class/infiniband/mlx5_1/tc/1/traffic_class", "Global tclass=0"),
    ),
    "lossy default": (
        "backend.lossless-class",
        both(
            text("/sys/class/infiniband/mlx5_1/tc/1/traffic_class", ""),
            text("/sys/kernel/config/rdma_cm/mlx5_1/ports/1/default_roce_tos", "0"),
        ),
    ),
    "no rule of a plane": ("backend.plane-routes", without("rules", table=101)),
    "no route of a plane": (
        "backend.plane-routes",
        both(
            prints(("lldpctl", "-f", "keyvalue"), f"{LLDP}lldp.eth9.chassis.name=leaf9\n"),
            added("interfaces", Interface("eth9", 9, 9000, "up", UP, addresses=("10.0.9.2/31",), kind="vf")),
            lambda host: setattr(host, "nics", ("eth0", "eth1", "eth9")),
        ),
    ),
    "rule to another plane's table": (
        "backend.source-routes",
        both(
            without("rules", table=101),
            added("rules", Rule(1001, 102, source="10.0.1.2/32")),
            text("/proc/sys/net/ipv4/conf/eth1/rp_filter", "1"),
        ),
    ),
    "no back-end address": (
        "backend.addresses",
        both(interface("eth1", addresses=("fe80::1/64",)), without("rules", table=101)),
    ),
    "other driver": ("backend.drivers", text("/sys/class/net/eth1/device/uevent", "DRIVER=ice")),
    "other GID index": (
        "backend.gid-index",
        both(
            text(PORT.format(1) + "/gid_attrs/types/2", "RoCE v2"),
            text(PORT.format(1) + "/gid_attrs/types/3", "IB/RoCE v1"),
        ),
    ),
}
FAULTS = FRONTEND | BACKEND
