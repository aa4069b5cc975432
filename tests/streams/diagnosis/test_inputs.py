"""Inputs of diagnosis: one order, one evaluation a second, equal identities in every replay."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.kafka import message as message_module
from schemas.kafka.message import Message
from schemas.records import Diagnosis
from schemas.topics import COLLECTIVES, DELAYS, FLOWS, LINK_HEALTH
from streams.diagnosis import inputs as module
from streams.diagnosis.inputs import MAX_JOBS, DiagnosisInputs, encoded, read_from
from tests.records import make, make_part
from tests.streams.diagnosis.job_batches import MS, S, batch, messages, run_of

T = 1_900_000_000 * S


def replayed(found: list[Message], step_ns: int = S, from_ns: int = 0) -> list[Diagnosis]:
    inputs = DiagnosisInputs(from_ns)
    for message in found:
        inputs.add(message)
    out, now_ns = [], T
    while now_ns < T + 60 * S:
        now_ns += step_ns
        out += inputs.evaluate(now_ns)
    assert not inputs.failed
    assert not inputs.rejected
    return out


def test_a_job_is_published_every_five_seconds_and_once_more_at_its_end():
    out = replayed(messages(run_of("A", 22, T)))
    assert {each["job"] for each in out} == {"A"}
    numbers = [each["number"] for each in out]
    assert numbers == sorted(set(numbers))
    assert max(after - before for before, after in itertools.pairwise(numbers)) <= 5
    assert out[-1]["end_ns"] == T + 22 * S, "the last record covers the job's end"
    assert numbers[-1] * S == T + 23 * S, "within a second of it"


def test_ranks_and_flows_are_published_with_a_new_verdict_once_a_minute_and_at_the_end():
    out = replayed(messages(run_of("A", 50, T)))

    whole = [bool(each["time_splits"]) for each in out]
    changed = [
        after["number"]
        for before, after in itertools.pairwise([None, *out])
        if before is None or (before["verdict"], before["subject"]) != (after["verdict"], after["subject"])
    ]
    assert {each["verdict"] for each in out} <= {"HEALTHY", "UNKNOWN"}
    assert [each["number"] for each, has in zip(out, whole, strict=True) if has][:1] == changed[:1]
    assert whole[-1], "the last record of a job"
    assert set(changed) <= {each["number"] for each in out if each["time_splits"]}
    assert sum(whole) <= len(changed) + 4, "one a minute, four a minute while not HEALTHY, one at the end"
    assert sum(whole) < len(out) / 2


def test_a_silent_job_ends_and_a_new_one_of_its_name_begins():
    inputs = DiagnosisInputs(0)
    for message in messages([batch("A", 0, second, T) for second in range(3)]):
        inputs.add(message)
    inputs.evaluate(T + 20 * S)
    assert inputs.jobs == ["A"]
    out = inputs.evaluate(T + 40 * S)
    assert (inputs.jobs, inputs.needs_network) == ([], False)
    assert [each["number"] * S - T for each in out] == [34 * S]
    for message in messages([batch("A", 0, 100 + second, T) for second in range(3)]):
        inputs.add(message)
    assert inputs.evaluate(T + 110 * S)
    assert inputs.jobs == ["A"]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), step_ms=st.sampled_from([50, 130, 1000, 7000]), repeats=st.booleans())
def test_any_arrival_and_any_step_give_the_same_records(seed, step_ms, repeats):
    found = messages(run_of("A", 9, T) + run_of("B", 12, T + S // 3))
    expected = replayed(found)
    mixed = found + (random.Random(seed).sample(found, 20) if repeats else [])
    random.Random(seed).shuffle(mixed)
    again = replayed(mixed, step_ms * MS)
    assert again == expected
    identities = [(each["job"], each["begin_ns"], each["number"]) for each in again]
    assert len(set(identities)) == len(identities)


def test_a_later_owner_continues_with_the_same_records():
    found = messages(run_of("A", 30, T))
    whole = {(each["job"], each["begin_ns"], each["number"]) for each in replayed(found)}
    later = replayed([each for each in found if each.append_ns > T + 10 * S], from_ns=T + 20 * S)
    identities = {(each["job"], each["begin_ns"], each["number"]) for each in later}
    assert identities == {each for each in whole if each[2] * S >= T + 20 * S}


def test_a_later_owner_knows_the_baseline_from_the_last_record():
    past = make(
        Diagnosis, job="A", number=1, verdict="SLOW_FLOW", subject="h1/e0", since_ns=T - 60 * S,
        expected_iteration_ns=50 * MS, expected_bus_bps=8e10,
    )  # fmt: skip
    inputs = DiagnosisInputs(0, past=[past, past | {"number": 0, "expected_iteration_ns": 1}])
    for message in messages(run_of("A", 20, T)):
        inputs.add(message)
    out = inputs.evaluate(T + 60 * S)
    assert out[-1]["expected_iteration_ns"] == 50 * MS, "iterations of 100 ms are twice as long as before"
    assert out[-1]["expected_bus_bps"] == pytest.approx(8e10)


def test_records_that_no_reader_can_use_cost_themselves_only():
    good = messages(run_of("A", 6, T))

    def changed(offset: int, key: str, value: bytes | None, topic: str = COLLECTIVES.name) -> Message:
        return Message(good[3].append_ns, topic, good[3].partition, offset, key, value)

    bad = changed(1000, good[3].key, b"nonsense")
    foreign = changed(1001, "B", good[3].value)
    gone = changed(1002, good[3].key, None)
    elsewhere = changed(1000, good[3].key, b"nonsense", LINK_HEALTH.name)
    inputs = DiagnosisInputs(0)
    for message in (*good, bad, foreign, gone, elsewhere):
        inputs.add(message)
    assert inputs.evaluate(T + 10 * S)[-1]["job"] == "A"
    assert {error.reason for _, error in inputs.rejected} <= {"UNKNOWN_SCHEMA", "MALFORMED", "WRONG_KEY"}
    assert [message.offset for message, _ in inputs.rejected] == [1000, 1001]


def test_a_job_that_cannot_be_evaluated_harms_no_other(monkeypatch):
    real = module.evaluate_case

    def evaluate_case(view: Any, *given: Any) -> Any:
        if view.job == "A":
            raise ZeroDivisionError("planted")
        return real(view, *given)

    monkeypatch.setattr(module, "evaluate_case", evaluate_case)
    inputs = DiagnosisInputs(0)
    for message in messages(run_of("A", 3, T)) + messages(run_of("B", 3, T), 1):
        inputs.add(message)
    assert {each["job"] for each in inputs.evaluate(T + 60 * S)} == {"B"}
    assert {(job, str(error)) for job, error in inputs.failed} == {("A", "planted")}
    assert inputs.jobs == [], "a job that always fails ends too"


def test_a_flood_of_jobs_is_bounded():
    inputs = DiagnosisInputs(T + 100 * S)
    value = batch("A", 0, 0, T, operations=[], summaries=[])
    for number in range(MAX_JOBS + 5):
        record = value | {"job": f"j{number}"}
        inputs.add(messages([record], first=number)[0])
    inputs.evaluate(T + S + 20 * MS)
    assert (len(inputs.jobs), inputs.dropped) == (MAX_JOBS, 5)


def test_only_delays_and_flows_of_the_jobs_are_decoded(monkeypatch):
    decoded: list[str] = []
    real = message_module.decode_message

    def decode(topic: Any, key: Any, value: bytes, registry: Any = None) -> Any:
        decoded.append(f"{topic.name} {key.decode()}")
        return real(topic, key, value, registry)

    monkeypatch.setattr(message_module, "decode_message", decode)
    inputs = DiagnosisInputs(0)
    (first, *_) = messages(run_of("A", 2, T))
    inputs.add(first)
    for offset, name in enumerate(("h0", "h9")):
        delays = make("PathDelays", nic=f"{name}/e0", window_start_ns=T, window_end_ns=T + S)
        flows = make("FlowReports", host=name)
        for topic, key, record in ((DELAYS, f"{name}/e0", delays), (FLOWS, name, flows)):
            value = codec.encode(topic.record, record)
            inputs.add(Message(first.append_ns + MS, topic.name, 0, offset, key, value))
    inputs.evaluate(T + 3 * S)
    assert sorted(decoded) == [f"{COLLECTIVES.name} A", f"{DELAYS.name} h0/e0", f"{FLOWS.name} h0"]


def test_a_record_that_is_too_long_loses_its_last_flows_then_ranks():
    flows = [make_part(Diagnosis, "JobFlow", nic=f"h{n}/e0", peer="h1/e0") for n in range(100)]
    splits = [make_part(Diagnosis, "RankTime", rank=n, host="h") for n in range(100)]
    record = make(Diagnosis, job="A", flows=flows, time_splits=splits)
    assert codec.decode(encoded(record, 1 << 20), Diagnosis) == record
    short = codec.decode(encoded(record, 3000), Diagnosis)
    assert (len(short["flows"]), len(short["time_splits"])) == (25, 100)
    assert len(encoded(record, 1000)) <= 1000
    assert encoded(make(Diagnosis, job="A"), 1), "nothing is left out that a reader needs"


@pytest.mark.parametrize("topic", [COLLECTIVES.name, DELAYS.name, LINK_HEALTH.name])
def test_a_new_owner_reads_state_from_the_beginning_and_the_rest_from_lately(topic):
    start_ns = read_from(T)[topic]
    assert start_ns == 0 if topic == LINK_HEALTH.name else T - 300 * S < start_ns < T
