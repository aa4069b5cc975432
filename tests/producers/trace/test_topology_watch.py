"""Topology watch: a changed file is loaded, an invalid one is ignored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from producers.trace.topology_watch import FILE_CHECK_S, TopologyWatch
from schemas.topology import TopologyError

FILE = '[[nodes]]\nname = "{name}"\naddresses = ["10.0.0.1"]\n'


def write(path: Path, text: str, changed_s: int) -> None:
    path.write_text(text)
    os.utime(path, (changed_s, changed_s))


def test_a_changed_file_is_loaded_at_the_next_check(tmp_path: Path) -> None:
    path = tmp_path / "topology.toml"
    write(path, FILE.format(name="leaf1"), 1)
    watch = TopologyWatch(path)
    assert not watch.check(0.0)
    write(path, FILE.format(name="leaf2"), 2)
    assert not watch.check(FILE_CHECK_S / 2)
    assert watch.check(FILE_CHECK_S)
    assert watch.topology.at("10.0.0.1") == ("leaf2", None)


def test_an_invalid_change_is_logged_and_the_last_topology_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "topology.toml"
    write(path, FILE.format(name="leaf1"), 1)
    watch = TopologyWatch(path)
    write(path, "nonsense", 2)
    assert not watch.check(FILE_CHECK_S)
    assert watch.topology.at("10.0.0.1") == ("leaf1", None)
    assert "the last valid file stays in use" in caplog.text


def test_the_first_file_must_be_valid(tmp_path: Path) -> None:
    write(tmp_path / "t.toml", "nonsense", 1)
    with pytest.raises(TopologyError):
        TopologyWatch(tmp_path / "t.toml")
    assert not TopologyWatch(None).topology
