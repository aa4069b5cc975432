"""Checks of a host's sockets and packet filters: listeners, ports, memory, drops, connection tracking."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.frontend.bonds import backup_interfaces
from producers.audit.host.base import Host, Missing
from producers.audit.host.network import Interface
from schemas.audit_remedy import remedy

MAX_PORT: Final = 65_535
MAX_LOSS: Final = 0.01
"""Largest share of retransmitted segments that is no error."""
MIN_SEGMENTS: Final = 1_000
"""Fewest sent segments for which a share of retransmitted ones is judged."""
MAX_DROPPED: Final = 1e-4
"""Largest share of dropped packets on an interface that is no error."""
SERVICE_PORTS: Final[Mapping[int, str]] = {
    179: "BGP", 2379: "etcd", 4240: "Cilium", 4791: "RoCE", 6443: "Kubernetes API", 6817: "slurmctld",
    6818: "slurmd", 6819: "slurmdbd", 9092: "Kafka", 9100: "node exporter", 9400: "DCGM exporter",
    10250: "kubelet", 30000: "Kubernetes node ports",
}  # fmt: skip
"""Ports of a GPU cluster's services, which the kernel must not give to outgoing connections."""
PACKET_FILTERS: Final = frozenset({"ip_tables", "nf_tables"})
"""Kernel modules of packet filters."""
ALLOWANCES: Final = (
    "bw_in_allowance_exceeded",
    "bw_out_allowance_exceeded",
    "pps_allowance_exceeded",
    "conntrack_allowance_exceeded",
    "linklocal_allowance_exceeded",
)
"""Counters of Amazon's ENA driver for packets that the cloud dropped."""
_REFUSAL: Final = re.compile(r"^\[(\d+):\d+\] -A (\S+) (?:.* )?-j (REJECT|DROP)\b.*$", re.MULTILINE)
CHECKS: Final = Checks()


def columns(text: str) -> dict[str, int]:
    """Return the sum of each column in a file of /proc/net/stat: hexadecimal, one line per processor."""
    names, *lines = text.splitlines()
    sums = dict.fromkeys(names.split(), 0)
    for line in lines:
        for name, value in zip(sums, line.split(), strict=True):
            sums[name] += int(value, 16)
    return sums


def tables(text: str) -> dict[str, dict[str, int]]:
    """Return the tables of /proc/net/snmp or netstat, each of which is a line of names and one of values."""
    lines = text.splitlines()
    values_by_table = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        head, _, rest = names.partition(": ")
        numbers = map(int, values.removeprefix(f"{head}: ").split())
        values_by_table[head] = dict(zip(rest.split(), numbers, strict=True))
    return values_by_table


@CHECKS.warning("frontend.tcp", "TCP sends few segments twice", 99)
@remedy.monitor("`nstat -a` and `ss -ti` show the peers; raise net.core.somaxconn for full listeners")
def retransmissions(host: Host) -> Iterator[Finding]:
    """Find a host that retransmits many TCP segments, or whose full listen queues refuse connections."""
    tcp = tables(host.read("/proc/net/snmp"))["Tcp"]
    sent, retransmits = tcp["OutSegs"], tcp["RetransSegs"]
    share = retransmits / max(sent, MIN_SEGMENTS)
    yield checked(
        share <= MAX_LOSS, f"{share:.2%} of {sent:,} segments sent twice, expected at most 1%", "TCP"
    )
    overflows = tables(host.read("/proc/net/netstat"))["TcpExt"]["ListenOverflows"]
    yield checked(
        overflows == 0,
        f"{overflows:,} connections refused by a full queue of a listener",
        "listeners",
    )


@CHECKS.warning("frontend.receive-drops", "The kernel drops no received packets", 99, 100)
@remedy.monitor("Raise net.core.netdev_max_backlog or the socket's buffer; spread interrupts")
def receive_drops(host: Host) -> Iterator[Finding]:
    """Find received packets that the kernel dropped because its own queue or a socket's buffer was full."""
    rows = [line.split() for line in host.read("/proc/net/softnet_stat").splitlines()]
    packets, dropped = (sum(int(row[column], 16) for row in rows) for column in (0, 1))
    limit = MAX_DROPPED * packets
    yield checked(dropped <= limit, f"{dropped:,} of {packets:,} packets, expected at most 0.01%", "backlog")
    udp = tables(host.read("/proc/net/snmp"))["Udp"]
    limit = MAX_DROPPED * udp["InDatagrams"]
    text = f"{udp['RcvbufErrors']:,} of {udp['InDatagrams']:,} datagrams, expected at most 0.01%"
    yield checked(udp["RcvbufErrors"] <= limit, text, "UDP buffers")


@CHECKS.warning("frontend.interface-drops", "Interfaces neither drop nor damage packets", 99, 100)
@remedy.monitor("`ethtool -S` names the reason; enlarge rings by `-G`")
def interface_drops(host: Host) -> Iterator[Finding]:
    """Find interfaces of hardware devices that drop packets or have packet errors."""
    devices = [
        interface
        for interface in host.interfaces()
        if not interface.kind and "LOOPBACK" not in interface.flags and interface.is_up
    ]
    if not devices:
        raise Missing("no device is up")
    standby = backup_interfaces(host)
    for device in devices:
        for direction in ("rx", "tx"):
            yield _drops(device, direction, is_standby=device.name in standby)


def _drops(interface: Interface, direction: str, *, is_standby: bool) -> Finding:
    """Compare drops and errors with packets. A member that stands by in a bond drops all by design."""
    counters = interface.counters
    packets = counters[f"{direction}_packets"]
    lost = counters[f"{direction}_errors"] + (0 if is_standby else counters[f"{direction}_dropped"])
    text = f"{lost:,} of {packets:,} packets ({direction}) dropped or damaged, expected at most 0.01%"
    return checked(lost <= MAX_DROPPED * packets, text, interface.name)


@CHECKS.warning("frontend.allowances", "The cloud drops no packets", 100)
@remedy.monitor("Use a larger instance, fewer packets, or fewer tracked connections")
def allowances(host: Host) -> Iterator[Finding]:
    """Find interfaces whose packets the cloud dropped because they exceeded an allowance."""
    any_drop = False
    for interface in host.interfaces():
        if interface.kind or "LOOPBACK" in interface.flags:
            continue
        statistics = host.ethtool_statistics(interface.name)
        for name in ALLOWANCES:
            if name in statistics:
                any_drop = True
                yield checked(
                    statistics[name] == 0, f"{name} = {statistics[name]:,}, expected 0", interface.name
                )
    if not any_drop:
        raise Missing("no driver counts exceeded allowances")


@CHECKS.error("frontend.conntrack-drops", "Connection tracking refuses no connection", 100)
@remedy.monitor("Raise net.netfilter.nf_conntrack_max")
def tracking_drops(host: Host) -> Iterator[Finding]:
    """Find a host whose connection tracking table was full and refused connections.

    Two packets of one connection that race each other count as drop and as insert_failed. That is harmless,
    and usual if containers look up names.
    """
    counts = columns(host.read("/proc/net/stat/nf_conntrack"))
    refused = {"drop": max(0, counts["drop"] - counts["insert_failed"]), "early_drop": counts["early_drop"]}
    for name, count in refused.items():
        yield checked(count == 0, f"{count:,} packets dropped by a full table, expected 0", name)


class Filtered(NamedTuple):
    """A rule of a packet filter that refused packets."""

    chain: str
    verdict: str
    packets: int


def filtered(text: str) -> list[Filtered]:
    """Return the rules in the output of `iptables-save -c` that reject or drop, with their packet counts."""
    return [Filtered(chain, verdict, int(count)) for count, chain, verdict in _REFUSAL.findall(text)]


@CHECKS.warning("frontend.packet-filters", "Packet filters refuse no packets", 100)
@remedy.monitor("`iptables-save -c` shows the rule; allow the cluster's networks")
def packet_filters(host: Host) -> Iterator[Finding]:
    """Find packet filter rules that refused packets: they make a job's connections fail or hang.

    The command would load a packet filter, so that it runs only if one is loaded.
    """
    loaded = {line.split()[0] for line in host.read("/proc/modules").splitlines() if line}
    if not loaded & PACKET_FILTERS:
        raise Missing("no packet filter is loaded")
    rules = filtered(host.run("iptables-save", "-c"))
    for rule in rules:
        text = f"{rule.verdict} of {rule.packets:,} packets"
        yield failed(text, rule.chain) if rule.packets else passed(text, rule.chain)
    if not rules:
        yield passed("no rule rejects or drops")


def listeners(host: Host) -> set[int]:
    """Return the TCP ports on which a program listens."""
    ports = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = host.read(path).splitlines()[1:]
        except Missing:  # a kernel without IPv6
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                ports.add(int(local.rpartition(":")[2], 16))
    return ports


def _reserved(text: str) -> set[int]:
    ports: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ports.update(range(int(first), min(int(last or first), MAX_PORT) + 1))
    return ports


@CHECKS.warning("frontend.port-clash", "Outgoing connections take no service's port", 100)
@remedy.monitor("sysctl net.ipv4.ip_local_reserved_ports=PORTS")
def port_clash(host: Host) -> Iterator[Finding]:
    """Find service ports that the kernel may give to outgoing connections: the service then cannot start."""
    first, last = map(int, host.read("/proc/sys/net/ipv4/ip_local_port_range").split())
    reserved = _reserved(host.read("/proc/sys/net/ipv4/ip_local_reserved_ports"))
    used = listeners(host)
    clashes = [port for port in used & set(SERVICE_PORTS) if first <= port <= last and port not in reserved]
    for port in sorted(clashes):
        text = f"{SERVICE_PORTS[port]} listens in the range {first} to {last} of outgoing connections"
        yield failed(text, f"port {port}")
    if not clashes:
        yield passed(f"no service with a fixed port listens in the range {first} to {last} of clients")


def socket_statistics(text: str) -> dict[str, dict[str, int]]:
    """Return the counts in each line of /proc/net/sockstat, such as TCP's inuse, orphan, tw, alloc, mem."""
    statistics = {}
    for line in text.splitlines():
        name, _, rest = line.partition(": ")
        parts = rest.split()
        statistics[name] = dict(zip(parts[::2], map(int, parts[1::2]), strict=True))
    return statistics


@CHECKS.error("frontend.sockets", "Memory, orphans and ports of TCP suffice", 99)
@remedy.monitor("`ss -s` and `ss -tanp` name the program")
def socket_memory(host: Host) -> Iterator[Finding]:
    """Find a host that runs out of TCP memory, orphaned sockets or outgoing ports."""
    tcp = socket_statistics(host.read("/proc/net/sockstat"))["TCP"]
    pages = int(host.read("/proc/sys/net/ipv4/tcp_mem").split()[1])
    yield checked(tcp["mem"] < 0.8 * pages, f"{tcp['mem']:,} of {pages:,} pages", "TCP memory")
    orphans = int(host.read("/proc/sys/net/ipv4/tcp_max_orphans"))
    yield checked(tcp["orphan"] < 0.8 * orphans, f"{tcp['orphan']:,} of {orphans:,}", "orphans")
    first, last = map(int, host.read("/proc/sys/net/ipv4/ip_local_port_range").split())
    size, used = last - first + 1, tcp["inuse"] + tcp["tw"]
    yield checked(used < 0.8 * size, f"{used:,} connections, {size:,} outgoing ports", "ports")
