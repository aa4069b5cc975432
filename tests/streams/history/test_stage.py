"""The sink: records become rows, a replay overwrites, and inserts precede acknowledgements."""

import asyncio
import random
import time

import pytest
from faust.types import TP

from schemas import codec, tables, topics
from schemas.kafka.message import Message
from schemas.messages import key_of
from schemas.topics import TOPICS
from streams.history import rows
from streams.history.clickhouse import Refused, ReportingStore, Unavailable, Writer
from streams.history.stage import HistoryOperator, HistoryStage, token_of
from streams.history.store_status import StoreStatus
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.faust.sink_stage import SinkStage
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.operator import NEVER_NS, Moment, Owner
from streams.runtime.settings import StreamSettings
from tests.streams.runtime.fake_context import FakeContext, Record

DELAYS = topics.DELAYS.name
APPEND_NS = 1_800_000_000_000_000_000


def settings(server, **fields):
    password_file = server.directory / "write.token"
    limits = {"batch_ms": 10, "retry_ms": 10, "retry_max_ms": 50, **fields}
    return HistorySinkSettings(url=server.url, password_file=password_file, **limits)


class Log:
    """Messages of one partition."""

    def __init__(self, topic=DELAYS):
        self.topic, self.tp = TOPICS[topic], TP(topic, 0)
        self.records = []

    def append(self, value, key=None):
        """Append a value under its own key; what is no record goes under any."""
        if key is None:
            try:
                key = key_of(self.topic, codec.decode(value, self.topic.type)).encode()
            except codec.BadRecord:
                key = b"k"
        offset = len(self.records)
        self.records.append(Record(offset, self.tp, value, key, APPEND_NS // 1_000_000 + offset))

    def sink(self, config, writer=None):
        """Return a sink that owns the partition."""
        return Sink(self, config, writer or Writer(config))


class Sink(SinkStage):
    """The sink of one partition, with what tests look at."""

    def __init__(self, log, config, writer):
        self.log, self.fake = log, FakeContext()
        self.fake.settings = StreamSettings(history=config)
        store = ReportingStore(log.topic, writer, StoreStatus(config.url, lambda line: None))
        super().__init__(self.fake, HistoryStage(log.topic, store), store)
        self.assign([log.tp])

    def take(self, *offsets):
        """Receive messages."""
        assert self.receive(self.log.tp, [self.log.records[offset] for offset in offsets])

    @property
    def position(self):
        return self.commit_position(self.log.tp)

    @property
    def rejected(self):
        records = [codec.decode(value, "Reject") for value in self.fake.values(topics.REJECTS)]
        return sorted(records, key=lambda record: record["offset"])

    async def flush(self):
        """Wait until all received messages are stored. Raises the error of the stage."""
        while self._unstored_bytes:
            await asyncio.sleep(0.002)
            for task in self.fake.tasks:
                if task.done() and not task.cancelled():
                    task.result()


def sums(client):
    """Return the sums of base and rollup, without duplicates that are not merged yet."""
    total = "count(), sum(count), sum(lost), sum(no_t3)"
    buckets = "sum(arraySum({0}_bucket_count))".format
    base = client.query(
        f"SELECT {total}, {buckets('forward')}, {buckets('reverse')} FROM fabrictime.delays FINAL"
    ).result_rows[0]
    rollup = client.query(
        f"SELECT sum(paths), sum(count), sum(lost), sum(no_t3), {buckets('forward')}, {buckets('reverse')} "
        "FROM fabrictime.delays_1s FINAL"
    ).result_rows[0]
    return base, rollup


@pytest.fixture
def log(path_delays):
    """40 records: 5 windows of 8 NICs with 3 peers and 2 paths each."""
    made = Log()
    for window in range(5):
        for nic in range(8):
            paths = [
                path_delays.path(f"p{peer}/eth0", 33434 + path) for peer in range(3) for path in range(2)
            ]
            made.append(path_delays.encode(path_delays(f"n{nic}/eth0", window, paths)))
    return made


ROWS = 40 * 6
RIGHT = (ROWS, 10 * ROWS, ROWS, 2 * ROWS, 10 * ROWS, 10 * ROWS)


async def test_every_record_is_stored_in_base_and_rollup_and_then_acknowledged(shared_server, client, log):
    sink = log.sink(settings(shared_server))
    sink.take(*range(40))
    assert sink.position is None
    await sink.flush()
    assert sink.position == 40
    assert sums(client) == (RIGHT, RIGHT)
    quantile = tables.quantile_sql(0.5, "m")
    [(median,)] = client.query(
        f"SELECT {quantile} FROM (SELECT {tables.merged_sql('forward')} AS m FROM fabrictime.delays_1s FINAL)"
    ).result_rows
    assert 8192 <= median <= 10240


@pytest.mark.parametrize("seed", range(4))
async def test_a_replay_that_is_cut_anywhere_gives_the_same_sums(shared_server, client, log, seed):
    rng = random.Random(seed)
    config = settings(shared_server)
    for start in (0, *sorted(rng.sample(range(40), 3))):
        sink = log.sink(config)
        for offset in range(start, 40):
            sink.take(offset)
            if rng.random() < 0.3:
                await sink.flush()
        await sink.flush()
    assert sums(client) == (RIGHT, RIGHT)
    for table in ("delays", "delays_1s"):
        client.command(f"OPTIMIZE TABLE fabrictime.{table} FINAL")
    assert sums(client) == (RIGHT, RIGHT)


async def test_a_window_that_was_computed_again_replaces_the_first(shared_server, client, path_delays):
    log = Log()
    first = path_delays(paths=[path_delays.path(path=1), path_delays.path(path=2)])
    path = path_delays.path
    again = path_delays(
        paths=[path(path=1, count=7, forward_bucket=[60], forward_bucket_count=[7]), path_delays.path(path=2)]
    )
    again["window_start_ns"] += 250
    log.append(path_delays.encode(first))
    log.append(path_delays.encode(again))
    for together in (True, False):
        client.command("TRUNCATE TABLE fabrictime.delays")
        client.command("TRUNCATE TABLE fabrictime.delays_1s")
        sink = log.sink(settings(shared_server))
        sink.take(0)
        if not together:
            await sink.flush()
        sink.take(1)
        await sink.flush()
        base, rollup = sums(client)
        assert base == rollup == (2, 17, 2, 4, 17, 20)


async def test_a_kill_between_insert_and_commit_repairs_itself(own_server, log):
    server = own_server().start()
    sink = log.sink(settings(server, batch_messages=3))
    sink.take(*range(40))
    await _until(lambda: (sink.position or 0) >= 9)
    await asyncio.to_thread(server.kill)
    position = sink.position
    await sink.revoke()
    await asyncio.to_thread(server.start)
    sink = log.sink(settings(server, batch_messages=7))
    sink.take(*range(max(0, position - 5), 40))
    await sink.flush()
    assert sink.position == 40
    assert sums(server.client()) == (RIGHT, RIGHT)


async def _until(condition, deadline_s=60):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        await asyncio.sleep(0.01)


class CountingWriter(Writer):
    failures = 0

    def insert(self, table, rows, token):
        try:
            super().insert(table, rows, token)
        except Unavailable:
            self.failures += 1
            raise


async def test_while_clickhouse_is_down_nothing_is_read_and_later_nothing_is_missing(own_server, log):
    server = own_server()
    server.start()
    port = server.port
    server.stop()
    config = settings(server, batch_messages=4, batch_bytes=1024)
    writer = CountingWriter(config)
    sink = log.sink(config, writer)
    received = 0

    async def deliver():
        nonlocal received
        while received < 40:
            if sink.has_capacity:
                sink.take(received)
                received += 1
            await asyncio.sleep(0)
        await sink.flush()

    task = asyncio.create_task(deliver())
    await _until(lambda: writer.failures >= 3)
    assert sink.position is None
    assert not sink.has_capacity
    assert received < 40
    assert not task.done()
    server.settings["port"] = port
    await asyncio.to_thread(server.start)
    await task
    assert sink.position == 40
    assert sums(server.client()) == (RIGHT, RIGHT)


async def test_a_small_batch_is_sent_in_time(shared_server, client, log):
    sink = log.sink(settings(shared_server, batch_ms=20))
    sink.take(0)
    await _until(lambda: sink.position == 1)
    sink.take(1)
    await _until(lambda: sink.position == 2)


async def test_a_message_that_cannot_be_stored_is_rejected_and_the_others_are_stored(
    shared_server, client, path_delays
):
    log = Log()
    good = path_delays.encode(path_delays("good/eth0"))
    path = path_delays.path
    bad = {
        "UNKNOWN_SCHEMA": b"junk",
        "TRUNCATED": good[:-3],
        "OUT_OF_RANGE": path_delays.encode(path_delays(paths=[path(forward_bucket=[70_000, 1])])),
        "MALFORMED": path_delays.encode(path_delays(paths=[path(forward_bucket=[1])])),
    }
    twice = path_delays.encode(path_delays(paths=[path(), path()]))
    long_ago = path_delays(window_start_ns=5)
    for value in (good, *bad.values(), twice, path_delays.encode(long_ago), good):
        log.append(value)
    sink = log.sink(settings(shared_server))
    sink.take(*range(len(log.records)))
    await sink.flush()
    assert [record["reason"] for record in sink.rejected] == [*bad, "MALFORMED", "OUT_OF_RANGE"]
    assert {record["reader"] for record in sink.rejected} == {"sink"}
    assert sink.position == len(log.records)
    assert client.query("SELECT nic FROM fabrictime.delays FINAL").result_rows == [("good/eth0",)]


async def test_a_bad_reject_is_stored_and_not_published_again(shared_server, client):
    log = Log(topics.REJECTS.name)
    log.append(b"junk")
    sink = log.sink(settings(shared_server))
    sink.take(0)
    await sink.flush()
    assert sink.rejected == []
    assert sink.position == 1
    assert client.query("SELECT topic, reason, head FROM fabrictime.rejects FINAL").result_rows == [
        (topics.REJECTS.name, "UNKNOWN_SCHEMA", "junk")
    ]


async def test_the_other_topics_reach_their_tables(shared_server, client):
    now_ns = time.time_ns()
    window = {
        "window": now_ns // 10**9,
        "part": 0,
        "parts": 1,
        "window_start_ns": now_ns,
        "window_end_ns": now_ns + 10**9,
    }
    clock = {
        "clock": "a/system",
        "at_ns": now_ns,
        "offset_ns": -12345,
        "drift_ppb": 4.5,
        "bound_ns": 70.0,
        "state": "SYNCED",
        "pairs": 3,
        "residual_ns": 9.0,
        "drift_sigma_ppb": 0.5,
        "event": "STEP",
        "event_ns": -1e6,
        "knot_at_ns": now_ns - 10**9,
        "knot_offset_ns": -12345,
        "knot_bound_ns": 71.0,
    }
    suspect = {"prober": "a/eth0", "peer": "b/eth0", "asymmetry_ns": -250.5, "sigma_ns": 3.0, "weight": 0.02}
    offsets = {
        "shard": "s0",
        **window,
        "domain": "d0",
        "log_offset_ns": 5,
        "solved_ns": now_ns,
        "clocks": [clock],
        "reference": "a/ptp0",
        "suspects": [suspect],
        "source_ranges": [],
    }
    nic = {
        "nic": "a/eth0",
        "clock": "a/system",
        "run": -5,
        "batches": 10,
        "samples": 500,
        "lost": 1,
        "lost_batches": 0,
        "restarts": 0,
        "clock_jump_ns": -7,
        "last_batch": 9,
        "clock_ns": 1,
        "system_ns": 2,
        "append_ns": 3,
    }
    pair = {
        "prober": "a/eth0",
        "peer": "b/eth0",
        "at_ns": 1,
        "offset_ns": 1,
        "drift_ppb": 0.0,
        "sigma_ns": 1.0,
        "drift_sigma_ppb": 1.0,
        "rtt_min_ns": 1.0,
        "samples": 1,
        "accepted": 1,
        "margin_ns": 40.0,
        "noise_ns": 4.0,
        "forward_after_ns": [1, 2],
        "forward_delay_ns": [20.0, 21.0],
    }
    fits = {
        "shard": "s0",
        "source": "fabric.probes/3",
        **window,
        "first_offset": 1,
        "next_offset": 9,
        "lag_messages": 2,
        "messages": 8,
        "bytes": 1000,
        "samples": 500,
        "late": 0,
        "rejected": 0,
        "nics": [nic],
        "pairs": [pair],
    }
    inventory = {
        "nic": "a/eth0",
        "host": "a",
        "device": "eth0",
        "shard": "s0",
        "rail": None,
        "rack": "r1",
        "addresses": ["10.0.0.1"],
        "probe_port": 9319,
        "clock": "a/system",
        "stamp": "KERNEL",
        "speed_bps": None,
        "mtu_bytes": 1500,
        "run": 5,
        "since_ns": 1,
        "announced_ns": 2,
        "capabilities": [],
    }
    reject = {
        "topic": "fabric.probes",
        "partition": 1,
        "offset": 5,
        "append_ns": now_ns,
        "reader": "map",
        "reason": "TRUNCATED",
        "detail": "x",
        "key": b"\xff",
        "size_bytes": 3,
        "head": b"\x00\xff",
    }
    for topic, name, record, key in (
        (topics.CLOCK_OFFSETS, "ClockOffsets", offsets, b"s0/0"),
        (topics.CLOCK_FITS, "ClockFits", fits, b"s0"),
        (topics.INVENTORY, "Nic", inventory, b"a/eth0"),
        (topics.REJECTS, "Reject", reject, b"fabric.probes"),
    ):
        log = Log(topic.name)
        log.append(codec.encode(name, record), key)
        sink = log.sink(settings(shared_server))
        sink.take(0)
        await sink.flush()
        assert sink.position == 1
    one = lambda sql: client.query(sql).result_rows[0]  # noqa: E731
    assert one(
        "SELECT clock, offset_ns, bound_ns, toString(state), toUnixTimestamp64Nano(window_start) "
        "FROM fabrictime.clocks FINAL"
    ) == ("a/system", -12345, 70.0, "SYNCED", now_ns)
    assert one(
        "SELECT drift_sigma_ppb, toString(event), event_ns, knot_at_ns, knot_offset_ns, "
        "knot_bound_ns, reference FROM fabrictime.clocks FINAL"
    ) == (0.5, "STEP", -1e6, now_ns - 10**9, -12345, 71.0, "a/ptp0")
    assert one(
        "SELECT shard, domain, window, prober, peer, asymmetry_ns, sigma_ns, weight "
        "FROM fabrictime.suspects FINAL"
    ) == ("s0", "d0", now_ns // 10**9, "a/eth0", "b/eth0", -250.5, 3.0, 0.02)
    assert one(
        "SELECT source, window, prober, peer, offset_ns, accepted, margin_ns, noise_ns "
        "FROM fabrictime.pair_fits FINAL"
    ) == ("fabric.probes/3", now_ns // 10**9, "a/eth0", "b/eth0", 1.0, 1, 40.0, 4.0)
    assert one("SELECT source, lag_messages, nics, pairs, bytes FROM fabrictime.pipeline FINAL") == (
        "fabric.probes/3",
        2,
        1,
        1,
        1000,
    )
    assert one("SELECT nic, run, samples, clock_jump_ns FROM fabrictime.nic_windows FINAL") == (
        "a/eth0",
        -5,
        500,
        -7,
    )
    assert one("SELECT nic, rack, addresses, toString(stamp), rail FROM fabrictime.nics FINAL") == (
        "a/eth0",
        "r1",
        ["10.0.0.1"],
        "KERNEL",
        None,
    )
    assert one("SELECT reason, hex(head), hex(key) FROM fabrictime.rejects FINAL") == (
        "TRUNCATED",
        "00FF",
        "FF",
    )
    log = Log(topics.INVENTORY.name)
    log.append(None, b"a/eth0")
    log.append(None, b"a/eth0")
    sink = log.sink(settings(shared_server))
    sink.take(1)
    await sink.flush()
    assert client.query("SELECT count() FROM fabrictime.nics FINAL").result_rows == [(0,)]


async def test_a_refused_block_is_halved_until_the_bad_record_is_found(log, shared_server):
    class Picky:
        blocks = 0

        def insert(self, table, block, token):
            if "n3/eth0" in block["nic"].to_pylist():
                raise Refused("OTHER", "no n3 here")
            Picky.blocks += 1

    sink = log.sink(settings(shared_server), Picky())
    sink.take(*range(8))
    await sink.flush()
    assert [record["offset"] for record in sink.rejected] == [3]
    assert sink.position == 8
    assert Picky.blocks == 3


async def test_an_unexpected_failure_loses_no_message(log, shared_server):
    class Broken:
        broken = True

        def insert(self, table, block, token):
            if self.broken:
                raise ZeroDivisionError
            if token in tokens:
                raise Unavailable("only once")
            tokens.append(token)

    tokens = []
    writer = Broken()
    sink = log.sink(settings(shared_server), writer)
    sink.take(0)
    with pytest.raises(ZeroDivisionError):
        await sink.flush()
    assert sink.position is None
    writer.broken = False
    sink = log.sink(settings(shared_server), writer)
    sink.take(0, 1)
    await sink.flush()
    assert sink.position == 2


async def test_the_position_to_commit_follows_the_stored_messages(shared_server, client, log):
    sink = log.sink(settings(shared_server, batch_messages=4, batch_ms=60_000, batch_bytes=8192))
    assert sink.position is None
    sink.take(0, 1, 2)
    await asyncio.sleep(0.05)
    assert sink.position is None, "the batch is not full"
    sink.take(3, 4)
    await _until(lambda: sink.position == 4)
    sink.assign([log.tp])
    assert sink.position is None, "another worker may have committed more"
    sink.take(2, 3, 4, 5)  # the rebalance returned to an earlier offset
    await _until(lambda: sink.position == 6)
    await sink.revoke()
    assert sink.position is None
    assert not sink.receive(log.tp, [log.records[6]])
    assert client.query("SELECT count() FROM fabrictime.delays FINAL").result_rows == [(6 * 6,)]


async def test_the_receivers_read_the_topics_that_the_table_lists(shared_server):
    assert {topic.name for topic in rows.TOPICS} == {
        topic.name for topic in topics.TOPICS.values() if "sink" in topic.readers
    }
    assert HistoryStage.reject_reader == "sink"


async def test_a_peer_in_two_parts_is_counted_once(shared_server, client, path_delays):
    log = Log()
    for part in range(2):
        paths = [path_delays.path(path=10 * part + number) for number in range(3)]
        log.append(path_delays.encode(path_delays(paths=paths, part=part, parts=2)))
    for _ in range(2):
        sink = log.sink(settings(shared_server))
        for offset in range(2):
            sink.take(offset)
            await sink.flush()
    assert sums(client) == ((6, 60, 6, 12, 60, 60), (6, 60, 6, 12, 60, 60))


def operator(**limits):
    history = HistorySinkSettings(batch_bytes=1024, batch_messages=3, batch_ms=2_000, **limits)
    owner = Owner(0, frozenset([0]), 1, StreamSettings(history=history))
    return HistoryOperator(topics.DELAYS, owner)


def message(partition, offset, append_ns, value=b"x"):
    return Message(append_ns, DELAYS, partition, offset, "", value)


def test_a_batch_waits_for_its_age_unless_it_is_full():
    batch, no_tables = operator(), FabricTables()
    assert batch.due_ns() == NEVER_NS
    for second in (5, 6):
        batch.moment = Moment(second * 10**9, 0)
        batch.take([message(0, second, 1)], no_tables)
        assert batch.due_ns() == 7 * 10**9, "the first message sets the age"
    batch.take([message(0, 7, 1)], no_tables)
    assert batch.due_ns() == 0
    batch.advance(batch.moment, no_tables)
    assert batch.due_ns() == NEVER_NS


def test_a_large_message_fills_a_batch():
    batch = operator()
    batch.take([message(0, 0, 1, b"x" * 1024)], FabricTables())
    assert batch.due_ns() == 0


def test_a_token_depends_on_the_set_of_messages_and_not_on_their_order():
    messages = [message(0, 5, 100), message(1, 5, 101), message(0, 6, 102)]
    token = token_of("t", messages)
    assert token == token_of("t", messages[::-1])
    assert token.startswith("t/0,1/3/")
    others = [
        token_of("u", messages),
        token_of("t", messages[:2]),
        token_of("t", [message(0, 5, 99), *messages[1:]]),
        token_of("t", [message(0, 4, 100), *messages[1:]]),
    ]
    assert len({token, *others}) == 5
