"""SKUs: the data file is complete and has sources, hosts are recognised, deviations are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import codec
from schemas.records import AuditStatus
from streams.audit.results import FLEET
from streams.audit.skus import FILE, detect, load_skus, sku_results, with_skus
from tests.streams.audit.facts import fact, failed, stated

SKUS = load_skus(FILE)


@pytest.mark.parametrize(
    ("gpu", "sku"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA GeForce RTX 4090", ""),
    ],
)
def test_gpus_show_the_sku(gpu: str, sku: str) -> None:
    assert detect([fact("name", gpu, f"GPU {k}") for k in range(8)], SKUS) == sku


def test_the_larger_part_of_the_gpus_counts() -> None:
    mixed = [fact("name", "NVIDIA H100" if k else "NVIDIA H200", f"GPU {k}") for k in range(8)]
    assert detect(mixed, SKUS) == "h100"
    assert detect([fact("board", "NVIDIA H100")], SKUS) == ""


def test_every_sku_states_gpus_nvlinks_or_ports_with_sources() -> None:
    assert {"a100", "h100", "h200", "b200", "b300", "gb200", "mi300x"} <= SKUS.keys()
    for sku in SKUS.values():
        assert sku.expected["gpus"].equal in (4, 8)
        assert all(limit.source for limit in sku.expected.values())


def test_hosts_without_a_sku_get_that_of_their_gpus() -> None:
    hosts = [
        stated("h1", {"name": {"GPU 0": "NVIDIA H100 80GB HBM3"}}, sku=""),
        stated("h1", {"driver": "1"}, sku="", check="software.driver"),
        stated("h2", {"name": {"GPU 0": "NVIDIA H100 80GB HBM3"}}, sku="h200"),
        stated("h3", {}, sku=""),
    ]
    assert [each["sku"] for each in with_skus(hosts, SKUS)] == ["h100", "h100", "h200", ""]


def test_deviations_are_named_with_value_expectation_and_source() -> None:
    good = {"gpus": 8, "write_gbps": {"mlx5_0": 391.0}, "write_us": 3.1, "other": 1}
    bad = {"gpus": 7, "write_gbps": {"mlx5_0": 310.0}, "write_us": "n/a"}
    out = sku_results([stated("h1", good), stated("h2", bad), stated("h3", bad, sku="other")], SKUS)
    assert failed(out) == [("h2", "sku.gpus", [""]), ("h2", "sku.write_gbps", ["mlx5_0"])]
    slow = next(each for each in out if each["check"] == "sku.write_gbps" and each["host"] == "h2")
    assert slow["text"].startswith("h2 has write_gbps of mlx5_0 310, a h100 at least 375 (Oracle oci-hpc")
    unknown = [(each["host"], each["check"]) for each in out if each["status"] == AuditStatus.UNKNOWN]
    assert unknown == [("h2", "sku.write_us")]
    assert next(each["text"] for each in out if each["host"] == FLEET) == (
        "1 of 2 hosts have gpus as their SKU"
    )
    for each in out:
        codec.encode("AuditResult", each)  # type: ignore[arg-type]
    assert sku_results([], SKUS) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[x]\ngpu = 'X'\nexpected = { a = { equal = 1 } }", "x.expected.a.source: Field required"),
        ("[x]\ngpu = 'X'\nexpected = { a = { source = 's' } }", "expected one of equal, minimum and maximum"),
        ("[x]\ngpu = '('\nexpected = {}", "x: Value error, gpu '('"),
        ("x", "not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "skus.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="SKU file") as error:
        load_skus(path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
