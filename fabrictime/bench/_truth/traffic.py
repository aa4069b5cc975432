"""Draws the work that arrives at each link: batches, on-off sources, incasts and standing queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

PACKET_BYTES: Final = 1_500
Float64s = NDArray[np.float64]
Arrivals = tuple[Float64s, Float64s]
"""Times in ascending order, ns, and the work that arrives at each, in ns of the link's sending time."""
STANDING_STEP_NS: Final = 5_000.0
SAWTOOTH_NS: Final = 1_000_000.0
SAWTOOTH: Final = 0.2
RISE_SHARE: Final = 0.8
"""A standing queue's level is periodic under rate control: it has the period SAWTOOTH_NS, swings by SAWTOOTH
around its mean, and rises for RISE_SHARE of the period."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A queue of `depth_bytes` that rate-controlled flows hold at a link, in place of cross traffic."""

    link: int
    begin_ns: float
    end_ns: float
    depth_bytes: float = 250e3


@dataclass(frozen=True, slots=True)
class Traffic:
    """The cross traffic of all links."""

    load: tuple[float, float] = (0.3, 0.5)
    """Range of the links' mean loads, uniformly distributed; a share `idle` of the links has no load."""
    idle: float = 0.25
    batch_packets: int = 8
    """Number of packets that arrive at once."""
    on_ns: float = 2e6
    off_ns: float = 2e6
    swing: float = 0.5
    """A link's sources turn on and off, for exponentially distributed times with means `on_ns` and `off_ns`.
    The load is (1 + swing) times its mean while they are on, and (1 - swing) times while they are off."""
    incast_every_ns: float = 10e6
    """Mean gap between two incasts in the whole fabric, exponentially distributed; 0 for no incasts."""
    incast_bytes: tuple[float, float] = (100e3, 500e3)
    incast_senders: tuple[int, int] = (4, 12)
    standing: tuple[Standing, ...] = field(default=())

    def loads(self, links: int, rng: np.random.Generator) -> Float64s:
        """Draw the mean load of each link."""
        loads = rng.uniform(*self.load, links)
        loads[rng.permutation(links)[: round(self.idle * links)]] = 0.0
        return loads

    def background(
        self, load: float, begin_ns: float, end_ns: float, rate_bps: float, rng: np.random.Generator
    ) -> Arrivals:
        """Draw the background traffic of one link in [begin, end): batches of packets."""
        work_ns = self.batch_packets * PACKET_BYTES * 8e9 / rate_bps
        if load <= 0:
            return np.zeros(0), np.zeros(0)
        at, done = self._intensity(load / work_ns, begin_ns, end_ns, rng)
        # a Poisson process of rate 1 on the axis of expected arrivals, carried back to time
        count = int(done[-1] + 6 * np.sqrt(done[-1]) + 20)
        expected = np.cumsum(rng.standard_exponential(count))
        expected = expected[expected < done[-1]]
        times = np.interp(expected, done, at)
        return times, np.full(len(times), work_ns)

    def _intensity(
        self, rate: float, begin_ns: float, end_ns: float, rng: np.random.Generator
    ) -> tuple[Float64s, Float64s]:
        """Return times and the expected number of arrivals until each; linear between switches of sources."""
        if not self.swing:
            return np.array([begin_ns, end_ns]), np.array([0.0, rate * (end_ns - begin_ns)])
        periods = int(2 * (end_ns - begin_ns) / (self.on_ns + self.off_ns) * 1.5 + 50)
        on = (np.arange(periods) + int(rng.integers(2))) % 2 == 0
        lasts = rng.standard_exponential(periods) * np.where(on, self.on_ns, self.off_ns)
        high, low = 1 + self.swing, 1 - self.swing
        mean = (high * self.on_ns + low * self.off_ns) / (self.on_ns + self.off_ns)
        at = np.concatenate([[begin_ns], begin_ns + np.cumsum(lasts)])
        level = rate * np.where(on, high, low) / mean
        level, at = np.append(level, rate), np.append(at, max(end_ns, at[-1]) + 1)
        done = np.concatenate([[0.0], np.cumsum(np.diff(at) * level)])
        cut = int(np.searchsorted(at, end_ns))
        last = np.interp(end_ns, at, done)
        return np.append(at[:cut], end_ns), np.append(done[:cut], last)

    def incasts(
        self,
        links: NDArray[np.int64],
        begin_ns: float,
        end_ns: float,
        rate_bps: float,
        rng: np.random.Generator,
    ) -> dict[int, list[Arrivals]]:
        """Draw the incasts that begin in [begin, end) at the given links; return their arrivals by link."""
        arrivals_by_link: dict[int, list[Arrivals]] = {}
        packet_ns = PACKET_BYTES * 8e9 / rate_bps
        now = begin_ns + rng.exponential(self.incast_every_ns) if self.incast_every_ns else end_ns
        while now < end_ns:
            senders = int(rng.integers(self.incast_senders[0], self.incast_senders[1] + 1))
            rounds = max(1, round(rng.uniform(*self.incast_bytes) / PACKET_BYTES / senders))
            times: Float64s = np.arange(rounds, dtype=np.float64) * packet_ns + now
            arrivals = (times, np.full(rounds, senders * packet_ns))
            arrivals_by_link.setdefault(int(rng.choice(links)), []).append(arrivals)
            now += rng.exponential(self.incast_every_ns)
        return arrivals_by_link


def standing_arrivals(standing: Standing, rate_bps: float, begin_ns: float, end_ns: float) -> Arrivals:
    """Return the arrivals that keep a standing queue in [begin, end), as a sawtooth around its depth."""
    first = max(begin_ns, standing.begin_ns)
    last = min(end_ns, standing.end_ns)
    at = np.arange(first, last, STANDING_STEP_NS)
    if not len(at):
        return np.zeros(0), np.zeros(0)
    mean_ns = standing.depth_bytes * 8e9 / rate_bps

    def level_ns(t: Float64s) -> Float64s:
        phase = ((t - standing.begin_ns) / SAWTOOTH_NS) % 1.0
        rises = np.minimum(phase / RISE_SHARE, (1 - phase) / (1 - RISE_SHARE))
        level: Float64s = mean_ns * (1 + SAWTOOTH * (2 * rises - 1))
        return level

    # each arrival sets the level of its moment: the rise since the last, and the work done between
    work = np.maximum(level_ns(at) - level_ns(at - STANDING_STEP_NS) + STANDING_STEP_NS, 0.0)
    if first == standing.begin_ns:
        work[0] = level_ns(at[:1])[0]
    return at, work
