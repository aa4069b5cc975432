"""Runs the embedded log and stream workers as separate processes, for benches and tests.

The context managers yield addresses and `psutil.Process`es, and end their processes on exit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fabrictime.bench._machine import peak_mb
from fabrictime.bench._waiting import end_child, wait_until


class Service:
    """A child process that reports readiness by NOTIFY_SOCKET. Its output goes to a file."""

    def __init__(
        self, module: str, settings: Mapping[str, Any], folder: Path, more: Sequence[str] = ()
    ) -> None:
        """Start `python -m module SETTINGS`, with `more` arguments."""
        self.output = folder / f"{module}-{time.monotonic_ns()}.log"
        self._path = Path(tempfile.mkdtemp(prefix="ft-notify-")) / "socket"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        self.status = ""
        self._is_stopping = False
        self._reading = threading.Thread(target=self._read, daemon=True)
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, json.dumps(dict(settings)), *more],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"NOTIFY_SOCKET": str(self._path)},
            )

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the process reports READY=1. Raises RuntimeError if it ends or exceeds the timeout."""
        deadline = time.monotonic() + timeout_s
        self._socket.settimeout(0.2)
        while time.monotonic() < deadline:
            try:
                text = self._socket.recv(4096).decode()
            except TimeoutError:
                if self.process.poll() is not None:
                    break
                continue
            self._take(text)
            if "READY=1" in text:
                self._reading.start()
                return
        raise RuntimeError(f"{self.output.name}: not ready, exit code {self.process.poll()}: {self.tail()}")

    def _take(self, text: str) -> None:
        if text.startswith("STATUS="):
            self.status = text.removeprefix("STATUS=").strip()

    def _read(self) -> None:
        """Read the readiness socket continuously, since a full socket would block the process."""
        while not self._is_stopping:
            with suppress(TimeoutError):
                self._take(self._socket.recv(4096).decode())

    def tail(self, characters: int = 2000) -> str:
        """Return the last characters of the process's output."""
        return self.output.read_text()[-characters:]

    def peak_mb(self) -> float:
        """Return the peak resident memory of the process so far, in MB."""
        return peak_mb(self.process.pid)

    def cpu_s(self) -> float:
        """Return the CPU seconds that all threads of the process have used since its start."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self, timeout_s: float = 20.0) -> int:
        """End the process by SIGTERM, or by SIGKILL after the timeout; return its exit code."""
        end_child(self.process, signal.SIGTERM, timeout_s)
        self._is_stopping = True
        if self._reading.is_alive():
            self._reading.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)
        if self._path.parent.exists():
            self._path.parent.rmdir()
        return self.process.wait()


@contextmanager
def service(module: str, settings: Mapping[str, Any], folder: Path) -> Iterator[Service]:
    """Run `python -m module SETTINGS` until the context ends; yield the service once it is ready."""
    started = Service(module, settings, folder)
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@contextmanager
def embedded_log(folder: Path, partitions: int = 8) -> Iterator[str]:
    """Run the embedded log with the project's topics; yield its address."""
    with embedded_log_service(folder, partitions=partitions, group_join_delay_ms=50) as (address, _):
        yield address


@contextmanager
def embedded_log_service(folder: Path, **settings: Any) -> Iterator[tuple[str, Service]]:
    """Run the embedded log with further `settings`; yield its address and its service."""
    settings = {"directory": str(folder / "log"), "port": 0, "min_free_bytes": 0, **settings}
    with service("fabrictime.log", settings, folder) as log:
        wait_until(lambda: log.status, 20, "embedded log", poll_s=0.01)
        yield log.status.removeprefix("listening on ").strip(), log


@contextmanager
def stream_worker(bootstrap: str, folder: Path, **settings: Any) -> Iterator[Service]:
    """Run one stream worker on the log at `bootstrap`; yield its service."""
    with service("streams", {"kafka": {"bootstrap": bootstrap}, **settings}, folder) as worker:
        yield worker
