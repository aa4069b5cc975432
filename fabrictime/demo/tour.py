"""Runs the tour: starts jobs, breaks and heals the testbed, and prints events as they happen."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.control.live_fabric import FlowRun, JobRun
from fabrictime.demo.draw import Draw
from fabrictime.demo.follower import Follower
from fabrictime.demo.iterations import BASE_S, SETTLE_S, change_of
from fabrictime.demo.pipeline import Pipeline
from fabrictime.demo.script import (
    JOBS,
    STEPS,
    Fabric,
    Fault,
    Step,
    crossed_links,
    incast_hosts,
    incast_spec,
    job_spec,
    meeting_transfers,
)
from fabrictime.demo.story import Chapter, Line, Outcome, Place
from schemas.records import LinkState
from schemas.units import bps_text, counted, seconds_text

BEHIND_S: Final = 2.0
"""If evidence about queues is older than this, their detection is delayed by seconds."""
CAUGHT_UP_S: Final = 20.0
"""Longest wait, before the first fault, until the evidence about queues is up to date."""
KNOWN_S: Final = 60.0
"""Longest wait until all flows of the jobs and their links are known."""
POLL_S: Final = 0.02
JOBS_S: Final = 240.0
"""Time after which the jobs end by themselves, even if the tour was killed."""
SEEN_S: Final = 3.0
"""Time that a fault goes on after its detection, so that its effects are visible."""
REPORT_S: Final = 0.7
"""Time to wait for reports of iterations, which come every half second."""
RECOVER_S: Final = 12.0
"""Longest further wait until each job ends an iteration after the fault: TCP doubles its timeouts."""
OVER_S: Final = 25.0
"""Longest wait until all links are healthy again."""
DROP_MAX_S: Final = 2.0
RETURN_MAX_S: Final = 3.0
DROPS_MAX: Final = 14
HEALTHY: Final = (LinkState.UP, LinkState.FLAPPING)
"""States of links that work: a FLAPPING link is up now, but had too many drops within the past hour."""


class Narrator(Protocol):
    """Interface of objects that print the output of the tour."""

    def heading(self, number: int, step: Step) -> None:
        """Print the title of a step."""

    def line(self, line: Line) -> None:
        """Print a line about an event."""

    def remark(self, text: str) -> None:
        """Print a paragraph of text."""

    def phase(self, text: str) -> None:
        """Show the event for which the tour waits, if the output can be overwritten later."""


class Tour:
    """One tour on a pipeline. `draw` chooses places, sizes and times; `steps` are the faults in order."""

    def __init__(
        self,
        pipeline: Pipeline,
        follower: Follower,
        narrator: Narrator,
        draw: Draw,
        *,
        acting: bool,
        steps: Sequence[Step] = STEPS,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._control, self._follower, self._acting = pipeline.control, follower, acting
        self._narrator, self._draw, self._steps = narrator, draw, tuple(steps)
        answer = self._control.ask("show")
        if answer["faults"]:
            raise CannotRun(
                f"fault '{answer['faults'][0]['text']}' is in force; heal it first: `fabrictime fabric clear`"
            )
        self._fabric = Fabric.of(answer)
        self._jobs: dict[str, JobRun] = {}
        self._used: set[str] = set()
        self._faults: set[int] = set()
        self._chapter: Chapter | None = None
        self._wall_s = time.time() - time.monotonic()

    def run(self) -> None:
        """Run all steps; `outcomes` gets one entry per step. Raises CannotRun, FabricUnfit, FabricError."""
        with contextlib.ExitStack() as stack:
            stack.callback(self.heal)
            self._start_jobs(stack)
            self._narrator.phase("measuring the jobs before the first fault")
            self._pass_s(BASE_S + REPORT_S)
            for number, step in enumerate(self._steps, 1):
                self._narrator.heading(number, step)
                self._pass_s(self._draw.pause_s())
                {
                    Fault.GREY: self._broken_link,
                    Fault.BLACKHOLE: self._broken_link,
                    Fault.FLAPPING: self._flapping_link,
                    Fault.COLLISION: self._collision,
                    Fault.INCAST: self._incast,
                }[step.fault](step)
            self._wait_healed()

    def heal(self) -> None:
        """Clear the faults of the tour that are in force."""
        for number in sorted(self._faults):
            self._clear(number)

    # ------------------------------------------------------------------------------------ jobs

    def _start_jobs(self, stack: contextlib.ExitStack) -> None:
        began_s = time.monotonic()
        flows = 0
        for job in JOBS:
            run = JobRun(self._control, **job_spec(self._fabric, job, JOBS_S))
            stack.callback(run.leave)
            self._jobs[job] = run
            flows += len(run.ports)
        ranks = " and ".join(f"{job} on {', '.join(self._fabric.ranks(job))}" for job in JOBS)
        self._narrator.remark(f"Two jobs run, an all-to-all each: {ranks}.")
        self._narrator.phase("waiting until the paths of all their flows are known")

        def has_paths() -> bool:
            self._check()
            live_flows = self._follower.flows().values()
            return sum(flow["job"] in JOBS and bool(flow["links"]) for flow in live_flows) >= flows

        conditions = (has_paths, lambda: self._follower.movable >= flows)
        if any(wait_for(holds, KNOWN_S, POLL_S) is None for holds in conditions):
            raise CannotRun(f"the paths of the jobs' {flows} flows are not all known after {KNOWN_S:g} s")
        self._follower.drain()
        took = seconds_text(time.monotonic() - began_s)
        self._narrator.remark(f"All paths of their {flows} flows are known after {took}.")
        self._narrator.phase("waiting until the evidence about queues is up to date")
        if not self._until(lambda: self._behind_s() < BEHIND_S, CAUGHT_UP_S):
            age = self._behind_text()
            self._narrator.remark(
                f"This machine is busy: evidence about queues is {age}. Expect late detections."
            )

    def _behind_s(self) -> float:
        behind_s = self._follower.queues_behind_s()
        return math.inf if behind_s is None else behind_s

    def _behind_text(self) -> str:
        behind_s = self._behind_s()
        return "not there yet" if behind_s == math.inf else f"{seconds_text(behind_s)} old"

    def _end_load(self, chapter: Chapter) -> int:
        """End and print a queue's chapter; return the time, ns. If undetected, print the evidence's age."""
        ended_ns = time.time_ns()
        behind = f", and evidence about queues is {self._behind_text()}: this machine is busy"
        late = not chapter.is_detected and self._behind_s() >= BEHIND_S
        self._print(chapter.heal(ended_ns, missed=behind if late else ""))
        return ended_ns

    def _end_step(self, chapter: Chapter, begin_s: float, healed_s: float) -> None:
        """Wait until iterations after the fault have ended, then print the end of the step's report."""
        self._narrator.phase("measuring the jobs after the fault")
        self._pass_s(SETTLE_S + BASE_S + REPORT_S)
        self._until(lambda: all(_ended_after(run, healed_s) for run in self._jobs.values()), RECOVER_S)
        now_s = time.monotonic()
        changes = {
            job: change_of(run.iterations, begin_s, healed_s, now_s) for job, run in self._jobs.items()
        }
        for line in chapter.end(changes):
            self._narrator.line(line)
        self.outcomes.append(chapter.outcome)
        self._chapter = None

    # ------------------------------------------------------------------------------------ steps

    def _broken_link(self, step: Step) -> None:
        link = self._next_link()
        name = self._fabric.name(link)
        if step.fault is Fault.GREY:
            percent = self._draw.grey_percent()
            fault, effect = f"grey {percent}% {link}", f"loses {percent}% of all packets, silently"
        else:
            fault, effect = f"blackhole {link}", "loses all packets, though its ports stay up"
        chapter = self._begin(step, Place(link, name, f"{name} {effect}; {self._crossed(link)}"))
        event = self._break(fault, step.max_s)
        self._print(chapter.inject(event["start_begin_ns"]))
        self._watch(chapter, step)
        healed_ns = self._clear(event["fault"])
        self._print(chapter.heal(healed_ns))
        self._end_step(chapter, self._monotonic_s(event["start_begin_ns"]), self._monotonic_s(healed_ns))

    def _flapping_link(self, step: Step) -> None:
        link = self._next_link()
        name = self._fabric.name(link)
        injected = f"{name} loses all packets for a moment, works again, and so on; {self._crossed(link)}"
        chapter = self._begin(step, Place(link, name, injected))
        cable, begin_ns, healed_ns, drops = chapter.place.cable, 0, 0, 0
        end_s = time.monotonic() + step.max_s
        while not chapter.is_detected and drops < DROPS_MAX and time.monotonic() < end_s:
            event = self._break(f"blackhole {link}", DROP_MAX_S)
            drops += 1
            if not begin_ns:
                begin_ns = event["start_begin_ns"]
                self._print(chapter.inject(begin_ns))
            self._pass_s(self._draw.drop_s())
            self._until(lambda: self._state(cable) == LinkState.DOWN or chapter.is_detected, DROP_MAX_S)
            healed_ns = self._clear(event["fault"])
            self._until(lambda: self._state(cable) in HEALTHY, RETURN_MAX_S)
        since_s = (healed_ns - begin_ns) / 1e9
        self._print(chapter.heal(time.time_ns(), f" since +{since_s:.2f} s, after {counted(drops, 'drop')}"))
        self._end_step(chapter, self._monotonic_s(begin_ns), self._monotonic_s(healed_ns))

    def _collision(self, step: Step) -> None:
        link = self._next_link(ascending=True)
        fabric, name = self._fabric, self._fabric.name(link)
        transfers = meeting_transfers(fabric, link, self._control.tcp_route, self._draw)
        rate = bps_text(transfers[0].spec(fabric, step.min_s)["rate_bps"])
        pairs = " and ".join(f"{transfer.source} > {transfer.destination}" for transfer in transfers)
        injected = (
            f"{pairs} begin to transfer {rate} each; both cross {name}, which carries "
            f"{bps_text(fabric.rate_bps)}; {self._crossed(link)}"
        )
        chapter = self._begin(step, Place(link, name, injected))
        flows = []
        begin_ns = 0
        for transfer in transfers:
            begin_ns = time.time_ns()
            flows.append(FlowRun(self._control, **transfer.spec(fabric, step.min_s)))
        self._print(chapter.inject(begin_ns))
        self._pass_s(step.min_s - (time.time_ns() - begin_ns) / 1e9)
        for flow in flows:
            flow.join()
        healed_ns = self._end_load(chapter)
        self._end_step(chapter, self._monotonic_s(begin_ns), self._monotonic_s(healed_ns))

    def _incast(self, step: Step) -> None:
        fabric = self._fabric
        receiver, senders = incast_hosts(fabric, self._draw)
        batch_s = self._draw.incast_batch_s()
        link = fabric.last_links[receiver]
        injected = (
            f"{', '.join(senders)} send to {receiver} at the same time, again and again; its link carries "
            f"{bps_text(fabric.rate_bps)}; {self._crossed(link)}"
        )
        chapter = self._begin(step, Place(link, fabric.name(link), injected))
        begin_ns = time.time_ns()
        incast = JobRun(self._control, **incast_spec(fabric, receiver, senders, step.max_s, batch_s))
        try:
            self._print(chapter.inject(begin_ns))
            self._watch(chapter, step)
        finally:
            incast.leave()
        healed_ns = self._end_load(chapter)
        self._end_step(chapter, self._monotonic_s(begin_ns), self._monotonic_s(healed_ns))

    # ------------------------------------------------------------------------------------ parts of steps

    def _next_link(self, *, ascending: bool = False) -> str:
        links = crossed_links(
            self._fabric,
            self._follower.flows().values(),
            self._follower.states(),
            self._used,
            ascending=ascending,
        )
        if not links:
            raise CannotRun("no healthy link between switches is left that a job crosses")
        return self._draw.one(links)

    def _crossed(self, link: str) -> str:
        flows = self._follower.flows()
        counts = Counter(
            flow["job"]
            for flow_id, flow in flows.items()
            if flow["job"] in JOBS and link in self._follower.links_of(flow_id)
        )
        jobs = [f"{counted(count, 'flow')} of {job}" for job, count in sorted(counts.items())]
        return f"{' and '.join(jobs) or 'no flow of the jobs'} cross it, with data or acknowledgements"

    def _begin(self, step: Step, place: Place) -> Chapter:
        self._used.add(place.cable)
        jobs = {flow_id: flow["job"] for flow_id, flow in self._follower.flows().items()}

        def job_of(flow_id: str) -> str | None:
            flow = self._follower.flows().get(flow_id)
            return jobs.get(flow_id) or (flow["job"] if flow is not None else None)

        sick = frozenset(
            subject for subject, state in self._follower.states().items() if state != LinkState.UP
        )
        self._narrator.phase(f"{step.fault}: waiting for the detection and its effects")

        def crosses(flow_id: str, port: int | None) -> bool:
            return place.link in self._follower.links_of(flow_id, port)

        self._chapter = Chapter(
            step, place, self._fabric.name, job_of, crosses, acting=self._acting, sick=sick
        )
        return self._chapter

    def _break(self, fault: str, limit_s: float) -> dict[str, Any]:
        """Break a link. The fault heals by itself some time after `limit_s`, in case the tour is killed."""
        event: dict[str, Any] = self._control.ask("fault", line=f"{fault} for {limit_s + 5:g}s")
        self._faults.add(event["fault"])
        return event

    def _clear(self, number: int) -> int:
        """Heal the fault with this number; return the time, ns since the Unix epoch."""
        events = self._control.ask("clear", fault=str(number))
        self._faults.discard(number)
        cleared_ns: int = events[0]["clear_end_ns"]
        return cleared_ns

    def _watch(self, chapter: Chapter, step: Step) -> None:
        """Print the events of a fault in force, until its effects are visible or its time is up."""
        begin_s = time.monotonic()
        self._pass_s(step.min_s - SEEN_S)
        self._until(lambda: chapter.is_detected, step.max_s - SEEN_S - (time.monotonic() - begin_s))
        self._pass_s(SEEN_S)

    def _wait_healed(self) -> None:
        """Wait until every fault has ended, and mark its outcome as healed."""

        def open_outcomes() -> Iterator[Outcome]:
            queues, faults = self._follower.queues(), self._control.ask("show")["faults"]
            for outcome, step in zip(self.outcomes, self._steps, strict=True):
                if step.is_link:
                    healed = not faults and self._state(Place(outcome.link, "", "").cable) in (*HEALTHY, None)
                else:
                    healed = outcome.link not in queues
                outcome.healed = healed
                if not healed:
                    yield outcome

        if list(open_outcomes()):
            self._narrator.phase("waiting until every link counts as healthy again")
            begin_s = time.monotonic()
            while list(open_outcomes()) and time.monotonic() < begin_s + OVER_S:
                self._pass_s(0.5)
            waited = seconds_text(time.monotonic() - begin_s)
            self._narrator.remark(f"{waited} more passed until every link counted as healthy.")

    # ------------------------------------------------------------------------------------ time and lines

    def _pass_s(self, seconds: float) -> None:
        self._until(lambda: False, seconds)

    def _until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Print events until `holds()` is true, for at most `limit_s`; return whether it became true."""

        def step() -> bool:
            self._check()
            events = self._follower.drain()
            if self._chapter is not None:
                lines = [line for event in events for line in self._chapter.take(event)]
                self._print(sorted(lines, key=lambda line: line.at_s or 0.0))  # topics are read in any order
            return holds()

        return wait_for(step, limit_s, POLL_S) is not None

    def _check(self) -> None:
        if self._follower.failure is not None:
            raise CannotRun(self._follower.failure)

    def _print(self, lines: list[Line]) -> None:
        for line in lines:
            self._narrator.line(line)

    def _state(self, cable: str) -> LinkState | None:
        return self._follower.states().get(cable)

    def _monotonic_s(self, wall_ns: int) -> float:
        return wall_ns / 1e9 - self._wall_s


def _ended_after(run: JobRun, at_s: float) -> bool:
    """Return whether a job has ended an iteration after `at_s`."""
    return bool(run.iterations) and run.iterations[-1][1] > at_s
