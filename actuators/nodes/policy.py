"""Policy of node actions: decides from the fitness of hosts which nodes of a scheduler to drain and to
resume.

Pure logic. Only drains by this system are ever resumed; their reasons are written by `reason_of`. A circuit
breaker limits the share of nodes that are out of service. It counts those that others drained, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from actuators.nodes.fitness import Fitness, HostFitness, Outcome
from schemas.records import AuditStatus, FlowAction

PREFIX: Final = "fabrictime:"
"""Prefix of the reason of each drain by this system."""
MAX_REASON: Final = 300
"""Largest number of characters of a reason."""
MAX_ID: Final = 256
"""Largest number of characters of a decision id."""
MAX_NAMED: Final = 120
"""Largest number of characters for the checks that a reason names."""
_REASON: Final = re.compile(rf"{PREFIX} run=(\S+) checks=(\S+): ")


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Limits of node actions."""

    max_out_share: float = 0.1
    """Largest share of nodes that may be out of service at once."""
    min_in: int = 1
    """Smallest number of nodes that must stay in service."""
    failed_runs: int = 1
    """Number of consecutive runs in which a check must fail before a drain."""
    clean_runs: int = 1
    """Number of consecutive runs after the drain in which its checks must pass before a resume."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node as the scheduler describes it. `reason`: reason of its drain; may be empty."""

    name: str
    is_out: bool
    reason: str = ""
    state: str = ""
    """The scheduler's own name of the state, for people."""


@dataclass(frozen=True, slots=True)
class NodeStep:
    """An action on a node, or the reason why none is taken."""

    node: str
    host: str
    action: FlowAction
    run: str
    text: str
    """For a drain: the reason that the scheduler shows. For a resume: text for people."""
    obstacle: str = ""
    """Reason why the action is not taken; empty if it may be taken."""
    is_limited: bool = False
    """True if the circuit breaker prevents the action."""

    @property
    def decision_id(self) -> str:
        """Id of the action: the same run gives the same id. In a long id, a digest replaces the end."""
        full = f"{self.action.lower()} {self.node} {self.run}"
        if len(full) <= MAX_ID:
            return full
        digest = hashlib.sha256(full.encode()).hexdigest()
        return f"{full[: MAX_ID - len(digest)]}{digest}"


def is_ours(reason: str) -> bool:
    """Return True if a reason is that of a drain by this system."""
    return reason.startswith(PREFIX)


def is_same_drain(reason: str, other: str) -> bool:
    """Return True if two reasons name the same run and checks; schedulers may change the text."""
    one, two = _REASON.match(reason), _REASON.match(other)
    return one is not None and two is not None and one.groups() == two.groups()


def reason_of(failures: Sequence[Outcome]) -> str:
    """Return the reason of a drain: run, checks and findings in one line, without quotes."""
    names = failures[0].check
    for failure in failures[1:]:
        if len(names) + len(failure.check) < MAX_NAMED:
            names += f",{failure.check}"
    text = "; ".join(outcome.text for outcome in failures)
    line = f"{PREFIX} run={failures[0].run} checks={names}: {text}"
    plain = "".join(char if char.isprintable() and char not in "\"'" else " " for char in line)
    return plain[:MAX_REASON].strip()


def plan(
    nodes: Iterable[NodeState],
    fitness: Mapping[str, HostFitness],
    rules: NodeRules,
    host_of: Mapping[str, str] | None = None,
) -> list[NodeStep]:
    """Return the resumes, then the drains; the host with the most errors is drained first.

    `host_of`: node to host, if their names differ. A resume in the same pass does not allow the breaker one
    more drain, because the scheduler has not confirmed it.
    """
    every = sorted(nodes, key=lambda node: node.name)
    fitness_by_node = {
        node.name: host_fitness
        for node in every
        if (host_fitness := fitness.get((host_of or {}).get(node.name, node.name))) is not None
    }
    steps = [
        step
        for node in every
        if node.name in fitness_by_node and (step := _resume(node, fitness_by_node[node.name], rules))
    ]
    candidates = [
        (node, fitness_by_node[node.name], failures)
        for node in every
        if node.name in fitness_by_node
        and (failures := _lasting(fitness_by_node[node.name], rules))
        and not is_ours(node.reason)
    ]
    candidates.sort(key=lambda candidate: (-len(candidate[2]), candidate[0].name))
    total, out = len(every), sum(node.is_out for node in every)
    for node, host_fitness, failures in candidates:
        limit = "" if node.is_out else _breaker(total, out, rules)
        obstacle = f"already out: {node.reason or node.state}" if node.is_out else limit
        out += not obstacle
        run, text = failures[0].run, reason_of(failures)
        steps.append(
            NodeStep(
                node.name, host_fitness.host, FlowAction.DRAIN, run, text, obstacle, is_limited=bool(limit)
            )
        )
    return steps


def _lasting(host_fitness: HostFitness, rules: NodeRules) -> list[Outcome]:
    """Return the failures that lasted for enough runs."""
    return [
        failure
        for failure in host_fitness.failures
        if len(recent := host_fitness.outcomes[failure.check][: rules.failed_runs]) == rules.failed_runs
        and all(outcome.is_failed for outcome in recent)
    ]


def _breaker(total: int, out: int, rules: NodeRules) -> str:
    """Return the limit that forbids one more drain; empty if none does."""
    allowed = int(rules.max_out_share * total + 1e-9)
    if out + 1 > allowed:
        return (
            f"circuit breaker: {out} of {total} nodes are out, "
            f"at most {allowed} may be (max_out_share {rules.max_out_share:g})"
        )
    if total - out - 1 < rules.min_in:
        return f"{total - out} of {total} nodes are in, at least {rules.min_in} must stay (min_in)"
    return ""


def _resume(node: NodeState, host_fitness: HostFitness, rules: NodeRules) -> NodeStep | None:
    """Return the resume of a node that this system drained, with an obstacle until enough runs are clean.

    None if the node is not to be resumed.
    """
    if not node.is_out or not is_ours(node.reason):
        return None
    parsed = _REASON.match(node.reason)
    if parsed is None:
        text = f"{node.reason}: expected {PREFIX} run=RUN checks=CHECKS: TEXT"
        return NodeStep(node.name, host_fitness.host, FlowAction.RESUME, "", "", text)
    drained_by, checks = parsed[1], parsed[2].split(",")
    obstacles = [
        text
        for check in checks
        if (text := _not_clean(check, host_fitness.outcomes.get(check, ()), drained_by, rules))
    ]
    if host_fitness.fitness is not Fitness.FIT:
        obstacles.append(f"{host_fitness.fitness.lower()}: {'; '.join(host_fitness.reasons)}")
    newest = host_fitness.outcomes.get(checks[0], ())
    run = newest[0].run if newest else ""
    text = f"{', '.join(checks)} passed in run {run}; drained by run {drained_by}"
    return NodeStep(node.name, host_fitness.host, FlowAction.RESUME, run, text, "; ".join(obstacles))


def _not_clean(check: str, outcomes: Sequence[Outcome], drained_by: str, rules: NodeRules) -> str:
    """Return the reason why a check does not count as repaired; empty if it does."""
    clean = 0
    for outcome in outcomes:
        if outcome.run == drained_by or outcome.status is not AuditStatus.PASSED:
            break
        clean += 1
    if clean >= rules.clean_runs:
        return ""
    return f"{check} passed in {clean} runs since run {drained_by}, expected {rules.clean_runs}"
