"""Any bytes at the request parser: an answer or a MalformedRequest, nothing else, and never much memory."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.log import wire
from fabrictime.log.errors import MalformedRequest
from fabrictime.log.wire import Api
from tests.examples import examples
from tests.log.conftest import Harness, frame

VERSIONS = [(key, version) for key, (low, high) in wire.SUPPORTED.items() for version in range(low, high + 1)]


def test_random_bodies_of_every_request(tmp_path):
    async def main():
        harness = Harness(tmp_path)

        @given(kind=st.sampled_from(VERSIONS), body=st.binary(max_size=200))
        @settings(max_examples=examples(500))
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
    @settings(max_examples=examples(500))
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
