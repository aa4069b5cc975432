"""Known routes: when a differing trace is believed."""

from __future__ import annotations

from producers.trace.known_route import SILENT_TRACES, KnownRoute
from producers.trace.tracer import Trace, TracedFlow

FLOW = TracedFlow("REQUEST", "b/e", 9320, ("10.0.2.2", 9319), 0)
HOPS = ("10.0.1.1", "10.9.0.1", "10.9.0.2")


def test_a_change_is_believed_when_two_traces_agree() -> None:
    known = KnownRoute(HOPS, True, 1)
    moved = Trace(FLOW, (HOPS[0], "10.9.0.9", HOPS[2]), True)
    assert known.update(moved, 2)
    assert known.hops == HOPS
    assert not known.update(Trace(FLOW, HOPS, True), 3), "it was a slip"
    assert known.update(moved, 4)
    assert not known.update(moved, 5)
    assert (known.hops, known.changes, known.since_ns) == (moved.hops, 1, 5)


def test_an_expected_change_is_accepted_after_one_complete_trace() -> None:
    other = (HOPS[0], "10.9.9.1", "10.9.9.2")
    known = KnownRoute(HOPS, True, 1)
    assert known.update(Trace(FLOW, (HOPS[0], None, other[2]), True), 2, expected=True), (
        "not whole: once more"
    )
    assert known.update(Trace(FLOW, other[:2], False), 2, expected=True)
    assert known.hops == HOPS
    assert not known.update(Trace(FLOW, other, True), 3, expected=True)
    assert (known.hops, known.since_ns, known.changes) == (other, 3, 1)


def test_a_dead_path_keeps_its_route() -> None:
    """Whoever looks for the dead link needs the way as it was."""
    known = KnownRoute(HOPS, True, 1)
    for cut in ((), HOPS[:1], (HOPS[0], None)):
        assert not known.update(Trace(FLOW, cut, False), 2)
    assert (known.hops, known.reached, known.changes) == (HOPS, True, 0)


def test_a_hop_that_falls_silent_is_unknown_after_some_traces_and_comes_back() -> None:
    known = KnownRoute(HOPS, True, 1)
    quiet = Trace(FLOW, (HOPS[0], None, HOPS[2]), True)
    for _ in range(SILENT_TRACES - 1):
        known.update(quiet, 2)
    assert known.hops == HOPS
    known.update(quiet, 2)
    assert known.hops == quiet.hops
    known.update(Trace(FLOW, HOPS, True), 3)
    assert (known.hops, known.changes) == (HOPS, 0)


def test_a_short_uplink_check_differs_only_at_a_differing_hop() -> None:
    known = KnownRoute(HOPS, True, 1)
    assert not known.differs_from(HOPS[:2])
    assert not known.differs_from((HOPS[0], None))
    assert not known.differs_from(())
    assert known.differs_from((HOPS[0], "10.9.9.9"))
