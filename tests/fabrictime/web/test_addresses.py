"""Addresses of tabs with a choice."""

from __future__ import annotations

from fabrictime.web.addresses import (
    alert_address,
    audit_address,
    contention_address,
    fabric_address,
    jobs_address,
)


def test_a_choice_is_part_of_the_address_and_escaped() -> None:
    assert fabric_address(link="l1:1>s1:2") == "/fabric?link=l1%3A1%3Es1%3A2"
    assert contention_address("l1:1>s1:2/INCAST/7") == "/contention?window=l1%3A1%3Es1%3A2%2FINCAST%2F7"
    assert audit_address(run="", host="h&1") == "/audit?host=h%261"
    assert jobs_address(job="a b", nic=None) == "/jobs?job=a+b"
    assert alert_address("LINK:a&b:1") == "/alerts?alert=LINK%3Aa%26b%3A1"


def test_an_empty_choice_is_left_out() -> None:
    assert fabric_address() == fabric_address(link=None, nic="") == "/fabric"
