"""Checks of a healthy, a degraded and a silent pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fabrictime.web.tabs.pipeline.health import DataAges, State, evaluate
from fabrictime.web.tabs.pipeline.queries import (
    LagRow,
    LatencyRow,
    PipelineRows,
    ProberRow,
    ThroughputRow,
)
from schemas.units import count_text, delay_text, percent_text, seconds_text

THROUGHPUT = ThroughputRow(10, 10.0, 400_000, 800, 6_000_000, 0, 0)
HEALTHY = PipelineRows(
    throughput_now=THROUGHPUT,
    throughput_recent=ThroughputRow(600, 600.0, 24_000_000, 48_000, 1, 0, 0),
    probers_now=ProberRow(8, 400_000, 0, 0, 0, 0, "h1/eth0", 0.0),
    probers_recent=ProberRow(8, 24_000_000, 0, 0, 0, 0, "h1/eth0", 0.0),
    lags=[LagRow("fabric.probes/1", 3, 0), LagRow("fabric.probes/0", 0, 0)],
    latency=LatencyRow(60, 160.0, 230.0),
    rejects_recent=0,
)
FRESH = DataAges(0.6, 0.5)


def test_a_healthy_pipeline_is_ok_throughout() -> None:
    checks = evaluate(HEALTHY, FRESH)
    assert {check.state for check in checks} == {State.OK}
    assert checks[0].name == "Samples"
    assert checks[0].figure == "40.0k/s"
    assert all(check.sentence.endswith(".") for check in checks)


@pytest.mark.parametrize(
    ("change", "name", "state", "text"),
    [
        ({"throughput_now": replace(THROUGHPUT, samples=0)}, "Samples", State.BAD, "No sample"),
        (
            {"throughput_now": replace(THROUGHPUT, samples=100_000)},
            "Samples",
            State.WARN,
            "Down from 40.0k/s",
        ),
        (
            {"probers_now": ProberRow(8, 390_000, 10_000, 0, 0, 0, "h3/eth1", 0.2)},
            "Probes lost",
            State.WARN,
            "h3/eth1 (20%). The tab Now names the links",
        ),
        ({"probers_recent": ProberRow(8, 1, 0, 3, 0, 0, "", 0)}, "Batches lost", State.WARN, "lost between"),
        ({"probers_recent": ProberRow(8, 1, 0, 0, 1, 2, "", 0)}, "Restarts, jumps", State.WARN, "2 clock"),
        ({"lags": [LagRow("fabric.probes/4", 70, 0)]}, "Stream lag", State.WARN, "fabric.probes/4"),
        ({"lags": [LagRow("fabric.probes/4", 7_000, 0)]}, "Stream lag", State.BAD, "1 of 1"),
        ({"lags": [LagRow("h1/eth0", -1, 0)]}, "Stream lag", State.OK, "publish reduced data"),
        (
            {"throughput_recent": replace(HEALTHY.throughput_recent, late=480)},
            "Late messages",
            State.WARN,
            "1%",
        ),
        ({"rejects_recent": 1}, "Rejects", State.WARN, "below"),
        ({"latency": LatencyRow(60, 200.0, 450.0)}, "Offset latency", State.WARN, "200 ms"),
        ({"latency": LatencyRow(60, 170.0, 5_000.0)}, "Offset latency", State.WARN, "170 ms"),
        ({"latency": LatencyRow(60, 2_500.0, 5_000.0)}, "Offset latency", State.BAD, "2.50 s"),
        ({"latency": LatencyRow(0, 0.0, 0.0)}, "Offset latency", State.BAD, "No window"),
    ],
)
def test_each_fault_shows_in_its_own_check_only(
    change: dict[str, Any], name: str, state: State, text: str
) -> None:
    checks = evaluate(replace(HEALTHY, **change), FRESH)
    (degraded,) = [check for check in checks if check.name == name]
    assert degraded.state == state
    assert text in degraded.sentence
    assert {check.state for check in checks if check.name != name} == {State.OK}


@pytest.mark.parametrize(
    ("ages", "state", "text"),
    [
        (DataAges(30.0, 0.5), State.BAD, "clocks are 0.5 s old"),
        (DataAges(None, 0.5), State.BAD, "No delay"),
        (DataAges(0.6, 40.0), State.BAD, "clocks are 40 s old"),
        (DataAges(0.6, None), State.WARN, "no clocks yet"),
    ],
)
def test_old_data_shows_in_its_own_check_only(ages: DataAges, state: State, text: str) -> None:
    *others, age = evaluate(HEALTHY, ages)
    assert (age.name, age.state) == ("Data age", state)
    assert text in age.sentence
    assert {check.state for check in others} == {State.OK}


def test_figures_have_three_digits_and_a_unit() -> None:
    assert [delay_text(x) for x in (None, 0.0, 12.34, 999.7, 1_234.0, 65_536.0, -3e6, 2.5e9)] == [
        "—",
        "0.00 ns",
        "12.3 ns",
        "1.00 µs",
        "1.23 µs",
        "65.5 µs",
        "-3.00 ms",
        "2.50 s",
    ]
    assert [seconds_text(x) for x in (-1, 0.04, 9.4, 12, 600, 7_200, 200_000)] == [
        "0.0 s",
        "0.0 s",
        "9.4 s",
        "12 s",
        "10 min",
        "2 h",
        "2 d",
    ]
    assert [count_text(x) for x in (0, 9_999, 80_000, 5e6)] == ["0", "9,999", "80.0k", "5.00M"]
    assert [percent_text(x) for x in (0, 1e-6, 0.00123, 0.048, 0.5)] == [
        "0%",
        "<0.01%",
        "0.12%",
        "4.8%",
        "50%",
    ]
