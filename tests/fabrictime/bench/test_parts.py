"""Benches in parts: a part that fails costs no other part its figures."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fabrictime.bench import Missing, _parts
from fabrictime.bench._parts import measure_parts


def test_a_part_that_fails_names_the_reason_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(progress: object, quick: bool) -> dict[str, float]:
        raise ValueError("no such link\nand more")

    for part, measure in (("first", lambda *_: {"a": 1.0}), ("second", broken), ("third", lambda *_: {})):
        module = ModuleType(part)
        module.measure = measure  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"{_parts.__package__}.trial.{part}", module)
    monkeypatch.setitem(sys.modules, f"{_parts.__package__}.trial", ModuleType("trial"))
    lines: list[str] = []
    found = measure_parts(
        "trial", {"first": ("a",), "second": ("b", "c"), "third": ("d",)}, (), lines.append, False
    )
    assert found["a"] == 1.0
    assert found["b"] == found["c"] == Missing("second failed: ValueError: no such link")
    assert found["d"] == Missing("third did not measure it")
    assert "test_parts.py" in lines[0], "the trace is shown"
