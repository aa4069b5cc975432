"""What a prober takes of the turns that are laid for it: its own, at its own pace, on its own clock."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from producers.probe.schedule import ScheduleFollower, slot_of
from producers.settings import ProbeSettings
from schemas import codec
from schemas.topics import PROBE_SCHEDULES

S = 1_000_000_000


class FakeEngine:
    """The calls that matter, noted; its clock runs 5 s and 20 ppm fast."""

    def __init__(self) -> None:
        self.path_ports = self.all_ports = (9320, 9321)
        self.peers = [SimpleNamespace(nic="h2/eth1")]
        self.calls: list[tuple[Any, ...]] = []

    def clock_now(self) -> tuple[int, int]:
        now_ns = time.monotonic_ns()
        return now_ns + 5 * S + now_ns // 50_000, now_ns

    def set_schedule(self, *arguments: Any) -> None:
        self.calls.append(("set", *arguments))

    def shift_schedule(self, at_ns: int) -> None:
        self.calls.append(("shift", at_ns))


def plan(**more: Any) -> dict[str, Any]:
    now_ns = time.monotonic_ns()
    record = {
        "nic": "h1/eth1",
        "shard": "fabric",
        "planned_ns": 7,
        "begin_ns": now_ns - 3 * S,
        "slot_ns": 5e6,
        "probes_per_slot": 2,
        "clock_at_ns": now_ns + 5 * S + now_ns // 50_000,
        "offset_ns": -(5e9 + now_ns // 50_000),
        "drift_ppb": -20_000.0,
        "peers": ["h2/eth1", "h3/eth1"],
        "peer": [0, 1, 1, 0],
        "path": [9320, 9321, 9320, 9321],
    } | more
    return codec.decode(codec.encode(PROBE_SCHEDULES.record, record), PROBE_SCHEDULES.record)


def taker() -> tuple[ScheduleFollower, FakeEngine]:
    engine = FakeEngine()
    return ScheduleFollower(engine, "h1/eth1", (5_000_000, 4)), engine  # type: ignore[arg-type]


def test_a_plan_is_set_once_on_the_engine_s_time_and_then_kept_where_it_is():
    follower, engine = taker()
    follower.refresh()
    assert engine.calls == []
    record = plan()
    follower.on_schedule("h2/eth1", plan(nic="h2/eth1"), 0)
    follower.refresh()
    assert engine.calls == [], "another NIC's"
    follower.on_schedule("h1/eth1", record, 0)
    follower.refresh()
    [(call, at_ns, slot_ns, probes_per_slot, paths)] = engine.calls
    assert (call, slot_ns, probes_per_slot) == ("set", 5e6, 2)
    assert at_ns == pytest.approx(record["begin_ns"], abs=50_000)
    assert paths == [("h2/eth1", 9320), ("h3/eth1", 9321), ("h3/eth1", 9320), ("h2/eth1", 9321)]
    follower.refresh()
    assert engine.calls[1][0] == "shift"
    assert engine.calls[1][1] == pytest.approx(record["begin_ns"], abs=50_000)
    engine.peers.append(SimpleNamespace(nic="h3/eth1"))
    follower.refresh()
    assert engine.calls[2][0] == "set", "peers have other places now"
    follower.on_schedule("h1/eth1", None, 0)
    follower.refresh()
    assert engine.calls[3] == ("set", 0, 1e9, 1, ())
    assert not follower.is_active


@pytest.mark.parametrize(
    "bent",
    [
        {"probes_per_slot": 5},
        {"probes_per_slot": 3},
        {"slot_ns": 4e6},
        {"peer": [0, 1, 1]},
        {"peer": [0, 1, 2, 0]},
        {"peer": [], "path": []},
        {"offset_ns": 4 * 10**18},
        {"drift_ppb": -1e9},
    ],
)
def test_a_plan_that_would_send_faster_or_nowhere_is_refused_and_the_last_one_stands(bent: dict[str, Any]):
    follower, engine = taker()
    follower.on_schedule("h1/eth1", plan(), 0)
    follower.refresh()
    follower.on_schedule("h1/eth1", plan(**bent), 0)
    follower.refresh()
    assert follower.refused == 1
    assert [call[0] for call in engine.calls] == ["set", "shift"]


@pytest.mark.parametrize(
    "bent", [{"begin_ns": -(2**62)}, {"offset_ns": 39 * 10**17}, {"clock_at_ns": -(2**62), "drift_ppb": 9e7}]
)
def test_a_plan_of_another_age_is_let_go(bent: dict[str, Any]):
    follower, engine = taker()
    follower.on_schedule("h1/eth1", plan(**bent), 0)
    follower.refresh()
    follower.refresh()
    assert follower.refused == 1
    assert engine.calls == []
    follower.on_schedule("h1/eth1", plan(), 0)
    follower.refresh()
    assert follower.is_active


def test_the_pace_makes_the_rate():
    common = {"kafka": {"bootstrap": "127.0.0.1:1"}, "key_file": "/nowhere"}
    settings = ProbeSettings.model_validate(common | {"rate_pps": 1000, "singles": 3, "spacing_ns": 20_000})
    assert slot_of(settings) == (5_000_000, 4)
    assert slot_of(settings.model_copy(update={"singles": 0, "spacing_ns": 0, "rate_pps": 4000})) == (
        250_000,
        1,
    )
    assert slot_of(settings.model_copy(update={"scheduled": False})) == (0, 0)
