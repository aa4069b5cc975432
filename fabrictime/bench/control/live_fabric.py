"""Runs and observes jobs, flows and queues on a running fabric, for the benches of pacing and steering.

`JobRun`, `FlowRun` and `QueueLog` each follow the fabric's control in a thread. `Loop` measures the cost of
the services. All times are of the monotonic clock, in s.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import psutil

from fabrictime.bench._fabric import CannotRun
from fabrictime.commands.config.live_config import LiveRecords, changed
from fabrictime.testbed.control import ControlClient, NoFabric
from fabrictime.testbed.fabric.fabric import FabricError
from schemas.limits import EVERYONE

Reply = dict[str, Any]
"""A reply of the test fabric's control socket."""
Span = tuple[float, float]
"""Begin and end of an interval, s."""

FRAME_BYTES: Final = 1_514
PAYLOAD_BYTES: Final = 1_448
"""Payload of a full TCP segment with timestamps, in a frame of `FRAME_BYTES`."""
_SLOT_S: Final = 0.02
_NO_LOOP: Final = "fabrictime.testbed.processes.fork_server"
"""Name in the command line of the process that sends traffic, which does not count as part of the loop."""


class JobRun:
    """A running job and its iterations that have ended so far."""

    def __init__(self, control: ControlClient, **spec: Any) -> None:
        self._stream = control.stream("job", **spec)
        self.started: Reply = next(self._stream)
        self.bytes: int = self.started["iteration_bytes"]
        self.iterations: list[tuple[float, float]] = []
        """Begin and end of each iteration, s."""
        self.result: Reply = {}
        self._leaving = False
        self._thread = threading.Thread(target=self._listen, name="job", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(FabricError, NoFabric):
            for lines in self._stream:
                if "ended" in lines:
                    self.result = lines
                else:
                    iterations = [
                        (iteration["begin_ns"] / 1e9, iteration["end_ns"] / 1e9)
                        for iteration in lines["iterations"]
                    ]
                    self.iterations += iterations
                if self._leaving:
                    break
        self._stream.close()

    @property
    def ports(self) -> set[tuple[str, int, int]]:
        """(host, source port, peer port) of the job's connections when it began."""
        return {(one["source"], one["source_port"], one["peer_port"]) for one in self.started["connections"]}

    def goodput_bps(self, span: Span) -> float:
        """Return the goodput, bit/s, of complete iterations in a span; 0 if fewer than two ended in it."""
        ends = [end for _, end in self.iterations if span[0] <= end <= span[1]]
        return (len(ends) - 1) * self.bytes * 8 / (ends[-1] - ends[0]) if len(ends) > 1 else 0.0

    def took_s(self, span: Span) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the durations, s, of the iterations that lie within a span."""
        return np.array(
            [end - begin for begin, end in self.iterations if span[0] <= begin and end <= span[1]]
        )

    def leave(self) -> None:
        """End the job now."""
        self._leaving = True
        self._thread.join(20)


class FlowRun:
    """A running TCP flow; when it has ended, its received bytes over time are known."""

    def __init__(self, control: ControlClient, **spec: Any) -> None:
        self._stream = control.stream("flow", protocol="tcp", interval_s=_SLOT_S, **spec)
        self.started: Reply = next(self._stream)
        self._result: Reply = {}
        self._thread = threading.Thread(target=self._listen, name="flow", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(FabricError, NoFabric):
            self._result = next(self._stream)

    def join(self) -> None:
        """Wait until the flow has ended. Raises CannotRun if it has no result."""
        self._thread.join(120)
        if not self._result:
            raise CannotRun("a flow ended without a result")

    def frames_bps(self, span: Span) -> float:
        """Return the rate, bit/s, of the flow's frames that arrived within a span."""
        slots = np.array(self._result["interval_bytes"], float)
        begin_s = self._result["begin_monotonic_ns"] / 1e9
        first, last = (round((at_s - begin_s) / _SLOT_S) for at_s in span)
        paced = slots[max(0, first) : max(0, last)].sum()
        return float(paced * 8 * FRAME_BYTES / PAYLOAD_BYTES / (span[1] - span[0]))


class QueueLog:
    """The true queues, in bytes, at some links, sampled every `interval_s`."""

    def __init__(
        self, control: ControlClient, links: Sequence[str], duration_s: float, interval_s: float = 0.005
    ) -> None:
        self._stream = control.stream(
            "queues", links=list(links), interval_s=interval_s, duration_s=duration_s
        )
        self._at_s: list[float] = []
        self._bytes: list[list[int]] = []
        self._leaving = False
        self._thread = threading.Thread(target=self._listen, name="queues", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(FabricError):
            for lines in self._stream:
                for at_ns, queued in lines["samples"]:
                    self._at_s.append(at_ns / 1e9)
                    self._bytes.append(queued)
                if self._leaving:
                    break
        self._stream.close()

    def within(self, span: Span) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the bytes within a span, [samples, links]."""
        at_s = np.array(self._at_s)
        return np.array(self._bytes, float)[: len(at_s)][(at_s >= span[0]) & (at_s <= span[1])]

    def leave(self) -> None:
        """Stop sampling."""
        self._leaving = True
        self._thread.join(20)


class Loop:
    """Measures the processor time of the control loop: all of `fabrictime up` except senders of traffic."""

    def __init__(self) -> None:
        self._busy = self._now()
        self._at_s = time.monotonic()

    def cores(self) -> float:
        """Return the processor seconds per second that the loop used since the last call."""
        busy, at_s = self._now(), time.monotonic()
        cores = sum(max(0.0, seconds - self._busy.get(name, 0.0)) for name, seconds in busy.items()) / max(
            1e-9, at_s - self._at_s
        )
        self._busy, self._at_s = busy, at_s
        return cores

    def _now(self) -> dict[tuple[int, float], float]:
        seconds_by_process = {}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                text = process.cmdline()
                if _NO_LOOP not in text:
                    times = process.cpu_times()
                    seconds_by_process[process.pid, process.create_time()] = times.user + times.system
        return seconds_by_process


def configure(bootstrap: str, *settings: str, unset: Sequence[str] = ()) -> None:
    """Set limits, given as `NAME=VALUE`, for all users, as `fabrictime config set` does. Raises CannotRun."""
    live = LiveRecords(bootstrap)
    try:
        live.publish(changed(live.records.get(EVERYONE), EVERYONE, settings, unset))
    except ValueError as error:
        raise CannotRun(str(error)) from None


def last_link(control: ControlClient, host: str) -> str:
    """Return the link that ends at the first NIC of a host."""
    links: list[str] = control.ask("show")["links"]
    return next(link for link in links if link.partition(">")[2].partition(":")[0] == host)
