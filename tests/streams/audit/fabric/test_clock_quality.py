"""Clock quality: state, falsetickers, other domains and oddly large bounds."""

from __future__ import annotations

from typing import Any

from fabrictime.testbed.audit.simulated import Simulated, railed
from schemas.records import AuditStatus, ClockOffsets, ClockState
from streams.audit.fabric.clock_quality import clock_quality, suspect_clocks
from streams.audit.fabric.records import FabricRecords
from tests.records import make, make_part

NICS = Simulated(railed(32, 4)).nics()


def offsets(domain: str = "a", window: int = 1, **changes: dict[str, Any]) -> ClockOffsets:
    """Return a window of clocks; `changes`: clock, with its slash as two underscores, to fields."""
    clocks: list[ClockState] = []
    for number, nic in enumerate(NICS):
        fields = {"state": "SYNCED", "bound_ns": 50.0 + number % 7}
        fields |= changes.get(nic["clock"].replace("/", "__"), {})
        if fields.get("bound_ns"):
            clocks.append(make_part(ClockOffsets, "ClockState", clock=nic["clock"], **fields))
    return make(
        ClockOffsets,
        domain=domain,
        window=window,
        window_start_ns=window,
        window_end_ns=window + 1,
        clocks=clocks,
    )


def outcome(*records: ClockOffsets) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in clock_quality(FabricRecords(NICS, offsets=records)):
        if each.status is not AuditStatus.PASSED:
            found[f"{each.host}/{each.subject}"] = [each.status, each.text.partition(";")[0]]
    return found


def test_no_fault_no_finding() -> None:
    assert outcome(offsets()) == {}


def test_each_fault_is_named() -> None:
    found = outcome(
        offsets(
            h1__ptp0={"state": "UNSYNCED"},
            h2__ptp1={"event": "FALSETICKER", "event_ns": 9000.0},
            h3__ptp2={"bound_ns": 7000.0},
            h4__ptp3={"bound_ns": 0.0},
        )
    )
    assert found == {
        "h1/eth1": ["FAILED", "clock h1/ptp0 is UNSYNCED"],
        "h2/eth2": ["FAILED", "clock h2/ptp1 contradicts its peers by 9,000 ns"],
        "h3/eth3": ["FAILED", "clock h3/ptp2 is less certain than the others"],
        "h4/eth4": ["UNKNOWN", "h4/eth4: clock h4/ptp3 was not solved"],
    }


def test_the_newest_window_counts_and_one_earlier_fault_does_not() -> None:
    old = offsets(h1__ptp0={"state": "HOLDOVER"})
    assert outcome(old, offsets(window=2)) == outcome(offsets(window=2), old) == {}
    assert set(outcome(old)) == {"h1/eth1"}


def test_a_clock_of_another_domain_is_apart() -> None:
    apart = offsets("b", 2)
    apart["clocks"] = [each for each in apart["clocks"] if each["clock"].startswith("h8/")]
    found = outcome(offsets(), apart)
    assert set(found) == {f"h8/eth{k}" for k in (1, 2, 3, 4)}
    assert found["h8/eth1"][1] == "clock h8/ptp0 is of domain b, apart from the fleet's a"


def test_without_clocks_it_is_unknown() -> None:
    assert [each.status for each in clock_quality(FabricRecords(NICS))] == [AuditStatus.UNKNOWN]


def test_a_step_and_another_rate_in_the_newest_window_are_faults() -> None:
    found = outcome(
        offsets(h1__ptp0={"event": "STEP", "event_ns": 7000.0}, h2__ptp1={"event": "NEW"}),
        *(offsets(window=number) for number in range(2, 6)),
        offsets(window=6, h3__ptp2={"event": "RATE_CHANGE", "event_ns": -11814.5}),
    )
    assert found == {"h3/eth3": ["FAILED", "clock h3/ptp2 changed its rate by -11,814 ppb"]}


def test_a_clock_that_is_lost_in_some_windows_is_unstable() -> None:
    lost = {"state": "UNSYNCED"}
    windows = [offsets(window=number, h1__ptp0=lost if number in (1, 3) else {}) for number in range(1, 8)]
    text = "clock h1/ptp0 had a fault in 2 of 7 windows: is UNSYNCED"
    assert outcome(*windows) == {"h1/eth1": ["FAILED", text]}
    assert outcome(*windows[1:]) == {}


def test_suspect_clocks_are_those_with_any_fault() -> None:
    records = [offsets(window=1, h1__ptp0={"state": "HOLDOVER"}), *(offsets(window=n) for n in range(2, 12))]
    fabric = FabricRecords(NICS, offsets=records)
    assert suspect_clocks(fabric) == {"h1/ptp0": "had a fault in 1 of 11 windows: is HOLDOVER"}
    assert suspect_clocks(FabricRecords(NICS)) == {}


def wandering(changes_ppb: list[float], sigma_ppb: float = 100.0) -> list[ClockOffsets]:
    """Return windows of a second in which the rate of one clock has these changes."""
    rate_ppb, windows = 0.0, []
    for number, change in enumerate([0.0, *changes_ppb], 1):
        rate_ppb += change
        fields = {"drift_ppb": rate_ppb, "drift_sigma_ppb": sigma_ppb, "at_ns": number * 1_000_000_000}
        windows.append(offsets(window=number, h1__ptp0=fields))
    return windows


def test_a_rate_that_walks_is_unstable_although_each_window_is_synchronised() -> None:
    walk = [6000.0, -3000.0, 9000.0, 7000.0, -8000.0, 5000.0]
    text = "clock h1/ptp0 changes its rate by 6,500 ppb from window to window"
    assert outcome(*wandering(walk)) == {"h1/eth1": ["FAILED", text]}
    assert outcome(*wandering(walk, sigma_ppb=2000.0)) == {}, "the standard error explains it"
    assert outcome(*wandering([change / 10 for change in walk])) == {}, "it moves readings by 325 ns"
    assert outcome(*wandering([0.0, 0.0, 9000.0, 0.0, 0.0, 0.0])) == {}, "one event"
    assert outcome(*wandering(walk[:3])) == {}, "too few windows"
