"""Any bytes at the request parser: an answer or a MalformedRequest, nothing else, and never much memory."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tracemalloc
from pathlib import Path

import pytest
from aiokafka.protocol.fetch import FetchRequest_v7, FetchRequest_v11
from aiokafka.protocol.produce import ProduceRequest_v8
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.log import wire
from fabrictime.log.broker import Broker
from fabrictime.log.errors import MalformedRequest
from fabrictime.log.groups import Coordinator
from fabrictime.log.offsets import OffsetStore
from fabrictime.log.requests.base import Peer
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.log.wire import Api, read_head

VERSIONS = [(key, version) for key, (low, high) in wire.SUPPORTED.items() for version in range(low, high + 1)]


class Harness:
    """A broker without a socket."""

    def __init__(self, folder: Path) -> None:
        options = LogSettings(directory=folder, create_topics=False, min_free_bytes=0, group_join_delay_ms=0)
        self.store = Store(options)
        self.store.create_topic("t", 2, {})
        self.offsets = OffsetStore(folder)
        self.groups = Coordinator(options)
        self.broker = Broker(options, Peer("127.0.0.1", 0), self.store, self.offsets, self.groups)

    async def ask(self, frame: bytes) -> bytes | None:
        """Returns the response's bytes; what would wait for a long time is given up."""
        view = memoryview(bytearray(frame))
        head = read_head(view)
        result = self.broker.handle(head, view, Peer("127.0.0.1", 1))
        if asyncio.iscoroutine(result) or isinstance(result, asyncio.Future):
            future = asyncio.ensure_future(result)
            done, _ = await asyncio.wait([future], timeout=0.01)
            if not done:
                future.cancel()
                await asyncio.wait([future])
                return None
            result = future.result()
        return None if result is None else b"".join(part for part in result if isinstance(part, bytes))

    def close(self) -> None:
        self.groups.close()
        self.offsets.close()
        self.store.close()


@pytest.fixture
def harness(tmp_path):
    """Makes a harness inside the running loop."""
    made = []

    def make():
        made.append(Harness(tmp_path))
        return made[0]

    yield make
    for one in made:
        one.close()


def frame(key, version, body, client=b"\x00\x01c"):
    return struct.pack(">hhi", key, version, 7) + client + body


def test_random_bodies_of_every_request(tmp_path):
    async def main():
        harness = Harness(tmp_path)

        @given(kind=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
        @settings(max_examples=600, deadline=None)
        def throw(kind, body):
            async def one():
                with contextlib.suppress(MalformedRequest):
                    await harness.ask(frame(*kind, body))

            loop_run(one())

        pending = []
        loop_run = pending.append
        throw()
        for one in pending:
            await one
        harness.close()

    asyncio.run(main())


# Numbers and short strings in the order of real requests reach deeper than plain noise.
pieces = st.one_of(
    st.sampled_from([0, 1, 2, 3, -1, -2, 2**15 - 1, -(2**15)]).map(lambda n: struct.pack(">h", n)),
    st.sampled_from([0, 1, 2, -1, 2**31 - 1, -(2**31), 65536]).map(lambda n: struct.pack(">i", n)),
    st.sampled_from([0, -1, -2, 2**63 - 1]).map(lambda n: struct.pack(">q", n)),
    st.sampled_from([b"\x00\x01t", b"\x00\x01g", b"\xff\xff", b"\x00\x02\xff\xfe", b"\x00\x00", b"\x01"]),
)


@pytest.mark.parametrize("api", list(Api), ids=lambda api: api.name)
def test_nearly_right_bodies(tmp_path, api):
    cases = []

    @given(version=st.integers(-1, 12), body=st.lists(pieces, max_size=14).map(b"".join))
    @settings(max_examples=120, deadline=None)
    def collect(version, body):
        cases.append(frame(api, version, body))

    collect()

    async def main():
        harness = Harness(tmp_path)
        for case in cases:
            try:
                answer = await harness.ask(case)
            except MalformedRequest:
                continue
            assert answer is None or len(answer) < 100_000
        harness.close()

    asyncio.run(main())


@pytest.mark.parametrize("api", list(Api), ids=lambda api: api.name)
async def test_absurd_counts_take_no_memory(harness, api):
    broker = harness()
    tracemalloc.start()
    try:
        for version in range(*wire.SUPPORTED[api]):
            for body in (struct.pack(">i", 2**31 - 1) * 8, b"\x00\x01t" + struct.pack(">i", 2**31 - 1) * 8):
                try:
                    await broker.ask(frame(api, version, body))
                except MalformedRequest:
                    continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


async def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones(harness):
    answer = await harness().ask(frame(Api.API_VERSIONS, 99, b""))
    code, count = struct.unpack_from(">hi", answer)
    assert code == 35
    listed = {struct.unpack_from(">hhh", answer, 6 + 6 * number) for number in range(count)}
    assert listed == {(key, low, high) for key, (low, high) in wire.SUPPORTED.items()}


async def test_fetch_sessions_are_refused_so_that_clients_send_whole_requests(harness):
    broker = harness()
    opening = FetchRequest_v7(-1, 0, 1, 1000, 0, 0, 0, [("t", [(0, 0, 0, 1000)])], [])
    answer = FetchRequest_v7.RESPONSE_TYPE.decode(await broker.ask(frame(1, 7, opening.encode())))
    assert (answer.error_code, answer.session_id) == (0, 0)
    assert answer.topics[0][1][0][:3] == (0, 0, 0)
    follow = FetchRequest_v7(-1, 0, 1, 1000, 0, 12, 1, [], [])
    answer = FetchRequest_v7.RESPONSE_TYPE.decode(await broker.ask(frame(1, 7, follow.encode())))
    assert (answer.error_code, answer.session_id) == (70, 0)


async def test_the_newest_versions_of_produce_and_fetch(harness, make_batch):
    broker = harness()
    request = ProduceRequest_v8(None, -1, 1000, [("t", [(0, bytes(make_batch([(b"k", b"v")]))), (9, b"")])])
    answer = ProduceRequest_v8.RESPONSE_TYPE.decode(await broker.ask(frame(0, 8, request.encode())))
    [(_, [good, bad])] = answer.topics
    assert (good[1], good[2], good[-1]) == (0, 0, None)
    assert (bad[1], bad[-1]) == (3, "t-9: no such partition")
    fetch = FetchRequest_v11(-1, 0, 1, 9999, 0, 0, -1, [("t", [(0, -1, 0, 0, 9999)])], [], "rack")
    head = await broker.ask(frame(1, 11, fetch.encode()))
    size = struct.unpack(">i", head[-4:])[0]
    answer = FetchRequest_v11.RESPONSE_TYPE.decode(head + bytes(size))
    assert answer.topics[0][1][0][:4] == (0, 0, 1, 1)


async def test_a_fetch_that_is_given_up_is_forgotten(harness):
    broker = harness()
    fetch = FetchRequest_v7(-1, 60_000, 1, 9999, 0, 0, -1, [("t", [(0, 0, 0, 9999), (1, 0, 0, 9999)])], [])
    assert await broker.ask(frame(1, 7, fetch.encode())) is None
    await asyncio.sleep(0)
    assert not any(partition.waiters for partition in broker.store.partitions())
