"""Comparison of hosts: the odd one is found without a rule, and no other host is accused."""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.records import AuditResult, AuditStatus
from streams.audit.hosts.compare import compare
from streams.audit.results import FLEET
from tests.examples import examples
from tests.streams.audit.facts import failed, stated


def texts(*values: str) -> list[AuditResult]:
    return [stated(f"h{k}", {"driver": value}) for k, value in enumerate(values)]


def figures(*values: float, name: str = "memory_gib") -> list[AuditResult]:
    return [stated(f"h{k}", {name: value}) for k, value in enumerate(values)]


def of_fleet(results: list[AuditResult]) -> list[tuple[str, str]]:
    return [(str(r["status"]), r["text"]) for r in results if r["host"] == FLEET]


def test_the_host_with_another_text_is_named_with_both_values() -> None:
    out = compare(texts(*["570.1"] * 63, "550.9"))
    assert failed(out) == [("h63", "fleet.driver", [""])]
    assert out[-1]["text"] == "h63 has driver '550.9', the fleet has '570.1' (63 of 64 hosts)"
    assert out[-1]["severity"] == "ERROR"
    assert of_fleet(out) == [("PASSED", "63 of 64 hosts have driver '570.1'")]
    for each in out:
        codec.encode("AuditResult", each)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [["a", "b"], ["a", "a", "b"], ["a"] * 4 + ["b"] * 4, list("abcdefgh")])
def test_ties_and_tiny_fleets_accuse_nobody(values: list[str]) -> None:
    out = compare(texts(*values))
    assert failed(out) == []
    assert [status for status, _ in of_fleet(out)] == ["UNKNOWN"]
    assert "driver differs, " in out[0]["text"]


def test_two_hosts_that_agree_passed_and_one_host_is_skipped() -> None:
    assert of_fleet(compare(texts("a", "a"))) == [("PASSED", "2 of 2 hosts have driver 'a'")]
    assert [status for status, _ in of_fleet(compare(texts("a")))] == ["SKIPPED"]
    assert compare([]) == []


def test_skus_are_compared_apart() -> None:
    hosts = [stated(f"a{k}", {"driver": "1"}, sku="a100") for k in range(5)]
    hosts += [stated(f"b{k}", {"driver": "2"}, sku="b200") for k in range(9)]
    out = compare(hosts)
    assert failed(out) == []
    assert [f["subject"] for f in out[0]["findings"]] == ["a100", "b200"]


def test_two_checks_may_state_facts_of_one_name() -> None:
    hosts = [stated(f"h{k}", {"bus_gbps": 400.0}, check="collectives.nccl") for k in range(8)]
    hosts += [stated(f"h{k}", {"bus_gbps": 200.0}, check="collectives.rccl") for k in range(8)]
    hosts[3] = stated("h3", {"bus_gbps": 300.0}, check="collectives.nccl")
    assert failed(compare(hosts)) == [("h3", "fleet.bus_gbps", [""])]


def test_devices_are_compared_with_their_namesakes() -> None:
    rates = {**{f"mlx5_{k}": 400.0 for k in range(8)}, "mlx5_8": 100.0}
    hosts = [stated(f"h{k}", {"rate_gbps": dict(rates)}) for k in range(16)]
    hosts[3] = stated("h3", {"rate_gbps": {**rates, "mlx5_5": 200.0}})
    assert failed(compare(hosts)) == [("h3", "fleet.rate_gbps", ["mlx5_5"])]


def test_a_device_that_one_host_lacks_is_a_finding() -> None:
    nics = {f"mlx5_{k}": "28.41" for k in range(8)}
    hosts = [stated(f"h{k}", {"firmware": dict(nics)}) for k in range(16)]
    hosts[5] = stated("h5", {"firmware": {k: v for k, v in nics.items() if k != "mlx5_2"}})
    hosts[7] = stated("h7", {}, status=AuditStatus.SKIPPED)
    hosts[9] = stated("h9", {}, status=AuditStatus.UNKNOWN)
    out = compare(hosts)
    assert failed(out) == [("h5", "fleet.firmware", ["mlx5_2"]), ("h7", "fleet.firmware", sorted(nics))]
    assert [r["host"] for r in out if r["status"] == "UNKNOWN"] == ["h9"]


def test_a_host_of_unknown_sku_without_the_devices_is_not_accused() -> None:
    hosts = [stated(f"h{k}", {"firmware": {"mlx5_0": "1"}}, sku="") for k in range(16)]
    out = compare([*hosts, stated("login", {}, sku="", status=AuditStatus.SKIPPED)])
    assert failed(out) == []
    assert [(r["host"], r["status"]) for r in out if r["host"] != FLEET] == [("login", "UNKNOWN")]


def test_a_device_without_namesakes_is_not_accused() -> None:
    hosts = [stated(f"h{k}", {"model": {f"nvme-{k}": "PM9A3"}}) for k in range(9)]
    hosts.append(stated("h9", {"model": {"nvme-x": "970"}}))
    out = compare(hosts)
    assert failed(out) == []
    assert [(r["host"], r["status"]) for r in out] == [("fleet", "PASSED"), ("h9", "UNKNOWN")]


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ([192.0] * 15 + [191.0], ["h15"]),  # configured: one processor is offline
        ([8.0] * 7 + [7.0], ["h7"]),
        ([8.0] * 3 + [7.0], ["h3"]),
        ([2.0e9] * 15 + [2.0e9 - 4096], []),  # one page of memory
        ([0.0] * 60 + [1.0, 2.0, 1.0, 5.0], []),  # counters of rare events
        ([0.0] * 60 + [1.0, 2.0, 1.0, 5000.0], ["h63"]),
        ([100.0] * 8 + [200.0] * 7, []),  # two kinds of hosts
        ([100.0, 100.0, 50.0], []),
        ([1.0, 2.0, 3.0, 4.0, 500.0], []),  # too few values for a MAD
    ],
)  # fmt: skip
def test_figures(values: list[float], odd: list[str]) -> None:
    assert [host for host, _, _ in failed(compare(figures(*values)))] == odd


def test_a_figure_that_is_none_is_unknown() -> None:
    hosts = [*figures(*[5.0] * 9), stated("h9", {"memory_gib": "n/a"})]
    out = compare(hosts)
    assert failed(out) == []
    assert [(r["host"], r["status"]) for r in out if r["host"] != FLEET] == [("h9", "UNKNOWN")]


def healthy(rng: np.random.Generator, hosts: int) -> list[dict[str, Any]]:
    """Return a fleet's facts: versions, configured and measured figures, and counters."""
    return [
        {
            **{f"version{k}": "1.0" for k in range(20)},
            **{f"count{k}": 8.0 for k in range(10)},
            **{f"bandwidth{k}_gbps": float(rng.normal(390, 4)) for k in range(10)},
            **{f"latency{k}_us": float(rng.lognormal(1, 0.1)) for k in range(5)},
            **{f"heat{k}_celsius": float(rng.normal(50, 3)) for k in range(5)},
            **{f"events{k}": float(rng.poisson(0.3)) for k in range(5)},
        }
        for _ in range(hosts)
    ]


def test_one_odd_host_of_64_is_found_and_no_other_over_many_seeds() -> None:
    planted: list[tuple[str, Any]] = [
        ("version3", "1.1"), ("count2", 7.0), ("bandwidth4_gbps", 300.0), ("latency1_us", 9.0),
        ("heat0_celsius", 88.0), ("events2", 900.0),
    ]  # fmt: skip
    for seed in range(36):
        rng = np.random.default_rng(seed)
        facts = healthy(rng, 64)
        name, value = planted[seed % len(planted)]
        at = int(rng.integers(64))
        assert failed(compare([stated(f"h{k}", each) for k, each in enumerate(facts)])) == []
        facts[at][name] = value
        out = compare([stated(f"h{k}", each) for k, each in enumerate(facts)])
        assert failed(out) == [(f"h{at}", f"fleet.{name}", [""])], seed


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_order_of_hosts_does_not_matter(values: list[str], draw: random.Random) -> None:
    hosts = texts(*values)
    shuffled = hosts.copy()
    draw.shuffle(shuffled)
    assert compare(shuffled) == compare(hosts)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.floats(50, 200), min_size=1, max_size=40),
    st.sampled_from([1 / 1024, 0.25, 2.0, 4096.0]),
)
def test_a_figures_unit_does_not_matter(values: list[float], scale: float) -> None:
    whole = [round(value * 16) / 16 for value in values]
    plain, scaled = (compare(figures(*(v * by for v in whole), name="size_b")) for by in (1.0, scale))
    assert [(r["host"], r["status"]) for r in scaled] == [(r["host"], r["status"]) for r in plain]


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=40))
def test_no_host_of_the_larger_part_is_ever_accused(values: list[str]) -> None:
    usual = max("ab", key=values.count)
    for host, _, _ in failed(compare(texts(*values))):
        assert values[int(host[1:])] != usual


def test_a_thousand_hosts_are_compared_in_time() -> None:
    rng = np.random.default_rng(1)
    facts = {f"fact{k}": "x" for k in range(75)}
    numbers = rng.normal(100, 1, (1000, 75))
    hosts = [
        stated(f"h{k}", facts | {f"figure{j}": float(numbers[k, j]) for j in range(75)}) for k in range(1000)
    ]
    tracemalloc.start()
    begin = time.process_time()
    out = compare(hosts)
    took_s, peak = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert failed(out) == []
    assert len(out) == 150
    assert took_s < 20  # about 1 s without the tracing of memory
    assert peak < 200e6
