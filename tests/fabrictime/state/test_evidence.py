"""Statements about health need fresh evidence, whatever the log's clock says."""

from __future__ import annotations

import pytest

from fabrictime.state.evidence import CHECKING, FRESH_S, Age, EvidenceAges, Source, Verdict, evaluate

FRESH = dict.fromkeys(Source, Age(1.0))
LATE = {
    Source.PROBES: "no fresh probe results for 12 s (probers stopped?)",
    Source.CLOCKS: "no fresh clock window for 12 s (stream worker or its topics gone?)",
    Source.LINKS: "no fresh evaluation of link health for 12 s (links service stopped?)",
}


def test_fresh_evidence_allows_every_statement() -> None:
    assert evaluate(FRESH) == Verdict()
    assert Verdict().claim("No alert is active.") == "No alert is active."
    assert Verdict().line == ""


@pytest.mark.parametrize("source", Source)
def test_each_source_alone_makes_health_unknown_and_is_named(source: Source) -> None:
    found = evaluate({**FRESH, source: Age(12.0)})
    assert found.missing == (LATE[source],)
    assert not found.is_fresh
    assert found.claim("No alert is active.") == f"Health is not known: {LATE[source]}"


def test_a_source_without_any_record_has_not_started() -> None:
    found = evaluate({**FRESH, Source.PROBES: Age(6.0, exists=False)})
    assert found.missing == ("no probe results yet (probers not started?)",)


def test_health_is_unknown_until_the_evidence_is_checked() -> None:
    found = evaluate({**FRESH, Source.CLOCKS: Age(900.0, is_measured=False)})
    assert (found, found.missing, found.is_fresh) == (CHECKING, (), False)
    assert found.line == "health is not known yet: checking for fresh evidence"


@pytest.mark.parametrize(("ahead_s", "side"), [(120.0, "120.0 s ahead of"), (-30.0, "30.0 s behind")])
def test_wrong_log_time_is_named(ahead_s: float, side: str) -> None:
    assert evaluate(FRESH, ahead_s).missing == (f"log time is {side} the hosts' system clocks",)


def test_slow_windows_have_more_time() -> None:
    assert evaluate(dict.fromkeys(Source, Age(12.0)), fresh_s=60.0) == Verdict()


class Log:
    """Positions of all sources, second by second."""

    def __init__(self) -> None:
        self.ages = EvidenceAges()
        self.at = dict.fromkeys(Source, 100)
        self.now_s = 1000.0
        self.read()

    def read(self, *stopped: Source) -> Verdict:
        for source in Source:
            self.at[source] += source not in stopped
            self.ages.take(source, self.at[source], self.now_s)
        return self.ages.verdict(self.now_s)

    def go(self, seconds: int, *stopped: Source) -> Verdict:
        for _ in range(seconds):
            self.now_s += 1.0
            found = self.read(*stopped)
        return found


def test_the_verdict_needs_one_advance_of_each_source() -> None:
    log = Log()
    assert log.ages.verdict(log.now_s) == CHECKING
    assert log.go(1, Source.LINKS) == CHECKING
    assert log.go(1).is_fresh


@pytest.mark.parametrize("source", Source)
def test_a_source_that_stops_is_missing_within_its_limit_and_returns_at_once(source: Source) -> None:
    log = Log()
    assert log.go(3).is_fresh
    assert log.go(int(FRESH_S), source).is_fresh
    assert log.go(1, source).missing == (LATE[source].replace("12 s", "6.0 s"),)
    assert log.go(1).is_fresh


def test_a_source_that_stood_still_from_the_start_has_the_age_of_its_last_record() -> None:
    log = Log()
    log.ages.set_age_at_start(Source.LINKS, 600.0)
    assert log.go(5, Source.LINKS) == CHECKING
    assert log.go(1, Source.LINKS).missing == (LATE[Source.LINKS].replace("12 s", "10 min"),)


def test_a_future_record_has_no_negative_age() -> None:
    log = Log()
    log.ages.set_age_at_start(Source.LINKS, -28_800.0)
    assert log.go(6, Source.LINKS).missing == (LATE[Source.LINKS].replace("12 s", "6.0 s"),)


def test_a_links_service_with_nothing_left_to_read_is_not_late() -> None:
    log = Log()
    log.go(2)
    for _ in range(20):
        found = log.go(1, Source.PROBES, Source.LINKS)
        log.ages.take(Source.LINKS, log.at[Source.LINKS], log.now_s, is_done=True)
    assert found.missing == (LATE[Source.PROBES].replace("12 s", "20 s"),)


def test_a_replaced_log_starts_at_lower_positions() -> None:
    log = Log()
    log.go(2)
    log.at = dict.fromkeys(Source, 0)
    log.go(1)
    assert log.go(1).is_fresh


def test_a_log_that_does_not_answer_is_missing_at_once_with_its_time() -> None:
    log = Log()
    log.go(2)
    log.ages.fail("log h:1: Local: Timed out", log.now_s)
    log.ages.fail("log h:1: Local: Timed out", log.now_s + 5)
    assert log.ages.verdict(log.now_s + 12).missing == ("log h:1: Local: Timed out (for 12 s)",)
    log.ages.succeed()
    assert log.go(1).is_fresh
