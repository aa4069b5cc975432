"""Text reports of RAS services, as NCCL's documentation shows them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.ras.parse import parse_report
from producers.collectives.ras.report import communicator_reports, rank_states


def test_text_has_the_ranks_of_warnings_and_errors():
    text = b"""NCCL version 2.27.3 compiled with CUDA 12.8
Communicators... (0.00s)
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    0         1         4         8        32        32   RUNNING  INCOMPLETE
Errors
======
#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
Warnings
========
#0-1 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  31 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649:
  Rank 3 -- GPU 3 managed by process 483072 on node 172.16.64.210
"""
    missing, late = rank_states(parse_report(text))
    assert (missing["communicator"], missing["rank"], missing["state"]) == ("cf264af53edbe986", 21, "MISSING")
    assert (missing["host"], late["host"]) == ("172.16.64.213", "172.16.64.210")
    assert (late["rank"], late["state"], late["operations"]) == (3, "RUNNING", 6649)


def test_a_dead_process_is_joined_with_its_rank():
    text = b"""Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""
    (dead,) = rank_states(parse_report(text))
    assert (dead["rank"], dead["state"], dead["host"], dead["process"]) == (
        21,
        "DEAD",
        "172.16.64.213",
        3487984,
    )


def test_a_rank_that_leaves_a_communicator_is_not_missing():
    text = b"""#0-0 (9e17999afaa87dbb) MISMATCH
  Communicator ranks have different status
  4 ranks have status RUNNING
  Rank 0 -- GPU 0 managed by process 507285 on node 172.16.64.210
  1 ranks have status FINALIZE
"""
    assert rank_states(parse_report(text)) == []


def test_errors_have_their_reason():
    text = b"""#0-0 (ab) ERROR
  Asynchronous error on 1 rank
  Rank 3 reported unhandled system error -- GPU 1 (NVML 5) managed by process 8 on node ::1
"""
    (state,) = rank_states(parse_report(text))
    assert (state["state"], state["gpu"], state["host"]) == ("ERROR", "5", "::1")
    assert state["text"] == "unhandled system error, process 8"


LINES = st.sampled_from(
    [
        "#0-0 (ab) MISMATCH",
        "#0-0 (ab) INCOMPLETE",
        "#0-1 (cd) ERROR",
        "INCOMPLETE",
        "DEAD",
        "  Process 7 on node 10.0.0.1 managing GPU 5",
        "  Communicator ranks have different AllReduce operation counts",
        "  3 ranks have launched up to operation 9",
        "  2 ranks have not launched any operations",
        "  Rank 1 -- GPU 3 (NVML 5) managed by process 7 on node 10.0.0.1",
        "  Rank 2 has launched up to operation 8 -- [process information not found]",
        "  Rank 2 reported unhandled system error -- GPU 1 managed by process 8 on node ::1",
        "  Rank 3 has status FINALIZE -- GPU 1 managed by process 8 on node ::1",
        "  The missing ranks: 3, 5-9",
        "    0         1         4         8        32        32   RUNNING  MISMATCH",
    ]
)


@given(st.lists(LINES | st.text(max_size=30), max_size=30))
def test_any_order_of_lines_may_answer(lines):
    parsed = parse_report("\n".join(lines).encode())
    for row in communicator_reports(parsed):
        assert 0 <= row["reported"] <= max(row["ranks"], 0)
    assert len(rank_states(parsed)) <= 256


@given(st.text(alphabet="#-()0123456789abcdefRank dMISMATCHon nodelaunched up to operation\n", max_size=300))
def test_any_text_may_answer(text):
    rank_states(parse_report(text.encode()))
