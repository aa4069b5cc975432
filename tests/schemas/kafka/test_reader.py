"""The reader against the embedded log."""

from __future__ import annotations

import time
from dataclasses import astuple

import pytest

from schemas import codec
from schemas.kafka import BEGINNING, END, committed, owns, partition_of, since, tail
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader
from schemas.records import LinkHealth
from schemas.topics import ALERTS, CONFIG, LINK_HEALTH, QUEUES, Topic
from tests.records import make
from tests.schemas.kafka.conftest import NAMES


def read(log, start, **given):
    with TopicReader(log, {LINK_HEALTH: start}, **given) as reader:
        reader.connect()
        assert reader.behind
        found = list(reader.read_to_end())
        assert not reader.behind
        return found


def test_from_the_beginning_in_each_partitions_order(filled):
    found = read(filled[0], BEGINNING)
    assert sorted(message.key for message in found) == sorted(NAMES)
    for message in found:
        assert message.partition == partition_of(message.key, 2)
        assert codec.decode(message.value, LinkHealth)["subject"] == message.key
    for number in (0, 1):
        offsets = [message.offset for message in found if message.partition == number]
        assert offsets == list(range(len(offsets)))


def test_from_a_time(filled):
    log, later_ns = filled
    found = read(log, since(later_ns))
    assert {message.key for message in found} == set(NAMES[15:])
    assert all(message.append_ns >= later_ns - 1_000_000 for message in found)
    assert read(log, since(time.time_ns() + 10**9)) == [], "nothing is that new"


def test_the_last_messages(filled):
    found = read(filled[0], tail(3))
    assert len(found) == 6
    assert max(message.offset for message in found if message.partition == 0) == (
        max(m.offset for m in read(filled[0], BEGINNING) if m.partition == 0)
    )


def test_one_key_and_one_partition(filled):
    assert [message.key for message in read(filled[0], BEGINNING, key=NAMES[3])] == [NAMES[3]]
    with TopicReader(filled[0], {LINK_HEALTH: BEGINNING}) as reader:
        reader.connect(partitions={1})
        assert reader.assigned == [("fabric.link-health", 1)]
        assert {m.key for m in reader.read_to_end()} == {n for n in NAMES if owns(n, 2, {1})}


def test_following(log):
    with TopicReader(log, {ALERTS: END}, fetch_wait_ms=10) as reader:
        reader.connect()
        assert list(reader.read_to_end()) == []
        publisher = Publisher(log)
        publisher.publish(ALERTS, "a", make("Alert", alert_id="a"))
        publisher.publish(ALERTS, "a", None)
        publisher.send("fabric.alerts", "b", b"nonsense")
        publisher.flush(10)
        found, bad, end_s = [], [], time.monotonic() + 10
        while len(found) + len(bad) < 3 and time.monotonic() < end_s:
            taken = reader.decoded(
                reader.poll(0.05), on_reject=lambda message, error: bad.append(message.key)
            )
            found += taken
        assert [(m.key, None if r is None else r["alert_id"]) for m, r in found] == [
            ("a", "a"),
            ("a", None),
        ]
        assert bad == ["b"]
        reader.pause(reader.assigned)
        publisher.publish(ALERTS, "c", None)
        publisher.flush(10)
        assert reader.poll(0.3) == []
        reader.resume(reader.assigned)
        end_s = time.monotonic() + 10
        while not (more := reader.poll(0.1)) and time.monotonic() < end_s:
            pass
        assert [message.key for message in more] == ["c"]


def test_a_missing_topic(log):
    missing = Topic("fabric.none", "x", LinkHealth, "none", CONFIG.partitions, None)
    with (
        TopicReader(log, {missing: BEGINNING}) as reader,
        pytest.raises(TopicMissing, match="does not exist"),
    ):
        reader.connect()
    with (
        TopicReader("127.0.0.1:1", {CONFIG: BEGINNING}) as reader,
        pytest.raises(LogUnavailable, match="is `fabrictime up` running"),
    ):
        reader.connect(0.5)


def test_topics_are_assigned_as_they_appear(filled):
    missing = Topic("fabric.none", "x", LinkHealth, "none", CONFIG.partitions, None)
    with TopicReader(filled[0], {missing: BEGINNING, LINK_HEALTH: BEGINNING}) as reader:
        assert reader.assign_available() == ["fabric.none"]
        assert {message.key for message in reader.read_to_end()} == set(NAMES)
        del reader.starts[missing]
        reader.starts[QUEUES] = END
        assert reader.assign_available() == []
        assert {name for name, _ in reader.assigned} == {LINK_HEALTH.name, QUEUES.name}
        assert list(reader.read_to_end()) == []


def test_a_group_goes_on_where_it_committed(filled):
    starts = {LINK_HEALTH: committed(tail(1))}

    def newest():
        with TopicReader.open(
            filled[0], starts, group="g", partition_keys={LINK_HEALTH: [NAMES[0]]}
        ) as reader:
            found = list(reader.read_to_end())
            reader.commit({message.place: message.offset for message in found}, wait=True)
            assert {number for _, number in reader.assigned} == {partition_of(NAMES[0], 2)}
            return found

    first = newest()
    assert len(first) == 1
    assert [astuple(message) for message in newest()] == [astuple(message) for message in first]
    with TopicReader.open(filled[0], starts, group="g") as reader:
        reader.commit({first[0].place: first[0].offset - 2}, wait=True)
    assert len(newest()) == 3
