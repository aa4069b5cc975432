"""Setup: clocks that a reader can draw again."""

from __future__ import annotations

from native.core.probe import TestClock
from producers.sim.settings import SimSettings
from producers.sim.setup import draw_clocks
from producers.sim.simulation import Simulation


def test_clocks_are_those_that_a_reader_can_compute_again():
    settings = SimSettings(nics=4, stamp_noise_ns=0, stamp_step_ns=1)
    run = Simulation(settings, start_ns=10**18)
    list(run.advance(0.5))
    for nic, clock in enumerate(draw_clocks(settings, 4, 10**18)):
        for at_ns in (0, 123_456_789, 5 * 10**9):
            assert run.kernel.clock_ns(nic, at_ns) == TestClock(**clock).reading(10**18 + at_ns)
