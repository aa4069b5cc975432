"""Decisions of one host: applied once, in order, in time, under the config in force; each with its report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.applier import Applier
from schemas import codec
from schemas.topics import ACTIONS, CONFIG, DECISIONS

FLOW = "h1/b/qp:eth1:1:1"
S = 1_000_000_000


class Flows:
    """Flows of a host in a dict; `moves`: what was really done."""

    def __init__(self, **paths):
        self.paths = {FLOW: 50_000, **paths}
        self.moves = []

    def path_of(self, flow_id):
        return self.paths.get(flow_id)

    def move(self, flow_id, path):
        if path == 666:
            raise ValueError(f"flow {flow_id}: no")
        self.moves.append((flow_id, path))
        self.paths[flow_id] = path


def decision(seq=0, epoch=1, to_path=50_001, **fields):
    return {
        "decision_id": f"s0/{epoch}/{seq}", "shard": "s0", "epoch": epoch, "seq": seq, "at_ns": 0,
        "host": "h1", "action": "REROUTE", "flow_id": FLOW, "from_path": 50_000, "to_path": to_path,
        "expires_at_ns": S, "reason": {"kind": "DOWN", "id": "x/1"}, "config_version": 1, "signature": b"",
        "text": "", **fields,
    }  # fmt: skip


def config(host="*", mode="ACT", **fields):
    record = {"host": host, "version": 1, "at_ns": 0, "by": "t", "mode": mode, **fields}
    return {host: codec.decode(codec.encode(CONFIG.record, record), CONFIG.record)}


def applier(flows, records=None):
    made = Applier("h1", flows, iter(range(0, 10**6, 7)).__next__)
    made.take_config(config() if records is None else records)
    return made


def take(to, record, now_ns=0):
    report = to.take(record["host"].encode(), codec.encode(DECISIONS.record, record), now_ns)
    return None if report is None else codec.decode(report, ACTIONS.record)


def test_a_decision_is_applied_once_and_says_so():
    flows = Flows()
    it = applier(flows)
    report = take(it, decision())
    assert report == {
        "host": "h1", "decision_id": "s0/1/0", "shard": "s0", "epoch": 1, "seq": 0, "at_ns": 7,
        "flow_id": FLOW, "action": "REROUTE", "outcome": "APPLIED", "from_path": 50_000, "to_path": 50_001,
        "took_ns": 7, "config_version": 1, "detail": "",
    }  # fmt: skip
    assert take(it, decision())["outcome"] == "DUPLICATE"
    assert flows.moves == [(FLOW, 50_001)]


def test_an_actuator_that_was_killed_after_applying_applies_nothing_again():
    flows = Flows()
    take(applier(flows), decision())
    assert take(applier(flows), decision())["outcome"] == "APPLIED"
    assert flows.moves == [(FLOW, 50_001)]


@pytest.mark.parametrize(
    ("given", "now_ns", "records", "outcome"),
    [
        (decision(flow_id="h1/b/qp:eth1:9:1"), 0, None, "NO_FLOW"),
        (decision(), S, None, "EXPIRED"),
        (decision(config_version=2), 0, None, "OLD_CONFIG"),
        (decision(), 0, config(allowed_actions=["RESTORE"]), "NOT_ALLOWED"),
        (decision(), 0, config(mode="OBSERVE"), "OBSERVED"),
        (decision(), 0, config(mode="UNKNOWN"), "OBSERVED"),
        (decision(config_version=2), 0, config() | config("h1", "OBSERVE"), "OBSERVED"),
        (decision(config_version=2), 0, config(mode="OBSERVE") | config("h1", "ACT"), "APPLIED"),
        (decision(config_version=0), 0, {}, "OBSERVED"),
        (decision(to_path=666), 0, None, "FAILED"),
        (decision(action="PACE"), 0, config(allowed_actions=["PACE"]), "FAILED"),
    ],
)
def test_what_is_not_to_be_done_is_not_done_and_has_its_line(given, now_ns, records, outcome):
    flows = Flows()
    it = applier(flows, records)
    assert take(it, given, now_ns)["outcome"] == outcome
    assert bool(flows.moves) == (outcome == "APPLIED")
    again = take(it, given, now_ns)["outcome"]
    assert again == ("DUPLICATE" if outcome == "APPLIED" else outcome)


def test_older_decisions_of_a_flow_are_stale_and_so_is_a_worker_that_lost_its_shard():
    other = "h1/b/qp:eth1:2:1"
    flows = Flows(**{other: 40_000})
    it = applier(flows)
    assert take(it, decision(5, epoch=2))["outcome"] == "APPLIED"
    assert take(it, decision(4, epoch=2, to_path=50_002))["outcome"] == "STALE"
    assert take(it, decision(9, epoch=1, to_path=50_003))["outcome"] == "STALE"
    assert take(it, decision(9, epoch=1, flow_id=other))["outcome"] == "STALE", "another flow, an older epoch"
    assert take(it, decision(4, epoch=2, flow_id=other))["outcome"] == "APPLIED", (
        "another flow, its own order"
    )
    assert flows.moves == [(FLOW, 50_001), (other, 50_001)]


def test_other_hosts_decisions_and_wrong_keys():
    it = applier(Flows())
    assert take(it, decision(host="h2")) is None
    with pytest.raises(codec.BadRecord, match="expected the record"):
        it.take(b"h2", codec.encode(DECISIONS.record, decision()), 0)
    assert it.take(b"h1", None, 0) is None


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), max_size=30))
def test_in_any_order_and_however_often_the_newest_decision_stands(order):
    flows = Flows()
    it = applier(flows)
    newest, done = (-1, -1), []
    for epoch, seq in order:
        outcome = take(it, decision(seq, epoch, to_path=100 * epoch + seq))["outcome"]
        assert outcome == (
            "APPLIED" if (epoch, seq) > newest else "DUPLICATE" if (epoch, seq) == newest else "STALE"
        )
        if (epoch, seq) > newest:
            newest = (epoch, seq)
            done.append((FLOW, 100 * epoch + seq))
    assert flows.moves == done
