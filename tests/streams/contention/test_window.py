"""Contention windows: the position of a link."""

from __future__ import annotations

from streams.contention.window import place_of


def test_the_position_of_a_link_follows_the_inventory():
    is_nic = {f"h{n}/eth1" for n in range(1, 9)}.__contains__
    assert place_of("leaf2:swp1>h5:eth1", is_nic).receiver == "h5/eth1"
    assert place_of("h1:eth1>leaf1:swp1", is_nic).sender == "h1/eth1"
    inside = place_of("leaf1:swp9>spine1:swp1", is_nic)
    assert (inside.sender, inside.receiver) == (None, None)
    assert place_of("no link", is_nic).sender is None
