"""Rates of counters, in the window and since boot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.backend.counters import rates
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus

KEY = ("mlx5_0/1", "symbol_error")
NUMBERS = st.integers(0, 2**63)


def test_a_rate_is_of_the_window_and_of_the_time_since_boot() -> None:
    found = rates({KEY: 10}, {KEY: 16}, 2.0, 160.0)[KEY]
    assert found == (16, 3.0, 0.1, 2.0)


def test_a_counter_that_was_reset_grew_from_zero() -> None:
    assert rates({KEY: 900}, {KEY: 4}, 2.0, 100.0)[KEY].window == 2.0


def test_a_counter_that_one_reading_lacks_is_left_out() -> None:
    assert rates({}, {KEY: 4}, 2.0, 100.0) == {}


@given(NUMBERS, NUMBERS)
def test_rates_are_never_negative(before: int, after: int) -> None:
    found = rates({KEY: before}, {KEY: after}, 2.0, 0.0)[KEY]
    assert found.window >= 0
    assert found.mean >= 0


def test_the_text_has_the_rate_its_unit_and_its_limit() -> None:
    host = HEALTHY.copy()
    host.later["/sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error"] = "2"
    result = run_check(CHECKS["backend.error-rates"], host)
    assert result.status is AuditStatus.FAILED
    assert result.text == "mlx5_2/1: symbol_error 1,800/h, expected at most 120; 2 in all"


def test_one_event_in_the_window_shows_no_rate() -> None:
    host = HEALTHY.copy()
    host.later["/sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error"] = "1"
    assert run_check(CHECKS["backend.error-rates"], host).status is AuditStatus.PASSED


def test_without_an_efa_device_its_counters_are_skipped() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "rdmap" not in path}
    assert run_check(CHECKS["backend.efa-rates"], host).status is AuditStatus.SKIPPED
