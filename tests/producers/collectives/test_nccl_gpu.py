"""The plugin in stock NCCL, loaded by PyTorch: two ranks share one GPU, and NCCL moves their data over TCP.

Each rank names a host of its own (NCCL_HOSTID), so NCCL uses its network transport with proxy threads between
them, as between hosts. Needs a GPU, and PyTorch in the interpreter that runs the tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from native import nccl
from producers.boot import boot_id
from producers.collectives.host import HostReporter, ReportedHost
from producers.collectives.settings import CollectiveSettings
from producers.settings import NicSettings
from schemas import codec

JOB = Path(__file__).resolve().parents[2] / "native" / "nccl" / "gpu_job.py"
RANKS, ROUNDS, LATE_MS = 2, 12, 250
MIB = 1 << 20
RENDEZVOUS_S = 120
SLACK_NS = 2_000_000  # the system clock is slewed while the ranks run
SEEN_LATE_NS = 10_000_000
"""NCCL's proxy sees the first kernel some ms late, while it connects."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs PyTorch with NCCL, and a GPU"
)


class Ran:
    """What the ranks printed, and the records of their processes."""

    def __init__(self, folder: Path) -> None:
        self.records: list[dict[str, Any]] = []
        path = folder / "collectives.sock"
        settings = CollectiveSettings(
            socket=path, report_ms=500, trace_bytes_per_hour=1_000_000_000, ras="off"
        )
        selector = selectors.DefaultSelector()
        nic = NicSettings(host="h1", device="lo", address="127.0.0.1", shard="s0")
        reporter = HostReporter(settings, ReportedHost("h1", boot_id(), [nic], path, None), selector)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        children = [self._start(folder, path, rank, port) for rank in range(RANKS)]
        end_s = time.monotonic() + RENDEZVOUS_S
        while any(child.poll() is None for child in children) or not reporter.is_idle:
            assert time.monotonic() < end_s, [self.error(folder, rank) for rank in range(RANKS)]
            for key, _ in selector.select(0.01):
                key.data(key.fd)
            reporter.step(time.monotonic(), self._put, lambda: True)
        reporter.close()
        selector.close()
        (folder / "records.json").write_text(json.dumps(self.records))
        for rank, child in enumerate(children):
            assert child.returncode == 0, self.error(folder, rank)
        printed = [(folder / f"{rank}.out").read_text().splitlines() for rank in range(RANKS)]
        lines = [[json.loads(line) for line in lines if line.startswith("{")] for lines in printed]
        self.library: str = lines[0][-1]["nccl"]
        self.printed = [each[:-1] for each in lines]

    @staticmethod
    def _start(folder: Path, path: Path, rank: int, port: int) -> subprocess.Popen[bytes]:
        env = os.environ | {
            "NCCL_PROFILER_PLUGIN": str(nccl.library()),
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": "1",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_FILE": str(folder / f"{rank}.nccl"),
            "FABRICTIME_COLLECTIVES": str(path),
            "FABRICTIME_JOB": "train",
        }
        argv = [sys.executable, str(JOB), *map(str, (rank, RANKS, port, ROUNDS, LATE_MS))]
        with (folder / f"{rank}.out").open("wb") as out, (folder / f"{rank}.err").open("wb") as err:
            return subprocess.Popen(argv, env=env, stdout=out, stderr=err)

    @staticmethod
    def error(folder: Path, rank: int) -> str:
        return f"rank {rank}: {(folder / f'{rank}.err').read_text(errors='replace')[-2000:]}"

    def _put(self, job: str, value: bytes, acknowledged: Any) -> None:
        self.records.append(codec.decode(value, "CollectiveBatch"))
        acknowledged()

    def operations(self, rank: int) -> list[dict[str, Any]]:
        """The rank's operations in order, each with its communicator's id."""
        found = [
            one | {"id": record["communicators"][one["communicator"]]["id"]}
            for record in self.records
            for one in record["operations"]
            if record["communicators"][one["communicator"]]["rank"] == rank and one["end_ns"] is not None
        ]
        return sorted(found, key=lambda one: one["begin_ns"])

    def collectives(self, rank: int) -> list[dict[str, Any]]:
        """The rank's collectives alone."""
        return [one for one in self.operations(rank) if one["function"] not in ("SEND", "RECEIVE")]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return Ran(tmp_path_factory.mktemp("nccl"))


def test_the_library_and_its_interface_are_named(ran):
    assert {record["source"] for record in ran.records} == {"NCCL"}
    (version,) = {record["version"] for record in ran.records}
    assert version.startswith(f"{ran.library}/v")


def test_no_event_is_lost_or_refused(ran):
    for record in ran.records:
        assert record["events_dropped"] == record["events_invalid"] == 0


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_operation_is_recorded_once_with_its_bytes(ran, rank):
    found = Counter((one["function"], one["bytes"]) for one in ran.collectives(rank))
    assert found[("ALL_REDUCE", 16 * MIB)] == ROUNDS
    assert found[("ALL_REDUCE", MIB)] == ROUNDS
    assert found[("ALL_GATHER", MIB)] == ROUNDS
    assert found[("REDUCE_SCATTER", MIB)] == ROUNDS
    assert found[("BROADCAST", MIB)] == ROUNDS
    messages = Counter(one["function"] for one in ran.operations(rank) if one["peer"] == 1 - rank)
    assert messages["SEND"] >= ROUNDS
    assert messages["RECEIVE"] >= ROUNDS


def test_a_collective_has_the_same_number_at_both_ranks(ran):
    first, second = ({(one["id"], one["seq"]): one["function"] for one in ran.collectives(n)} for n in (0, 1))
    assert first == second


@pytest.mark.parametrize("rank", range(RANKS))
def test_an_operation_lies_between_call_and_synchronisation(ran, rank):
    for name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "BROADCAST"):
        outer = [one for one in ran.printed[rank] if one["name"] == name]
        inner = [one for one in ran.collectives(rank) if one["function"] == name]
        assert len(inner) == len(outer)
        for one, around in zip(inner, outer, strict=True):
            assert around["begin_ns"] - SLACK_NS <= one["begin_ns"] < one["end_ns"], (one, around)
            assert one["end_ns"] <= around["end_ns"] + SLACK_NS, (one, around)


def test_the_late_rank_arrives_late_and_the_other_waits(ran):
    first, second = ([one for one in ran.collectives(n) if one["bytes"] == 16 * MIB] for n in (0, 1))
    for on_time, late in list(zip(first, second, strict=True))[1:]:
        gap_ms = (late["begin_ns"] - on_time["begin_ns"]) / 1e6
        assert gap_ms == pytest.approx(LATE_MS, abs=60)
        assert on_time["end_ns"] > late["begin_ns"]


@pytest.mark.parametrize("rank", range(RANKS))
def test_transfers_carry_the_operation_s_data_and_its_waits(ran, rank):
    big = [one for one in ran.collectives(rank) if one["bytes"] == 16 * MIB]
    assert all(one["channels"] > 0 and one["algorithm"] and one["protocol"] for one in big)
    assert all(0 < one["sampled_share"] <= 1 for one in big)
    assert all(one["network_late_ns"] for one in big)
    transfers = [
        each | {"function": record["operations"][each["operation"]]["function"]}
        for record in ran.records
        for each in record["transfers"]
        if record["communicators"][record["operations"][each["operation"]]["communicator"]]["rank"] == rank
    ]
    assert transfers
    assert {each["peer"] for each in transfers} == {1 - rank}
    assert all(each["begin_ns"] < (each["end_ns"] or each["begin_ns"] + 1) for each in transfers)


@pytest.mark.parametrize("rank", range(RANKS))
def test_times_of_the_gpu_are_those_of_the_operation_itself(ran, rank):
    """An all-to-all has a message to the own rank, after which NCCL reports kernels of earlier operations."""
    operations = ran.operations(rank)
    assert any(one["peer"] == rank for one in operations)
    for one in operations:
        if one["kernel_ns"] is not None:
            assert one["kernel_ns"] <= one["end_ns"] - one["begin_ns"] + SEEN_LATE_NS, one
