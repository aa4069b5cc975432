"""Fetch: whole requests, the newest version, and a client that gives up waiting."""

from __future__ import annotations

import asyncio
import struct

from aiokafka.protocol.fetch import FetchRequest_v7, FetchRequest_v11
from aiokafka.protocol.produce import ProduceRequest_v8

from tests.log.conftest import frame


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
