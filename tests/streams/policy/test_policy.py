"""Policy by itself: what it never does whatever happens, limits and why things were held back, paths that
nobody knows."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.ids import cable_id
from schemas.topics import CONFIG, CONTENTION, DECISIONS, FALLBACKS, LINK_HEALTH
from streams.policy.action_budget import NS_PER_MINUTE
from streams.policy.policy import Policy
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow

MS = 1_000_000
S = 1_000 * MS
T = 1_800_000_000 * S
RATE = 10**9
SPINES = 4


def links_of(nic: str, peer: str, spine: int) -> tuple[str, ...]:
    """NICs h1..h4 on leaf1, the others on leaf2; path p goes over spine p % 4."""
    a, b = int(nic[1:].split("/")[0]), int(peer[1:].split("/")[0])
    up, down = (1 if n <= 4 else 2 for n in (a, b))
    ends = (f"h{a}:eth1>leaf{up}:p{a}", f"leaf{down}:p{b}>h{b}:eth1")
    if up == down:
        return ends
    return (
        ends[0],
        f"leaf{up}:u{spine}>spine{spine}:p{up}",
        f"spine{spine}:p{down}>leaf{down}:u{spine}",
        ends[1],
    )


FABRIC = sorted({link for a, b in ((1, 5), (5, 1)) for s in range(SPINES)
                 for link in links_of(f"h{a}/eth1", f"h{b}/eth1", s)[1:3]})  # fmt: skip


class World:
    """Flows as reported, ways as traced, and a policy; `obey`: decisions are carried out and reported."""

    def __init__(self, count=8, *, ways=True, hops=True, obey=True, job=None, **config):
        self.paths = {}
        self.ends = {}
        for n in range(count):
            a, b = 1 + n % 4, 5 + n // 4 % 4
            a, b = (a, b) if n % 2 else (b, a)
            name = f"h{a}/b/qp:eth1:{n}:1"
            self.paths[name], self.ends[name] = 100 + n, (f"h{a}/eth1", f"h{b}/eth1")
        self.rate_bps = dict.fromkeys(self.paths, 1e8)
        self.job = dict.fromkeys(self.paths, job)
        self.rtt_ns = dict.fromkeys(self.paths, 10_000)
        self.known, self.hops, self.obey = ways, hops, obey
        self.shift, self.ways = 0, {}
        self.now_ns, self.seq, self.update = T, defaultdict(int), 0
        self.states, self.decisions, self.fallbacks = {}, [], {}
        self.policy = Policy("s0", 1, self, self, lambda link: RATE)
        if config:
            self.configure(**config)

    def configure(self, host="*", version=1, **config):
        record = {"host": host, "version": version, "at_ns": 0, "by": "t", "mode": "ACT", **config}
        self.policy.take_config({host: codec.decode(codec.encode(CONFIG.record, record), CONFIG.record)})

    def open_flows(self):
        return [
            LiveFlow(name, *self.ends[name], self.job[name], None, self.rate_bps[name], False, False,
                     links_of(*self.ends[name], path % SPINES) if self.hops else (), path, self.rtt_ns[name],
                     can=("MOVE",))
            for name, path in sorted(self.paths.items())
        ]  # fmt: skip

    def of(self, flow):
        if not self.known:
            return {}
        ports = frozenset((*range(100, 108), flow.path))
        key = (flow.nic, flow.peer, self.shift, ports)
        return self.ways.setdefault(key, {
            path: FlowRoute(links_of(flow.nic, flow.peer, (path + self.shift) % SPINES)) for path in sorted(ports)
        })  # fmt: skip

    def health(self, link, state, kind="LINK", **more):
        subject = cable_id(link) if kind == "LINK" else link
        self.seq[subject] += 1
        if kind == "LINK":
            self.states[">".join(reversed(link.split(">")))] = "UP"  # a record is of the whole cable
        self.states[link] = state
        record = {
            "subject": subject, "kind": kind, "shard": "s0", "seq": self.seq[subject], "state": state,
            "before": "UP", "links": [link] if kind == "LINK" else [], "since_ns": self.now_ns,
            "evaluated_ns": self.now_ns, "loss_rate": 0.2 if state == "GREY" else None, "flaps_hour": 0,
            "flaps_total": 0, "detected_by": "PROBES", "text": "", **more,
        }  # fmt: skip
        self.policy.take_health(subject, codec.decode(codec.encode(LINK_HEALTH.record, record), LINK_HEALTH.record))

    def window(self, link, state="OPENED", kind="COLLISION", opened_ns=T):
        self.update += 1
        record = {
            "window_id": f"s0/{link}/{opened_ns}", "link": link, "shard": "s0", "update": self.update,
            "state": state, "kind": kind, "confidence": 1.0, "opened_ns": opened_ns,
            "updated_ns": self.now_ns, "closed_ns": None, "depth_bytes": 0.0, "depth_peak_bytes": 0.0,
            "delay_ns": 0.0, "utilisation": None, "over_ns": 0, "over_byte_s": 0.0, "rate_bps": RATE,
            "flows": [], "flows_total": 0, "jobs": [], "links": [], "text": "",
        }  # fmt: skip
        self.policy.take_contention(codec.decode(codec.encode(CONTENTION.record, record), CONTENTION.record))

    def decide(self, after_ns=10 * MS):
        self.now_ns += after_ns
        found = self.policy.decide(self.now_ns)
        for said in (*found.decisions, *found.fallbacks):
            codec.encode(said.topic.record, said.record)
            if said.topic is FALLBACKS:
                self.fallbacks[said.key] = said.record
                continue
            assert said.topic is DECISIONS
            assert said.key == said.record["host"] == said.record["flow_id"].split("/")[0]
            self.decisions.append(said.record)
            if self.obey:
                self.paths[said.record["flow_id"]] = said.record["to_path"]
        self.held = found.suppressed
        return [said.record for said in found.decisions]

    def crossing(self, link):
        return {
            name for name, path in self.paths.items() if link in links_of(*self.ends[name], path % SPINES)
        }


events = st.one_of(
    st.tuples(st.sampled_from(["DOWN", "GREY", "UP", "FLAPPING"]), st.sampled_from(FABRIC)),
    st.tuples(st.sampled_from(["OPENED", "CLOSED"]), st.sampled_from(FABRIC)),
    st.tuples(st.just("pass"), st.sampled_from([1 * MS, 300 * MS, 2 * S, 15 * S, 70 * S])),
    st.tuples(st.just("rate"), st.sampled_from([1e6, 3e8, 9e8])),
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(events, max_size=25), st.booleans(), st.sampled_from([1, 2, 100]),
    st.sampled_from([0.0, 0.1, 0.3, 1.0]),
)  # fmt: skip
def test_whatever_happens_nothing_moves_onto_what_is_dead_and_no_limit_is_passed(story, obey, most, share):
    w = World(24, obey=obey, max_actions_per_s=most, max_moved_share=share, protected_jobs=["llm"])
    safe = sorted(w.paths)[3]
    w.job[safe] = "llm"
    w.decide()
    for kind, what in story:
        if kind == "pass":
            w.now_ns += what
        elif kind == "rate":
            w.rate_bps = dict.fromkeys(w.paths, what)
        elif kind in ("OPENED", "CLOSED"):
            w.window(what, kind, opened_ns=w.now_ns)
        else:
            w.health(what, kind)
        for _ in range(3):
            for d in w.decide():
                assert d["flow_id"] != safe
                assert d["to_path"] != d["from_path"]
                way = links_of(*w.ends[d["flow_id"]], d["to_path"] % SPINES)
                assert not [link for link in way if w.states.get(link) == "DOWN"]
                if d["action"] == "RESTORE" or d["reason"]["kind"] == "COLLISION":
                    assert {w.states.get(link, "UP") for link in way} == {"UP"}
    assert [d["seq"] for d in w.decisions] == list(range(len(w.decisions)))
    assert len({d["decision_id"] for d in w.decisions}) == len(w.decisions)
    allowed = max(1, int(share * 24)) if share else 0
    for d in w.decisions:
        since = [o for o in w.decisions if d["at_ns"] <= o["at_ns"] < d["at_ns"] + S]
        assert sum(o["host"] == d["host"] for o in since) <= most
        minute = [o for o in w.decisions if d["at_ns"] <= o["at_ns"] < d["at_ns"] + NS_PER_MINUTE]
        assert len({o["flow_id"] for o in minute}) <= allowed


def test_a_cable_that_dies_one_way_and_later_the_other_is_dead_only_that_way():
    w = World(16, max_moved_share=1.0)
    w.paths = {name: 100 + n // 2 for n, name in enumerate(w.paths)}
    w.decide()
    out, back = "leaf1:u1>spine1:p1", "spine1:p1>leaf1:u1"
    for link in (out, back):
        hit = w.crossing(link)
        w.health(link, "DOWN")
        assert {d["flow_id"] for d in w.decide()} == hit
        assert hit
        w.health(link, "UP")
        for _ in range(15):
            w.decide(10 * S)
        assert w.crossing(link) == hit


def test_the_dead_come_before_the_lossy_and_the_heavy_before_the_light():
    w = World(8, max_moved_share=1.0)
    for n, name in enumerate(sorted(w.paths)):
        w.rate_bps[name] = 1e6 * (n + 1)
    w.decide()
    dead, grey = "leaf1:u1>spine1:p1", "leaf1:u3>spine3:p1"
    w.health(grey, "GREY")
    w.health(dead, "DOWN")
    hit = {link: w.crossing(link) for link in (dead, grey)}
    made = w.decide()
    assert len(hit[dead]) >= 2
    assert {d["flow_id"] for d in made} == hit[dead] | hit[grey]
    kinds = [d["reason"]["kind"] for d in made]
    assert kinds == sorted(kinds), "DOWN, then GREY"
    for a, b in pairwise(made):
        if a["reason"] == b["reason"]:
            assert w.rate_bps[a["flow_id"]] >= w.rate_bps[b["flow_id"]]


def test_a_lossy_path_is_taken_only_from_a_dead_one():
    w = World(8, max_moved_share=1.0)
    w.decide()
    for spine in range(SPINES):
        w.health(f"leaf1:u{spine}>spine{spine}:p1", "GREY")
    assert w.decide() == []
    assert {h.cause for h in w.held} == {"NO_BETTER_PATH"}
    w.health("leaf1:u1>spine1:p1", "DOWN")
    assert {d["reason"]["kind"] for d in w.decide()} == {"DOWN"}


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"protected_jobs": ["llm"]}, "PROTECTED"),
        ({"allowed_actions": ["PACE"]}, "NOT_ALLOWED"),
        ({"max_actions_per_s": 0}, "ACTIONS_PER_S"),
        ({"max_moved_share": 0.0}, "MOVED_SHARE"),
    ],
)
def test_what_is_held_back_says_why(limits, why):
    w = World(8, job="llm", **limits)
    w.decide()
    w.health("leaf1:u1>spine1:p1", "DOWN")
    assert w.decide() == []
    assert {(h.flow_id, h.cause) for h in w.held} == {(name, why) for name in w.crossing("leaf1:u1>spine1:p1")}


def test_a_dead_receiver_moves_nothing():
    w = World(8, max_moved_share=1.0)
    w.decide()
    w.health("h5/eth1", "DOWN", kind="NIC")
    assert w.decide() == []
    assert {h.cause for h in w.held} == {"NO_LIVING_PATH"}
    assert {h.flow_id for h in w.held} == {name for name, ends in w.ends.items() if "h5/eth1" in ends}


def test_what_is_not_carried_out_is_decided_again_ever_later():
    w = World(2, obey=False, max_moved_share=1.0)
    w.decide()
    w.health("leaf1:u1>spine1:p1", "DOWN")
    for _ in range(3000):
        w.decide()
    (name,) = w.crossing("leaf1:u1>spine1:p1")
    at = [d["at_ns"] for d in w.decisions]
    gaps_s = [round((b - a) / S, 1) for a, b in pairwise(at)]
    assert gaps_s == [3.5, 5.5, 9.5]
    assert {d["flow_id"] for d in w.decisions} == {name}


def test_a_decision_names_the_config_that_it_was_made_under():
    w = World(8, version=41)
    w.decide()
    w.health("leaf1:u1>spine1:p1", "DOWN")
    assert {d["config_version"] for d in w.decide()} == {41}


def test_a_collision_that_no_path_has_room_for_is_left_alone():
    w = World(16, max_moved_share=1.0)
    w.paths = {name: 100 + n // 2 for n, name in enumerate(w.paths)}
    w.rate_bps = dict.fromkeys(w.paths, 9e8)
    for _ in range(300):
        w.decide()
    link = "leaf1:u1>spine1:p1"
    assert len(w.crossing(link)) > 1
    w.window(link, opened_ns=w.now_ns)
    assert w.decide() == []
    assert {h.cause for h in w.held} == {"NO_BETTER_PATH"}


def test_an_incast_moves_nothing():
    w = World(8, max_moved_share=1.0)
    w.rate_bps = dict.fromkeys(w.paths, 9e8)
    w.window("leaf2:p5>h5:eth1", kind="INCAST")
    for _ in range(20):
        assert w.decide() == []


def test_on_paths_that_nobody_knows_a_flow_tries_another_after_sustained_delay_and_then_rests():
    w = World(4, ways=False, hops=False, max_moved_share=1.0)
    for _ in range(50):
        assert w.decide() == []
    slow = sorted(w.paths)[0]
    w.rtt_ns[slow] = 900_000
    for _ in range(90):
        assert w.decide() == [], "a short delay is none"
    for _ in range(1400):
        w.decide()
    assert {(d["flow_id"], d["reason"]["kind"]) for d in w.decisions} == {(slow, "DELAY")}
    gaps_s = [(b["at_ns"] - a["at_ns"]) / S for a, b in pairwise(w.decisions)]
    assert gaps_s[0] >= 5
    assert all(b >= 2 * a - 0.1 for a, b in pairwise(gaps_s))
    assert all(49_152 <= d["to_path"] <= 65_535 for d in w.decisions)


def tried_long(link):
    """A world in which nothing comes of what is decided since a link died: flows wait."""
    it = World(obey=False, mode="ACT", max_moved_share=1.0)
    it.decide()
    it.health(link, "DOWN")
    for _ in range(200):
        it.decide(500 * MS)
    assert any(held.cause == "WAITING" for held in it.held)
    return it


def test_what_was_tried_for_one_dead_link_delays_nothing_for_another():
    first = "leaf1:u1>spine1:p1"
    it = tried_long(first)
    it.health(first, "UP")
    hit = it.crossing(first)
    assert hit
    for end in {it.ends[name][0] for name in hit}:  # another failure on their way
        it.health(links_of(end, "h5/eth1", 0)[0], "GREY")
    it.decide()
    for name in hit:
        assert not any(held.flow_id == name and held.cause == "WAITING" for held in it.held)


def test_a_new_config_lets_what_waits_be_tried_at_once():
    link = "leaf1:u1>spine1:p1"
    it = tried_long(link)
    it.configure(version=2, max_moved_share=1.0)
    assert {each["flow_id"] for each in it.decide()} == it.crossing(link)


def test_a_new_owner_tells_every_host_even_where_nothing_is_left_to_fall_back_to():
    it = World(job="j7", protected_jobs=["j7"])
    it.decide()
    assert it.fallbacks
    assert all(record["flows"] == [] for record in it.fallbacks.values())


def test_a_job_that_is_protected_from_now_on_has_no_fallbacks_any_more():
    it = World(job="j7", mode="ACT")
    it.decide()
    assert all(row["job"] == "j7" for record in it.fallbacks.values() for row in record["flows"])
    assert any(record["flows"] for record in it.fallbacks.values())
    it.configure(version=2, protected_jobs=["j7"])
    it.decide()
    assert all(record["flows"] == [] for record in it.fallbacks.values())


def rows_of(it):
    return [row for record in it.fallbacks.values() for row in record["flows"]]


def others_across(it, link):
    """Rows that tell of a path over a link, by the ways as they are now."""
    return [
        row for row in rows_of(it) for path in row["other_paths"]
        if link in links_of(*it.ends[row["flow_id"]], (path + it.shift) % SPINES)
    ]  # fmt: skip


def many_ranked(count=1200):
    """As many flows as are ranked in three rounds, and that done; none moves."""
    it = World(count, allowed_actions=["PACE"])
    for _ in range(3):
        it.decide()
    assert len(rows_of(it)) == count
    return it


def test_many_flows_are_ranked_in_turn_and_an_earlier_owners_ranks_hold_until_then():
    it = World(1200)
    of_host = Counter(name.split("/")[0] for name in it.paths)
    it.health("leaf1:u1>spine1:p1", "DOWN")
    it.decide()
    assert 0 < len(it.fallbacks) < len(of_host)
    for _ in range(2):
        told = {host: len(record["flows"]) for host, record in it.fallbacks.items()}
        assert told.items() <= of_host.items()
        it.decide()
    assert len(rows_of(it)) == 1200


def test_flows_that_could_cross_what_dies_are_ranked_at_once_and_only_those():
    it, link = many_ranked(), "leaf1:u1>spine1:p1"
    hosts = {row["flow_id"].split("/")[0] for row in others_across(it, link)}
    assert hosts
    before, it.fallbacks = it.fallbacks, {}
    it.health(link, "DOWN")
    it.decide()
    assert set(it.fallbacks) == hosts, "all others tell as before"
    it.fallbacks = before | it.fallbacks
    assert len(rows_of(it)) == 1200
    assert not others_across(it, link)


def test_flows_whose_ports_lead_over_a_dead_link_now_are_ranked_at_once():
    it, link = many_ranked(), "leaf1:u1>spine1:p1"
    it.health(link, "DOWN")
    it.decide()
    it.shift = 1
    it.decide()
    assert len(rows_of(it)) == 1200
    assert not others_across(it, link)


def test_a_flow_that_was_moved_is_ranked_at_once():
    it = many_ranked()
    name = next(iter(it.paths))
    it.paths[name] = 101 if it.paths[name] % SPINES != 1 else 102
    it.decide()
    (row,) = [row for row in rows_of(it) if row["flow_id"] == name]
    assert row["path"] == it.paths[name]
    assert it.paths[name] not in row["other_paths"]


def test_what_was_only_observed_does_not_rest_once_a_config_lets_it_be_done():
    link = "leaf1:u1>spine1:p1"
    it = World(obey=False, mode="OBSERVE", max_moved_share=1.0)
    for name in it.crossing(link):
        it.rate_bps[name] = 6e8

    def round_():
        it.window(link)
        return {each["flow_id"] for each in it.decide(100 * MS)}

    def resting():
        return {held.flow_id for held in it.held if held.cause == "COOL_DOWN"} & it.crossing(link)

    rounds = [round_()]
    while rounds[-1] or not resting():
        rounds.append(round_())
        assert len(rounds) < 50, "the second try comes 5 s after the first"
    rests = resting()
    assert rests <= set().union(*rounds)
    it.configure(version=2, mode="ACT", max_moved_share=1.0)
    assert round_() & rests
