"""Runs the parts of a bench, each a module `<bench>.<part>` with `measure(progress, quick)`.

A figure that a part must return and does not is reported as missing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from typing import TypeAlias, TypeVar

from fabrictime.bench import Missing, Progress, Target, Value

Parts: TypeAlias = Mapping[str, Mapping[str, Target]]
"""The targets of a bench's figures by part; a part is a module with `measure(progress, quick)`."""
_Asked = TypeVar("_Asked")
_Found = TypeVar("_Found")


def targets_of(parts: Parts) -> dict[str, Target]:
    """Return the targets of the figures of all parts."""
    return {key: target for targets in parts.values() for key, target in targets.items()}


def measure_parts(
    bench: str,
    figures_of: Mapping[str, Collection[str]],
    progress: Progress,
    quick: bool = False,
    parts: Sequence[str] = (),
) -> dict[str, Value]:
    """Measure `parts`, or all if it is empty, one by one in the bench's order; return figures.

    All figures of a part that raises are missing, with the error as their reason. CannotRun does not count as
    a failure of the bench.
    """
    from fabrictime.bench._fabric import CannotRun

    figures: dict[str, Value] = {}
    for part in figures_of:
        if not parts or part in parts:
            figures.update(dict.fromkeys(figures_of[part], Missing(f"{part} did not measure it")))
            try:
                measure = import_module(f"{__package__}.{bench}.{part}").measure
                figures.update(measure(progress, quick))
            except CannotRun as reason:
                figures.update(dict.fromkeys(figures_of[part], Missing(str(reason))))
            except Exception as error:  # noqa: BLE001  # what other parts took half an hour for is not lost
                why = f"{part} failed: {type(error).__name__}: {error}".splitlines()[0]
                progress("".join(traceback.format_exception(error)) + why)
                figures.update(dict.fromkeys(figures_of[part], Missing(why)))
    return figures


def side_by_side(measure: Callable[[_Asked], _Found], arguments: Sequence[_Asked]) -> Iterator[_Found]:
    """Yield `measure(argument)` for each argument, in order, computed by one process per processor.

    Processes run in parallel; `measure` must be a module's function. Use it only to measure simulated time or
    processor time.
    """
    workers = min(len(arguments), len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_DFL)
    ) as pool:
        yield from pool.map(measure, arguments)
