"""Completeness of a window of fits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from streams.clock.window_barrier import WindowBarrier

GRACE = 500
S = 1_000_000_000


MESSAGES = itertools.count()


def fits(
    source: str, window: int, part: int = 0, parts: int = 1, first_offset: int | None = None
) -> dict[str, Any]:
    return {
        "source": source,
        "window": window,
        "part": part,
        "parts": parts,
        "window_start_ns": window * S,
        "window_end_ns": (window + 1) * S,
        "first_offset": next(MESSAGES) if first_offset is None else first_offset,
        "nics": [{"nic": "h/eth0", "append_ns": window * S + 5}],
    }


def windows(barrier: WindowBarrier, now: int) -> list[tuple[int, list[str], list[str]]]:
    return [(c.window, [f["source"] for f in c.fits], c.missing) for c in barrier.ready(now)]


def test_a_window_is_ready_once_every_source_has_sent_all_its_parts() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/0", 5, 0, 2), 0, 0, "t0")
    barrier.add(fits("p/1", 5), 1, 1, "t1")
    assert windows(barrier, 2) == []
    barrier.add(fits("p/0", 5, 1, 2), 2, 2, "t2")
    (complete,) = barrier.ready(3)
    assert complete.tokens == ["t0", "t1", "t2"]
    assert complete.missing == []


def test_a_missing_source_is_awaited_and_then_named() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/0", 5), 0, 100, None)
    assert windows(barrier, 599) == []
    assert windows(barrier, 600) == [(5, ["p/0"], ["p/1"])]


def test_a_source_with_later_windows_is_not_awaited() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/0", 5), 0, 0, None)
    barrier.add(fits("p/1", 6), 1, 0, None)
    assert windows(barrier, 1) == [(5, ["p/0"], [])]


def test_windows_come_in_order_and_records_in_the_logs_order() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    barrier.add(fits("p/1", 7), 9, 0, None)
    barrier.add(fits("p/0", 7), 12, 0, None)
    barrier.add(fits("p/1", 6), 3, 0, None)
    barrier.add(fits("p/0", 6), 1, 0, None)
    assert windows(barrier, 1) == [(6, ["p/0", "p/1"], []), (7, ["p/1", "p/0"], [])]


def test_a_solved_window_accepts_no_further_record() -> None:
    barrier = WindowBarrier(["p/0"], GRACE, last_solved=5)
    assert barrier.add(fits("p/0", 5), 0, 0, None) is False
    assert barrier.too_late == 1
    assert windows(barrier, 10_000) == []


def test_a_record_sent_twice_counts_once() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], GRACE)
    for offset in range(2):
        barrier.add(fits("p/0", 5), offset, 0, offset)
    barrier.add(fits("p/1", 5), 2, 0, 2)
    (complete,) = barrier.ready(1)
    assert len(complete.fits) == 2
    assert complete.tokens == [0, 1, 2]


def test_sources_that_fit_their_own_samples_are_awaited_while_active() -> None:
    barrier = WindowBarrier(["p/0"], GRACE)
    barrier.add(fits("h1/e0", 5), 0, 0, None)
    barrier.add(fits("p/0", 5), 1, 0, None)
    assert windows(barrier, 1) == [(5, ["h1/e0", "p/0"], [])]
    barrier.add(fits("p/0", 6), 2, 10, None)
    assert windows(barrier, 11) == []
    barrier.add(fits("p/0", 11), 3, 20, None)
    assert [w for w, *_ in windows(barrier, 600)] == [6, 11]


class Fleet:
    """Sources that publish a window each second; `wrong_s` is how far their log time is ahead."""

    def __init__(self, *sources: str) -> None:
        self.barrier = WindowBarrier(sources, S // 2)
        self.wrong_s = dict.fromkeys(sources, 0)
        self.now_s = 1000
        self.solved: list[tuple[int, int, list[str]]] = []
        """Second of the solve, window, sources."""

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            for source, wrong_s in self.wrong_s.items():
                self.barrier.add(
                    fits(source, self.now_s + wrong_s - 1), self.now_s, self.now_s * S, self.now_s
                )
            for late_ns in (0, S - 1):
                for each in self.barrier.ready(self.now_s * S + late_ns):
                    self.solved.append((self.now_s, each.window, [f["source"] for f in each.fits]))

    def longest_gap_s(self) -> int:
        times = [at_s for at_s, _, _ in self.solved]
        return max(b - a for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("jump_s", [5, 30, 120, 300, 8 * 3600])
def test_windows_resume_within_3_s_of_a_jump_ahead_and_of_the_return(jump_s: int) -> None:
    fleet = Fleet("p/0", "p/1")
    for wrong_s in (0, jump_s, 0):
        fleet.wrong_s = dict.fromkeys(fleet.wrong_s, wrong_s)
        fleet.run(20)
    assert fleet.longest_gap_s() <= 3
    assert fleet.solved[-1] == (fleet.now_s, fleet.now_s - 1, ["p/0", "p/1"])
    assert fleet.barrier.steps == 1


def test_a_new_leader_of_all_partitions_with_a_late_clock_is_followed() -> None:
    fleet = Fleet("p/0", "p/1", "p/2")
    fleet.run(10)
    fleet.wrong_s = dict.fromkeys(fleet.wrong_s, -30)
    fleet.run(10)
    assert fleet.longest_gap_s() <= 3
    assert fleet.solved[-1][1:] == (fleet.now_s - 31, ["p/0", "p/1", "p/2"])


@pytest.mark.parametrize("apart_s", [1, 2, 5])
def test_a_step_that_sources_show_one_after_the_other_is_followed_in_the_end(apart_s: int) -> None:
    fleet = Fleet("p/0", "p/1", "p/2", "p/3")
    fleet.run(10)
    for source in fleet.wrong_s:
        fleet.wrong_s[source] = -30
        fleet.run(apart_s)
    fleet.run(5)
    assert fleet.longest_gap_s() <= 3
    assert fleet.solved[-1] == (fleet.now_s, fleet.now_s - 31, ["p/0", "p/1", "p/2", "p/3"])
    assert fleet.barrier.renumbered == {}


def test_a_source_with_a_late_leader_joins_the_windows_of_the_others() -> None:
    fleet = Fleet("p/0", "p/1")
    fleet.run(10)
    fleet.wrong_s["p/1"] = -30
    fleet.run(10)
    assert fleet.longest_gap_s() <= 2
    assert fleet.solved[-1][2] == ["p/0", "p/1"]
    assert abs(fleet.barrier.renumbered["p/1"] - 30) <= 1
    fleet.wrong_s["p/1"] = 0
    fleet.run(10)
    assert fleet.solved[-1] == (fleet.now_s, fleet.now_s - 1, ["p/0", "p/1"])
    assert fleet.barrier.renumbered == {}


def test_renumbered_fits_carry_the_log_time_of_the_others() -> None:
    fleet = Fleet("p/0", "p/1")
    fleet.wrong_s["p/1"] = -30
    fleet.run(5)
    for source, wrong_s in fleet.wrong_s.items():
        fleet.barrier.add(fits(source, fleet.now_s + wrong_s), 0, fleet.now_s * S, None)
    (complete,) = fleet.barrier.ready((fleet.now_s + 1) * S)
    for each in complete.fits:
        assert each["window_start_ns"] == complete.window * S
        assert each["nics"][0]["append_ns"] // S == complete.window


def test_a_source_that_catches_up_on_old_windows_is_late_and_nothing_else() -> None:
    barrier = WindowBarrier(["p/0"], GRACE, last_solved=1000)
    for number in range(60):
        barrier.add(fits("p/0", 900 + number), number, number * S // 10, None)
    assert (barrier.too_late, barrier.steps, barrier.last_solved) == (60, 0, 1000)


def test_tokens_of_windows_that_a_step_made_useless_are_acknowledged() -> None:
    barrier = WindowBarrier(["p/0", "p/1"], S, last_solved=1100)
    barrier.add(fits("p/0", 1102), 0, 0, "future")
    barrier.add(fits("p/1", 1000), 1, 0, "late")
    barrier.add(fits("p/1", 1003), 2, 3 * S, "new")
    found = barrier.ready(3 * S)
    assert [each.tokens for each in found] == [] or found[0].tokens[0] == "future"
    barrier.add(fits("p/0", 1003), 3, 3 * S, "too")
    assert sorted(token for each in [*found, *barrier.ready(4 * S)] for token in each.tokens) == [
        "future",
        "new",
        "too",
    ]


def test_windows_that_are_published_again_show_no_step() -> None:
    """Records of earlier windows, sent again, once moved the fabric's windows back."""
    fleet = Fleet("p/0", "p/1")
    fleet.run(20)
    stalled = fleet.wrong_s
    fleet.wrong_s = {}
    for number in range(4):  # both sources are late: nothing but old records comes
        fleet.now_s += 1
        again = fits("p/0", fleet.now_s - 15, first_offset=20 + number)
        fleet.barrier.add(again, fleet.now_s, fleet.now_s * S, None)
    fleet.wrong_s = stalled
    fleet.run(5)
    assert (fleet.barrier.steps, fleet.barrier.renumbered) == (0, {})
    assert fleet.solved[-1] == (fleet.now_s, fleet.now_s - 1, ["p/0", "p/1"])
    restarted = WindowBarrier(["p/0"], GRACE, last_solved=1000, read={"p/0": 5000})
    for number in range(4):
        restarted.add(fits("p/0", 990 + number, first_offset=4900 + number), number, number * S, None)
    assert (restarted.steps, restarted.last_solved) == (0, 1000)
