"""What the ranks of simulated jobs publish."""

from __future__ import annotations

import pytest

from schemas.topics import COLLECTIVES
from tests.producers.sim.job_runs import PARTS, batches, job_run, parts_of


@pytest.mark.parametrize("kind", ["allreduce", "alltoall", "rail-alltoall"])
def test_records_are_valid_whole_and_add_up(kind):
    run = job_run(kind=kind, connections=2)
    found = batches(run, 2.5)
    assert sorted(found) == list(range(8))
    for records in found.values():
        assert [record["batch"] for record in records] == list(range(len(records)))
        counted = [s for record in records for s in record["summaries"]]
        assert sum(s["count"] for s in counted) == counted[-1]["last_seq"] + 1
        for record in records:
            for each in record["operations"]:
                assert sum(each[part] for part in PARTS) == each["end_ns"] - each["begin_ns"]
            for each in record["summaries"]:
                assert sum(each[part] for part in PARTS) == pytest.approx(each["busy_ns"], abs=1000)
            for each in record["transfers"]:
                assert each["end_ns"] > each["begin_ns"]
                assert each["operation"] < len(record["operations"])
            assert {each["sends"] for each in record["transfers"]} in (set(), {True, False})


def test_ranks_that_exchange_messages_report_each_at_both_ends():
    records_by_rank = batches(job_run(kind="exchange"), 1.5)
    sends, receives = (
        {
            (rank, operation["peer"], operation["seq"])
            for rank, records in records_by_rank.items()
            for record in records
            for operation in record["operations"]
            if operation["function"] == function
        }
        for function in ("SEND", "RECEIVE")
    )
    expected_sends = {(rank, peer, seq) for peer, rank, seq in receives}
    assert len(sends & expected_sends) >= 0.9 * len(sends | expected_sends) > 100
    assert {(peer - rank) % 8 for rank, peer, _ in sends} == {1}
    assert not any(
        record["transfers"] or record["queue_pairs"]
        for records in records_by_rank.values()
        for record in records
    )


def test_arrivals_are_the_truth_within_the_bound():
    run = job_run("straggler 6ms train:2")
    truth = {}
    for _ in range(200):
        run.tick()
        for each in run.jobs.jobs[0].ended:
            truth[each.number] = run.start_ns + round(each.begin_ns)
    records = batches(run, 1)
    again = job_run("straggler 6ms train:2")
    for rank, found in batches(again, 2).items():
        for record in found:
            for each in record["operations"]:
                if each["seq"] in truth:
                    late_ns = truth[each["seq"]] - each["begin_ns"] - each["launch_ns"]
                    assert -record["bound_ns"] < late_ns
                    assert late_ns < record["bound_ns"] + 1e6 or rank != 2
                    assert late_ns > 5e6 or rank == 2
    assert records


def test_same_seed_same_bytes():
    def run():
        return [
            (out.key, out.at_ns, out.value()) for out in job_run().advance(1.5) if out.topic is COLLECTIVES
        ]

    assert run() == run()


def test_each_fault_shows_in_the_parts_of_its_rank():
    def newest(fault, rank):
        return parts_of(batches(job_run(fault), 2.1)[rank][-1])

    assert newest("straggler 10ms train:2", 5)["peer_late_ns"] > 0.7
    assert newest("straggler 10ms train:2", 2)["peer_late_ns"] < 0.2
    assert newest("launch-skew 10ms train:2", 2)["launch_ns"] > 0.6
    slow = newest("slow-pcie 20% train:2", 2)
    assert slow["flush_ns"] > 0.4
    assert slow["gpu_late_ns"] > 0.2


def test_ranks_that_hang_die_or_call_another_operation():
    hung = batches(job_run("hang train:2 after 500ms"), 3.5)
    assert not hung[2][-1]["operations"]
    assert [each["kept"] for each in hung[3][-1]["operations"]] == ["RUNNING"]
    dead = batches(job_run("killed train:2 after 500ms"), 3.5)
    assert [record["ended"] for record in dead[2]] == [False] * (len(dead[2]) - 1) + [True]
    assert len(dead[2]) < len(dead[3])
    other = batches(job_run("mismatch train:2 after 500ms"), 3.5)
    assert {rank: records[-1]["operations"][-1]["function"] for rank, records in other.items()} == {
        rank: "ALL_GATHER" if rank == 2 else "ALL_REDUCE" for rank in range(8)
    }


def test_a_killed_process_begins_again_as_another():
    run = job_run("killed train:2 after 100ms for 1500ms")
    found = batches(run, 4)[2]
    assert len({record["process"] for record in found}) == 2
    assert [record["batch"] for record in found][-1] < len(found) - 1


def test_a_silent_profiler_and_a_clock_that_is_not_synchronised():
    assert 2 not in batches(job_run("unreported train:2"), 2.1)
    found = batches(job_run("unsynced train:2"), 2.1)
    assert (found[2][-1]["clock"], found[2][-1]["bound_ns"]) == ("UNSYNCED", 0)
    assert abs(found[2][-1]["end_ns"] - found[3][-1]["end_ns"]) > 1e4
