"""`explain` on a real log: the links, other paths, decisions and suppressed actions of one flow."""

import itertools
import json
import time

import pytest

from fabrictime.commands.views.explain import find
from schemas.input_error import InputError
from schemas.topics import (
    ACTIONS,
    CONTENTION,
    DECISIONS,
    FALLBACKS,
    FLOW_ROUTES,
    INVENTORY,
    LINK_HEALTH,
    POLICY_CYCLES,
    QUEUES,
)
from tests.fabrictime.commands.action_records import (
    CABLE,
    ROUTE_BY_SPINE,
    S,
    action,
    decision,
    fabrictime,
    flow,
    produce,
    reports,
    rounds,
)


@pytest.fixture
def until():
    def wait(ns):
        while time.time_ns() < ns:
            time.sleep(0.005)

    return wait


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
    numbers = itertools.count(2)

    def explain(*arguments):
        """Publish what ages before each command: on a busy machine a command takes long."""
        at_ns = time.time_ns()
        fresh = {"window": at_ns // S, "window_start_ns": at_ns // S * S, "solved_ns": at_ns}
        produce(
            log,
            reports(next(numbers), flow(17, 50_002, 6.4e8, 80_000, ROUTE_BY_SPINE[2]), other),
            (QUEUES, "fabric", queues | fresh),
            (CONTENTION, ROUTE_BY_SPINE[2][1], window | {"updated_ns": at_ns}),
        )
        return fabrictime(log, "explain", *arguments)

    produce(
        log,
        *nics,
        (FLOW_ROUTES, "h1/eth0>h5/eth0", flow_routes),
        (LINK_HEALTH, CABLE, health),
        (FALLBACKS, "h1", fallbacks),
        (DECISIONS, "h1", made),
        (ACTIONS, "h1", done),
        (POLICY_CYCLES, "fabric", rounds(11, [(flow_id, "RESTORE", "NO_BETTER_PATH", f"{CABLE}/5")])),
    )
    explained = explain(flow_id, "--json")
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
        text = explain(name)
        assert text.exit_code == 0, text.stderr
    for fragment in (
        "h1/eth0 → h5/eth0, TCP 10.0.0.1:50002 → 10.0.0.5:5001, job llm",
        "its endpoint allows it to be moved",
        "60.0 kB, 480 µs",
        "71%",
        "2 flows collide",
        "leaf1 to spine1 is DOWN",
        "1 APPLIED for it",
        "20.0 Mbit/s → 640 Mbit/s",
        "900 µs → 80.0 µs",
        "suppressed: move back, cause:",
        "no other path is better",
    ):
        assert fragment in text.stdout
    plain = explain("sock:18")
    assert "its endpoint allows no action" in plain.stdout, plain.stderr
    assert "nothing was decided for it" in plain.stdout


def test_explain_names_unknown_facts(log):
    unknown = fabrictime(log, "explain", "sock:99999")
    assert unknown.exit_code == 2
    assert "no such flow among" in unknown.stderr
    flows = {f"h1/b/sock:{n}": {"source_port": 1, "source_address": "x", "nic": "n"} for n in range(9)}
    with pytest.raises(InputError, match=r"it names 9: h1/b/sock:0, .* and 4 more"):
        find("h1", flows)
    assert find("sock:8", flows) == "h1/b/sock:8"
    assert find("h1/b/sock:77", flows, ["h1/b/sock:77"]) == "h1/b/sock:77"
