"""The cost of the readers: both are measured, and comparable with the system's own clock calls."""

import shutil

import pytest

from fabrictime.bench import Figure
from fabrictime.bench.clock import now


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")
def test_both_readers_are_measured():
    lines = []
    figures = now.measure(lines.append, quick=True)
    assert set(figures) >= {"now_ns_per_call_c", "now_ns_per_call_python"}
    assert len(lines) == 2
    for name, value in figures.items():
        ns = value.value if isinstance(value, Figure) else value
        assert 1 < ns < 1e6, name


def test_missing_clients_are_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(now, "CLIENTS", tmp_path / "clients")
    figures = now.measure(lambda line: None)
    assert "clients/ is not beside this package" in figures["now_ns_per_call_c"].reason
    assert set(figures) == {"now_ns_per_call_c", "now_ns_per_call_python"}
