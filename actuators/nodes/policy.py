"""Policy of node actions: decides by hosts' fitness which nodes of a scheduler to drain and resume.

Pure logic. Only drains by this system are ever resumed; their reasons are written by `reason_of`. `Caps`
limits the drains, and also counts nodes that others drained. If a rack is one unit, its nodes are drained for
the failure of any of their hosts, and resumed once that host has passed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from actuators.nodes.caps import Breaker, Caps, NodeRules, Opening, Unit, until
from actuators.nodes.fitness import Fitness, HostFitness, Outcome
from actuators.nodes.places import NETWORK, Places
from schemas.records import AuditStatus, FlowAction

PREFIX: Final = "fabrictime:"
"""Prefix of the reason of each drain by this system."""
MAX_REASON: Final = 300
"""Largest number of characters of a reason."""
MAX_ID: Final = 256
"""Largest number of characters of a decision id."""
MAX_NAMED: Final = 120
"""Largest number of characters for the checks that a reason names."""
_REASON: Final = re.compile(rf"{PREFIX} run=(\S+) checks=(\S+?)(?: of=(\S+))?: ")


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node according to the scheduler. `reason`: reason of its drain; may be empty."""

    name: str
    is_out: bool
    reason: str = ""
    state: str = ""
    """The scheduler's own name of the state, for people."""


@dataclass(frozen=True, slots=True)
class NodeStep:
    """An action on a node, or the reason why no action is taken."""

    node: str
    host: str
    action: FlowAction
    run: str
    text: str
    """For a drain: the reason that the scheduler shows. For a resume: text for people."""
    obstacle: str = ""
    """Reason why the action is not taken; empty if it may be taken."""
    is_limited: bool = False
    """True if a limit prevents the action."""
    is_early: bool = field(default=False, kw_only=True)
    """True if only time is missing."""
    cause_host: str = ""
    """Host whose audit failed, where it is not the node's own."""
    rules: NodeRules = field(default_factory=NodeRules)
    failures: tuple[Outcome, ...] = ()
    rack: str | None = None
    rails: frozenset[int] = frozenset()

    @property
    def decision_id(self) -> str:
        """Id of the action; the same run gives the same id. If it is too long, a digest replaces its end."""
        return decision_id(self.action, self.node, self.run)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The rules, places, past drains and network failures from which drains of nodes are decided."""

    rules_of: Callable[[str], NodeRules]
    """Returns the rules of a node."""
    host_by_node: Mapping[str, str] = field(default_factory=dict)
    places: Places = field(default_factory=Places)
    openings: Sequence[Opening] = ()
    breaker: Breaker = field(default_factory=Breaker)
    network_obstacle: Callable[[str, Outcome], str] = lambda host, outcome: ""
    """Returns why a failure of a host is one of the network; empty if it is not."""
    now_ns: int = 0

    def host_of(self, node: str) -> str:
        """Return the name of the host that a scheduler's node runs on."""
        return self.host_by_node.get(node, node)

    def rack_of(self, node: str) -> str | None:
        """Return the rack of a node; None if the rack is unknown."""
        return self.places.rack_of(self.host_of(node))


def decision_id(action: FlowAction, node: str, run: str) -> str:
    """Return the id of an action on a node for a run; if the id is too long, a digest replaces its end."""
    full = f"{action.lower()} {node} {run}"
    if len(full) <= MAX_ID:
        return full
    digest = hashlib.sha256(full.encode()).hexdigest()
    return f"{full[: MAX_ID - len(digest)]}{digest}"


def is_ours(reason: str) -> bool:
    """Return True if a drain with this reason was made by this system."""
    return reason.startswith(PREFIX)


def drain_of(reason: str) -> tuple[str, tuple[str, ...], str] | None:
    """Return run, checks and failed host from this system's drain reason; None for a reason by others."""
    parsed = _REASON.match(reason)
    return None if parsed is None else (parsed[1], tuple(parsed[2].split(",")), parsed[3] or "")


def is_same_drain(reason: str, other: str) -> bool:
    """Return True if two drain reasons have the same run and checks; schedulers may change other text."""
    one, two = _REASON.match(reason), _REASON.match(other)
    return one is not None and two is not None and one.groups() == two.groups()


def reason_of(failures: Sequence[Outcome], cause_host: str = "") -> str:
    """Return the reason of a drain: run, checks and findings in one line, without quotes.

    `cause_host`: the host that failed, if the node belongs to another host.
    """
    names = failures[0].check
    for failure in failures[1:]:
        if len(names) + len(failure.check) < MAX_NAMED:
            names += f",{failure.check}"
    text = "; ".join(outcome.text for outcome in failures)
    other = f" of={cause_host}" if cause_host else ""
    line = f"{PREFIX} run={failures[0].run} checks={names}{other}: {text}"
    plain = "".join(char if char.isprintable() and char not in "\"'" else " " for char in line)
    return plain[:MAX_REASON].strip()


def plan(nodes: Iterable[NodeState], fitness: Mapping[str, HostFitness], fleet: Fleet) -> list[NodeStep]:
    """Return the resumes, then the drains, the host with the most errors first.

    A resume in the same pass does not allow one more drain, because the scheduler has not confirmed it.
    """
    states = sorted(nodes, key=lambda node: node.name)
    steps = [step for node in states if (step := _resume(node, fitness, fleet))]
    state_by_node = {node.name: node for node in states}
    units = _units(states, fleet)
    unit_by_node = {node: unit for unit in units for node in unit.nodes}
    caps = Caps(units, fleet.openings, fleet.breaker, fleet.now_ns)
    candidates = [
        (node, failures)
        for node in states
        if (failures := _lasting(fitness.get(fleet.host_of(node.name)), unit_by_node[node.name].rules))
        and (not is_ours(node.reason) or len(unit_by_node[node.name].nodes) > 1)
    ]
    candidates.sort(key=lambda candidate: (-len(candidate[1]), candidate[0].name))
    planned: set[str] = set()
    for node, failures in candidates:
        if node.name not in planned:
            unit_steps = list(_drains(node, failures, unit_by_node[node.name], fleet, caps))
            steps += [_of_unit(step, state_by_node[step.node]) for step in unit_steps]
            planned |= {step.node for step in unit_steps}
    return [step for step in steps if step.obstacle != _DRAINED]


_DRAINED: Final = "drained"
"""Obstacle of a node of a unit that this system has already drained."""


def _units(nodes: Iterable[NodeState], fleet: Fleet) -> list[Unit]:
    members: dict[tuple[str, str], list[NodeState]] = {}
    for node in nodes:
        rules, rack = fleet.rules_of(node.name), fleet.rack_of(node.name)
        name = rack if rules.is_rack_unit and rack else node.name
        members.setdefault((rules.group, name), []).append(node)
    return [
        Unit(
            name,
            tuple(node.name for node in unit),
            fleet.rack_of(unit[0].name),
            any(node.is_out for node in unit),
            fleet.rules_of(unit[0].name),
        )
        for (_, name), unit in members.items()
    ]


def _drains(
    node: NodeState, failures: Sequence[Outcome], unit: Unit, fleet: Fleet, caps: Caps
) -> Iterator[NodeStep]:
    """Yield the drains of all nodes of a failed node's unit, or only that node's if an obstacle exists."""
    host, rules = fleet.host_of(node.name), unit.rules
    obstacles = [_obstacle(host, failure, rules, fleet) for failure in failures]
    reasons = tuple(one for one, text in zip(failures, obstacles, strict=True) if not text[0])
    rails = fleet.places.rails_of(host, [subject for failure in reasons for subject in failure.subjects])
    shown = reasons or tuple(failures)

    def step(name: str, obstacle: str = "", *, is_limited: bool = False, is_early: bool = False) -> NodeStep:
        cause = "" if name == node.name else host
        text, own = reason_of(shown, cause), fleet.host_of(name)
        rack = fleet.rack_of(name)
        return NodeStep(
            *(name, own, FlowAction.DRAIN, shown[0].run, text, obstacle, is_limited),
            *(cause, rules, shown, rack, rails),
            is_early=is_early,
        )

    is_continued = is_ours(node.reason)  # a former process may not have drained the whole unit
    if node.is_out and not is_continued:
        yield step(node.name, f"already out: {node.reason or node.state}")
    elif not reasons:
        text, is_early = obstacles[0]
        yield step(node.name, text, is_limited=not is_early, is_early=is_early)
    elif limit := "" if is_continued else caps.obstacle(unit, rails):
        yield step(node.name, limit, is_limited=True)
    else:
        if not is_continued:
            caps.add(unit, rails)
        yield from (step(name) for name in unit.nodes)


def _of_unit(step: NodeStep, node: NodeState) -> NodeStep:
    """Return the step of a node in the unit; with an obstacle if the node is already drained or down."""
    if step.obstacle or not node.is_out:
        return step
    text = _DRAINED if is_ours(node.reason) else f"already out: {node.reason or node.state}"
    return replace(step, obstacle=text)


def _obstacle(host: str, failure: Outcome, rules: NodeRules, fleet: Fleet) -> tuple[str, bool]:
    """Return why a failure must not cause a drain yet, and whether only a waiting time prevents it."""
    if shared := fleet.network_obstacle(host, failure):
        return shared, False
    wait_ns = failure.at_ns + rules.network_wait_ns - fleet.now_ns
    if failure.category in NETWORK and rules.network_wait_ns and wait_ns > 0:
        end = until(fleet.now_ns + wait_ns)
        return f"{failure.check}: waits {end} for the results of other hosts", True
    return "", False


def _lasting(host_fitness: HostFitness | None, rules: NodeRules) -> list[Outcome]:
    """Return the failures of checks that cause drains and that lasted for enough runs."""
    if host_fitness is None:
        return []
    return [
        failure
        for failure in host_fitness.failures
        if rules.drains_for(failure.check)
        and len(recent := host_fitness.outcomes[failure.check][: rules.failed_runs]) == rules.failed_runs
        and all(outcome.is_failed for outcome in recent)
    ]


def _resume(node: NodeState, fitness: Mapping[str, HostFitness], fleet: Fleet) -> NodeStep | None:
    """Return the step that resumes a node drained by this system; None if it is not to be resumed.

    The step has an obstacle until the failed checks have passed in enough runs.
    """
    host, rules = fleet.host_of(node.name), fleet.rules_of(node.name)
    drain = drain_of(node.reason)
    host_fitness = fitness.get(drain[2] or host) if drain else fitness.get(host)
    if not node.is_out or not is_ours(node.reason) or host_fitness is None:
        return None
    if drain is None:
        text = f"{node.reason}: expected {PREFIX} run=RUN checks=CHECKS: TEXT"
        return NodeStep(node.name, host, FlowAction.RESUME, "", "", text, rules=rules)
    drained_by, checks, cause_host = drain
    obstacles = [
        text
        for check in checks
        if (text := _not_clean(check, host_fitness.outcomes.get(check, ()), drained_by, rules))
    ]
    if host_fitness.fitness is not Fitness.FIT:
        obstacles.append(f"{host_fitness.fitness.lower()}: {'; '.join(host_fitness.reasons)}")
    own = fitness.get(host)
    if cause_host and own is not None and own.fitness is Fitness.UNFIT:
        obstacles.append(f"{host}: unfit: {'; '.join(own.reasons)}")
    newest = host_fitness.outcomes.get(checks[0], ())
    run = newest[0].run if newest else ""
    text = f"{', '.join(checks)} passed in run {run}; drained by run {drained_by}"
    return NodeStep(
        node.name,
        host,
        FlowAction.RESUME,
        run,
        text,
        "; ".join(obstacles),
        cause_host=cause_host,
        rules=rules,
    )


def _not_clean(check: str, outcomes: Sequence[Outcome], drained_by: str, rules: NodeRules) -> str:
    """Return the reason why a check does not count as repaired; empty if it counts."""
    clean = 0
    for outcome in outcomes:
        if outcome.run == drained_by or outcome.status is not AuditStatus.PASSED:
            break
        clean += 1
    if clean >= rules.clean_runs:
        return ""
    return f"{check} passed in {clean} runs since run {drained_by}, expected {rules.clean_runs}"
