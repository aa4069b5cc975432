"""The admission webhook's answers: which objects are refused, which cause a warning, and hostile ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actuators.nodes.fitness import Fitness, HostFitness
from fabrictime.audit import webhook
from fabrictime.audit.webhook import HOSTNAME, PREFLIGHT, BadReview, answer, nodes_of, templates
from tests.examples import examples

REASONS = {Fitness.UNFIT: ("backend.carrier: mlx5_0 is down",), Fitness.UNKNOWN: ("no result",)}


def evaluate(node: str) -> HostFitness:
    """Nodes b1, b2, … are unfit, u1, u2, … unknown, all others fit."""
    fitness = {"b": Fitness.UNFIT, "u": Fitness.UNKNOWN}.get(node[:1], Fitness.FIT)
    return HostFitness(node, fitness, REASONS.get(fitness, ()))


def review(root: Any, operation: str = "CREATE") -> dict[str, Any]:
    return {"kind": "AdmissionReview", "request": {"uid": "7", "operation": operation, "object": root}}


def pod(asked: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"annotations": {PREFLIGHT: asked}} if asked else {}
    return {"metadata": metadata, "spec": {"containers": [{"name": "train"}], **spec}}


def affinity(*terms: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def named(*nodes: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": list(nodes)}]}


def field(*nodes: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(nodes)}]}


def response(root: Any, fault: str = "", operation: str = "CREATE") -> dict[str, Any]:
    reply = answer(review(root, operation), evaluate, fault)
    assert (reply["apiVersion"], reply["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    body: dict[str, Any] = reply["response"]
    assert body["uid"] == "7"
    return body


OTHER = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({}, None),
        ({"nodeName": "b1"}, {"b1"}),
        ({"nodeSelector": {HOSTNAME: "b1", "zone": "a"}}, {"b1"}),
        (affinity(named("n1", "b1")), {"n1", "b1"}),
        (affinity(field("n1"), named("b1")), {"n1", "b1"}),
        (affinity(named("n1"), OTHER), None),
        (affinity({**named("n1", "n2"), **field("n2")}), {"n2"}),
        (affinity({"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": ["n1"]}]}), None),
        ({**affinity(named("n1", "b1")), "nodeName": "b1"}, {"b1"}),
        ({**affinity(named("n1")), "nodeName": "b1"}, set()),
    ],
)
def test_the_nodes_of_a_pod_are_those_that_it_names(spec: Any, nodes: Any) -> None:
    assert nodes_of(spec) == nodes


def test_a_pod_that_requires_fit_nodes_is_refused_on_an_unfit_one() -> None:
    body = response(pod("required", nodeName="b1"))
    assert body["allowed"] is False
    assert body["status"]["code"] == 403
    assert body["status"]["message"] == "b1: unfit: backend.carrier: mlx5_0 is down"
    assert "warnings" not in body


def test_others_are_admitted_with_a_warning() -> None:
    assert response(pod(nodeName="b1")) == {
        "uid": "7",
        "allowed": True,
        "warnings": ["b1: unfit: backend.carrier: mlx5_0 is down"],
    }
    assert response(pod("off", nodeName="b1")) == {"uid": "7", "allowed": True}
    assert response(pod("required", nodeName="n1")) == {"uid": "7", "allowed": True}


def test_the_scheduler_may_still_choose_a_fit_node() -> None:
    body = response(pod("required", **affinity(named("b1", "n1", "n2"))))
    assert body["allowed"]
    assert body["warnings"] == ["b1: 1 of 3 nodes are unfit: backend.carrier: mlx5_0 is down"]


def test_an_unknown_fitness_admits_with_a_warning() -> None:
    assert response(pod("required", nodeName="u1"))["warnings"] == ["u1: no verdict of an audit"]
    body = response(pod("required", nodeName="b1"), fault="log k:9092: no answer")
    assert body["allowed"]
    assert body["warnings"] == ["fitness of b1 was not checked: log k:9092: no answer"]
    assert "warnings" not in response(pod("required"), fault="log k:9092: no answer")


def test_pods_of_a_node_and_other_operations_are_admitted() -> None:
    of_daemon = pod("required", nodeName="b1")
    of_daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "agent"}]
    assert response(of_daemon) == {"uid": "7", "allowed": True}
    assert response(pod("required", nodeName="b1"), operation="UPDATE") == {"uid": "7", "allowed": True}


JOB_SET = {
    "kind": "JobSet",
    "metadata": {"name": "train", "labels": {PREFLIGHT: "required"}},
    "spec": {
        "replicatedJobs": [
            {"name": "leader", "template": {"spec": {"template": pod(nodeName="n1")}}},
            {"name": "worker", "template": {"spec": {"template": pod(**affinity(field("b1", "b2")))}}},
        ]
    },
}
PYTORCH_JOB = {
    "kind": "PyTorchJob",
    "metadata": {"name": "train"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"template": pod(nodeSelector={HOSTNAME: "n1"})},
            "Worker": {"template": pod("required", nodeSelector={HOSTNAME: "b1"})},
        }
    },
}


@pytest.mark.parametrize(
    ("gang", "message"),
    [
        (
            JOB_SET,
            "spec.replicatedJobs[1].template.spec.template: b1, b2: unfit: backend.carrier: mlx5_0 is down",
        ),
        (
            PYTORCH_JOB,
            "spec.pytorchReplicaSpecs.Worker.template: b1: unfit: backend.carrier: mlx5_0 is down",
        ),
    ],
)
def test_a_gang_is_refused_as_a_whole(gang: Any, message: str) -> None:
    body = response(gang)
    assert not body["allowed"]
    assert body["status"]["message"] == message
    assert len(list(templates(gang))) == 2


def test_texts_have_the_lengths_that_kubernetes_takes() -> None:
    nodes = [f"b{number}-{'x' * 20}" for number in range(200)]
    [warning] = response(pod(**affinity(named(*nodes))))["warnings"]
    assert len(warning) <= 256
    assert "and 196 more" in warning
    many = {"spec": {"parts": [{"template": pod(nodeName=f"b{number}")} for number in range(50)]}}
    assert len(response(many)["warnings"]) == webhook.MAX_WARNINGS


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
KEYS = st.sampled_from(
    "metadata spec template containers nodeName nodeSelector affinity nodeAffinity annotations labels "
    "requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms matchExpressions matchFields key "
    f"operator values ownerReferences kind {PREFLIGHT} {HOSTNAME}".split()
)
STRINGS = st.sampled_from(["In", "required", "off", HOSTNAME, "metadata.name", "b1", "n1", "DaemonSet"])
ANY = st.recursive(
    SCALARS | STRINGS,
    lambda part: st.lists(part, max_size=4) | st.dictionaries(KEYS, part, max_size=6),
    max_leaves=40,
)


@given(root=ANY, operation=SCALARS | st.just("CREATE"))
@settings(max_examples=examples(500))
def test_any_object_is_answered(root: Any, operation: Any) -> None:
    reply = answer(review(root, operation), evaluate)["response"]
    assert reply["allowed"] or reply["status"]["message"].count("unfit")
    assert reply["allowed"] or "required" in json.dumps(root)


@given(ANY)
@settings(max_examples=examples(500))
def test_another_body_is_refused(root: Any) -> None:
    for bad in (root, {"request": root}, {"request": {"object": root, "uid": ""}}):
        with pytest.raises(BadReview, match=r"request\.uid: missing"):
            answer(bad, evaluate)


def test_a_deep_object_is_answered() -> None:
    deep: Any = pod("required", nodeName="b1")
    for _ in range(900):
        deep = {"spec": deep}
    assert response(deep)["allowed"]
