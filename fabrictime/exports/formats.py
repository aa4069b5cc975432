"""Writes the networks of a fabric in the formats of schedulers. Pure.

Sources: topology.conf(5) and topology.yaml(5) of Slurm; Kubernetes' rules for label keys and values. With
server-side apply, a list of nodes with labels changes no other field of these nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import yaml

from fabrictime.exports.networks import Group, Network
from schemas.host_list import host_list
from schemas.input_error import InputError

LABEL_PREFIX: Final = "topology.fabrictime.io"
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_NODE_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_LIST_NAME: Final = re.compile(r"[^\s,\[\]=#]+")
_LEVELS: Final = ("leaf", "spine", "core")


class BadExport(InputError):
    """The fabric cannot be written in this format; the message is one line."""


def slurm_tree(networks: Sequence[Network]) -> str:
    """Return topology.conf for Slurm's plugin topology/tree. Raises BadExport."""
    return "".join(
        f"SwitchName={name} {'Switches' if is_upper else 'Nodes'}={members}\n"
        for name, members, is_upper in _switches(_only(networks, "topology.conf"))
    )


def slurm_block(networks: Sequence[Network]) -> str:
    """Return topology.conf for Slurm's plugin topology/block: a block per leaf group. Raises BadExport."""
    blocks = _only(networks, "topology.conf").lowest
    rows = [f"BlockName={_listed(block.name)} Nodes={_hosts(block.hosts)}\n" for block in blocks]
    return "".join([*rows, f"BlockSizes={_base_size(blocks)}\n"])


def slurm_yaml(networks: Sequence[Network]) -> str:
    """Return topology.yaml with a tree and blocks per network. The first is the default. Raises BadExport."""
    topologies: list[dict[str, Any]] = []
    for number, network in enumerate(networks):
        switches = [
            {"switch": name, "children" if is_upper else "nodes": members}
            for name, members, is_upper in _switches(network)
        ]
        blocks = [{"block": _listed(block.name), "nodes": _hosts(block.hosts)} for block in network.lowest]
        topologies += [
            {
                "topology": f"tree-{network.name}",
                "cluster_default": number == 0,
                "tree": {"switches": switches},
            },
            {
                "topology": f"block-{network.name}",
                "cluster_default": False,
                "block": {"block_sizes": [_base_size(network.lowest)], "blocks": blocks},
            },
        ]
    return f"---\n{yaml.safe_dump(topologies, sort_keys=False)}"


def kubernetes_labels(networks: Sequence[Network]) -> str:
    """Return a list of nodes with a label per tier, for `kubectl apply --server-side`.

    A node in several networks has the labels of the largest network. Label keys of other networks begin with
    the network's name. Raises BadExport.
    """
    labels: dict[str, dict[str, str]] = {}
    for number, network in enumerate(networks):
        infix = "" if number == 0 else f"{_label(network.name)}-"
        for level, groups in enumerate(network.levels):
            tier = _LEVELS[level] if level < len(_LEVELS) else f"tier{level + 1}"
            for group in groups:
                for host in group.hosts:
                    labels.setdefault(host, {})[_key(infix + tier)] = _label(group.name)
    if bad := [host for host in labels if not _NODE_NAME.fullmatch(host)]:
        raise BadExport(f"host {bad[0]!r}: expected the name of a Kubernetes node, such as gpu-01")
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host, "labels": labels[host]}}
        for host in labels
    ]
    return str(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": nodes}, sort_keys=False))


def as_json(networks: Sequence[Network]) -> str:
    """Return the networks with their levels and groups as JSON."""
    rows = [
        {
            "network": network.name,
            "hosts": list(network.hosts),
            "levels": [[_flat(group) for group in level] for level in network.levels],
        }
        for network in networks
    ]
    return json.dumps(rows, indent=1) + "\n"


FORMATS: Final[Mapping[str, Callable[[Sequence[Network]], str]]] = {
    "slurm-tree": slurm_tree,
    "slurm-block": slurm_block,
    "slurm-yaml": slurm_yaml,
    "kubernetes-labels": kubernetes_labels,
    "json": as_json,
}


def _flat(group: Group) -> dict[str, Any]:
    return asdict(group) | {"children": [child.name for child in group.children]}


def _only(networks: Sequence[Network], file: str) -> Network:
    """Return the only network. Raises BadExport for several: the format describes one network."""
    if len(networks) != 1:
        names = ", ".join(network.name for network in networks)
        raise BadExport(f"{file} holds one network, and the fabric has {names}: choose one with --network")
    return networks[0]


def _switches(network: Network) -> Iterator[tuple[str, str, bool]]:
    """Yield, for each group, its name, its members as a host list, and whether the members are groups."""
    yielded: set[str] = set()
    for level in network.levels:
        for group in level:
            for part in (*group.children, group):
                if part.name not in yielded:
                    yielded.add(part.name)
                    names = [child.name for child in part.children]
                    yield _listed(part.name), _hosts(names or part.hosts), bool(names)


def _hosts(names: Iterable[str]) -> str:
    return host_list([_listed(name) for name in names])


def _listed(name: str) -> str:
    """Return the name unchanged if a Slurm host list can hold it. Raises BadExport otherwise."""
    if not _LIST_NAME.fullmatch(name):
        raise BadExport(f"name {name!r}: expected none of blank, comma, brackets, '=' and '#' for Slurm")
    return name


def _base_size(blocks: Sequence[Group]) -> int:
    """Return the number of hosts of the smallest block, which Slurm uses as its base block size."""
    return min(len(block.hosts) for block in blocks)


def _key(name: str) -> str:
    return f"{LABEL_PREFIX}/{name}"


def _label(name: str) -> str:
    """Return the name unchanged if a Kubernetes label can hold it. Raises BadExport otherwise."""
    if not _LABEL.fullmatch(name):
        raise BadExport(
            f"switch {name!r}: expected up to 63 letters, digits, '-', '_' or '.' for a label of Kubernetes"
        )
    return name
