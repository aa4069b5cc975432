"""Bench of large fleets: the report of some hosts is written in a process of its own."""

from __future__ import annotations

from pathlib import Path

from fabrictime.bench.audit.scale import _encode, _report
from producers.audit.checks import CHECKS


def test_a_report_of_three_hosts_is_written_and_measured(tmp_path: Path) -> None:
    _encode((3, tmp_path))
    took_s, memory_mb, before_mb, text = _report((3, tmp_path))
    assert 0 < took_s < 60
    assert memory_mb >= before_mb > 0
    assert f"{3 * len(CHECKS)} results of 3 hosts" in text
    assert text.count(" MB") == 3
