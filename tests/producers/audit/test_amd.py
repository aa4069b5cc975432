"""Checks of AMD GPUs and the parsers of their files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.amd import CHECKS, bad_pages, properties, ras_counts
from producers.audit.base import run_check
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
