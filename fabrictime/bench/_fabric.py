"""Runs `fabrictime up` on a fabric that forwards real packets, for benches and for the tour."""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from fabrictime.bench import Missing, Progress, Value
from fabrictime.bench._waiting import end_child, wait_for
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
    """A fabric with the whole pipeline: its control client, its log's address, its data directory."""

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
    """Return the settings with free ports for services without a table: several pipelines can run at once."""
    services = [name for name in ("log", "history", "web") if f"[{name}]" not in settings]
    return settings + "".join(f"[{name}]\nport = 0\n" for name in services)


@contextlib.contextmanager
def running_fabric(
    progress: Progress, settings: str, minutes: int = 15, start_s: float = START_S
) -> Iterator[RunningFabric]:
    """Run `fabrictime up` on a fabric, in a temporary directory, for at most `minutes`.

    Raises CannotRun if it cannot start or is not ready within `start_s`.
    """
    progress("fabric: starting")
    options = ("--fleet", "fabric", "--for", f"{minutes}m")
    with up_in_folder(with_any_ports(settings), *options, start_s=start_s) as (bootstrap, data):
        yield RunningFabric(ControlClient(socket_path(data)), bootstrap, data)


@contextlib.contextmanager
def up_in_folder(settings: str, *options: str, start_s: float = START_S) -> Iterator[tuple[str, Path]]:
    """Run `fabrictime up` in a temporary directory; yield its log's address and its data directory.

    Raises CannotRun.
    """
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as name:
        config, data = Path(name, "fabrictime.toml"), Path(name, "data")
        config.write_text(settings, encoding="utf-8")
        arguments = ["--config", str(config), *options]
        with running_up(arguments, data, Path(name, "up.log"), start_s) as bootstrap:
            yield bootstrap, data


@contextlib.contextmanager
def running_up(
    options: Sequence[str],
    data: Path,
    output: Path,
    start_s: float = START_S,
    *,
    is_ready: Callable[[Path], object] | None = None,
) -> Iterator[str]:
    """Run `fabrictime up` on a data directory; yield the address of its log. Raises CannotRun.

    Its output goes to the file `output`. Ctrl-C in the terminal does not reach it, since the caller ends it.
    `is_ready` says whether an `up` on a directory is ready; by default it is once the address is known.
    """
    up = [sys.executable, "-m", "fabrictime", "up", "--json", "--dir", str(data), *options]
    with output.open("wb") as out:
        child = subprocess.Popen(up, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield wait_running(child, data, output, start_s, is_ready)
    finally:
        end_child(child, signal.SIGINT, 30)


def wait_running(
    child: subprocess.Popen[bytes],
    data: Path,
    output: Path,
    start_s: float,
    is_ready: Callable[[Path], object] | None = None,
) -> str:
    """Wait until an `up` is ready, as `is_ready` says; return its log's address. Raises CannotRun."""
    ready = is_ready or partial(address_of, service="log")
    in_time = wait_for(lambda: child.poll() is not None or ready(data), start_s, poll_s=0.2)
    if child.poll() is not None:
        lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise CannotRun(f"fabrictime up: {lines[-1] if lines else f'ended with {child.returncode}'}")
    if in_time is None:
        raise CannotRun(f"fabrictime up: not running after {start_s:g} s")
    return address_of(data, "log")


def address_of(data: Path, service: str) -> str:
    """Return the address of a service of a running `fabrictime up`; empty while the address is not known."""
    state = state_of(data)
    return "" if state is None else str(state["addresses"].get(service, ""))


def state_of(data: Path) -> dict[str, Any] | None:
    """Return the state that `fabrictime up` wrote to its data directory; None if it has written none."""
    with contextlib.suppress(ValueError):
        return status.read(data)
    return None
