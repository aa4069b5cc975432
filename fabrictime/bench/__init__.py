"""Defines the benches: their interface, the check against targets, and their reports.

A bench is a module of this package with `NAME`, `TARGETS` and `run(progress, quick)`. Its report is one JSON
object `{"name", "machine", "figures": {key: {"value", "unit", "target", "met"}}}`, or the same as a table.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

Progress: TypeAlias = Callable[[str], None]
"""A function that a bench calls with one line of text about its present step."""

Report: TypeAlias = dict[str, Any]
"""The output of `fabrictime bench NAME --json`."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a figure: the least (`>=`) or the largest (`<=`) allowed `value`, in `unit`.

    A figure that is measured only for context has a unit but no target: its `op` and `value` are None.
    """

    unit: str
    op: Literal[">=", "<="] | None = None
    value: float | None = None

    def met(self, measured: float) -> bool | None:
        """Return whether `measured` reaches the target, or None if there is no target."""
        if self.op is None or self.value is None:
            return None
        return measured >= self.value if self.op == ">=" else measured <= self.value

    def text(self) -> str | None:
        """Return the target as text, such as `>= 60000`, or None if there is no target."""
        return None if self.op is None or self.value is None else f"{self.op} {self.value:.12g}"


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that was not measured, with the reason in one line."""

    reason: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure. `unit` is for figures without a target; `note` is a remark on the conditions."""

    value: float
    unit: str | None = None
    note: str | None = None


Value: TypeAlias = float | Figure | Missing


class Bench(Protocol):
    """The interface of a bench module: a function `run` that measures figures."""

    NAME: str
    TARGETS: Mapping[str, Target]

    def run(self, progress: Progress, quick: bool = False) -> Mapping[str, Value]:
        """Measure and return the figures by key; a `quick` run only proves that the bench works."""
        ...


@runtime_checkable
class PartedBench(Protocol):
    """The interface of a bench with several parts, each of which can be measured alone."""

    NAME: str
    TARGETS: Mapping[str, Target]
    PARTS: Mapping[str, Collection[str]]
    """The keys of the figures that each part must return, by the part's name."""

    def run(self, progress: Progress, quick: bool = False, parts: Sequence[str] = ()) -> Mapping[str, Value]:
        """Measure the parts named in `parts`, or all parts if it is empty; return the figures by key."""
        ...


def names() -> list[str]:
    """Return the names of all benches, without importing any bench."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names of a bench's parts; empty for a bench without parts. Raises the errors of `load`."""
    bench = load(name)
    return tuple(bench.PARTS) if isinstance(bench, PartedBench) else ()


def load(name: str) -> Bench | PartedBench:
    """Import and return a bench. Raises ValueError for an unknown name."""
    if name not in names():
        raise ValueError(f"bench {name!r}: no such bench, expected one of {', '.join(names())}")
    return cast(Bench | PartedBench, import_module(f"{__name__}.{name}"))


def run_bench(
    bench: Bench | PartedBench, progress: Progress, *, quick: bool = False, parts: Sequence[str] = ()
) -> Report:
    """Run one bench, or some of its parts, and return its report.

    The report lists each requested figure that has a target and was not measured as missing. Raises TypeError
    if parts are given and the bench has none.
    """
    from fabrictime.bench._machine import machine

    measured_on = machine()
    if not parts:
        figures = evaluate(bench.TARGETS, bench.run(progress, quick))
    elif isinstance(bench, PartedBench):
        values = bench.run(progress, quick, parts)
        figures = evaluate({key: target for key, target in bench.TARGETS.items() if key in values}, values)
    else:
        raise TypeError(f"bench {bench.NAME}: expected no parts, for it has none, not {', '.join(parts)}")
    report = {"name": bench.NAME, "machine": measured_on, "figures": figures}
    return report | {"quick": True} if quick else report


def evaluate(targets: Mapping[str, Target], values: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """Compare measured values with their targets; return the figures, those with a target first.

    A missing or non-finite value has `value` null and a reason; `met` is false if the figure has a target.
    """
    figures: dict[str, dict[str, Any]] = {}
    for key in [*targets, *(key for key in values if key not in targets)]:
        figures[key] = _evaluated(targets.get(key), values.get(key, Missing("not measured by this bench")))
    return figures


def _evaluated(target: Target | None, value: Value) -> dict[str, Any]:
    figure = value if isinstance(value, Figure | Missing) else Figure(float(value))
    target_text = None if target is None else target.text()
    unit = None if target is None else target.unit
    if isinstance(figure, Figure) and not math.isfinite(figure.value):
        figure = Missing(f"measured {figure.value}, expected a finite number")
    if isinstance(figure, Missing):
        met = None if target_text is None else False
        return {"value": None, "unit": unit, "target": target_text, "met": met, "reason": figure.reason}
    met = None if target is None else target.met(figure.value)
    evaluated: dict[str, Any] = {
        "value": figure.value,
        "unit": unit or figure.unit,
        "target": target_text,
        "met": met,
    }
    return evaluated if figure.note is None else evaluated | {"note": figure.note}
