"""An embedded log of the test's own, probers as processes, and a reader of what they published."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded_log import EmbeddedLog, log_fixture, read_fixture  # noqa: F401  pytest finds fixtures

_numbers = itertools.count(2)
_RUN = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.probe.service import main
from producers.settings import NicSettings, ProbeSettings
settings, nic = json.loads(sys.argv[1])
sys.exit(main(ProbeSettings(**settings), NicSettings(**nic)))
"""


class Process:
    """A prober in a process of its own."""

    def __init__(self, settings: dict[str, Any], nic: dict[str, Any]) -> None:
        import json

        self.arguments = [sys.executable, "-c", _RUN, json.dumps([settings, nic])]
        self.name = f"{nic['host']}/{nic['device']}"
        self.start()

    def start(self) -> None:
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            self.arguments, cwd=root, env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.PIPE, text=True
        )

    def end(self, number: int = signal.SIGTERM, timeout_s: float = 10) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, text = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, text


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "probe.key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


@pytest.fixture
def start_prober(log: EmbeddedLog, key_file: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(host: str, *, nic: dict[str, Any] | None = None, **settings: Any) -> Process:
        pid = os.getpid()
        address = f"127.{pid // 250 % 125 + 126}.{pid % 250 + 1}.{next(_numbers)}"
        common = {
            "kafka": {"bootstrap": log.bootstrap},
            "key_file": str(key_file),
            "udp_port": 0,
            "first_path_port": 0,
            "rate_pps": 400,
            "announce_s": 1,
            "paths": 2,
        }
        made.append(
            Process(common | settings, {"host": host, "device": "lo", "address": address} | (nic or {}))
        )
        return made[-1]

    yield start
    for process in made:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)
