"""No file of a folder, however damaged or hostile, runs code, raises or fills the memory."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabrictime.postmortem.folder import read_folder
from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.readers.chakra import read_chakra, read_chakra_json
from fabrictime.postmortem.readers.flight_recorder import read_flight_recorder
from fabrictime.postmortem.readers.inspector import read_inspector
from fabrictime.postmortem.readers.kineto import read_kineto
from fabrictime.postmortem.readers.nccl_log import NcclLog
from fabrictime.postmortem.readers.nccl_tests import NcclTests
from fabrictime.postmortem.readers.python_log import PythonLog
from fabrictime.postmortem.readers.slurm import SlurmTable, read_slurm_json
from fabrictime.postmortem.report import as_json, explain_folder
from fabrictime.postmortem.verdict import decide
from tests.fabrictime.postmortem.job_files import (
    call,
    dump,
    inspector_lines,
    nccl_lines,
    table,
    trace,
    write_dump,
)

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY_KEYS = st.sampled_from(list(call(1)))
CONTENT = st.fixed_dictionaries(
    {"entries": st.lists(st.dictionaries(ENTRY_KEYS, VALUE, max_size=20), max_size=6)},
    optional={"pg_config": VALUE, "pg_status": VALUE, "version": VALUE},
)


def refusal(read, *arguments):
    """Return the message with which a reader refuses; empty if it reads."""
    try:
        read(*arguments)
    except ValueError as error:
        return str(error)
    return ""


def decided(out):
    verdict = decide(out)
    assert 0 <= verdict.best.confidence <= 1
    return verdict


@given(st.lists(CONTENT, min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_dumps_with_any_values(contents):
    out = Observations()
    for rank, content in enumerate(contents):
        assert "\n" not in refusal(read_flight_recorder, rank, pickle.dumps(content, 2), out)
    decided(out)


@given(st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_dumps_and_traces_of_any_bytes(data):
    for read in (
        lambda out: read_flight_recorder(0, data, out),
        lambda out: read_flight_recorder(0, b"\x80\x02" + data, out),
        lambda out: read_chakra("a.0.et", data, out),
        lambda out: read_slurm_json(data, out),
    ):
        assert "\n" not in refusal(read, Observations())


PERF = st.dictionaries(
    st.sampled_from(["coll", "coll_sn", "coll_exec_time_us", "coll_msg_size_bytes"]), VALUE
)
ROW = st.dictionaries(st.sampled_from(["header", "metadata", "coll_perf", "p2p_perf"]), VALUE | PERF)
HEADER = st.fixed_dictionaries({"rank": st.integers(0, 9)}, optional={"n_ranks": VALUE, "id": VALUE})


@given(st.lists(ROW | st.fixed_dictionaries({"header": HEADER, "coll_perf": PERF}), max_size=8))
@settings(max_examples=60, deadline=None)
def test_rows_of_the_inspector_with_any_values(rows):
    out = Observations()
    text = "\n".join(json.dumps(row) for row in rows)
    assert "\n" not in refusal(read_inspector, "h-pid1.log", iter([text[:17], text[17:]]), out)
    decided(out)


EVENT = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.just("kernel"), "name": st.just("ncclDevKernel_AllReduce")},
    optional={"ts": VALUE, "dur": VALUE, "args": VALUE},
)


@given(st.lists(EVENT | VALUE, max_size=8), VALUE)
@settings(max_examples=60, deadline=None)
def test_events_of_a_trace_with_any_values(events, info):
    out = Observations()
    for rank in range(2):
        text = json.dumps({"distributedInfo": info, "traceEvents": events})
        assert "\n" not in refusal(read_kineto, f"rank{rank}.json", iter([text[:40], text[40:]]), out)
    decided(out)


SEEDS = [
    *nccl_lines(3, "node1"),
    *table(["n1", "n2"], [100.0]).splitlines(),
    "srun: error: node0: task 7-9,12: Killed",
    "JobID|State|ExitCode|NodeList",
    "7.0|FAILED|1:0|n[1-3]",
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory.",
    "[rank1]:[E9 P.cpp:1] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE,",
    "  rank      : 11 (local_rank: 3)",
    "  exitcode  : -9 (pid: 6174)",
]


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_lines_with_changed_and_repeated_parts(seed):
    chance = random.Random(seed)
    out = Observations()
    log, python, tests, slurm = NcclLog(out), PythonLog(out, "x", None), NcclTests(out, "x"), SlurmTable(out)
    for line in chance.choices(SEEDS, k=12):
        at, length = chance.randrange(len(line)), chance.randrange(1, 12)
        part = chance.choice([line[:at], "9" * 30, "", "[", "\0", "-1", "é", line[at : at + length] * 50])
        changed = line[:at] + part + line[at + length :]
        for reader in (log, python, tests, slurm):
            reader.take(changed)
    log.finish()
    tests.finish()
    decided(out)


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_a_program_is_refused(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    content = {**dump([call(1)]), "entries": [Evil()]}
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(content, protocol))
    reading = read_folder(tmp_path)
    assert reading.unread
    assert not reading.formats
    assert sorted(os.listdir(tmp_path)) == ["nccl_trace_rank_0"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("nccl_trace_rank_0", b'{"entries":' + b"[" * 200_000),
        ("trace_rank0.json", b'{"traceEvents":[' + b"[" * 200_000),
        ("h-pid1.log", b'{"header":{"rank":1},"coll_perf":' + b'{"a":' * 100_000),
        ("sacct.json", b'{"jobs":' + b"[" * 200_000),
        ("nccl_trace_rank_1", b'{"entries":[{"collective_seq_id":' + b"9" * 100_000 + b"}]}"),
        ("x.0.et", b"\xff" * 100_000),
        ("nccl_trace_rank_2", b"\x80\x02" + b"(" * 100_000 + b"."),
        ("nccl_trace_rank_3", b"\x80\x04\x8b\xff\xff\xff\x7f"),
        ("text.log", b"h:1:2 [0] NCCL INFO " + b"Channel 0 : 1[0] -> " * 200_000),
        ("bom.json", b'\xef\xbb\xbf{"entries": 5}'),
        ("empty", b""),
        ("broken.gz", b"\x1f\x8b\x08\x00broken"),
    ],
)
def test_a_hostile_file_is_listed_beside_a_good_one(tmp_path, name, data):
    write_dump(tmp_path, 7, dump([call(1)]), name="good_rank_{rank}")
    (tmp_path / name).write_bytes(data)
    reading, verdict = explain_folder(tmp_path)
    answer = as_json(tmp_path, reading, verdict)
    assert json.dumps(answer, allow_nan=False)
    assert answer["formats"]["flight-recorder-json"] >= 1
    assert all("\n" not in entry["reason"] for entry in answer["unread"])


@pytest.mark.slow("decompresses 128 MiB, some seconds")
def test_a_gzip_bomb_is_cut(tmp_path):
    (tmp_path / "nccl_trace_rank_0.gz").write_bytes(gzip.compress(b'{"entries": [' + b"1," * (80 << 20), 1))
    write_dump(tmp_path, 7, dump([call(1)]), name="good_rank_{rank}")
    reading = read_folder(tmp_path)
    assert [name for name, _ in reading.unread] == ["nccl_trace_rank_0.gz"]
    assert "larger than 128 MiB" in reading.unread[0][1]


def test_links_and_special_files_are_not_opened(tmp_path):
    write_dump(tmp_path, 7, dump([call(1)]), name="good_rank_{rank}")
    os.mkfifo(tmp_path / "pipe")
    os.symlink("/etc/passwd", tmp_path / "link")
    assert sum(read_folder(tmp_path).formats.values()) == 1


def test_a_trace_is_read_event_by_event(tmp_path):
    """The memory that a trace needs is that of its collectives, not of its size."""
    content = trace(0, [(seq * 1000, 10) for seq in range(10)], world=2)
    filler = json.dumps(
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "args": {"a": "b" * 300}}
    )
    text = json.dumps(content).replace('"traceEvents": [', '"traceEvents": [' + (filler + ",") * 50_000)
    (tmp_path / "rank0.pt.trace.json").write_text(text)
    tracemalloc.start()
    reading = read_folder(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(reading.observations.spans) == 10
    assert peak < len(text) * 0.75


def test_a_cut_file_of_the_inspector_keeps_its_whole_rows(tmp_path):
    text = inspector_lines(0, "h1", [10] * 5, ranks=2)
    (tmp_path / "h1-pid1.log").write_text(text[:-40])
    reading = read_folder(tmp_path)
    assert len(reading.observations.spans) == 4
    assert reading.observations.notes == ["h1-pid1.log: its last operation is cut"]


@given(st.lists(VALUE, max_size=6))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_lines_of_chakra_with_any_values(nodes):
    out = Observations()
    rows = [node if isinstance(node, dict) else {"type": "COMM_COLL_NODE", "attr": node} for node in nodes]
    assert "\n" not in refusal(read_chakra_json, "job.0.json", iter(map(json.dumps, rows)), out)
    decided(out)
