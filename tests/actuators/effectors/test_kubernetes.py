"""Drains and resumes in Kubernetes, by the real client against an API server on loopback.

No real cluster was tried. The server's merge of patches follows the published rules.
"""

import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.effectors.kubernetes import CONDITION, Kubernetes, node_state
from actuators.effectors.node_base import NodeError
from actuators.nodes.policy import NodeState
from tests.actuators.kubernetes_server import KubernetesServer, node, pod

pytest.importorskip("kubernetes", reason="the package kubernetes is missing (extra kubernetes)")

REASON = "fabrictime: run=r1 checks=node.ecc: 3 errors, expected 0"
OTHER = {"key": "gpu", "effect": "NoSchedule"}


@pytest.fixture
def server():
    with KubernetesServer(
        node("n1", taints=[OTHER]), node("n2", unschedulable=True), node("n3")
    ).running() as found:
        yield found


@pytest.fixture
def effector(server, tmp_path):
    return Kubernetes(server.kubeconfig(tmp_path / "config"), limit_s=5)


def states(effector):
    return {each.name: (each.is_out, each.reason, each.state) for each in effector.nodes()}


def test_a_drain_sets_condition_taint_and_cordon_and_a_resume_removes_them(server, effector):
    before = server.nodes["n1"]["spec"]
    effector.drain("n1", REASON)
    assert states(effector)["n1"] == (True, REASON, "cordoned, tainted")
    assert server.nodes["n1"]["spec"] == {
        "unschedulable": True,
        "taints": [OTHER, {"key": "fabrictime/unfit", "effect": "NoSchedule"}],
    }
    condition = server.condition("n1")
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", "AuditFailed", REASON)
    assert server.condition("n1", "Ready")["status"] == "True"
    effector.resume("n1")
    assert states(effector)["n1"] == (False, "", "")
    assert server.nodes["n1"]["spec"] == before
    assert server.condition("n1")["status"] == "False"
    assert "annotations" not in server.nodes["n1"]["metadata"]


def test_the_pods_of_a_node_are_its_jobs_and_their_owners_see_an_event(server, effector):
    server.pods = [
        pod("train-0", "n1"),
        pod("proxy", "n1", owner="DaemonSet"),
        pod("old", "n1", phase="Succeeded"),
        pod("train-1", "n2"),
    ]
    (job,) = effector.jobs("n1")
    assert (job.name, job.owner) == ("ml/train-0", "ml")
    effector.notify(job, REASON)
    (event,) = server.events
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ml",
        "name": "train-0",
    }
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "NodeDrain", REASON)


def test_slinky_drains_through_slurm_with_our_reason(server, tmp_path):
    """Annotation and cordon are in one patch, so that Slinky's operator never sees one of them alone."""
    effector = Kubernetes(server.kubeconfig(tmp_path / "config"), is_slinky=True)
    server.pods = [pod("w-0", "n1", conditions=["SlurmNodeStateMixed"]), pod("w-1", "n1", owner="NodeSet")]
    assert [each.name for each in effector.jobs("n1")] == ["ml/w-0"]
    effector.drain("n1", REASON)
    (patch,) = (each for _, each in server.patches if "spec" in each)
    key = "nodeset.slinky.slurm.net/node-cordon-reason"
    assert (patch["metadata"]["annotations"][key], patch["spec"]["unschedulable"]) == (REASON, True)
    effector.resume("n1")
    assert "annotations" not in server.nodes["n1"]["metadata"]
    assert effector.how == "SLINKY"


def test_nothing_is_done_twice(server, effector):
    effector.drain("n3", REASON)
    patches = len(server.patches)
    effector.drain("n3", REASON)
    assert len(server.patches) == patches
    effector.resume("n3")
    effector.resume("n3")
    assert len(server.patches) == 2 * patches
    assert "taints" not in server.nodes["n3"].get("spec", {})


def test_a_node_that_another_cordoned_is_left_alone(server, effector):
    assert states(effector)["n2"] == (True, "", "cordoned")
    with pytest.raises(NodeError, match="node n2: already out, cordoned"):
        effector.drain("n2", REASON)
    with pytest.raises(NodeError, match="node n2: drained by another, cordoned"):
        effector.resume("n2")
    assert not server.patches


@pytest.mark.parametrize(
    ("patch", "error"), [(1, "already out, cordoned"), (2, "409 Conflict: the object has been modified")]
)
def test_a_cordon_by_another_in_between_is_kept(server, effector, patch, error):
    def cordon(name):
        if len(server.patches) == patch - 1:
            server.nodes[name]["spec"] = {"unschedulable": True}
            server.nodes[name]["metadata"]["resourceVersion"] = "9"

    server.before_patch = cordon
    with pytest.raises(NodeError, match=error):
        effector.drain("n3", REASON)
    assert server.nodes["n3"]["spec"] == {"unschedulable": True}
    (condition,) = (each for each in server.nodes["n3"]["status"]["conditions"] if each["type"] == CONDITION)
    assert (condition["status"], condition["reason"]) == ("False", "NotDrained")
    with pytest.raises(NodeError, match="already out, cordoned"):
        effector.drain("n3", REASON)


def test_a_killed_drain_is_completed_by_the_next(server, effector):
    effector._set_condition("n3", "True", "AuditFailed", REASON)
    assert states(effector)["n3"] == (False, "", "")
    effector.drain("n3", REASON)
    assert states(effector)["n3"][0]


def test_a_node_that_is_not_ready_is_out(server, effector):
    server.nodes["n3"]["status"]["conditions"][0]["status"] = "Unknown"
    assert states(effector)["n3"] == (True, "", "not ready")


def test_nodes_come_in_pages(tmp_path):
    with KubernetesServer(*(node(f"n{number:04}") for number in range(1001))).running() as server:
        found = Kubernetes(server.kubeconfig(tmp_path / "config")).nodes()
    assert len({each.name for each in found}) == 1001


def test_wrong_rights_and_unknown_nodes_are_one_line(server, effector, tmp_path):
    with pytest.raises(NodeError, match="Kubernetes: 401 Unauthorized: Unauthorized"):
        Kubernetes(server.kubeconfig(tmp_path / "other", token="wrong")).nodes()
    with pytest.raises(NodeError, match='404 Not Found: nodes "n9" not found'):
        effector.drain("n9", REASON)


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"items":3}'),
        (200, b'{"items":[{"spec":{}}],"metadata":{}}'),
        (500, b""),
    ],
)
def test_another_answer_is_one_line(server, effector, answer):
    server.answer = answer
    with pytest.raises(NodeError, match=r"^Kubernetes: .+") as caught:
        effector.nodes()
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer_is_one_line(tmp_path):
    server = KubernetesServer()
    path = server.kubeconfig(tmp_path / "config")
    server._http.server_close()
    with pytest.raises(NodeError, match=r"MaxRetryError: .*refused"):
        Kubernetes(path, limit_s=1).nodes()
    with (
        socket.create_server(("127.0.0.1", server._http.server_port)),
        pytest.raises(NodeError, match="timed out"),
    ):
        Kubernetes(path, limit_s=0.2).nodes()


def test_a_missing_or_wrong_kubeconfig_is_one_line(tmp_path):
    with pytest.raises(NodeError, match="none: "):
        Kubernetes(tmp_path / "none")
    (tmp_path / "empty").write_text("")
    with pytest.raises(NodeError, match="empty: "):
        Kubernetes(tmp_path / "empty")


def test_a_taint_alone_marks_our_drain():
    item = node("n1", taints=[{"key": "fabrictime/unfit", "effect": "NoSchedule"}])
    assert node_state(item).reason == ""
    assert node_state(item).is_out


KEYS = st.sampled_from(
    ["metadata", "name", "spec", "status", "conditions", "taints", "key", "type", "annotations"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(
    JSON | st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": st.just("n1")}), "spec": JSON})
)
def test_any_description_of_a_node_is_read_or_refused(item):
    with suppress(NodeError):
        assert isinstance(node_state(item), NodeState)
