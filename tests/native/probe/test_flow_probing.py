"""Aims: single probes on top of everything else, to ways that are to be looked at more often."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.native.probe.test_schedule import sampled


def test_flow_probes_have_a_rate_of_their_own_and_spare_paths_carry_nothing_else(make_nic) -> None:
    nic, far, other = make_nic("a/lo", paths=3, spare=1, rate_pps=400.0), make_nic("b/lo"), make_nic("c/lo")
    first, _ = nic.engine.path_ports
    *_, spare = nic.engine.all_ports
    assert spare not in nic.engine.path_ports
    nic.engine.set_peers([far.peer(), other.peer()])
    for each in (far, other, nic):
        each.start()
    nic.until(lambda: nic.samples() > 100)
    assert {path for _, path in sampled(nic)} == set(nic.engine.path_ports), "nobody aims at the spare one"
    assert nic.engine.counters()["flow_probes"] == 0
    since = len(nic.batches)
    nic.engine.set_flow_probing(
        20e6, 2, [("b/lo", spare), None, ("b/lo", spare), ("c/lo", first), ("d/lo", first), ("b/lo", 1)]
    )
    nic.until(lambda: sampled(nic, since)["b/lo", spare] > 60, 30)
    assert nic.engine.counters()["flow_probes"] >= sampled(nic, since)["b/lo", spare]
    counts = sampled(nic, since)
    assert ("c/lo", spare) not in counts, "only where it was aimed"
    spaced = {
        int(batch.spacing_ns[at])
        for batch in nic.batches[since:]
        for at, path in enumerate(batch.path.tolist())
        if path == spare
    }
    assert spaced == {0}, "single probes"

    def in_schedule() -> bool:
        """Whether the newest aimed probes went out a turn apart, give or take a half: they do on a machine
        that has time for them."""
        sent = [
            int(t)
            for batch in nic.batches[-40:]
            for at, path in enumerate(batch.path.tolist())
            if path == spare
            for t in batch.sent[batch.start[at] : batch.start[at + 1]]
        ]
        steps = [b - a for a, b in itertools.pairwise(sorted(sent)[-7:])]
        return len(steps) == 6 and all(9e6 < step < 51e6 for step in steps)

    nic.until(in_schedule, 60)
    nic.engine.set_flow_probing(0, 0, [])
    had = nic.engine.counters()["flow_probes"]
    since = nic.samples()
    nic.until(lambda: nic.samples() > since + 200)
    assert nic.engine.counters()["flow_probes"] == had, "it drops back"


def test_flow_probes_continue_beside_a_schedule_and_with_a_later_peer(make_nic) -> None:
    nic, far = make_nic("a/lo", paths=2, spare=1), make_nic("b/lo")
    port, spare = nic.engine.all_ports
    nic.engine.set_peers([far.peer()])
    nic.engine.set_schedule(time.monotonic_ns(), 5e6, 1, [("b/lo", port)])
    nic.engine.set_flow_probing(5e6, 1, [("b/lo", spare)])
    nic.engine.set_peers([])
    far.start()
    nic.start()
    nic.engine.set_peers([far.peer()])
    nic.engine.set_flow_probing(5e6, 1, [("b/lo", spare)])
    nic.until(lambda: min(sampled(nic)["b/lo", each] for each in (port, spare)) > 50)


def test_the_rate_cap_limits_flow_probes_too(make_nic) -> None:
    nic, far = (
        make_nic("a/lo", paths=2, spare=1, max_pps=50.0, rate_pps=1.0, flow_pps=5000.0),
        make_nic("b/lo"),
    )
    nic.engine.set_peers([far.peer()])
    nic.engine.set_flow_probing(1e6, 1, [("b/lo", nic.engine.all_ports[-1])])
    far.start()
    nic.start()
    begun_s = time.monotonic()
    nic.until(lambda: nic.engine.counters()["capped"] > 20 and nic.samples() > 5)
    took_s = time.monotonic() - begun_s
    assert nic.engine.counters()["requests_sent"] <= 32 + 50 * took_s + 1, "a burst, then the cap"


@pytest.mark.parametrize(
    ("length_ns", "slot_probes", "flow_paths"),
    [
        (1e6, 0, [("b/lo", 1)]),
        (1e6, 10, [None] * 10),
        (1e6, 2, [None] * 3),
        (10.0, 1, [None]),
        (float("nan"), 1, [None]),
        (1e6, 1, [None] * 70_000),
    ],
)
def test_impossible_flow_targets_are_refused(make_nic, length_ns, slot_probes, flow_paths) -> None:
    with pytest.raises(ValueError, match=r"slots? |per slot"):
        make_nic("a/lo").engine.set_flow_probing(length_ns, slot_probes, flow_paths)
