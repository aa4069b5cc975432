"""Drains and resumes Slurm nodes by `scontrol`, with the settings file at `SLURM_CONF` or the usual one."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Collection
from typing import Final

from actuators.effectors.node_base import Job, NodeError, check_drain, check_resume
from actuators.nodes.policy import NodeState

OUT: Final = (
    "DOWN",
    "DRAIN",
    "ERROR",
    "FAIL",
    "INVALID",
    "MAINT",
    "NO_RESPOND",
    "NOT_RESPONDING",
    "REBOOT",
    "UNKNOWN",
)
"""Prefixes of the states and flags of a node that accepts no jobs."""
NO_ANSWER: Final = "*"
"""Suffix that older releases add to the state of a node that does not answer."""
NOT_THERE: Final = "FUTURE"
"""State of a node that the configuration only reserves."""
RECENT_S: Final = 0.25
"""Time for which a description of a node is not read again, s."""
_NAME: Final = re.compile(r"NodeName=(\S+) ")
_STATE: Final = re.compile(r" State=(\S+) ")
_REASON: Final = re.compile(r" Reason=(.*?) \[[^\s\[\]]+@[-\dT:]+\](?: |$)")
"""Matches a node's reason, which ends with its author and time."""


class Slurm:
    """Drains and resumes nodes of a Slurm cluster. The calling user must be a Slurm operator."""

    how = "SLURM"

    def __init__(self, limit_s: float = 10.0) -> None:
        """Set `limit_s`, the time that one `scontrol` command may take, s."""
        self._limit_s = limit_s
        self._recent: dict[str, NodeState] = {}
        self._recent_s = 0.0

    def nodes(self, names: Collection[str] = ()) -> list[NodeState]:
        """Return the states of the named nodes, or of all nodes. Raises NodeError."""
        which = ("node", ",".join(names)) if names else ("nodes",)
        self._recent_s = time.monotonic()
        nodes = parse_nodes(self._scontrol("--oneliner", "show", *which))
        self._recent = {node.name: node for node in nodes}
        return nodes

    def jobs(self, node: str) -> list[Job]:
        """Return the jobs to which Slurm has allocated a node. Raises NodeError."""
        states = "--states=RUNNING,SUSPENDED,COMPLETING"
        text = self._run("squeue", "--noheader", states, "--format=%A %u", f"--nodelist={node}")
        rows = (line.split() for line in text.splitlines())
        return [Job(row[0], row[1]) for row in rows if len(row) == 2]

    def notify(self, job: Job, text: str) -> None:
        """Write `text` to the standard error of a batch job, or of its salloc or srun. Raises NodeError."""
        self._scontrol("notify", job.name, text)

    def drain(self, node: str, reason: str) -> None:
        """Stop new jobs on a node; running jobs continue to their end. Raises NodeError."""
        if check_drain(self._node(node), reason):
            self._update(node, "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        """End the drain by UNDRAIN, which unlike RESUME does not bring a DOWN node up. Raises NodeError."""
        if check_resume(self._node(node)):
            self._update(node, "State=UNDRAIN")

    def _update(self, node: str, *fields: str) -> None:
        self._recent.pop(node, None)
        self._scontrol("update", f"NodeName={node}", *fields)

    def _node(self, node: str) -> NodeState:
        """Return the state of one node, read from Slurm now."""
        if node in self._recent and time.monotonic() < self._recent_s + RECENT_S:
            return self._recent[node]
        nodes = parse_nodes(self._scontrol("--oneliner", "show", "node", node))
        if len(nodes) != 1 or nodes[0].name != node:
            raise NodeError(f"node {node}: Slurm shows {len(nodes)} nodes, expected this one")
        return nodes[0]

    def _scontrol(self, *arguments: str) -> str:
        return self._run("scontrol", *arguments)

    def _run(self, program: str, *arguments: str) -> str:
        command = f"{program} {' '.join(arguments[:3])}"
        try:
            done = subprocess.run(
                [program, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=self._limit_s,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise NodeError(f"{command}: no end within {self._limit_s:g} s") from None
        except OSError as error:
            raise NodeError(f"{command}: {error.strerror}") from None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise NodeError(f"{command}: exit code {done.returncode}: {lines[-1]}")
        return done.stdout


def parse_nodes(text: str) -> list[NodeState]:
    """Return the nodes that `scontrol --oneliner show nodes` printed. Raises NodeError for another format."""
    nodes = []
    for line in text.split("\n"):
        name, state, reason = _NAME.match(line), _STATE.search(line), _REASON.search(line)
        if not line.strip():
            continue
        if name is None or state is None:
            raise NodeError(f"scontrol: {line[:80]!r}: expected NodeName=... State=...")
        flags = state[1].split("+")
        if NOT_THERE not in flags:
            is_out = any(flag.startswith(OUT) or flag.endswith(NO_ANSWER) for flag in flags)
            is_drained = reason is not None and any(flag.startswith("DRAIN") for flag in flags)
            nodes.append(NodeState(name[1], is_out, reason[1] if reason and is_drained else "", state[1]))
    return nodes
