"""Rows of NCCL Inspector: one a line, or indented as in its README."""

from __future__ import annotations

import json

from fabrictime.postmortem.observations import Observations
from fabrictime.postmortem.readers.inspector import read_inspector
from tests.fabrictime.postmortem.job_files import inspector_lines


def test_indented_rows_are_read_like_lines():
    lines = inspector_lines(2, "h1", [100, 120])
    indented = "\n".join(json.dumps(json.loads(line), indent=2) for line in lines.splitlines())
    for text in (lines, indented):
        out = Observations()
        read_inspector("h1-pid1002.log", iter([text[:50], text[50:]]), out)
        assert [(span.rank, span.seq, span.duration_ns) for span in out.spans] == [
            (2, 1, 100_000),
            (2, 2, 120_000),
        ]
        assert (out.expected, out.hosts) == (8, {2: "h1"})


def test_ranks_of_small_communicators_are_those_of_the_job():
    """A process has rank 2 of 8 in the world and rank 0 of 2 in a split."""
    text = inspector_lines(2, "h1", [100]) + inspector_lines(2, "h1", [50], comm="0x77").replace(
        '"rank": 2, "n_ranks": 8', '"rank": 0, "n_ranks": 2'
    )
    out = Observations()
    read_inspector("h1-pid1002.log", iter([text]), out)
    assert {span.rank for span in out.spans} == {2}
    assert out.ranks == {2}
