"""Reads the growth of the counters of a host's NICs that show congestion and loss.

Drivers name the same counter differently. Each field of `NicCounter` lists the names in order of preference;
if a counter has several parts, they are added up. `producers.ports` reads the counters.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from producers.netns import in_netns
from producers.ports.device import PortCounters
from producers.settings import NicSettings
from schemas.ids import nic_id
from schemas.records import NicCounter

_log = logging.getLogger(__name__)

FIELDS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "cnp_sent": (("rdma:np_cnp_sent",), ("rdma:tx_cnp_pkts",), ("rdma:cnpSent",), ("rdma:tx_rdma_cnp_pkts",)),
    "cnp_received": (
        ("rdma:rp_cnp_handled",),
        ("rdma:rx_cnp_pkts",),
        ("rdma:cnpHandled",),
        ("rdma:rx_rdma_cnp_pkts",),
    ),
    "ce_received": (
        ("rdma:np_ecn_marked_roce_packets",),
        ("rdma:rx_ecn_marked_pkts",),
        ("rdma:RxECNMrkd",),
        ("rdma:rx_rdma_ecn_pkts",),
        ("rx_ecn_mark",),
    ),
    "retransmits": (
        (
            "rdma:local_ack_timeout_err",
            "rdma:packet_seq_err",
            "rdma:implied_nak_seq_err",
            "rdma:roce_adp_retrans",
        ),
        ("rdma:to_retransmits", "rdma:seq_err_naks_rcvd"),
        ("rdma:tcpRetransSegs",),
        ("rdma:retrans_pkts",),
        ("rdma:tx_rdma_retx_pkts",),
    ),
    "out_of_sequence": (("rdma:out_of_sequence",), ("rdma:oos_drop_count",)),
    "pause_received": (
        ("rx_global_pause", "rx_prio_pause"),
        ("rx_pfc_frames",),
        ("rx_pause_ctrl_phy",),
        ("rx_pause_frames",),
        ("rx_pause",),
        ("link_xoff_rx",),
    ),
    "pause_sent": (
        ("tx_global_pause", "tx_prio_pause"),
        ("tx_pfc_frames",),
        ("tx_pause_ctrl_phy",),
        ("tx_pause_frames",),
        ("tx_pause",),
        ("link_xoff_tx",),
    ),
}
"""Counter names by field, of the drivers mlx5, bnxt_re, irdma with ice, EFA, ionic and others. Those with
`rdma:` are counters of the RDMA port; the others are those of ethtool."""

_PRIORITY: Final = re.compile(
    r"(?:mac_)?([rt]x)_(?:prio\d_pause|pfc_ena_frames_pri\d|pfc_pri\d_pkt_num|ppp\d|priority_\d_xoff(?:\.nic)?)"
)
"""Names of counters of one priority's pause frames, of the drivers mlx5, bnxt, hns3, cxgb4 and ice."""
_TCP: Final = {
    "retransmits": ("Tcp", "RetransSegs"),
    "ce_received": ("IpExt", "InCEPkts"),
    "out_of_sequence": ("TcpExt", "TCPOFOQueue"),
}
_MAX: Final = 2**62


def counter_values(counters: Mapping[str, int]) -> dict[str, int]:
    """Convert a NIC's counters, by driver's name, to the fields of `NicCounter` that the NIC has."""
    values = {**counters, **_priority_sums(counters)}
    names_by_field = {
        field: next((names for names in choices if not values.keys().isdisjoint(names)), ())
        for field, choices in FIELDS.items()
    }
    return {
        field: sum(values.get(name, 0) for name in names) for field, names in names_by_field.items() if names
    }


def _priority_sums(counters: Mapping[str, int]) -> dict[str, int]:
    """Sum pause counters such as rx_prio3_pause over all priorities; return {} if there are none."""
    sums: dict[str, int] = {}
    for key, value in counters.items():
        match = _PRIORITY.fullmatch(key)
        if match is not None:
            name = f"{match[1]}_prio_pause"
            sums[name] = sums.get(name, 0) + value
    return sums


def tcp_values(*texts: str) -> dict[str, int]:
    """Parse the TCP fields of `NicCounter` from the content of /proc/net/snmp and /proc/net/netstat."""
    tables: dict[str, dict[str, str]] = {}
    for text in texts:
        lines = text.splitlines()
        for names, values in zip(lines[::2], lines[1::2], strict=False):
            table, _, columns = names.partition(":")
            tables[table] = dict(zip(columns.split(), values.partition(":")[2].split(), strict=False))
    return {
        field: int(value)
        for field, (table, name) in _TCP.items()
        if (value := tables.get(table, {}).get(name, "")).isdecimal()
    }


def _read_tcp() -> dict[str, int]:
    net = Path("/proc/thread-self/net")
    return tcp_values(*((net / name).read_text(encoding="ascii") for name in ("snmp", "netstat")))


class NicCounters:
    """Reads the counters of one host's NICs. Raises OSError if they cannot be opened.

    The TCP counters of a host count for all of its NICs together. So they are used only on hosts with a
    single NIC, for fields that the NIC's own counters lack.
    """

    def __init__(self, nics: Sequence[NicSettings], sysfs: Path = Path("/sys")) -> None:
        self._ports = {
            nic_id(nic.host, nic.device): PortCounters(nic.rdma_device or nic.device, nic.netns, sysfs)
            for nic in nics
        }
        self._read_shared: Callable[[], dict[str, int]] | None = None
        if len(nics) == 1:
            self._read_shared = lambda: in_netns(nics[0].netns, _read_tcp)
        self._last: dict[str, dict[str, int]] = {}
        self._total: dict[str, dict[str, int]] = {}

    def read(self) -> None:
        """Read the counters of all NICs. The totals start at zero with the first reading."""
        for nic, port in self._ports.items():
            now = counter_values(port.read())
            if self._read_shared is not None:
                now = {**self._shared(), **now}
            last = self._last.get(nic, now)
            total = self._total.setdefault(nic, {})
            for field, value in now.items():
                grown = value - last.get(field, value)
                total[field] = min(total.get(field, 0) + max(0, grown), _MAX)
            self._last[nic] = now

    def _shared(self) -> dict[str, int]:
        try:
            return self._read_shared() if self._read_shared is not None else {}
        except OSError as error:
            _log.warning("counters of TCP: %s", error)
            self._read_shared = None
            return {}

    def totals(self) -> dict[str, dict[str, int]]:
        """Return, by NIC, the growth of each `NicCounter` field since the first reading."""
        return {nic: dict(total) for nic, total in self._total.items()}

    @staticmethod
    def increments(
        before: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]], nics: Sequence[str]
    ) -> list[NicCounter]:
        """Return the growth of the counters of `nics` from `before` to `now`, without NICs that have none."""
        counters: list[NicCounter] = []
        for nic in nics:
            grown = {
                field: value - before.get(nic, {}).get(field, 0) for field, value in now.get(nic, {}).items()
            }
            if any(grown.values()):
                counters.append(
                    {
                        "nic": nic,
                        "cnp_sent": grown.get("cnp_sent"),
                        "cnp_received": grown.get("cnp_received"),
                        "ce_received": grown.get("ce_received"),
                        "retransmits": grown.get("retransmits"),
                        "out_of_sequence": grown.get("out_of_sequence"),
                        "pause_received": grown.get("pause_received"),
                        "pause_sent": grown.get("pause_sent"),
                    }
                )
        return counters

    def close(self) -> None:
        """Close the sockets through which the counters are read."""
        for port in self._ports.values():
            port.close()
