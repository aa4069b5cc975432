"""lldpctl's JSON, brief and verbose."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints
from fabrictime.imports.lldp import read
from tests.fabrictime.imports.samples import LLDP, LLDP_0, LLDP_ONE


def ends(text: str) -> list[tuple[tuple[str, str], ...]]:
    return [tuple(tuple(end) for end in cable.ends) for cable in read(text, Hints("h1")).cables]  # type: ignore[misc]


def test_each_neighbour_is_a_cable() -> None:
    assert ends(LLDP) == [
        (("h1", "eth0"), ("leaf1", "Ethernet1/1")),
        (("h1", "eth1"), ("leaf2", "et-0/0/48:0")),
    ]


def test_the_verbose_form_and_a_single_interface() -> None:
    assert ends(LLDP_0) == [(("h1", "eth0"), ("leaf1", "Ethernet1/1"))]
    assert ends(LLDP_ONE) == [(("h1", "eth0"), ("leaf1", "7"))]


def test_the_host_must_be_known() -> None:
    with pytest.raises(BadImport, match="give --host"):
        read(LLDP, Hints())
