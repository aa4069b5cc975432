"""Checks of the RDMA NICs' lossless classes: PFC, DSCP map, trust, ECN and the class of RoCE traffic.

A NIC whose settings differ from its switch's or other NICs' loses packets under load; no counter tells why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from producers.audit.backend.rdma_ports import backend_interfaces, interfaces
from producers.audit.base import Checks, Finding, checked, stated
from producers.audit.host.base import Host, Missing
from producers.audit.host.network import Dcb
from schemas.audit_remedy import remedy

_CLASS: Final = re.compile(r"tclass=(\d+)")
CHECKS: Final = Checks()


def map_text(dscp_priority: dict[int, int]) -> str:
    """Return a DSCP map in short, such as `0-7:0 8-15:1`."""
    parts: list[list[int]] = []
    for dscp, priority in sorted(dscp_priority.items()):
        if parts and parts[-1][1] == dscp - 1 and parts[-1][2] == priority:
            parts[-1][1] = dscp
        else:
            parts.append([dscp, dscp, priority])
    return " ".join(f"{a}:{p}" if a == b else f"{a}-{b}:{p}" for a, b, p in parts)


def _settings(host: Host) -> dict[str, Dcb]:
    settings = {name: dcb for name in backend_interfaces(host) if (dcb := host.dcb(name)) is not None}
    if not settings:
        raise Missing("no NIC has settings of flow control (dcbnl)")
    return settings


def _equal(
    host: Host, fact: str, as_text: Callable[[Dcb], str | None], expected: str = ""
) -> Iterator[Finding]:
    """Yield two findings per NIC: whether its value is `expected`, else most NICs' value, and the value.

    NICs that do not report it are left out. Raises Missing if none does.
    """
    texts = {name: text for name, dcb in _settings(host).items() if (text := as_text(dcb)) is not None}
    if not texts:
        raise Missing(f"no NIC reports {fact}")
    majority = expected or Counter(texts.values()).most_common(1)[0][0]
    for name, text in texts.items():
        expectation = f"expected {expected}" if expected else f"most NICs have {majority}"
        yield checked(text == majority and text != "none", f"{fact} {text}, {expectation}", name)
        yield stated(fact, text, name)


@CHECKS.error("backend.pfc", "NICs have the same lossless priorities")
@remedy.monitor("mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0")
def pfc(host: Host) -> Iterator[Finding]:
    """Find NICs without PFC, or whose lossless priorities differ from the other NICs'."""
    yield from _equal(host, "pfc_priorities", _pfc_text)


def _pfc_text(dcb: Dcb) -> str | None:
    if dcb.pfc_priorities is None:
        return None
    return " ".join(map(str, sorted(dcb.pfc_priorities))) or "none"


@CHECKS.error("backend.trust", "NICs take the priority from DSCP")
@remedy.monitor("mlnx_qos -i INTERFACE --trust dscp")
def trust(host: Host) -> Iterator[Finding]:
    """Find NICs that take a packet's priority from another field than DSCP."""
    yield from _equal(host, "trust", _trust_text, "dscp")


def _trust_text(dcb: Dcb) -> str | None:
    """Return the packet field that a NIC trusts first; other fields count for packets without that field."""
    if dcb.trust is None:
        return None
    return dcb.trust[0] if dcb.trust else "none"


@CHECKS.error("backend.dscp-map", "NICs map DSCP to the same priorities")
@remedy.monitor("dcb app replace dev INTERFACE dscp-prio DSCP:PRIORITY")
def dscp_map(host: Host) -> Iterator[Finding]:
    """Find NICs whose map from DSCP to priority differs from the map of the other NICs."""
    yield from _equal(host, "dscp_map", lambda dcb: map_text(dcb.dscp_priority) or None)


@CHECKS.warning("backend.traffic-classes", "NICs have the same traffic classes")
@remedy.monitor("mlnx_qos -i INTERFACE --tcbw SHARES --prio_tc CLASSES")
def classes(host: Host) -> Iterator[Finding]:
    """Find NICs whose traffic classes or bandwidth shares differ from the other NICs'."""
    yield from _equal(host, "traffic_classes", _class_text)


def _class_text(dcb: Dcb) -> str | None:
    if dcb.priority_class is None or dcb.class_percent is None:
        return None
    of_priority, shares = (" ".join(map(str, values)) for values in (dcb.priority_class, dcb.class_percent))
    return f"[{of_priority}] shares [{shares}]"


@CHECKS.error("backend.ecn", "NICs mark and react on lossless priorities (ECN)")
@remedy.monitor("echo 1 > /sys/class/net/INTERFACE/ecn/roce_np/enable/PRIORITY, and roce_rp")
def congestion_marks(host: Host) -> Iterator[Finding]:
    """Find RoCE NICs without ECN on a lossless priority, or whose notifications have another DSCP."""
    marks = {}
    for name, dcb in _settings(host).items():
        folder = f"/sys/class/net/{name}/ecn"
        for priority in sorted(dcb.pfc_priorities or ()):
            for side in ("roce_np", "roce_rp"):
                value = host.read(f"{folder}/{side}/enable/{priority}")
                yield checked(value == "1", f"{side} of priority {priority} is {value}, expected 1", name)
        marks[name] = host.read(f"{folder}/roce_np/cnp_dscp")
    majority = Counter(marks.values()).most_common(1)[0][0]
    for name, value in marks.items():
        yield checked(
            value == majority, f"DSCP of congestion notifications {value}, most have {majority}", name
        )
        yield stated("cnp_dscp", value, name)


def traffic_class(text: str) -> int | None:
    """Return the traffic class that a NIC gives all RoCE packets; None if each program chooses the class."""
    match = _CLASS.search(text)
    return None if match is None else int(match[1])


@CHECKS.error("backend.lossless-class", "RoCE traffic takes a lossless priority")
@remedy.monitor("echo 106 > /sys/class/infiniband/DEVICE/tc/1/traffic_class, for DSCP 26")
def lossless_class(host: Host) -> Iterator[Finding]:
    """Find NICs that send RoCE traffic in a priority without PFC. The DSCP map gives the priority."""
    settings = _settings(host)
    any_port = False
    for port, name in interfaces(host):
        dcb = settings.get(name)
        if dcb is None or dcb.pfc_priorities is None or not dcb.dscp_priority:
            continue
        any_port = True
        roce_class = traffic_class(
            host.read(f"/sys/class/infiniband/{port.device}/tc/{port.number}/traffic_class")
        )
        if roce_class is None:
            mode = f"/sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_tos"
            roce_class = int(host.read(mode))
        priority = dcb.dscp_priority.get(roce_class >> 2, 0)
        marked = f"traffic class {roce_class} is DSCP {roce_class >> 2}"
        text = f"{marked}, priority {priority}; PFC on {_pfc_text(dcb)}"
        yield checked(priority in dcb.pfc_priorities, text, str(port))
        yield stated("roce_dscp", roce_class >> 2, str(port))
    if not any_port:
        raise Missing("no RoCE NIC has a DSCP map and PFC")
