"""The log's directory: its topics over restarts, its cap, its lock; and the journal of offsets."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fabrictime.log.errors import AlreadyRunning, Code, LogError
from fabrictime.log.offsets import Committed, OffsetStore
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from schemas.topics import TOPICS
from tests.examples import examples


def options(folder, **more):
    return LogSettings(directory=folder, min_free_bytes=0, **more)


def test_the_projects_topics_are_there_with_their_configuration(tmp_path):
    hours = {"probes.retention_hours": 2.0}
    store = Store(options(tmp_path, partitions=3, retention_hours=hours))
    assert set(store.topics) == set(TOPICS)
    assert len(store.topics["fabric.probes"].partitions) == 3
    assert len(store.topics["fabric.inventory"].partitions) == 1
    assert store.topics["fabric.probes"].config.retention_ms == 7_200_000
    assert store.topics["fabric.inventory"].config.compact
    assert (tmp_path.stat().st_mode & 0o777) == 0o700 or os.access(tmp_path, os.W_OK)
    store.close()
    store = Store(options(tmp_path, partitions=4, retention_hours={"probes.retention_hours": 3.0}))
    assert store.topics["fabric.probes"].config.retention_ms == 10_800_000
    assert len(store.topics["fabric.probes"].partitions) == 4
    store.close()
    store = Store(options(tmp_path, partitions=2))
    assert len(store.topics["fabric.probes"].partitions) == 4
    store.close()


def test_a_directory_has_one_holder_and_the_error_names_it(tmp_path):
    store = Store(options(tmp_path, create_topics=False))
    with pytest.raises(AlreadyRunning, match=rf"held by process {os.getpid()}$"):
        Store(options(tmp_path))
    store.close()
    Store(options(tmp_path, create_topics=False)).close()


def test_unfinished_and_deleted_topics_are_cleared_away(tmp_path):
    store = Store(options(tmp_path, create_topics=False))
    store.create_topic("whole", 2, {})
    store.create_topic("gone", 2, {})
    store.delete_topic("gone")
    store.close()
    (tmp_path / "topics" / "half" / "0").mkdir(parents=True)
    store = Store(options(tmp_path, create_topics=False))
    assert set(store.topics) == {"whole"}
    assert [path.name for path in (tmp_path / "topics").iterdir()] == ["whole"]
    store.close()


def test_producer_ids_go_on_after_a_restart(tmp_path):
    seen = set()
    for _ in range(3):
        store = Store(options(tmp_path, create_topics=False))
        seen |= {store.producer_id() for _ in range(5)}
        store.close()
    assert len(seen) == 15


def test_the_cap_takes_the_oldest_and_spares_compacted_topics(tmp_path, make_batch):
    store = Store(options(tmp_path, create_topics=False, total_bytes=64 * 1024**2, segment_bytes=4 * 1024**2))
    kept = store.create_topic("kept", 1, {"cleanup.policy": "compact"}).partitions[0]
    streams = [store.create_topic(f"stream-{number}", 1, {}).partitions[0] for number in range(2)]
    data = make_batch([(b"k", bytes(1_000_000))])
    kept.append(memoryview(bytearray(data)))
    for _ in range(50):
        for partition in streams:
            partition.append(memoryview(bytearray(data)))
    store.expire()
    assert sum(partition.size for partition in store.partitions()) <= 64 * 1024**2
    assert sum(partition.size for partition in store.partitions()) > 50 * 1024**2
    assert kept.start_offset == 0
    assert all(partition.end_offset == 50 for partition in streams)
    assert all(partition.start_offset > 0 for partition in streams)
    store.close()


def test_too_little_space_refuses_and_logs_one_line(tmp_path, caplog):
    store = Store(LogSettings(directory=tmp_path, create_topics=False, min_free_bytes=2**60))
    for _ in range(3):
        with pytest.raises(LogError, match="min_free_bytes") as error:
            store.require_space(1)
    assert error.value.code is Code.KAFKA_STORAGE_ERROR
    assert caplog.text.count("messages are refused") == 1
    store.settings = options(tmp_path)
    store.check_space()
    store.require_space(1)
    assert "room again" in caplog.text
    store.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.org"])
def test_it_listens_on_loopback_only(tmp_path, host):
    with pytest.raises(ValidationError, match="loopback"):
        LogSettings(directory=tmp_path, host=host)


def test_unknown_and_absurd_settings_are_refused(tmp_path):
    for wrong in ({"no_such": 1}, {"partitions": 0}, {"port": 70000}, {"segment_bytes": -1}):
        with pytest.raises(ValidationError):
            LogSettings(directory=tmp_path, **wrong)


commits = st.lists(
    st.tuples(
        st.sampled_from(["g", "h"]),
        st.dictionaries(
            st.tuples(st.sampled_from(["t", "ü\n"]), st.integers(0, 3)),
            st.builds(Committed, st.integers(0, 2**62), st.text(max_size=5)),
            min_size=1,
        ),
    ),
    max_size=20,
)


@given(history=commits, torn=st.binary(max_size=40))
@settings(max_examples=examples(60))
def test_commits_survive_a_torn_journal(history, torn):
    with tempfile.TemporaryDirectory() as folder:
        store = OffsetStore(Path(folder))
        wanted = {"g": {}, "h": {}}
        for group, offsets in history:
            store.commit(group, offsets)
            wanted[group] |= offsets
        with (Path(folder) / "offsets.log").open("ab") as file:
            file.write(torn)
        again = OffsetStore(Path(folder))
        assert {group: again.fetch(group) for group in wanted} == wanted
        again.commit("g", {("t", 0): Committed(1, "")})
        last = OffsetStore(Path(folder))
        assert last.fetch("g")["t", 0] == Committed(1, "")
        for opened in (store, again, last):
            opened.close()


def test_the_journal_is_rewritten_when_it_is_mostly_history(tmp_path, monkeypatch):
    monkeypatch.setattr("fabrictime.log.offsets._REWRITE_BYTES", 2000)
    store = OffsetStore(tmp_path)
    for number in range(2000):
        store.commit("g", {("t", 0): Committed(number, "")})
    assert (tmp_path / "offsets.log").stat().st_size < 5000
    store.forget(topic="t")
    store.commit("h", {("t", 1): Committed(5, "note")})
    store.close()
    again = OffsetStore(tmp_path)
    assert again.fetch("g") == {}
    assert again.fetch("h") == {("t", 1): Committed(5, "note")}
    again.close()
