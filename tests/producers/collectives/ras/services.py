"""Starts RAS services of tests as processes with the environment of a job, and ends them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

RESPONDER = Path(__file__).parent / "responder.py"


class Started(NamedTuple):
    """A process of a job: its id, its port, and the file with the state that it reports."""

    pid: int
    port: int
    state: Path
    process: subprocess.Popen[str]

    def report(self, *communicators: Any, form: str = "json") -> None:
        """Report these communicators from now on."""
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps({"format": form, "communicators": communicators}))
        new.replace(self.state)


class Services:
    """Processes of jobs. Ends them at its own end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Started] = []

    def start(self, address: str = "127.0.0.1", port: int = 0, **environment: str) -> Started:
        """Start a process that listens at an address, at a free port unless one is given."""
        state = self._folder / f"state-{len(self._started)}.json"
        state.write_text(json.dumps({"format": "json", "communicators": []}))
        at = port or _free_port(address)
        value = f"[{address}]:{at}" if ":" in address else f"{address}:{at}"
        inherited = {
            name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ
        }
        process = subprocess.Popen(
            [sys.executable, str(RESPONDER), str(state)],
            env=inherited | {"NCCL_RAS_ADDR": value, **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(at)
        self._started.append(Started(process.pid, at, state, process))
        return self._started[-1]

    def end(self, started: Started) -> None:
        """End a process."""
        started.process.kill()
        started.process.wait()
        assert started.process.stdout is not None
        started.process.stdout.close()
        self._started.remove(started)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for started in list(self._started):
            self.end(started)


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        trial.bind((address, 0))
        port: int = trial.getsockname()[1]
        return port
