"""Alerts: each cause once, raised and cleared; the same records give the same alerts, however
cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.core import bucket_of
from schemas import codec
from schemas.topics import ALERTS, CLOCK_OFFSETS, CONTENTION, DELAYS, LINK_HEALTH
from streams.alerts.book import Published
from streams.alerts.shard_alerts import ShardAlerts
from streams.runtime.thresholds import Thresholds

MS = 1_000_000
S = 1_000_000_000
T0 = 1_760_000_000 * S
SHIFT = 7_000
"""Fabric time minus the log's."""

Input = tuple[str, str, dict[str, Any] | None, int]


def cable(leaf: int, spine: int) -> str:
    return f"leaf{leaf}:swp{spine + 2}<>spine{spine}:swp{leaf}"


def access(host: int) -> str:
    return f"h{host}:eth1<>leaf{(host + 1) // 2}:swp{2 - host % 2}"


class Script:
    """Writes the records that a shard's other stages would."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []
        self.now_ns = T0
        self._seq: dict[str, int] = {}
        self._flaps: dict[str, int] = {}

    def wait(self, seconds: float) -> Script:
        self.now_ns += round(seconds * S)
        return self

    def health(self, subject: str, state: str, kind: str = "LINK", loss: float = 0.0, **more: Any) -> Script:
        seq = self._seq[subject] = self._seq.get(subject, 0) + 1
        flaps = self._flaps[subject] = self._flaps.get(subject, 0) + (state == "DOWN")
        at_ns = self.now_ns + SHIFT
        record = {
            "subject": subject, "kind": kind, "shard": "fabric", "seq": seq, "state": state, "before": "UP",
            "links": [subject.replace("<>", ">")] if kind == "LINK" else [],
            "candidates": more.get("candidates", []),
            "since_ns": at_ns - 20 * MS, "evaluated_ns": at_ns, "loss_rate": loss or None,
            "flaps_hour": flaps, "flaps_total": flaps, "detected_by": "PROBES",
            "text": f"{subject} is {state}",
        }  # fmt: skip
        codec.encode(LINK_HEALTH.record, record)
        self.inputs.append((LINK_HEALTH.name, subject, record, self.now_ns))
        return self

    def forget(self, subject: str) -> Script:
        self.inputs.append((LINK_HEALTH.name, subject, None, self.now_ns))
        return self

    def queue(self, link: str, state: str, opened_s: float, kind: str = "INCAST", **more: Any) -> Script:
        at_ns, opened_ns = self.now_ns + SHIFT, T0 + SHIFT + round(opened_s * S)
        record = {
            "window_id": f"fabric/{link}/{opened_ns}", "link": link, "shard": "fabric", "update": 1,
            "state": state, "kind": kind, "confidence": 1.0, "opened_ns": opened_ns, "updated_ns": at_ns,
            "closed_ns": at_ns if state == "CLOSED" else None, "depth_bytes": 1.0, "depth_peak_bytes": 2.0,
            "delay_ns": 1.0, "over_ns": 0, "over_byte_s": 0.0, "rate_bps": 0, "flows": [], "jobs": ["j1"],
            "links": more.get("links", []), "text": f"queue at {link}",
        }  # fmt: skip
        codec.encode(CONTENTION.record, record)
        self.inputs.append((CONTENTION.name, link, record, self.now_ns))
        return self

    def clocks(self, states: Sequence[str]) -> Script:
        window = self.now_ns // S
        record = {
            "shard": "fabric", "window": window, "part": 0, "parts": 1,
            "window_start_ns": window * S + SHIFT, "window_end_ns": (window + 1) * S + SHIFT,
            "clocks": [{"clock": f"h{i + 1}/system", "state": state} for i, state in enumerate(states)],
        }  # fmt: skip
        self.inputs.append((CLOCK_OFFSETS.name, "fabric/0", record, self.now_ns))
        return self


def book(**thresholds: float) -> ShardAlerts:
    cables = {"leaf1": 6, "leaf2": 6, "leaf3": 6, "leaf4": 6} | {f"spine{i}": 4 for i in range(1, 5)}
    return ShardAlerts("fabric", Thresholds(thresholds), lambda node: cables.get(node, 0))


def ingest(alerts: ShardAlerts, topic: str, key: str, record: Any, append_ns: int) -> Published:
    if topic == DELAYS.name:
        return alerts.ingest_delays(record)
    if topic == LINK_HEALTH.name:
        return alerts.ingest_health(key, record, append_ns)
    if topic == CONTENTION.name:
        return alerts.ingest_contention(record, append_ns)
    return alerts.ingest_clocks(record, append_ns)


def play(inputs: Sequence[Input], alerts: ShardAlerts | None = None, rest_s: float = 700) -> list[Any]:
    """Every alert record of some inputs, in the order in which it is published."""
    alerts = alerts or book()
    found = []
    for topic, key, record, append_ns in inputs:
        found += ingest(alerts, topic, key, record, append_ns)
    found += alerts.evaluate(inputs[-1][3] + round(rest_s * S))
    for key, record in found:
        codec.encode(ALERTS.record, record)
        assert key == record["subject"]
    return [record for _, record in found]


def lines(records: Sequence[Any]) -> list[tuple[str, str, str]]:
    return [(r["kind"], r["subject"], r["state"]) for r in records]


def test_a_dead_link_is_raised_once_and_cleared_once() -> None:
    script = Script().health(cable(1, 2), "DOWN").wait(10).health(cable(1, 2), "DOWN").wait(20)
    script.inputs[-1][2]["seq"] = 1  # type: ignore[index]  # told again, as every 10 s
    records = play(script.health(cable(1, 2), "UP").inputs)
    assert lines(records)[0] == ("LINK_DOWN", cable(1, 2), "RAISED")
    assert lines(records)[-1] == ("LINK_DOWN", cable(1, 2), "CLEARED")
    assert [r["state"] for r in records].count("CLEARED") == 1
    assert {r["alert_id"] for r in records} == {f"LINK_DOWN:{cable(1, 2)}:{T0 + SHIFT - 20 * MS}"}
    raised, cleared = records[0], records[-1]
    assert raised["severity"] == "CRITICAL"
    assert raised["evidence"] == [{
        "topic": LINK_HEALTH.name, "key": cable(1, 2), "at_ns": T0 + SHIFT, "text": f"{cable(1, 2)} is DOWN"
    }]  # fmt: skip
    assert cleared["cleared_ns"] == T0 + 30 * S + SHIFT - 20 * MS
    assert [r["update"] for r in records] == list(range(len(records)))


def test_a_dead_spine_is_one_alert_on_the_spine() -> None:
    script = Script()
    for leaf in (3, 1, 4, 2):
        script.health(cable(leaf, 2), "DOWN").wait(0.03)
    records = play(script.inputs, rest_s=5)
    assert lines(records) == [("LINK_DOWN", "spine2", "RAISED")]
    assert sorted(records[0]["grouped"]) == [cable(leaf, 2) for leaf in (1, 2, 3, 4)]
    assert records[0]["text"].startswith("spine2: 4 of its 4 cables are down since ")
    script.wait(5)
    for leaf in (3, 1, 4, 2):
        script.health(cable(leaf, 2), "UP").wait(0.5)
    assert lines(play(script.inputs)) == [
        ("LINK_DOWN", "spine2", "RAISED"),
        ("LINK_DOWN", "spine2", "CLEARED"),
    ]


def test_cables_that_follow_an_active_alert_join_it() -> None:
    script = Script().health(cable(1, 2), "DOWN").wait(0.5)
    for leaf in (2, 3, 4):
        script.health(cable(leaf, 2), "DOWN").wait(0.01)
    records = play(script.inputs, rest_s=5)
    assert {r["alert_id"] for r in records} == {f"LINK_DOWN:{cable(1, 2)}:{T0 + SHIFT - 20 * MS}"}
    assert set(records[-1]["grouped"]) == {cable(leaf, 2) for leaf in (2, 3, 4)}
    assert "spine2: 4 of its 4 cables" in records[-1]["text"]


def test_two_links_at_one_spine_are_two_alerts() -> None:
    script = Script().health(cable(1, 2), "DOWN").health(cable(3, 2), "DOWN")
    assert {r["subject"] for r in play(script.inputs, rest_s=5)} == {cable(1, 2), cable(3, 2)}


def test_a_dead_host_groups_its_nics_and_cables() -> None:
    script = Script().health(access(3), "DOWN", candidates=["h3/eth1"]).wait(3)
    script.health("h3", "DOWN", kind="HOST").wait(0.01).health("h3/eth2", "DOWN", kind="NIC").wait(4)
    records = play(script.inputs, rest_s=5)
    standing = {r["subject"]: r for r in records if r["state"] == "RAISED"} | {
        r["subject"]: None for r in records if r["state"] == "CLEARED"
    }
    assert standing[access(3)] is None
    assert standing["h3"]["grouped"] == ["h3/eth2", access(3)]
    assert set(standing["h3"]["nics"]) == {"h3/eth2", "h3/eth1"}
    script.forget("h3").forget(access(3)).forget("h3/eth2")
    last = play(script.inputs)[-1]
    assert (last["subject"], last["state"]) == ("h3", "CLEARED")
    assert "did not come back" in last["text"]


def test_a_link_that_flaps_is_few_alerts_and_then_one() -> None:
    script = Script()
    for _ in range(12):
        script.health(cable(2, 3), "DOWN").wait(1)
        up = "FLAPPING" if script._flaps[cable(2, 3)] > 8 else "UP"
        script.health(cable(2, 3), up).wait(15)
    records = play(script.inputs, rest_s=1)
    raised = [(r["kind"], r["raised_ns"]) for r in records if r["update"] == 0]
    assert [kind for kind, _ in raised].count("LINK_FLAPPING") == 1
    assert len(raised) <= 4  # holding it open grows with each flap
    script.health(cable(2, 3), "UP")
    assert lines(play(script.inputs))[-1] == ("LINK_FLAPPING", cable(2, 3), "CLEARED")


def test_a_lossy_link_is_critical_from_a_share_on_and_yields_to_its_death() -> None:
    records = play(Script().health(cable(1, 1), "GREY", loss=0.02).inputs)
    assert (records[0]["kind"], records[0]["severity"]) == ("LINK_GREY", "WARNING")
    script = Script().health(cable(1, 1), "GREY", loss=0.2).wait(5).health(cable(1, 1), "DOWN").wait(9)
    records = play(script.health(cable(1, 1), "UP").inputs)
    assert records[0]["severity"] == "CRITICAL"
    assert lines(records) == [
        ("LINK_GREY", cable(1, 1), "RAISED"),
        ("LINK_GREY", cable(1, 1), "CLEARED"),
        ("LINK_DOWN", cable(1, 1), "RAISED"),
        ("LINK_DOWN", cable(1, 1), "CLEARED"),
    ]


def test_a_queue_that_persists_is_one_alert_while_it_comes_and_goes() -> None:
    link = "spine1:swp1>leaf1:swp3"
    script = Script().queue(link, "OPENED", 0).wait(1).queue(link, "CLOSED", 0).wait(20)
    assert play(script.inputs) == []
    script.queue(link, "OPENED", 21).wait(6).queue(link, "UPDATED", 21).wait(1).queue(link, "CLOSED", 21)
    script.wait(2).queue(link, "OPENED", 30).wait(6).queue(link, "UPDATED", 30).queue(link, "CLOSED", 30)
    records = play(script.inputs)
    assert lines(records) == [("CONTENTION", link, "RAISED"), ("CONTENTION", link, "CLEARED")]
    assert records[0]["jobs"] == ["j1"]
    assert records[0]["raised_ns"] == T0 + 21 * S + SHIFT


def test_queues_behind_a_dead_link_belong_to_its_alert() -> None:
    link, elsewhere = "leaf1:swp3>spine1:swp1", "leaf4:swp3>spine1:swp4"
    script = Script().health(cable(1, 2), "DOWN").wait(2)
    script.queue(link, "OPENED", 2).queue(elsewhere, "OPENED", 2).wait(6)
    script.queue(link, "UPDATED", 2).queue(elsewhere, "UPDATED", 2)
    records = play(script.inputs, rest_s=1)
    assert records[-1]["subject"] == elsewhere
    dead = [r for r in records if r["kind"] == "LINK_DOWN"][-1]
    assert dead["grouped"] == [link]
    assert dead["evidence"][-1]["topic"] == CONTENTION.name
    assert {r["subject"] for r in records} == {cable(1, 2), elsewhere}


def test_links_that_one_nic_stops_are_one_alert() -> None:
    root, up = "leaf1:swp1>h1:eth1", "spine1:swp1>leaf1:swp3"
    script = Script().queue(root, "OPENED", 0, "PAUSE_STORM", links=[up]).wait(6)
    script.queue(root, "UPDATED", 0, "PAUSE_STORM", links=[up]).queue(up, "UPDATED", 0, "PAUSE_STORM")
    records = play(script.inputs, rest_s=1)
    assert {r["subject"] for r in records} == {root}
    assert records[0]["severity"] == "CRITICAL"


def test_clocks_are_one_alert_where_many_are_lost_for_long_and_no_dead_hosts() -> None:
    script = Script()
    for _ in range(30):
        script.clocks(["SYNCED"] * 7 + ["UNSYNCED"]).wait(1)
    for _ in range(5):
        script.clocks(["SYNCED"] * 8).wait(1)
    records = play(script.inputs)
    assert lines(records) == [("CLOCKS", "fabric", "RAISED"), ("CLOCKS", "fabric", "CLEARED")]
    assert records[0]["grouped"] == ["h8/system"]
    script = Script().health("h8", "DOWN", kind="HOST")
    for _ in range(30):
        script.clocks(["SYNCED"] * 7 + ["UNSYNCED"]).wait(1)
    assert {r["kind"] for r in play(script.inputs)} == {"HOST_DOWN"}


SUBJECTS = [cable(1, 1), cable(1, 2), cable(2, 2), cable(3, 2), cable(4, 2), access(1)]


@st.composite
def scripts(draw: st.DrawFn) -> list[Input]:
    script, state = Script(), dict.fromkeys(SUBJECTS, "UP")
    opened: dict[str, float] = {}
    host = "UP"
    for _ in range(draw(st.integers(5, 30))):
        script.wait(draw(st.sampled_from([0.03, 0.1, 0.4, 3.0, 8.0, 40.0, 200.0])))
        subject = draw(st.sampled_from([*SUBJECTS, "queue", "host", "clocks"]))
        if subject == "queue":
            link = draw(st.sampled_from(["leaf1:swp3>spine1:swp1", "leaf3:swp3>spine1:swp3"]))
            if link in opened and draw(st.booleans()):
                script.queue(link, "CLOSED", opened.pop(link))
            elif link in opened:
                script.queue(link, "UPDATED", opened[link])
            else:
                opened[link] = (script.now_ns - T0) / S
                script.queue(link, "OPENED", opened[link])
        elif subject == "host":
            host = "UP" if host == "DOWN" else "DOWN"
            script.health("h1", host, kind="HOST")
        elif subject == "clocks":
            script.clocks(draw(st.sampled_from([["SYNCED"] * 4, ["UNSYNCED"] * 4])))
        else:
            other = draw(st.sampled_from([s for s in ("UP", "DOWN", "GREY") if s != state[subject]]))
            state[subject] = other
            often = script._flaps.get(subject, 0) > 8 and other == "UP"
            script.health(subject, "FLAPPING" if often else other, loss=0.03 if other == "GREY" else 0.0)
    return script.inputs


@settings(max_examples=120, deadline=None)
@given(inputs=scripts(), data=st.data())
def test_records_read_again_from_any_cut_give_the_same_alerts(
    inputs: list[Input], data: st.DataObject
) -> None:
    whole = play(inputs)
    by_id: dict[str, list[Any]] = {}
    for record in whole:
        by_id.setdefault(record["alert_id"], []).append(record)
    for of_id in by_id.values():
        states = [r["state"] for r in of_id]
        assert [r["update"] for r in of_id] == list(range(len(of_id)))
        assert states == ["RAISED"] * (len(states) - 1) + [states[-1]]
    cut = data.draw(st.integers(1, len(inputs)))
    first = book()
    published = [r for one in inputs[:cut] for _, r in ingest(first, *one)]
    second = book()
    second.recover(published)
    horizon_ns = inputs[cut - 1][3] - 3600 * S
    again = [one for one in inputs if one[3] >= horizon_ns]
    published += play(again, second)
    merged = {(r["alert_id"], r["update"]): r for r in published}
    assert merged == {(r["alert_id"], r["update"]): r for r in whole}


@pytest.mark.parametrize("name", ["alert_gather_ms", "alert_clear_s"])
def test_the_waits_are_thresholds(name: str) -> None:
    script = Script().health(cable(1, 2), "DOWN").wait(1).health(cable(1, 2), "UP").wait(1)
    records = play(script.health(cable(3, 3), "UP").inputs, book(**{name: 0}), rest_s=0)
    states = [r["state"] for r in records]
    assert states == (["RAISED"] if name == "alert_gather_ms" else ["RAISED", "CLEARED"])


# ---------------------------------------------------------------------------------------- promises

RULE = {"name": "gold", "from_group": "h1", "to_group": "h2", "p99_us": 20.0, "for_s": 5.0}


def slow(window: int, us: float) -> Input:
    """Return one second of h1's measured delays: all probes to h2 took this long."""
    start_ns = T0 + window * S
    legs = {
        f"{leg}_{key}": value
        for leg, each in (("forward", 1e3 * us), ("reverse", 3e3))
        for key, value in (
            ("min_ns", each), ("p50_ns", each), ("p99_ns", each), ("bucket", [bucket_of(each)]),
            ("bucket_count", [100]),
        )
    }  # fmt: skip
    path = {
        "peer": "h2/eth1", "path": 9320, "count": 100, "lost": 0, "no_t3": 0, "rtt_min_ns": 6e3,
        "rtt_p50_ns": 6e3, "rtt_p99_ns": 6e3, "bound_ns": 50.0, **legs,
    }  # fmt: skip
    record = {
        "nic": "h1/eth1", "shard": "fabric", "window": window, "part": 0, "parts": 1,
        "window_start_ns": start_ns, "window_end_ns": start_ns + S, "state": "SYNCED", "paths": [path],
    }  # fmt: skip
    codec.encode(DELAYS.record, record)
    return (DELAYS.name, "h1/eth1", record, start_ns + S + 100 * MS)


def by_host(nic: str) -> frozenset[str]:
    return frozenset({"*", nic, nic.partition("/")[0]})


def test_a_broken_latency_slo_is_raised_once_with_its_pair_and_cleared():
    alerts = ShardAlerts("fabric", groups=by_host)
    assert alerts.set_latency_rules([RULE]) == []
    assert alerts.wants_delays("h1/eth1")
    assert not alerts.wants_delays("h3/eth1")
    out = []
    for window in range(30):
        out += ingest(alerts, *slow(window, 90.0 if 5 <= window < 15 else 4.0))
    assert [(r["state"], r["update"]) for _, r in out] == [("RAISED", 0), ("CLEARED", 1)]
    raised, cleared = (record for _, record in out)
    for record in (raised, cleared):
        codec.encode(ALERTS.record, record)
    assert raised["kind"] == "LATENCY"
    assert raised["subject"] == "latency:gold"
    assert raised["raised_ns"] == T0 + 5 * S
    assert raised["text"].startswith("gold: p99 above 20 us for 5 s between h1 and h2: h1/eth1 to h2/eth1 ")
    assert raised["nics"] == ["h1/eth1", "h2/eth1"]
    assert [(e["topic"], e["key"]) for e in raised["evidence"]] == [(DELAYS.name, "h1/eth1")]
    assert cleared["cleared_ns"] == T0 + 15 * S


def test_a_new_owner_continues_a_broken_latency_slo_and_raises_nothing_twice():
    first = ShardAlerts("fabric", groups=by_host)
    first.set_latency_rules([RULE])
    out = []
    for window in range(14):
        out += ingest(first, *slow(window, 90.0 if window >= 5 else 4.0))
    assert [r["state"] for _, r in out] == ["RAISED"]
    second = ShardAlerts("fabric", groups=by_host)
    second.recover([record for _, record in out])
    assert second.set_latency_rules([RULE]) == []
    more = []
    for window in range(9, 30):
        more += ingest(second, *slow(window, 90.0 if window < 16 else 4.0))
    assert [(r["alert_id"], r["state"]) for _, r in more] == [(out[0][1]["alert_id"], "CLEARED")]
    third = ShardAlerts("fabric", groups=by_host)
    third.recover([record for _, record in out + more])
    third.set_latency_rules([RULE])
    again = []
    for window in range(9, 30):
        again += ingest(third, *slow(window, 90.0 if window < 16 else 4.0))
    assert again == []


def test_a_removed_rule_clears_its_alert():
    alerts = ShardAlerts("fabric", groups=by_host)
    alerts.set_latency_rules([RULE])
    out = []
    for window in range(12):
        out += ingest(alerts, *slow(window, 90.0))
    assert [r["state"] for _, r in out] == ["RAISED"]
    assert [r["state"] for _, r in alerts.set_latency_rules([])] == ["CLEARED"]
    assert not alerts.wants_delays("h1/eth1")
    # and where its owner died before
    other = ShardAlerts("fabric", groups=by_host)
    other.recover([record for _, record in out])
    [(_, cleared)] = other.set_latency_rules([])
    assert (cleared["alert_id"], cleared["state"]) == (out[0][1]["alert_id"], "CLEARED")
    assert other.open_ids() == []
