"""Committed offsets: a journal that survives a killed process and a half-written line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.log import offsets
from fabrictime.log.offsets import Committed, OffsetStore


def commit(store: OffsetStore, group: str, offset: int, topic: str = "t", note: str = "") -> None:
    store.commit(group, {(topic, 0): Committed(offset, note)})


def test_committed_offsets_are_read_by_the_next_process(tmp_path: Path) -> None:
    store = OffsetStore(tmp_path)
    commit(store, "g", 5)
    commit(store, "g", 7, note="a note")
    commit(store, "other", 1)  # the store is not closed: the process was killed
    found = OffsetStore(tmp_path)
    assert found.fetch("g") == {("t", 0): Committed(7, "a note")}
    assert sorted(found.groups()) == ["g", "other"]
    assert found.fetch("unknown") == {}


@pytest.mark.parametrize("tail", [b"1234", b"00000000 [1]\n", b"no checksum\n", b"\n"])
def test_a_damaged_end_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    commit(OffsetStore(tmp_path), "g", 5)
    path = tmp_path / "offsets.log"
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    store = OffsetStore(tmp_path)
    assert path.read_bytes() == whole
    commit(store, "g", 6)
    assert OffsetStore(tmp_path).fetch("g") == {("t", 0): Committed(6, "")}


def test_offsets_of_a_group_or_topic_are_forgotten(tmp_path: Path) -> None:
    store = OffsetStore(tmp_path)
    for group in ("g", "h"):
        for topic in ("t", "u"):
            commit(store, group, 5, topic)
    store.forget(topic="t")
    store.forget(group="h")
    for found in (store, OffsetStore(tmp_path)):
        assert found.groups() == ["g"]
        assert found.fetch("g") == {("u", 0): Committed(5, "")}


def test_a_grown_journal_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "_REWRITE_BYTES", 1000)
    store = OffsetStore(tmp_path)
    for offset in range(500):
        commit(store, "g", offset)
    assert (tmp_path / "offsets.log").stat().st_size < 1200
    assert OffsetStore(tmp_path).fetch("g") == {("t", 0): Committed(499, "")}
