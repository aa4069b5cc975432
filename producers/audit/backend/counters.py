"""Rates of the error counters of RDMA ports: link, transport and EFA counters.

Each rate is measured over a short window between two readings in one check, and as the mean since boot; the
higher rate counts. The window finds a fault that has just begun; the mean finds a slow fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from producers.audit.backend.rdma_ports import is_efa, ports
from producers.audit.base import Checks, Finding, checked
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy
from schemas.units import number_text

WINDOW_S: Final = 2.0
"""Time between the two readings of a counter."""
CHANCE: Final = 1
"""Number of events to subtract from the window's count: one may fall into any window by chance."""
Counters = Mapping[tuple[str, str], int]
"""Value by subject and counter."""
HARD_ERRORS: Final = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
"""Names of counters of which any increment is an error (NVSentinel)."""
MAX_FOUR_BITS: Final = 15
"""Largest value of these counters: they have four bits and stay there until a reset (IBTA, PortCounters)."""
CHECKS: Final = Checks(limit_s=20.0)


class Rule(NamedTuple):
    """A counter and its largest harmless rate: `limit` events in `per_s` seconds."""

    counter: str
    limit: float
    per_s: float = 1.0
    """Period of the limit: 60 for a limit per minute."""

    @property
    def unit(self) -> str:
        """Abbreviation of the limit's period: s, min or h."""
        return {1.0: "s", 60.0: "min", 3600.0: "h"}[self.per_s]


ERRORS: Final = (
    Rule("symbol_error", 120, 3600.0),
    Rule("link_error_recovery", 5, 60.0),
    Rule("port_rcv_errors", 10),
    Rule("port_xmit_discards", 100),
)
"""Rules for the link (NVSentinel); 120 symbol errors an hour are the bit error ratio of 1e-12 of IBTA."""
TRANSPORT: Final = (
    Rule("local_ack_timeout_err", 1),
    Rule("roce_slow_restart", 10),
    Rule("out_of_sequence", 100),
    Rule("packet_seq_err", 100),
    Rule("implied_nak_seq_err", 100),
    Rule("rx_icrc_encapsulated", 1),
)
"""Rules for the transport: the first two are NVSentinel's, the others ours."""
EFA: Final = (
    Rule("rx_drops", 100),
    Rule("unresponsive_remote_events", 1),
    Rule("impaired_remote_conn_events", 1),
    Rule("retrans_timeout_events", 100),
    Rule("cmds_err", 10, 60.0),
)
"""Rules for Elastic Fabric Adapters (EKS node monitoring agent); the third and fourth are ours."""


class Rate(NamedTuple):
    """A counter's total, and its rates in the window and since boot, per second."""

    total: int
    window: float
    mean: float
    elapsed_s: float
    """Length of the window."""


def rates(
    before: Counters, after: Counters, elapsed_s: float, uptime_s: float
) -> dict[tuple[str, str], Rate]:
    """Return the rates of the counters in both readings. A counter that fell was reset, and counts from 0."""
    rate_by_key = {}
    for key, value in after.items():
        if key in before:
            grown = value - before[key] if value >= before[key] else value
            rate_by_key[key] = Rate(value, grown / elapsed_s, value / max(uptime_s, 1.0), elapsed_s)
    return rate_by_key


def _read(host: Host, folders: Mapping[str, str], rules: Sequence[Rule]) -> dict[tuple[str, str], int]:
    counts = {}
    for subject, folder in folders.items():
        for rule in rules:
            try:
                counts[subject, rule.counter] = int(host.read(f"{folder}/{rule.counter}"))
            except Missing:  # another driver has other counters
                continue
    if not counts:
        raise Missing(f"no counter {', '.join(rule.counter for rule in rules)}")
    return counts


def _measured(host: Host, folders: Mapping[str, str], rules: Sequence[Rule]) -> dict[tuple[str, str], Rate]:
    uptime_s = float(host.read("/proc/uptime").split()[0])
    before = _read(host, folders, rules)
    elapsed_s = host.pause(WINDOW_S)
    return rates(before, _read(host, folders, rules), elapsed_s, uptime_s)


def _folders(host: Host, kind: str, is_wanted: Callable[[str], bool]) -> dict[str, str]:
    return {str(port): f"{port.folder}/{kind}" for port in ports(host) if is_wanted(port.device)}


def _within(host: Host, folders: Mapping[str, str], rules: Sequence[Rule]) -> Iterator[Finding]:
    limits = {rule.counter: rule for rule in rules}
    for (subject, name), rate in _measured(host, folders, rules).items():
        rule = limits[name]
        value = max(rate.window - CHANCE / rate.elapsed_s, rate.mean) * rule.per_s
        text = (
            f"{name} {number_text(value)}/{rule.unit}, expected at most {rule.limit:g}; {rate.total:,} in all"
        )
        yield checked(value <= rule.limit, text, subject)


@CHECKS.error("backend.error-rates", "Errors of RDMA links are rare", 8, 9, 10, 13)
@remedy.replace("Clean or replace cable and transceiver")
def error_rates(host: Host) -> Iterator[Finding]:
    """Find ports whose link errors grow too fast."""
    yield from _within(host, _folders(host, "counters", lambda device: not is_efa(device)), ERRORS)


@CHECKS.warning("backend.transport-rates", "Queue pairs rarely time out or lose their order", 12, 14)
@remedy.monitor("Look for loss: PFC, ECN and DSCP of NICs and switches, then discards of the switch")
def transport_rates(host: Host) -> Iterator[Finding]:
    """Find ports whose time-outs, slow restarts or sequence gaps grow too fast."""
    yield from _within(host, _folders(host, "hw_counters", lambda device: not is_efa(device)), TRANSPORT)


@CHECKS.warning("backend.efa-rates", "EFA devices lose few packets and peers", 32)
@remedy.monitor("Check the peer instance; raise the receive queue")
def efa_rates(host: Host) -> Iterator[Finding]:
    """Find EFA devices that drop packets, lose their peers or refuse commands."""
    folders = _folders(host, "hw_counters", is_efa)
    if not folders:
        raise Missing("no EFA device")
    yield from _within(host, folders, EFA)


@CHECKS.error("backend.receiver-not-ready", "No queue pair gives up for lack of receive buffers", 11)
@remedy.monitor("Find the slow program; raise rnr_retry")
def receiver_not_ready(host: Host) -> Iterator[Finding]:
    """Find ports on which a queue pair gave up because its peer posted no receive buffer."""
    folders = _folders(host, "hw_counters", lambda device: not is_efa(device))
    yield from _still(host, folders, ("rnr_nak_retry_err",))


@CHECKS.error("backend.link-errors", "RDMA ports count no fatal link error", 11)
@remedy.replace("Clean or replace cable and transceiver")
def link_errors(host: Host) -> Iterator[Finding]:
    """Find ports whose counters of fatal errors grow. Their total is of any time since the reset."""
    yield from _still(host, _folders(host, "counters", lambda device: not is_efa(device)), HARD_ERRORS)


def _still(host: Host, folders: Mapping[str, str], counters: Sequence[str]) -> Iterator[Finding]:
    """Check that counters do not grow between two readings."""
    rules = [Rule(counter, 0) for counter in counters]
    for (subject, name), rate in _measured(host, folders, rules).items():
        grown = round(rate.window * WINDOW_S)
        text = f"{name} grew by {grown:,} in {WINDOW_S:g} s, expected 0; {rate.total:,} in all"
        yield checked(rate.window == 0, text, subject)
