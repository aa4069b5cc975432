"""Starts the processes of flows and jobs on a testbed, and ends running ones when the testbed closes."""

from __future__ import annotations

import itertools
import json
import select
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from fabrictime.testbed.fabric.fabric import Fabric, FabricError
from fabrictime.testbed.processes.fork_server import ForkServer, Kind, Worker

_NAME_MAX = 128


def check_fields(spec: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Check a spec's numbers, `job` and `tenant` against `bounds`. Raises ValueError with the field."""
    for name, (low, high) in bounds.items():
        value = getattr(spec, name)
        if not low <= value <= high:  # NaN fails as well
            raise ValueError(f"{name} {value!r}: expected {low:g} to {high:g}")
    for name in ("job", "tenant"):
        value = getattr(spec, name)
        if value is not None and not (0 < len(value) <= _NAME_MAX and value.isprintable()):
            raise ValueError(f"{name} {value!r}: expected 1 to {_NAME_MAX} printable characters")


class _Run(Protocol):
    @property
    def running(self) -> bool: ...

    def kill(self) -> None: ...


R = TypeVar("R", bound=_Run)


class Workers(Generic[R]):
    """The running flows, or jobs, of one testbed.

    `fork_server` starts their processes. `registrations` is the flow reporter's socket, at which flows
    register. `control` is that of the actuator, which may move and pace the flows. Either may start later.
    """

    def __init__(
        self,
        fabric: Fabric,
        fork_server: ForkServer,
        registrations: Path | None = None,
        control: Path | None = None,
    ) -> None:
        self._fabric, self._fork_server = fabric, fork_server
        self._sockets = {
            "registrations": None if registrations is None else str(registrations),
            "control": None if control is None else str(control),
        }
        self._runs: dict[int, R] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        fabric.on_close(self.close)

    def running(self) -> list[R]:
        """Return the flows, or jobs, that are still running."""
        with self._lock:
            self._runs = {number: run for number, run in self._runs.items() if run.running}
            return list(self._runs.values())

    def close(self) -> None:
        """End all running flows or jobs."""
        for run in self.running():
            run.kill()

    def _begin(
        self,
        kind: Kind,
        name: str,
        order: dict[str, Any],
        timeout_s: float,
        make: Callable[[int, Worker, dict[str, Any]], R],
    ) -> R:
        """Start a worker with its order; return the result of `make` for its first line of output.

        Raises FabricError with `name` if the worker does not start.
        """
        try:
            worker = self._fork_server.start(kind)
        except OSError as error:
            raise FabricError(f"{name}: {error.strerror}") from error
        try:
            worker.stdin.write(json.dumps(order | self._sockets) + "\n")
            worker.stdin.flush()
            started = read(worker, timeout_s)
            if started is None or "started" not in started:
                raise FabricError(f"{name}: {(started or {}).get('error', 'did not start')}")
        except BaseException as error:
            end(worker)
            if isinstance(error, OSError):
                raise FabricError(f"{name}: {error}") from error
            raise
        with self._lock:
            number = next(self._numbers)
            self._runs[number] = run = make(number, worker, started)
        return run


def read(worker: Worker, timeout_s: float) -> dict[str, Any] | None:
    """Return a worker's next line, parsed; None if none comes in time. Workers write whole lines."""
    if not select.select([worker.stdout], [], [], timeout_s)[0]:
        return None
    line = worker.stdout.readline()
    return json.loads(line) if line else None


def end(worker: Worker) -> None:
    """End a worker's process if it still runs, and close its pipes."""
    worker.end()
    worker.stdout.close()
