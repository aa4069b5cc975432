"""Checks of services on a host's front end: name servers, time, remote login, certificates, schedulers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from producers.audit.backend.rdma_ports import names_or_none
from producers.audit.base import Checks, Finding, checked, failed, passed, stated
from producers.audit.frontend.sockets import listeners
from producers.audit.host.base import Host, Missing, Unreadable
from producers.audit.software.units import SHOW, properties
from schemas.audit_remedy import remedy
from schemas.host_list import host_names
from schemas.records import AuditStatus

CLOCK_DAEMONS: Final = frozenset(
    {"chronyd", "ntpd", "ptp4l", "systemd-timesyn", "timemaster", "sptp", "phc2sys"}
)
"""Programs that set the clock, by their names in /proc/PID/comm, which are cut to 15 characters."""
MAX_OFFSET_S: Final = 0.001
MAX_STRATUM: Final = 15
MAX_NAME_SERVERS: Final = 3
"""The C library uses this many name servers; it ignores further ones."""
MIN_DAYS: Final = 14.0
CERTIFICATES: Final = ("/etc/kubernetes/pki", "/var/lib/kubelet/pki", "/etc/etcd/pki", "/etc/ssl/fabrictime")
"""Directories of the certificates of cluster services."""
SLURM_FILES: Final = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Paths of Slurm's configuration: the host's own, or a copy from the controller."""
MAX_PTP_OFFSET_NS: Final = 10_000.0
PMC: Final = ("pmc", "-u", "-b", "0", "GET PORT_DATA_SET", "GET CURRENT_DATA_SET")
GOOD_PORTS: Final = frozenset({"SLAVE", "MASTER", "GRAND_MASTER", "PASSIVE"})
WEAK_KEYS: Final = frozenset({"ssh-dss"})
IDLE_STATES: Final = frozenset(
    {"ALLOCATED", "IDLE", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "CLOUD", "DYNAMIC_NORM"}
)
HARMLESS_MARKS: Final = "-~#%!+"
"""Suffixes of a node's state in Slurm that do no harm: such as planned for a job, or powered down."""
MIN_USABLE: Final = 0.85
"""Least share of Slurm's nodes that are usable (GCM warns at 15% missing)."""
UNITS: Final = ("systemctl", "list-units", "--type=service", "--all", "--plain", "--no-legend", "--no-pager")
_CLUSTER: Final = "chrony containerd crio dcgm docker kubelet lldpd munge opensm slurmd ssh sshd"
_OF_GPUS: Final = "nvidia-dcgm nvidia-fabricmanager nvidia-imex nvidia-persistenced"
DAEMONS: Final = frozenset(f"{_CLUSTER} {_OF_GPUS}".split())
"""Daemons that must be active if they are enabled."""
ON_DEMAND: Final = frozenset({"ssh", "sshd", "docker"})
"""Daemons that a socket may start on the first connection."""
NOT_STARTED: Final = frozenset({"disabled", "masked", "static", "indirect"})
"""States of the unit file for which systemd does not start the unit at boot."""
HEALTHY: Final = "http://127.0.0.1:10248/healthz"
CHECKS: Final = Checks()


def resolvers(text: str) -> list[str]:
    """Return the name servers of resolv.conf."""
    parts = [line.split() for line in text.splitlines()]
    return [part[1] for part in parts if len(part) > 1 and part[0] == "nameserver"]


@CHECKS.error("frontend.name-servers", "Name servers are configured", 99)
@remedy.monitor("Correct /etc/resolv.conf, or the service that writes it")
def name_servers(host: Host) -> Iterator[Finding]:
    """Find a host without name servers, or with more than the C library uses."""
    servers = resolvers(host.read("/etc/resolv.conf"))
    yield checked(0 < len(servers) <= MAX_NAME_SERVERS, f"{len(servers)} name servers, expected 1 to 3")


@CHECKS.warning("frontend.clock-service", "A program sets the clock", 88, 101)
@remedy.monitor("systemctl enable --now chronyd")
def clock_service(host: Host) -> Iterator[Finding]:
    """Find a host on which no program sets the clock."""
    running = set()
    for pid in host.names("/proc"):
        if pid.isdigit():
            try:
                running.add(host.read(f"/proc/{pid}/comm"))
            except Missing:  # it has ended
                continue
    clock_daemons = sorted(running & CLOCK_DAEMONS)
    yield checked(
        bool(clock_daemons), ", ".join(clock_daemons) or "no program sets the clock: neither NTP nor PTP"
    )


@CHECKS.warning("frontend.chrony", "The clock is close to its source", 88)
@remedy.monitor("`chronyc sources -v` shows servers and their state")
def chrony(host: Host) -> Iterator[Finding]:
    """Find a host whose clock chrony does not keep close to its source."""
    fields = host.run("chronyc", "-c", "tracking").strip().split(",")
    stratum, offset_s, leap = int(fields[2]), float(fields[4]), fields[13]
    yield checked(0 < stratum <= MAX_STRATUM, f"stratum {stratum}", "source")
    yield checked(leap != "Not synchronised", leap, "leap status")
    text = f"{offset_s * 1e6:+,.0f} us, expected within {MAX_OFFSET_S * 1e6:,.0f}"
    yield checked(abs(offset_s) <= MAX_OFFSET_S, text, "offset")


@CHECKS.warning("frontend.ptp", "PTP follows its master closely", 88)
@remedy.monitor("`journalctl -u ptp4l` shows the port's state and the master")
def precision_time(host: Host) -> Iterator[Finding]:
    """Find PTP ports in a bad state, or a clock far from its master."""
    if "ptp4l" not in host.names("/run"):
        raise Missing("/run/ptp4l: ptp4l does not run")
    fields = re.findall(r"^\s*(portState|offsetFromMaster)\s+(\S+)\s*$", host.run(*PMC), re.MULTILINE)
    if not fields:
        raise ValueError("pmc prints no state of a port")
    for name, value in fields:
        if name == "portState":
            yield checked(value in GOOD_PORTS, value, "port")
        else:
            text = f"{float(value):+,.0f} ns, expected within {MAX_PTP_OFFSET_NS:,.0f}"
            yield checked(abs(float(value)) <= MAX_PTP_OFFSET_NS, text, "offset")


@CHECKS.warning("frontend.hardware-clocks", "NICs have a hardware clock", 88)
@remedy.monitor("Enable PTP in the NIC's driver or firmware; time stamps come from software without it")
def hardware_clocks(host: Host) -> Iterator[Finding]:
    """Find NICs without a PTP hardware clock if other NICs of the host have one."""
    clocks = host.names("/sys/class/ptp")
    if not clocks:
        raise Missing("no hardware clock")
    with_clock, without = [], []
    for interface in host.interfaces():
        folder = f"/sys/class/net/{interface.name}/device"
        if interface.kind or "LOOPBACK" in interface.flags or not interface.is_up:
            continue
        try:
            names = host.names(f"{folder}/ptp")
        except Missing:
            without.append(interface.name)
            continue
        with_clock.append(interface.name)
        yield passed(", ".join(names), interface.name)
    for name in without if with_clock else ():
        yield failed("no hardware clock; other NICs have one", name)
    yield stated("hardware_clocks", len(clocks))


@CHECKS.warning("frontend.ssh", "Remote login listens", 103)
@remedy.monitor("systemctl restart sshd; `sshd -t` checks its configuration")
def ssh_listens(host: Host) -> Iterator[Finding]:
    """Find a host with an SSH server installed on which nothing listens on its port."""
    config = host.read("/etc/ssh/sshd_config")
    folder = "/etc/ssh/sshd_config.d"
    if re.search(r"^\s*Include\s", config, re.MULTILINE | re.IGNORECASE):
        parts = [name for name in names_or_none(host, folder) if name.endswith(".conf")]
        config = "\n".join([config, *(host.read(f"{folder}/{name}") for name in sorted(parts))])
    ports = {int(port) for port in re.findall(r"^\s*Port\s+(\d+)", config, re.MULTILINE)} or {22}
    missing = ports - listeners(host)
    text = ", ".join(map(str, sorted(missing or ports)))
    yield checked(not missing, f"nothing listens on port {text}" if missing else f"listens on port {text}")


@CHECKS.warning("frontend.host-keys", "The host has strong SSH keys", 103)
@remedy.monitor("ssh-keygen -A, and remove weak keys")
def host_keys(host: Host) -> Iterator[Finding]:
    """Find a host without SSH host keys, or with a weak one."""
    names = [name for name in host.names("/etc/ssh") if re.fullmatch(r"ssh_host_\w+_key\.pub", name)]
    if not names:
        host.read("/etc/ssh/sshd_config")
        yield failed("no host key in /etc/ssh")
    for name in names:
        kind = host.read(f"/etc/ssh/{name}").split()[0]
        yield checked(kind not in WEAK_KEYS, kind, name)


def days_left(text: str, now_s: float) -> float:
    """Return the days from `now_s` to the end of validity in `notAfter=Nov 26 07:00:00 2027 GMT`."""
    end = datetime.strptime(text.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    return (end.timestamp() - now_s) / 86_400


@CHECKS.warning("frontend.certificates", "Certificates are valid for two weeks", 103, limit_s=30.0)
@remedy.monitor("Renew the certificate, for example by `kubeadm certs renew`")
def certificates(host: Host) -> Iterator[Finding]:
    """Find certificates of cluster services that end within two weeks."""
    paths = [path for folder in CERTIFICATES for path in _certificates(host, folder)]
    if not paths:
        raise Missing("no certificate of a cluster service")
    now_s = host.now_s()
    for path in paths:
        try:
            left = days_left(host.run("openssl", "x509", "-noout", "-enddate", "-in", path), now_s)
        except Missing:
            raise
        except (Unreadable, ValueError) as error:  # one file hides no other
            yield Finding(path, AuditStatus.UNKNOWN, str(error))
            continue
        yield checked(left >= MIN_DAYS, f"valid for {left:,.0f} days, expected at least {MIN_DAYS:.0f}", path)


def _certificates(host: Host, folder: str) -> list[str]:
    try:
        names = host.names(folder)
    except Missing:
        return []
    return [f"{folder}/{name}" for name in names if name.endswith((".crt", "-current.pem"))]


@CHECKS.error("frontend.munge", "Munge makes tokens for Slurm", 103)
@remedy.monitor(
    "systemctl restart munge, and compare /etc/munge/munge.key and the clock with the controller's"
)
def tokens(host: Host) -> Iterator[Finding]:
    """Find a host on which Munge, Slurm's authentication, makes no valid token."""
    host.read("/etc/munge/munge.key")
    token = host.run("munge", "-n").strip()
    yield checked(token.startswith("MUNGE:"), "a token was made" if token else "no token was made")


@CHECKS.warning("frontend.daemons", "Installed daemons of the cluster run", 45, 66, 101)
@remedy.monitor("`systemctl status UNIT` gives the reason")
def daemons(host: Host) -> Iterator[Finding]:
    """Find enabled daemons of a GPU cluster that do not run."""
    host.names("/run/systemd/system")
    states = {name: unit.get("UnitFileState") for name, unit in properties(host.run(*SHOW)).items()}
    any_daemon = False
    for line in host.run(*UNITS).splitlines():
        unit, loaded, active, detail, *_ = line.lstrip("\u25cf* ").split()
        name = unit.removesuffix(".service")
        if name in DAEMONS and loaded == "loaded":
            any_daemon = True
            if active == "inactive" and (name in ON_DEMAND or states.get(name) in NOT_STARTED):
                yield Finding(unit, AuditStatus.SKIPPED, "not started at boot")
                continue
            yield checked(active == "active", f"{active}, {detail}", unit)
    if not any_daemon:
        raise Missing("no daemon of a GPU cluster is installed")


def availability(text: str) -> tuple[int, int]:
    """Return the numbers of usable and of all nodes in the output of `sinfo --noheader --format '%T %D'`."""
    usable = total = 0
    for line in text.splitlines():
        state, count = line.split()
        total += int(count)
        usable += int(count) if state.rstrip(HARMLESS_MARKS).upper() in IDLE_STATES else 0
    return usable, total


@CHECKS.warning("frontend.slurm-cluster", "Slurm may use 85% of all nodes", 102)
@remedy.monitor("`sinfo -R` lists the reasons")
def cluster_nodes(host: Host) -> Iterator[Finding]:
    """Find a cluster with more than 15% of its nodes unusable; the cause is then rarely this host."""
    _slurm(host)
    usable, total = availability(host.run("sinfo", "--noheader", "--format", "%T %D"))
    if not total:
        raise Missing("Slurm has no nodes")
    yield checked(usable >= MIN_USABLE * total, f"{usable:,} of {total:,} nodes are usable, expected 85%")


def node_state(text: str) -> Mapping[str, str]:
    """Return the fields by name in the output of `scontrol show node`."""
    fields = dict(re.findall(r"(\w+)=(\S+)", text))
    reason = re.search(r"\bReason=(.*)", text)
    return fields | {"Reason": reason[1].strip()} if reason else fields


_SWITCH: Final = re.compile(r"(?:Switch|Block)Name=(?P<name>\S+)(?:.*?\bNodes=(?P<nodes>\S+))?")
MAX_NAMES: Final = 65_536


def _slurm(host: Host) -> str:
    """Return the host's name in Slurm. Raises Missing without Slurm's configuration."""
    for path in SLURM_FILES:
        try:
            host.read(path)
        except Missing:
            continue
        return host.read("/proc/sys/kernel/hostname").partition(".")[0]
    raise Missing(f"{' or '.join(SLURM_FILES)}: not there")


@CHECKS.warning("frontend.slurm-topology", "Slurm knows the host's switches", 44, 102)
@remedy.monitor("Add the host to topology.conf, then `scontrol reconfigure`")
def scheduler_topology(host: Host) -> Iterator[Finding]:
    """Find a host missing in Slurm's topology: Slurm then places jobs without regard to its switches."""
    name = _slurm(host)
    listed = host.run("scontrol", "show", "topology", f"node={name}")
    switches = [
        match["name"]
        for match in _SWITCH.finditer(listed)
        if match["nodes"] is None or name in host_names(match["nodes"], MAX_NAMES)
    ]
    yield checked(
        bool(switches), f"below {', '.join(switches)}" if switches else "in no switch of the topology"
    )


@CHECKS.warning("frontend.slurm-node", "Slurm may use the host", 102)
@remedy.monitor("`scontrol show node` gives the reason; resume it after the repair")
def scheduler_node(host: Host) -> Iterator[Finding]:
    """Find a host that is drained or down in Slurm."""
    name = _slurm(host)
    fields = node_state(host.run("scontrol", "show", "node", name))
    state = fields["State"]
    parts = set(state.upper().replace("*", "+NOT_RESPONDING").split("+"))
    reason = fields.get("Reason", "")
    text = f"Slurm: {state}, {reason}" if reason else f"Slurm: {state}"
    yield checked(parts <= IDLE_STATES, text)


@CHECKS.error("frontend.kubelet", "The kubelet is healthy", 101, 102)
@remedy.monitor("`journalctl -u kubelet` gives the reason")
def kubelet(host: Host) -> Iterator[Finding]:
    """Find a host whose kubelet does not report itself healthy."""
    host.read("/var/lib/kubelet/config.yaml")
    answer = host.run("curl", "--silent", "--max-time", "3", HEALTHY).strip()
    yield checked(answer == "ok", f"kubelet answers {answer!r:.60}, expected ok")
