"""The log as a process: killed, crowded, out of room, started twice, thrown garbage at."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.protocol.fetch import FetchRequest_v4
from aiokafka.protocol.group import HeartbeatRequest_v1, JoinGroupRequest_v2
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from fabrictime.log import server as server_module
from schemas.kafka.settings import KafkaSettings
from tests.embedded_log import EmbeddedLog

QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}


def create(log, name, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": log.bootstrap, **QUIET})
    config = {key.replace("_", "."): str(value) for key, value in config.items()}
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values():
        future.result(20)
    return admin


def everything(log, name, partitions=1):
    """All messages of a topic up to its end."""
    consumer = Consumer(
        {"bootstrap.servers": log.bootstrap, "group.id": "all", "enable.partition.eof": True, **QUIET}
    )
    try:
        consumer.assign([TopicPartition(name, number, 0) for number in range(partitions)])
        messages, ended = [], set()
        deadline = time.monotonic() + 30
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, 0.2):
                if message.error() is None:
                    messages.append(message)
                elif message.error().code() == -191:
                    ended.add(message.partition())
        return messages
    finally:
        consumer.close()


@pytest.mark.timeout(120)
def test_kill_9_loses_doubles_and_reorders_nothing_acknowledged(start_log, wait_for):
    log = start_log(segment_bytes=2_000_000)
    create(log, "t", 3)
    producer = Producer(
        {
            "bootstrap.servers": log.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "message.timeout.ms": 60_000,
            "partitioner": "murmur2_random",
            "retry.backoff.ms": 20,
            **QUIET,
        }
    )
    acknowledged: dict[tuple[int, int], bytes] = {}
    failed = []

    def delivered(error, message):
        if error:
            failed.append(error)
        else:
            acknowledged[message.partition(), message.offset()] = message.value()

    ended = threading.Event()
    sent = 0

    def send():
        nonlocal sent
        while not ended.is_set():
            try:
                producer.produce(
                    "t", b"%d" % sent + b" " * 500, b"key-%d" % (sent % 10), on_delivery=delivered
                )
            except BufferError:
                producer.poll(0.01)
                continue
            sent += 1
            producer.poll(0)
            if sent - len(acknowledged) > 2000:
                producer.poll(0.01)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        for _ in range(4):
            already = len(acknowledged)
            wait_for(lambda already=already: len(acknowledged) > already + 3000)
            log.kill()
            log.start()
    finally:
        ended.set()
        thread.join()
    assert producer.flush(40) == 0
    assert not failed
    assert len(acknowledged) == sent
    messages = everything(log, "t", 3)
    assert {(m.partition(), m.offset()): m.value() for m in messages} == acknowledged
    by_key = defaultdict(list)
    for message in messages:
        by_key[message.key()].append(int(message.value()))
    assert sorted(itertools.chain(*by_key.values())) == list(range(sent))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.mark.timeout(120)
def test_kill_9_in_the_midst_of_compaction_keeps_the_newest_of_every_key(start_log, wait_for):
    log = start_log(housekeeping_ms=50, compaction_bytes=0)
    options = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_bytes": 40_000}
    create(log, "t", 1, **options)
    producer = Producer(
        {
            "bootstrap.servers": log.bootstrap,
            "enable.idempotence": True,
            "batch.size": 5000,
            "linger.ms": 1,
            "message.timeout.ms": 60_000,
            "retry.backoff.ms": 20,
            "compression.type": "lz4",
            **QUIET,
        }
    )
    newest: dict[bytes, tuple[int, bytes]] = {}

    def delivered(error, message):
        assert error is None
        key = message.key()
        newest[key] = max(newest.get(key, (-1, b"")), (message.offset(), message.value()))

    total = 0
    for _ in range(4):
        for number in range(total, total + 3000):
            producer.produce("t", b"%d" % number, b"key-%d" % (number % 100), on_delivery=delivered)
            producer.poll(0.0002)
        total += 3000
        log.kill()
        log.start()
    assert producer.flush(40) == 0
    compacted = wait_for(lambda: len(found := everything(log, "t")) < total // 3 and found)
    offsets = [message.offset() for message in compacted]
    assert offsets == sorted(set(offsets))
    last = {message.key(): (message.offset(), message.value()) for message in compacted}
    assert last == newest
    assert {int(value) for _, value in last.values()} == set(range(total - 100, total))


def test_committed_offsets_and_groups_after_kill_9(start_log, wait_for):
    log = start_log()
    create(log, "t", 2)
    producer = Producer({"bootstrap.servers": log.bootstrap, **QUIET})
    for number in range(100):
        producer.produce("t", b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            **QUIET,
        }
    )
    try:
        consumer.subscribe(["t"])
        got = []
        wait_for(lambda: got.extend(consumer.consume(100, 0.1)) or len(got) >= 100)
        consumer.commit(asynchronous=False)
        log.kill()
        log.start()
        [low, high] = consumer.committed([TopicPartition("t", 0), TopicPartition("t", 1)], timeout=20)
        assert (low.offset, high.offset) == (50, 50)
        producer.produce("t", b"after", partition=1)
        assert producer.flush(20) == 0

        def after():
            message = consumer.poll(0.1)
            return message is not None and message.error() is None and message.value() == b"after"

        wait_for(after)
    finally:
        consumer.close()


def test_a_clean_end_and_a_second_start(start_log):
    log = start_log()
    create(log, "t")
    producer = Producer({"bootstrap.servers": log.bootstrap, **QUIET})
    for number in range(10):
        producer.produce("t", b"%d" % number)
    assert producer.flush(20) == 0
    begin = time.monotonic()
    assert log.stop() == 0
    assert time.monotonic() - begin < 5
    log.start()
    assert [message.value() for message in everything(log, "t")] == [b"%d" % number for number in range(10)]


def open_files(folder):
    """The files below a folder that this process has open."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return [link for link in links if link.startswith(str(folder))]


@pytest.mark.parametrize("fsync_interval_ms", [0, 1])
def test_a_stopped_server_holds_no_file_and_starts_again_there(tmp_path, wait_for, fsync_interval_ms):
    options = {"housekeeping_ms": 50, "compaction_bytes": 0, "fsync_interval_ms": fsync_interval_ms}
    with EmbeddedLog(tmp_path / "log", create_topics=False, **options) as log:
        compacted = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "segment_bytes": 10_000}
        create(log, "t", 3, **compacted)
        producer = Producer({"bootstrap.servers": log.bootstrap, "batch.size": 5000, **QUIET})
        for number in range(300):
            producer.produce("t", b"%d" % number + b" " * 500, b"key-%d" % number)
        assert producer.flush(20) == 0
        assert len(everything(log, "t", 3)) == 300
        waiting = Consumer({"bootstrap.servers": log.bootstrap, "group.id": "w", **QUIET})
        waiting.assign([TopicPartition("t", 0, 0)])
        wait_for(lambda: waiting.poll(0.1))  # from now on a fetch of it waits at the end of the partition
        first = log.server
        log.down()
        wait_for(lambda: not open_files(tmp_path), name="a thread that compacts may still read")
        log.up()
        assert len(everything(log, "t", 3)) == 300
        assert open_files(tmp_path)
        waiting.close()
    assert not open_files(tmp_path)
    assert first.store.partitions()  # the server itself is still there


def test_clients_of_both_kinds_reach_it_at_an_ipv6_address(start_log):
    log = start_log(host="::1")
    create(log, "t")
    settings = KafkaSettings(bootstrap=log.bootstrap)
    producer = Producer({**settings.confluent_options(), **QUIET})
    producer.produce("t", b"1")
    assert producer.flush(20) == 0
    assert [message.value() for message in everything(log, "t")] == [b"1"]

    async def read():
        consumer = AIOKafkaConsumer("t", auto_offset_reset="earliest", **settings.aiokafka_options())
        await consumer.start()
        try:
            return (await asyncio.wait_for(consumer.getone(), 20)).value
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == b"1"


def second(log, **settings):
    return subprocess.run(
        [sys.executable, "-m", "fabrictime.log", json.dumps({**log.settings, **settings})],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_second_process_names_the_holder_of_the_directory_or_the_port(start_log, tmp_path):
    log = start_log()
    done = second(log, port=0)
    assert done.returncode == 1
    assert f"log directory {log.settings['directory']} is held by process {log.process.pid}" in done.stderr
    done = second(log, directory=str(tmp_path / "other"))
    assert done.returncode == 1
    assert f"port 127.0.0.1:{log.port} is held by process {log.process.pid} (python" in done.stderr
    for output in (done.stderr,):
        assert len(output.strip().splitlines()) == 1
    log.kill()
    assert not (tmp_path / "other").exists()
    log.start()


def test_settings_that_are_wrong_are_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fabrictime.log", json.dumps({"directory": str(tmp_path), "port": 99999})],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "fabrictime.log: port: Input should be less than or equal to 65535"


@pytest.mark.timeout(120)
def test_a_full_disk_refuses_loses_nothing_and_goes_on_when_space_is_free(start_log, wait_for):
    log = start_log(disk_size="12m")
    create(log, "t", 2, segment_bytes=1_100_000)
    admin = create(log, "ballast", 1)
    options = {
        "bootstrap.servers": log.bootstrap,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 100,
        **QUIET,
    }
    ballast = Producer(options)
    for _ in range(6):
        ballast.produce("ballast", os.urandom(900_000))
    assert ballast.flush(20) == 0
    acknowledged, refused = [], []

    def delivered(error, message):
        (refused if error else acknowledged).append(error or message.value())

    impatient = Producer({**options, "message.timeout.ms": 1500, "linger.ms": 0})
    number = 0
    while not refused:
        impatient.produce("t", b"%04d" % number + os.urandom(50_000), partition=0, on_delivery=delivered)
        impatient.poll(0.005)
        number += 1
        assert number < 500
    impatient.flush(20)
    assert len(acknowledged) > 50
    assert log.output.count("messages are refused") == 1
    assert "No space left" in log.output
    # A patient producer waits until somebody makes room.
    waiting = Producer({**options, "message.timeout.ms": 60_000})
    waiting.produce("t", b"9999patience", partition=0, on_delivery=delivered)
    waiting.poll(0.5)
    admin.delete_topics(["ballast"])["ballast"].result(20)
    assert waiting.flush(30) == 0
    wait_for(lambda: "room again" in log.output)
    assert [m.value() for m in everything(log, "t", 2)] == acknowledged
    assert acknowledged[-1] == b"9999patience"


def test_a_half_sent_request_and_a_crowd_cost_little_memory(start_log, wait_for):
    log = start_log(max_connections=60, max_request_bytes=32 * 1024 * 1024)
    before = log.resident_bytes()
    crowd = []
    for _ in range(50):
        sock = socket.create_connection(("127.0.0.1", log.port))
        sock.sendall(struct.pack(">ihhi", 31 * 1024 * 1024, 0, 7, 1) + b"x" * 100)
        crowd.append(sock)
    create(log, "t")
    assert log.resident_bytes() - before < 40_000_000
    extra = [socket.create_connection(("127.0.0.1", log.port)) for _ in range(20)]
    for sock in extra[15:]:
        sock.settimeout(10)
        assert sock.recv(1) == b""
    for sock in crowd + extra:
        sock.close()
    wait_for(lambda: "refused: 60 are open" in log.output)
    assert everything(log, "t") == []


def test_buffers_of_all_connections_are_bounded(start_log):
    log = start_log(buffer_bytes=8 * 1024 * 1024)
    create(log, "t")
    before = log.resident_bytes()
    body = bytes(4 * 1024 * 1024)
    crowd, closed = [], 0
    for _ in range(10):
        sock = socket.create_connection(("127.0.0.1", log.port))
        sock.settimeout(5)
        try:
            sock.sendall(struct.pack(">ihhi", 30 * 1024 * 1024, 0, 7, 1) + body)
        except OSError:
            closed += 1
        crowd.append(sock)
    assert everything(log, "t") == []
    assert "receive buffers of all connections" in log.output
    assert log.resident_bytes() - before < 40_000_000
    for sock in crowd:
        sock.close()


def test_garbage_of_every_kind_leaves_it_serving(start_log):
    log = start_log()
    create(log, "t")
    for number in range(200):
        with socket.create_connection(("127.0.0.1", log.port)) as sock:
            data = os.urandom(1 + number * 7)
            if number % 2:
                data = struct.pack(">ihhi", len(data) + 8, number % 40, number % 12, 1) + data
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(10)
                while sock.recv(65536):
                    pass
            except ConnectionError:
                continue
    assert everything(log, "t") == []
    assert log.output.count("closed:") > 100
    assert "Traceback" not in log.output


def test_a_client_that_does_not_read_is_not_buffered_for(start_log):
    log = start_log()
    create(log, "t")
    producer = Producer({"bootstrap.servers": log.bootstrap, **QUIET})
    for _ in range(60):
        producer.produce("t", os.urandom(900_000))
    assert producer.flush(30) == 0
    before = log.resident_bytes()
    request = FetchRequest_v4(-1, 0, 1, 1 << 30, 0, [("t", [(0, 0, 1 << 30)])])
    data = request.build_request_header(1, "deaf").encode() + request.encode()
    with socket.create_connection(("127.0.0.1", log.port)) as sock:
        for _ in range(50):
            sock.sendall(struct.pack(">i", len(data)) + data)
        assert len(everything(log, "t")) == 60
        assert log.resident_bytes() - before < 40_000_000


def test_fsync_keeps_up(start_log, wait_for):
    log = start_log(fsync_interval_ms=20)
    create(log, "t", 2)
    producer = Producer({"bootstrap.servers": log.bootstrap, **QUIET})
    for number in range(200):
        producer.produce("t", b"%d" % number)
        producer.poll(0.001)
    assert producer.flush(20) == 0
    assert len(everything(log, "t", 2)) == 200
    assert "fsync failed" not in log.output


def test_a_member_that_dies_while_it_joins_holds_nobody_up(start_log, wait_for):
    log = start_log()

    def call(sock, request, number):
        data = request.build_request_header(number, "raw").encode() + request.encode()
        sock.sendall(struct.pack(">i", len(data)) + data)

    def answer(sock, request):
        size = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))[0]
        return request.RESPONSE_TYPE.decode(sock.recv(size, socket.MSG_WAITALL)[4:])

    def join(member_id):
        return JoinGroupRequest_v2("g", 30_000, 30_000, member_id, "consumer", [("range", b"")])

    with socket.create_connection(("127.0.0.1", log.port), timeout=10) as living:
        call(living, join(""), 1)
        first = answer(living, join(""))
        with socket.create_connection(("127.0.0.1", log.port)) as dying:
            call(dying, join(""), 1)
            heartbeat = HeartbeatRequest_v1("g", first.generation_id, first.member_id)
            code = 0
            while code != 27:
                call(living, heartbeat, 2)
                code = answer(living, heartbeat).error_code
        wait_for(lambda: "disconnected while joining" in log.output)
        begin = time.monotonic()
        call(living, join(first.member_id), 3)
        again = answer(living, join(""))
        assert time.monotonic() - begin < 5
    assert again.error_code == 0
    assert [member[0] for member in again.members] == [first.member_id]


async def test_a_full_disk_is_reported_to_the_service_manager_once_and_its_end(monkeypatch):
    """Field case D6: the reason stands in `fabrictime status`, not only in the log's own output."""
    monkeypatch.setattr(server_module, "_SPACE_S", 0.001)
    store, stop = SimpleNamespace(no_space="20 B free under /d, min_free_bytes is 99"), asyncio.Event()
    lines: asyncio.Queue[str] = asyncio.Queue()
    reporting = asyncio.create_task(server_module._report_space(store, lines.put_nowait, stop))
    assert (
        await lines.get() == "X_FAULT=messages are refused, no room: 20 B free under /d, min_free_bytes is 99"
    )
    store.no_space = "19 B free under /d, min_free_bytes is 99"
    store.no_space = ""
    assert await lines.get() == "X_FAULT="
    stop.set()
    await reporting
