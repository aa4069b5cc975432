"""Turns: the engine probes when and where it is told to, and at random where it is not."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.native.probe.conftest import Nic


def sampled(nic: Nic, since: int = 0) -> Counter[tuple[str, int]]:
    """Samples of each peer and path, of the batches from number `since` on."""
    found: Counter[tuple[str, int]] = Counter()
    for batch in nic.batches[since:]:
        for at, (peer, path) in enumerate(zip(batch.peers, batch.path.tolist(), strict=True)):
            found[peer, path] += int(batch.start[at + 1] - batch.start[at])
    return found


def test_probes_take_the_paths_of_their_slots_in_the_first_half(make_nic) -> None:
    nic, far, other = make_nic("a/lo", spacing_ns=0), make_nic("b/lo"), make_nic("c/lo")
    nic.engine.set_peers([far.peer(), other.peer()])
    first, second = nic.engine.path_ports
    length_ns = 20e6
    begin_ns = time.monotonic_ns() - 7_000_000_000_000
    nic.engine.set_schedule(
        begin_ns, length_ns, 2, [("b/lo", first), ("c/lo", second), ("c/lo", first), ("b/lo", first)]
    )
    to_system_ns = time.time_ns() - time.monotonic_ns()
    for each in (far, other, nic):
        each.start()
    nic.until(lambda: nic.samples() > 200, 30)
    counts = sampled(nic)
    assert set(counts) == {("b/lo", first), ("c/lo", second), ("c/lo", first)}
    assert counts["b/lo", first] == pytest.approx(2 * counts["c/lo", second], rel=0.5), (
        "a throttled one skips turns"
    )

    def in_schedule() -> bool:
        """Whether the newest probes went out in the first half of their turn, or hardly later: they do on a
        machine that has time for them."""
        newest = [int(t) - to_system_ns - begin_ns for batch in nic.batches[-20:] for t in batch.sent]
        early = [t % length_ns < 0.6 * length_ns for t in newest]
        slot_numbers = {t // length_ns for t in newest}
        return (
            len(newest) >= 20 and sum(early) > 0.9 * len(early) and 2 * len(slot_numbers) <= len(newest) + 2
        )

    nic.until(in_schedule, 60)


def test_missing_paths_are_drawn_at_random_and_a_schedule_can_be_removed(make_nic) -> None:
    nic, far = make_nic("a/lo"), make_nic("b/lo")
    nic.engine.set_peers([far.peer()])
    nic.engine.set_schedule(0, 1e6, 3, [("nobody/lo", 1), ("b/lo", 2), ("c/lo", 3)])
    far.start()
    nic.start()
    nic.until(lambda: nic.samples() > 300)
    assert {path for _, path in sampled(nic)} == set(nic.engine.path_ports)
    nic.engine.set_schedule(0, 1e6, 1, [("b/lo", nic.engine.path_ports[0])])
    nic.engine.set_peers([])
    nic.engine.set_peers([far.peer()])
    had = nic.samples()
    nic.until(lambda: nic.samples() > had + 100)
    nic.engine.set_schedule(0, 0, 0, [])
    had, since = nic.samples(), len(nic.batches)
    nic.until(lambda: nic.samples() > had + 400)
    assert {path for _, path in sampled(nic, since)} == set(nic.engine.path_ports)
    assert nic.lost() == 0


def test_slots_without_a_peer_are_no_missed_timers(make_nic) -> None:
    nic, far = make_nic("a/lo"), make_nic("b/lo")
    nic.engine.set_schedule(time.monotonic_ns(), 100e3, 1, [("b/lo", nic.engine.path_ports[0])])
    far.start()
    nic.start()
    begun = time.monotonic()
    nic.until(lambda: time.monotonic() - begun > 0.5)
    nic.engine.set_peers([far.peer()])
    nic.until(lambda: nic.samples() > 20)
    assert nic.engine.counters()["missed_timers"] < 3000, "5000 turns went by without anybody to ask"


def test_a_schedule_may_be_moved(make_nic) -> None:
    nic, far = make_nic("a/lo"), make_nic("b/lo")
    nic.engine.set_peers([far.peer()])
    nic.engine.set_schedule(time.monotonic_ns(), 2e6, 1, [("b/lo", nic.engine.path_ports[1])])
    far.start()
    nic.start()
    for by_ns in (0, 300_000, -5_000_000_000, 4_000_000_000_000, -(10**18)):
        nic.engine.shift_schedule(time.monotonic_ns() + by_ns)
        had = nic.samples()
        nic.until(lambda had=had: nic.samples() > had + 50)
    assert {path for _, path in sampled(nic)} == {nic.engine.path_ports[1]}


def test_the_stamping_clock_and_the_monotonic_one_are_read_together(make_nic) -> None:
    nic = make_nic("a/lo")
    before_ns = time.monotonic_ns()
    clock_ns, monotonic_ns = nic.engine.clock_now()
    assert before_ns <= monotonic_ns <= time.monotonic_ns()
    assert abs(clock_ns - time.time_ns()) < 1e9


@pytest.mark.parametrize(
    ("at_ns", "length_ns", "slot_probes", "paths"),
    [
        (0, 1e6, 0, [("b/lo", 1)]),
        (0, 1e6, 10, [("b/lo", 1)] * 10),
        (0, 1e6, 2, [("b/lo", 1)] * 3),
        (0, 10.0, 1, [("b/lo", 1)]),
        (0, float("nan"), 1, [("b/lo", 1)]),
        (2**62, 1e6, 1, [("b/lo", 1)]),
        (0, 1e6, 1, [("b/lo", 1)] * 70_000),
    ],
)
def test_impossible_schedules_are_refused(make_nic, at_ns, length_ns, slot_probes, paths) -> None:
    with pytest.raises(ValueError, match=r"slots? |per slot"):
        make_nic("a/lo").engine.set_schedule(at_ns, length_ns, slot_probes, paths)
