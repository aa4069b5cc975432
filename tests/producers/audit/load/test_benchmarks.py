"""Parsers of load programs: their formats, and odd output."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit import recorded_active as recorded
from producers.audit.load import benchmarks
from schemas.unexpected import DATA_ERRORS

PARSERS = (
    benchmarks.perftest_figures,
    benchmarks.bus_bandwidth,
    benchmarks.diagnostic_outcomes,
    benchmarks.read_bandwidth,
    benchmarks.copy_bandwidths,
    benchmarks.suite_outcomes,
    benchmarks.burn_outcomes,
    benchmarks.gdrcopy_failures,
)


def test_figures_of_perftest() -> None:
    assert benchmarks.perftest_figures(recorded.BANDWIDTH.format(392.1))[3] == 392.1
    assert benchmarks.perftest_figures(recorded.LATENCY.format(1.06))[4] == 1.06


def test_all_reduce() -> None:
    assert benchmarks.bus_bandwidth(recorded.reduced(462.4)) == (462.4, 0)
    assert benchmarks.bus_bandwidth(recorded.reduced(462.4, wrong=3)) == (462.4, 3)


def test_outcomes() -> None:
    assert benchmarks.burn_outcomes("\tGPU 0: OK\n\tGPU 1: FAULTY\n") == {"GPU 0": True, "GPU 1": False}
    assert benchmarks.gdrcopy_failures("Total: 28, Passed: 27, Failed: 1, Waived: 0") == (27, 1)
    found = benchmarks.diagnostic_outcomes("a warning\n" + json.dumps(recorded.DIAGNOSTIC))
    assert found == {"software": "pass"} | {f"memory {gpu}": "pass" for gpu in range(8)}
    text = "[RESULT] [1.2] [act] gpu 9 pass: TRUE\n[RESULT] [1.3] [act] gpu 9 pass: FALSE\n"
    assert benchmarks.suite_outcomes(text) == {"[act] gpu 9": False}


@pytest.mark.parametrize("parse", PARSERS)
def test_text_without_a_result_is_an_error(parse: object) -> None:
    for text in ("", "{}", "command not found", '{"jobs": []}'):
        with pytest.raises(DATA_ERRORS):
            parse(text)  # type: ignore[operator]


@given(st.text(max_size=200) | st.sampled_from(sorted(recorded.commands().values())), st.integers(0, 400))
def test_odd_and_cut_output_raises_data_errors_only(text: str, length: int) -> None:
    for parse in PARSERS:
        try:
            parse(text[:length])  # type: ignore[operator]
        except DATA_ERRORS:
            continue
