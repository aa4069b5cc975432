"""Runs `fabrictime up` on a fabric of real packets, for the benches that measure on one and for the tour."""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from fabrictime.bench import Missing, Progress, Value
from fabrictime.runtime import status
from fabrictime.testbed.control import ControlClient, socket_path
from fabrictime.testbed.processes.userns import namespaces_allowed

START_S: Final = 180.0


class CannotRun(Exception):
    """The fabric cannot run on this machine."""


def require_namespaces() -> None:
    """Raise CannotRun if this machine forbids namespaces."""
    if (denied := namespaces_allowed()) is not None:
        raise CannotRun(denied)


class RunningFabric(NamedTuple):
    """A fabric with the whole pipeline: its control, its log's address, its data directory."""

    control: ControlClient
    bootstrap: str
    data: Path


class _Measure(Protocol):
    def __call__(self, progress: Progress, quick: bool = False) -> dict[str, Value]: ...


class _Decorator(Protocol):
    def __call__(self, measure: _Measure, /) -> _Measure: ...


def needs_fabric(keys: Iterable[str]) -> _Decorator:
    """Decorate a `measure` function so that a CannotRun reports all `keys` as missing, with its reason."""

    def decorate(measure: _Measure) -> _Measure:
        @functools.wraps(measure)
        def measured(progress: Progress, quick: bool = False) -> dict[str, Value]:
            try:
                return measure(progress, quick)
            except CannotRun as reason:
                return {key: Missing(str(reason)) for key in keys}

        return measured

    return decorate


def with_any_ports(settings: str) -> str:
    """Return the settings, with free ports for services without a table: several products can run."""
    services = [name for name in ("log", "history", "web") if f"[{name}]" not in settings]
    return settings + "".join(f"[{name}]\nport = 0\n" for name in services)


@contextlib.contextmanager
def running_fabric(
    progress: Progress, settings: str, minutes: int = 15, start_s: float = START_S
) -> Iterator[RunningFabric]:
    """Run `fabrictime up` on a fabric, in a temporary directory, for at most `minutes`.

    Raises CannotRun, also if it is not ready within `start_s`.
    """
    progress("fabric: starting")
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as name:
        config, data, output = Path(name, "fabrictime.toml"), Path(name, "data"), Path(name, "up.log")
        config.write_text(with_any_ports(settings), encoding="utf-8")
        options = ["--fleet", "fabric", "--for", f"{minutes}m", "--config", str(config)]
        with running_up(options, data, output, start_s) as bootstrap:
            yield RunningFabric(ControlClient(socket_path(data)), bootstrap, data)


@contextlib.contextmanager
def running_up(options: Sequence[str], data: Path, output: Path, start_s: float = START_S) -> Iterator[str]:
    """Run `fabrictime up` on a data directory; yield the address of its log. Raises CannotRun.

    Its output goes to the file `output`. Ctrl-C in the terminal does not reach it, since the caller ends it.
    """
    up = [sys.executable, "-m", "fabrictime", "up", "--json", "--dir", str(data), *options]
    with output.open("wb") as out:
        child = subprocess.Popen(up, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield _wait_running(child, data, output, start_s)
    finally:
        end_child(child, signal.SIGINT, 30)


def end_child(child: subprocess.Popen[bytes], request: signal.Signals, limit_s: float) -> None:
    """Send `request` to a child process, and kill it if it has not ended after `limit_s`."""
    child.send_signal(request)
    try:
        child.wait(limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _wait_running(child: subprocess.Popen[bytes], data: Path, output: Path, start_s: float) -> str:
    """Wait until the log's address is known and return it. Raises CannotRun."""
    deadline_s = time.monotonic() + start_s
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise CannotRun(f"fabrictime up: {lines[-1] if lines else f'ended with {child.returncode}'}")
        with contextlib.suppress(ValueError, KeyError):
            return str(status.read(data)["addresses"]["log"])
        time.sleep(0.2)
    raise CannotRun(f"fabrictime up: not running after {start_s:g} s")
