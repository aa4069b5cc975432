"""Formats of the services that a host needs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.faults_network import prints
from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_services import SERVICES
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from producers.audit.frontend.services import availability, days_left, node_state, resolvers
from schemas.records import AuditStatus


def test_name_servers_are_read_of_resolv_conf() -> None:
    assert resolvers(
        "#nameserver 1.1.1.1\nnameserver 10.0.0.2\n nameserver  fd00::1 # b\noptions edns0\n"
    ) == [
        "10.0.0.2",
        "fd00::1",
    ]


def test_days_to_the_end_of_a_certificate() -> None:
    assert days_left("notAfter=Jan  2 00:00:00 1970 GMT\n", 0.0) == 1.0
    with pytest.raises(ValueError, match="time data"):
        days_left("notAfter=soon", 0.0)


def test_usable_and_all_nodes() -> None:
    assert availability("idle 20\nmixed 4\ndown* 5\ndrained 1\n") == (24, 30)
    assert availability("") == (0, 0)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("IDLE", AuditStatus.PASSED),
        ("ALLOCATED+RESERVED", AuditStatus.PASSED),
        ("IDLE*", AuditStatus.FAILED),
        ("MIXED+DRAIN", AuditStatus.FAILED),
        ("DOWN", AuditStatus.FAILED),
    ],
)
def test_states_of_slurm(state: str, status: AuditStatus) -> None:
    host = HEALTHY.copy()
    prints(("scontrol", "show", "node", "gpu012"), f"NodeName=gpu012\n   State={state} Weight=1\n")(host)
    assert run_check(CHECKS["frontend.slurm-node"], host).status is status


def test_a_failed_unit_has_a_mark() -> None:
    host = HEALTHY.copy()
    prints(SERVICES, "\u25cf kubelet.service loaded failed failed kubelet\n")(host)
    assert run_check(CHECKS["frontend.daemons"], host).text == "kubelet.service: failed, failed"


@given(st.text(max_size=100))
def test_odd_text_raises_value_error_at_worst(text: str) -> None:
    resolvers(text)
    node_state(text)
    for read in (availability, lambda each: days_left(each, 0.0)):
        with contextlib.suppress(ValueError):
            read(text)
