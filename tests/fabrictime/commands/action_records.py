"""Records of decisions and their flows, and a log that gets them."""

import time

from confluent_kafka import Producer
from typer.testing import CliRunner

from fabrictime.commands.cli import app
from schemas import codec
from schemas.topics import FLOWS
from tests.fabrictime.fabric_records import FabricRecords
from tests.records import reason_record

S = 1_000_000_000
ROUTE_BY_SPINE = {
    spine: (
        "h1:eth0>leaf1:swp1",
        f"leaf1:swp{2 + spine}>spine{spine}:swp1",
        f"spine{spine}:swp2>leaf2:swp{2 + spine}",
        "leaf2:swp1>h5:eth0",
    )
    for spine in (1, 2, 3)
}
CABLE = "leaf1:swp3<>spine1:swp1"


def produce(log, *messages):
    """Publish (topic, key, record)."""
    producer = Producer({"bootstrap.servers": log, "partitioner": "murmur2_random", "log_level": 0})
    for topic, key, record in messages:
        producer.produce(topic.name, codec.encode(topic.record, record), key)
    assert producer.flush(10) == 0


def fabrictime(log, *arguments):
    return CliRunner().invoke(app, [*arguments, "--log", log])


def decision(seq, flow_id, at_ns, kind="DOWN", reason=f"{CABLE}/4", **more):
    return {
        "decision_id": f"fabric/9/{seq}",
        "shard": "fabric",
        "epoch": 9,
        "seq": seq,
        "at_ns": at_ns,
        "host": flow_id.partition("/")[0],
        "action": "REROUTE",
        "flow_id": flow_id,
        "from_path": 50_001,
        "to_path": 50_002,
        "rate_bps": None,
        "expires_at_ns": at_ns + S,
        "reason": reason_record(reason, kind),
        "config_version": 1,
        "signature": b"",
        "text": "fragment",
        **more,
    }


def action(made, outcome, **more):
    times = {"at_ns": made["at_ns"] + 9_000_000, "took_ns": 2_000_000}
    return FabricRecords.action(made, outcome, **times | more)


def rounds(epoch, suppressed, first=0):
    names = ("flow_id", "action", "cause", "reason")
    now = time.time_ns()
    listed = (
        None
        if suppressed is None
        else [dict(zip(names, (*each[:3], reason_record(each[3])), strict=True)) for each in suppressed]
    )
    return {
        "shard": "fabric",
        "epoch": epoch,
        "first_cycle": first,
        "at_ns": now,
        "inputs": [],
        "flows": 40,
        "movable": 40,
        "cycles": [{"now_ns": now, "flows_ns": now, "positions": [], "decisions": 0, "suppressed": listed}],
    }


def config(version=1, **more):
    return {"host": "*", "version": version, "at_ns": time.time_ns(), "by": "ann@ops", "mode": "ACT", **more}


def flow(number, port, rate_bps, rtt_ns, hops, **more):
    return {
        "flow_id": f"h1/boot/sock:{number}",
        "state": "OPEN",
        "nic": "h1/eth0",
        "peer": "h5/eth0",
        "source_address": "10.0.0.1",
        "peer_address": "10.0.0.5",
        "source_port": port,
        "peer_port": 5001,
        "protocol": "TCP",
        "links": list(hops),
        "job": "llm",
        "tenant": None,
        "bytes_total": 10**9,
        "interval_ns": 10_000_000,
        "bytes": 10**6,
        "rate_bps": rate_bps,
        "rtt_ns": rtt_ns,
        "can": ["MOVE"],
        **more,
    }


def reports(number, *flows):
    return (
        FLOWS,
        "h1",
        {
            "host": "h1",
            "boot": "boot",
            "report": number,
            "shard": "fabric",
            "system_ns": time.time_ns(),
            "whole": True,
            "flows": list(flows),
        },
    )
