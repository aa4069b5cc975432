"""Checks of AMD GPUs and the parsers of their files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from fabrictime.testbed.audit.recorded_gpu import AMD_ADDRESSES
from producers.audit.base import run_check
from producers.audit.gpu.amd import CHECKS, NODES, bad_pages, hives, properties, ras_counts
from schemas.records import AuditStatus


def test_counters_pages_and_properties() -> None:
    assert ras_counts("ue: 3\nce: 12") == {"ue": 3, "ce": 12}
    assert bad_pages("0x1 : 0x1000 : R\n0x2 : 0x1000 : P\n0x3 : 0x1000 : R") == {"R": 2, "P": 1}
    assert not bad_pages("")
    assert properties("simd_count 1216\ntype 11") == {"simd_count": 1216, "type": 11}


@pytest.mark.parametrize("text", ["", "ce: 1", "ue: x"])
def test_a_counter_without_its_line_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        ras_counts(text)


@given(st.text(max_size=80))
def test_odd_files_are_errors_of_value(text: str) -> None:
    for parse in (ras_counts, bad_pages, properties):
        try:
            parse(text)
        except ValueError:
            continue


def test_a_host_without_the_driver() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "/kfd/" not in path}
    results = {check.check_id: run_check(check, host) for check in CHECKS}
    assert results["gpu.amd-count"].status is AuditStatus.FAILED
    assert "no compute nodes" in results["gpu.amd-count"].text


def test_a_gpu_without_error_counters_is_skipped() -> None:
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "/ras/" not in path}
    results = {check.check_id: run_check(check, host) for check in CHECKS}
    assert results["gpu.amd-ecc"].status is AuditStatus.SKIPPED
    assert results["gpu.amd-bad-pages"].status is AuditStatus.SKIPPED


def test_hives_are_the_nodes_that_links_connect() -> None:
    linked = {"1": {"2"}, "2": {"1"}, "3": {"4", "9"}, "4": set(), "5": set()}
    assert hives(linked) == {
        "1": {"1", "2"},
        "2": {"1", "2"},
        "3": {"3", "4"},
        "4": {"3", "4"},
        "5": {"5"},
    }


def linked_host(*links: tuple[int, int]) -> RecordedHost:
    """Return a host of unknown type with four GPUs of AMD, and these links in both directions."""
    host = HEALTHY.copy()
    host.files = {path: text for path, text in host.files.items() if "/kfd/" not in path}
    for place in AMD_ADDRESSES:
        host.files[f"/sys/bus/pci/devices/{place}/device"] = "0x740f"
    for node in range(1, 5):
        host.files[f"{NODES}/{node}/properties"] = "cpu_cores_count 0\nsimd_count 416\n"
        host.files[f"{NODES}/{node}/io_links/0/properties"] = f"type 2\nnode_from {node}\nnode_to 0\n"
    for number, (one, other) in enumerate(links, 1):
        for start, end in ((one, other), (other, one)):
            host.files[f"{NODES}/{start}/io_links/{number}/properties"] = f"type 11\nnode_to {end}\n"
    return host


@pytest.mark.parametrize(
    ("links", "status"),
    [
        (((1, 2), (3, 4)), AuditStatus.PASSED),
        (((1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)), AuditStatus.PASSED),
        (((1, 2), (1, 3), (1, 4), (2, 3), (2, 4)), AuditStatus.FAILED),
        (((1, 2), (1, 3), (2, 3)), AuditStatus.FAILED),
        ((), AuditStatus.SKIPPED),
    ],
)
def test_gpus_are_linked_within_their_hive(links: tuple[tuple[int, int], ...], status: AuditStatus) -> None:
    check = next(check for check in CHECKS if check.check_id == "gpu.amd-xgmi")
    assert run_check(check, linked_host(*links)).status is status
