"""Measures whether links that drop large packets are found with the size, and no other links are.

The probers' own checks (producers/probe/size_checks.py) probe a simulated fleet of 6 hosts, 3 leaves and 3
spines. Each link in turn drops packets above a size, while all links lose a share of all packets, and one
link loses many. The results pass the shard's detector. A fault is found if its cable alone is GREY with that
size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench.detect.link_evidence import ProbedFleet
from producers.ports.link_events import LinkEvents
from producers.probe.size_checks import SizeChecks, SizeProbe
from producers.sim.shape import Shape
from producers.sim.topology import Fleet
from schemas.ids import cable_id
from schemas.records import LinkState
from streams.links.health.shard_health import Change, ShardHealth

SEED: Final = 11
SHAPE: Final = Shape(hosts=6, hosts_per_rack=2, spines=3)
NIC_BYTES: Final = 9_000
SIZES: Final = (1_400, 1_500, 4_096, 8_999)
STEP_S: Final = 0.05
RATE_PPS: Final = 2.0
"""Size probes per second: the default of probes.size_pps."""
LOSS: Final = 0.002
MUCH_LOSS: Final = 0.2
WARM_S: Final = 15.0
FOUND_S: Final = 60.0
QUIET_S: Final = 600.0
QUICK_LINKS: Final = 3


@dataclass(slots=True)
class Outcome:
    """The verdicts on one fault, and the time until it was found, or None if it was missed."""

    found_s: float | None = None
    cleared_s: float | None = None
    """Time from the end of the fault until its cable was UP; None if it never was."""
    false: set[str] = field(default_factory=set)
    """Other cables that were GREY, and the right one if it was GREY with a wrong size."""


class Network:
    """A fleet whose NICs check sizes, and its shard's detector; time passes in steps of 50 ms."""

    def __init__(self, fleet: Fleet, seed: int, nic_bytes: int = NIC_BYTES) -> None:
        self.fleet = fleet
        self._probes = ProbedFleet(fleet, peers=5, seed=seed)
        self._rng = np.random.default_rng(seed)
        self.mtu_bytes = np.full(fleet.links + 1, 65_535)
        self.loss = np.full(fleet.links + 1, LOSS)
        self.loss[-1] = 0.0
        self.health = ShardHealth("fabric")
        self.now_s = 0.0
        self.grey: dict[str, int | None] = {}
        """Cables that are GREY, with their reported sizes."""
        self._row = {
            (fleet.nic_ids[a], fleet.nic_ids[b], int(port)): row
            for row, (a, b, port) in enumerate(
                zip(self._probes.src, self._probes.dst, self._probes.port, strict=True)
            )
        }
        self._checks: dict[str, SizeChecks] = {}
        self._events: dict[str, LinkEvents] = {}
        for nic in fleet.nic_ids:
            self._checks[nic] = SizeChecks(RATE_PPS, 0.1)
            own_paths = [(peer, port) for name, peer, port in self._row if name == nic]
            self._checks[nic].set_paths(dict.fromkeys(own_paths, nic_bytes))
            self._events[nic] = LinkEvents(nic, "fabric", 1)

    def run(self, for_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Advance time by `for_s` or until `until()` is true; return whether it ended early."""
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += STEP_S
            now_ns = self._probes.now_ns + round(self.now_s * 1e9)
            for nic, checks in self._checks.items():
                for probe in checks.step(self.now_s):
                    if self._arrives(nic, probe):
                        checks.on_arrived(probe.seq)
                rows = checks.take_results(self.now_s)
                if rows:
                    event = self._events[nic].sizes(rows, now_ns, now_ns, 0)
                    self._take(self.health.ingest(event, now_ns, self._probes.book))
            self._take(self.health.evaluate(now_ns))
            if until():
                return True
        return False

    def _arrives(self, nic: str, probe: SizeProbe) -> bool:
        """Return whether a packet passes all links of the path, and its answer all links back."""
        row = self._row[(nic, *probe.key)]
        if probe.size_bytes > self.mtu_bytes[self._probes.forward_links[row]].min():
            return False
        return bool(self._rng.random() < np.prod(1 - self.loss[self._probes.links[row]]))

    def _take(self, changes: Iterable[Change]) -> None:
        for subject, record in changes:
            if record is not None and record["state"] == LinkState.GREY:
                self.grey[subject] = record["max_packet_bytes"]
            else:
                self.grey.pop(subject, None)


def plant(fleet: Fleet, link: int, size_bytes: int, seed: int) -> Outcome:
    """Let one directed link drop packets above a size, and return the verdicts."""
    network, cable, outcome = Network(fleet, seed), cable_id(fleet.link_ids[link]), Outcome()
    network.loss[(link + 1 + seed) % fleet.links] = MUCH_LOSS

    def note(done: bool) -> bool:
        outcome.false |= {name for name, size in network.grey.items() if name != cable or size != size_bytes}
        return done

    network.run(WARM_S, lambda: note(False))
    network.mtu_bytes[link] = size_bytes
    begin_s = network.now_s
    if network.run(FOUND_S, lambda: note(network.grey.get(cable) == size_bytes)):
        outcome.found_s = network.now_s - begin_s
    network.mtu_bytes[link] = 65_535
    begin_s = network.now_s
    if network.run(FOUND_S, lambda: note(cable not in network.grey)):
        outcome.cleared_s = network.now_s - begin_s
    return outcome


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Plant a fault on each link in turn, three with `quick`; then lose packets without such a fault."""
    fleet = Fleet(SHAPE, SEED)
    links = range(fleet.links)[:: max(1, fleet.links // QUICK_LINKS) if quick else 1]
    outcomes = [plant(fleet, link, SIZES[n % len(SIZES)], SEED + n) for n, link in enumerate(links)]
    times_s = [outcome.found_s for outcome in outcomes if outcome.found_s is not None]
    progress(f"mtu: {len(times_s)} of {len(outcomes)} links that drop large packets found")
    false = sorted(name for outcome in outcomes for name in outcome.false)
    for share in (LOSS, 0.02, 0.1, 0.3):
        network = Network(fleet, SEED)
        network.loss[:-1] = share
        network.run(QUIET_S / (10 if quick else 1))
        false += sorted(network.grey)
        progress(f"mtu: every link loses {share:.1%}: {len(network.grey)} false verdicts")
    cleared = [outcome.cleared_s for outcome in outcomes if outcome.cleared_s is not None]
    return {
        "mtu_fault_found_with_size": Figure(
            len(times_s) / len(outcomes), note=f"{len(outcomes)} links, each once, sizes {SIZES}"
        ),
        "mtu_false_grey": Figure(float(len(false)), note="; ".join(false[:3])),
        "mtu_found_s_p50": Figure(
            float(np.median(times_s or [np.nan])), "s", f"largest {max(times_s, default=np.nan):.1f} s"
        ),
        "mtu_cleared_s_p50": Figure(
            float(np.median(cleared or [np.nan])), "s", f"of {len(cleared)} of {len(outcomes)}"
        ),
    }
