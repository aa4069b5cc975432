"""Drains and resumes nodes of Kubernetes by means of a node condition, a taint and a cordon.

This needs the package `kubernetes` (the extra `kubernetes`) and the rights to get, list and patch `nodes` and
`nodes/status`, to list `pods` and to create `events`. The taint marks a drain by this system; an annotation
in the same patch holds its reason. A patch carries the node's resource version, so that it is refused if
another client changed the node in between.

Slurm on Kubernetes (Slinky) is drained through Slurm: its operator drains the Slurm node of a Kubernetes node
that is cordoned, with the reason of an annotation, and undrains it with the cordon. Source: slurm-operator,
docs/usage/nodeset-operations.md and docs/concepts/nodeset-controller.md.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from actuators.effectors.node_base import Job, NodeError, check_drain, check_resume
from actuators.nodes.policy import NodeState

TAINT: Final = "fabrictime/unfit"
ANNOTATION: Final = "fabrictime/reason"
SLINKY_REASON: Final = "nodeset.slinky.slurm.net/node-cordon-reason"
"""Annotation with the reason that Slinky's operator gives to Slurm."""
SLINKY_BUSY: Final = frozenset({"SlurmNodeStateAllocated", "SlurmNodeStateMixed", "SlurmNodeStateCompleting"})
"""Conditions of a NodeSet pod whose Slurm node runs jobs."""
CONDITION: Final = "FabrictimeUnfit"
PAGE: Final = 500
"""Number of nodes per answer of the API."""
PATCH: Final = "application/strategic-merge-patch+json"


class Kubernetes:
    """The node effector for a Kubernetes cluster."""

    how = "KUBERNETES"

    def __init__(
        self,
        kubeconfig: Path | None = None,
        context: str | None = None,
        limit_s: float = 10.0,
        *,
        is_slinky: bool = False,
    ) -> None:
        """Connect to the API. `kubeconfig`: None for the usual file or the pod's account. Raises NodeError.

        `is_slinky`: Slinky's operator runs Slurm on the nodes.
        """
        self._is_slinky = is_slinky
        if is_slinky:
            self.how = "SLINKY"
        try:
            client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
        except ImportError:
            raise NodeError(
                "the package kubernetes is missing: pip install 'fabrictime[kubernetes]'"
            ) from None
        file = kubeconfig or Path(config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser()
        configuration = client.Configuration()
        try:
            if kubeconfig is None and not file.exists():
                config.load_incluster_config(configuration)
            else:
                config.load_kube_config(str(file), context, configuration)
        except (config.ConfigException, OSError, TypeError) as error:
            raise NodeError(f"{file}: {error}") from None
        configuration.retries = 1
        self._api: Any = client.CoreV1Api(client.ApiClient(configuration))
        self._unreachable: type[Exception] = import_module("urllib3.exceptions").HTTPError
        self._refused: type[Exception] = client.ApiException
        self._limit_s = limit_s

    def nodes(self, names: Collection[str] = ()) -> list[NodeState]:
        """Return the states of the named nodes, or of all nodes. Raises NodeError."""
        if names:
            return [node_state(self._call(self._api.read_node, name)) for name in names]
        nodes: list[NodeState] = []
        more = None
        while True:
            page = self._call(self._api.list_node, limit=PAGE, _continue=more)
            try:
                nodes += [node_state(item) for item in page["items"]]
                more = page["metadata"].get("continue")
            except (KeyError, TypeError, AttributeError):
                raise NodeError("Kubernetes: a list of nodes without items and metadata") from None
            if not more:
                return nodes

    def jobs(self, node: str) -> list[Job]:
        """Return the pods that run on a node, without the pods of DaemonSets. Raises NodeError.

        With Slinky, only the pods whose Slurm node is busy are returned.
        """
        selector = f"spec.nodeName={node},status.phase=Running"
        pods = self._call(self._api.list_pod_for_all_namespaces, field_selector=selector)
        try:
            return [_job(pod) for pod in pods["items"] if _is_job(pod, is_slinky=self._is_slinky)]
        except (KeyError, TypeError, AttributeError):
            raise NodeError("Kubernetes: a pod without metadata or status as expected") from None

    def notify(self, job: Job, text: str) -> None:
        """Create a Kubernetes event with `text` for a pod. Raises NodeError."""
        namespace, _, name = job.name.partition("/")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = {
            "metadata": {"generateName": "fabrictime-drain-", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name},
            "type": "Warning",
            "reason": "NodeDrain",
            "message": text,
            "source": {"component": "fabrictime"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._call(self._api.create_namespaced_event, namespace, event)

    def drain(self, node: str, reason: str) -> None:
        """Set the node condition, then taint and cordon the node in one patch. Running pods stay."""
        item = self._call(self._api.read_node, node)
        if not check_drain(node_state(item), reason):
            return
        item = self._set_condition(node, "True", "AuditFailed", reason)
        try:
            if check_drain(node_state(item), reason):
                taint = {"key": TAINT, "effect": "NoSchedule"}
                self._patch(item, {"unschedulable": True, "taints": [*_taints(item), taint]}, reason)
        except NodeError:  # no drain of ours will ever clear the condition
            with contextlib.suppress(NodeError):
                self._set_condition(node, "False", "NotDrained", "the node could not be drained")
            raise

    def resume(self, node: str) -> None:
        """Clear the node condition, then remove taint and cordon in one patch."""
        item = self._call(self._api.read_node, node)
        if not check_resume(node_state(item)):
            return
        item = self._set_condition(node, "False", "AuditPassed", "the checks that failed pass again")
        if check_resume(node_state(item)):
            taints = [taint for taint in _taints(item) if taint["key"] != TAINT]
            self._patch(item, {"unschedulable": None, "taints": taints or None}, None)

    def _patch(self, item: dict[str, Any], spec: dict[str, Any], reason: str | None) -> None:
        metadata = {
            "resourceVersion": item["metadata"]["resourceVersion"],
            "annotations": {ANNOTATION: reason} | ({SLINKY_REASON: reason} if self._is_slinky else {}),
        }
        body = {"metadata": metadata, "spec": spec}
        self._call(self._api.patch_node, item["metadata"]["name"], body, _content_type=PATCH)

    def _set_condition(self, node: str, status: str, reason: str, text: str) -> Any:
        """Set the node condition; return the node after the change."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"type": CONDITION, "status": status, "reason": reason, "message": text}
        condition |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
        body = {"status": {"conditions": [condition]}}
        return self._call(self._api.patch_node_status, node, body, _content_type=PATCH)

    def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call the API and return the decoded answer. Raises NodeError."""
        try:
            answer = method(*arguments, _request_timeout=self._limit_s, _preload_content=False, **options)
            return json.loads(answer.data)
        except self._refused as error:
            raise NodeError(f"Kubernetes: {_message(error)}") from None
        except (self._unreachable, OSError, ValueError) as error:
            raise NodeError(f"Kubernetes: {type(error).__name__}: {error}") from None


def _is_job(pod: Any, *, is_slinky: bool) -> bool:
    """Return whether a pod counts as a job that a drain must respect."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    if is_slinky:
        return any(one["type"] in SLINKY_BUSY and one["status"] == "True" for one in conditions)
    return not any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ())


def _job(pod: Any) -> Job:
    namespace = pod["metadata"]["namespace"]
    return Job(f"{namespace}/{pod['metadata']['name']}", namespace)


def node_state(item: Any) -> NodeState:
    """Return the state of a node from the API's description. Raises NodeError for an unexpected one."""
    try:
        name, spec = item["metadata"]["name"], item.get("spec") or {}
        conditions = (item.get("status") or {}).get("conditions") or []
        is_ready = any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
        )
        is_ours = any(taint["key"] == TAINT for taint in _taints(item))
        notes = item["metadata"].get("annotations") or {}
        reason = str(notes.get(ANNOTATION, "")) if is_ours else ""
        unschedulable = bool(spec.get("unschedulable"))
    except (KeyError, TypeError, AttributeError):
        raise NodeError("Kubernetes: a node without metadata, spec or status as expected") from None
    if not isinstance(name, str):
        raise NodeError(f"Kubernetes: a node named {name!r}, expected text")
    states = {"cordoned": unschedulable, "tainted": is_ours, "not ready": not is_ready}
    state = ", ".join(text for text, is_so in states.items() if is_so)
    return NodeState(name, bool(state), reason, state)


def _taints(item: Any) -> list[dict[str, Any]]:
    return (item.get("spec") or {}).get("taints") or []


def _message(error: Any) -> str:
    """Return the text of an API error in one line."""
    try:
        text = str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        text = "no message"
    return " ".join(f"{error.status} {error.reason}: {text}".split())[:300]
