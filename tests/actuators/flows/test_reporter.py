"""Reporter: action reports with the state at the time of the report."""

from __future__ import annotations

from typing import Any

from actuators.flows.reporter import MAX_DETAIL, Attempt, Reporter
from actuators.flows.state import FlowState, Lease
from schemas import codec
from tests.records import make

DECISION = {
    "decision_id": "d",
    "shard": "s0",
    "epoch": 1,
    "seq": 2,
    "flow_id": "h1/b/sock:1",
    "action": "PACE",
}


def make_reporter(published: list[Any]) -> Reporter:
    return Reporter(
        "h1", lambda *item: published.append(item), {DECISION["flow_id"]: 7}.get, lambda: 1000, lambda: 60
    )


def test_a_report_repeats_its_decision_and_shows_the_present_path_and_rate() -> None:
    flow = FlowState("h1/b/sock:1")
    flow.set_lease("PACE", Lease(500, 9, 1, {}))
    published: list[Any] = []
    reporter = make_reporter(published)
    reporter.config_version = 3
    reporter.report(Attempt(DECISION, 5, "token", began_ns=50), "APPLIED", "x" * 999, flow, "HTB")
    [(record, token)] = published
    assert token == "token"
    assert DECISION.items() <= record.items()
    assert (record["from_path"], record["to_path"], record["rate_bps"]) == (5, 7, 500)
    assert (record["took_ns"], record["at_ns"], record["config_version"]) == (10, 1000, 3)
    assert len(record["detail"]) == MAX_DETAIL
    codec.encode("ActionReport", {**make("ActionReport"), **record})


def test_an_attempt_without_a_command_took_no_time() -> None:
    record = make_reporter([]).record(Attempt(DECISION, None), "STALE")
    assert (record["took_ns"], record["rate_bps"], record["from_path"]) == (0, None, None)


def test_a_report_of_a_former_process_gets_the_present_time() -> None:
    published: list[Any] = []
    make_reporter(published).republish({"decision_id": "d", "at_ns": 1})
    assert published == [({"decision_id": "d", "at_ns": 1000}, None)]
