"""Ids: made in one place, taken apart again, and never ambiguous."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import cable_id, clock_id, link_id, nic_id, split_nic

part = st.text(st.characters(codec="utf-8"), min_size=1, max_size=128).filter(
    lambda text: not any(c in "/>" or c.isspace() or not c.isprintable() for c in text)
)
plain = part.filter(lambda text: ":" not in text)


@given(part, part)
def test_a_nic_comes_apart_as_it_was_made(host, device):
    assert split_nic(nic_id(host, device)) == (host, device)


@given(part, part, part, part)
def test_different_nics_have_different_ids(host, device, other_host, other_device):
    same = (host, device) == (other_host, other_device)
    assert (nic_id(host, device) == nic_id(other_host, other_device)) == same


@given(plain, plain, plain, plain)
def test_both_directions_are_one_cable(node, port, far_node, far_port):
    there, back = link_id(node, port, far_node, far_port), link_id(far_node, far_port, node, port)
    assert cable_id(there) == cable_id(back)
    assert (
        set(cable_id(there).split("<>")) == {f"{node}:{port}", f"{far_node}:{far_port}"}
        or "<>" in node + port
    )
    assert (there == back) == ((node, port) == (far_node, far_port))


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "a>b", "a\n", "\x00", "x" * 129, "tab\t"])
def test_parts_that_would_break_an_id(bad):
    for make in (
        lambda: nic_id(bad, "eth0"),
        lambda: nic_id("host", bad),
        lambda: clock_id(bad),
        lambda: clock_id("host", bad),
        lambda: link_id(bad, "p", "n", "p"),
        lambda: link_id("n", "p", "n", bad),
    ):
        with pytest.raises(ValueError, match="expected 1 to 128 printable characters"):
            make()


@pytest.mark.parametrize("bad", ["", "host", "/eth0", "host/", "a/b/c", "a /b"])
def test_what_is_no_nic(bad):
    with pytest.raises(ValueError):
        split_nic(bad)


@pytest.mark.parametrize("bad", ["", "a:b", "a:b>c:d>e:f"])
def test_what_is_no_link(bad):
    with pytest.raises(ValueError, match="expected node:port>node:port"):
        cable_id(bad)


def test_clocks():
    assert clock_id("h1") == "h1/system"
    assert clock_id("h1", "ptp0") == "h1/ptp0"
