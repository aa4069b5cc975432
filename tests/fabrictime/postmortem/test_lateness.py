"""Ranks that are late again and again, and those that are not."""

from __future__ import annotations

import json
import random

import pytest

from tests.fabrictime.postmortem.job_files import MS, START_NS, call, explained, trace, write_dumps


def test_a_clock_offset_of_a_host_is_no_straggler(tmp_path):
    def entries(rank):
        offset_ms = 700 if rank >= 4 else 0
        return [call(seq, at_ms=seq * 100 + offset_ms) for seq in range(1, 20)]

    write_dumps(tmp_path, entries)
    assert explained(tmp_path)["verdict"] == "HEALTHY"


@pytest.mark.parametrize("offset_ms", [0, 700])
def test_a_rank_that_is_late_again_and_again_is_a_straggler(tmp_path, offset_ms):
    def entries(rank):
        late_ms, shift_ms = (30 if rank == 2 else 0), (offset_ms if rank >= 4 else 0)
        end_ns = [START_NS + (seq * 100 + 35 + shift_ms) * MS for seq in range(20)]
        return [
            call(seq, at_ms=seq * 100 + late_ms + shift_ms, time_discovered_completed_ns=end_ns[seq])
            for seq in range(1, 20)
        ]

    write_dumps(tmp_path, entries)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("STRAGGLER", ["rank 2"])


def test_short_kernels_of_a_trace_show_the_late_rank(tmp_path):
    for rank in range(8):
        late = 40_000 if rank == 6 else 0
        parts = [(seq * 200_000 + late, 50_000 - late) for seq in range(10)]
        name = f"node{rank // 4}_{1000 + rank}.1764400000.pt.trace.json"
        (tmp_path / name).write_text(json.dumps(trace(rank, parts)))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("STRAGGLER", ["rank 6", "host node1"])
    assert answer["formats"] == {"kineto": 8}


def test_a_host_that_arrives_late_is_the_straggler_as_a_whole(tmp_path):
    for rank in range(16):
        late_us = 8_000 if rank // 4 == 2 else 0
        parts = [(seq * 50_000 + late_us, 12_000 - late_us) for seq in range(12)]
        name = f"node{rank // 4}_{1000 + rank}.1764400000.pt.trace.json"
        (tmp_path / name).write_text(json.dumps(trace(rank, parts, world=16)))
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"][0]) == ("STRAGGLER", "host node2")


def test_a_rank_that_pauses_now_and_then_is_a_straggler(tmp_path):
    def entries(rank):
        late = [1500 if rank == 6 and seq % 8 == 0 else 0 for seq in range(60)]
        end_ms = [seq * 300 + 1600 * (seq % 8 == 0) for seq in range(60)]
        return [
            call(seq, at_ms=seq * 300 + late[seq], time_discovered_completed_ns=START_NS + end_ms[seq] * MS)
            for seq in range(1, 60)
        ]

    write_dumps(tmp_path, entries)
    answer = explained(tmp_path)
    assert (answer["verdict"], answer["culprits"]) == ("STRAGGLER", ["rank 6"])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("operations", [5, 40])
def test_jitter_is_no_straggler(tmp_path, seed, operations):
    chance = random.Random(seed)

    def entries(rank):
        jitter_ms = [chance.uniform(0, 20) for _ in range(operations)]
        return [
            call(
                seq, at_ms=seq * 100 + late_ms, time_discovered_completed_ns=START_NS + (seq * 100 + 30) * MS
            )
            for seq, late_ms in enumerate(jitter_ms, 1)
        ]

    write_dumps(tmp_path, entries)
    assert explained(tmp_path)["verdict"] == "HEALTHY"


def test_a_rank_that_calls_late_but_starts_in_time_is_no_straggler(tmp_path):
    def entries(rank):
        late_ms = 40 if rank == 2 else 0
        return [
            call(
                seq,
                at_ms=seq * 100 + late_ms,
                time_discovered_completed_ns=START_NS + (seq * 100 + 60) * MS,
                duration_ms=5 + 0.01 * (rank + seq) % 0.07,
            )
            for seq in range(1, 20)
        ]

    write_dumps(tmp_path, entries)
    assert explained(tmp_path)["verdict"] == "HEALTHY"
