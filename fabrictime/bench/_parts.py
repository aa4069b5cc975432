"""Benches in parts: each part a module `_<bench>_<part>` with `measure(progress, quick)`.

In: the bench's name, its parts with the figures that they owe, its targets. Out: the figures of a part, or
lines of them where one is run by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec

from fabrictime.bench import Figure, Missing, Progress, Target, Value

__all__ = ["by_hand", "measured"]

Parts = Mapping[str, Sequence[str]]


def measured(bench: str, parts: Parts, part: str, progress: Progress, quick: bool) -> Mapping[str, Value]:
    """Return the figures of one part."""
    name = f"{__package__}._{bench}_{part}"
    if find_spec(name) is None:
        return {key: Missing(f"_{bench}_{part}.py is not there yet") for key in parts[part]}
    found: Mapping[str, Value] = import_module(name).measure(progress, quick)
    return found


def by_hand(bench: str, parts: Parts, targets: Mapping[str, Target], arguments: Sequence[str]) -> int:
    """Measure some parts from the command line and print a line a figure; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m fabrictime.bench.{bench}")
    parser.add_argument("part", nargs="+", choices=sorted(parts), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="measure shorter")
    wanted = parser.parse_args(arguments)
    for part in wanted.part:
        figures = measured(bench, parts, part, lambda line: print(line, file=sys.stderr), wanted.quick)
        for key, value in figures.items():
            if isinstance(value, Missing):
                print(f"{key}: not measured: {value.reason}")
            else:
                figure = value if isinstance(value, Figure) else Figure(value)
                unit = figure.unit or targets.get(key, Target("")).unit
                print(f"{key}: {figure.value:.6g} {unit}{f' ({figure.note})' if figure.note else ''}")
    return 0
