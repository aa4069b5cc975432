"""Tests of streams/diagnosis/job/process.py: the records of one process, by number and by end."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.records import CollectiveSource
from streams.diagnosis.job.process import Batch, Member, Process, batch_of
from tests.records import make_part
from tests.streams.diagnosis.scenario import BEGIN, Job, S


def batches(count: int = 6) -> list[Batch]:
    """Return one record a second of a rank; the fourth one has a running operation."""
    job, found = Job(ranks=1), []
    for number in range(count):
        record = job.run()[0]
        if number == 3:
            record["operations"][-1]["end_ns"] = None
        found.append(batch_of({**record, "ended": number == count - 1}, 7, job.at_ns))
    return found


def process_of(found: list[Batch]) -> Process:
    process = Process(("h0", "b", "100-1"), CollectiveSource.SIMULATION, "1")
    for batch in found:
        process.add(batch)
    return process


def test_records_are_found_by_number_in_any_order_of_arrival() -> None:
    found = batches()
    shuffled = [found[at] for at in (3, 0, 5, 1, 4, 2)]

    process = process_of(shuffled)

    assert [batch.number for batch in process] == list(range(6))
    assert len(process) == 6
    assert 3 in process
    assert 6 not in process
    assert process.newest.number == 5
    assert process.before(3) is found[2]
    assert process.before(0) is None


@pytest.mark.parametrize("seed", range(5))
def test_intervals_are_those_of_a_plain_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = batches(8)
    process = process_of([found[at] for at in rng.permutation(8)])
    for number in rng.choice(8, 3, replace=False):
        assert process.remove(int(number)) is found[number]
    kept = [batch for batch in found if batch.number in process]
    for _ in range(20):
        begin_ns, end_ns = sorted(int(BEGIN + at) for at in rng.integers(-S, 9 * S, 2))

        assert process.since(begin_ns) == [b for b in kept if b.end_ns > begin_ns]
        assert process.overlapping(begin_ns, end_ns) == [
            b for b in kept if b.end_ns > begin_ns and b.begin_ns < end_ns
        ]
        before = [b for b in kept if b.end_ns <= begin_ns]
        running = [b.number for b in before if b.has_running and b is before[-1]]
        assert [number for number, _ in process.running_before(begin_ns)] == running
        assert (process.ended_at(end_ns) is not None) == any(b.ended and b.begin_ns < end_ns for b in kept)


def test_an_operation_runs_until_a_later_record_has_its_end_or_that_of_a_later_one() -> None:
    job = Job(ranks=1)
    first, second, third = (job.run()[0] for _ in range(3))
    first["operations"][-1]["end_ns"] = None
    running = batch_of(first, 7, job.at_ns)
    summary = make_part(
        "CollectiveBatch",
        "CollectiveSummary",
        communicator=0,
        function="ALL_REDUCE",
        last_seq=first["operations"][-1]["seq"],
    )
    summarised = batch_of({**second, "operations": [], "summaries": [summary]}, 7, job.at_ns)
    [(number, rows)] = process_of([running, batch_of({**second, "operations": []}, 7, 0)]).running_before(
        job.at_ns
    )
    assert (number, len(rows)) == (0, 1)
    assert not process_of([running, summarised]).running_before(job.at_ns)
    assert not process_of([running, batch_of(third, 7, job.at_ns)]).running_before(job.at_ns)
    assert process_of([running, batch_of(third, 7, job.at_ns)]).running_before(first["end_ns"])


def test_a_new_record_is_in_the_next_answer() -> None:
    found = batches()
    process = process_of(found[:-1])
    before = process.since(BEGIN)

    process.add(found[-1])

    assert process.since(BEGIN) == [*before, found[-1]]


def test_an_unknown_record_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        process_of([]).remove(1)


def test_the_newest_membership_counts_and_keeps_known_nics() -> None:
    process = process_of([])
    assert process.join(2, Member("c", 1, 4, (), None))
    assert (list(process.members), process.nics) == ([Member("c", 1, 4, (), None)], ())
    assert process.join(1, Member("c", 0, 4, ("h0/n0",), None))
    assert (list(process.members), process.nics) == ([Member("c", 1, 4, ("h0/n0",), None)], ("h0/n0",))
    assert not process.join(3, Member("c", 1, 4, (), None))
    assert process.join(3, Member("a", 1, 8, ("h0/n1",), None))
    assert [member.communicator for member in process.members] == ["a", "c"]
    assert process.nics == ("h0/n1", "h0/n0"), "the largest communicator's first"
