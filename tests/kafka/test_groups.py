"""Consumer groups: sharing, leaving, dying, static members, commits. On both brokers."""

from __future__ import annotations

import asyncio
import itertools
import uuid

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.protocol.commit import OffsetCommitRequest_v2, OffsetFetchRequest_v1
from aiokafka.protocol.group import (
    HeartbeatRequest_v1,
    JoinGroupRequest_v2,
    JoinGroupRequest_v5,
    LeaveGroupRequest_v1,
    SyncGroupRequest_v1,
)
from confluent_kafka import Consumer, TopicPartition

from schemas.kafka.admin import GroupsError, delete_groups, group_state


@pytest.fixture
def group():
    return f"group-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def member(kafka):
    """Makes confluent consumers in a group, and closes them."""
    made = []

    def make(group, topic, **config):
        consumer = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "enable.auto.commit": False,
                **config,
            }
        )
        consumer.subscribe([topic])
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


def numbers(consumer):
    return sorted(part.partition for part in consumer.assignment())


def settle(wait_for, consumers, partitions):
    """Polls until the consumers share all partitions among them."""

    def shared():
        for consumer in consumers:
            consumer.consume(10, 0.05)
        found = [numbers(consumer) for consumer in consumers]
        return all(found) and sorted(itertools.chain(*found)) == list(range(partitions)) and found

    return wait_for(shared)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_and_take_over(topic, member, group, wait_for, strategy):
    name = topic(6)
    config = {"partition.assignment.strategy": strategy}
    first = member(group, name, **config)
    settle(wait_for, [first], 6)
    second = member(group, name, **config)
    found = settle(wait_for, [first, second], 6)
    assert [len(part) for part in found] == [3, 3]
    second.close()
    settle(wait_for, [first], 6)


def test_every_message_reaches_one_member(kafka, topic, member, group, produce, wait_for):
    name = topic(4)
    members = [member(group, name), member(group, name)]
    settle(wait_for, members, 4)
    produce(name, [(b"%d" % number, b"%d" % number) for number in range(400)])
    seen = []

    def all_came():
        for consumer in members:
            seen.extend(int(message.value()) for message in consumer.consume(500, 0.1))
        return len(seen) >= 400

    wait_for(all_came)
    assert sorted(seen) == list(range(400))


async def test_aiokafka_members_rebalance(kafka, topic, group):
    name = topic(4)
    options = {
        "bootstrap_servers": kafka.bootstrap,
        "group_id": group,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
        "auto_offset_reset": "earliest",
    }

    async def shared(consumers):
        async with asyncio.timeout(20):
            while sorted(len(consumer.assignment()) for consumer in consumers) != [4 // len(consumers)] * len(
                consumers
            ):
                await asyncio.gather(*(consumer.getmany(timeout_ms=50) for consumer in consumers))

    first = AIOKafkaConsumer(name, **options)
    async with first:
        await shared([first])
        async with AIOKafkaConsumer(name, **options) as second:
            await shared([first, second])
        await shared([first])


async def test_both_clients_in_one_group(kafka, topic, group, member, wait_for):
    name = topic(4)
    consumer = member(group, name, **{"partition.assignment.strategy": "roundrobin"})
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    async with AIOKafkaConsumer(
        name,
        bootstrap_servers=kafka.bootstrap,
        group_id=group,
        session_timeout_ms=6000,
        heartbeat_interval_ms=200,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    ) as other:
        async with asyncio.timeout(20):
            while (len(consumer.assignment()), len(other.assignment())) != (2, 2):
                await asyncio.to_thread(consumer.poll, 0.05)
                await other.getmany(timeout_ms=50)


def join_request(group, member_id, session_ms=6000, protocols=(("range", b"meta"),)):
    return JoinGroupRequest_v2(group, session_ms, 5000, member_id, "consumer", list(protocols))


def enter(client, group, **options):
    """Joins a group of one and syncs; returns (generation, member id)."""
    joined = client.ask(join_request(group, "", **options))
    assert joined.error_code == 0
    synced = client.ask(
        SyncGroupRequest_v1(group, joined.generation_id, joined.member_id, [(joined.member_id, b"mine")])
    )
    assert (synced.error_code, synced.member_assignment) == (0, b"mine")
    return joined.generation_id, joined.member_id


@pytest.fixture
def ready(raw, group, wait_for):
    """A group name whose coordinator is up: Apache Kafka makes its offsets topic with the first group."""

    def up():
        answer = raw().ask(OffsetFetchRequest_v1(group, [("none", [0])]))
        codes = [part[-1] for _, parts in answer.topics for part in parts]
        return bool(codes) and set(codes) <= {0, 3}

    from aiokafka.protocol.coordination import FindCoordinatorRequest_v0

    wait_for(lambda: raw().ask(FindCoordinatorRequest_v0(group)).error_code == 0)
    wait_for(up)
    return group


def test_a_silent_member_is_dropped_and_replaced(raw, ready, wait_for):
    client = raw()
    generation, member_id = enter(client, ready, session_ms=1500)
    assert client.ask(HeartbeatRequest_v1(ready, generation, member_id)).error_code == 0
    joined = raw().ask(join_request(ready, ""))
    assert joined.error_code == 0
    assert joined.generation_id > generation
    assert [entry[0] for entry in joined.members] == [joined.member_id]
    assert client.ask(HeartbeatRequest_v1(ready, generation, member_id)).error_code in (22, 25)


def test_wrong_members_and_generations_get_an_error(raw, ready, topic):
    name, client = topic(1), raw()
    generation, member_id = enter(client, ready)
    assert client.ask(HeartbeatRequest_v1(ready, generation + 1, member_id)).error_code == 22
    assert client.ask(HeartbeatRequest_v1(ready, generation, "stranger")).error_code == 25
    assert client.ask(SyncGroupRequest_v1(ready, generation - 1, member_id, [])).error_code == 22
    assert client.ask(join_request(ready, "stranger")).error_code == 25
    assert client.ask(join_request(ready, "", protocols=[("other", b"")])).error_code == 23

    def commit(generation, member_id):
        answer = client.ask(
            OffsetCommitRequest_v2(ready, generation, member_id, -1, [(name, [(0, 7, "note")])])
        )
        return answer.topics[0][1][0][1]

    assert commit(generation + 1, member_id) == 22
    assert commit(generation, "stranger") == 25
    assert commit(-1, "") in (22, 25)
    assert commit(generation, member_id) == 0
    assert client.ask(LeaveGroupRequest_v1(ready, member_id)).error_code == 0
    assert client.ask(HeartbeatRequest_v1(ready, generation, member_id)).error_code == 25
    assert client.ask(LeaveGroupRequest_v1(ready, member_id)).error_code == 25
    [(_, [(_, offset, note, code)])] = client.ask(OffsetFetchRequest_v1(ready, [(name, [0])])).topics
    assert (offset, note, code) == (7, "note", 0)


def test_a_heartbeat_announces_a_rebalance_which_waits_for_all(raw, ready):
    first, second = raw(), raw()
    generation, member_id = enter(first, ready)
    request = join_request(ready, "")
    number = second.send(request)
    while first.ask(HeartbeatRequest_v1(ready, generation, member_id)).error_code != 27:
        pass
    assert first.ask(SyncGroupRequest_v1(ready, generation, member_id, [])).error_code == 27
    again = first.ask(join_request(ready, member_id))
    joined = second.receive(request, number)
    assert again.error_code == joined.error_code == 0
    assert again.generation_id == joined.generation_id > generation
    leader, follower = (again, joined) if again.leader_id == again.member_id else (joined, again)
    assert {entry[0] for entry in leader.members} == {again.member_id, joined.member_id}
    assert all(bytes(entry[1]) == b"meta" for entry in leader.members)
    assert not follower.members
    clients = {again.member_id: first, joined.member_id: second}
    waiting = SyncGroupRequest_v1(ready, generation + 1, follower.member_id, [])
    waiting.generation_id = follower.generation_id
    number = clients[follower.member_id].send(waiting)
    given = [(leader.member_id, b"to leader"), (follower.member_id, b"to follower")]
    synced = clients[leader.member_id].ask(
        SyncGroupRequest_v1(ready, leader.generation_id, leader.member_id, given)
    )
    assert synced.member_assignment == b"to leader"
    other = clients[follower.member_id].receive(waiting, number)
    assert (other.error_code, other.member_assignment) == (0, b"to follower")


def test_new_members_are_given_an_id_first(raw, ready):
    client = raw()

    def ask(member_id):
        return client.ask(
            JoinGroupRequest_v5(ready, 6000, 5000, member_id, None, "consumer", [("range", b"")])
        )

    first = ask("")
    assert first.error_code == 0 or (first.error_code == 79 and first.member_id)
    if first.error_code == 79:
        second = ask(first.member_id)
        assert (second.error_code, second.member_id) == (0, first.member_id)


def test_a_static_member_comes_back_without_a_rebalance(raw, ready):
    def ask(client, member_id, instance):
        request = JoinGroupRequest_v5(
            ready, 6000, 5000, member_id, instance, "consumer", [("range", b"meta")]
        )
        return client.ask(request)

    client = raw()
    first = ask(client, "", "host-1")
    assert first.error_code == 0
    synced = client.ask(
        SyncGroupRequest_v1(ready, first.generation_id, first.member_id, [(first.member_id, b"mine")])
    )
    assert synced.error_code == 0
    back = ask(raw(), "", "host-1")
    assert back.error_code == 0
    assert back.generation_id == first.generation_id
    assert back.member_id != first.member_id
    fenced = ask(client, first.member_id, "host-1")
    assert fenced.error_code in (25, 82)
    again = raw().ask(SyncGroupRequest_v1(ready, back.generation_id, back.member_id, []))
    assert (again.error_code, again.member_assignment) == (0, b"mine")


def test_committed_offsets_are_where_the_next_consumer_starts(topic, member, group, produce, wait_for):
    name = topic(1)
    produce(name, [(None, b"%d" % number) for number in range(100)])
    first = member(group, name)
    got = []
    wait_for(lambda: got.extend(first.consume(40 - len(got), 0.1)) or len(got) >= 40)
    first.commit(message=got[39], asynchronous=False)
    [committed] = first.committed([TopicPartition(name, 0)], timeout=10)
    assert committed.offset == 40
    first.close()
    second = member(group, name)
    message = wait_for(lambda: second.poll(0.1))
    assert message.value() == b"40"


def test_commits_with_a_note_outside_of_any_group(kafka, topic, produce):
    name, group = topic(2), f"group-{uuid.uuid4().hex[:8]}"
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        offsets = [TopicPartition(name, 0, 5, metadata="five"), TopicPartition(name, 1, 7)]
        consumer.commit(offsets=offsets, asynchronous=False)
        found = consumer.committed([TopicPartition(name, 0), TopicPartition(name, 1)], timeout=10)
        assert [(part.offset, part.metadata) for part in found] == [(5, "five"), (7, None)]
    finally:
        consumer.close()


def test_groups_are_listed_and_described(kafka, admin, topic, member, group, wait_for):
    name = topic(2)
    settle(wait_for, [member(group, name, **{"client.id": "me"})], 2)
    listed = admin.list_consumer_groups(request_timeout=10).result(10)
    assert group in {entry.group_id for entry in listed.valid}
    described = admin.describe_consumer_groups([group], request_timeout=10)[group].result(10)
    assert described.state.name == "STABLE"
    [one] = described.members
    assert one.client_id == "me"
    assert sorted(part.partition for part in one.assignment.topic_partitions) == [0, 1]


def test_a_group_is_deleted_once_it_has_no_members(kafka, topic, member, group, produce, wait_for):
    name = topic(1)
    produce(name, [(None, b"%d" % number) for number in range(10)])
    first = member(group, name)
    message = wait_for(lambda: first.poll(0.1))
    first.commit(message=message, asynchronous=False)
    with pytest.raises(GroupsError, match=rf"^group {group}: not deleted: NON_EMPTY_GROUP"):
        delete_groups(kafka.bootstrap, [group])
    first.close()
    wait_for(lambda: group_state(kafka.bootstrap, group) == ("EMPTY", 0))
    delete_groups(kafka.bootstrap, [group])
    with pytest.raises(GroupsError, match="GROUP_ID_NOT_FOUND"):
        delete_groups(kafka.bootstrap, [group])
    second = member(group, name)
    assert wait_for(lambda: second.poll(0.1)).value() == b"0"


def test_confluent_static_members_keep_their_partitions_over_a_restart(topic, member, group, wait_for):
    name = topic(4)
    consumers = [member(group, name, **{"group.instance.id": f"host-{number}"}) for number in range(2)]
    before = settle(wait_for, consumers, 4)
    consumers[1].close()
    back = member(group, name, **{"group.instance.id": "host-1"})
    assert settle(wait_for, [consumers[0], back], 4) == before


async def test_aiokafka_static_member(kafka, topic, group):
    name = topic(2)
    for _ in range(2):
        async with AIOKafkaConsumer(
            name,
            bootstrap_servers=kafka.bootstrap,
            group_id=group,
            group_instance_id="host-1",
            session_timeout_ms=6000,
            heartbeat_interval_ms=200,
        ) as consumer:
            async with asyncio.timeout(20):
                while len(consumer.assignment()) != 2:
                    await consumer.getmany(timeout_ms=50)
