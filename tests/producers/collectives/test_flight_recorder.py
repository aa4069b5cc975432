"""Flight Recorder dumps: JSON and pickle alike, a hang, and anything else."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.flight_recorder import MAX_BYTES, parse_dump, rank_of_name

NOW = 1_750_000_000_000_000_000


def entry(seq, name="nccl:all_reduce", ended=True, **more):
    return {
        "record_id": seq,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": name,
        "time_created_ns": NOW + seq * 1000,
        "time_discovered_started_ns": NOW + seq * 1000 + 200,
        "time_discovered_completed_ns": NOW + seq * 1000 + 700 if ended else None,
        "duration_ms": 0.0004 if ended else None,
        "input_sizes": [[3, 4], [5]],
        "input_dtypes": ["Float", "BFloat16"],
        "state": "completed" if ended else "scheduled",
        "is_p2p": False,
        **more,
    }


def dump(*entries):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[4, 5, 6]"}}
    return {"version": "2.9", "pg_config": config, "entries": list(entries)}


@pytest.mark.parametrize(
    "encode", [lambda value: json.dumps(value).encode(), lambda value: pickle.dumps(value, 2)]
)
def test_a_dump_has_operations_and_a_state(encode):
    found = parse_dump(
        encode(dump(entry(7), entry(8, "nccl:reduce_scatter_tensor", ended=False))), 5, "h1", 50
    )
    (communicator,) = found.communicators
    assert (communicator["name"], communicator["rank"], communicator["ranks"]) == ("0:default_pg", 1, 3)
    first, second = found.operations
    assert (first["seq"], first["function"], first["bytes"], first["kept"]) == (
        7,
        "ALL_REDUCE",
        58,
        "RECORDED",
    )
    assert (first["begin_ns"], first["end_ns"]) == (NOW + 7050, NOW + 7750)
    assert (first["launch_ns"], first["kernel_ns"]) == (200, 400)
    assert (second["function"], second["end_ns"]) == ("REDUCE_SCATTER", None)
    (state,) = found.ranks
    assert (state["rank"], state["operations"], state["text"]) == (5, 8, "waits in REDUCE_SCATTER 8")


def test_messages_have_numbers_of_their_own():
    sent = entry(3, "nccl:send 0->1", is_p2p=True, p2p_seq_id=12)
    (found,) = parse_dump(pickle.dumps(dump(sent), 2), 0, "h1", 0).operations
    assert (found["function"], found["seq"]) == ("SEND", 12)


def test_only_the_newest_operations_count():
    found = parse_dump(json.dumps(dump(*map(entry, range(2000)))).encode(), 0, "h1", 0)
    assert [each["seq"] for each in found.operations] == list(range(2000 - 512, 2000))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_17", 17),
        ("nccl_trace_rank_0_pid123", 0),
        ("nccl_trace_rank_5.bin", 5),
        ("fr_trace_rank_12.json.gz", 12),
        ("torchcomm_fr_trace_5", 5),
        ("rank_3_20251129T1200.pickle", 3),
        ("local_rank_0_rank_9", 9),
        ("trace_7.pkl.gz", 7),
        ("0", 0),
        ("rank3.json", 3),
        ("notes", None),
        ("r99999999", None),
    ],
)
def test_a_file_name_states_the_rank(name, rank):
    assert rank_of_name(name) == rank


def test_a_compressed_dump_is_read_and_a_cut_one_refused():
    data = gzip.compress(json.dumps({"entries": [entry(1)]}).encode())
    assert len(parse_dump(data, 0, "h1", 0).operations) == 1
    for bad in (data[:-9], gzip.compress(b" " * (MAX_BYTES + 1))):
        with pytest.raises(ValueError, match="gzip: cut or above 16 MiB"):
            parse_dump(bad, 0, "h1", 0)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"{", b'{"entries": 5}', pickle.dumps([1], 2), b"\x80\x02."]
)
def test_another_file_is_refused_in_one_line(data):
    with pytest.raises(ValueError, match="expected") as caught:
        parse_dump(data, 0, "h1", 0)
    assert "\n" not in str(caught.value)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(entry(1))), VALUE) | VALUE, max_size=4), VALUE)
def test_any_values_may_be_in_a_dump(entries, config):
    parse_dump(pickle.dumps({"entries": entries, "pg_config": config}, 4), 1, "h1", 0)
