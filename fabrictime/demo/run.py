"""Runs a tour on a pipeline and returns its result, for the command and for benchmarks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from fabrictime.demo.draw import Draw, new_seed
from fabrictime.demo.follower import Follower
from fabrictime.demo.mode import tour_mode
from fabrictime.demo.pipeline import Pipeline
from fabrictime.demo.result import TourResult
from fabrictime.demo.script import STEPS, Step
from fabrictime.demo.story import Line
from fabrictime.demo.tour import Narrator, Tour


class Silent:
    """A narrator that prints nothing."""

    def heading(self, number: int, step: Step) -> None:
        """Ignore the title of a step."""

    def line(self, line: Line) -> None:
        """Ignore a line about an event."""

    def remark(self, text: str) -> None:
        """Ignore a paragraph of text."""

    def phase(self, text: str) -> None:
        """Ignore a text about the tour's present phase."""


def run_tour(
    pipeline: Pipeline,
    narrator: Narrator | None = None,
    *,
    seed: int | None = None,
    acting: bool = True,
    steps: Sequence[Step] = STEPS,
) -> TourResult:
    """Run one tour and return its result. `seed` None draws a random seed.

    Raises CannotRun, FabricUnfit, FabricError, ValueError. The testbed is checked before anything changes. At
    the end every fault is healed and the former mode restored.
    """
    narrator = narrator or Silent()
    draw = Draw(new_seed() if seed is None else seed)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        follower = stack.enter_context(Follower(pipeline.cluster, pipeline.registry))
        tour = Tour(pipeline, follower, narrator, draw, acting=acting, steps=steps)
        narrator.remark(f"Places, sizes and moments are drawn; seed {draw.seed}.")
        mode = tour_mode(pipeline.cluster, pipeline.registry, acting=acting, now_ns=time.time_ns())
        stack.enter_context(mode)
        tour.run()
    took_s = time.monotonic() - began_s
    return TourResult(draw.seed, acting, took_s, pipeline.web, tuple(tour.outcomes))
