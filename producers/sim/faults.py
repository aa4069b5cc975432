"""Resolves faults of the simulated fleet to links and NICs, and computes the state of each link. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.fault_grammar import ON_JOBS, ON_RANKS, FaultSpec
from producers.sim.topology import Fleet, LinkKind
from schemas.ids import end_parts, host_of, link_ends

ON_NICS: Final = ("dead", "incast", "slow-receiver", "slow-sender", "pause-storm")
PAUSED: Final = 0.2
"""Share of their rate that links towards a leaf keep in a pause storm; the NIC's own link stops."""


@dataclass(frozen=True, slots=True)
class Target:
    """The directed links that a fault affects, and its NICs if any. `host`: a fault of a whole host."""

    links: tuple[int, ...]
    nics: tuple[int, ...] = ()
    host: bool = False
    job: str = ""
    """Name of the job, for a fault of a job or of one of its ranks; otherwise empty."""
    rank: int = -1


@dataclass(slots=True)
class LinkStates:
    """State of each link [L]: whether it is up, its carrier, its loss rate, its rate's remaining share."""

    up: NDArray[np.bool_]
    carrier: NDArray[np.bool_]
    loss: NDArray[np.float64]
    share: NDArray[np.float64]
    dead: dict[int, bool] = field(default_factory=dict)
    """For each dead NIC, True if its agent is silent too."""


def resolve(spec: FaultSpec, fleet: Fleet, jobs: Mapping[str, Sequence[int]] | None = None) -> Target:
    """Return the links and NICs of a fault. `jobs`: NICs by rank by job name. Raises ValueError if none."""
    if spec.kind in ON_RANKS or spec.kind in ON_JOBS:
        return _of_job(spec, fleet, jobs or {})
    if spec.kind in ON_NICS:
        return _of_nics(spec, fleet)
    target = spec.target
    if target in fleet.link_index:
        return Target((fleet.link_index[target],))
    ends = [link_ends(link) for link in fleet.link_ids]
    links = [i for i, (sender, receiver) in enumerate(ends) if _is_meant(target, sender, receiver)]
    if not links:
        example = ends[2 * fleet.nics if fleet.links > 2 * fleet.nics else 0]
        raise ValueError(
            f"target {target!r}: expected a link such as {_short(example)}, a NIC or a switch of this fleet"
        )
    return Target(tuple(links))


def _is_meant(target: str, sender: str, receiver: str) -> bool:
    """Return True if `target` (`a>b`, `a<>b` or `a`) designates the link from `sender` to `receiver`."""
    both = "<>" in target
    near, arrow, far = target.partition("<>" if both else ">")
    if not arrow:
        return _names(sender, target) or _names(receiver, target)
    if _names(sender, near) and _names(receiver, far):
        return True
    return both and _names(sender, far) and _names(receiver, near)


def _of_job(spec: FaultSpec, fleet: Fleet, jobs: Mapping[str, Sequence[int]]) -> Target:
    name, colon, rank = spec.target.partition(":")
    nics = jobs.get(name)
    if nics is None:
        raise ValueError(f"target {spec.target!r}: expected a job ({', '.join(sorted(jobs)) or 'none runs'})")
    if spec.kind in ON_JOBS:
        if colon:
            raise ValueError(f"target {spec.target!r}: expected a job, {spec.kind} concerns all its ranks")
        return Target((), tuple(nics), job=name)
    if not rank.isdecimal() or int(rank) >= len(nics):
        raise ValueError(f"target {spec.target!r}: expected a rank such as {name}:{len(nics) - 1}")
    if spec.kind == "wrong-rail" and fleet.shape.nics_per_host < 2:
        raise ValueError(f"target {spec.target!r}: expected hosts with several NICs")
    return Target((), (nics[int(rank)],), job=name, rank=int(rank))


def _of_nics(spec: FaultSpec, fleet: Fleet) -> Target:
    host = spec.target not in fleet.nic_index
    if host:
        nics = [i for name, i in fleet.nic_index.items() if host_of(name) == spec.target]
    else:
        nics = [fleet.nic_index[spec.target]]
    if not nics or (host and spec.kind != "dead"):
        expected = "a NIC or a host" if spec.kind == "dead" else "a NIC"
        raise ValueError(f"target {spec.target!r}: expected {expected} such as {fleet.nic_ids[0]}")
    if spec.kind == "incast" and spec.times >= fleet.nics:
        raise ValueError(f"incast {spec.times}: expected fewer senders than the fleet's {fleet.nics} NICs")
    links: list[int] = []
    for nic in nics:
        links += {"dead": [2 * nic, 2 * nic + 1], "slow-sender": [2 * nic]}.get(spec.kind, [2 * nic + 1])
    if spec.kind == "pause-storm":
        leaf = int(fleet.link_to[2 * nics[0]])
        towards = np.flatnonzero((fleet.link_to == leaf) & (fleet.kind == LinkKind.SPINE_DOWN))
        links += [int(link) for link in towards]
    return Target(tuple(links), tuple(nics), host)


def link_states(fleet: Fleet, faults: Iterable[tuple[FaultSpec, Target]]) -> LinkStates:
    """Return the state of all links and NICs under these faults. A flapping link counts only while down."""
    states = LinkStates(
        np.ones(fleet.links, np.bool_),
        np.ones(fleet.links, np.bool_),
        np.zeros(fleet.links),
        np.ones(fleet.links),
    )
    for spec, target in faults:
        links = np.array(target.links, np.int64)
        if spec.kind in ("down", "flap"):
            states.up[links] = states.up[links ^ 1] = False
            states.carrier[links] = states.carrier[links ^ 1] = False
        elif spec.kind == "blackhole":
            states.loss[links] = 1.0
        elif spec.kind == "grey":
            states.loss[links] = 1 - (1 - states.loss[links]) * (1 - spec.share)
        elif spec.kind in ("slow-receiver", "slow-sender"):
            states.share[links] = np.minimum(states.share[links], spec.share)
        elif spec.kind == "pause-storm":
            states.share[links[:1]] = 0.0
            states.share[links[1:]] = np.minimum(states.share[links[1:]], PAUSED)
        elif spec.kind == "dead":
            states.up[links] = False
            for nic in target.nics:
                states.dead[nic] = states.dead.get(nic, False) or target.host
    return states


def _names(end: str, text: str) -> bool:
    """Return True if `text` designates this port or its node, such as `leaf1`, `leaf1:swp3` or `h1/eth1`."""
    node, port = end_parts(end)
    return text in (node, end, f"{node}/{port}")


def _short(ends: Iterable[str]) -> str:
    return ">".join(end_parts(end).node for end in ends)
