"""SKUs: the data file is complete and has sources, hosts are recognised, deviations are named."""

from __future__ import annotations

import pytest

from schemas import codec
from schemas.records import AuditStatus
from schemas.skus import load_skus
from streams.audit.hosts.skus import detect, sku_results, with_skus
from streams.audit.results import FLEET
from tests.streams.audit.facts import fact, failed, stated

SKUS = load_skus()


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
        ("NVIDIA H100 PCIe", ""),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA H200 NVL", ""),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-PCIE-40GB", ""),
    ],
)
def test_gpus_show_the_sku(gpu: str, sku: str) -> None:
    assert detect([fact("name", gpu, f"GPU {k}") for k in range(8)], SKUS) == sku


def test_the_larger_part_of_the_gpus_counts() -> None:
    mixed = [fact("name", "NVIDIA H100 80GB HBM3" if k else "NVIDIA H200", f"GPU {k}") for k in range(8)]
    assert detect(mixed, SKUS) == "h100"
    assert detect([fact("board", "NVIDIA H100 80GB HBM3")], SKUS) == ""


def test_hosts_without_a_sku_get_that_of_their_gpus() -> None:
    hosts = [
        stated("h1", {"name": {"GPU 0": "NVIDIA H100 80GB HBM3"}}, sku=""),
        stated("h1", {"driver": "1"}, sku="", check="software.driver"),
        stated("h2", {"name": {"GPU 0": "NVIDIA H100 80GB HBM3"}}, sku="h200"),
        stated("h3", {}, sku=""),
    ]
    assert [each["sku"] for each in with_skus(hosts, SKUS)] == ["h100", "h100", "h200", ""]


def test_deviations_are_named_with_value_expectation_and_source() -> None:
    good = {"gpus": 8, "nvlink_mbps": {"GPU 0": 26562.0}, "write_latency_us": 3.1, "other": 1}
    bad = {"gpus": 7, "nvlink_mbps": {"GPU 0": 20000.0}, "write_latency_us": "n/a"}
    out = sku_results([stated("h1", good), stated("h2", bad), stated("h3", bad, sku="other")], SKUS)
    assert failed(out) == [("h2", "sku.gpus", [""]), ("h2", "sku.nvlink_mbps", ["GPU 0"])]
    slow = next(each for each in out if each["check"] == "sku.nvlink_mbps" and each["host"] == "h2")
    assert slow["text"].startswith("h2 has nvlink_mbps of GPU 0 20000, a h100 at least 25000 (Oracle oci-hpc")
    unknown = [(each["host"], each["check"]) for each in out if each["status"] == AuditStatus.UNKNOWN]
    assert unknown == [("h2", "sku.write_latency_us")]
    assert next(each["text"] for each in out if each["host"] == FLEET) == (
        "1 of 2 hosts have gpus as their SKU"
    )
    for each in out:
        codec.encode("AuditResult", each)  # type: ignore[arg-type]
    assert sku_results([], SKUS) == []


def test_a_virtual_machine_with_a_part_of_the_gpus_is_no_deviation() -> None:
    for gpus, deviates in ((1, False), (4, False), (3, True), (7, True), (9, True)):
        out = sku_results([stated("h1", {"gpus": gpus, "all_reduce_gb_per_s": 500.0})], SKUS)
        assert bool(failed(out)) is deviates
