"""Flow reports of the testbed's traffic: endpoints, job and rate."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fabrictime.runtime.fleet import fabric_nics
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings

SMALL = FabricSettings(hosts=4, leaves=2, spines=2, host_rate_bps=200_000_000, fabric_rate_bps=100_000_000)
RATE = 20_000_000


def test_flows_are_reported_with_their_job_and_within_a_tenth_of_their_rate(inside):
    def body() -> Any:
        from producers.flows.service import AddressTable, FlowReporter
        from producers.settings import FlowSettings

        with TemporaryDirectory() as directory:
            sockets = Path(directory) / "flows.sock"
            with Testbed(SMALL, registrations=sockets) as testbed:
                addresses = AddressTable()
                for nic in testbed.fabric.nics():
                    addresses.update(nic.nic, {"addresses": [nic.address]}, 0)
                reporter = FlowReporter(FlowSettings(socket=sockets), fabric_nics(testbed.fabric), addresses)
                start = testbed.traffic.start
                flows = [
                    start(FlowSpec("h1", "h3", RATE, 60.0, "udp", job="train", tenant="blue")),
                    start(FlowSpec("h2", "h4", RATE, 60.0, "tcp", congestion="reno", job="serve")),
                ]
                reported: dict[str, list[dict[str, Any]]] = {}

                def poll(whole: bool) -> None:
                    reporter.read()
                    for record in reporter.report(whole):
                        for flow in record["flows"]:
                            reported.setdefault(flow["flow_id"], []).append(flow | {"host": record["host"]})

                def enough() -> bool:
                    ours = [each for each in reported.values() if each[-1]["job"] is not None]
                    return len(ours) == 2 and all(
                        sum(flow["interval_ns"] for flow in each) > 2_000_000_000 for each in ours
                    )

                end = time.monotonic() + 30
                while not enough():
                    assert time.monotonic() < end
                    reporter.registrations.serve(time.monotonic() + 0.1)
                    poll(True)
                ports = [(flow.sport, flow.dport) for flow in flows]
                results = [flow.stop() for flow in flows]
                while not all(each[-1]["state"] == "CLOSED" for each in reported.values() if each[-1]["job"]):
                    assert time.monotonic() < end
                    reporter.registrations.serve(time.monotonic() + 0.1)
                    poll(False)
                reporter.close()
                return reported, ports, [(result.sent_bytes, result.elapsed_s) for result in results]

    reported, ports, results = inside(body)
    by_job = {each[-1]["job"]: each for each in reported.values() if each[-1]["job"]}
    for job, protocol, ends, port, (sent_bytes, elapsed_s) in (
        ("train", "UDP", ("h1/eth1", "h3/eth1"), ports[0], results[0]),
        ("serve", "TCP", ("h2/eth1", "h4/eth1"), ports[1], results[1]),
    ):
        reports = by_job[job]
        last = reports[-1]
        assert (last["protocol"], last["nic"], last["peer"], last["host"]) == (protocol, *ends, ends[0][:2])
        assert (last["source_port"], last["peer_port"]) == port
        frames = sent_bytes * 1514 / 1472
        assert last["bytes_total"] == pytest.approx(frames, rel=0.1)
        took_ns = sum(flow["interval_ns"] for flow in reports)
        rate_bps = sum(flow["bytes"] for flow in reports) * 8e9 / took_ns
        assert rate_bps == pytest.approx(frames * 8 / elapsed_s, rel=0.1)
        assert rate_bps < 1.1 * RATE
        for flow in reports:
            assert flow["rate_bps"] * flow["interval_ns"] == pytest.approx(flow["bytes"] * 8e9)
    assert {flow["tenant"] for flow in by_job["train"]} == {"blue"}
    assert all(flow["retransmits"] is not None for flow in by_job["serve"])
    backwards = [each[-1] for each in reported.values() if each[-1]["nic"] == "h4/eth1"]
    assert all(flow["rate_bps"] < 0.1 * RATE for flow in backwards), "acknowledgements alone"
