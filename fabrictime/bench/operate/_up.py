"""Runs `fabrictime up` as a separate process, for benches and tests."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from fabrictime.bench._fabric import state_of
from fabrictime.bench._waiting import end_child, wait_for
from fabrictime.runtime import status
from schemas.run_module import module_command, script_command

AGENT_HOST: Final = "m1"
SETTINGS: Final = (
    f'[up]\nhost_name = "{AGENT_HOST}"\n'
    "[log]\nport = 0\n[history]\nport = 0\n[web]\nport = 0\n[metrics]\nport = 0\n"
)
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
STOP_S: Final = 60.0
SCRAPE_S: Final = 30.0


class Up:
    """Runs `fabrictime up` in its own folder until the `with` block ends."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        settings: str = "",
        ready_s: float = 300.0,
        code: Path | None = None,
    ) -> None:
        """Start `up`; the process ends with the context.

        `settings` has further lines of the settings file. `code` is the folder of the packages to run, by
        default this tree's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.directory, self._ready_s = folder / "data", ready_s
        (folder / "fabrictime.toml").write_text(SETTINGS + settings, encoding="utf-8")
        self.output = folder / "up.out"
        config = ("--config", str(folder / "fabrictime.toml"), "--dir", str(self.directory))
        command = module_command if code is None else partial(script_command, run_module_of(code))
        self._command = command("fabrictime", "up", *config, *arguments)

    def __enter__(self) -> Self:
        with self.output.open("w", encoding="utf-8") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        try:
            self.addresses = self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def state(self) -> dict[str, Any]:
        """Return the state that `fabrictime status` reads. Raises ValueError while it does not exist."""
        return status.read(self.directory)

    def stop(self) -> None:
        """End the process and its children."""
        end_child(self.process, signal.SIGTERM, STOP_S)

    def scrape(self, accept: str = "text/plain") -> str:
        """Return the metrics of all processes."""
        url = urlsplit(self.addresses["metrics"])
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=SCRAPE_S)
        with contextlib.closing(connection):
            connection.request("GET", url.path, headers={"Accept": accept})
            return connection.getresponse().read().decode()

    def _wait_until_ready(self) -> dict[str, str]:
        """Return the addresses by service once all services have started."""
        wait_for(lambda: self.process.poll() is not None or state_of(self.directory), self._ready_s, 0.2)
        state = state_of(self.directory)
        if state is None:
            text = self.output.read_text()[-2000:]
            raise RuntimeError(f"up: not ready, exit code {self.process.poll()}: {text}")
        addresses: dict[str, str] = state["addresses"]
        return addresses


def run_module_of(code: Path) -> str:
    """Return the text of a Python program that runs a module of the packages in a folder."""
    return str(code / "schemas" / "run_module.py")


def agent_arguments(folder: Path, log: str, nics: int = 2) -> tuple[str, ...]:
    """Write a fleet file of loopback addresses; return the arguments for the agent of its host alone."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        f'[[nics]]\nhost = "{AGENT_HOST}"\ndevice = "lo{number}"\naddress = "127.0.1.{number}"\nshard = "m"\n'
        for number in range(1, nics + 1)
    ]
    fleet = folder / "fleet.toml"
    fleet.write_text("\n".join(rows), encoding="utf-8")
    return ("--fleet", str(fleet), "--log", log)
