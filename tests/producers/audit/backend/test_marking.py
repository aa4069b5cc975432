"""Rules of nftables that mark packets, as recorded and as the kernel has them."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.backend.marking import RULESET, marks
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus
from schemas.unexpected import DATA_ERRORS

CHECK = CHECKS["backend.dscp-rules"]
RULES = """
table inet qos {
  map classes { type dscp : classid; elements = { 26 : 0:3, 48 : 0:b } }
  chain out {
    type filter hook postrouting priority mangle;
    meta priority set ip dscp map @classes
    ip dscp 26 meta priority set 0:5
    meta priority set ip dscp map { 26 : 0:3, 49 : 0:6 }
    oifname "eth0" udp dport {4791, 22} ip dscp set 34
    tcp dport 443 accept
  }
}
"""


def ruleset(*expressions: list[dict[str, Any]]) -> str:
    rules = [
        {"rule": {"family": "ip", "table": "t", "chain": "c", "expr": expression}}
        for expression in expressions
    ]
    return json.dumps({"nftables": rules})


def of(text: str) -> Any:
    host = HEALTHY.copy()
    host.commands[RULESET] = text
    return run_check(CHECK, host)


def test_a_rule_that_agrees_with_the_nics_is_a_fact() -> None:
    result = run_check(CHECK, HEALTHY)
    assert result.status is AuditStatus.PASSED
    assert [each.fact.text for each in result.findings if each.fact] == ["dscp 26, priority = 0:3"]


def test_a_host_without_rules_states_none_and_one_without_nft_is_skipped() -> None:
    result = of(ruleset())
    assert [each.fact.text for each in result.findings if each.fact] == ["none"]
    host = HEALTHY.copy()
    del host.commands[RULESET]
    assert run_check(CHECK, host).status is AuditStatus.SKIPPED


def test_a_rule_against_the_map_of_a_nic_is_named_with_both_priorities() -> None:
    to_class_0 = {"mangle": {"key": {"meta": {"key": "priority"}}, "value": "0:0"}}
    dscp_26 = {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "dscp"}}, "right": 26}}
    result = of(ruleset([dscp_26, to_class_0]))
    assert result.status is AuditStatus.FAILED
    assert "DSCP 26 has priority 0, eth0 maps it to 3" in result.text
    # every DSCP but this one, and all packets: no DSCP is named
    for expression in ([dscp_26 | {"match": dscp_26["match"] | {"op": "!="}}, to_class_0], [to_class_0]):
        assert of(ruleset(expression)).status is AuditStatus.PASSED


def test_targets_of_iptables_are_facts_by_name() -> None:
    old = [{"xt": {"type": "target", "name": name}} for name in ("DSCP", "ACCEPT")]
    assert [mark.text for mark in marks(ruleset(old, [{"xt": None}]))] == ["iptables target DSCP"]


@pytest.mark.skipif(not shutil.which("nft"), reason="no nft (Debian: apt-get install nftables)")
def test_rules_in_the_kernel_are_read() -> None:
    program = f"nft -f - <<E\n{RULES}\nE\n{' '.join(RULESET)}"
    command = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if "unshare" in done.stderr:
        pytest.skip(f"no namespaces: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = {mark.text: mark.priorities for mark in marks(done.stdout)}
    assert found == {
        "nfproto 2, priority = 26:0:3 48:0:b": {26: 3, 48: 11},
        "dscp 26, priority = 0:5": {26: 5},
        "priority = 26:0:3 49:0:6": {26: 3, 49: 6},
        "oifname eth0, dport {22 4791}, dscp = 34": {},
    }


NODES = st.recursive(
    st.none()
    | st.integers(-5, 300)
    | st.text(max_size=5)
    | st.sampled_from(["0:3", "@m", "dscp", "priority"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "match",
                    "mangle",
                    "map",
                    "key",
                    "value",
                    "data",
                    "set",
                    "meta",
                    "payload",
                    "field",
                    "left",
                    "op",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(NODES, max_size=4), NODES)
def test_another_form_of_json_is_rejected_as_data(expressions: list[Any], entry: Any) -> None:
    rule = {"rule": {"family": "ip", "table": "t", "expr": expressions}}
    try:
        found = marks(json.dumps({"nftables": [rule, entry]}))
    except DATA_ERRORS:
        return
    assert all(isinstance(mark.text, str) for mark in found)
