"""A process with the NCCL plugin, and the reporter that reads its segment."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from native import nccl
from native.collectives.reader import Reader
from tests.producers.collectives.segments import Traced


@contextlib.contextmanager
def replayed(folder: Path, ranks: int, operations: int) -> Iterator[Traced]:
    path = folder / "collectives.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        arguments = map(str, ("run", nccl.library(), 0, ranks, operations))
        environment = os.environ | {"FABRICTIME_COLLECTIVES": str(path)}
        with subprocess.Popen([nccl.program("nccl-replay"), *arguments], env=environment) as process:
            connection, _ = listener.accept()
            with connection:
                _, (fd,), _, _ = socket.recv_fds(connection, 64, 1)
                connection.send(b"OK")
                assert process.wait(30) == 0
        try:
            yield Traced(SimpleNamespace(reader=lambda: Reader(fd)))
        finally:
            os.close(fd)


@pytest.mark.parametrize("ranks", [2, 4])
def test_operations_of_nccl_reach_the_record(ranks, tmp_path):
    with replayed(tmp_path, ranks, 8) as traced:
        traced.step(600.0)  # the trace budget of ten minutes
    (record,) = traced.records
    operations = record["operations"]
    assert record["source"] == "NCCL"
    assert [one["rank"] for one in record["communicators"]] == list(range(ranks))
    assert sum(one["count"] for one in record["summaries"]) == 8 * ranks
    assert {one["function"] for one in operations} == {"ALL_REDUCE", "SEND", "RECEIVE"}
    assert {one["algorithm"] for one in operations if one["function"] == "ALL_REDUCE"} == {"RING", "TREE"}
    assert all(one["end_ns"] for one in operations)
    assert all(one["network_late_ns"] for one in operations), "the split is that of the transfers"
    assert all(0 < one["sampled_share"] <= 1 for one in operations)
    assert all(one["launch_ns"] and one["kernel_ns"] for one in operations)
    transfers = record["transfers"]
    assert transfers
    assert record["events_invalid"] == record["events_dropped"] == 0
