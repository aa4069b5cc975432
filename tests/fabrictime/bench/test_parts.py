"""Benches in parts: a part that fails costs no other part its figures."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fabrictime.bench import Missing, _parts
from fabrictime.bench._fabric import CannotRun
from fabrictime.bench._parts import measure_parts


def test_a_part_that_fails_names_the_reason_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(progress: object, quick: bool) -> dict[str, float]:
        raise ValueError("no such link\nand more")

    def cannot(progress: object, quick: bool) -> dict[str, float]:
        raise CannotRun("no user namespaces")

    for part, measure in (
        ("first", lambda *_: {"a": 1.0}),
        ("second", broken),
        ("third", lambda *_: {}),
        ("fourth", cannot),
    ):
        module = ModuleType(part)
        module.measure = measure  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"{_parts.__package__}.trial.{part}", module)
    monkeypatch.setitem(sys.modules, f"{_parts.__package__}.trial", ModuleType("trial"))
    lines: list[str] = []
    monkeypatch.setattr(sys.modules[f"{_parts.__package__}.trial"], "__path__", [], raising=False)
    parts = {"first": ("a",), "second": ("b", "c"), "third": ("d",), "fourth": ("e",), "absent": ("f",)}
    found = measure_parts("trial", parts, lines.append)
    assert found["a"] == 1.0
    assert found["b"] == found["c"] == Missing("second failed: ValueError: no such link")
    assert found["d"] == Missing("third did not measure it")
    assert found["e"] == Missing("no user namespaces")
    assert "No module named" in str(found["f"])
    assert "test_parts.py" in lines[0], "the trace is shown"
    assert len(lines) == 2, "a machine that cannot run a part is no failure"
