"""Which sizes are probed, and the verdicts on paths that drop large packets, lose some, or are fine."""

from __future__ import annotations

import random
from collections.abc import Callable

from producers.probe.size_checks import SMALL_BYTES, SizeChecks, SizeProbe
from schemas.records import PathSize

PATHS = [(f"h{peer}/eth1", 9320 + port) for peer in (2, 3) for port in range(4)]
FULL = 1500
STEP_S = 0.05
Passes = Callable[[SizeProbe], bool]


class Run:
    """Checks with a network that passes packets by a rule, in steps of 50 ms."""

    def __init__(
        self,
        passes: Passes,
        rate_pps: float = 2.0,
        sizes: dict[tuple[str, int], int] | None = None,
        dscps: tuple[int, ...] = (0,),
    ) -> None:
        self.checks = SizeChecks(rate_pps, 0.1, dscps)
        self.checks.set_paths(sizes or dict.fromkeys(PATHS, FULL))
        self.passes, self.now_s = passes, 1000.0
        self.sent: list[tuple[float, SizeProbe]] = []
        self.rows: dict[tuple[str, int], PathSize] = {}

    def run(self, for_s: float) -> Run:
        for _ in range(round(for_s / STEP_S)):
            self.now_s += STEP_S
            for probe in self.checks.step(self.now_s):
                self.sent.append((self.now_s, probe))
                if self.passes(probe):
                    self.checks.on_arrived(probe.seq)
            self.rows |= {(row["peer"], row["path"]): row for row in self.checks.take_results(self.now_s)}
        return self

    def limits(self) -> dict[tuple[str, int], int]:
        return {key: row["passed_bytes"] for key, row in self.rows.items()}


def test_without_loss_all_paths_are_checked_at_the_set_rate() -> None:
    run = Run(lambda probe: True, rate_pps=2.0).run(60)
    assert 115 <= len(run.sent) <= 125
    assert {probe.size_bytes for _, probe in run.sent} == {FULL}
    assert run.limits() == dict.fromkeys(PATHS, FULL)


def test_a_path_that_drops_large_packets_is_found_with_the_exact_size() -> None:
    for limit in (SMALL_BYTES, 576, 1280, 1399, 1400, 1472, 1499):
        run = Run(lambda probe, limit=limit: probe.key != PATHS[0] or probe.size_bytes <= limit).run(20)  # type: ignore[misc]
        assert run.limits() == {**dict.fromkeys(PATHS, FULL), PATHS[0]: limit}
        assert run.rows[PATHS[0]]["probed_bytes"] == FULL
        assert run.rows[PATHS[0]]["router_mtu_bytes"] == 0


def test_a_class_that_drops_large_packets_is_named_and_all_classes_are_checked() -> None:
    def passes(probe: SizeProbe) -> bool:
        return probe.key != PATHS[0] or probe.traffic_class == 0 or probe.size_bytes <= 1400

    run = Run(passes, rate_pps=4.0, dscps=(0, 26)).run(30)
    assert {probe.traffic_class for _, probe in run.sent} == {0, 1}
    assert run.limits() == {**dict.fromkeys(PATHS, FULL), PATHS[0]: 1400}
    assert {key: row["dscp"] for key, row in run.rows.items()} == {**dict.fromkeys(PATHS), PATHS[0]: 26}
    run.passes = lambda probe: True
    run.run(20)
    assert run.limits() == dict.fromkeys(PATHS, FULL)
    assert run.rows[PATHS[0]]["dscp"] is None
    both = Run(lambda probe: probe.size_bytes <= 1400, rate_pps=4.0, dscps=(0, 26)).run(60)
    assert both.limits() == dict.fromkeys(PATHS, 1400)
    assert both.rows[PATHS[0]]["dscp"] is None


def test_a_path_is_reported_once_all_its_classes_are_known() -> None:
    run = Run(lambda probe: True, rate_pps=2.0, dscps=(0, 26))
    while len(run.sent) < len(PATHS):
        run.run(STEP_S)
    assert run.rows == {}
    run.run(6)
    assert run.limits() == dict.fromkeys(PATHS, FULL)
    assert min(row["checked_age_ns"] for row in run.rows.values()) >= 3e9, "the older check counts"


def test_the_limit_is_found_beside_ordinary_losses() -> None:
    rng = random.Random(3)
    run = Run(lambda probe: (probe.key != PATHS[0] or probe.size_bytes <= 1400) and rng.random() > 0.1).run(
        40
    )
    assert run.limits()[PATHS[0]] == 1400


def test_ordinary_losses_are_no_limit() -> None:
    """Paths that lose a share of all packets, or all."""
    for share in (0.02, 0.3, 0.6, 0.9, 1.0):
        rng = random.Random(1)
        run = Run(lambda probe: rng.random() >= share, rate_pps=20.0).run(600)  # noqa: B023
        limited = [row for row in run.rows.values() if row["passed_bytes"] < FULL]
        assert not limited, (share, limited)


def test_a_router_that_states_its_mtu_is_named_and_its_limit_is_found_sooner() -> None:
    stated = Run(lambda probe: True)

    def passes(probe: SizeProbe) -> bool:
        fits = probe.key != PATHS[0] or probe.size_bytes <= 1400
        if not fits:
            stated.checks.on_too_big(probe.seq, 1400)
        return fits

    stated.passes = passes
    stated.run(10)
    assert stated.rows[PATHS[0]]["passed_bytes"] == 1400
    assert stated.rows[PATHS[0]]["router_mtu_bytes"] == 1400
    silent = Run(lambda probe: probe.key != PATHS[0] or probe.size_bytes <= 1400).run(10)
    assert len([p for _, p in stated.sent if p.key == PATHS[0]]) < len(
        [p for _, p in silent.sent if p.key == PATHS[0]]
    )


def test_a_limit_that_a_router_states_wrongly_is_searched() -> None:
    run = Run(lambda probe: True)

    def passes(probe: SizeProbe) -> bool:
        if probe.size_bytes > 1400:
            run.checks.on_too_big(probe.seq, 68 if probe.seq % 2 else 65_535)
        return probe.size_bytes <= 1400

    run.passes = passes
    run.run(60)
    assert set(run.limits().values()) == {1400}


def test_the_end_of_a_limit_is_seen_within_seconds() -> None:
    state = {"limit": 1400}
    run = Run(lambda probe: probe.size_bytes <= state["limit"]).run(60)
    assert set(run.limits().values()) == {1400}
    state["limit"] = FULL
    run.run(6)
    assert set(run.limits().values()) == {FULL}


def test_a_new_limit_replaces_the_old_one() -> None:
    state = {"limit": 1400}
    run = Run(lambda probe: probe.key != PATHS[0] or probe.size_bytes <= state["limit"]).run(30)
    state["limit"] = 1300
    run.run(90)
    assert run.limits()[PATHS[0]] == 1300


def test_the_load_stays_small_if_every_path_has_a_limit() -> None:
    sizes = {(f"h{peer}/eth1", 9320 + port): 9000 for peer in range(2, 12) for port in range(4)}
    run = Run(lambda probe: probe.size_bytes <= 1500, sizes=sizes).run(120)
    assert set(run.limits().values()) == {1500}
    for second in range(120):
        here = [p for at, p in run.sent if second <= at - 1000 < second + 1]
        assert sum(p.size_bytes for p in here) * 8 < 5e6, "bit/s"
        assert len(here) <= 170


def test_paths_that_end_or_change_their_size_leave_nothing_behind() -> None:
    run = Run(lambda probe: False).run(1)
    run.checks.set_paths({PATHS[0]: 1400})
    run.passes = lambda probe: True
    run.run(3)
    assert run.limits() == {PATHS[0]: 1400}
    run.checks.set_paths({})
    assert run.checks.step(run.now_s) == []
    assert run.checks.due_s == float("inf")
    run.checks.on_arrived(1)
    run.checks.on_too_big(2, 1400)
    run.checks.on_unsent(3)


def test_a_packet_that_never_left_is_no_loss() -> None:
    checks = SizeChecks(2.0, 0.1)
    checks.set_paths({PATHS[0]: FULL})
    for step in range(600):
        for probe in checks.step(step * STEP_S):
            checks.on_unsent(probe.seq)
    assert checks.take_results(30.0) == []


def test_packets_above_a_stated_size_are_those_that_a_short_error_concerns() -> None:
    checks = SizeChecks(2.0, 0.1)
    checks.set_paths({PATHS[0]: FULL})
    (first,) = checks.step(10.0)[:1]
    assert checks.pending(*PATHS[0], 1400) == [first.seq]
    assert checks.pending(*PATHS[0], 1500) == []
    assert checks.pending("absent/eth1", 1, 1400) == []
