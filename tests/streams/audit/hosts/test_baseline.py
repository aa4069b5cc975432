"""Baselines: saved from a golden node or the majority, learned over runs, edited, and compared with a run."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.records import AuditResult, AuditStatus
from streams.audit.hosts.baseline import (
    Baseline,
    BaselineError,
    Expected,
    compare_with,
    learn,
    parse,
    save,
    to_toml,
)
from streams.audit.results import FLEET
from tests.examples import examples
from tests.streams.audit.facts import failed, stated


def host(name: str, *, run: str = "r1", **changes: Any) -> AuditResult:
    facts: dict[str, Any] = {
        "driver": "570.1",
        "gpus": 8,
        "write_gbps": {f"mlx5_{k}": 390.0 + k / 10 for k in range(4)},
        "firmware": {f"mlx5_{k}": "28.41" for k in range(4)},
    }
    return stated(name, facts | changes, run=run)


def fleet(count: int = 8, run: str = "r1") -> list[AuditResult]:
    return [host(f"h{k}", run=run) for k in range(count)]


def rows(baseline: Baseline) -> dict[str, Any]:
    return {f"{each.fact} {each.subject}": each.texts or each.median for each in baseline.expected}


def test_a_golden_node_is_saved_and_its_fleet_passes() -> None:
    found = save(fleet(), golden="h2")
    assert rows(found) == {
        "driver *": ("570.1",), "firmware *": ("28.41",), "gpus *": 8.0,
        "write_gbps mlx5_0": 390.0, "write_gbps mlx5_1": 390.1,
        "write_gbps mlx5_2": 390.2, "write_gbps mlx5_3": 390.3,
    }  # fmt: skip
    assert (found.golden, found.runs) == ("h2", ("r1",))
    assert [each.devices for each in found.expected if each.fact == "firmware"] == [4]
    out = compare_with(found, fleet())
    assert failed(out) == []
    assert {(r["host"], r["status"]) for r in out} == {(FLEET, AuditStatus.PASSED)}


@pytest.mark.parametrize(
    ("changes", "check", "subjects"),
    [
        ({"driver": "550.9"}, "driver", [""]),
        ({"gpus": 7}, "gpus", [""]),
        ({"firmware": {f"mlx5_{k}": "28.41" for k in range(3)}}, "firmware", [""]),
        ({"firmware": {f"mlx5_{k}": "28.41" if k else "20" for k in range(4)}}, "firmware", ["mlx5_0"]),
        ({"write_gbps": {f"mlx5_{k}": 390.0 if k else 300.0 for k in range(4)}}, "write_gbps", ["mlx5_0"]),
    ],
)
def test_a_deviating_host_is_named(changes: dict[str, Any], check: str, subjects: list[str]) -> None:
    hosts = [*fleet(), host("odd", **changes)]
    for found in (save(fleet()), save(hosts), learn([fleet(12), fleet(12, "r2")])):
        out = compare_with(found, hosts)
        assert failed(out) == [("odd", f"baseline.{check}", subjects)]
        for each in out:
            codec.encode("AuditResult", each)  # type: ignore[arg-type]


def test_the_majority_is_saved_and_a_tie_is_left_out() -> None:
    split = [host(f"h{k}", driver="ab"[k % 2], kernel="6.8" if k else "5.15") for k in range(8)]
    found = rows(save(split))
    assert found["kernel *"] == ("6.8",)
    assert "driver *" not in found


def test_several_runs_teach_median_mad_and_all_usual_texts() -> None:
    rng = np.random.default_rng(1)
    drivers = ("570.1", "570.1", "575.0")
    runs = [
        [host(f"h{k}", run=f"r{run}", driver=driver, write_gbps=float(rng.normal(390, 2))) for k in range(20)]
        for run, driver in enumerate(drivers)
    ]
    runs[0][3] = host("h3", run="r0", driver="broken")
    found = learn(runs)
    by_fact = {each.fact: each for each in found.expected}
    assert by_fact["driver"].texts == ("570.1", "575.0")
    assert by_fact["write_gbps"].median == pytest.approx(390, abs=1)
    assert by_fact["write_gbps"].mad == pytest.approx(2 * 0.6745, rel=0.4)
    assert found.runs == ("r0", "r1", "r2")


def test_an_edited_tolerance_counts() -> None:
    row = Expected(fact="write_gbps", median=390.0, tolerance=5.0)
    low, near = (stated("h1", {"write_gbps": value}, sku="") for value in (384.0, 386.0))
    assert failed(compare_with(Baseline(expected=(row,)), [low])) == [("h1", "baseline.write_gbps", [""])]
    assert failed(compare_with(Baseline(expected=(row,)), [near])) == []


def test_another_sku_and_an_unreadable_figure_are_unknown() -> None:
    found = save(fleet())
    out = compare_with(found, [host("h1", gpus="n/a"), stated("h2", {"gpus": 4}, sku="gb200")])
    assert failed(out) == []
    unknown = [(r["host"], r["check"]) for r in out if r["status"] == AuditStatus.UNKNOWN]
    assert unknown == [(FLEET, "baseline.skus"), ("h1", "baseline.gpus")]
    assert compare_with(found, []) == []


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=4, unique=True), st.floats(-1e9, 1e9))
def test_a_file_has_the_content_that_was_saved(texts: list[str], median: float) -> None:
    found = Baseline(
        runs=("r1",),
        expected=(
            Expected(sku="h100", fact="driver", texts=tuple(texts)),
            Expected(sku="h100", fact="x", subject='a"b\\', median=median, mad=0.5, values=9, devices=8),
        ),
    )
    assert parse(tomllib.loads(to_toml(found)), "f") == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = 2", "f: version: Input should be 1"),
        ("[[expected]]\nfact = 'x'", "f: expected.1: Value error, expected either texts or median"),
        ("[[expected]]\nfact = 'x'\nmedian = inf", "f: expected.1.median: Input should be a finite number"),
        (
            "[[expected]]\nfact = 'x'\nmedian = 1\nmat = 2",
            "f: expected.1.mat: Extra inputs are not permitted",
        ),
        (2 * "[[expected]]\nfact = 'x'\nmedian = 1\n", "f: Value error, x of * and SKU '' is listed twice"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(BaselineError) as error:
        parse(tomllib.loads(text), "f")
    assert str(error.value) == reason


def test_nothing_to_save_is_refused() -> None:
    with pytest.raises(BaselineError, match="no value of host h99 can be saved"):
        save(fleet(), "h99")
    with pytest.raises(BaselineError, match="no value can be learned"):
        learn([])


def test_a_value_without_a_name_cannot_be_saved() -> None:
    assert rows(save([stated("h1", {"": "odd", "driver": "1"})])) == {"driver *": ("1",)}
    with pytest.raises(BaselineError, match="no value of the run can be saved"):
        save([stated("h1", {"": "odd"})])
