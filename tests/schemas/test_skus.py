"""The data file of machine types is complete, and every value has a source and a check that measures it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.skus import load_skus

SKUS = load_skus()


def test_every_type_states_its_gpus_and_sources() -> None:
    assert {"a100", "h100", "h200", "b200", "b300", "gb200", "mi300x"} <= SKUS.keys()
    for name, sku in SKUS.items():
        if name != "gh200":  # its hosts have one, two or four
            assert sku.expected["gpus"].equal in (4, 8)
        assert all(limit.source for limit in sku.expected.values())


def test_types_share_no_pci_id() -> None:
    every = [pci for sku in SKUS.values() for pci in sku.pci]
    assert len(set(every)) == len(every)
    assert all(re.fullmatch(r"(10de|1002):[0-9a-f]{4}", pci) for pci in every)


OF_SEVERAL_HOSTS = {"all_reduce_nodes_gb_per_s"}
"""Figures of `fabrictime audit collectives`."""


def test_a_check_states_every_expected_value() -> None:
    """A value that no host publishes could never deviate."""
    found = [each for check in CHECKS.values() for each in run_check(check, HEALTHY).findings]
    stated = {each.fact.name for each in found if each.fact is not None}
    expected = {fact for sku in SKUS.values() for fact in sku.expected}
    assert expected - stated == OF_SEVERAL_HOSTS


def test_limits() -> None:
    h100 = SKUS["h100"]
    assert (h100.name, h100.gpus, h100.lowest("nvlinks"), h100.lowest("other")) == ("h100", 8, 18, 0)
    assert (h100.highest("write_latency_us"), h100.highest("nvlinks")) == (5, float("inf"))
    assert [each for each in range(10) if h100.is_part(each)] == [1, 2, 4]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[x]\ngpu = 'X'\nexpected = { a = { equal = 1 } }", "x.expected.a.source: Field required"),
        ("[x]\ngpu = 'X'\nexpected = { a = { source = 's' } }", "expected one of equal, minimum and maximum"),
        ("[x]\ngpu = '('\nexpected = {}", "x: Value error, gpu '('"),
        ("x", "not a TOML file"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "skus.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="SKU file") as error:
        load_skus(path)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
