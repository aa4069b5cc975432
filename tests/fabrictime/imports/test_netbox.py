"""NetBox's table of cables."""

from __future__ import annotations

import pytest

from fabrictime.imports.base import BadImport, Hints
from fabrictime.imports.netbox import read
from tests.fabrictime.imports.samples import NETBOX


def test_connected_interfaces_alone() -> None:
    assert [cable.ends for cable in read(NETBOX, Hints()).cables] == [
        (("h1", "eth0"), ("leaf1", "Ethernet1/1")),
        (("leaf1", "Ethernet1/49"), ("spine1", "Ethernet1/1")),
    ]


def test_the_columns_of_the_bulk_import() -> None:
    text = (
        "side_a_device,side_a_type,side_a_name,side_b_device,side_b_type,side_b_name\n"
        "h1,dcim.interface,eth0,leaf1,dcim.interface,Ethernet1/1\n"
    )
    assert len(read(text, Hints()).cables) == 1


def test_a_missing_column_is_named() -> None:
    with pytest.raises(BadImport, match="no column with port of side B: expected one of side_b_name"):
        read("side_a_device,side_a_name,side_b_device\na,b,c\n", Hints())


def test_the_export_of_the_list_of_cables() -> None:
    text = (
        "ID,Label,Device A,Termination A,Device B,Termination B,Status,Type\n"
        "7,,leaf1,Ethernet1,spine1,Ethernet9,Connected,MMF\n"
        '8,,leaf1,Ethernet5,"h1,h2","eth0,eth1",Connected,DAC\n'
        "9,,h1,PSU1,pdu1,Outlet 1,Connected,Power\n"
        "10,,leaf1,Ethernet6,—,—,Connected,DAC\n"
    )
    assert [cable.ends for cable in read(text, Hints()).cables] == [
        (("leaf1", "Ethernet1"), ("spine1", "Ethernet9")),
        (("leaf1", "Ethernet5:1"), ("h1", "eth0")),
        (("leaf1", "Ethernet5:2"), ("h2", "eth1")),
    ]
