"""All checks on a recorded host: healthy, with planted faults, with parts taken away, with odd content."""

from __future__ import annotations

import random
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit import faults, faults_network
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit import checks
from producers.audit.base import Check, Checks, run_check
from producers.audit.checks import CHECKS
from producers.audit.load import one_host
from schemas.records import AuditCategory, AuditStatus

FAULTS = faults.FAULTS | faults_network.FAULTS
BAD = (AuditStatus.FAILED, AuditStatus.UNKNOWN)
DRAWS = 1_000
NAMES = HEALTHY.readable()
FOLDER = Path(checks.__file__).parent


@cache
def touched(check_id: str) -> set[str]:
    """Files, commands and reads of the network that a check uses."""
    host = HEALTHY.copy()
    run_check(CHECKS[check_id], host)
    return host.touched


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_a_healthy_host_passes_every_check(check: Check) -> None:
    result = run_check(check, HEALTHY)
    assert result.status is AuditStatus.PASSED, result.text


@pytest.mark.parametrize("category", [AuditCategory.FRONTEND, AuditCategory.BACKEND])
def test_checks_of_networks_have_an_id_a_remedy_and_a_short_limit(category: AuditCategory) -> None:
    of_category = [check for check in CHECKS.values() if check.check_id.startswith(f"{category.lower()}.")]
    for check in of_category:
        assert check.category is category
        assert "\n" not in check.remedy
        assert 0 < check.limit_s <= 120 or check in one_host.CHECKS
    assert len(of_category) == sum(check.category is category for check in CHECKS.values())


def test_checks_of_all_modules_have_different_ids() -> None:
    modules = [
        import_module(f"producers.audit.{path.parent.name}.{path.stem}") for path in FOLDER.glob("*/*.py")
    ]
    groups = [found for module in modules if isinstance(found := getattr(module, "CHECKS", None), Checks)]
    declared = [check for group in groups for check in group]
    assert sorted(check.check_id for check in declared) == sorted(CHECKS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_its_check_and_no_other(fault: str) -> None:
    check_id, plant = FAULTS[fault]
    host = HEALTHY.copy()
    plant(host)
    results = {
        each: run_check(check, host.copy() if host.later or host.under_load else host)
        for each, check in CHECKS.items()
    }
    wrong = {each: result.text for each, result in results.items() if result.status in BAD}
    assert set(wrong) == {check_id}
    assert results[check_id].status is AuditStatus.FAILED


def test_every_check_was_seen_to_fail() -> None:
    assert {check_id for check_id, _ in FAULTS.values()} == set(CHECKS)


def test_unreadable_values_never_pass() -> None:
    rng = random.Random(5)
    refused = 0
    for _ in range(DRAWS):
        host = HEALTHY.copy()
        host.denied = set(rng.sample(NAMES, rng.randint(1, 20)))
        readers = [each for each in CHECKS if touched(each) & host.denied]
        for check_id in rng.sample(readers, min(len(readers), 8)):
            host.refusals = 0
            result = run_check(CHECKS[check_id], host)
            if host.refusals:
                refused += 1
                assert result.status is AuditStatus.UNKNOWN, (check_id, host.denied, result.text)
    assert refused > DRAWS


def test_a_host_without_the_parts_skips_their_checks() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "infiniband" not in path}
    for check_id in ("backend.port-state", "backend.gids", "backend.character-devices"):
        result = run_check(CHECKS[check_id], host)
        assert result.status is AuditStatus.SKIPPED
        assert "infiniband" in result.text or "RDMA" in result.text


@given(st.sampled_from(sorted(HEALTHY.files)), st.text(max_size=60) | st.binary(max_size=60))
def test_odd_content_of_a_file_ends_no_check(path: str, content: str | bytes) -> None:
    host = HEALTHY.copy()
    host.files[path] = content
    for check_id in (each for each in CHECKS if path in touched(each)):
        result = run_check(CHECKS[check_id], host)
        assert result.text
        assert result.text.isprintable()


@given(st.sampled_from(sorted(HEALTHY.commands)), st.text(max_size=200))
def test_odd_output_of_commands_ends_no_check(command: tuple[str, ...], output: str) -> None:
    host = HEALTHY.copy()
    host.commands[command] = output
    for check_id in (each for each in CHECKS if command[0] in touched(each)):
        assert run_check(CHECKS[check_id], host).text.isprintable()


def test_huge_ranges_of_processors_and_ports_take_no_memory() -> None:
    host = HEALTHY.copy()
    host.files |= {
        "/sys/devices/system/cpu/online": "0-99999999999",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "0-99999999999",
    }
    assert run_check(CHECKS["node.governor"], host).status is AuditStatus.UNKNOWN
    assert run_check(CHECKS["frontend.port-clash"], host).status is AuditStatus.PASSED


@pytest.mark.timeout(30)
@pytest.mark.parametrize("line", ["[" * 100_000, " " * 100_000 + "x", "[a] " * 25_000])
def test_a_long_line_takes_no_time(line: str) -> None:
    host = HEALTHY.copy()
    start = "2026-11-18 10:35:41.231 [14] [110] CRITICAL"
    for command in host.commands:
        host.commands[command] = f"{start if command[0] == 'tail' else '[    1.000000]'} {line}\n"
    for name in ("kernel-log.collective-library", "ufm-events", "self-test", "link-quality", "link-flaps"):
        check_id = name if name in CHECKS else f"backend.{name}"
        assert run_check(CHECKS[check_id], host).text.isprintable()
