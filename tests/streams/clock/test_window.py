"""Window: fits sorted by clock, and guesses of clock readings."""

from __future__ import annotations

from typing import Any

from streams.clock.window import gather, guess_readings
from tests.records import make, make_part


def nic(name: str, clock: str, **fields: Any) -> Any:
    return make_part("ClockFits", "NicWindow", nic=name, clock=clock, **fields)


def fits(*nics: Any, pairs: tuple[tuple[str, str], ...] = ()) -> Any:
    part = [make_part("ClockFits", "PairFit", prober=a, peer=b) for a, b in pairs]
    return make("ClockFits", nics=list(nics), pairs=part)


def test_nics_of_one_clock_share_a_node() -> None:
    taken = gather(
        [fits(nic("h1/a", "h1/system"), nic("h1/b", "h1/system")), fits(nic("h2/a", "h2/ptp0"))], {}
    )
    assert taken.names == ["h1/system", "h2/ptp0"]
    assert taken.node_of_nic == {"h1/a": 0, "h1/b": 0, "h2/a": 1}
    assert [each["nic"] for each in taken.nics_of_node[0]] == ["h1/a", "h1/b"]


def test_the_inventory_overrides_the_announced_clock_and_a_silent_peer_is_its_own() -> None:
    taken = gather([fits(nic("h1/a", "old"), pairs=(("h1/a", "h9/a"),))], {"h1/a": "new"})
    assert taken.names == ["h9/a", "new"]


def test_the_last_flush_of_a_clock_counts() -> None:
    first, last = nic("h1/a", "c", append_ns=10, clock_ns=110), nic("h1/b", "c", append_ns=20, clock_ns=130)
    taken = gather([fits(last, first)], {})
    assert taken.flush[0]["nic"] == "h1/b"
    readings, known = guess_readings(taken, middle_log_ns=15)
    assert (readings.tolist(), known.tolist()) == ([125], [True])


def test_a_clock_jumped_if_one_of_its_nics_reports_a_jump() -> None:
    taken = gather([fits(nic("h1/a", "c"), nic("h1/b", "c", clock_jump_ns=5), nic("h2/a", "d"))], {})
    assert taken.jumped == {0}


def test_the_clock_of_a_name_that_two_agents_use_is_not_measured_and_that_of_a_restarted_one_is() -> None:
    taken = gather([fits(nic("h1/a", "c", restarts=40), nic("h2/a", "d", restarts=1))], {})
    assert taken.jumped == {0}


def test_a_clock_without_a_flush_has_no_reading() -> None:
    taken = gather([fits(nic("h1/a", "c"), pairs=(("h1/a", "h9/a"),))], {})
    _, known = guess_readings(taken, 0)
    assert dict(zip(taken.names, known.tolist(), strict=True)) == {"c": True, "h9/a": False}
