"""Bonds as the kernel shows them."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import BOND
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.frontend.bonds import Member, members
from schemas.records import AuditStatus


def test_members_have_a_state_and_an_aggregator() -> None:
    assert members(BOND) == ("1", [Member("eno5", "up", "1"), Member("eno6", "up", "1")])


def test_a_bond_without_lacp_has_no_aggregator() -> None:
    text = "Bonding Mode: active-backup\nMII Status: up\n\nSlave Interface: a\nMII Status: down\n"
    assert members(text) == ("", [Member("a", "down", "")])


@given(st.text(max_size=200))
def test_odd_text_raises_key_error_at_worst(text: str) -> None:
    for each in (text, f"Slave Interface: {text}", BOND + text):
        with contextlib.suppress(KeyError):
            members(each)


def test_a_host_without_bonds_is_skipped() -> None:
    host = HEALTHY.copy()
    del host.files["/proc/net/bonding/bond0"]
    assert run_check(CHECKS["frontend.bonds"], host).status is AuditStatus.SKIPPED
