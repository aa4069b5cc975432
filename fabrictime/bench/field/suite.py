"""Runs the tests that decide field cases of running services, and counts the passed cases.

The cases of files and hosts are in `tests/field/`. A case that needs a running service, a broker or a clock
is a test of the suite, and is named here. The part needs a checkout, because an installed package has no
tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from fabrictime.bench import Figure, Missing, Progress, Value

ROOT: Final = Path(__file__).resolve().parents[3]
LIMIT_S: Final = 900
"""Time limit for all tests together, s."""

_RUNTIME: Final = "tests/fabrictime/runtime"
_PIPELINE: Final = "tests/streams/test_pipeline.py"
_STEPS_OF_LOG_TIME: Final = f"{_PIPELINE}::test_windows_resume_after_each_step_of_log_time_and_a_check_knows"
_ONE_REFUSES: Final = (
    f"{_RUNTIME}/test_supervisor.py::test_one_child_that_refuses_is_retried_and_the_others_go_on"
)

CASES: Final[Mapping[str, tuple[str, ...]]] = {
    "A10": (
        "tests/producers/test_addresses.py::test_a_missing_address_is_named_with_its_nic",
        "tests/producers/flows/test_service.py::test_a_nic_without_its_address_keeps_no_other_from_being_traced",
        "tests/producers/probe/test_service.py::test_a_prober_waits_for_its_address",
        _ONE_REFUSES,
    ),
    "A11": (
        _ONE_REFUSES,
        f"{_RUNTIME}/test_supervisor.py::test_child_that_works_in_part_reports_its_fault_and_its_end",
        "tests/producers/test_addresses.py::test_a_prober_is_ready_while_it_waits",
    ),
    "A12": (
        "tests/log/test_append_clock.py::test_a_system_clock_that_is_wrong_for_20_s_does_not_reach_the_log",
        "tests/fabrictime/commands/views/test_clock.py::"
        "test_a_check_passes_only_where_all_are_synced_now_and_within_the_bound",
        _STEPS_OF_LOG_TIME,
    ),
    "A13": (
        "tests/producers/inventory/test_nics.py::"
        "test_future_stamped_announcements_empty_no_fleet_not_even_after_a_restart",
        "tests/producers/inventory/test_nics.py::test_a_silent_nic_is_no_peer_by_the_readers_own_clock",
        _STEPS_OF_LOG_TIME,
    ),
    "A15": (
        "tests/schemas/kafka/test_admin.py::"
        "test_topics_with_create_time_are_refused_whatever_the_admin_api_supports",
        "tests/schemas/kafka/test_bounded_producer.py::test_an_acknowledgement_without_append_time_is_no_log_time",
    ),
    "A16": (
        "tests/fabrictime/commands/config/test_live_config.py::"
        "test_an_emergency_stop_needs_no_passwd_entry_of_its_user",
        f"{_RUNTIME}/test_user.py::test_a_user_without_a_passwd_entry_has_the_id_as_name",
        f"{_RUNTIME}/test_user.py::"
        "test_without_a_home_the_state_directory_is_this_users_own_and_logged_in_one_line",
    ),
    "A21": (
        "tests/schemas/test_settings_file.py::test_other_content_is_one_line",
        f"{_RUNTIME}/test_odd_settings.py::test_odd_settings_load_or_name_their_keys",
        f"{_RUNTIME}/test_odd_settings.py::test_odd_fleets_load_or_are_one_line",
    ),
    "A22": (f"{_RUNTIME}/test_user.py::test_home_is_expanded_in_every_path",),
    "A23": (f"{_RUNTIME}/test_fleet.py::test_a_fleet_of_100000_nics_loads_within_seconds",),
    "A24": (
        "tests/producers/test_addresses.py::test_an_address_in_gid_notation_is_the_ipv4_address",
        f"{_RUNTIME}/test_fleet.py::test_addresses_are_read_in_any_spelling_and_reused_by_other_shards",
    ),
    "A25": (f"{_RUNTIME}/test_fleet.py::test_impossible_values_are_refused_with_their_place",),
    "A26": (
        "tests/streams/clock/test_classify.py::"
        "test_a_slewed_clock_is_synced_and_a_faster_one_is_a_rate_change",
    ),
    "A27": ("tests/fabrictime/state/test_clocks.py::test_the_return_of_a_clock_does_not_hide_its_step",),
    "B5": ("tests/schemas/test_settings_file.py::test_encodings_and_suffixes_of_real_tools_are_read",),
    "B8": (f"{_RUNTIME}/test_fleet.py::test_impossible_values_are_refused_with_their_place",),
    "B9": (f"{_RUNTIME}/test_fleet.py::test_impossible_values_are_refused_with_their_place",),
    "C2": ("tests/schemas/kafka/test_admin.py::test_no_topic_is_created_beside_one_that_does_not_fit",),
    "C7": ("tests/grafana/test_push.py::test_each_refusal_names_the_problem_and_the_remedy",),
    "D6": (
        "tests/log/test_server.py::test_a_full_disk_refuses_loses_nothing_and_goes_on_when_space_is_free",
        "tests/log/test_server.py::test_a_full_disk_is_reported_to_the_service_manager_once_and_its_end",
        "tests/fabrictime/commands/up/test_live_table.py::test_the_reason_of_a_fault_is_shown",
        "tests/fabrictime/state/test_scorecard.py::"
        "test_a_service_that_does_not_work_fails_the_run_and_is_named",
    ),
    "D10": (
        "tests/producers/test_addresses.py::test_the_port_of_roce_is_refused_for_probes",
        f"{_RUNTIME}/test_config.py::test_roces_port_is_refused_for_udp_probes",
    ),
}
"""The tests that prove the right behaviour, as pytest names them, by row of field-cases.md."""

_LINE: Final = re.compile(r"^(tests/[^\s:]+::\w+)(?:\[.*\])?\s+(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Run the tests, in about three minutes; with `quick`, omit the tests that start a pipeline."""
    if not (ROOT / "tests").is_dir():
        return {"suite_cases_right": Missing(f"no tests in {ROOT}: run it in a checkout")}
    selected = {test for tests in CASES.values() for test in tests}
    if quick:
        selected = {test for test in selected if not test.startswith(_PIPELINE)}
    progress(f"suite: {len(CASES)} cases, {len(selected)} tests")
    options = ["-v", "-p", "no:cacheprovider", "--timeout", "300"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *sorted(selected)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"suite_cases_right": Missing(f"the tests took longer than {LIMIT_S} s")}
    by_test = outcomes(done.stdout.splitlines())
    if not by_test:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        return {"suite_cases_right": Missing(f"no test ran: {lines[-1][:200]}")}
    wrong = wrong_cases({case: [t for t in tests if t in selected] for case, tests in CASES.items()}, by_test)
    return {"suite_cases_right": _right(wrong, progress)}


def _right(wrong: Mapping[str, str], progress: Progress) -> Figure:
    for case, reason in wrong.items():
        progress(f"suite: {case}: {reason}")
    right = len(CASES) - len(wrong)
    note = "; ".join([f"{right} of {len(CASES)} cases", *(f"{case}: {why}" for case, why in wrong.items())])
    return Figure(right / len(CASES), note=note)


def outcomes(lines: Iterable[str]) -> dict[str, set[str]]:
    """Return each test's outcomes, over all its parameters, from the output of `pytest -v`."""
    by_test: dict[str, set[str]] = {}
    for line in lines:
        match = _LINE.match(line)
        if match is not None:
            by_test.setdefault(match[1], set()).add(match[2])
    return by_test


def wrong_cases(cases: Mapping[str, Sequence[str]], by_test: Mapping[str, set[str]]) -> dict[str, str]:
    """Return, by case, the reason of its first test that failed, did not run or is missing."""
    wrong: dict[str, str] = {}
    for case, tests in cases.items():
        bad = [
            f"{test.rpartition('::')[2]} {', '.join(sorted(by_test.get(test, {'did not run'}))).lower()}"
            for test in tests
            if by_test.get(test) != {"PASSED"}
        ]
        if bad or not tests:
            wrong[case] = bad[0] if bad else "no test"
    return wrong
