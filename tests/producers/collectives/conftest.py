"""Ranks of a job as real processes, and the service that reports them as a child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
COMMUNICATOR = "00000000abcdef01"
_SERVICE = """
import json, logging, sys
logging.basicConfig(level=logging.INFO)
from producers.collectives.service import main
from producers.collectives.settings import CollectiveSettings
from producers.settings import NicSettings
settings, nics = json.loads(sys.argv[1])
sys.exit(main(CollectiveSettings(**settings), [NicSettings(**nic) for nic in nics]))
"""


@pytest.fixture(scope="session")
def job_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("job") / "job"
    native = ROOT / "native" / "collectives"
    sources = [Path(__file__).parent / "job.c", native / "writer.c", native / "connect.c"]
    sources.append(native / "job_name.c")
    subprocess.run(["cc", "-O1", "-pthread", "-I", native, "-o", made, *sources], check=True)
    return made


class Rank:
    """A rank that runs commands; see job.c."""

    def __init__(self, program: Path, socket: Path, rank: int, **given: Any) -> None:
        env = {**os.environ, "FABRICTIME_COLLECTIVES": str(socket)}
        env |= {"FABRICTIME_JOB": given.get("job", "train")}
        env |= {"FABRICTIME_COLLECTIVES_EVENTS": str(given.get("events", 4096))}
        communicator, version = given.get("communicator", COMMUNICATOR), given.get("version", "2.30.7/v6")
        argv = [program, str(rank), "2", communicator, version]
        self.child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.child.pid

    def do(self, *commands: str) -> None:
        for command in commands:
            self.child.stdin.write(command + "\n")
        self.child.stdin.flush()
        for command in commands:
            assert self.child.stdout.readline().strip() == command.split()[0]

    def end(self) -> None:
        self.child.stdin.close()
        self.child.wait(10)
        self.child.stdout.close()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(10)
        self.child.stdin.close()
        self.child.stdout.close()


@pytest.fixture
def ranks(job_program: Path) -> Iterator[Callable[..., Rank]]:
    made: list[Rank] = []

    def start(socket: Path, rank: int = 0, **given: Any) -> Rank:
        made.append(Rank(job_program, socket, rank, **given))
        return made[-1]

    yield start
    for rank in made:
        if rank.child.poll() is None:
            rank.kill()


@pytest.fixture
def services() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []

    def start(settings: dict[str, Any], nics: list[dict[str, Any]]) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-c", _SERVICE, json.dumps([settings, nics])]
        path = os.pathsep.join((str(ROOT), str(ROOT / "clients" / "python")))
        made.append(subprocess.Popen(argv, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}))
        return made[-1]

    yield start
    for service in made:
        if service.poll() is None:
            service.terminate()
            service.wait(10)
