"""Lossless classes of the NICs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.faults_network import dcb
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.backend.qos import map_text, traffic_class
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus


def test_a_map_is_written_as_ranges() -> None:
    assert map_text({dscp: dscp >> 3 for dscp in range(16)} | {26: 3}) == "0-7:0 8-15:1 26:3"
    assert map_text({}) == ""


@given(st.dictionaries(st.integers(0, 63), st.integers(0, 7)))
def test_maps_with_the_same_text_are_equal(dscp_priority: dict[int, int]) -> None:
    read = {}
    for part in map_text(dscp_priority).split():
        span, _, priority = part.partition(":")
        first, _, last = span.partition("-")
        read |= dict.fromkeys(range(int(first), int(last or first) + 1), int(priority))
    assert read == dscp_priority


@given(st.text(max_size=60))
def test_a_traffic_class_is_a_number_or_none(text: str) -> None:
    assert traffic_class(text) is None or traffic_class(text) is not None
    assert traffic_class("Global tclass=106\nBase tclass=0") == 106


@pytest.mark.parametrize("check", ["pfc", "trust", "dscp-map", "traffic-classes", "ecn", "lossless-class"])
def test_nics_without_dcb_are_skipped(check: str) -> None:
    host = HEALTHY.copy()
    host.network["dcb"] = {}
    assert run_check(CHECKS[f"backend.{check}"], host).status is AuditStatus.SKIPPED


def test_nics_that_all_lack_pfc_fail() -> None:
    host = HEALTHY.copy()
    for name in ("eth0", "eth1"):
        dcb(name, pfc_priorities=frozenset())(host)
    result = run_check(CHECKS["backend.pfc"], host)
    assert result.status is AuditStatus.FAILED
    assert result.text.startswith("eth0: pfc_priorities none")


def test_settings_are_facts_for_the_fleet() -> None:
    result = run_check(CHECKS["backend.dscp-map"], HEALTHY)
    assert [each.fact.text for each in result.findings if each.fact] == ["26:3 48:6"] * 2
