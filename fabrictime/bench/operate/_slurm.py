"""Runs a real Slurm on loopback as this user: munged, slurmctld and one slurmd per node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from fabrictime.bench._machine import free_ports
from fabrictime.bench._waiting import end_child, wait_for

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo")
LIMIT_S: Final = 60.0
COMMAND_S: Final = 30.0
STOP_S: Final = 10.0
CONF: Final = """ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=1
{more}
NodeName=gone State=FUTURE
"""


def missing() -> str:
    """Return the names of missing programs as text; empty if all are installed."""
    return ", ".join(name for name in PROGRAMS if shutil.which(name, path=_path()) is None)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class SlurmCluster:
    """A Slurm cluster that runs in the `with` block; `folder` must be accessible for all users, for munge."""

    def __init__(self, folder: Path, nodes: Sequence[str], more: str = "") -> None:
        """Set up the cluster; `more` has further lines of slurm.conf."""
        self.folder, self.nodes = folder, list(nodes)
        self.conf = folder / "slurm.conf"
        self.env = {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.conf)}
        self._processes: list[subprocess.Popen[bytes]] = []
        ports = free_ports(1 + len(nodes))
        name = socket.gethostname().partition(".")[0]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        text = CONF.format(name=name, folder=folder, ports=ports, user=user, more=more)
        for node, port in zip(nodes, ports[1:], strict=True):
            text += f"NodeName={node} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"
            (folder / f"spool-{node}").mkdir()
        self.conf.write_text(text + "PartitionName=all Nodes=ALL Default=YES State=UP\n")
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the daemons, and wait until every node is idle."""
        files = ("socket", "key-file", "log-file", "pid-file", "seed-file")
        names = ("munge.socket", "munge.key", "munged.log", "munged.pid", "munged.seed")
        options = [f"--{option}={self.folder / name}" for option, name in zip(files, names, strict=True)]
        self._start("munged", "--foreground", "--num-threads=2", *options)
        self.until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            self._start("slurmd", "-D", "-N", node, "-f", str(self.conf))
        self.until_in(*self.nodes)

    def scontrol(self, *arguments: str) -> str:
        """Run scontrol and return its output."""
        return self.run("scontrol", *arguments)

    def run(self, *command: str) -> str:
        """Run a command of Slurm and return its output."""
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=True, timeout=COMMAND_S
        ).stdout

    def states(self) -> dict[str, str]:
        """Return the state of each node; empty while slurmctld does not answer."""
        try:
            output = self.scontrol("-o", "show", "nodes")
        except subprocess.CalledProcessError:
            return {}
        rows = (dict(field.partition("=")[::2] for field in line.split()) for line in output.splitlines())
        return {row["NodeName"]: row["State"] for row in rows if "NodeName" in row}

    def until_in(self, *nodes: str) -> None:
        """Wait until these nodes are idle."""
        self.until(lambda: all(self.states().get(node) == "IDLE" for node in nodes), f"{nodes} idle")

    def restore(self) -> None:
        """Return every node to service; retry while a node's state is changing."""

        def are_idle() -> bool:
            states = self.states()
            for node in self.nodes:
                if "DRAIN" in states.get(node, "") or "DOWN" in states.get(node, ""):
                    with contextlib.suppress(subprocess.CalledProcessError):
                        self.scontrol("update", f"NodeName={node}", "State=RESUME")
            return all(states.get(node) == "IDLE" for node in self.nodes)

        self.until(are_idle, f"{self.nodes} idle")

    def updates(self, node: str) -> int:
        """Return how often slurmctld set a drain reason of this node."""
        log = next(self.folder.glob("slurmctld-*.out")).read_text(errors="replace")
        return log.count(f"update_node: node {node} reason set to")

    def stop(self) -> None:
        """End the daemons, the last first."""
        for process in reversed(self._processes):
            end_child(process, signal.SIGTERM, STOP_S)
        self._processes.clear()

    def _start(self, *command: str) -> None:
        log = self.folder / f"{Path(command[0]).name}-{len(self._processes)}.out"
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(command, env=self.env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
            )

    def until(self, condition: Callable[[], object], name: str) -> None:
        """Wait for a condition. Raises AssertionError with the output of the daemons."""

        def has_ended() -> bool:
            return any(process.poll() is not None for process in self._processes)

        in_time = wait_for(lambda: condition() or has_ended(), LIMIT_S)
        if in_time is None or (has_ended() and not condition()):
            text = "".join(
                f"\n{path.name}: {path.read_text(errors='replace').replace(chr(0), '')[-600:]}"
                for path in sorted(self.folder.glob("*.out"))
            )
            raise AssertionError(f"Slurm: {name}: not within {LIMIT_S} s{text}")
