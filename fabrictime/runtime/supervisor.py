"""Starts the services as processes in order of readiness, keeps them alive and stops them.

`Child` and `Step` nodes name their prerequisites. The supervisor reports events for the screen, provides a
snapshot for `status`, and keeps one log file per child. A child that dies is restarted: first at once, later
after pauses from `RESTART_DELAYS_S`. A child that refuses its configuration is retried after pauses from
`REFUSED_DELAYS_S`. The failure of a child stops no other child: the snapshot lists it as the child's fault
until the child is ready. Only an essential child or a step that fails at the start aborts the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from fabrictime.runtime.log_format import message_of
from fabrictime.runtime.ready import PARENT_VARIABLE, NotifySocket

CONFIG_EXIT: Final = 2
"""Exit code of a service whose settings or input it cannot use."""

RESTART_DELAYS_S: Final = (0.05, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Pause before the n-th consecutive restart, s; the last value repeats. All are below the 10 s within which a
failed child should be replaced.
"""

REFUSED_DELAYS_S: Final = (1.0, 2.0, 5.0, 10.0)
"""The same pauses after `CONFIG_EXIT`, longer, because its cause seldom ends and each start costs CPU."""

START_ATTEMPTS: Final = 5
"""Number of failed starts of a child that was never ready, after which others start without it."""

STEADY_S: Final = 10.0
"""Time for which a child must be ready so that its restart pauses begin with the shortest again, s."""

GONE_STOP_S: Final = 1.0
"""Time that a child has to stop once its files are gone, s."""

LOG_LIMIT_BYTES: Final = 4 << 20
TAIL_LINES: Final = 12
MAX_FAULT: Final = 300
"""Largest number of characters of a fault that are kept."""
MAX_STATUS: Final = 1_500
"""The same of a status: that of an agent is made of those of its parts."""
_LOG_PREFIX: Final = re.compile(r"^(\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ [\w.]+: |fabrictime: )")
"""The prefix, before the message itself, of a line that a child logs."""
_TICK_S: Final = 0.5
_WATCHDOG_CHECKS: Final = 10
"""How often a ready child is checked within its `watchdog_s`."""


class State(StrEnum):
    """The state of a child or step."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ChildFailed(Exception):
    """An essential child or a step failed at the start. The message is a line; `tail`: its last output."""

    def __init__(self, name: str, why: str, tail: Sequence[str] = ()) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.tail = tuple(tail)


@dataclass(frozen=True, slots=True)
class Child:
    """A process that reports READY=1 through NOTIFY_SOCKET. `needs` names nodes that must be ready first."""

    name: str
    argv: tuple[str, ...]
    needs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 4.0
    watchdog_s: float = 20.0
    """The child is killed and replaced if it sends no WATCHDOG=1 for this long; applies once it has sent one.
    Time in which it waits for a processor does not count, neither here nor for `ready_timeout_s`: a new
    process would wait as well.
    """
    essential: bool = False
    """Whether nothing can start without it: if it does not become ready, the start ends with its reason."""


@dataclass(frozen=True, slots=True)
class Step:
    """A task that runs once, between children, such as creating topics. Raises the errors of `run`."""

    name: str
    run: Callable[[], Awaitable[None]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a node's state, for the screen and the supervisor's own log."""

    name: str
    state: State
    text: str
    is_fault: bool = False


class ProcessorWait:
    """Measures for how many seconds a process was ready to run but had no processor.

    It reads the second number of /proc/PID/task/TID/schedstat (kernel documentation, scheduler/sched-stats):
    the waiting time of a thread since its start, ns. The thread that waited longest between two calls counts.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._threads: dict[str, int] = {}
        self.total_s = 0.0

    def update(self, pid: int | None) -> float:
        """Read the waiting times of a process's threads. Return the total wait so far, s."""
        threads: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for task in (self._proc / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    threads[task.name] = int((task / "schedstat").read_text().split()[1])
        grown_ns = (now_ns - self._threads.get(task, 0) for task, now_ns in threads.items())
        self.total_s += max((0, *grown_ns)) / 1e9
        self._threads = threads
        return self.total_s


class _Node:
    """The supervisor's record of one child or step, with its process and state."""

    def __init__(self, spec: Child | Step) -> None:
        self.spec = spec
        self.state = State.WAITING
        self.settled = asyncio.Event()
        """Set when the node became ready or failed for the first time: nodes that need it then start."""
        self.status = ""
        self.fault: str | None = None
        """The reason why it does not work, in one line: its report, or why it ended. None if it works."""
        self.reported_fault: str | None = None
        """The present process's own report (X_FAULT)."""
        self.end_reason = ""
        """Why the present process ends itself (X_END)."""
        self.starts = 0
        self.since_s = time.monotonic()
        self.ready_since_s: float | None = None
        self.last_exit: str | None = None
        self.watchdog_at_s: float | None = None
        self.wait = ProcessorWait()
        self.watchdog_wait_s = 0.0
        """How long the process had waited for a processor at `watchdog_at_s`, s."""
        self.process: subprocess.Popen[bytes] | None = None
        self.exited: asyncio.Future[None] | None = None
        self.socket: NotifySocket | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid


class Supervisor:
    """Runs a set of nodes.

    Call all methods from one event loop in the main thread: the kernel kills a child when the *thread* that
    started it ends.
    """

    def __init__(self, run_dir: Path, on_event: Callable[[Event], None] = lambda event: None) -> None:
        self._run_dir = run_dir
        self._on_event = on_event
        self._nodes: dict[str, _Node] = {}
        self._failure: asyncio.Future[ChildFailed] | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = False
        self._stops: set[asyncio.Task[None]] = set()
        """Children that `restart_all` ends."""

    def add(self, *specs: Child | Step) -> None:
        """Add nodes. Raises ValueError for a duplicate name or an unknown prerequisite."""
        for spec in specs:
            if spec.name in self._nodes:
                raise ValueError(f"{spec.name}: added twice")
            if missing := [need for need in spec.needs if need not in self._nodes]:
                raise ValueError(f"{spec.name}: needs {missing[0]}, which was not added before it")
            self._nodes[spec.name] = _Node(spec)

    async def start(self) -> None:
        """Start all nodes, as parallel as their needs allow. Return when each is ready or has failed once.

        Raises ChildFailed if an essential child or a step failed.
        """
        self._failure = asyncio.get_running_loop().create_future()
        self._ticker = asyncio.create_task(self._tick())
        for node in self._nodes.values():
            node.task = asyncio.create_task(self._keep(node), name=node.spec.name)
        everything = asyncio.create_task(self._all_settled())
        either: set[asyncio.Future[Any]] = {everything, self._failure}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._failure.done():
            everything.cancel()
            raise self._failure.result()

    async def _all_settled(self) -> None:
        for node in self._nodes.values():
            await node.settled.wait()

    @property
    def faults(self) -> dict[str, str]:
        """The reasons, one line each, of the children that do not work now, by child."""
        return {name: node.fault for name, node in self._nodes.items() if node.fault is not None}

    async def stop(self) -> None:
        """Stop all children in reverse order: SIGTERM, then SIGKILL after each child's time limit."""
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        for level in reversed(self._levels()):
            await asyncio.gather(*(self._stop_node(node) for node in level))
        for node in self._nodes.values():
            if node.socket is not None:
                asyncio.get_running_loop().remove_reader(node.socket.fileno())
                node.socket.close()
                node.socket = None

    def kill(self) -> None:
        """Kill all children at once. A later `stop` only collects their exit codes."""
        self._stopping = True
        for node in self._nodes.values():
            self._signal(node, signal.SIGKILL)

    def restart_all(self) -> None:
        """Stop all children and start them again, because the files that they keep open were removed.

        A child that has not ended after `GONE_STOP_S` is killed, as it may wait for a removed file.
        """
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for node in self._nodes.values():
            if isinstance(node.spec, Child):
                stop = asyncio.create_task(self._end(node, min(node.spec.stop_timeout_s, GONE_STOP_S)))
                self._stops.add(stop)
                stop.add_done_callback(self._stops.discard)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return a JSON-ready row per child: name, pid, state, status, fault, age_s, restarts, last_exit."""
        now_s = time.monotonic()
        return [
            {
                "name": name,
                "pid": node.pid,
                "state": node.state.value,
                "status": node.status,
                "fault": node.fault,
                "age_s": round(now_s - node.since_s, 1),
                "restarts": max(0, node.starts - 1),
                "last_exit": node.last_exit,
            }
            for name, node in self._nodes.items()
            if isinstance(node.spec, Child)
        ]

    def log_path(self, name: str) -> Path:
        """Return the path of a child's log file, which holds its output."""
        return self._run_dir / f"{name.replace('/', '-')}.log"

    def tail(self, name: str, lines: int = TAIL_LINES) -> list[str]:
        """Return the last lines of a child's output."""
        path = self.log_path(name)
        if not path.exists():
            return []
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 16_384))
            return log.read().decode("utf-8", "replace").splitlines()[-lines:]

    def _levels(self) -> list[list[_Node]]:
        depth: dict[str, int] = {}
        for name, node in self._nodes.items():
            depth[name] = 1 + max((depth[need] for need in node.spec.needs), default=-1)
        return [
            [self._nodes[name] for name in depth if depth[name] == level]
            for level in range(max(depth.values(), default=-1) + 1)
        ]

    def _set(self, node: _Node, state: State, text: str = "") -> None:
        node.state = state
        self._on_event(Event(node.spec.name, state, text))

    def _set_fault(self, node: _Node, fault: str | None) -> None:
        """Set the reason why a node does not work; None if it works. An unchanged reason causes no event."""
        fault = None if fault is None else fault[:MAX_FAULT]
        if fault is not None and fault != node.fault:
            self._on_event(Event(node.spec.name, node.state, fault, is_fault=True))
        node.fault = fault

    def _fail(self, node: _Node, why: str) -> None:
        """Mark a node as failed with the reason `why`, and abort the start."""
        self._set(node, State.FAILED, why)
        tail = self.tail(node.spec.name) if isinstance(node.spec, Child) else ()
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(ChildFailed(node.spec.name, why, tail))

    async def _keep(self, node: _Node) -> None:
        for need in node.spec.needs:
            await self._nodes[need].settled.wait()
        if isinstance(node.spec, Step):
            await self._run_step(node, node.spec)
            return
        first_s = time.monotonic()
        successive = 0
        while True:
            code = await self._attempt(node, node.spec)
            if self._stopping:
                return
            reason = self._reason(node, code)
            late = time.monotonic() - first_s > node.spec.ready_timeout_s
            if not node.settled.is_set() and (code == CONFIG_EXIT or late or node.starts >= START_ATTEMPTS):
                if node.spec.essential:
                    self._fail(node, reason)
                    return
                node.settled.set()
            steady = node.ready_since_s is not None and time.monotonic() - node.ready_since_s > STEADY_S
            successive = 0 if steady else successive
            delays_s = REFUSED_DELAYS_S if code == CONFIG_EXIT else RESTART_DELAYS_S
            pause_s = delays_s[min(successive, len(delays_s) - 1)]
            successive += 1
            self._set(node, State.RESTARTING)
            self._set_fault(node, reason)
            await asyncio.sleep(pause_s)

    async def _attempt(self, node: _Node, child: Child) -> int | None:
        """Run a child until it ends; return its exit code, None if it could not be started."""
        try:
            code = await self._run_once(node, child)
        except OSError as error:
            node.last_exit = f"cannot be started: {error}"
            return None
        node.last_exit = _exit_text(code)
        return code

    def _reason(self, node: _Node, code: int | None) -> str:
        """Return in one line why a child ended: a signal, its own reason, or its last line of output."""
        last_exit = node.last_exit or "ended"
        lines = [line for line in self.tail(node.spec.name) if line.strip()]
        last = node.end_reason or (_LOG_PREFIX.sub("", message_of(lines[-1])).strip() if lines else "")
        if code == CONFIG_EXIT:
            return last or f"{last_exit}: it cannot work with its configuration"
        if code is not None and code > 0 and last:
            return f"{last_exit}: {last}"
        return last_exit

    async def _run_step(self, node: _Node, step: Step) -> None:
        self._set(node, State.STARTING)
        try:
            await step.run()
        except Exception as error:  # noqa: BLE001 - whatever a step raises becomes the one line of ChildFailed
            self._fail(node, str(error) or type(error).__name__)
            return
        node.settled.set()
        self._set(node, State.READY)

    async def _run_once(self, node: _Node, child: Child) -> int:
        """Start a child's process, wait until it ends, and return its exit code."""
        loop = asyncio.get_running_loop()
        if node.socket is None:
            node.socket = NotifySocket()
            loop.add_reader(node.socket.fileno(), self._heard, node)
        process = node.process = self._popen(node, child, node.socket)
        pidfd = os.pidfd_open(process.pid)
        node.exited = loop.create_future()
        loop.add_reader(pidfd, _ended, loop, pidfd, node.exited)
        self._set(node, State.STARTING, f"pid {process.pid}")
        try:
            await self._until_exit(node, child)
            return _reap(process)
        finally:
            if process.returncode is not None:
                node.process = None

    def _popen(self, node: _Node, child: Child, notify: NotifySocket) -> subprocess.Popen[bytes]:
        node.status, node.ready_since_s, node.watchdog_at_s = "", None, None
        node.reported_fault, node.end_reason, node.wait = None, "", ProcessorWait()
        node.starts += 1
        node.since_s = time.monotonic()
        ours = {"NOTIFY_SOCKET": notify.address, PARENT_VARIABLE: str(os.getpid())}
        with self.log_path(child.name).open("ab", buffering=0) as log:
            return subprocess.Popen(
                child.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **child.env, **ours},
                process_group=0,
            )

    async def _until_exit(self, node: _Node, child: Child) -> None:
        if node.exited is None:
            raise RuntimeError(f"{child.name}: not started")
        ready_tick_s = max(_TICK_S, child.watchdog_s / _WATCHDOG_CHECKS)
        while not node.exited.done():
            is_ready = node.ready_since_s is not None
            await asyncio.wait({node.exited}, timeout=ready_tick_s if is_ready else _TICK_S)
            if node.exited.done() or self._stopping:
                continue
            if node.ready_since_s is not None and node.watchdog_at_s is None:
                continue
            now_s = time.monotonic() - node.wait.update(node.pid)
            if node.ready_since_s is None and now_s > node.since_s + child.ready_timeout_s:
                self._complain(node, f"not ready after {child.ready_timeout_s:.0f} s, killed")
                self._signal(node, signal.SIGKILL)
            elif (
                node.watchdog_at_s is not None
                and now_s + node.watchdog_wait_s - node.watchdog_at_s > child.watchdog_s
            ):
                self._complain(node, f"no sign of life for {child.watchdog_s:.0f} s, killed")
                self._signal(node, signal.SIGKILL)

    def _complain(self, node: _Node, text: str) -> None:
        self._on_event(Event(node.spec.name, node.state, text, is_fault=True))

    def _heard(self, node: _Node) -> None:
        if node.socket is None:
            return
        for variable, value in node.socket.messages(node.pid or -1):
            if variable == "STATUS":
                node.status = value[:MAX_STATUS]
            elif variable == "X_FAULT":
                node.reported_fault = value or None
                self._set_fault(node, node.reported_fault)
            elif variable == "X_END":
                node.end_reason = value
            elif variable == "WATCHDOG":
                node.watchdog_at_s, node.watchdog_wait_s = time.monotonic(), node.wait.update(node.pid)
            elif variable == "READY" and value == "1" and node.ready_since_s is None:
                node.ready_since_s = time.monotonic()
                node.settled.set()
                self._set_fault(node, node.reported_fault)
                self._set(node, State.READY, f"{node.ready_since_s - node.since_s:.1f} s")

    async def _stop_node(self, node: _Node) -> None:
        if node.process is not None and isinstance(node.spec, Child):
            self._set(node, State.STOPPING)
            await self._end(node, node.spec.stop_timeout_s)
        if node.task is not None:
            if node.process is None:
                node.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, SystemExit):  # an event handler ends the program
                await node.task
        if node.process is not None:  # its task was cancelled before it ended
            _reap(node.process)
            node.process = None
        self._set(node, State.STOPPED)

    async def _end(self, node: _Node, timeout_s: float) -> None:
        """End the process of a node: SIGTERM, then SIGKILL after `timeout_s`."""
        exited = node.exited
        if node.process is None or exited is None or exited.done():
            return
        self._signal(node, signal.SIGTERM)
        done, _ = await asyncio.wait({exited}, timeout=timeout_s)
        if not done:
            self._complain(node, f"did not stop within {timeout_s:.0f} s, killed")
            self._signal(node, signal.SIGKILL)
            await asyncio.wait({exited})

    def _signal(self, node: _Node, number: signal.Signals) -> None:
        if node.process is not None and node.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(node.process.pid, number)
                else:
                    node.process.send_signal(number)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(5)
            for name in self._nodes:
                _limit_log(self.log_path(name))


def _ended(loop: asyncio.AbstractEventLoop, pidfd: int, exited: asyncio.Future[None]) -> None:
    loop.remove_reader(pidfd)
    os.close(pidfd)
    if not exited.done():
        exited.set_result(None)


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code of a child that has ended, and kill the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _limit_log(path: Path) -> None:
    """Copy a log file above the limit to `.log.1`, then truncate it: children append to the open file."""
    if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
        shutil.copyfile(path, path.with_suffix(".log.1"))
        os.truncate(path, 0)
