"""`actions` and `explain` on a real log: decisions, outcomes, and the story of one flow."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fabrictime.commands.cli import app
from fabrictime.commands.explain import find
from schemas import codec
from schemas.topics import (
    ACTIONS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FALLBACKS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    POLICY_CYCLES,
    QUEUES,
)
from tests.records import reason_record

ROOT = Path(__file__).resolve().parents[3]
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
        **{name: made[name] for name in same},
        "outcome": outcome,
        "at_ns": made["at_ns"] + 9_000_000,
        "took_ns": 2_000_000,
        "how": "SOCKET" if outcome == "APPLIED" else "",
        "detail": "",
        **more,
    }


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


@pytest.fixture
def until():
    def wait(ns):
        while time.time_ns() < ns:
            time.sleep(0.005)

    return wait


def test_actions_lists_decisions_outcomes_and_suppressed_actions(log):
    empty = fabrictime(log, "actions")
    assert empty.exit_code == 0, empty.stderr
    assert "; the default" in empty.stdout
    assert "nothing was decided" in empty.stdout
    assert "the policy has not published its suppressed actions" in empty.stdout
    now = time.time_ns()
    first = decision(1, "h1/b/sock:1", now - 3 * S)
    second = decision(2, "h2/b/sock:2", now - 2 * S, "COLLISION", "fabric/leaf1:swp3>spine1:swp1/77")
    third = decision(3, "h3/b/sock:3", now - 4 * S)
    repair = action(decision(0, "h4/b/sock:4", now - S, decision_id="h4/reflex/1"), "LOCAL_REPAIR", epoch=0)
    produce(
        log,
        (CONFIG, "*", config()),
        (DECISIONS, "h1", first),
        (DECISIONS, "h2", second),
        (DECISIONS, "h3", third),
        (ACTIONS, "h1", action(first, "APPLIED")),
        (ACTIONS, "h1", action(first, "DUPLICATE")),
        (ACTIONS, "h2", action(second, "FAILED", detail="no such socket")),
        (ACTIONS, "h4", repair),
        (POLICY_CYCLES, "fabric", rounds(9, [("h1/b/sock:1", "RESTORE", "NO_BETTER_PATH", f"{CABLE}/5")])),
    )
    found = json.loads(fabrictime(log, "actions", "--json").stdout)
    assert found["mode"]["act"] is True
    assert found["mode"]["by"] == "ann@ops"
    assert [(d["flow_id"], d["outcome"]) for d in found["decisions"]] == [
        ("h4/b/sock:4", "LOCAL_REPAIR"),
        ("h2/b/sock:2", "FAILED"),
        ("h1/b/sock:1", "APPLIED"),
        ("h3/b/sock:3", "UNANSWERED"),
    ]
    assert found["decisions"][2]["outcomes"] == ["APPLIED", "DUPLICATE"]
    assert [(h["cause"], h["reason_text"]) for h in found["suppressed"]] == [
        ("NO_BETTER_PATH", "leaf1:swp3 ⇄ spine1:swp1 has recovered")
    ]
    moved = next(each for each in found["limits"] if each["limit"].startswith("flows"))
    assert (moved["used"], moved["max"]) == (4, 20)
    text = fabrictime(log, "actions").stdout
    for fragment in (
        "ACT: decisions are carried out",
        "1 APPLIED, 1 LOCAL_REPAIR, 1 FAILED, 1 UNANSWERED",
        "port 50001 → 50002",
        "flows collide at leaf1:swp3 → spine1:swp1 (no such socket)",
        "1 held back",
        "no other path is better",
    ):
        assert fragment in text
    assert "sock:2" not in fabrictime(log, "actions", "sock:1").stdout
    suppressed = json.loads(fabrictime(log, "actions", "--suppressed", "--json").stdout)
    assert "decisions" not in suppressed
    assert (
        "within"
        not in fabrictime(log, "actions", "--suppressed").stdout.partition("\n")[2].partition("\n")[2]
    )
    assert fabrictime(log, "actions", "--since", "soon").exit_code == 2


def test_watch_prints_one_line_for_each_event(log):
    child = subprocess.Popen(
        [sys.executable, "-m", "fabrictime", "actions", "sock:71", "--watch", "--log", log],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        made = decision(71, "h7/b/sock:71", time.time_ns(), expires_at_ns=time.time_ns() + 60 * S)
        produce(log, (DECISIONS, "h7", made))
        assert child.stdout is not None
        line = child.stdout.readline()
        assert "WAITING h7/b/sock:71: move, port 50001 → 50002; leaf1:swp3 ⇄ spine1:swp1 is down" in line
        produce(
            log,
            (ACTIONS, "h7", action(made, "APPLIED")),
            (POLICY_CYCLES, "fabric", rounds(10, [("h7/b/sock:71", "REROUTE", "COOL_DOWN", f"{CABLE}/6")])),
        )
        assert "APPLIED h7/b/sock:71" in child.stdout.readline()
        assert "HELD h7/b/sock:71: move; the flow moved recently" in child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.communicate()


def test_explain_shows_links_other_paths_decisions_effect_and_suppressed_actions(log, until):
    flow_id = "h1/boot/sock:17"
    other = flow(18, 50_003, 1e6, None, ROUTE_BY_SPINE[3], can=[])
    produce(log, reports(1, flow(17, 50_001, 2e7, 900_000, ROUTE_BY_SPINE[1]), other))
    now = time.time_ns()
    made = decision(17, flow_id, now)
    done = action(made, "APPLIED")
    until(done["at_ns"] + 12_000_000)
    nics = [
        (
            INVENTORY,
            nic,
            {
                "nic": nic,
                "host": nic[:2],
                "device": "eth0",
                "shard": "fabric",
                "rack": None,
                "rail": None,
                "addresses": [],
                "probe_port": 9319,
                "clock": f"{nic[:2]}/system",
                "stamp": "KERNEL",
                "speed_bps": 10**9,
                "mtu_bytes": 1500,
                "run": 1,
                "since_ns": 0,
                "announced_ns": now,
            },
        )
        for nic in ("h1/eth0", "h5/eth0")
    ]
    flow_routes = {
        "nic": "h1/eth0",
        "peer": "h5/eth0",
        "shard": "fabric",
        "traced_ns": now,
        "routes": [
            {
                "leg": "DATA",
                "path": 50_000 + spine,
                "peer_port": 5001,
                "links": list(ROUTE_BY_SPINE[spine]),
                "complete": True,
                "since_ns": now,
            }
            for spine in ROUTE_BY_SPINE
        ],
    }
    health = {
        "subject": CABLE,
        "kind": "LINK",
        "shard": "fabric",
        "seq": 4,
        "state": "DOWN",
        "before": "UP",
        "links": [ROUTE_BY_SPINE[1][1], ">".join(reversed(ROUTE_BY_SPINE[1][1].split(">")))],
        "since_ns": now,
        "evaluated_ns": now,
        "flaps_hour": 1,
        "flaps_total": 1,
        "detected_by": "PROBES",
        "text": "leaf1 to spine1 is DOWN",
    }
    queue = {
        "link": ROUTE_BY_SPINE[2][1],
        "rate_bps": 10**9,
        "depth_mean_bytes": 60_000.0,
        "depth_max_bytes": 9e4,
        "bound_bytes": 1500.0,
        "utilisation": 0.71,
        "utilisation_bound": 0.01,
        "from_flows": False,
        "samples": 1000,
        "group": 0,
        "slot": [],
        "depth_bytes": [],
    }
    queues = {
        "shard": "fabric",
        "window": now // S,
        "part": 0,
        "parts": 1,
        "window_start_ns": now // S * S,
        "slot_ns": S,
        "slots": 1,
        "synced": True,
        "paths": 9,
        "solved_ns": now,
        "links": [queue],
    }
    window = {
        "window_id": f"fabric/{ROUTE_BY_SPINE[2][1]}/5",
        "link": ROUTE_BY_SPINE[2][1],
        "shard": "fabric",
        "update": 0,
        "state": "OPENED",
        "kind": "COLLISION",
        "confidence": 0.9,
        "opened_ns": now,
        "updated_ns": now,
        "closed_ns": None,
        "depth_bytes": 9e4,
        "depth_peak_bytes": 9e4,
        "delay_ns": 7e5,
        "utilisation": None,
        "over_ns": S,
        "over_byte_s": 1.0,
        "rate_bps": 10**9,
        "flows_total": 2,
        "text": "2 flows collide",
    }
    fallbacks = {
        "host": "h1",
        "shard": "fabric",
        "epoch": 9,
        "seq": 0,
        "at_ns": now,
        "config_version": 1,
        "flows": [{"flow_id": flow_id, "path": 50_002, "other_paths": [50_003, 50_001]}],
    }
    produce(
        log,
        reports(2, flow(17, 50_002, 6.4e8, 80_000, ROUTE_BY_SPINE[2]), other),
        *nics,
        (FLOW_ROUTES, "h1/eth0>h5/eth0", flow_routes),
        (LINK_HEALTH, CABLE, health),
        (QUEUES, "fabric", queues),
        (CONTENTION, ROUTE_BY_SPINE[2][1], window),
        (FALLBACKS, "h1", fallbacks),
        (DECISIONS, "h1", made),
        (ACTIONS, "h1", done),
        (POLICY_CYCLES, "fabric", rounds(11, [(flow_id, "RESTORE", "NO_BETTER_PATH", f"{CABLE}/5")])),
    )
    explained = fabrictime(log, "explain", flow_id, "--json")
    assert explained.exit_code == 0, explained.stderr
    story = json.loads(explained.stdout)
    assert [each["link"] for each in story["takes"]] == list(ROUTE_BY_SPINE[2])
    up = story["takes"][1]
    assert (up["depth_bytes"], up["contention"]) == (60_000.0, ["2 flows collide"])
    assert up["utilisation"] == pytest.approx(0.71)
    assert [
        (other_path["rank"], other_path["ports"], other_path["state"]) for other_path in story["could_take"]
    ] == [
        (1, [50_003], "UNKNOWN"),
        (2, [50_001], "DOWN"),
    ]
    [listed] = story["decisions"]
    effect = listed["effect"]
    assert (effect["before_bps"], effect["after_bps"]) == (2e7, 6.4e8)
    assert (effect["before_rtt_ns"], effect["after_rtt_ns"]) == (900_000, 80_000)
    assert effect["taken"] == list(ROUTE_BY_SPINE[2][1:3])
    assert [each["cause"] for each in story["suppressed"]] == ["NO_BETTER_PATH"]
    for name in ("sock:17", "10.0.0.1:50002", "h1:50002", ":50002"):
        text = fabrictime(log, "explain", name)
        assert text.exit_code == 0, text.stderr
    for fragment in (
        "h1/eth0 → h5/eth0, TCP 10.0.0.1:50002 → 10.0.0.5:5001, job llm",
        "its owner lets it be moved",
        "60.0 kB, 480 µs",
        "71%",
        "2 flows collide",
        "leaf1 to spine1 is DOWN",
        "1 APPLIED for it",
        "20.0 Mbit/s → 640 Mbit/s",
        "900 µs → 80.0 µs",
        "held back: move back, since",
        "no other path is better",
    ):
        assert fragment in text.stdout
    plain = fabrictime(log, "explain", "sock:18").stdout
    assert "its owner lets nothing be done to it" in plain
    assert "nothing was decided for it" in plain


def test_explain_names_unknown_facts(log):
    unknown = fabrictime(log, "explain", "sock:99999")
    assert unknown.exit_code == 2
    assert "no such flow among" in unknown.stderr
    flows = {f"h1/b/sock:{n}": {"source_port": 1, "source_address": "x", "nic": "n"} for n in range(9)}
    with pytest.raises(ValueError, match=r"it names 9: h1/b/sock:0, .* and 4 more"):
        find("h1", flows)
    assert find("sock:8", flows) == "h1/b/sock:8"
    assert find("h1/b/sock:77", flows, ["h1/b/sock:77"]) == "h1/b/sock:77"
