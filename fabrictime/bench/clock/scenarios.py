"""Lists the numbered scenarios of the clock bench: parameters of a fleet, and events over time.

`SCENARIOS` is by name; a `Scenario`'s parameters carry their units in their names. Numbers and names are
permanent. A scenario is physics and is never fitted to an estimator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Step:
    """The clock of `nic` reads `step_ns` more from `at_s` on."""

    at_s: float
    nic: int
    step_ns: float


@dataclass(frozen=True, slots=True)
class Temperature:
    """The rates of `nics` change by up to `ppb`, with the time course 1 - exp(-(t - at_s) / settle_s)."""

    at_s: float
    nics: tuple[int, ...]
    ppb: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """`nic` returns with a new run and another clock: `offset_ns` away from the old one, at another rate."""

    at_s: float
    nic: int
    offset_ns: float
    drift_ppb: float


@dataclass(frozen=True, slots=True)
class Dark:
    """No probe reaches or leaves `nics`; if `is_silent`, their agents send nothing to the log either."""

    at_s: float
    until_s: float
    nics: tuple[int, ...]
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Apart:
    """No probe passes between `nics` and the other NICs, in either direction, from the event on."""

    at_s: float
    until_s: float
    nics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Redraw:
    """Every NIC chooses new peers."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Falseticker:
    """`nic` stamps wrongly: t2 and t3 have an error that differs by prober, `rms_ns` rms."""

    at_s: float
    until_s: float
    nic: int
    rms_ns: float


@dataclass(frozen=True, slots=True)
class Load:
    """The load of all links is `load` from `at_s` on."""

    at_s: float
    load: float


@dataclass(frozen=True, slots=True)
class Incast:
    """Each packet into `nic` is delayed by an amount between half of `delay_ns` and all of it."""

    at_s: float
    until_s: float
    nic: int
    delay_ns: float


@dataclass(frozen=True, slots=True)
class BadStamps:
    """A `share` of all samples is duplicated, or has a stamp that is 0, of another epoch, or out of order."""

    share: float


UPTIME_NS: Final = 10**12
FLEET: Final = 64
"""The size of the fleet in which events number their NICs."""

Event: TypeAlias = (
    Step | Temperature | Restart | Dark | Apart | Redraw | Falseticker | Load | Incast | BadStamps
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A fleet and its events. The defaults are those of the headline figures.

    Load and frame give a busy hop's mean depth: the queue is an M/M/1's, whose work, if any, is exponential
    with mean frame_ns / (1 - load). The frame is a RoCE packet of 4,096 bytes with its headers (4,170 bytes)
    at 100 Gbit/s: 334 ns, so 0.6 us deep at a load of 0.4, and 1.7 us at 0.8.
    """

    number: int
    name: str
    story: str
    nics: int = FLEET
    peers: int = 10
    windows: int = 30
    window_s: float = 2.0
    rate_pps: float = 500.0
    """Samples per second of a directed pair over all paths; they are coded pairs with exponential gaps."""
    spacing_ns: int = 20_000
    """Spacing of a coded pair, by default that of the probers; 0 sends single probes."""
    paths: int = 1
    load: float = 0.4
    load_spread: float = 0.0
    """The loads of each NIC's own two links, in and out, are drawn within load +- load_spread."""
    hops: int = 4
    """Queueing hops per direction: the first is the sender's link, the last the receiver's."""
    frame_ns: float = 334.0
    delay_ns: tuple[float, float] = (3_000.0, 8_000.0)
    """One-way delay without queues, uniform over NIC pairs; both directions differ only by the asymmetry."""
    asymmetry_ns: float = 0.0
    """Rms over pairs of NICs of half of (delay out - delay back): the error of the pair's offset."""
    asymmetric_pairs: int = 0
    """Number of probed pairs of NICs whose path has `asymmetric_ns` of additional asymmetry."""
    asymmetric_ns: float = 0.0
    stamp_noise_ns: float = 4.0
    stamp_step_ns: float = 8.0
    stamp_late_ns: float = 0.0
    """Mean lateness of a kernel, exponential: it makes receive stamps late and send stamps early."""
    offset_ns: float = 1e9
    """Largest distance of a clock from the truth at the start: log-uniform from 1 ms on, of either sign."""
    power_on: bool = False
    """Whether clocks count from their power-on instead of the Unix epoch; power-ons are `UPTIME_NS` apart."""
    drift_ppb: float = 5_000.0
    wander_ppb_per_sqrt_s: float = 1.0
    system_error_ns: float = 2e6
    """Rms error of the hosts' system clocks."""
    loss: float = 0.0
    one_direction: bool = False
    """Whether only one NIC of each pair probes the other."""
    events: tuple[Event, ...] = ()

    def smaller(self, nics: int, peers: int, windows: int) -> Scenario:
        """Return the same scenario with a smaller fleet and fewer windows."""
        peers = min(peers, self.peers)
        asymmetric = -(-self.asymmetric_pairs * nics * peers // (self.nics * self.peers))
        return replace(
            self, nics=nics, peers=peers, windows=min(windows, self.windows), asymmetric_pairs=asymmetric
        )

    def member(self, nic: int) -> int:
        """Return the NIC of this fleet that corresponds to `nic`, a number in a fleet of 64 NICs."""
        return nic * self.nics // FLEET

    def members(self, nics: tuple[int, ...]) -> list[int]:
        """Return the NICs of this fleet that correspond to `nics` in a fleet of 64, as an equal share."""
        numbers = sorted({self.member(nic) for nic in nics})
        count = -(-len(nics) * self.nics // FLEET)
        return numbers[:: max(1, len(numbers) // count)][:count]


HEADLINE: Final = (
    "load40_symmetric",
    "load40_asymmetry10",
    "load80_500pps_asymmetry10",
    "load80_4000pps_asymmetry10",
)
"""The scenarios of the headline accuracy figures."""

_EIGHT: Final = tuple(range(0, 64, 8))

_ALL: Final = (
    Scenario(1, "load40_symmetric", "the fleet of the figures, no asymmetry"),
    Scenario(2, "load40_asymmetry10", "every path 10 ns rms asymmetric", asymmetry_ns=10),
    Scenario(3, "load80_500pps_asymmetry10", "hardly a clean probe in a window", load=0.8, asymmetry_ns=10),
    Scenario(
        4, "load80_4000pps_asymmetry10", "eight times the probes", load=0.8, asymmetry_ns=10, rate_pps=4000
    ),
    Scenario(5, "idle", "nothing but probes", load=0.0),
    Scenario(
        6,
        "uneven_loads",
        "NICs from idle to saturated, each direction its own",
        load=0.5,
        load_spread=0.45,
        asymmetry_ns=10,
    ),
    Scenario(7, "load_rises", "quiet, then a load of 80%", load=0.2, events=(Load(24, 0.8),)),
    Scenario(
        8,
        "kernel_stamps",
        "stamps of a kernel: late by 1 us in the mean, with a tail",
        stamp_late_ns=1_000,
        stamp_noise_ns=30,
    ),
    Scenario(9, "coarse_stamps", "a clock that counts in 64 ns", stamp_step_ns=64),
    Scenario(10, "wander10", "oscillators ten times worse", wander_ppb_per_sqrt_s=10),
    Scenario(
        11,
        "temperature_step",
        "a row of racks warms up: 300 ppb within half a minute",
        events=(Temperature(24, _EIGHT, 300, 10),),
    ),
    Scenario(12, "clock_step", "one clock steps by 1 ms in mid-window", events=(Step(29.3, 5, 1e6),)),
    Scenario(13, "small_step", "one clock steps by 2 us at a window's start", events=(Step(30.0, 5, 2e3),)),
    Scenario(14, "restart", "a NIC comes back with another clock", events=(Restart(31.0, 7, 3.2e8, -3_500),)),
    Scenario(15, "loss", "three of ten probes lost", loss=0.3),
    Scenario(
        16,
        "liar",
        "one NIC stamps wrongly by 5 us rms, another sum for everyone who asks",
        events=(Falseticker(20.0, 1e9, 9, 5_000),),
    ),
    Scenario(
        17,
        "asymmetric_paths",
        "a dozen paths are asymmetric by 500 ns",
        asymmetric_pairs=12,
        asymmetric_ns=500,
        asymmetry_ns=10,
    ),
    Scenario(
        18,
        "churn",
        "NICs leave and come back, peers are drawn again",
        events=(
            Dark(14, 30, (3, 11, 20), is_silent=True),
            Redraw(20),
            Dark(26, 44, (1, 2), is_silent=True),
            Redraw(40),
        ),
    ),
    Scenario(
        19,
        "partition",
        "a quarter of the fleet is cut off for 20 s",
        events=(Apart(20, 40, tuple(range(16))),),
    ),
    Scenario(20, "few_samples", "ten samples a pair and window", rate_pps=5),
    Scenario(
        21,
        "one_direction",
        "every pair probed from one end only, three peers each",
        peers=3,
        one_direction=True,
    ),
    Scenario(22, "four_paths", "each pair over four paths of other lengths", paths=4, asymmetry_ns=10),
    Scenario(23, "single_probes", "no coded pairs", spacing_ns=0),
    Scenario(24, "bad_stamps", "one sample in fifty is nonsense", events=(BadStamps(0.02),)),
    Scenario(25, "fast_drift", "clocks up to 100 ppm off", drift_ppb=100_000),
    Scenario(
        26,
        "holdover",
        "eight NICs lose all their pairs for a minute",
        windows=60,
        events=(Dark(60, 1e9, _EIGHT),),
    ),
    Scenario(
        27,
        "incast",
        "what comes into one NIC waits 0.1 to 0.2 ms for 20 s",
        events=(Incast(20.5, 40.5, 9, 200_000),),
    ),
    Scenario(28, "power_on", "clocks count from power-on: their offsets are 1.8e18 ns", power_on=True),
)

SCENARIOS: Final = {scenario.name: scenario for scenario in _ALL}
