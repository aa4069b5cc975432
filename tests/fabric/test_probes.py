"""Real probes on the real fabric: four stamps, loss where the truth has it, and a clock measured back."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.truth import PathUnclear
from fabrictime.testbed.settings import FabricSettings

pytestmark = pytest.mark.fabric

PORT, FIRST_PATH_PORT, PATHS = 9319, 9320, 4
SMALL = FabricSettings(hosts=4, leaves=2, spines=2)


def ring(names: list[str], count: int) -> dict[str, list[str]]:
    return {name: [names[(i + k) % len(names)] for k in range(1, count + 1)] for i, name in enumerate(names)}


def test_probes_carry_four_stamps_and_delays_of_microseconds(inside, probers, capsys):
    def body():
        import numpy as np

        with Testbed() as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=500.0)
            try:
                fleet.measure(0.3)
                batches = fleet.measure(1.5)
            finally:
                fleet.close()
        every = [batch for name in names for batch in batches[name]]
        forward = np.concatenate([b.forward for b in every])
        reverse = np.concatenate([b.reverse for b in every])
        turnaround = np.concatenate([b.turnaround for b in every])
        lost = sum(int(b.lost.sum()) for b in every)
        no_t3 = sum(int(b.no_t3.sum()) for b in every)
        pairs = {(b.nic, peer, int(path)) for b in every for peer, path in zip(b.peers, b.path, strict=True)}
        quantiles = np.quantile(np.concatenate([forward, reverse]), [0.5, 0.99]).tolist()
        return (
            len(forward),
            lost,
            no_t3,
            len(pairs),
            forward.min(),
            reverse.min(),
            turnaround.min(),
            quantiles,
        )

    samples, lost, no_t3, pairs, forward, reverse, turnaround, (p50, p99) = inside(body)
    with capsys.disabled():
        print(f"\n  {samples} samples, one way p50 {p50 / 1e3:.1f} us, p99 {p99 / 1e3:.1f} us", end="")
    assert samples > 2000
    assert pairs == 8 * 3 * PATHS
    assert lost + no_t3 <= samples // 100
    assert min(forward, reverse, turnaround) > 0, "all NICs share one clock: a delay below 0 is a wrong stamp"
    assert p50 < 100_000


def crossing(testbed: Testbed, source: str, destination: str, path: int) -> set[str]:
    """Return the links that a probe of this path and its answer take."""
    sport = FIRST_PATH_PORT + path
    links: set[str] = set()
    try:
        links |= set(testbed.truth.likely_path_of(source, destination, sport, PORT))
        links |= set(testbed.truth.likely_path_of(destination, source, PORT, sport))
    except PathUnclear:
        pass
    return links


@pytest.mark.parametrize("line", ["blackhole leaf1>spine2", "blackhole spine1>leaf2"])
def test_a_blackhole_shows_on_exactly_the_paths_that_cross_it(inside, probers, line):
    def body():
        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=600.0, timeout_ms=250.0, paths=PATHS)
            try:
                fleet.measure(0.3)
                (link,) = testbed.faults.add(line).links
                fleet.measure(0.6)  # what was sent before the fault is answered or given up by now
                during = fleet.measure(1.0)
                testbed.faults.clear()
                fleet.measure(0.6)
                after = fleet.measure(0.5)
            finally:
                fleet.close()
            got: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
            for batches in during.values():
                for batch in batches:
                    for g, peer in enumerate(batch.peers):
                        counts = got[batch.nic, peer, path_number(int(batch.path[g]))]
                        counts[0] += int(batch.start[g + 1] - batch.start[g])
                        counts[1] += int(batch.lost[g])
            answered = {key for key, (samples, _) in got.items() if samples}
            losing = {key for key, (_, lost) in got.items() if lost}
            crossed = {key for key in got if link in crossing(testbed, *key)}
            healed = sum(int(b.lost.sum()) for batches in after.values() for b in batches)
            return set(got), answered, losing, crossed, healed

    every, answered, losing, crossed, healed = inside(body)
    assert len(every) == 4 * 3 * PATHS
    assert 0 < len(crossed) < len(every)
    assert every - answered == crossed, "some other pairs fell silent, or some that cross it did not"
    assert losing >= crossed
    assert len(losing - crossed) <= 2, "pairs lose packets that do not cross the fault"
    assert healed <= 2


def path_number(path: int) -> int:
    """The entropy value of a probe is its source port."""
    return path - FIRST_PATH_PORT if path >= FIRST_PATH_PORT else path


def test_a_clock_3_ms_and_12_ppm_off_is_measured_back_within_its_bound(inside, probers, capsys):
    def body():
        from native.core import NicWindow
        from native.core.probe import TestClock

        with Testbed(SMALL) as testbed:
            names = [nic.nic for nic in testbed.fabric.nics()]
            wrong = TestClock(offset_ns=3_000_000, drift_ppb=12_000.0, epoch_ns=time.time_ns())
            fleet = probers(testbed.fabric, ring(names, 3), rate_pps=1500.0, clocks={"h1/eth1": wrong})
            try:
                fleet.measure(0.3)
                batches = fleet.measure(2.0)
            finally:
                fleet.close()
            found = []
            for name in names:
                window = NicWindow(name)
                for batch in batches[name]:
                    window.add(batch)
                fits = window.fit()
                for i, peer in enumerate(fits.peers):
                    at_ns = int(fits.at_ns[i])
                    if (
                        name == "h1/eth1"
                    ):  # at_ns is a reading of the wrong clock: find the true time behind it
                        true_ns = at_ns
                        for _ in range(5):
                            true_ns -= wrong.reading(true_ns) - at_ns
                        offset, drift = -wrong.offset_at(true_ns), -12_000.0
                    elif peer == "h1/eth1":
                        offset, drift = wrong.offset_at(at_ns), 12_000.0
                    else:
                        offset, drift = 0, 0.0
                    found.append(
                        (
                            name,
                            peer,
                            float(fits.offset_ns[i]) - offset,
                            float(fits.sigma_ns[i]),
                            float(fits.drift_ppb[i]) - drift,
                            float(fits.drift_sigma_ppb[i]),
                            float(fits.rtt_min_ns[i]),
                            int(fits.accepted[i]),
                        )
                    )
            return found

    found = inside(body)
    errors = sorted(abs(error) for _, _, error, *_ in found)
    drifts = sorted(abs(drift) for *_, drift, _, _, _ in found)
    with capsys.disabled():
        print(f"\n  12 pairs: offset off by {errors[6]:.0f} ns, at worst {errors[-1]:.0f} ns; ", end="")
        print(f"drift by {drifts[6]:.0f} ppb, at worst {drifts[-1]:.0f} ppb", end="")
    assert len(found) == 12
    for name, peer, error, sigma, drift, drift_sigma, rtt, _ in found:
        # Noise leaves sigma; which of the two ways is longer no pair can know: at most half the round trip.
        assert abs(error) < 4 * sigma + rtt / 2, (name, peer, error, sigma)
        assert abs(drift) < 5 * drift_sigma + 500, (name, peer, drift, drift_sigma)
