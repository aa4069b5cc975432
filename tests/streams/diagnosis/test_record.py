"""Records of verdicts: text, alternatives, missing evidence."""

from __future__ import annotations

from schemas import codec
from schemas.records import Diagnosis, Verdict
from streams.diagnosis.base import Candidate
from streams.diagnosis.case import case_of
from streams.diagnosis.record import make_record, missing_evidence
from streams.diagnosis.rules import DiagnosisRules
from streams.diagnosis.symptoms import Symptom
from tests.streams.diagnosis.scenario import MS, Job, S, World


def record(candidate: Candidate, others: list[Candidate], further: list[Candidate]) -> Diagnosis:
    world = World(Job(ranks=4))
    world.learn(4)
    world.job.network = lambda rank, at: 12.0 * MS
    begin_ns = world.job.at_ns
    for each in world.job.run():
        world.view.take(each, world.job.at_ns)
    case = case_of(world.view, world.network, begin_ns, world.job.at_ns, DiagnosisRules())
    return make_record(case, candidate, others, further, ["something"])


def test_a_slow_jobs_text_begins_with_its_iterations() -> None:
    best = Candidate(Verdict.SLOW_FLOW, 0.5, "a", "a is slow", "fix a")
    other = Candidate(Verdict.CONTENTION, 0.5, "b", "b" * 5000, "", confidence=1.2)
    diagnosis = record(best, [other], [])
    assert diagnosis["text"].startswith("iterations take 20.")
    assert diagnosis["text"].endswith("before: a is slow")
    assert diagnosis["alternatives"][0]["confidence"] == 1.0
    assert (diagnosis["subject"], diagnosis["subjects"], diagnosis["missing"]) == ("a", ["a"], ["something"])
    codec.encode(Diagnosis, diagnosis)


def test_the_published_length_of_iterations_is_the_one_that_the_verdict_judges() -> None:
    """With their median, a slow job would have figures of its usual speed: one iteration in eight is long."""
    world = World(Job(ranks=4))
    world.learn(6)
    world.job.compute = lambda rank, at: (8.0 if at % 8 else 40.0) * MS
    slow = world.step()
    actual, expected = slow["iteration_ns"], slow["expected_iteration_ns"]
    assert actual is not None
    assert expected is not None
    assert actual > DiagnosisRules().slow_ratio * expected
    assert f"{actual / expected:.2f} times its baseline" in slow["text"]


def test_a_further_cause_is_part_of_the_text() -> None:
    best = Candidate(Verdict.STRAGGLER, 0.5, "h1", "h1 is late", "", symptoms={Symptom.OWN_TIME: True})
    assert record(best, [], [])["text"].endswith("h1 is late; nothing is wrong with the network")
    grey = Candidate(Verdict.GREY_LINK, 0.1, "b", "b is GREY", "", blames_network=True)
    assert record(best, [grey], [grey])["text"].endswith("h1 is late; also GREY_LINK: b is GREY")


def test_late_delays_of_probes_are_missing_with_their_delay() -> None:
    world = World(Job(ranks=4))
    world.learn(4)
    world.probes = False
    world.learn(8)
    found = world.step()
    assert "no delays of probes between the job's NICs: they come 9 s late" in found["missing"]


def test_pairs_without_probes_are_not_late_where_their_nics_probe_others() -> None:
    world = World(Job(ranks=4))
    world.learn(4)
    end_ns = world.job.at_ns
    case = case_of(world.view, world.network, end_ns - S, end_ns, DiagnosisRules())
    case.probes_known = dict.fromkeys(case.traffic.pairs)
    assert "no delays of probes between the job's NICs" in missing_evidence(case)


def test_missing_evidence_of_an_unknown_network() -> None:
    world = World(Job(ranks=4, nics=False, queue_pairs=False), flows=False, probes=False)
    world.step()
    end_ns = world.job.at_ns
    case = case_of(world.view, world.network, end_ns - 500 * MS, end_ns, DiagnosisRules())
    lines = missing_evidence(case)
    assert "NICs of the ranks are not known" in lines
