"""The tables of every worker: inventory and newest clocks."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from streams.runtime.tables import ClockTable, Inventory

S = 1_000_000_000


def nic(name: str, clock: str, shard: str = "fabric", **more: Any) -> bytes:
    return codec.encode(
        "Nic",
        {
            "nic": name,
            "host": name.split("/")[0],
            "device": "e0",
            "shard": shard,
            "rail": None,
            "rack": None,
            "addresses": [],
            "probe_port": 0,
            "clock": clock,
            "stamp": "KERNEL",
            "speed_bps": None,
            "mtu_bytes": None,
            "run": 1,
            "since_ns": 0,
            "announced_ns": 0,
            "capabilities": [],
            **more,
        },
    )


def offsets(window: int, clocks: dict[str, tuple[float, str]], part: int = 0, parts: int = 1) -> bytes:
    return codec.encode(
        "ClockOffsets",
        {
            "shard": "fabric",
            "window": window,
            "part": part,
            "parts": parts,
            "domain": "d",
            "window_start_ns": window * S + 7,
            "window_end_ns": (window + 1) * S + 7,
            "log_offset_ns": 7,
            "solved_ns": 0,
            "source_ranges": [],
            "clocks": [
                {
                    "clock": name,
                    "at_ns": window * S,
                    "offset_ns": offset,
                    "offset_fraction_ns": 0.0,
                    "drift_ppb": 0.0,
                    "bound_ns": 1.0,
                    "state": state,
                    "pairs": 1,
                    "residual_ns": 0.0,
                }
                for name, (offset, state) in clocks.items()
            ],
        },
    )


def test_probe_slots_are_known_until_the_prober_withdraws_them() -> None:
    view = Inventory("fabric")
    versions = []
    for more in (
        {},
        {"probe_port": 9319, "slot_ns": 5_000_000, "slot_probes": 4},
        {"probe_port": 9319},
        {"probe_port": 9319},
        {"probe_port": 9319, "slot_ns": 5_000_000, "slot_probes": 4},
        {"slot_ns": 5_000_000, "slot_probes": 4},
    ):
        view.take(b"a/e0", nic("a/e0", "a/system", **more))
        versions.append((view.version, view.probe_slots.get("a/e0")))
    pace = (5_000_000, 4)
    assert versions == [(1, None), (2, pace), (3, None), (3, None), (4, pace), (5, None)]
    view.take(b"a/e0", nic("a/e0", "a/system", probe_port=9319, slot_ns=5_000_000, slot_probes=4))
    view.take(b"a/e0", None)
    assert view.probe_slots == {}


def test_the_inventory_knows_clocks_and_shards_and_forgets_tombstones() -> None:
    view = Inventory("fabric")
    assert view.shards() == ["fabric"]
    assert view.member("x/e0").clock == "x/e0"
    view.take(b"a/e0", nic("a/e0", "a/system", "pod1"))
    view.take(b"b/e0", nic("b/e0", "b/ptp0", "pod2"))
    assert (view.member("a/e0").clock, view.member("a/e0").shard) == ("a/system", "pod1")
    assert view.shards() == ["pod1", "pod2"]
    assert view.member("x/e0").shard == "fabric"
    view.take(b"a/e0", None)
    assert view.member("a/e0").clock == "a/e0"
    with pytest.raises(codec.BadRecord):
        view.take(b"a/e0", b"nonsense")


def test_a_clock_has_the_timestamp_error_of_its_best_nic() -> None:
    view = Inventory("fabric")
    view.take(b"a/mlx5_0", nic("a/mlx5_0", "a/system", stamp="USER", stamp_error_ns=4_000))
    view.take(b"b/mlx5_0", nic("b/mlx5_0", "b/mlx5_0", stamp="HARDWARE", stamp_error_ns=1))
    assert view.stamp_errors_ns() == {"a/system": 4_000, "b/mlx5_0": 1}
    view.take(b"a/mlx5_1", nic("a/mlx5_1", "a/system", stamp="USER", stamp_error_ns=3_000))
    assert view.stamp_errors_ns()["a/system"] == 3_000
    view.take(b"a/e0", nic("a/e0", "a/system"))
    assert "a/system" not in view.stamp_errors_ns(), "the kernel's stamps of another NIC tell better"
    view.take(b"a/e0", None)
    assert view.stamp_errors_ns()["a/system"] == 3_000


def test_models_are_by_nic_and_only_of_usable_clocks() -> None:
    inventory = Inventory("fabric")
    view = ClockTable(inventory, holdover_s=60)
    inventory.take(b"a/e0", nic("a/e0", "a/system"))
    inventory.take(b"a/e1", nic("a/e1", "a/system"))
    view.take(b"fabric/0", offsets(5, {"a/system": (1, "SYNCED"), "b/e0": (2, "UNSYNCED")}))
    models = view.models()
    assert {models["a/e0"].offset_ns, models["a/e1"].offset_ns} == {1.0}
    assert "b/e0" not in models
    assert view.log_offset_ns == 7
    assert [view.state_of(n, 7 * S) for n in ("a/e0", "b/e0", "x/e0")] == ["SYNCED", "UNSYNCED", "UNSYNCED"]
    view.take(b"fabric/0", offsets(6, {"a/system": (3, "SYNCED"), "b/e0": (4, "SYNCED")}))
    assert view.models()["a/e1"].offset_ns == 3.0
    assert view.models()["b/e0"].offset_ns == 4.0


def test_old_offsets_become_holdover_and_then_unusable() -> None:
    view = ClockTable(Inventory("fabric"), holdover_s=60)
    view.take(b"fabric/0", offsets(5, {"a/e0": (1, "SYNCED")}))
    assert [view.state_of("a/e0", (6 + age) * S) for age in (1, 30, 61)] == ["SYNCED", "HOLDOVER", "UNSYNCED"]


def test_an_older_record_never_replaces_a_newer_one() -> None:
    """Parts of one window are in different partitions: they may be read in any order."""
    view = ClockTable(Inventory("fabric"), holdover_s=60)
    view.take(b"fabric/0", offsets(6, {"a/e0": (6, "SYNCED")}))
    view.take(b"fabric/0", offsets(5, {"a/e0": (5, "SYNCED")}))
    assert view.models()["a/e0"].offset_ns == 6.0


def test_the_newest_complete_window_is_returned() -> None:
    view = ClockTable(Inventory("fabric"), holdover_s=60)
    for part in (1, 0):
        view.take(f"fabric/{part}".encode(), offsets(5, {f"{part}/e": (1, "SYNCED")}, part, 2))
    view.take(b"fabric/0", offsets(6, {"0/e": (2, "SYNCED")}, 0, 2))
    assert [(r["window"], r["part"]) for r in view.newest("fabric")] == [(5, 0), (5, 1)]
    assert view.newest("other") == []


def test_a_forged_window_far_ahead_changes_nothing() -> None:
    view = ClockTable(Inventory("fabric"), holdover_s=60)
    view.take(b"fabric/0", offsets(5, {"a/e0": (1, "SYNCED")}), None, 6 * S)
    for forged in (offsets(10**6, {}), offsets(6, {}, part=1, parts=1)):
        with pytest.raises(codec.BadRecord):
            view.take(b"fabric/0", forged, None, 6 * S)
    view.take(b"fabric/0", offsets(6, {"a/e0": (2**63 - 1, "SYNCED")}), None, 7 * S)
    assert view.models()["a/e0"].offset_ns == 1.0
    assert view.newest("fabric")[0]["window"] == 6


def test_simulated_time_since_the_newest_window_is_known() -> None:
    view = Inventory("fabric")
    clocks = ClockTable(view, 60)
    view.take(b"h1/e0", nic("h1/e0", "h1/ptp0", probe_port=9319, simulation_pace=0.75))
    view.take(b"x/e0", nic("x/e0", "x/ptp0", "other", probe_port=9319, simulation_pace=0.0))
    assert clocks.lost_ns("fabric", 7 * S) == 0, "no window yet"
    clocks.take(b"fabric/0", offsets(4, {"h1/ptp0": (0.0, "SYNCED")}))
    assert clocks.lost_ns("fabric", 7 * S) == S // 2, "two seconds after the window's end"
    assert clocks.lost_ns("fabric", 7000 * S) == 30 * S // 4
    view.take(b"h1/e0", nic("h1/e0", "h1/ptp0", probe_port=9319))
    assert (clocks.lost_ns("fabric", 7 * S), clocks.lost_ns("other", 7 * S)) == (0, 2 * S), "each by its pace"
    view.take(b"h1/e0", None)
    assert view.simulated.pace("fabric") is None
