"""Checks before an action on a node."""

import pytest

from actuators.effectors.node_base import NodeError, check_drain, check_resume
from actuators.nodes.policy import NodeState

REASON = "fabrictime: run=r1 checks=node.ecc: 3 errors"


def test_a_drain_in_force_is_not_repeated():
    assert check_drain(NodeState("n1", False), REASON)
    assert not check_drain(NodeState("n1", True, REASON), REASON)


@pytest.mark.parametrize("reason", ["Anna", "", "fabrictime: run=r0 checks=node.ecc: 3 errors"])
def test_a_node_that_is_out_otherwise_is_refused(reason):
    with pytest.raises(NodeError, match="node n1: already out, "):
        check_drain(NodeState("n1", True, reason, "DOWN"), REASON)


def test_only_our_drain_is_ended():
    assert check_resume(NodeState("n1", True, REASON))
    assert not check_resume(NodeState("n1", False))
    with pytest.raises(NodeError, match="node n1: drained by another, Anna"):
        check_resume(NodeState("n1", True, "Anna"))
