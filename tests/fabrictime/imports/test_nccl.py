"""NCCL's detected topology."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints, merged
from fabrictime.imports.nccl import read
from tests.fabrictime.imports.samples import NCCL


def test_a_host_and_its_nics() -> None:
    file = merged([read(NCCL, Hints("gpu01"))])
    assert [(node.name, node.kind, list(node.ports)) for node in file.nodes] == [
        ("gpu01", "host", ["mlx5_0", "mlx5_1"])
    ]


def test_a_system_without_nic_is_refused() -> None:
    with pytest.raises(BadImport, match="no NIC"):
        read("<system><cpu/></system>", Hints("gpu01"))
    with pytest.raises(BadImport, match="give --host"):
        read(NCCL, Hints())
