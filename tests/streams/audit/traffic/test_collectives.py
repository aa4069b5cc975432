"""Evaluation of a collective over hosts: thresholds, slow hosts, settings, unknown outcomes."""

from __future__ import annotations

from schemas.records import AuditCategory, AuditStatus
from streams.audit.results import FLEET, Scope
from streams.audit.traffic.bisection import Bisected
from streams.audit.traffic.collectives import FACT, HOSTS, SETTINGS, collective_results, is_low

HOST_NAMES = ("h1", "h2", "h3", "h4")
SCOPE = Scope("r1", 1_760_000_000_000_000_000, dict.fromkeys(HOST_NAMES, "h100"), {})
EVEN = {"plain, 1 queue pairs": 430.0, "plain, 4 queue pairs": 452.0}
PASSED, FAILED, UNKNOWN = AuditStatus.PASSED, AuditStatus.FAILED, AuditStatus.UNKNOWN


def results(figures, minimum, found=None, errors=None):
    all_of = collective_results(HOST_NAMES, figures, errors or {}, minimum, found, SCOPE)
    return {(each["host"], each["check"]): each for each in all_of}


def found_by(slow=(), suspects=(), together=(), minimum=440.0, is_complete=True):
    return Bisected(slow, suspects, together, minimum, 12, is_complete)


def test_full_bandwidth_passes_and_is_a_fact():
    found = results(EVEN, 440.0)
    assert {each["status"] for each in found.values()} == {PASSED}
    assert {each["category"] for each in found.values()} == {AuditCategory.COLLECTIVES}
    assert found[FLEET, HOSTS.check]["text"] == "452.0 GB/s, expected at least 440.0"
    facts = found[FLEET, SETTINGS.check]["facts"]
    assert [(each["name"], each["subject"], each["number"]) for each in facts] == [
        (FACT, "plain, 1 queue pairs", 430.0),
        (FACT, "plain, 4 queue pairs", 452.0),
    ]


def test_a_slow_host_is_named_and_a_suspect_is_unknown():
    found = results({"plain, 1 queue pairs": 210.0}, 440.0, found_by(slow=("h3",), suspects=("h4",)))
    assert found["h3", HOSTS.check]["status"] is FAILED
    assert found["h4", HOSTS.check]["status"] is UNKNOWN
    assert found["h1", HOSTS.check]["status"] is PASSED
    assert found[FLEET, HOSTS.check]["status"] is FAILED


def test_groups_that_are_slow_together_have_a_remedy_of_their_own():
    found = results({"plain, 1 queue pairs": 210.0}, 440.0, found_by(together=(HOST_NAMES,)))
    assert "slow together, and fast alone: h1, h2 and h3, h4" in found[FLEET, HOSTS.check]["text"]
    assert "fabrictime links" in found[FLEET, HOSTS.check]["remedy"]


def test_a_setting_that_halves_the_bandwidth_is_a_warning_and_one_that_fails_unknown():
    uneven = results({**EVEN, "hierarchical, 8 queue pairs": 120.0}, 440.0)
    assert uneven[FLEET, SETTINGS.check]["status"] is FAILED
    assert uneven[FLEET, HOSTS.check]["status"] is PASSED
    broken = results({**EVEN, "x": 0.0}, 440.0, errors={"x": "no end within 120 s"})
    assert broken[FLEET, SETTINGS.check]["status"] is UNKNOWN


def test_without_a_machine_type_the_pairs_give_the_threshold():
    assert (
        results({"a": 210.0}, None, found_by(slow=("h1",), minimum=400.0))[FLEET, HOSTS.check]["status"]
        is FAILED
    )
    assert results({"a": 450.0}, None, found_by(minimum=400.0))[FLEET, HOSTS.check]["status"] is PASSED
    nothing = results({"a": 450.0}, None, found_by(minimum=0.0))[FLEET, HOSTS.check]
    assert (nothing["status"], nothing["text"][:34]) == (UNKNOWN, "450.0 GB/s, with nothing to compar")


def test_runs_that_all_fail_and_a_search_that_is_cut_are_unknown():
    found = results({"a": 0.0}, 440.0, found_by(suspects=HOST_NAMES), errors={"a": "exit code 1"})
    assert {each["status"] for each in found.values()} == {UNKNOWN}
    cut = results({"a": 450.0}, 440.0, found_by(is_complete=False))
    assert cut[FLEET, HOSTS.check]["status"] is UNKNOWN


def test_low_bandwidth():
    assert is_low({"a": 430.0, "b": 439.0}, 440.0)
    assert not is_low({"a": 100.0, "b": 440.0}, 440.0)
    assert is_low({"a": 450.0}, None)
    assert is_low({}, 1.0)
