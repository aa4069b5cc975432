"""Exports for schedulers: read by a real Slurm, by our importer, and by YAML's own parser."""

from __future__ import annotations

import json

import pytest
import yaml

from fabrictime.exports.formats import FORMATS, BadExport
from fabrictime.exports.networks import networks_of
from fabrictime.imports.base import Hints, merged
from fabrictime.imports.slurm import read
from schemas.topology import Topology
from tests.actuators.slurm_cluster import slurm_of
from tests.fabrictime.exports.test_networks import clos, fabric

SMALL = networks_of(fabric(*clos(2, ["l1", "l2"], ["s1", "s2"])))
TWO = networks_of(fabric(*clos(2, ["l1", "l2"], ["s1"]), *(f"h{host}-l9" for host in range(1, 6))))


def test_slurm_reads_the_tree() -> None:
    with slurm_of("h1", "h2", "h3", "h4", topology=FORMATS["slurm-tree"](SMALL)) as cluster:
        lines = cluster.scontrol("show", "topology").splitlines()
    rows = [dict(field.partition("=")[::2] for field in line.split()) for line in lines]
    fields_of = {fields["SwitchName"]: fields for fields in rows}
    assert {name: fields["Nodes"] for name, fields in fields_of.items()} == {
        "l1": "h[1-2]", "l2": "h[3-4]", "s1": "h[1-4]",
    }  # fmt: skip
    assert {name: fields["Level"] for name, fields in fields_of.items()} == {"l1": "0", "l2": "0", "s1": "1"}


@pytest.mark.parametrize("name", ["slurm-tree", "slurm-yaml"])
def test_our_importer_reads_the_same_groups(name: str) -> None:
    topology = Topology(merged([read(FORMATS[name](SMALL), Hints())]))
    assert FORMATS[name](networks_of(topology)) == FORMATS[name](SMALL)


def test_blocks_are_the_hosts_of_a_leaf_and_the_smallest_is_the_base_size() -> None:
    network = networks_of(fabric(*clos(2, ["l1", "l2"], ["s1"]), "h9-l2"))
    text = "BlockName=l1 Nodes=h[1-2]\nBlockName=l2 Nodes=h[3-4,9]\nBlockSizes=2\n"
    assert FORMATS["slurm-block"](network) == text


def test_yaml_holds_all_networks_and_one_default() -> None:
    topologies = yaml.safe_load(FORMATS["slurm-yaml"](TWO))
    assert [one["topology"] for one in topologies] == ["tree-l9", "block-l9", "tree-s1", "block-s1"]
    assert [one["cluster_default"] for one in topologies] == [True, False, False, False]


def test_a_file_of_one_network_names_the_choice() -> None:
    for name in ("slurm-tree", "slurm-block"):
        with pytest.raises(BadExport, match="the fabric has l9, s1: choose one with --network"):
            FORMATS[name](TWO)


def test_nodes_get_a_label_for_each_tier_and_network() -> None:
    nodes = yaml.safe_load(FORMATS["kubernetes-labels"](TWO))["items"]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    prefix = "topology.fabrictime.io"
    assert labels["h3"] == {f"{prefix}/leaf": "l9", f"{prefix}/s1-leaf": "l2", f"{prefix}/s1-spine": "s1"}
    assert labels["h5"] == {f"{prefix}/leaf": "l9"}


@pytest.mark.parametrize(
    ("host", "leaf", "name", "text"),
    [
        ("h1,h2", "l1", "slurm-tree", "'h1,h2': expected none of blank, comma"),
        ("h 1", "l1", "slurm-yaml", "'h 1'"),
        ("H1", "l1", "kubernetes-labels", "'H1': expected the name of a Kubernetes node"),
        ("h1", "l" * 64, "kubernetes-labels", "expected up to 63 letters"),
        ("h1", "l1=x", "slurm-block", "'l1=x'"),
    ],
)
def test_a_name_that_the_format_cannot_hold_is_named(host: str, leaf: str, name: str, text: str) -> None:
    with pytest.raises(BadExport, match=text):
        FORMATS[name](networks_of(fabric(f"{host}-{leaf}")))


def test_json_has_groups_with_the_names_of_their_children() -> None:
    (network,) = json.loads(FORMATS["json"](SMALL))
    assert network["hosts"] == ["h1", "h2", "h3", "h4"]
    assert network["levels"][1] == [
        {"name": "s1", "hosts": ["h1", "h2", "h3", "h4"], "switches": ["s1", "s2"], "children": ["l1", "l2"]}
    ]


def test_a_host_at_a_spine_is_in_a_block() -> None:
    network = networks_of(fabric(*clos(2, ["l1", "l2"], ["s1"]), "h9-s1"))
    text = "BlockName=l1 Nodes=h[1-2]\nBlockName=l2 Nodes=h[3-4]\nBlockName=s1-hosts Nodes=h9\nBlockSizes=1\n"
    assert FORMATS["slurm-block"](network) == text
