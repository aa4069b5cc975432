"""How `bench detect web` judges what a page said of a fault."""

from __future__ import annotations

from typing import Any

from fabrictime.bench.detect.web import Case, link_cases, scored, table
from fabrictime.bench.detect.web_reader import Named, Sight
from fabrictime.testbed.fabric.faults import parse_fault
from fabrictime.testbed.fabric.topology import make_plan
from fabrictime.testbed.settings import FabricSettings

A, B = "leaf1:swp3<>spine2:swp1", "leaf1:swp4<>spine3:swp1"


def case(**changes: Any) -> Case:
    expected_kinds: dict[str, str] = changes.pop("expected_kinds", {A: "DOWN"})
    return Case("a fault", lambda: None, lambda: None, expected_kinds, **changes)


def sight(at_ms: float, *rows: tuple[str, str]) -> Sight:
    return Sight(at_ms, tuple(Named(subject, kind, f"{subject} is {kind}") for subject, kind in rows))


def test_times_count_from_the_fault_and_from_its_end() -> None:
    sights = [sight(1_000), sight(1_250, (A, "DOWN")), sight(3_400)]
    seen = scored(case(), sights, 1_000, 3_000)
    assert (seen.named_s, seen.cleared_s, seen.right) == (0.25, 0.4, True)
    assert seen.lines == f"{A} is DOWN"


def test_a_fault_is_named_once_all_of_it_is() -> None:
    both = case(expected_kinds={A: "DOWN", B: "DOWN"})
    sights = [sight(0), sight(100, (A, "DOWN")), sight(300, (A, "DOWN"), (B, "DOWN"))]
    assert scored(both, sights, 0, 5_000).named_s == 0.3
    assert scored(both, sights[:2], 0, 5_000).named_s is None


def test_another_link_or_another_kind_is_wrong() -> None:
    other = scored(case(), [sight(100, (A, "DOWN"), (B, "GREY"))], 0, 5_000)
    assert (other.right, other.wrong) == (False, (f"{B} GREY",))
    assert scored(case(allowed=frozenset({B})), [sight(100, (A, "DOWN"), (B, "GREY"))], 0, 5_000).right
    grey = scored(case(), [sight(100, (A, "GREY"))], 0, 5_000)
    assert not grey.right, "never named as what it is"
    turned = scored(case(), [sight(100, (A, "DOWN")), sight(900, (A, "GREY"))], 0, 5_000)
    assert turned.wrong == (f"{A} GREY",)


def test_a_link_may_be_shown_as_down_while_it_is_made_to_flap_and_not_after_that() -> None:
    flaps = case(expected_kinds={A: "FLAPPING"}, from_end=True, stays=True)
    sights = [
        sight(100, (A, "DOWN")),
        sight(400, (A, "FLAPPING")),
        sight(700, (A, "DOWN")),
        sight(1_300, (A, "FLAPPING")),
    ]
    assert scored(flaps, sights, 1_000, 1_000).right
    assert scored(flaps, [*sights, sight(1_600, (A, "DOWN"))], 1_000, 1_000).wrong == (f"{A} DOWN",)


def test_a_row_that_comes_back_was_not_cleared() -> None:
    sights = [sight(100, (A, "DOWN")), sight(2_100), sight(2_300, (A, "DOWN")), sight(2_900)]
    assert scored(case(), sights, 0, 2_000).cleared_s == 0.9
    assert scored(case(), sights[:3], 0, 2_000).cleared_s is None


def test_a_fault_that_passed_before_its_removal_took_no_time_to_clear() -> None:
    assert scored(case(), [sight(100, (A, "DOWN")), sight(1_500)], 0, 2_000).cleared_s == 0.0
    assert scored(case(), [sight(100)], 0, 2_000).cleared_s is None, "what was never named was not cleared"


def test_the_table_lists_wrong_rows_and_inherently_slow_faults() -> None:
    seen = [
        scored(case(), [sight(100, (A, "DOWN"), (B, "GREY"))], 0, 5_000),
        scored(case(slow="it takes time"), [], 0, 5_000),
    ]
    lines = table(seen)
    assert f"WRONGLY {B} GREY" in lines[1]
    assert "nothing (it takes time)" in lines[2]


def test_every_case_is_a_line_that_the_testbed_takes() -> None:
    plan = make_plan(FabricSettings())
    nics = [
        {"host": port.node, "nic": f"{port.node}/{port.name}", "leaf": leaf.node, "leaf_port": leaf.name}
        for port, leaf, _ in plan.nics()
    ]
    links = list(plan.links())
    cables = {"<>".join(sorted(link.split(">"))) for link in links}
    cases = link_cases(links, nics, lambda *_, **__: None)
    assert {parse_fault(each.subject).kind for each in cases} == {"down", "blackhole", "grey"}
    for each in cases:
        assert each.expected_kinds, each.subject
        assert set(each.expected_kinds) <= cables, each.subject
