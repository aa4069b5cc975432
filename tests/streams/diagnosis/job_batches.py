"""Records of collectives of a small job, second by second, and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schemas import codec
from schemas.kafka.message import Message
from schemas.records import CollectiveBatch
from schemas.topics import COLLECTIVES
from tests.records import make, make_part

S = 1_000_000_000
MS = 1_000_000
ITERATION_NS = 100 * MS


def batch(job: str, rank: int, second: int, from_ns: int, **fields: Any) -> Any:
    """Return the record of one second of a rank: ten all-reduces of 20 ms, 80 ms of computing between."""
    begin_ns = from_ns + second * S
    communicator = make_part(
        CollectiveBatch, "Communicator", id="c0", name="", rank=rank, ranks=4, nodes=4, nics=[f"h{rank}/e0"]
    )
    operations = [
        make_part(
            CollectiveBatch,
            "CollectiveOperation",
            seq=second * 10 + n,
            function="ALL_REDUCE",
            algorithm="RING",
            protocol="SIMPLE",
            bytes=1 << 26,
            begin_ns=begin_ns + n * ITERATION_NS,
            end_ns=begin_ns + n * ITERATION_NS + 20 * MS,
            kept="ALL",
        )
        for n in range(10)
    ]
    summary = make_part(
        CollectiveBatch,
        "CollectiveSummary",
        function="ALL_REDUCE",
        algorithm="RING",
        protocol="SIMPLE",
        bytes_from=1 << 26,
        first_seq=second * 10,
        last_seq=second * 10 + 9,
        count=10,
        bytes=10 << 26,
        busy_ns=200 * MS,
        min_ns=20 * MS,
        p50_ns=20 * MS,
        max_ns=20 * MS,
        bus_bps=4e10,
    )
    return make(
        CollectiveBatch,
        job=job,
        host=f"h{rank}",
        boot="b",
        process=f"{100 + rank}-1",
        batch=second,
        shard="fabric",
        source="SIMULATION",
        version="1",
        begin_ns=begin_ns,
        end_ns=begin_ns + S,
        clock="SYNCED",
        bound_ns=700.0,
        **{
            "ended": False,
            "communicators": [communicator],
            "operations": operations,
            "summaries": [summary],
            **fields,
        },
    )


def messages(records: Iterable[Any], partition: int = 0, first: int = 0) -> list[Message]:
    """Return records as messages, appended 20 ms after the end of their intervals."""
    return [
        Message(
            record["end_ns"] + 20 * MS,
            COLLECTIVES.name,
            partition,
            first + offset,
            record["job"],
            codec.encode(COLLECTIVES.record, record),
        )
        for offset, record in enumerate(records)
    ]


def run_of(job: str, seconds: int, from_ns: int, ranks: int = 4) -> list[Any]:
    """Return all records of a job that ends, in the order of the log."""
    return [
        batch(job, rank, second, from_ns, ended=second == seconds - 1)
        for second in range(seconds)
        for rank in range(ranks)
    ]
