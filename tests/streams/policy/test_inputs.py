"""The inputs of policy: new owners, rejects, and the published cycles."""

from __future__ import annotations

import pytest

from schemas.kafka.message import Message
from schemas.topics import (
    ACTIONS,
    CONFIG,
    DECISIONS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    POLICY_CYCLES,
)
from schemas.validation import EPOCH_AHEAD_MS
from streams.policy.inputs import PolicyInputs, read_from
from streams.policy.stage import PolicyStage
from streams.runtime.operator import Moment
from tests.records import make
from tests.streams.policy.log_fabric import (
    EPOCH,
    HOSTS,
    MS,
    PARTITIONS,
    TABLES,
    Log,
    S,
    T,
    decided,
    nic,
    of_epoch,
    records_to,
    repair_locally,
    replayed,
)


def test_a_new_owner_returns_flows_and_moves_no_other() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    flows = [log.open(source, (source + 1) % HOSTS, 6000 + source) for source in range(HOSTS)]
    home = dict(log.ports)
    for _ in range(3):
        log.report()
        log.run_cycles(inputs, 1.0)
    dead = "leaf1:u2>spine2:leaf1"
    hit = log.over(dead)
    log.health(dead, "DOWN")
    log.run_cycles(inputs, 0.004)
    assert {name for name in flows if log.ports[name] != home[name]} == hit
    log.report()
    epoch = log.now_ns // MS + 1
    log.now_ns, since = epoch * MS, read_from(epoch)
    second = PolicyInputs(epoch, PARTITIONS)
    second.restore({DECISIONS.name: decided(log)}, TABLES)
    log.messages = [message for message in log.messages if message.append_ns >= since[message.topic]]
    log.read = 0
    for _ in range(20):
        log.report()
        log.run_cycles(second, 0.5)
    assert of_epoch(log, epoch) == []
    log.health(dead, "UP")
    for _ in range(30):
        log.report()
        log.run_cycles(second, 0.5)
    assert log.ports == home
    assert {decision["action"] for decision in of_epoch(log, epoch)} == {"RESTORE"}
    assert replayed(log, epoch) == of_epoch(log, epoch)


def test_a_new_owner_knows_the_local_repairs_made_without_an_owner() -> None:
    log = Log()
    flow = log.open(0, 1, 6000)
    log.report()
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    repair_locally(log, flow, 6000, 6001)
    log.now_ns += 60 * S
    log.report()
    epoch = log.now_ns // MS + 1
    log.now_ns = epoch * MS
    inputs, since = PolicyInputs(epoch, PARTITIONS), read_from(epoch)
    log.messages = [message for message in log.messages if message.append_ns >= since[message.topic]]
    log.run_cycles(inputs, 0.02)
    log.report()
    assert log.run_cycles(inputs, 1.0) == [], "the flow has already left the link"
    log.health("leaf1:u0>spine0:leaf1", "UP")
    for _ in range(30):
        log.report()
        log.run_cycles(inputs, 0.5)
    assert log.ports[flow] == 6000
    assert replayed(log, epoch) == of_epoch(log, epoch)


def test_invalid_routes_and_actions_are_refused() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    for topic in (FLOW_ROUTES, ACTIONS):
        inputs.take([Message(T, topic.name, 0, 0, "x", b"nonsense")], TABLES)
    inputs.apply()
    assert [message.topic for message, _ in inputs.rejected] == [FLOW_ROUTES.name, ACTIONS.name]
    assert DECISIONS.name not in {topic for topic, _ in PARTITIONS}
    assert log.decisions == []


def test_suppressed_actions_are_published_again_for_new_readers() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    log.open(0, 1, 6000)
    log.put(
        CONFIG,
        "*",
        {"host": "*", "version": 2, "at_ns": 0, "by": "t", "mode": "ACT", "allowed_actions": ["PACE"]},
    )
    for second in range(35):
        log.report()
        log.run_cycles(inputs, 1.0)
        if second == 2:
            log.health("leaf1:u0>spine0:leaf1", "DOWN")
    published = [
        row["suppressed"] for record in log.cycle_records for row in record["cycles"] if row["suppressed"]
    ]
    assert 3 <= len(published) <= 5, "once, then every ten seconds"
    assert {each["cause"] for suppressed in published for each in suppressed} == {"NOT_ALLOWED"}


@pytest.mark.parametrize(("pace", "lasts_s"), [(None, 5), (1.0, 5), (0.1, 50)])
def test_flows_of_a_slow_simulation_stay_until_its_own_time_is_over(pace: float | None, lasts_s: int) -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    for host in range(HOSTS):
        fields = {"nic": nic(host), "shard": "s0", "probe_port": 4791, "simulation_pace": pace}
        log.put(INVENTORY, nic(host), make("Nic", **fields))
    log.open(0, 1, 6000)
    log.report()
    log.run_cycles(inputs, 0.1)
    policy = inputs.shards["s0"].policy
    log.run_cycles(inputs, lasts_s - 1)
    assert policy.counts() == (1, 1)
    log.run_cycles(inputs, 2)
    assert policy.counts() == (0, 0)


def test_the_time_of_a_shard_does_not_step_back_with_its_pace() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    log.open(0, 1, 6000)
    log.report()
    log.offer_to(inputs)
    inputs.apply()
    cycle_times_ns = []
    for now_s in (10, -20, 11, -20):
        records = records_to(POLICY_CYCLES, inputs.run_cycle("s0", T + now_s * S, T))
        cycle_times_ns += [row["now_ns"] for record in records for row in record["cycles"]]
    cycle_times_ns += [row["now_ns"] for row in inputs.shards["s0"].cycles]
    assert [(now_ns - T) // S for now_ns in cycle_times_ns] == [10, 10, 11, -20], "31 s are a correction"


def test_news_and_link_health_hasten_the_next_cycle() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    assert inputs.due_ns() == 0, "at once after a takeover"
    log.offer_to(inputs)
    moment = Moment(T, 7)
    assert (inputs.advance(moment, TABLES), inputs.due_ns()) == ([], T + 100 * MS)
    log.report()
    log.offer_to(inputs)
    assert inputs.due_ns() == T + 100 * MS, "flow reports come all the time"
    log.put(CONFIG, "x", None)
    log.offer_to(inputs)
    assert inputs.due_ns() == T + 20 * MS
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    log.offer_to(inputs)
    assert inputs.due_ns() == 0


def test_each_advance_runs_the_cycle_of_one_shard() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    for host, shard in ((0, "s0"), (1, "s1")):
        log.put(FLOWS, f"h{host}", make("FlowReports", host=f"h{host}", shard=shard, whole=True))
    log.offer_to(inputs)
    shards = []
    for _ in range(2):
        shards += [each["shard"] for each in records_to(POLICY_CYCLES, inputs.advance(Moment(T, 0), TABLES))]
        assert inputs.due_ns() == (0 if len(shards) == 1 else T + 100 * MS)
    assert shards == ["s0", "s1"]


def test_a_cycle_that_fails_costs_its_shard_only(monkeypatch: pytest.MonkeyPatch) -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    log.put(FLOWS, "h0", make("FlowReports", host="h0", shard="s0", whole=True))
    log.offer_to(inputs)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(inputs, "run_cycle", fail)
    assert inputs.advance(Moment(T, 0), TABLES) == []
    assert [(name, str(error)) for name, error in inputs.failed] == [("s0", "planted")]


def test_an_epoch_follows_those_that_actuators_accept() -> None:
    def epoch(*epochs: int) -> int:
        log = Log()
        log.decisions = [(make("Decision", decision_id=f"{n}", epoch=n), T) for n in epochs]
        return PolicyStage().epoch(T, {DECISIONS.name: decided(log)})

    assert epoch() == epoch(EPOCH - 5) == EPOCH
    assert epoch(EPOCH + 3, EPOCH - 5) == EPOCH + 4, "the log's clock stepped back"
    assert epoch(EPOCH + EPOCH_AHEAD_MS + 1) == EPOCH, "actuators refuse it"
