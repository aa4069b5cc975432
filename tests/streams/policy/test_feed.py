"""The policy's inputs as the log has them: rounds that the log gives again, a new owner that goes on."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from schemas import codec
from schemas.topics import (
    ACTIONS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    Topic,
)
from streams.alerts.ordered_inputs import Message
from streams.policy.inputs import PolicyInputs, read_from
from streams.policy.replay import earlier_decisions, replay_cycles

MS = 1_000_000
S = 1_000 * MS
T = 1_800_000_000 * S
EPOCH = T // MS
SPINES = 4
HOSTS = 8
RATE = 10**9
PLACES = [(t.name, n) for t in (CONFIG, INVENTORY, FLOW_ROUTES, LINK_HEALTH, CONTENTION, FLOWS, ACTIONS) for n in (0, 1)]


def nic(host: int) -> str:
    return f"h{host}/eth1"


def leaf(host: int) -> str:
    return f"leaf{1 + host % 2}"


def hops(source: int, peer: int, spine: int) -> list[str]:
    up, down = leaf(source), leaf(peer)
    first, last = f"h{source}:eth1>{up}:p{source}", f"{down}:p{peer}>h{peer}:eth1"
    if up == down:
        return [first, last]
    return [first, f"{up}:u{spine}>spine{spine}:{up}", f"spine{spine}:{down}>{down}:u{spine}", last]


class Log:
    """A log of two partitions a topic, a clock, and a fabric of 8 hosts, 2 leaves, 4 spines whose actuators
    obey. Port p of any flow leads over spine p % 4, its answers over spine (p // 4) % 4."""

    def __init__(self) -> None:
        self.now_ns = T
        self.messages: list[Message] = []
        self.ends: dict[tuple[str, int], int] = defaultdict(int)
        self.read = 0
        self.rate_bps = self.mean_bps = 4e8
        self.ports: dict[str, int] = {}
        self.ends_of: dict[str, tuple[int, int]] = {}
        self.numbers: dict[str, int] = defaultdict(int)
        self.decisions: list[tuple[dict[str, Any], int]] = []
        self.rounds: list[dict[str, Any]] = []
        self.fallbacks: list[dict[str, Any]] = []
        self.put(CONFIG, "*", {"host": "*", "version": 1, "at_ns": 0, "by": "t", "mode": "ACT",
                               "max_moved_share": 1.0})  # fmt: skip
        for host in range(HOSTS):
            self.put(INVENTORY, nic(host), {
                "nic": nic(host), "host": f"h{host}", "device": "eth1", "shard": "s0", "rail": None,
                "rack": None, "addresses": [], "clock": f"h{host}/system", "stamp": "KERNEL",
                "speed_bps": RATE, "run": 1, "probe_port": 0, "since_ns": 0, "announced_ns": 0,
            })  # fmt: skip

    def put(self, topic: Topic, key: str, record: dict[str, Any] | None) -> None:
        place = (topic.name, len(key) % 2)
        value = None if record is None else codec.encode(topic.record, record)
        self.messages.append(Message(self.now_ns, *place, self.ends[place], key, value))
        self.ends[place] += 1

    def open(self, source: int, peer: int, port: int) -> str:
        name = f"h{source}/b/sock:{len(self.ports)}"
        self.ports[name], self.ends_of[name] = port, (source, peer)
        for a, b in ((source, peer), (peer, source)):
            self.put(FLOW_ROUTES, f"{nic(a)}>{nic(b)}", {
                "nic": nic(a), "peer": nic(b), "shard": "s0", "traced_ns": self.now_ns, "routes": [
                    {"leg": leg, "path": p, "peer_port": 5000, "complete": True, "since_ns": 0,
                     "links": hops(a, b, spine)}
                    for p in range(6000, 6016) for leg, spine in (("DATA", p % 4), ("ACK", p // 4 % 4))
                ],
            })  # fmt: skip
        return name

    def report(self) -> None:
        for host in range(HOSTS):
            mine = {name: port for name, port in self.ports.items() if self.ends_of[name][0] == host}
            self.numbers["report"] += 1
            self.put(FLOWS, f"h{host}", {
                "host": f"h{host}", "boot": "b", "report": self.numbers["report"], "shard": "s0",
                "system_ns": self.now_ns, "whole": True,
                "flows": [
                    {"flow_id": name, "state": "OPEN", "nic": nic(host), "peer": nic(self.ends_of[name][1]),
                     "source_address": "", "peer_address": "", "source_port": port, "peer_port": 5000,
                     "protocol": "TCP", "links": hops(*self.ends_of[name], port % 4), "job": None,
                     "tenant": None, "bytes_total": max(0, int((self.now_ns - T) / 8e9 * self.mean_bps)),
                     "interval_ns": S, "bytes": 0, "rate_bps": self.rate_bps,
                     "rtt_ns": 10_000, "can": ["MOVE", "PACE"]}
                    for name, port in mine.items()
                ],
            })  # fmt: skip

    def health(self, link: str, state: str) -> None:
        ends = sorted(link.split(">"))
        subject = "<>".join(ends)
        self.numbers[subject] += 1
        self.put(LINK_HEALTH, subject, {
            "subject": subject, "kind": "LINK", "shard": "s0", "seq": self.numbers[subject], "state": state,
            "before": "UP", "links": [link], "since_ns": self.now_ns, "evaluated_ns": self.now_ns,
            "loss_rate": None, "flaps_hour": 0, "flaps_total": 0, "detected_by": "PROBES", "text": "",
        })  # fmt: skip

    def window(self, link: str, state: str, opened_ns: int, update: int) -> None:
        self.put(CONTENTION, link, {
            "window_id": f"s0/{link}/{opened_ns}", "link": link, "shard": "s0", "update": update,
            "state": state, "kind": "COLLISION", "confidence": 1.0, "opened_ns": opened_ns,
            "updated_ns": self.now_ns, "closed_ns": None, "depth_bytes": 0.0, "depth_peak_bytes": 0.0,
            "delay_ns": 0.0, "utilisation": None, "over_ns": 0, "over_byte_s": 0.0, "rate_bps": RATE,
            "flows": [], "flows_total": 0, "jobs": [], "links": [], "text": "",
        })  # fmt: skip

    def offer_to(self, feed: PolicyInputs) -> None:
        for message in self.messages[self.read :]:
            feed.offer(message)
        self.read = len(self.messages)

    def turn(self, feed: PolicyInputs, seconds: float = 0.1, outcome: str = "APPLIED") -> list[dict[str, Any]]:
        """One look, and a second one where links' health called for the first; actuators answer."""
        self.now_ns += round(seconds * S)
        self.offer_to(feed)
        found: list[dict[str, Any]] = []
        while True:
            feed.take()
            for name in sorted(feed.shards):
                made = feed.run_cycle(name, self.now_ns + 7, self.now_ns)
                self.rounds += made.cycle_records
                self.fallbacks += [said.record for said in made.fallbacks]
                found += [said.record for said in made.decisions]
            if not feed.needs_urgent_cycle:
                break
        for decision in found:
            self.decisions.append((decision, self.now_ns))
            name = decision["flow_id"]
            before = self.ports[name]
            if outcome == "APPLIED":
                assert decision["to_path"] not in self.taken(name), "two sockets cannot have one port"
                self.ports[name] = decision["to_path"]
            self.put(ACTIONS, decision["host"], {
                **{key: decision[key] for key in ("host", "decision_id", "shard", "epoch", "seq", "flow_id",
                                                  "action", "config_version")},
                "at_ns": self.now_ns, "outcome": outcome, "from_path": before, "to_path": self.ports[name],
                "took_ns": 1000, "detail": "",
            })  # fmt: skip
        return found

    def taken(self, name: str) -> set[int]:
        ends = self.ends_of[name]
        return {port for other, port in self.ports.items() if other != name and self.ends_of[other] == ends}

    def over(self, link: str) -> set[str]:
        return {
            name
            for name, port in self.ports.items()
            if link in hops(*self.ends_of[name], port % 4)
            or link in hops(*reversed(self.ends_of[name]), port // 4 % 4)
        }


def again(log: Log, epoch: int) -> list[dict[str, Any]]:
    since = read_from(epoch)
    return replay_cycles(
        [record for record in log.rounds if record["epoch"] == epoch],
        [message for message in log.messages if message.append_ns >= since[message.topic]],
        earlier_decisions(epoch, log.decisions),
    )


def of_epoch(log: Log, epoch: int) -> list[dict[str, Any]]:
    return [decision for decision, _ in log.decisions if decision["epoch"] == epoch]


def busy(log: Log, feed: PolicyInputs) -> None:
    """A fault of each direction, healing, a config that changes, until flows are home again."""
    for source in range(HOSTS):
        for step in (1, 3):
            log.open(source, (source + step) % HOSTS, 6000 + (source + step) % 16)
    for _ in range(3):
        log.report()
        log.turn(feed, 1.0)
    log.health("leaf1:u2>spine2:leaf1", "DOWN")
    log.turn(feed, 0.004)
    log.report()
    log.turn(feed)
    log.health("spine1:leaf2>leaf2:u1", "DOWN")
    log.turn(feed, 0.004)
    log.put(CONFIG, "*", {"host": "*", "version": 2, "at_ns": 0, "by": "t", "mode": "OBSERVE",
                          "max_moved_share": 1.0, "protected_jobs": ["x"]})  # fmt: skip
    log.health("leaf1:u2>spine2:leaf1", "UP")
    log.health("spine1:leaf2>leaf2:u1", "UP")
    for _ in range(60):
        log.report()
        log.turn(feed, 0.5)


def test_a_dead_link_either_way_is_left_at_once_by_data_and_answers() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    for source in range(HOSTS):
        log.open(source, (source + 1) % HOSTS, 6000 + source)
    for _ in range(3):
        log.report()
        log.turn(feed, 1.0)
    assert log.decisions == []
    for link in ("leaf1:u2>spine2:leaf1", "spine3:leaf1>leaf1:u3"):
        hit = log.over(link)
        assert hit, "else nothing is tried"
        log.health(link, "DOWN")
        made = log.turn(feed, 0.003)
        assert {decision["flow_id"] for decision in made} == hit
        assert not log.over(link)
    names = {name for record in log.fallbacks for each in record["flows"] for name in each["links"]}
    assert any(name.startswith("leaf2:") and name.endswith("leaf2") for name in names), "answers' links too"


def test_the_log_gives_the_same_decisions_again() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    busy(log, feed)
    made = of_epoch(log, EPOCH)
    assert {decision["action"] for decision in made} == {"REROUTE", "RESTORE"}
    log.now_ns += S
    log.turn(feed)
    told = sum(len(record["cycles"]) for record in log.rounds)
    assert told == feed.shards["s0"].number, "every round is told of within a second"
    assert again(log, EPOCH) == made
    for record in log.rounds:
        assert codec.decode(codec.encode("PolicyCycles", record), "PolicyCycles") == record


def test_rounds_that_are_not_there_are_named() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    busy(log, feed)
    del log.rounds[1]
    with pytest.raises(ValueError, match=r"s0, epoch \d+: rounds \d+ to \d+ are not in the log"):
        again(log, EPOCH)


def test_a_new_owner_brings_flows_home_and_moves_nothing_else() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    flows = [log.open(source, (source + 1) % HOSTS, 6000 + source) for source in range(HOSTS)]
    home = dict(log.ports)
    for _ in range(3):
        log.report()
        log.turn(feed, 1.0)
    dead = "leaf1:u2>spine2:leaf1"
    hit = log.over(dead)
    log.health(dead, "DOWN")
    log.turn(feed, 0.004)
    assert {name for name in flows if log.ports[name] != home[name]} == hit
    log.report()
    epoch = log.now_ns // MS + 1
    log.now_ns, since = epoch * MS, read_from(epoch)
    second = PolicyInputs(epoch, PLACES, decisions=earlier_decisions(epoch, log.decisions))
    log.messages = [message for message in log.messages if message.append_ns >= since[message.topic]]
    log.read = 0
    for _ in range(20):
        log.report()
        log.turn(second, 0.5)
    assert of_epoch(log, epoch) == []
    log.health(dead, "UP")
    for _ in range(30):
        log.report()
        log.turn(second, 0.5)
    assert log.ports == home
    assert {decision["action"] for decision in of_epoch(log, epoch)} == {"RESTORE"}
    assert again(log, epoch) == of_epoch(log, epoch)


def test_what_an_actuator_could_not_do_is_tried_at_once_over_another_port() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    flow = log.open(0, 1, 6000)
    for _ in range(3):
        log.report()
        log.turn(feed, 1.0)
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    tried = [log.turn(feed, 0.02, "FAILED")[0]["to_path"] for _ in range(3)]
    assert len(set(tried)) == 3
    assert all(path % 4 != 0 for path in tried)
    assert log.turn(feed, 0.02) == [], "three at once, then it waits"
    for _ in range(80):
        log.report()
        log.turn(feed, 0.5)
    assert log.ports[flow] % 4 != 0


def reflex(log: Log, flow: str, from_path: int, to_path: int) -> None:
    """The host of a flow moves it by itself, and says so."""
    log.ports[flow] = to_path
    log.put(ACTIONS, "h0", {
        "host": "h0", "decision_id": "h0/reflex/1", "shard": "", "epoch": 0, "seq": 0, "flow_id": flow,
        "action": "REROUTE", "config_version": 1, "at_ns": log.now_ns, "outcome": "LOCAL_REPAIR",
        "from_path": from_path, "to_path": to_path, "took_ns": 1000, "detail": "",
    })  # fmt: skip


def test_a_reflex_is_known_and_the_flow_goes_home_once_the_link_is_well() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    flow = log.open(0, 1, 6000)
    for _ in range(3):
        log.report()
        log.turn(feed, 1.0)
    reflex(log, flow, 6000, 6001)
    log.report()
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    assert log.turn(feed, 0.02) == [], "it has left already"
    log.report()
    log.turn(feed, 1.0)
    log.health("leaf1:u0>spine0:leaf1", "UP")
    for _ in range(30):
        log.report()
        log.turn(feed, 0.5)
    assert log.ports[flow] == 6000


def test_a_new_owner_knows_the_reflexes_of_the_time_without_one() -> None:
    log = Log()
    flow = log.open(0, 1, 6000)
    log.report()
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    reflex(log, flow, 6000, 6001)
    log.now_ns += 60 * S
    log.report()
    epoch = log.now_ns // MS + 1
    log.now_ns = epoch * MS
    feed, since = PolicyInputs(epoch, PLACES), read_from(epoch)
    log.messages = [message for message in log.messages if message.append_ns >= since[message.topic]]
    log.turn(feed, 0.02)
    log.report()
    assert log.turn(feed, 1.0) == [], "it has left already"
    log.health("leaf1:u0>spine0:leaf1", "UP")
    for _ in range(30):
        log.report()
        log.turn(feed, 0.5)
    assert log.ports[flow] == 6000
    assert again(log, epoch) == of_epoch(log, epoch)


def test_a_flow_whose_owner_lets_nothing_be_done_stays_and_it_is_said() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    log.open(0, 1, 6000)
    log.report()
    message = log.messages.pop()
    while message.topic != FLOWS.name or message.key != "h0":
        message = log.messages.pop()
    record = codec.decode(message.value, FLOWS.record)
    record["flows"][0]["can"] = ["PACE"]
    log.ends.clear()
    for each in log.messages:
        log.ends[each.topic, each.partition] = each.offset + 1
    log.put(FLOWS, "h0", record)
    log.turn(feed, 1.0)
    log.health("leaf1:u0>spine0:leaf1", "DOWN")
    assert log.turn(feed, 0.02) == []
    log.turn(feed, 1.0)
    held = [each for record in log.rounds for row in record["cycles"] for each in row["suppressed"] or ()]
    assert {each["cause"] for each in held} == {"NOT_MOVABLE"}


def test_bad_ways_and_actions_are_refused_and_told() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    for topic in (FLOW_ROUTES, ACTIONS):
        feed.offer(Message(T, topic.name, 0, 0, "x", b"nonsense"))
    feed.take()
    assert [message.topic for message, _ in feed.refused] == [FLOW_ROUTES.name, ACTIONS.name]
    assert DECISIONS.name not in {topic for topic, _ in PLACES}
    assert log.decisions == []


def test_connections_of_a_collective_spread_over_the_spines_one_each_and_then_rest() -> None:
    """An all-to-all sends to one peer at a time over four connections: mean rates look even long before steps
    are."""
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    log.rate_bps, log.mean_bps = RATE / 8, RATE / 28
    rng = random.Random(5)
    pairs = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if leaf(a) != leaf(b)]
    for a, b in pairs:
        for port in rng.sample(range(6000, 6016), 4):
            log.open(a, b, port)

    def met() -> dict[str, float]:
        """Link to the most that its steps can put on it, of its rate."""
        of_source: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
        for name, port in log.ports.items():
            source, peer = log.ends_of[name]
            for link in hops(source, peer, port % 4)[1:-1]:
                of_source[link, source][peer] += 1
        found: dict[str, float] = defaultdict(float)
        for (link, _), peers in of_source.items():
            found[link] += max(peers.values()) / 4
        return found

    began = max(met().values())
    assert began > 1.4, "else nothing is tried"
    opened: dict[str, int] = {}
    for turn in range(150):
        if turn % 5 == 0:
            log.report()
        for link, load in met().items():
            if load > 1.2 or link in opened:
                state = "UPDATED" if load > 1.2 else "CLOSED"
                log.window(link, state, opened.setdefault(link, log.now_ns), turn)
                if state == "CLOSED":
                    del opened[link]
        log.turn(feed)
    assert max(met().values()) <= 1.25
    assert len(log.decisions) < 0.6 * len(log.ports)
    assert len({decision["flow_id"] for decision, _ in log.decisions}) >= 0.8 * len(log.decisions)
    rested = len(log.decisions)
    for turn in range(150, 250):
        if turn % 5 == 0:
            log.report()
        log.turn(feed)
    assert len(log.decisions) == rested


def test_what_is_held_back_is_told_again_for_who_begins_to_listen() -> None:
    log, feed = Log(), PolicyInputs(EPOCH, PLACES)
    log.open(0, 1, 6000)
    log.put(CONFIG, "*", {"host": "*", "version": 2, "at_ns": 0, "by": "t", "mode": "ACT",
                          "allowed_actions": ["PACE"]})  # fmt: skip
    for second in range(35):
        log.report()
        log.turn(feed, 1.0)
        if second == 2:
            log.health("leaf1:u0>spine0:leaf1", "DOWN")
    told = [row["suppressed"] for record in log.rounds for row in record["cycles"] if row["suppressed"]]
    assert 3 <= len(told) <= 5, "once, and every ten seconds"
    assert {each["cause"] for held in told for each in held} == {"NOT_ALLOWED"}
