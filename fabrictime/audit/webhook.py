"""Answers Kubernetes' admission reviews: whether a pod or a gang can run on nodes that the audit found fit.

Only pods that are limited to nodes by name are checked: by `nodeName`, which bypasses the scheduler, or by
the label `kubernetes.io/hostname` and the field `metadata.name` in node selector and required node affinity.
All other pods are the scheduler's task, which respects the taint of a drained node. All templates of an
object are checked together, so a gang is refused as a whole. In doubt an object is admitted, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from actuators.nodes.fitness import Fitness, HostFitness

PREFLIGHT: Final = "fabrictime.io/preflight"
"""Label or annotation of an object or its template: `required` refuses what else causes a warning, `off` asks
for neither."""
REQUIRED, OFF = "required", "off"
HOSTNAME: Final = "kubernetes.io/hostname"
MAX_DEPTH: Final = 16
"""Depth of nesting down to which templates are looked for."""
MAX_WARNINGS: Final = 8
MAX_WARNING: Final = 240
"""Kubernetes cuts warnings above 256 characters."""
MAX_NODES: Final = 4
"""Number of nodes that a text names."""

Evaluate = Callable[[str], HostFitness]
"""Returns the fitness of a node."""


class BadReview(ValueError):
    """A request that is not a valid AdmissionReview."""


class Template(NamedTuple):
    """A pod, or a template of pods, in a Kubernetes object."""

    path: str
    """Place in the object, such as spec.template; empty for a pod."""
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any]


def answer(review: Any, evaluate: Evaluate, fault: str = "") -> dict[str, Any]:
    """Return the AdmissionReview that answers a request. Raises BadReview.

    If the fitness of nodes is unknown, `fault` is the reason, and everything is admitted.
    """
    request = _mapping(_mapping(review).get("request"))
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise BadReview("request.uid: missing, expected an AdmissionReview of admission.k8s.io/v1")
    texts: list[str] = []
    refused: list[str] = []
    if request.get("operation") == "CREATE":
        for template, is_required in _to_check(_mapping(request.get("object"))):
            is_bad, text = _verdict(template, evaluate, fault)
            if text:
                (refused if is_bad and is_required else texts).append(text)
    warnings = [text[:MAX_WARNING] for text in dict.fromkeys(texts)][:MAX_WARNINGS]
    message = "; ".join(dict.fromkeys(refused))[: 4 * MAX_WARNING]
    response = {
        "uid": uid,
        "allowed": not refused,
        **({"warnings": warnings} if warnings else {}),
        **({"status": {"code": 403, "reason": "Forbidden", "message": message}} if refused else {}),
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _to_check(root: Mapping[str, Any]) -> Iterator[tuple[Template, bool]]:
    """Yield the templates of an object that must be checked, and whether each requires fit nodes."""
    own = _asked(_mapping(root.get("metadata")))
    for template in templates(root):
        asked = _asked(template.metadata) or own
        if asked != OFF and not _is_of_node(template.metadata):
            yield template, asked == REQUIRED


def templates(node: Any, path: str = "", depth: int = 0) -> Iterator[Template]:
    """Yield the pods and templates of pods in an object of any kind, such as a Job, JobSet or PyTorchJob."""
    if depth > MAX_DEPTH:
        return
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from templates(item, f"{path}[{number}]", depth + 1)
    elif isinstance(node, dict):
        spec = _mapping(node.get("spec"))
        if isinstance(spec.get("containers"), list):
            yield Template(path, _mapping(node.get("metadata")), spec)
            return
        for key, part in node.items():
            yield from templates(part, f"{path}.{key}" if path else str(key), depth + 1)


def nodes_of(spec: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the nodes to which a pod is limited by their names; None if the pod has no such limit."""
    affinity = _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = _mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    limits = [
        _names([spec.get("nodeName")]),
        _names([_mapping(spec.get("nodeSelector")).get(HOSTNAME)]),
        _nodes_of_terms(_list(required.get("nodeSelectorTerms"))),
    ]
    named = [limit for limit in limits if limit is not None]
    return frozenset.intersection(*named) if named else None


def _nodes_of_terms(terms: list[Any]) -> frozenset[str] | None:
    """Return the nodes that any of the terms names; None if a term names no node, or without terms."""
    nodes: set[str] = set()
    for term in terms:
        limits = [
            limit
            for part, key in (("matchExpressions", HOSTNAME), ("matchFields", "metadata.name"))
            for rule in map(_mapping, _list(_mapping(term).get(part)))
            if rule.get("key") == key and rule.get("operator") == "In"
            if (limit := _names(_list(rule.get("values")))) is not None
        ]
        if not limits:
            return None
        nodes |= frozenset.intersection(*limits)
    return frozenset(nodes) if terms else None


def _verdict(template: Template, evaluate: Evaluate, fault: str) -> tuple[bool, str]:
    """Return whether no fit node is left for a template, and a text about its unfit or unknown nodes."""
    nodes = nodes_of(template.spec)
    if not nodes:
        return False, ""
    where = f"{template.path}: " if template.path else ""
    if fault:
        return False, f"{where}fitness of {_shown(sorted(nodes))} was not checked: {fault}"
    verdicts = {node: evaluate(node) for node in sorted(nodes)}
    unfit = [node for node, one in verdicts.items() if one.fitness is Fitness.UNFIT]
    if unfit:
        reasons = ", ".join(verdicts[unfit[0]].reasons)
        is_bad = len(unfit) == len(nodes)
        kind = "unfit" if is_bad else f"{len(unfit)} of {len(nodes)} nodes are unfit"
        return is_bad, f"{where}{_shown(unfit)}: {kind}: {reasons}"
    unknown = [node for node, one in verdicts.items() if one.fitness is Fitness.UNKNOWN]
    return False, f"{where}{_shown(unknown)}: no verdict of an audit" if unknown else ""


def _shown(nodes: list[str]) -> str:
    more = f" and {len(nodes) - MAX_NODES} more" if len(nodes) > MAX_NODES else ""
    return ", ".join(nodes[:MAX_NODES]) + more


def _asked(metadata: Mapping[str, Any]) -> str:
    """Return the value of the annotation or label `PREFLIGHT`; empty without one."""
    for part in ("annotations", "labels"):
        value = _mapping(metadata.get(part)).get(PREFLIGHT)
        if isinstance(value, str):
            return value
    return ""


def _is_of_node(metadata: Mapping[str, Any]) -> bool:
    """Return whether a pod belongs to its node and runs on any: a static pod, or a pod of a DaemonSet."""
    owners = map(_mapping, _list(metadata.get("ownerReferences")))
    is_static = "kubernetes.io/config.mirror" in _mapping(metadata.get("annotations"))
    return is_static or any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(values: list[Any]) -> frozenset[str] | None:
    names = frozenset(value for value in values if isinstance(value, str) and value)
    return names or None
