"""The mode of the tour, and the former settings afterwards."""

from __future__ import annotations

from fabrictime.commands.config import live_config
from fabrictime.demo.mode import restored, tour_records
from schemas.limits import Limits
from schemas.records import ActMode, ActuatorConfig
from tests.records import make


def record(host: str = "*", **fields: object) -> ActuatorConfig:
    return make(ActuatorConfig, **{"host": host, "version": 3, "mode": "ACT", **fields})


def by_host(records: list[ActuatorConfig]) -> dict[str, ActuatorConfig]:
    return {each["host"]: each for each in records}


def test_a_tour_that_acts_allows_pacing_in_addition() -> None:
    (tour,) = tour_records({"*": record(mode="OBSERVE")}, acting=True, now_ns=1)
    limits = Limits.of({"*": tour}, "h1")
    assert limits.act
    assert limits.allowed == {"REROUTE", "RESTORE", "PACE", "UNPACE"}
    assert tour_records({"*": tour}, acting=True, now_ns=1) == [], "all is set already"


def test_a_tour_that_observes_stops_all_action_on_every_host() -> None:
    before = {"*": record(), "h1": record("h1"), "h2": record("h2", mode="OBSERVE")}
    tour = by_host(tour_records(before, acting=False, now_ns=1))
    assert sorted(tour) == ["*", "h1"]
    assert {each["mode"] for each in tour.values()} == {ActMode.OBSERVE}


def test_the_former_settings_return_with_a_newer_version() -> None:
    for acting in (True, False):
        before = {"*": record(allowed_actions=["REROUTE"]), "h1": record("h1")}
        tour = by_host(tour_records(before, acting=acting, now_ns=1))
        after = by_host(restored(before, tour, before | tour))
        for host, each in after.items():
            assert live_config.differences(each, before[host]) == []
            assert each["paused_mode"] == before[host]["paused_mode"]
            assert each["version"] > tour[host]["version"]
        assert set(after) == set(tour)


def test_settings_of_a_log_without_any_return_to_none() -> None:
    tour = by_host(tour_records({}, acting=True, now_ns=1))
    (after,) = restored({}, tour, tour)
    assert live_config.differences(after, None) == []


def test_a_pause_during_the_tour_outlives_it() -> None:
    before = {"*": record()}
    tour = by_host(tour_records(before, acting=True, now_ns=1))
    paused = by_host(live_config.paused(tour, revert=False, now_ns=2))
    (after,) = restored(before, tour, paused)
    assert (after["mode"], after["paused_mode"]) == ("OBSERVE", "ACT")
    assert after["allowed_actions"] == before["*"]["allowed_actions"], "pacing is not allowed any more"


def test_nothing_is_published_if_the_record_is_gone_or_somebody_has_changed_all() -> None:
    before = {"*": record()}
    tour = by_host(tour_records(before, acting=True, now_ns=1))
    assert restored(before, tour, {}) == []
    assert restored(before, tour, {"*": record(mode="OBSERVE", allowed_actions=["SLICE"])}) == []
