"""Contention windows: opening, closing, cause and flows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from schemas import codec
from streams.contention.detector import ContentionDetector
from streams.contention.rules import ContentionRules
from streams.runtime.flow_table import FlowTable, LiveFlows
from streams.runtime.route_table import RouteTable
from streams.runtime.thresholds import THRESHOLDS, Thresholds

MS = 1_000_000
GBIT = 10**9
T0 = 1_800_000_000_000_000_000
SLOT = 10 * MS
SLOTS = 10
WINDOW = SLOT * SLOTS
RULES = ContentionRules()
NICS = {f"h{n}/eth1" for n in range(1, 9)}
UP1, UP2 = "h1:eth1>leaf1:swp1", "h2:eth1>leaf1:swp2"
SPINE = "leaf1:swp9>spine1:swp1"
DOWN = "spine1:swp2>leaf2:swp9"
LAST = "leaf2:swp1>h5:eth1"
LAST6 = "leaf2:swp2>h6:eth1"


def test_thresholds_are_the_rules_defaults():
    assert ContentionRules.of(Thresholds()) == RULES
    assert {name for name in THRESHOLDS if name.startswith("contention_")} == {
        f"contention_{name}" for name in RULES.__slots__
    }


def queue(link: str, depth: list[float] | float, **more: Any) -> dict[str, Any]:
    depths = [depth] * SLOTS if isinstance(depth, int | float) else depth
    slots = [n for n, value in enumerate(depths) if value > 0]
    return {
        "link": link, "rate_bps": GBIT, "depth_mean_bytes": sum(depths) / len(depths),
        "depth_max_bytes": float(max(depths)), "bound_bytes": 3000.0, "samples": 50,
        "slot": slots, "depth_bytes": [float(depths[n]) for n in slots], **more,
    }  # fmt: skip


def flow(name: int, source: int, to: int, rate: float, hops: list[str], **more: Any) -> dict[str, Any]:
    return {
        "flow_id": f"h{source}/boot/sock:{name}", "state": "OPEN", "nic": f"h{source}/eth1",
        "peer": f"h{to}/eth1", "source_address": "", "peer_address": "", "source_port": 1, "peer_port": 2,
        "protocol": "UDP", "bytes_total": 0, "interval_ns": 0, "bytes": 0, "rate_bps": rate * 1e6,
        "links": hops, **more,
    }  # fmt: skip


class Shard:
    """A detector with its flows and routes, fed window by window."""

    def __init__(self, watch: ContentionDetector | None = None) -> None:
        self.paths = RouteTable()
        self.tail = FlowTable(self.paths, NICS.__contains__)
        self.flows = self.tail.of("fabric")
        self.watch = watch or self.new()
        self.window = T0 // WINDOW
        self.made: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []

    def new(self, flows: LiveFlows | None = None) -> ContentionDetector:
        return ContentionDetector(
            "fabric", flows or self.flows, NICS.__contains__, lambda: len(NICS), lambda _: GBIT
        )

    def report(self, *flows: dict[str, Any], whole: bool = True) -> None:
        """Have every host report, those of `flows` with them."""
        for n in range(1, 9):
            own = [each for each in flows if each["nic"] == f"h{n}/eth1"]
            if own or whole:
                record = {
                    "host": f"h{n}", "boot": "boot", "report": 1, "shard": "fabric", "system_ns": 1,
                    "whole": whole, "flows": own,
                }  # fmt: skip
                value = codec.encode("FlowReports", record)
                self.tail.take(f"h{n}".encode(), value, None, self.window * WINDOW)
        self.flows.advance(self.window * WINDOW)

    def step(self, *links: dict[str, Any], rules: ContentionRules = RULES) -> list[dict[str, Any]]:
        """Take the next window of slots."""
        record = codec.decode(
            codec.encode(
                "LinkQueues",
                {
                    "shard": "fabric", "window": self.window, "part": 0, "parts": 1,
                    "window_start_ns": self.window * WINDOW, "slot_ns": SLOT, "slots": SLOTS, "synced": True,
                    "paths": 100, "solved_ns": 1, "links": list(links),
                },
            ),
            "LinkQueues",
        )  # fmt: skip
        self.window += 1
        self.heard.append(record)
        made = self.watch.ingest(record, rules)
        for each in made:
            codec.encode("ContentionWindow", each)
        self.made += made
        return made


def settled(shard: Shard, *links: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Let queues stand until flow reports are of their time; return the newest record of each link."""
    for _ in range(25):
        shard.step(*links)
    return {each["link"]: each for each in shard.made}


def states(made: list[dict[str, Any]]) -> list[str]:
    return [each["state"] for each in made]


def test_a_queue_opens_after_two_slots_and_closes_a_quarter_second_after_it_drained():
    shard = Shard()
    assert shard.step(queue(SPINE, 0.0)) == []
    begin = shard.window * WINDOW
    (opened,) = shard.step(queue(SPINE, [0.0] * 4 + [60e3] * 6))
    assert opened["state"] == "OPENED"
    assert opened["opened_ns"] == begin + 4 * SLOT
    assert opened["window_id"] == f"fabric/{SPINE}/{opened['opened_ns']}"
    assert opened["depth_bytes"] == pytest.approx(60e3)
    assert opened["delay_ns"] == pytest.approx(480e3)
    shard.step(queue(SPINE, 60e3))
    drained = shard.window * WINDOW
    closed = [each for _ in range(4) for each in shard.step(queue(SPINE, 0.0))][-1]
    assert closed["state"] == "CLOSED"
    assert closed["closed_ns"] == drained, "since when it is over, not when that was sure"
    assert closed["updated_ns"] - drained <= 300 * MS
    assert closed["over_ns"] == 160 * MS
    assert closed["over_byte_s"] == pytest.approx((60e3 - 15e3) * 0.160)
    assert closed["depth_peak_bytes"] == pytest.approx(60e3)
    assert [each["update"] for each in shard.made] == list(range(len(shard.made)))
    assert not shard.watch.open_windows


@pytest.mark.parametrize(
    ("depths", "more"),
    [
        ([0.0] * 9 + [200e3], {}),
        ([60e3, 0, 0, 60e3, 0, 0, 60e3, 0, 0, 0], {}),
        ([12e3] * 10, {}),
        ([60e3] * 10, {"bound_bytes": 70e3}),
    ],
    ids=["one burst", "bursts", "shallow", "below its bound"],
)  # fmt: skip
def test_a_passing_queue_opens_nothing(depths, more):
    shard = Shard()
    record = queue(SPINE, [0.0] * 10, **more) | {
        "slot": list(range(10)), "depth_bytes": [float(each) for each in depths], "depth_max_bytes": 300e3,
    }  # fmt: skip
    shard.step(record)
    shard.step(queue(SPINE, 0.0))
    assert shard.made == []


def test_short_slots_count_by_their_mean_and_slow_links_by_bytes():
    shard = Shard()
    more = {"group": 0, "utilisation": None, "dscp": 0, "ce_share": 0.0, "ce_slot": [], "ce": []}
    for _ in range(4):
        links = [queue(SPINE, 60e3), queue(DOWN, [70e3, 0.0] + [0.0] * 8)]
        record = {
            "shard": "fabric", "window": shard.window, "part": 0, "parts": 1,
            "window_start_ns": T0 + len(shard.heard) * 10 * MS, "slot_ns": MS, "slots": SLOTS, "synced": True,
            "paths": 1, "solved_ns": 1, "links": [each | more for each in links],
        }  # fmt: skip
        shard.window += 1
        shard.heard.append(record)
        shard.made += shard.watch.ingest(record, RULES)
    assert {each["link"] for each in shard.made} == {SPINE}, "the other is a burst of 1 ms in each 10"
    assert RULES.open_bytes(10**8) == 15e3
    assert RULES.open_bytes(5 * 10**9) == pytest.approx(31.25e3)
    assert RULES.open_bytes(4 * 10**11) == 50e3
    assert RULES.open_bytes(0) == 15e3


def test_two_flows_that_meet_inside_the_fabric_are_a_collision_with_their_jobs():
    shard = Shard()
    shard.report(
        flow(1, 1, 5, 600, [UP1, SPINE, DOWN, LAST], job="train", tenant="blue"),
        flow(2, 2, 6, 500, [UP2, SPINE, DOWN, LAST6], job="serve"),
        flow(3, 5, 1, 12, ["h5:eth1>leaf2:swp1", "leaf2:swp9>spine1:swp2"]),
    )
    (opened,) = shard.step(queue(SPINE, 80e3, utilisation=1.0, from_flows=True))
    assert opened["kind"] == "COLLISION"
    assert opened["confidence"] > 0.8
    assert [each["flow_id"] for each in opened["flows"]] == ["h1/boot/sock:1", "h2/boot/sock:2"]
    assert opened["flows"][0]["share"] == pytest.approx(6 / 11)
    assert opened["flows"][0]["tenant"] == "blue"
    assert (opened["jobs"], opened["flows_total"]) == (["serve", "train"], 2)
    assert opened["utilisation"] == 1.0
    second = {
        "shard": "fabric", "window": T0 // 10**9, "part": 0, "parts": 1, "window_start_ns": T0,
        "slot_ns": 10**9, "slots": 1, "links": [queue(SPINE, 0.0, utilisation=0.9), queue(LAST, 10e6)],
    }  # fmt: skip
    assert shard.watch.ingest(second, RULES) == [], "it sums up what was told"
    for _ in range(10):
        shard.step(queue(SPINE, 80e3))
    assert shard.made[-1]["utilisation"] == 0.9
    assert opened["text"] == (
        "leaf1 to spine1: fabric collision, 2 flows of 2 senders, job serve and train, 80 kB queued, 640 us"
    )


@pytest.mark.parametrize(
    ("flows", "min_ms"),
    [
        ([flow(1, 1, 5, 500, [UP1, SPINE, DOWN, LAST]), flow(2, 2, 6, 500, [UP2, SPINE, DOWN, LAST6])], 20),
        ([flow(1, 1, 5, 900, [UP1, SPINE, DOWN, LAST])], 40),
        ([flow(1, 3, 5, 900, ["h3:eth1>leaf1:swp3", "leaf1:swp9>spine2:swp1", LAST])], 80),
    ],
    ids=["two senders", "one sender", "nobody"],
)
def test_the_less_is_sent_over_a_link_the_longer_its_queue_must_persist(flows, min_ms):
    for stands_ms, made in ((min_ms - 10, []), (min_ms, ["OPENED"])):
        shard = Shard()
        shard.report(*flows)
        slots = stands_ms // 10
        shard.step(queue(SPINE, [60e3] * slots + [0.0] * (SLOTS - slots)))
        assert states(shard.made)[:1] == made, f"after {stands_ms} ms"


def test_several_senders_to_one_nic_are_incast_and_their_own_links_are_not():
    shard = Shard()
    shard.report(*(flow(n, n, 5, 300, [f"h{n}:eth1>leaf9:x", LAST]) for n in (1, 2, 3, 4)))
    (opened,) = shard.step(queue(LAST, 150e3), queue("h1:eth1>leaf9:x", 5e3))
    assert (opened["kind"], opened["flows_total"]) == ("INCAST", 4)
    assert opened["confidence"] > 0.8


def test_a_last_link_with_a_queue_and_headroom_is_a_slow_receiver():
    shard = Shard()
    shard.report(flow(1, 1, 5, 100, [UP1, SPINE, DOWN, LAST]), flow(2, 2, 5, 150, [UP2, SPINE, DOWN, LAST]))
    (opened,) = shard.step(queue(LAST, 150e3))
    assert opened["kind"] == "INCAST", "what was reported is of the time before: most are full"
    assert opened["confidence"] <= 0.7
    later = settled(shard, queue(LAST, 150e3))[LAST]
    assert later["kind"] == "SLOW_RECEIVER"
    assert later["confidence"] > 0.6
    assert "h5/eth1" in later["text"]


def test_a_receiver_that_closes_its_window_is_slow_without_any_queue():
    shard = Shard()
    slow = flow(1, 1, 5, 30, [UP1, SPINE, DOWN, LAST], busy_share=1.0, receiver_limited_share=0.9, job="j")
    shard.report(slow)
    (opened,) = shard.step(queue(LAST, 0.0))
    assert (opened["link"], opened["kind"], opened["depth_bytes"]) == (LAST, "SLOW_RECEIVER", 0.0)
    shard.report(slow | {"receiver_limited_share": 0.1})
    closed = [each for _ in range(4) for each in shard.step(queue(LAST, 0.0))][-1]
    assert (closed["state"], closed["kind"], closed["jobs"]) == ("CLOSED", "SLOW_RECEIVER", ["j"])


def test_a_flow_limited_by_its_own_host_is_a_slow_sender_at_its_first_link():
    shard = Shard()
    sender_limited = {"busy_share": 1.0, "sender_limited_share": 0.9}
    shard.report(
        flow(1, 1, 5, 30, [UP1, SPINE, DOWN, LAST], **sender_limited),
        flow(2, 2, 5, 30, [UP2, SPINE, DOWN, LAST], busy_share=0.1, sender_limited_share=0.95),
        flow(3, 3, 5, 30, ["h3:eth1>leaf1:z", SPINE], rate_limit_bps=31 * 10**6, **sender_limited),
    )
    (opened,) = shard.step(queue(SPINE, 0.0))
    assert (opened["link"], opened["kind"]) == (UP1, "SLOW_SENDER"), "an idle or a paced one is not slow"


def test_links_that_one_nic_stops_are_a_pause_storm():
    shard = Shard()
    victim = flow(3, 2, 6, 40, [UP2, SPINE, DOWN, LAST6])
    shard.report(
        flow(1, 1, 5, 30, [UP1, SPINE, DOWN, LAST]), flow(2, 2, 5, 30, [UP2, SPINE, DOWN, LAST]), victim
    )
    records = settled(shard, queue(SPINE, 100e3), queue(DOWN, 100e3), queue(LAST, 100e3), queue(LAST6, 0.0))
    kinds = {link: each["kind"] for link, each in records.items()}
    assert kinds == dict.fromkeys([SPINE, DOWN, LAST], "PAUSE_STORM")
    assert all(each["links"] == sorted([SPINE, DOWN, LAST]) for each in records.values())


def test_links_limited_by_an_incast_are_part_of_it():
    shard = Shard()
    shard.report(
        *(flow(n, n, 5, 500, [f"h{n}:eth1>leaf9:x", LAST]) for n in (3, 4)),
        flow(1, 1, 5, 200, [UP1, SPINE, DOWN, LAST]),
    )
    records = settled(shard, queue(SPINE, 100e3), queue(LAST, 100e3))
    assert {link: each["kind"] for link, each in records.items()} == {SPINE: "INCAST", LAST: "INCAST"}


def test_without_flow_reports_the_position_decides():
    shard = Shard()
    opened = shard.step(queue(SPINE, 80e3), queue(LAST6, 80e3))
    assert {each["link"]: each["kind"] for each in opened} == {SPINE: "COLLISION", LAST6: "INCAST"}
    assert all("no reported flow" in each["text"] for each in opened)
    assert all(each["confidence"] <= 0.6 for each in opened)
    shard = Shard()
    shard.report()
    opened = shard.step(queue(SPINE, 80e3), queue(LAST6, 80e3))
    assert {each["link"]: each["kind"] for each in opened} == {SPINE: "COLLISION", LAST6: "UNKNOWN"}
    assert max(each["confidence"] for each in opened) <= 0.5


def test_a_kind_follows_better_evidence_and_outlives_the_flows():
    shard = Shard()
    shard.report(flow(1, 1, 5, 100, [UP1, LAST]))
    assert shard.step(queue(LAST, 150e3))[0]["kind"] == "SLOW_RECEIVER"
    shard.report(*(flow(n, n, 5, 600, [LAST]) for n in (1, 2, 3)))
    for _ in range(8):
        shard.step(queue(LAST, 150e3))
    assert shard.made[-1]["kind"] == "INCAST"
    shard.report()
    closed = [each for _ in range(4) for each in shard.step(queue(LAST, 0.0))][-1]
    assert (closed["state"], closed["kind"], closed["flows_total"]) == ("CLOSED", "INCAST", 3)


def test_an_untraced_flow_counts_if_its_pairs_paths_agree():
    shard = Shard()
    routes = [[UP1, f"leaf1:s{n}>spine{n}:a", f"spine{n}:b>leaf2:s{n}", LAST] for n in (1, 2)]
    record = {
        "nic": "h1/eth1", "peer": "h5/eth1", "shard": "fabric", "run": 1, "traced_ns": 1,
        "paths": [
            {"path": n, "leg": "REQUEST", "links": hops, "found": "TRACED", "complete": True, "since_ns": 1,
             "changes": 0, "contradiction": None}
            for n, hops in enumerate(routes)
        ],
    }  # fmt: skip
    shard.report(flow(1, 1, 5, 1000, []))
    assert shard.flows.flows_on(LAST) == []
    shard.paths.take(b"h1/eth1>h5/eth1", codec.encode("PathMaps", record))
    shard.flows.advance(shard.window * WINDOW)
    assert [each.certain for each in shard.flows.flows_on(LAST)] == [True]
    (maybe,) = shard.flows.flows_on(routes[0][1])
    assert maybe.weight == 0.5
    (opened,) = shard.step(queue(routes[0][1], 80e3))
    assert opened["flows"] == []
    assert "1 flow may cross it" in opened["text"]


def test_aliased_links_are_one_window_that_names_them():
    shard = Shard()
    shard.report(flow(1, 1, 5, 600, [SPINE]), flow(2, 2, 6, 600, [SPINE]))
    aliased = [queue(SPINE, 12e3, group=3), queue(DOWN, 11e3, group=3)]
    (opened,) = shard.step(*aliased)
    assert (opened["link"], opened["candidates"]) == (SPINE, [DOWN])
    assert opened["depth_bytes"] == pytest.approx(23e3)
    assert f"aliased with {DOWN}" in opened["text"]
    shard.step(queue(SPINE, 5e3, group=1), queue(DOWN, 18e3, group=1))
    assert {each["link"] for each in shard.made} == {SPINE}, "the same link all along"


def test_a_window_is_updated_when_something_changes_and_each_second_otherwise():
    shard = Shard()
    pair = [flow(1, 1, 5, 600, [SPINE]), flow(2, 2, 6, 600, [SPINE])]
    shard.report(*pair)
    shard.step(queue(SPINE, 80e3))
    for _ in range(19):
        shard.step(queue(SPINE, 80e3))
    assert states(shard.made) == ["OPENED", "UPDATED"]
    shard.report(*pair, flow(3, 3, 6, 600, [SPINE]))
    for _ in range(3):
        shard.step(queue(SPINE, 80e3))
    assert states(shard.made) == ["OPENED", "UPDATED", "UPDATED"]
    assert shard.made[-1]["flows_total"] == 3
    assert shard.made[-1]["updated_ns"] - shard.made[-2]["updated_ns"] >= 250 * MS


def test_a_link_that_is_not_named_has_no_queue_and_a_gap_ends_all():
    shard = Shard()
    shard.step(queue(SPINE, 80e3))
    for _ in range(4):
        shard.step(queue(DOWN, 0.0))
    assert states(shard.made) == ["OPENED", "CLOSED"], "records name the links that queue"

    shard.step(queue(SPINE, 80e3))
    shard.window += 600
    assert shard.step(queue(SPINE, 80e3)) == [], "one window far from all others may be a mistake"
    late = shard.step(queue(SPINE, 80e3))
    assert states(late) == ["CLOSED", "OPENED"], "a minute is missing: that is no queue of a minute"
    assert "no longer measured" in late[0]["text"]
    assert late[0]["closed_ns"] < late[1]["opened_ns"] - 59 * 10**9


def test_one_absurd_window_hides_no_other():
    """A window that claimed to be an hour ahead once hid all contention for that hour."""
    shard = Shard()
    shard.step(queue(DOWN, 0.0))
    for ahead in (3_000, 36_000, -36_000):
        before = shard.window
        shard.window += ahead
        shard.step(queue(DOWN, 80e3))
        shard.window = before + 1
        made = shard.step(queue(SPINE, 80e3))
        made += [record for _ in range(4) for record in shard.step(queue(DOWN, 0.0))]
        assert states(made) == ["OPENED", "CLOSED"], ahead
        assert {record["link"] for record in made} == {SPINE}


def test_contention_follows_a_step_back_of_fabric_time():
    shard = Shard()
    shard.step(queue(SPINE, 80e3))
    shard.window -= 36_000
    made = [record for _ in range(3) for record in shard.step(queue(SPINE, 80e3))]
    assert states(made) == ["CLOSED", "OPENED"]


def noisy(seed: int) -> list[list[dict[str, Any]]]:
    rng = random.Random(seed)
    level = dict.fromkeys((SPINE, DOWN, LAST, LAST6), 0.0)
    windows = []
    for _ in range(120):
        links = []
        for link in level:
            if rng.random() < 0.05:
                level[link] = rng.choice((0.0, 0.0, 40e3, 150e3))
            depth = [max(0.0, level[link] + rng.gauss(0, 8e3)) for _ in range(SLOTS)]
            if rng.random() < 0.95:
                links.append(queue(link, depth))
        windows.append(links)
    return windows


def fed(shard: Shard) -> None:
    shard.report(
        flow(1, 1, 5, 500, [UP1, SPINE, DOWN, LAST]), flow(2, 2, 5, 600, [UP2, SPINE, DOWN, LAST]),
        flow(3, 3, 6, 300, [LAST6]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_replay_gives_the_same_records(seed):
    both = []
    for _ in range(2):
        shard = Shard()
        for number, links in enumerate(noisy(seed)):
            if number % 10 == 0:
                fed(shard)
            shard.step(*links)
        both.append(shard.made)
    assert both[0] == both[1]
    assert {"OPENED", "UPDATED", "CLOSED"} == set(states(both[0]))
    for one in {each["window_id"] for each in both[0]}:
        updates = [each["update"] for each in both[0] if each["window_id"] == one]
        assert updates == list(range(len(updates)))


@pytest.mark.parametrize("seed", range(8))
def test_a_new_owner_goes_on_from_the_published_records(seed):
    """It reads unacknowledged records again, and opens and closes the same windows at the same times."""
    whole = Shard()
    fed(whole)
    for links in noisy(seed):
        whole.step(*links)

    shard = Shard()
    fed(shard)
    rng = random.Random(seed)
    for links in noisy(seed):
        shard.step(*links)
        if rng.random() < 0.1:  # its worker dies; the last record may be lost with it, or not
            needed = shard.watch.needed_from_ns
            again = [each for each in shard.heard if each["window_start_ns"] + WINDOW > needed]
            shard.watch = shard.new()
            shard.watch.recover(rng.sample(shard.made, len(shard.made)))
            for record in again:
                shard.made += shard.watch.ingest(record, RULES)

    def ends(made: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted((each["window_id"], each["closed_ns"]) for each in made if each["state"] == "CLOSED")

    assert ends(shard.made) == ends(whole.made)
    over = {each["window_id"]: each["over_ns"] for each in whole.made if each["state"] == "CLOSED"}
    assert over == {each["window_id"]: each["over_ns"] for each in shard.made if each["state"] == "CLOSED"}
    assert len({(each["window_id"], each["update"]) for each in shard.made}) == len(shard.made)


def test_repeated_and_older_windows_change_nothing_and_parts_make_one():
    shard = Shard()
    shard.step(queue(SPINE, 80e3))
    again = shard.heard[0]
    assert shard.watch.ingest(again, RULES) == []
    assert shard.watch.repeated == 1
    first = again | {"window": shard.window, "window_start_ns": shard.window * WINDOW, "parts": 2}
    assert shard.watch.ingest(first | {"links": again["links"]}, RULES) == []
    second = first | {"part": 1, "links": [again["links"][0] | {"link": DOWN}]}
    assert [each["link"] for each in shard.watch.ingest(second, RULES)] == [DOWN]
    broken = first | {"window": shard.window + 1, "window_start_ns": (shard.window + 1) * WINDOW}
    assert shard.watch.ingest(broken, RULES) == []
    after = again | {"window": shard.window + 2, "window_start_ns": (shard.window + 2) * WINDOW, "links": []}
    shard.watch.ingest(after, RULES)
    assert shard.watch.open_windows == 2, "the part that never came is not waited for for ever"


# ------------------------------------------------------------------------------------------- CE marks


def marked(
    link: str, share: list[float] | float, depth: list[float] | float = 0.0, **more: Any
) -> dict[str, Any]:
    """A link whose probes are marked, slot by slot."""
    shares = [share] * SLOTS if isinstance(share, int | float) else share
    slots = [n for n, value in enumerate(shares) if value > 0]
    ce = {"ce_slot": slots, "ce": [shares[n] for n in slots], "ce_share": sum(shares) / SLOTS}
    return queue(link, depth, **ce, **more)


def test_marked_probes_open_a_window_without_any_wait():
    shard = Shard()
    shard.step(marked(SPINE, 0.0))
    begin = shard.window * WINDOW
    (opened,) = shard.step(marked(SPINE, [0.0] * 4 + [0.5] * 6, dscp=26))
    assert (opened["state"], opened["detected_by"], opened["dscp"]) == ("OPENED", "CE", 26)
    assert opened["opened_ns"] == begin + 4 * SLOT
    assert (opened["depth_bytes"], opened["ce_share"]) == (0.0, pytest.approx(0.5))
    assert opened["text"].endswith("50% marked with CE, class DSCP 26")
    closed = [each for _ in range(4) for each in shard.step(marked(SPINE, 0.0))][-1]
    assert (closed["state"], closed["detected_by"], closed["ce_share"]) == ("CLOSED", "CE", 0.0)


@pytest.mark.parametrize(
    ("depth", "share", "expected"),
    [(60e3, 0.0, "DELAY"), (60e3, 0.3, "BOTH"), (5e3, 0.3, "CE"), (60e3, 0.05, "DELAY")],
)
def test_a_window_names_its_evidence(depth, share, expected):
    shard = Shard()
    (opened,) = shard.step(marked(SPINE, share, depth))
    assert opened["detected_by"] == expected


def test_marks_open_as_early_as_a_deep_queue_whatever_the_flows():
    """A queue without reported flows has less weight; marks need no flow."""
    shard = Shard()
    shard.report()
    assert shard.step(queue(SPINE, [0.0] * 6 + [60e3] * 4)) == []
    other = Shard()
    other.report()
    (opened,) = other.step(marked(SPINE, [0.0] * 6 + [0.3] * 4, [0.0] * 6 + [60e3] * 4))
    assert (opened["detected_by"], opened["opened_ns"]) == ("BOTH", other.window * WINDOW - 4 * SLOT)


def test_rare_marks_open_nothing():
    shard = Shard()
    for share in (0.05, [0.5] + [0.0] * 9):
        assert shard.step(marked(SPINE, share)) == []


def test_evidence_that_joins_is_published_and_survives_a_new_owner():
    shard = Shard()
    shard.step(queue(SPINE, 60e3))
    for _ in range(3):
        shard.step(marked(SPINE, 0.4, 60e3))
    assert [each["detected_by"] for each in shard.made] == ["DELAY", "BOTH"]
    assert states(shard.made) == ["OPENED", "UPDATED"]
    heir = Shard()
    heir.watch.recover(shard.made)
    heir.window = shard.window
    for _ in range(3):
        heir.step(queue(SPINE, 60e3))
    closed = [each for _ in range(4) for each in heir.step(queue(SPINE, 0.0))][-1]
    assert (closed["state"], closed["detected_by"]) == ("CLOSED", "BOTH")


def test_marks_of_aliased_links_are_one_window():
    shard = Shard()
    (opened,) = shard.step(marked(SPINE, 0.4, group=3), marked(DOWN, 0.4, group=3))
    assert opened["candidates"] == [max(SPINE, DOWN)] or opened["candidates"] == [min(SPINE, DOWN)]
    assert opened["ce_share"] == pytest.approx(0.4)
