"""The verdict about a job: enough evidence, its order, and records of any content."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.records import (
    Alert,
    AlertKind,
    AlertState,
    CollectiveBatch,
    CollectiveFunction,
    Diagnosis,
    KeptReason,
    LinkState,
    Verdict,
)
from streams.diagnosis.diagnose import EXPLANATIONS
from streams.diagnosis.job.view import JobView
from streams.diagnosis.network.view import NetworkView
from tests.examples import examples
from tests.records import make, make_part
from tests.streams.diagnosis.scenario import BEGIN, JOB, MS, Job, S, World, evaluate, nic, route

CROSSED = route(1, 2, 1)[1]


def test_a_healthy_job_is_healthy_and_its_record_is_valid() -> None:
    world = World(Job(split=True))
    found = world.learn()
    assert (found["verdict"], found["blames_network"]) == (Verdict.HEALTHY, False)
    assert found["iteration_ns"] == pytest.approx(12.1 * MS, rel=0.02)
    assert found["expected_iteration_ns"] == pytest.approx(12.1 * MS, rel=0.02)
    assert (found["ranks_seen"], found["ranks_total"], found["hosts"]) == (8, 8, 8)
    assert found["missing"] == []
    assert len(found["time_splits"]) == len(found["flows"]) == 8
    assert codec.decode(codec.encode(Diagnosis, found), Diagnosis) == found


def test_the_time_of_a_rank_is_split() -> None:
    world = World(Job(jitter=0.0))
    split = world.learn()["time_splits"][0]
    total = sum(split[part] for part in ("compute_ns", "peer_late_ns", "network_late_ns"))
    assert total == pytest.approx(S, rel=0.03)
    assert split["network_late_ns"] == pytest.approx(S / 3, rel=0.05)


def test_a_verdict_holds_since_its_first_interval() -> None:
    world = World(Job())
    world.learn()
    world.job.compute = lambda rank, at: 13.0 * MS if rank == 3 else 8.0 * MS
    first, second = world.step(), world.step()
    assert second["since_ns"] == first["begin_ns"]
    assert second["number"] == first["number"] + 1


@pytest.mark.parametrize("known", [True, False])
def test_a_mild_fault_is_named_by_its_cost_since_it_began(known: bool) -> None:
    """It costs a tenth of the newest 1.5 s: 3% of the interval."""
    world = World(Job(split=True, own_share=0.5))
    world.learn()
    begin_ns = world.job.at_ns
    batches = world.job.run(4 * S)
    world.job.network = lambda rank, at: 5.4 * MS
    if known:
        world.health(route(1, 2, 1)[1], LinkState.GREY, world.job.at_ns, loss_rate=0.02)
    found = world.diagnose([*batches, *world.job.run(S + S // 2)], begin_ns, world.job.at_ns)
    assert found["verdict"] == (Verdict.GREY_LINK if known else Verdict.HEALTHY)
    assert found["loss_share"] < 0.05


def test_the_order_of_records_does_not_change_the_verdict() -> None:
    job = Job(ranks=4, compute=lambda rank, at: 12.0 * MS if rank == 2 else 8.0 * MS)
    records = [each for _ in range(3) for each in job.run(200 * MS)]
    found = []
    for seed in range(3):
        random.Random(seed).shuffle(records)
        view = JobView(JOB)
        for each in records:
            view.take(each, BEGIN)
        found.append(evaluate(view, NetworkView(), BEGIN, job.at_ns))
    assert found[0] == found[1] == found[2]
    assert found[0]["verdict"] == Verdict.STRAGGLER


def test_two_jobs_with_one_communicator_hash_are_apart() -> None:
    fast, slow = World(Job(ranks=4)), World(Job(ranks=4, name="second"))
    slow.job.compute = lambda rank, at: 13.0 * MS if rank == 1 else 8.0 * MS
    assert fast.step()["verdict"] == Verdict.HEALTHY
    assert slow.step()["verdict"] == Verdict.STRAGGLER


def test_unsynced_clocks_are_missing_evidence_and_blame_nobody() -> None:
    world = World(Job(unsynced=frozenset({3})))
    world.job.offsets = {3: 50 * MS}
    found = world.learn()
    assert found["verdict"] == Verdict.HEALTHY
    assert any("clocks UNSYNCED: arrivals of rank 3 on h3" in line for line in found["missing"])
    assert found["time_splits"][3]["last_arrivals"] == 0


def test_a_job_of_which_few_ranks_report_is_unknown() -> None:
    world = World(Job(silent=frozenset(range(5))))
    found = world.step()
    assert found["verdict"] == Verdict.UNKNOWN
    assert "5 of 8 ranks are not known" in found["missing"]


def test_a_job_without_records_is_unknown() -> None:
    found = evaluate(JobView(JOB), NetworkView(), BEGIN, BEGIN + S)
    assert (found["verdict"], found["missing"]) == (Verdict.UNKNOWN, ["no rank of the job reports"])


def test_an_empty_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an end after the begin"):
        evaluate(JobView(JOB), NetworkView(), BEGIN, BEGIN)


def test_late_and_dropped_events_are_missing_evidence() -> None:
    world = World(Job())
    world.learn()
    begin_ns = world.job.at_ns
    batches = world.job.run()
    batches[2]["events_dropped"] = 12
    batches[3]["calls_ignored"] = 3
    world.view.take(batches[5], world.job.at_ns + 86_400 * S)
    found = world.diagnose(batches, begin_ns, world.job.at_ns)
    assert any("12 events were dropped" in line for line in found["missing"])
    assert any("rank 3 on h3 ignored 3 calls" in line for line in found["missing"])
    assert any("records of rank 5 on h5 came 86400 s late" in line for line in found["missing"])


def test_a_sampled_trace_with_summaries_gives_the_same_verdict() -> None:
    """One of eight operations is published; summaries contain them all."""
    world = World(Job())

    def thin(batches: list[CollectiveBatch]) -> list[CollectiveBatch]:
        for batch in batches:
            every = batch["operations"]
            busy = sum((each["end_ns"] or 0) - each["begin_ns"] for each in every)
            batch["summaries"] = [
                make_part(
                    "CollectiveBatch",
                    "CollectiveSummary",
                    function=CollectiveFunction.ALL_REDUCE,
                    first_seq=every[0]["seq"],
                    last_seq=every[-1]["seq"],
                    count=len(every),
                    busy_ns=busy,
                )
            ]
            batch["operations"] = [
                {**each, "kept": KeptReason.SAMPLED} for each in every if each["seq"] % 8 == 0
            ]
        return batches

    def step() -> Diagnosis:
        begin_ns = world.job.at_ns
        return world.diagnose(thin(world.job.run()), begin_ns, world.job.at_ns)

    for _ in range(4):
        assert step()["verdict"] == Verdict.HEALTHY
    world.job.compute = lambda rank, at: 13.0 * MS if rank == 3 else 8.0 * MS
    found = [step() for _ in range(6)][-1]
    assert (found["verdict"], found["ranks"]) == (Verdict.STRAGGLER, [3])
    assert found["loss_share"] == pytest.approx(4.5 / 17, abs=0.05)


def test_every_explanation_is_listed_once() -> None:
    assert len(EXPLANATIONS) == len(set(EXPLANATIONS))


# ------------------------------------------------------------------------------------------- any records

TIMES = st.one_of(st.integers(BEGIN - S, BEGIN + 2 * S), st.integers(-(2**62), 2**62))
COUNTS = st.one_of(st.integers(0, 100), st.integers(0, 10**15))
WAITS = st.one_of(st.none(), COUNTS)
OPERATIONS = st.fixed_dictionaries(
    {
        "communicator": st.integers(0, 2),
        "seq": st.integers(0, 5),
        "bytes": COUNTS,
        "begin_ns": TIMES,
        "function": st.sampled_from(list(CollectiveFunction)),
        "end_ns": st.one_of(st.none(), TIMES),
        "peer": st.one_of(st.none(), st.integers(0, 4)),
        "launch_ns": WAITS,
        "gpu_late_ns": WAITS,
        "peer_late_ns": WAITS,
        "network_late_ns": WAITS,
        "flush_ns": WAITS,
        "kept": st.sampled_from(list(KeptReason)),
    }
)
QUEUE_PAIRS = st.fixed_dictionaries(
    {
        "nic": st.sampled_from([nic(0), nic(1), nic(2)]),
        "peer": st.integers(-1, 4),
        "count": COUNTS,
        "bytes": COUNTS,
        "mean_ns": COUNTS,
        "min_ns": COUNTS,
        "flow_id": st.sampled_from(["", "h0/b/qp:n0:7:1"]),
    }
)
TRANSFERS = st.fixed_dictionaries(
    {
        "operation": st.integers(0, 3),
        "peer": st.integers(0, 4),
        "sends": st.booleans(),
        "bytes": COUNTS,
        "begin_ns": TIMES,
        "end_ns": st.one_of(st.none(), TIMES),
        "gpu_late_ns": WAITS,
        "network_late_ns": WAITS,
    }
)
SUMMARIES = st.fixed_dictionaries(
    {
        "communicator": st.integers(0, 2),
        "function": st.sampled_from(list(CollectiveFunction)),
        "count": COUNTS,
        "last_seq": st.integers(0, 9),
        "bytes": COUNTS,
        "busy_ns": COUNTS,
        "network_late_ns": WAITS,
    }
)
BATCHES = st.fixed_dictionaries(
    {
        "host": st.sampled_from(["h0", "h1", "h2"]),
        "process": st.sampled_from(["1-1", "2-2"]),
        "batch": st.integers(0, 3),
        "begin_ns": TIMES,
        "end_ns": TIMES,
        "bound_ns": st.floats(0, 1e18),
        "clock": st.sampled_from(["UNSYNCED", "HOLDOVER", "SYNCED"]),
        "ended": st.booleans(),
        "operations": st.lists(OPERATIONS, max_size=6),
        "queue_pairs": st.lists(QUEUE_PAIRS, max_size=4),
        "transfers": st.lists(TRANSFERS, max_size=4),
        "summaries": st.lists(SUMMARIES, max_size=3),
        "ranks": st.lists(st.integers(0, 4), min_size=2, max_size=2),
    }
)


def batch_of(drawn: dict[str, Any]) -> CollectiveBatch:
    parts = {
        "operations": "CollectiveOperation",
        "queue_pairs": "QueuePairDelay",
        "transfers": "CollectiveTransfer",
        "summaries": "CollectiveSummary",
    }
    fields = dict(drawn)
    ranks = fields.pop("ranks")
    for name, part in parts.items():
        fields[name] = [make_part("CollectiveBatch", part, **each) for each in fields[name]]
    fields["communicators"] = [
        make_part(
            "CollectiveBatch",
            "Communicator",
            id=f"c{at}",
            rank=rank,
            ranks=at * 3,
            nics=[f"{drawn['host']}/n0"],
        )
        for at, rank in enumerate(ranks)
    ]
    return make(CollectiveBatch, job=JOB, boot="b", **fields)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(BATCHES, max_size=8), st.randoms(use_true_random=False))
def test_any_records_yield_a_valid_verdict_that_their_order_does_not_change(
    drawn: list[dict[str, Any]], chance: random.Random
) -> None:
    records = list({(d["host"], d["process"], d["batch"]): batch_of(d) for d in drawn}.values())
    found = []
    for _ in range(2):
        world = World(Job(ranks=3))
        world.health(route(0, 2, 0)[1], LinkState.GREY, BEGIN, loss_rate=0.1)
        world.contend(route(0, 2, 0)[1], BEGIN)
        for each in records:
            world.view.take(each, BEGIN)
        world._report(BEGIN, BEGIN + S)
        found.append(evaluate(world.view, world.network, BEGIN, BEGIN + S))
        chance.shuffle(records)
    assert found[0] == found[1]
    codec.encode(Diagnosis, found[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 3), st.integers(1, 2_000_000))
def test_an_error_of_clocks_within_their_bound_never_makes_a_straggler(rank: int, error_ns: int) -> None:
    job = Job(ranks=4, bound_ns=float(error_ns), jitter=0.0, offsets={rank: error_ns})
    view = JobView(JOB)
    for each in job.run(100 * MS):
        view.take(each, BEGIN)
    assert evaluate(view, NetworkView(), BEGIN, job.at_ns)["verdict"] != Verdict.STRAGGLER


def test_a_slow_job_without_a_cause_names_its_hosts_with_a_prober_in_trouble() -> None:
    world = World(Job())
    world.learn()
    world.job.network = lambda rank, at: 12.0 * MS
    for host in ("h2", "h99"):
        text = f"{host}: its own prober is in trouble, no link: up to 130 ms late"
        world.network.take_alert(
            make(
                Alert,
                alert_id=host,
                kind=AlertKind.AGENT,
                subject=host,
                state=AlertState.RAISED,
                raised_ns=world.job.at_ns,
                text=text,
            )
        )
    found = world.step()
    assert (found["verdict"], found["subjects"]) == (Verdict.UNKNOWN, ["h2"])
    assert "no record explains it; h2: its own prober is in trouble" in found["text"]
    assert [each["topic"] for each in found["evidence"]] == ["fabric.alerts"]


def test_a_new_owner_does_not_know_that_all_ranks_compute_longer() -> None:
    """It learned how long operations move data in the slow time alone."""
    world = World(Job())
    world.view.baselines.restore("iteration", 12.0 * MS)
    world.job.network = lambda rank, at: 12.0 * MS
    assert world.learn(8)["verdict"] == Verdict.UNKNOWN


def test_a_link_that_costs_time_beside_a_straggler_is_named_too() -> None:
    world = World(Job(queue_pairs=False))
    world.learn(8)
    world.job.compute = lambda rank, at: 20.0 * MS if rank == 3 else 8.0 * MS
    alone = [world.step() for _ in range(6)][-1]
    assert (alone["verdict"], alone["ranks"]) == (Verdict.STRAGGLER, [3])
    assert alone["text"].endswith("nothing is wrong with the network")
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.05)
    world.job.network = lambda rank, at: 9.0 * MS
    both = [world.step() for _ in range(3)][-1]
    assert (both["verdict"], both["ranks"]) == (Verdict.STRAGGLER, [3])
    assert "; also GREY_LINK: " in both["text"], both["text"]
    assert "nothing is wrong" not in both["text"]


def test_a_link_that_costs_nothing_beside_a_straggler_is_only_possible() -> None:
    world = World(Job(queue_pairs=False))
    world.learn(8)
    world.job.compute = lambda rank, at: 20.0 * MS if rank == 3 else 8.0 * MS
    world.health(CROSSED, LinkState.GREY, world.job.at_ns, loss_rate=0.05)
    found = [world.step() for _ in range(6)][-1]
    assert found["verdict"] == Verdict.STRAGGLER
    assert "also" not in found["text"]
    assert [other["verdict"] for other in found["alternatives"]] == [Verdict.GREY_LINK]
