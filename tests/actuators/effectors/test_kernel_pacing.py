"""Kernel pacing of flows without endpoints: the actuator process, a real log, a host of a testbed fabric."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyroute2 import IPRoute

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.jobs.traffic import FlowSpec
from fabrictime.testbed.settings import FabricSettings
from schemas import codec
from schemas.topics import ACTIONS, CONFIG, DECISIONS, FLOWS

LINE = 40_000_000
PACE = 8_000_000
S = 1_000_000_000
KEY = "sock:7"
SHAPE: dict[str, Any] = {"hosts": 2, "leaves": 2, "spines": 1, "fabric_rate_bps": 0}


def at_nic(testbed: Testbed) -> list[tuple[str, int]]:
    """Kind and handle of all qdiscs at h1's NIC, in the kernel's order."""

    def read_qdiscs() -> list[tuple[str, int]]:
        with IPRoute() as ip:
            index = ip.link_lookup(ifname="eth1")[0]
            return [
                (found.get_attr("TCA_KIND"), found["handle"])
                for found in (*ip.get_qdiscs(index=index), *ip.get_classes(index=index))
            ]

    return testbed.fabric.open_in("h1", read_qdiscs)


class Control:
    """The reports of the actuator, and the records for it."""

    def __init__(self, log: Any, testbed: Testbed) -> None:
        self.log, self.testbed = log, testbed
        self.flow: dict[str, Any] = {}
        self._seq = itertools.count()
        self._consumer = Consumer({"bootstrap.servers": log.bootstrap, "group.id": "t", "log_level": 0})
        parts = self._consumer.list_topics(ACTIONS.name, timeout=10).topics[ACTIONS.name].partitions
        self._consumer.assign([TopicPartition(ACTIONS.name, part, 0) for part in parts])
        self.reports: list[dict[str, Any]] = []

    def flows(self, sport: int, dport: int, *, gone: bool = False) -> None:
        nic, peer = (self.testbed.fabric.nic(host) for host in ("h1", "h2"))
        flow = {
            "flow_id": f"h1/b/{KEY}",
            "state": "CLOSED" if gone else "OPEN",
            "nic": nic.nic,
            "peer": peer.nic,
            "source_address": nic.address,
            "peer_address": peer.address,
            "source_port": sport,
            "peer_port": dport,
            "protocol": "TCP",
            "links": [],
            "job": None,
            "tenant": None,
            "bytes_total": 0,
            "interval_ns": S,
            "bytes": 0,
            "rate_bps": 0.0,
            "rtt_ns": None,
            "retransmits": 0,
            "busy_share": None,
            "receiver_limited_share": None,
            "sender_limited_share": None,
            "rate_limit_bps": None,
            "can": ["PACE"],
        }
        self.log.put(
            FLOWS.name,
            "h1",
            {
                "host": "h1",
                "boot": "b",
                "report": next(self._seq),
                "shard": "s0",
                "system_ns": time.time_ns(),
                "whole": True,
                "flows": [flow],
            },
        )

    def decide(self, action: str, rate_bps: int | None, lasts_s: float = 60.0) -> dict[str, Any]:
        """Publish a decision and return its report."""
        seq, now_ns = next(self._seq), time.time_ns()
        self.log.put(
            DECISIONS.name,
            "h1",
            {
                "decision_id": f"s0/1/{seq}",
                "shard": "s0",
                "epoch": 1,
                "seq": seq,
                "at_ns": now_ns,
                "host": "h1",
                "action": action,
                "flow_id": f"h1/b/{KEY}",
                "from_path": None,
                "to_path": None,
                "rate_bps": rate_bps,
                "expires_at_ns": now_ns + round(lasts_s * S),
                "reason": {"kind": "INCAST", "subject": "", "seq": None, "window_id": "w"},
                "config_version": 1,
                "signature": b"",
                "text": "",
            },
        )
        return self.report(lambda report: report["seq"] == seq)

    def report(self, which: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end_s = time.monotonic() + 20
        while not (found := [report for report in self.reports if which(report)]):
            assert time.monotonic() < end_s, self.reports
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    self.reports.append(codec.decode(message.value(), ACTIONS.record))
        return found[0]

    def paced(self, sport: int, dport: int, rate_bps: int = PACE) -> dict[str, Any]:
        """Report the flow and pace it, once the actuator knows it."""
        end_s = time.monotonic() + 20
        while True:
            self.flows(sport, dport)
            found = self.decide("PACE", rate_bps)
            if found["outcome"] != "NO_FLOW":
                return found
            assert time.monotonic() < end_s

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def running(log: Any, start_act: Any, **settings: Any) -> Iterator[tuple[Testbed, Any, Control]]:
    """A fabric and the actuator of its first host, with a NIC that the kernel may pace."""
    with Testbed(FabricSettings(**{**SHAPE, **settings})) as testbed:
        log.put(
            CONFIG.name,
            "*",
            {
                "host": "*",
                "version": 1,
                "at_ns": 0,
                "by": "t",
                "mode": "ACT",
                "allowed_actions": ["PACE", "UNPACE"],
            },
        )
        act = start_act(
            "h1",
            netns=testbed.fabric.netns("h1"),
            kernel_nics={"eth1": LINE},
            settle_ms=500,
            local_repair_ms=None,
        )
        control = Control(log, testbed)
        try:
            yield testbed, act, control
        finally:
            control.close()
            act.end(signal.SIGKILL)


def test_a_flow_without_endpoint_is_paced_adopted_after_a_crash_and_released(
    inside, log, start_act, wait_for
) -> None:
    def body() -> tuple[float, float, dict[str, Any]]:
        with running(log, start_act, host_rate_bps=0) as (testbed, act, control):
            before = at_nic(testbed)
            spec = FlowSpec("h1", "h2", 0, 30.0, "tcp", 5000, 6000)
            flow = testbed.traffic.start(spec)
            paced = control.paced(5000, 6000)
            link = next(link for link in testbed.fabric.links if link.startswith("h1:eth1>"))

            def sent() -> tuple[int, float]:
                return testbed.truth.links()[link].sent_bytes, time.monotonic()

            def sent_bps() -> float:
                """Over bytes of two seconds, after a burst that was waiting."""
                first = sent()[0]
                wait_for(lambda: sent()[0] - first > PACE / 16)
                begin, begin_s = sent()
                end, end_s = wait_for(lambda: now if (now := sent())[0] - begin > PACE / 4 else None)
                return (end - begin) * 8 / (end_s - begin_s)

            paced_bps = sent_bps()
            applied = at_nic(testbed)
            assert ("htb", 0x7F74_0000) in applied

            act.end(signal.SIGKILL)
            assert at_nic(testbed) == applied, "nobody has let go of it"
            act.start()

            def known_again() -> bool:
                control.flows(5000, 6000)
                return control.decide("PACE", 2 * PACE)["outcome"] == "APPLIED"

            wait_for(known_again)
            again_bps = sent_bps()
            assert control.decide("UNPACE", None)["outcome"] == "APPLIED"
            assert at_nic(testbed) == before
            assert control.decide("PACE", PACE)["outcome"] == "APPLIED"
            code, text = act.end()
            assert code == 0, text
            assert control.report(lambda report: report["outcome"] == "REVERTED")["how"] == "HTB"
            assert at_nic(testbed) == before
            flow.stop()
            return paced_bps, again_bps, paced

    paced_bps, again_bps, paced = inside(body)
    assert (paced["outcome"], paced["how"], paced["rate_bps"]) == ("APPLIED", "HTB", PACE)
    assert paced_bps == pytest.approx(PACE, rel=0.1)
    assert again_bps == pytest.approx(2 * PACE, rel=0.1)


def test_leftovers_of_a_crash_are_removed_once_no_lease_is_in_force(inside, log, start_act, wait_for) -> None:
    def body() -> None:
        with running(log, start_act, host_rate_bps=0) as (testbed, act, control):
            before = at_nic(testbed)
            assert control.paced(5000, 6000)["outcome"] == "APPLIED"
            act.end(signal.SIGKILL)
            act.control.with_name("journal.jsonl").unlink()
            assert at_nic(testbed) != before
            act.start()
            wait_for(lambda: at_nic(testbed) == before)
            act.end()

    inside(body)


def test_an_ended_flow_leaves_no_class(inside, log, start_act, wait_for) -> None:
    def body() -> None:
        with running(log, start_act, host_rate_bps=0) as (testbed, act, control):
            before = at_nic(testbed)
            assert control.paced(5000, 6000)["outcome"] == "APPLIED"
            control.flows(5000, 6000, gone=True)
            wait_for(lambda: at_nic(testbed) == before)
            act.end()

    inside(body)


def test_a_nic_with_a_foreign_qdisc_stays_untouched_and_is_reported(inside, log, start_act) -> None:
    def body() -> dict[str, Any]:
        with running(log, start_act, host_rate_bps=LINE) as (testbed, act, control):
            before = at_nic(testbed)
            report = control.paced(5000, 6000)
            act.end()
            assert at_nic(testbed) == before
            return report

    report = inside(body)
    assert report["outcome"] == "FAILED"
    assert report["detail"] == "NIC eth1: its root is tbf, expected one of the kernel's own"
