"""The check of storage provisioning: settings, limits, no cluster."""

from __future__ import annotations

import json

from fabrictime.testbed.audit.recorded import HEALTHY
from fabrictime.testbed.audit.recorded_active import CLAIM
from producers.audit.base import run_check
from producers.audit.settings import CheckSettings
from producers.audit.storage.provisioning import CHECKS, CLEAN_UP_S, MAX_LIMIT_S
from schemas.records import AuditStatus

(CHECK,) = CHECKS


def test_a_bound_volume_is_a_fact_for_the_fleet() -> None:
    result = run_check(CHECK, HEALTHY)
    assert result.text == "a volume was bound after 3.2 s"
    fact = result.findings[0].fact
    assert fact is not None
    assert (fact.name, fact.number) == ("volume_bound_s", 3.2)


def test_it_is_skipped_without_a_namespace_or_a_cluster() -> None:
    host = HEALTHY.copy()
    host.commands[CLAIM] = json.dumps({"missing": "no cluster"})
    assert run_check(CHECK, host).status is AuditStatus.SKIPPED
    host.settings = CheckSettings()
    result = run_check(CHECK, host)
    assert (result.status, result.text) == (AuditStatus.SKIPPED, "audit.volume_namespace is not set")


def test_a_volume_that_comes_too_late_fails_and_odd_output_is_unknown() -> None:
    host = HEALTHY.copy()
    host.commands[CLAIM] = json.dumps({"bound_s": 90.0})
    assert run_check(CHECK, host).status is AuditStatus.FAILED
    host.commands[CLAIM] = "{}"
    assert run_check(CHECK, host).status is AuditStatus.UNKNOWN


def test_the_longest_wait_fits_the_limit_of_the_check() -> None:
    limit = CheckSettings.model_fields["volume_limit_s"].metadata
    assert any(getattr(each, "le", None) == MAX_LIMIT_S for each in limit)
    assert CHECK.limit_s > 2 * MAX_LIMIT_S + CLEAN_UP_S
