"""Formats of strings: what tools name things passes, what would break an id or a terminal does not."""

from __future__ import annotations

import pytest

from schemas.formats import FORMATS, format_of
from schemas.ids import cable_id, link_id, nic_id


@pytest.mark.parametrize("name", FORMATS)
def test_each_example_passes_and_control_characters_do_not(name):
    form = format_of(name)
    assert form.first_wrong([form.example]) is None
    assert form.first_wrong([form.example, "\x1b[2J"]) == "\x1b[2J"
    assert form.has_passed([form.example])
    assert not form.has_passed([form.example, "\x1b[2J"])


def test_built_ids_pass():
    link = link_id("leaf1", "Ethernet1", "10.0.0.1", "swp2")
    built = {
        "nic": nic_id("gpu-1.rack", "enp1s0f0np0"),
        "subject": cable_id(link),
    }
    for name, text in built.items():
        assert format_of(name).first_wrong([text]) is None, text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nic", "h1/eth1>h2/eth1"),
        ("nic", "h1"),
        ("nic", "/eth0"),
        ("address", "h1/eth1>h2/eth1"),
        ("address", "256.0.0.1"),
        ("address", ""),
        ("gid", "fe80::1"),
        ("text", "two\nlines"),
        ("topic", "../etc"),
    ],
)
def test_other_strings_do_not_pass(name, text):
    assert format_of(name).first_wrong([text]) == text


@pytest.mark.parametrize("text", ["10.0.0.1", "fe80::1%eth1", "::ffff:10.0.0.1", "fd00::1"])
def test_addresses_of_both_families_pass(text):
    assert format_of("address").first_wrong([text]) is None


def test_an_unknown_format_names_the_known():
    with pytest.raises(KeyError, match="expected one of"):
        format_of("colour")
