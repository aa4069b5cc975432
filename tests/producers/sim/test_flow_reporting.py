"""Flow reporting: counters add up and decisions are obeyed."""

from __future__ import annotations

import pytest

from producers.sim.simulation import Simulation
from schemas.topics import FLOWS
from tests.producers.sim.small_simulation import by_topic, settings


def test_flow_reports_add_up_and_decisions_are_obeyed():
    run = Simulation(settings(load=0.2, flow_s=1000))
    found = by_topic(run, 2)
    whole = [out.record() for out in found[FLOWS] if out.record()["whole"]]
    rows = [row for record in whole for row in record["flows"] if row["interval_ns"] >= 990_000_000]
    assert rows
    assert all(
        row["rate_bps"] == pytest.approx(4e10, rel=1e-3) for row in rows
    )  # 0.2 of 400 Gbit/s in two flows
    one, other = run.flows()[:2]
    run.set_flow_rate(one.flow_id, 1e9)
    before = list(other.hops)
    run.set_flow_path(
        other.flow_id,
        next(
            port
            for port in range(50_000, 60_000)
            if run.fleet.paths(other.source, other.destination, port, 4791).of(0).tolist()
            != other.links.tolist()
        ),
    )
    by_topic(run, 1)
    rows = {row["flow_id"]: row for out in by_topic(run, 1)[FLOWS] for row in out.record()["flows"]}
    assert rows[one.flow_id]["rate_bps"] == pytest.approx(1e9, rel=1e-3)
    assert rows[one.flow_id]["rate_limit_bps"] == 10**9
    assert rows[other.flow_id]["links"] != before
    with pytest.raises(ValueError, match="no such open flow"):
        run.set_flow_rate("h1/x/qp:eth1:1:1", 1e9)
