"""Probes of two traffic classes on switches with priority queues that mark: a load shows in its class."""

from __future__ import annotations

from collections import defaultdict

import pytest

from fabrictime.bench.networks.switches import DATA_DSCP, SETTINGS, measure_load
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.settings import FabricClass

pytestmark = pytest.mark.fabric


def test_a_load_in_one_class_delays_and_marks_probes_of_that_class_alone(inside, capsys):
    found = inside(lambda: measure_load(3.0))
    waiting, free = ([each for each in found.directions if each.waits is waits] for waits in (True, False))
    with capsys.disabled():
        print(f"\n  queue of {found.deepest_ns / 1e6:.0f} ms, marks {found.marked_by_switches}", end="")
        print(f", count error {found.count_error:.4f}, {found.lost} probes lost", end="")
        print(f", waiting {min(each.delay_ns for each in waiting) / 1e6:.1f} ms and more", end="")
        print(f", others {max(each.delay_ns for each in free) / 1e6:.1f} ms and less", end="")
        print(f", contention at {sorted(found.opened_ns)} opens {found.open_by_ce_ms:.1f} ms over", end="")
    assert found.deepest_ns > 50e6
    assert waiting
    assert {each.dscp for each in free} == {0, DATA_DSCP}
    assert found.right_share == 1.0
    assert found.marked_by_switches[DATA_DSCP] > 50
    assert found.marked_by_switches[0] == 0
    assert found.count_error <= 0.01
    assert min(found.opened_ns, key=found.opened_ns.__getitem__) in found.loaded
    assert found.open_by_ce_ms <= 1


@pytest.mark.parametrize("share_percent", [50, 1])
def test_without_a_load_both_classes_have_the_delays_of_an_idle_path(inside, probers, share_percent):
    def body():
        import numpy as np

        classes = (FabricClass(share_percent=share_percent), FabricClass(dscp=DATA_DSCP, mark_percent=90))
        with Testbed(SETTINGS.model_copy(update={"classes": classes})) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            peers = {name: [other for other in names if other != name] for name in names}
            fleet = probers(testbed.fabric, peers, rate_pps=200.0, classes=((0, None), (DATA_DSCP, None)))
            try:
                batches = fleet.measure(1.5)
            finally:
                fleet.close()
            found: dict[int, list[int]] = defaultdict(list)
            for batch in (each for name in names for each in batches[name]):
                for group, dscp in enumerate(batch.dscp.tolist()):
                    found[dscp] += batch.forward[batch.start[group] : batch.start[group + 1]].tolist()
            medians = {dscp: float(np.quantile(each, 0.5)) for dscp, each in found.items()}
            return medians, testbed.truth.marked()

    p50_ns, marked = inside(body)
    assert set(p50_ns) == {0, DATA_DSCP}
    assert max(p50_ns.values()) < 500_000, "a probe of an idle class waits for no token"
    assert all(counts == {DATA_DSCP: 0} for counts in marked.values())
