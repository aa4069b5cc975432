"""Trends of links and modules: drawn series without and with a planted trend, resets, swaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.audit.fabric import Entry, fabric_of
from schemas.records import AuditSeverity, AuditStatus
from schemas.topics import AUDIT
from schemas.topology import Topology
from streams.audit.fabric.checks import fabric_results
from streams.audit.hosts.compare import compare
from streams.audit.hosts.part_history import Part, PartHistory, Reading
from streams.audit.hosts.trends import (
    DAY_NS,
    DRIFTS,
    daily,
    drift,
    error_margins,
    part_trends,
    recurrence,
    wilson,
)
from streams.audit.results import Scope
from tests.streams.audit.facts import stated

BEGIN_NS = 1_764_400_000_000_000_000
RX = "module_rx_power_margin_db"
TEMPERATURE = "module_temperature_margin_celsius"
DRAWS = 2_000


def readings(values, per_day=4):
    """Return readings at even distances."""
    return [
        Reading(BEGIN_NS + round(number * DAY_NS / per_day), value) for number, value in enumerate(values)
    ]


def noise(rng, count, sigma, *, correlation=0.0, step=0.0):
    """Return normal noise whose values of one day and the next are correlated, in steps of the resolution."""
    draws = rng.normal(0, sigma, count)
    values = [draws[0]]
    for draw in draws[1:]:
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * draw)
    return [round(value / step) * step if step else value for value in values]


def module(day, hour=0.0, serial="A", host="h1", subject="eth0", **facts):
    """Return a result of a host's modules on a day."""
    at_ns = BEGIN_NS + round((day + hour / 24) * DAY_NS)
    named = {name: {subject: value} for name, value in facts.items()}
    return stated(host, {"module_serial": {subject: serial}, **named}, checked_ns=at_ns, run=f"r{day}-{hour}")


def trends(results):
    history = PartHistory()
    for result in results:
        history.take(result)
    return [
        (finding.host, finding.subject, finding.text)
        for finding in part_trends(history)
        if finding.status is AuditStatus.FAILED
    ]


@pytest.mark.parametrize(
    ("fact", "margin", "draw"),
    [
        (RX, 6.0, lambda rng: noise(rng, 84, 0.3, step=0.1)),
        (RX, 2.0, lambda rng: noise(rng, 84, 0.3, correlation=0.8)),
        (
            TEMPERATURE,
            20.0,
            lambda rng: [
                value + 4 * math.sin(number * math.pi / 2 + 1)
                for number, value in enumerate(noise(rng, 84, 2.0, correlation=0.5, step=1.0))
            ],
        ),
        ("raw_bit_error_ratio", 3.0, lambda rng: noise(rng, 84, 0.4)),
    ],
)
def test_noise_has_no_trend(fact, margin, draw):
    """At most 2 of 2,000 series of 21 days have a trend, also with nights and correlated noise."""
    rng = np.random.default_rng(41)
    series = (readings([margin + value for value in draw(rng)]) for _ in range(DRAWS))
    false = sum(drift(one, DRIFTS[fact]) is not None for one in series)
    assert false / DRAWS <= 0.001


def test_a_planted_slope_is_in_the_interval_and_the_day_of_the_limit_is_right():
    """At least 97% of 2,000 modules that lose 0.2 dB a day are named, and the interval is right."""
    rng = np.random.default_rng(42)
    named = covered = 0
    for _ in range(DRAWS):
        days, per_day = int(rng.integers(10, 21)), int(rng.integers(1, 5))
        values = noise(rng, days * per_day, 0.25, step=0.1)
        one = readings([8 - 0.2 * n / per_day + value for n, value in enumerate(values)], per_day)
        trend = drift(one, DRIFTS[RX])
        if trend is not None:
            named += 1
            covered += trend.min_loss_per_day <= 0.2 <= trend.max_loss_per_day
            truth = 40 - (days * per_day - 1) / per_day
            assert trend.days_left[1] <= truth * 1.35
            assert trend.days_left[2] >= truth * 0.75
    assert named / DRAWS >= 0.97
    assert covered / named >= 0.97


def test_a_slope_far_from_the_limit_and_one_that_recovers_are_no_findings():
    assert drift(readings([40 - 0.1 * n / 4 for n in range(84)]), DRIFTS[RX]) is None
    assert drift(readings([4 + 0.1 * n / 4 for n in range(84)]), DRIFTS[RX]) is None
    assert drift(readings([4 - 0.3 * n / 4 for n in range(84)]), DRIFTS[RX]) is not None


def test_few_days_have_no_slope():
    assert drift(readings([9 - n / 4 for n in range(6 * 4)]), DRIFTS[RX]) is None
    assert drift(readings([9 - n / 4 for n in range(7 * 4)]), DRIFTS[RX]) is not None
    assert drift([], DRIFTS[RX]) is None


def test_single_bad_readings_do_not_move_a_slope():
    values = [8 - 0.2 * n / 4 for n in range(60)]
    values[3] = values[30] = values[59] = -30.0
    trend = drift(readings(values), DRIFTS[RX])
    assert trend is not None
    assert trend.loss_per_day == pytest.approx(0.2, rel=0.05)


def test_only_readings_after_a_swap_count():
    old = [module(day, serial="A", **{RX: 8 - 0.3 * day}) for day in range(12)]
    assert [(host, subject) for host, subject, _ in trends(old)] == [("h1", "eth0")]
    assert "received optical power falls by 0.3 dB a day" in trends(old)[0][2]
    new = [module(day, serial="B", **{RX: 9.0}) for day in range(12, 16)]
    assert trends([*old, *new]) == []
    assert trends([*new, *old]) == []


def test_a_swap_to_a_worse_module_is_no_trend():
    results = [module(day, serial="AB"[day >= 7], **{RX: 8.0 if day < 7 else 2.0}) for day in range(14)]
    assert trends(results) == []


def link(day, host="h1", **facts):
    return module(day, host=host, **facts)


def test_a_link_that_goes_down_once_a_day_is_named():
    findings = trends([link(day, link_down_total=float(day)) for day in range(6)])
    assert [(host, subject) for host, subject, _ in findings] == [("h1", "eth0")]
    assert "the link went down on 5 of 5 days, 5 in all" in findings[0][2]


def test_a_burst_a_reset_and_rare_events_do_not_recur():
    assert trends([link(day, link_down_total=40.0 * (day > 3)) for day in range(12)]) == []
    assert trends([link(day, link_down_total=float(9 - day)) for day in range(9)]) == []
    assert trends([link(day, link_down_total=float(day // 9)) for day in range(20)]) == []


def test_rare_drawn_events_do_not_recur():
    """Links that go down once in 100 days, with a reboot that resets the counter once in 10 days."""
    rng = np.random.default_rng(43)
    false = 0
    for _ in range(DRAWS):
        count, values = 0.0, []
        for _ in range(21):
            count = 0.0 if rng.random() < 0.1 else count + float(rng.random() < 0.01)
            values.append(count)
        false += recurrence(readings(values, 1)) is not None
    assert false / DRAWS <= 0.003


def test_errors_of_an_nvlink_belong_to_its_gpu():
    def gpu(day, serial, count):
        facts = {"gpu_serial": {"GPU 3": serial}, "nvlink_errors_total": {"GPU 3/NVLink 7": count}}
        return stated("h1", facts, checked_ns=BEGIN_NS + day * DAY_NS, run=f"r{day}")

    old = [gpu(day, "GPU-a", 5.0 * day) for day in range(5)]
    assert [(host, subject) for host, subject, _ in trends(old)] == [("h1", "GPU 3/NVLink 7")]
    assert trends([*old, gpu(5, "GPU-b", 30.0), gpu(6, "GPU-b", 30.0)]) == []


def test_error_ratios_are_those_of_intervals_and_survive_a_reset():
    errors = readings([0.0, 1e6, 3e6, 10.0, 1e3 + 10], 1)
    bits = readings([0.0, 1e14, 2e14, 1e10, 1e14 + 1e10], 1)
    margins = [reading.value for reading in error_margins(errors, bits)]
    assert margins == pytest.approx([3.0, 3 - math.log10(2), 6.0], abs=1e-3)


def test_rising_errors_before_fec_are_found_below_the_mean_since_boot():
    total, results = 0.0, []
    for day in range(15):
        total += 3e16 * 10 ** (-9 + 0.2 * day)
        results.append(link(day, raw_bit_errors_total=total, received_bits_total=3e16 * (day + 400)))
    findings = trends(results)
    assert len(findings) == 1
    assert "bit error ratio before FEC rises by 0.2 decades a day" in findings[0][2]


@given(st.lists(st.tuples(st.integers(0, 40 * DAY_NS), st.floats(-1e18, 1e18)), max_size=60), st.randoms())
def test_any_readings_in_any_order_have_one_answer(rows, random):
    one = [Reading(*row) for row in rows]
    shuffled = random.sample(one, len(one))
    assert drift(one, DRIFTS[RX]) == drift(shuffled, DRIFTS[RX])
    assert recurrence(one) == recurrence(shuffled)
    assert len(daily(one)) <= 21 if one else True


@given(st.integers(1, 500), st.integers(0, 500))
def test_the_interval_of_a_share_holds_it(total, count):
    low, high = wilson(min(count, total), total)
    assert 0 <= low <= min(count, total) / total <= high <= 1


def test_the_log_replayed_gives_a_warning_of_the_fabric():
    results = [module(day, hour, **{RX: 8 - 0.3 * day}) for day in range(12) for hour in range(0, 24, 3)]
    fabric = fabric_of(
        [], (Entry(AUDIT.name, result["run"], result) for result in results), Topology(), before_ns=0, peers=1
    )
    scope = Scope.of(results)
    [result] = fabric_results(fabric, scope, ["fabric.trends"])
    assert (result["host"], result["status"], result["severity"]) == (
        "h1",
        AuditStatus.FAILED,
        AuditSeverity.WARNING,
    )
    assert result["findings"][0]["subject"] == "eth0"
    assert "its limit is" in result["text"]


def test_without_readings_the_check_is_skipped_and_without_trends_it_passes():
    history = PartHistory()
    assert [finding.status for finding in part_trends(history)] == [AuditStatus.SKIPPED]
    history.take(module(0, **{RX: 4.0}))
    assert [finding.status for finding in part_trends(history)] == [AuditStatus.PASSED]


def test_readings_of_parts_are_not_compared_with_other_hosts():
    results = [module(0, host=f"h{number}", serial=str(number), **{RX: float(number)}) for number in range(9)]
    assert [result for result in compare(results) if result["check"].startswith("fleet.module")] == []


def test_readings_are_thinned():
    history = PartHistory()
    for minute in range(0, 24 * 60, 10):
        history.take(module(0, minute / 60, **{RX: 4.0}))
    [(part, _, kept_readings)] = history.series()
    assert part == Part("h1", "eth0")
    assert len(kept_readings) <= 5
