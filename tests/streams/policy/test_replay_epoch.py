"""Replay: the log reproduces the decisions."""

from __future__ import annotations

import pytest

from schemas import codec
from streams.policy.inputs import PolicyInputs
from tests.streams.policy.log_fabric import EPOCH, PARTITIONS, Log, S, of_epoch, replayed, run_faults


def test_the_log_reproduces_the_decisions() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    run_faults(log, inputs)
    made = of_epoch(log, EPOCH)
    assert {decision["action"] for decision in made} == {"REROUTE", "RESTORE"}
    log.now_ns += S
    log.run_cycles(inputs)
    published = sum(len(record["cycles"]) for record in log.cycle_records)
    assert published == inputs.shards["s0"].number, "every cycle is published within a second"
    assert replayed(log, EPOCH) == made
    for record in log.cycle_records:
        assert codec.decode(codec.encode("PolicyCycles", record), "PolicyCycles") == record


def test_missing_cycles_are_named() -> None:
    log, inputs = Log(), PolicyInputs(EPOCH, PARTITIONS)
    run_faults(log, inputs)
    del log.cycle_records[1]
    with pytest.raises(ValueError, match=r"s0, epoch \d+: cycles \d+ to \d+ are not in the log"):
        replayed(log, EPOCH)
