"""Chakra traces: our own export, and protobuf messages in the layout of mlcommons/chakra's et_def.proto."""

from __future__ import annotations

import json

import pytest

from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.readers.chakra import read_chakra, read_chakra_json


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(data):
    return varint(len(data)) + data


def node(seq, duration_us):
    size = field(1, b"comm_size") + field(9, 4096)
    group = field(1, b"pg_name") + field(29, b"tp")
    kind = field(1, b"comm_type") + field(9, 2)
    attributes = b"".join(field(10, part) for part in (kind, size, group))
    data = field(1, seq) + field(2, b"nccl:all_gather") + field(3, 7) + field(6, seq * 1000)
    return message(data + field(7, duration_us) + attributes)


def test_a_protobuf_trace():
    out = Observations()
    data = (
        message(field(1, b"0.0.4"))
        + node(1, 50)
        + message(field(2, b"aten::add") + field(3, 4))
        + node(2, 60)
    )
    read_chakra("job.3.et", data, out)
    assert [(span.rank, span.function, span.seq, span.bytes) for span in out.spans] == [
        (3, "all_gather", 1, 4096),
        (3, "all_gather", 2, 4096),
    ]
    assert [span.duration_ns for span in out.spans] == [50_000, 60_000]
    assert out.spans[0].group.name == "tp"


def test_a_cut_trace_keeps_its_whole_nodes():
    out = Observations()
    read_chakra("job.3.et", (message(field(1, b"0.0.4")) + node(1, 50) + node(2, 60))[:-9], out)
    assert len(out.spans) == 1
    assert out.notes == ["job.3.et: cut or damaged after 2 nodes"]


def test_a_trace_without_a_rank_in_its_name_is_refused():
    with pytest.raises(ValueError, match=r"expected such as job\.7\.et"):
        read_chakra("job.et", node(1, 50), Observations())


def test_the_json_form_of_our_export():
    attributes = [
        {"name": "comm_type", "int64Val": "0"},
        {"name": "comm_size", "int64Val": "2048"},
        {"name": "pg_name", "stringVal": "world"},
    ]
    row = {"id": 1, "name": "ALL_REDUCE_7", "type": "COMM_COLL_NODE", "attr": attributes}
    row.update(startTimeMicros="1000", durationMicros="40")
    out = Observations()
    read_chakra_json("job.5.json", iter([json.dumps({"version": "0.0.4", "attr": []}), json.dumps(row)]), out)
    (span,) = out.spans
    assert (span.rank, span.function, span.bytes, span.duration_ns) == (5, "all_reduce", 2048, 40_000)
