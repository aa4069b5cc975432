"""Firewall rules (nftables) that set the DSCP or the priority of packets.

Such a rule replaces the DSCP map of a NIC without one. If the NIC has a map, the rule must agree with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from producers.audit.backend.rdma_ports import backend_interfaces
from producers.audit.base import Checks, Finding, failed, passed, stated
from producers.audit.host.base import Host, Missing
from schemas.audit_remedy import remedy

RULESET: Final = ("nft", "--numeric", "--json", "list", "ruleset")

_OLD_TARGETS: Final = frozenset({"CLASSIFY", "DSCP", "TOS"})

Node = Any  # a part of nft's JSON, whose shape depends on the expression
CHECKS: Final = Checks()


class Mark(NamedTuple):
    """A rule that marks packets. `text` is the rule in short; `priorities` has the priority of each DSCP."""

    text: str
    priorities: dict[int, int]


@CHECKS.error("backend.dscp-rules", "Firewall rules mark packets as the NICs and other hosts do")
@remedy.monitor("nft --handle list ruleset; nft delete rule FAMILY TABLE CHAIN handle NUMBER")
def dscp_rules(host: Host) -> Iterator[Finding]:
    """Find rules that give a DSCP another priority than the NIC's own map; state all rules that mark."""
    rule_marks = marks(host.run(*RULESET))
    for mark in rule_marks:
        wrong = list(_contradictions(host, mark.priorities))
        if wrong:
            yield failed(f"rule {mark.text}: {', '.join(wrong)}")
    text = "; ".join(sorted(mark.text for mark in rule_marks)) or "none"
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
        (entry["map"]["family"], entry["map"]["table"], f"@{entry['map']['name']}"): entry["map"].get(
            "elem", []
        )
        for entry in entries
        if "map" in entry
    }
    rule_marks = []
    for rule in (entry["rule"] for entry in entries if "rule" in entry):
        terms = rule["expr"]
        of_rule = {name: elements for (*table, name), elements in maps.items() if table == _table(rule)}
        for target in (term["mangle"] for term in terms if "mangle" in term):
            field = _field(target["key"])
            if field in ("dscp", "priority"):
                conditions = [_condition(term["match"]) for term in terms if "match" in term]
                value = _mapped(target["value"], of_rule)
                action = f"{field} = {_short(target['value'] if value is None else value)}"
                priorities = _priorities(terms, target["value"], value) if field == "priority" else {}
                rule_marks.append(Mark(", ".join([*conditions, action]), priorities))
        rule_marks += [Mark(f"iptables target {name}", {}) for name in _old_targets(terms)]
    return rule_marks


def _old_targets(terms: list[Node]) -> Iterator[str]:
    """Yield the names of iptables targets that mark packets; nft does not show the values that they set."""
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
    """Return the keys and values of a map in the rule or in its table; None if the value is no map."""
    if not (isinstance(value, dict) and "map" in value):
        return None
    data = value["map"]["data"]
    pairs = maps.get(data, []) if isinstance(data, str) else data["set"]
    return {_short(key): _short(mapped) for key, mapped in pairs}


def _priorities(terms: list[Node], value: Node, pairs: Mapping[str, str] | None) -> dict[int, int]:
    """Return the priority by DSCP, from the pairs of a map, or from a rule that matches one DSCP."""
    if pairs is None:
        matches = [term["match"] for term in terms if "match" in term]
        pairs = {
            _short(match["right"]): _short(value)
            for match in matches
            if _field(match["left"]) == "dscp" and match["op"] == "=="
        }
    return {int(dscp): _priority(text) for dscp, text in pairs.items() if dscp.isdecimal()}


def _priority(text: str) -> int:
    """Return the priority in a class id such as `0:b`; its numbers are hexadecimal, as tc writes them."""
    return int(text.rpartition(":")[2], 16)


def _condition(match: Mapping[str, Node]) -> str:
    operator = "" if match["op"] == "==" else f"{match['op']} "
    return f"{_field(match['left']) or _short(match['left'])} {operator}{_short(match['right'])}"


def _short(node: Node) -> str:
    """Return a value of nft's JSON as a short text."""
    if isinstance(node, dict) and "set" in node:
        node = node["set"]
    if isinstance(node, dict):
        return " ".join(f"{key}:{value}" for key, value in sorted(node.items()))
    if isinstance(node, list):
        return "{" + " ".join(_short(element) for element in node) + "}"
    return str(node)
