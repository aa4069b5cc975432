"""Records of a leaf-spine fabric, in the form in which its services publish them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from schemas import codec, topics
from tests.records import reason_record

SECOND_NS = 1_000_000_000


class FabricRecords:
    """Records of a leaf-spine fabric as its services would publish them, and a producer for them."""

    def __init__(
        self, bootstrap: str = "", hosts: int = 8, nics: int = 1, leaves: int = 4, spines: int = 4
    ) -> None:
        self.bootstrap = bootstrap
        self.now_ns = time.time_ns()
        self.spines = spines
        per_leaf = -(-hosts // leaves)
        self.nics = [f"h{h + 1}/eth{d + 1}" for h in range(hosts) for d in range(nics)]
        self.leaf_of = {
            f"h{h + 1}/eth{d + 1}": (f"leaf{h // per_leaf * nics + d + 1}", f"swp{h % per_leaf + 1}")
            for h in range(hosts)
            for d in range(nics)
        }
        self.rack_of = {f"h{h + 1}": f"r{h // per_leaf + 1}" for h in range(hosts)}
        self.first_up = per_leaf + 1
        self.leaves = sorted({leaf for leaf, _ in self.leaf_of.values()}, key=lambda leaf: int(leaf[4:]))
        self._seq: dict[str, int] = {}
        self._producer: Any = None

    def up(self, leaf: str, spine: int) -> str:
        """The link from a leaf to a spine, both counted from 1."""
        return f"{leaf}:swp{self.first_up + spine - 1}>spine{spine}:swp{leaf[4:]}"

    @staticmethod
    def back(link: str) -> str:
        near, _, far = link.partition(">")
        return f"{far}>{near}"

    @staticmethod
    def cable(link: str) -> str:
        return "<>".join(sorted(link.split(">")))

    def first(self, nic: str) -> str:
        """The link from a NIC to its leaf."""
        host, _, device = nic.partition("/")
        leaf, port = self.leaf_of[nic]
        return f"{host}:{device}>{leaf}:{port}"

    def links(self) -> list[str]:
        """Every directed link."""
        ups = [self.first(nic) for nic in self.nics]
        ups += [self.up(leaf, spine + 1) for leaf in self.leaves for spine in range(self.spines)]
        return [link for up in ups for link in (up, self.back(up))]

    def hops(self, nic: str, peer: str, spine: int) -> list[str]:
        leaf, far = self.leaf_of[nic][0], self.leaf_of[peer][0]
        middle = [] if leaf == far else [self.up(leaf, spine), self.back(self.up(far, spine))]
        return [self.first(nic), *middle, self.back(self.first(peer))]

    def nic(self, nic: str, **fields: Any) -> dict[str, Any]:
        host, _, device = nic.partition("/")
        return {
            "nic": nic,
            "host": host,
            "device": device,
            "shard": "fabric",
            "rack": self.rack_of.get(host),
            "rail": None,
            "addresses": ["10.0.0.1"],
            "probe_port": 9319,
            "simulation_pace": None,
            "clock": f"{host}/system",
            "stamp": "KERNEL",
            "speed_bps": 10**9,
            "mtu_bytes": 1500,
            "run": 1,
            "since_ns": 0,
            "announced_ns": self.now_ns,
            **fields,
        }

    def paths(self, nic: str, peer: str, ports: int = 4, **fields: Any) -> dict[str, Any]:
        """Request port k over spine k, and the answers to the peer's port k over spine k too."""
        return {
            "nic": nic,
            "peer": peer,
            "shard": "fabric",
            "run": 1,
            "traced_ns": self.now_ns,
            "paths": [
                {
                    "path": 40_000 + k,
                    "leg": leg,
                    "links": self.hops(nic, peer, k % self.spines + 1),
                    "found": "TRACED",
                    "complete": True,
                    "since_ns": self.now_ns,
                    "changes": 0,
                }
                for k in range(ports)
                for leg in ("REQUEST", "ANSWER")
            ],
            **fields,
        }

    def health(self, link: str, state: str, **fields: Any) -> dict[str, Any]:
        subject = self.cable(link)
        self._seq[subject] = self._seq.get(subject, 0) + 1
        return {
            "subject": subject,
            "kind": "LINK",
            "shard": "fabric",
            "seq": self._seq[subject],
            "state": state,
            "before": "UP",
            "links": [link, self.back(link)],
            "since_ns": self.now_ns,
            "evaluated_ns": self.now_ns,
            "flaps_hour": 0,
            "flaps_total": 0,
            "detected_by": "PROBES",
            "paths_dead": 4,
            "paths_living": 0,
            "probers": 2,
            "text": f"{link} is {state}",
            **fields,
        }

    def queues(
        self, depths: Mapping[str, Mapping[str, Any]], at_ns: int | None = None, **fields: Any
    ) -> dict[str, Any]:
        at_ns = self.now_ns if at_ns is None else at_ns
        window = at_ns // SECOND_NS
        return {
            "shard": "fabric",
            "window": window,
            "part": 0,
            "parts": 1,
            "window_start_ns": window * SECOND_NS,
            "slot_ns": SECOND_NS,
            "slots": 1,
            "synced": True,
            "paths": 100,
            "solved_ns": at_ns,
            "links": [
                {
                    "link": link,
                    "rate_bps": 10**9,
                    "depth_mean_bytes": 0.0,
                    "depth_max_bytes": 0.0,
                    "bound_bytes": 1500.0,
                    "utilisation": 0.05,
                    "utilisation_bound": 0.01,
                    "from_flows": False,
                    "samples": 1000,
                    "group": 0,
                    "slot": [],
                    "depth_bytes": [],
                    **figures,
                }
                for link, figures in depths.items()
            ],
            **fields,
        }

    def flow(self, number: int, nic: str, peer: str, spine: int = 1, **fields: Any) -> dict[str, Any]:
        return {
            "flow_id": f"{nic.split('/')[0]}/boot/sock:{number}",
            "state": "OPEN",
            "nic": nic,
            "peer": peer,
            "source_address": "10.0.0.1",
            "peer_address": "10.0.0.2",
            "source_port": 50_000 + number,
            "peer_port": 4791,
            "protocol": "ROCE",
            "links": self.hops(nic, peer, spine),
            "job": None,
            "tenant": None,
            "bytes_total": 10**9,
            "interval_ns": SECOND_NS,
            "bytes": 10**7,
            "rate_bps": 8e7,
            **fields,
        }

    def flows(self, host: str, flows: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        return {
            "host": host,
            "boot": "boot",
            "report": 1,
            "shard": "fabric",
            "system_ns": self.now_ns,
            "whole": True,
            "flows": flows,
            **fields,
        }

    def contention(self, link: str, **fields: Any) -> dict[str, Any]:
        opened = fields.pop("opened_ns", self.now_ns - 2 * SECOND_NS)
        return {
            "window_id": f"fabric/{link}/{opened}",
            "link": link,
            "shard": "fabric",
            "update": 0,
            "state": "OPENED",
            "kind": "COLLISION",
            "confidence": 0.9,
            "opened_ns": opened,
            "updated_ns": self.now_ns,
            "closed_ns": None,
            "depth_bytes": 90_000.0,
            "depth_peak_bytes": 180_000.0,
            "delay_ns": 720_000.0,
            "utilisation": 0.98,
            "over_ns": 2 * SECOND_NS,
            "over_byte_s": 150_000.0,
            "rate_bps": 10**9,
            "flows": [],
            "flows_total": 0,
            "jobs": [],
            "links": [],
            "text": f"{link}: flows collide",
            **fields,
        }

    def contending(self, number: int, nic: str, peer: str, **fields: Any) -> dict[str, Any]:
        return {
            "flow_id": f"{nic.split('/')[0]}/boot/sock:{number}",
            "job": None,
            "tenant": None,
            "nic": nic,
            "peer": peer,
            "rate_bps": 5e8,
            "share": 0.5,
            **fields,
        }

    def decision(self, seq: int, flow: Mapping[str, Any], reason: str, **fields: Any) -> dict[str, Any]:
        """The policy's `seq`th decision: that a flow moves from its port to the next one."""
        at_ns = fields.pop("at_ns", self.now_ns)
        kind = fields.pop("kind", "DOWN")
        return {
            "decision_id": f"fabric/7/{seq}",
            "shard": "fabric",
            "epoch": 7,
            "seq": seq,
            "at_ns": at_ns,
            "host": flow["flow_id"].partition("/")[0],
            "action": "REROUTE",
            "flow_id": flow["flow_id"],
            "from_path": flow["source_port"],
            "to_path": flow["source_port"] + 1,
            "rate_bps": None,
            "expires_at_ns": at_ns + SECOND_NS,
            "reason": reason_record(reason, kind),
            "config_version": 1,
            "signature": b"",
            "text": f"{flow['nic']} to {flow['peer']}: {kind} {reason}",
            **fields,
        }

    @staticmethod
    def action(decision: Mapping[str, Any], outcome: str = "APPLIED", **fields: Any) -> dict[str, Any]:
        """What an actuator made of a decision, 12 ms later."""
        same = (
            "decision_id",
            "shard",
            "epoch",
            "seq",
            "host",
            "flow_id",
            "action",
            "from_path",
            "to_path",
            "rate_bps",
            "config_version",
        )
        return {
            **{name: decision[name] for name in same},
            "outcome": outcome,
            "at_ns": decision["at_ns"] + 12_000_000,
            "took_ns": 3_000_000,
            "how": "SOCKET" if outcome == "APPLIED" else "",
            "detail": "",
            **fields,
        }

    def rounds(
        self, first: int, suppressed: list[tuple[str, str, str, str]] | None, **fields: Any
    ) -> dict[str, Any]:
        """One round of the policy; `suppressed`: (flow, action, why, reason), None: as before."""
        names = ("flow_id", "action", "cause", "reason")
        entries = (
            None
            if suppressed is None
            else [dict(zip(names, (*each[:3], reason_record(each[3])), strict=True)) for each in suppressed]
        )
        at_ns = fields.get("at_ns", self.now_ns)
        return {
            "shard": "fabric",
            "epoch": 7,
            "first_cycle": first,
            "at_ns": at_ns,
            "inputs": [],
            "flows": 20,
            "movable": 18,
            "cycles": [
                {"now_ns": at_ns, "flows_ns": at_ns, "positions": [], "decisions": 0, "suppressed": entries}
            ],
            **fields,
        }

    def config(self, version: int = 1, host: str = "*", **fields: Any) -> dict[str, Any]:
        return {
            "host": host,
            "version": version,
            "at_ns": self.now_ns,
            "by": "ann@ops",
            "mode": "ACT",
            **fields,
        }

    def alert(self, subject: str, text: str, **fields: Any) -> dict[str, Any]:
        kind = fields.get("kind", "LINK_DOWN")
        raised = fields.pop("raised_ns", self.now_ns)
        return {
            "alert_id": f"{kind}:{subject}:{raised}",
            "subject": subject,
            "kind": kind,
            "state": "RAISED",
            "severity": "CRITICAL",
            "shard": "fabric",
            "update": 0,
            "raised_ns": raised,
            "updated_ns": self.now_ns,
            "cleared_ns": None,
            "text": text,
            "links": [],
            "nics": [],
            "jobs": [],
            "grouped": [],
            "evidence": [],
            **fields,
        }

    def fleet(self, peers: int = 0) -> list[tuple[str, str, dict[str, Any]]]:
        """(topic, key, record) of the inventory, and of the paths to that many next peers (0: to all)."""
        made = [("fabric.inventory", nic, self.nic(nic)) for nic in self.nics]
        count = len(self.nics)
        for i, nic in enumerate(self.nics):
            for k in range(1, (peers or count - 1) + 1):
                peer = self.nics[(i + k * (1 if not peers else 37)) % count]
                if peer != nic:
                    made.append(("fabric.paths", f"{nic}>{peer}", self.paths(nic, peer)))
        return made

    def publish(self, *records: tuple[str, str, dict[str, Any] | None]) -> None:
        """Publish (topic, key, record) and wait until the log has them; None: a tombstone."""
        from confluent_kafka import Producer

        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "partitioner": "murmur2_random",
                    "linger.ms": 0,
                    "log_level": 0,
                    "queue.buffering.max.messages": 1_000_000,
                }
            )
        for topic, key, record in records:
            value = None if record is None else codec.encode(topics.TOPICS[topic].record, record)
            self._producer.produce(topic, value, key)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0
