"""Bench of large fleets: the report of some hosts is written in a process of its own."""

from __future__ import annotations

from fabrictime.bench.audit.scale import _report


def test_a_report_of_three_hosts_is_written_and_measured() -> None:
    took_s, memory_mb, before_mb, text = _report(3)
    assert 0 < took_s < 60
    assert memory_mb >= before_mb > 0
    assert "of 3 hosts" in text
    assert "HTML" in text
