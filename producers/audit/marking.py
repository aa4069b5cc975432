"""Firewall rules (nftables) that set the DSCP or the priority of packets.

Where a NIC has no map of its own, such a rule is the host's DSCP map. Where it has one, the rule must agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from producers.audit.base import Checks, Finding, failed, passed, stated
from producers.audit.host import Host, Missing
from producers.audit.rdma import backend_interfaces
from schemas.audit_remedy import remedy

RULESET: Final = ("nft", "--numeric", "--json", "list", "ruleset")

_OLD_TARGETS: Final = frozenset({"CLASSIFY", "DSCP", "TOS"})

Node = Any  # a part of nft's JSON, whose shape depends on the expression
CHECKS: Final = Checks()


class Mark(NamedTuple):
    """A rule that marks packets, in short, and the priority that it gives to each DSCP."""

    text: str
    priorities: dict[int, int]


@CHECKS.error("backend.dscp-rules", "Firewall rules mark packets as the NICs and other hosts do")
@remedy.monitor("nft --handle list ruleset; nft delete rule FAMILY TABLE CHAIN handle NUMBER")
def dscp_rules(host: Host) -> Iterator[Finding]:
    """Find rules that give a DSCP another priority than the NIC's own map; state all rules that mark."""
    found = marks(host.run(*RULESET))
    for mark in found:
        wrong = list(_contradictions(host, mark.priorities))
        if wrong:
            yield failed(f"rule {mark.text}: {', '.join(wrong)}")
    text = "; ".join(sorted(mark.text for mark in found)) or "none"
    yield passed(f"rules that set DSCP or priority: {text}")
    yield stated("dscp_rules", text)


def _contradictions(host: Host, priorities: Mapping[int, int]) -> Iterator[str]:
    if not priorities:
        return
    try:
        names = backend_interfaces(host)
    except Missing:
        return
    for name in names:
        dcb = host.dcb(name)
        of_nic = {} if dcb is None else dcb.dscp_priority
        for dscp, priority in sorted(priorities.items()):
            if of_nic.get(dscp, priority) != priority:
                yield f"DSCP {dscp} has priority {priority}, {name} maps it to {of_nic[dscp]}"


def marks(text: str) -> list[Mark]:
    """Return the rules that mark packets. Raises ValueError for text that is no ruleset."""
    entries = json.loads(text)["nftables"]
    maps = {
        (each["map"]["family"], each["map"]["table"], f"@{each['map']['name']}"): each["map"].get("elem", [])
        for each in entries
        if "map" in each
    }
    found = []
    for rule in (each["rule"] for each in entries if "rule" in each):
        terms = rule["expr"]
        of_rule = {name: elements for (*table, name), elements in maps.items() if table == _table(rule)}
        for target in (each["mangle"] for each in terms if "mangle" in each):
            field = _field(target["key"])
            if field in ("dscp", "priority"):
                conditions = [_condition(each["match"]) for each in terms if "match" in each]
                value = _mapped(target["value"], of_rule)
                action = f"{field} = {_short(target['value'] if value is None else value)}"
                chosen = _priorities(terms, target["value"], value) if field == "priority" else {}
                found.append(Mark(", ".join([*conditions, action]), chosen))
        found += [Mark(f"iptables target {name}", {}) for name in _old_targets(terms)]
    return found


def _old_targets(terms: list[Node]) -> Iterator[str]:
    """Yield the targets of iptables that mark; nft shows their names without their values."""
    for term in terms:
        extension = term.get("xt")
        if extension and extension.get("name") in _OLD_TARGETS:
            yield extension["name"]


def _table(rule: Mapping[str, str]) -> list[str]:
    return [rule["family"], rule["table"]]


def _field(node: Node) -> str:
    """Return the field that an expression names, such as dscp, priority or dport."""
    if not isinstance(node, dict):
        return ""
    for kind in ("payload", "meta"):
        if kind in node:
            return str(node[kind].get("field", node[kind].get("key", "")))
    return ""


def _mapped(value: Node, maps: Mapping[str, Node]) -> dict[str, str] | None:
    """Return the pairs of a map, in the rule or of its table; None for another value."""
    if not (isinstance(value, dict) and "map" in value):
        return None
    data = value["map"]["data"]
    pairs = maps.get(data, []) if isinstance(data, str) else data["set"]
    return {_short(key): _short(mapped) for key, mapped in pairs}


def _priorities(terms: list[Node], value: Node, pairs: Mapping[str, str] | None) -> dict[int, int]:
    """Return DSCP to priority: of a map, or of a rule for one DSCP."""
    if pairs is None:
        chosen = [each["match"] for each in terms if "match" in each]
        pairs = {
            _short(each["right"]): _short(value)
            for each in chosen
            if _field(each["left"]) == "dscp" and each["op"] == "=="
        }
    return {int(dscp): _priority(text) for dscp, text in pairs.items() if dscp.isdecimal()}


def _priority(text: str) -> int:
    """Return the priority of a class id such as 0:b: tc writes both numbers in base 16."""
    return int(text.rpartition(":")[2], 16)


def _condition(match: Mapping[str, Node]) -> str:
    operator = "" if match["op"] == "==" else f"{match['op']} "
    return f"{_field(match['left']) or _short(match['left'])} {operator}{_short(match['right'])}"


def _short(node: Node) -> str:
    """Return a value as text without blanks."""
    if isinstance(node, dict) and "set" in node:
        node = node["set"]
    if isinstance(node, dict):
        return " ".join(f"{key}:{value}" for key, value in sorted(node.items()))
    if isinstance(node, list):
        return "{" + " ".join(_short(each) for each in node) + "}"
    return str(node)
