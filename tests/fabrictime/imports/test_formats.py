"""Each format is recognised, describes its fabric, and survives arbitrary input."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.imports.base import BadImport, Hints
from fabrictime.imports.formats import FORMATS, format_of, import_files
from schemas.topology import Topology
from tests.examples import examples
from tests.fabrictime.imports.samples import ALL, LLDP, SONIC

HINTS = Hints("h1")


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_recognised(name: str) -> None:
    assert format_of(ALL[name]).name == name
    assert [each for each, text in ALL.items() if FORMATS[name].fits(text)] == [name]


@pytest.mark.parametrize("name", FORMATS)
def test_each_file_becomes_a_topology_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "h1.txt"
    path.write_text(ALL[name], encoding="utf-8-sig")
    file = import_files([path])
    assert file == import_files([path], name)
    assert Topology(file).nodes


def test_files_of_several_tools_are_one_fabric(tmp_path: Path) -> None:
    (tmp_path / "leaf1.json").write_text(SONIC)
    other = LLDP.replace("Ethernet1/1", "Ethernet0")
    (tmp_path / "h1.json").write_text(other)
    file = import_files([tmp_path / "leaf1.json", tmp_path / "h1.json"])
    assert {link.ends for link in file.links} == {
        ("leaf1:Ethernet0", "h1:eth0"),
        ("leaf1:Ethernet4", "spine1:Ethernet8"),
        ("h1:eth1", "leaf2:et-0/0/48:0"),
    }


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    with pytest.raises(BadImport, match=r"/x: no format fits: expected one of lldp, sonic"):
        import_files([tmp_path / "x"])
    with pytest.raises(BadImport, match="format 'visio': expected one of"):
        import_files([tmp_path / "x"], "visio")
    with pytest.raises(FileNotFoundError):
        import_files([tmp_path / "y"])


def read(name: str, text: str) -> None:
    """Read a text; only BadImport may be raised."""
    with contextlib.suppress(BadImport):
        FORMATS[name].read(text, HINTS)
    for each in FORMATS.values():
        each.fits(text)


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files_are_read_or_refused(name: str) -> None:
    draw, sample = random.Random(name), ALL[name]
    for _ in range(400):
        text = list(sample)
        for _ in range(draw.randint(1, 6)):
            at = draw.randrange(len(text))
            end = min(len(text), at + draw.randint(0, 12))
            text[at:end] = draw.choice(
                [[], [draw.choice(sample)], text[at:end] * 2, list('"[{<\x00é:,'), ["null"]]
            )
        read(name, "".join(text))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=examples(60), deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    read(name, text)


@pytest.mark.parametrize("name", ["lldp", "sonic"])
@settings(max_examples=examples(500), deadline=None)
@given(
    content=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["lldp", "interface", "eth0", "chassis", "port", "id", "value", "name", "DEVICE_METADATA",
                 "localhost", "hostname", "DEVICE_NEIGHBOR", "PORT", "INTERFACE", "LOOPBACK_INTERFACE"]
            ),
            inner,
            max_size=4,
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_any_json_is_read_or_refused(name: str, content: object) -> None:
    read(name, json.dumps(content))
