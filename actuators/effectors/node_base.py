"""The interface of node effectors: the code that drains and resumes the nodes of a scheduler."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from actuators.nodes.policy import NodeState, is_ours, is_same_drain


class NodeError(Exception):
    """Raised if the scheduler did not answer, or refused. The text is one line for people."""


class Job(NamedTuple):
    """A job that runs on a node."""

    name: str
    owner: str


class NodeEffector(Protocol):
    """Drains and resumes nodes. Both actions first read the node's state, so repeating one has no effect."""

    how: str
    """Name of the means in reports."""

    def nodes(self, names: Collection[str] = ()) -> list[NodeState]:
        """Return the states of the named nodes, or of all nodes. Raises NodeError."""

    def jobs(self, node: str) -> list[Job]:
        """Return the jobs that run on a node. Raises NodeError."""

    def notify(self, job: Job, text: str) -> None:
        """Send a message to the owner of a job. Raises NodeError."""

    def drain(self, node: str, reason: str) -> None:
        """Stop new jobs on a node. Raises NodeError, also if others drained the node."""

    def resume(self, node: str) -> None:
        """Allow jobs on a node again. Raises NodeError, also if the drain was not set by this system."""


def check_drain(node: NodeState, reason: str) -> bool:
    """Return True to drain a node, False if this drain is in force. Raises NodeError for other drains."""
    if node.is_out and not is_same_drain(node.reason, reason):
        raise NodeError(f"node {node.name}: already out, {node.reason or node.state}")
    return not node.is_out


def check_resume(node: NodeState) -> bool:
    """Return True if this system drained the node, False if the node is in service.

    Raises NodeError if it was drained by someone else.
    """
    if node.is_out and not is_ours(node.reason):
        raise NodeError(f"node {node.name}: drained by another, {node.reason or node.state}")
    return node.is_out
