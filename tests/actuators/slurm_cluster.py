"""A real Slurm on loopback for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fabrictime.bench.operate._slurm import SlurmCluster, missing

__all__ = ["SlurmCluster", "missing", "slurm_of"]


@contextmanager
def slurm_of(*nodes: str, more: str = "", topology: str = "") -> Iterator[SlurmCluster]:
    """Run a cluster with these nodes and this topology.conf. Skips the test without Slurm."""
    if missing():
        pytest.skip(f"no {missing()} (Debian: apt-get install slurmctld slurmd slurm-client munge)")
    with tempfile.TemporaryDirectory(prefix="fabrictime-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if topology:
            (folder / "topology.conf").write_text(topology)
            more += "\nTopologyPlugin=topology/tree"
        with SlurmCluster(folder, nodes, more) as cluster:
            yield cluster
