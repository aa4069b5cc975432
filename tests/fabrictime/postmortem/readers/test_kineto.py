"""Kineto's traces: rank, host, group and kernels of collectives."""

from __future__ import annotations

import json

import pytest

from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.readers.kineto import read_kineto
from tests.fabrictime.postmortem.job_files import START_NS, trace


def test_kernels_of_collectives_become_spans():
    """Form of facebookresearch/HolisticTraceAnalysis, tests/data/nccl_parser_config."""
    text = json.dumps(trace(3, [(1000, 50), (2000, 60)]))
    for cut in (1, 200, len(text) - 3):
        out = Observations()
        read_kineto("gpu7_4711.1764400000.pt.trace.json", iter([text[:cut], text[cut:]]), out)
        first = out.spans[0]
        assert (first.rank, first.function, first.bytes, first.seq) == (3, "all_reduce", 4 << 20, 1)
        assert (first.begin_ns, first.duration_ns) == (START_NS + 1_000_000, 50_000)
        assert len(out.spans) == 2
        assert (out.expected, out.hosts) == (8, {3: "gpu7"})


def test_a_trace_without_a_rank_is_refused():
    text = json.dumps({"traceEvents": []})
    with pytest.raises(ValueError, match="no rank"):
        read_kineto("trace.json", iter([text]), Observations())
