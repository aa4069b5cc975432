"""Ids: made in one place, taken apart again, and never ambiguous."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import (
    cable_ends,
    cable_id,
    clock_id,
    device_of,
    end_id,
    end_parts,
    far_node,
    flow_id,
    flow_parts,
    host_of,
    link_ends,
    link_id,
    natural,
    near_node,
    nic_id,
    nic_parts,
    reverse_link,
    window_id,
    window_parts,
)

UNPRINTABLE = ("C", "Z")  # other than the space
part = st.text(
    st.characters(codec="utf-8", exclude_categories=UNPRINTABLE, exclude_characters="/>"),
    min_size=1,
    max_size=128,
)
end_name = st.text(
    st.characters(
        codec="utf-8", exclude_categories=UNPRINTABLE, include_characters=" ", exclude_characters="<>[]"
    ),
    min_size=1,
    max_size=128,
).filter(lambda text: text == text.strip())


@given(part, part)
def test_a_nic_comes_apart_as_it_was_made(host, device):
    assert nic_parts(nic_id(host, device)) == (host, device)


@given(part, part, part, part)
def test_different_nics_have_different_ids(host, device, other_host, other_device):
    same = (host, device) == (other_host, other_device)
    assert (nic_id(host, device) == nic_id(other_host, other_device)) == same


@given(end_name, end_name, end_name, end_name)
def test_both_directions_are_one_cable(node, port, far_node, far_port):
    there, back = link_id(node, port, far_node, far_port), link_id(far_node, far_port, node, port)
    assert cable_id(there) == cable_id(back)
    assert set(cable_ends(cable_id(there))) == {end_id(node, port), end_id(far_node, far_port)}
    assert (there == back) == ((node, port) == (far_node, far_port))


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "a>b", "a\n", "\x00", "x" * 129, "tab\t"])
def test_parts_that_would_break_an_id(bad):
    for make in (
        lambda: nic_id(bad, "eth0"),
        lambda: nic_id("host", bad),
        lambda: clock_id(bad),
        lambda: clock_id("host", bad),
    ):
        with pytest.raises(ValueError, match="expected 1 to 128 printable characters"):
            make()


@pytest.mark.parametrize("bad", ["", " a", "a>b", "a<>b", "[a]", "a\n", "\x00", "x" * 129, "tab\t"])
def test_parts_that_would_break_a_link(bad):
    for make in (lambda: link_id(bad, "p", "n", "p"), lambda: link_id("n", "p", "n", bad)):
        with pytest.raises(ValueError, match="expected 1 to 128 printable characters"):
            make()


@pytest.mark.parametrize(
    ("node", "port", "text"),
    [
        ("leaf1", "swp1", "leaf1:swp1"),  # Cumulus
        ("leaf1", "Ethernet1/1", "leaf1:Ethernet1/1"),  # Arista, Cisco NX-OS
        ("leaf1", "Ethernet1/1/1", "leaf1:Ethernet1/1/1"),
        ("leaf1", "et-0/0/48:0", "leaf1:et-0/0/48:0"),  # Juniper, channelised
        ("leaf1", "ethernet-1/3", "leaf1:ethernet-1/3"),  # Nokia SR Linux
        ("leaf1", "1/5/c2/1", "leaf1:1/5/c2/1"),  # Nokia SR OS
        ("leaf1", "Eth1/5/1", "leaf1:Eth1/5/1"),  # Onyx
        ("MF0;sw1:MQM9700/U1", "17", "[MF0;sw1:MQM9700/U1]:17"),  # InfiniBand
        ("gpu01 mlx5_0", "1", "gpu01 mlx5_0:1"),
        ("fe80::1", "ip", "[fe80::1]:ip"),
    ],
)
def test_vendors_names_stay_as_they_are(node, port, text):
    assert end_id(node, port) == text
    assert end_parts(text) == (node, port)


@pytest.mark.parametrize("bad", ["", "host", "/eth0", "host/", "a/b/c", "a /b"])
def test_other_text_is_no_nic(bad):
    with pytest.raises(ValueError):
        nic_parts(bad)


@pytest.mark.parametrize("bad", ["", "a:b", "a:b>c:d>e:f"])
def test_other_text_is_no_link(bad):
    with pytest.raises(ValueError, match="expected node:port>node:port"):
        cable_id(bad)


def test_clocks():
    assert clock_id("h1") == "h1/system"
    assert clock_id("h1", "ptp0") == "h1/ptp0"


@given(end_name, end_name, end_name, end_name)
def test_a_link_comes_apart_as_it_was_made(node, port, far, far_port):
    link = link_id(node, port, far, far_port)
    assert [end_parts(end) for end in link_ends(link)] == [(node, port), (far, far_port)]
    assert (near_node(link), far_node(link)) == (node, far)
    assert reverse_link(reverse_link(link)) == link


@given(part, part, part.map("sock:{}".format))
def test_a_flow_comes_apart_as_it_was_made(host, boot, key):
    assert flow_parts(flow_id(host, boot, key)) == (host, boot, key)
    assert host_of(flow_id(host, boot, key)) == host


def test_a_window_comes_apart_as_it_was_made():
    link = link_id("leaf1", "swp1", "spine1", "swp3")
    assert window_parts(window_id("pod/1".partition("/")[0], link, 17)) == ("pod", link, 17)
    for bad in ("", "x", "shard/link", "shard/link/late"):
        with pytest.raises(ValueError, match="window id"):
            window_parts(bad)


def test_pairs_hosts_and_devices():
    assert (host_of("h1/eth0"), host_of("h1"), device_of("h1/eth0")) == ("h1", "h1", "eth0")
    assert cable_ends("a:1<>b:2") == ("a:1", "b:2")
    for parse, bad in (
        (cable_ends, "a:1>b:2"),
        (flow_parts, "h1/boot"),
        (link_ends, "a:1"),
    ):
        with pytest.raises(ValueError, match=repr(bad)):
            parse(bad)


def test_natural_order_takes_digits_that_are_no_number() -> None:
    assert sorted(["²", "h10", "h2", "1²2"], key=natural) == ["1²2", "h2", "h10", "²"]
