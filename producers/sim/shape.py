"""The numbers that determine a simulated fleet: hosts, switches, cables, rates. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

POSITIVE: Final = (
    "hosts",
    "hosts_per_rack",
    "spines",
    "nics_per_host",
    "rails",
    "cables",
    "host_rate_bps",
    "fabric_rate_bps",
    "core_rate_bps",
    "buffer_bytes",
    "host_buffer_bytes",
)
NOT_NEGATIVE: Final = (
    "racks_per_pod",
    "cores",
    "switching_ns",
    "host_cable_ns",
    "fabric_cable_ns",
    "core_cable_ns",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a fleet. Raises ValueError if the numbers do not fit together.

    A rack has one leaf per rail, and NIC k of each of its hosts connects to the leaf of rail k % rails. With
    as many rails as NICs per host this is a rail-optimised fabric, and with one rail a plain Clos. Each leaf
    has `cables` cables to each spine of its pod. With `cores` above 0 there are three tiers: spine s of each
    pod has one cable to each of the `cores` cores of plane s, and pods connect only through the cores.
    """

    hosts: int
    hosts_per_rack: int
    spines: int
    """Number of spines of a pod."""
    nics_per_host: int = 1
    rails: int = 1
    cables: int = 1
    """Number of parallel cables between a leaf and a spine."""
    racks_per_pod: int = 0
    """Number of racks of a pod; 0 if one pod holds all racks."""
    cores: int = 0
    """Number of cores to which each spine has a cable; 0 for a fabric with two tiers."""
    host_rate_bps: int = 400_000_000_000
    fabric_rate_bps: int = 400_000_000_000
    """Rate of the links between leaf and spine."""
    core_rate_bps: int = 400_000_000_000
    switching_ns: int = 600
    """Delay in a receiving switch, from the arrival of the last bit to the queue of the output port."""
    host_cable_ns: int = 15
    """Propagation delay, at 5 ns per metre: 3 m from host to leaf, 20 m to a spine, 100 m to a core."""
    fabric_cable_ns: int = 100
    core_cable_ns: int = 500
    buffer_bytes: int = 1_000_000
    """Capacity of each output queue of a switch, including the packet in service."""
    host_buffer_bytes: int = 16_000_000
    """Capacity of a NIC's own queue."""

    def __post_init__(self) -> None:
        for names, minimum, expected in ((POSITIVE, 1, "at least 1"), (NOT_NEGATIVE, 0, "0 or more")):
            for name in names:
                if getattr(self, name) < minimum:
                    raise ValueError(f"{name} {getattr(self, name)}: expected {expected}")
        if self.nics_per_host % self.rails:
            raise ValueError(f"rails {self.rails}: expected a divisor of {self.nics_per_host} NICs a host")
        if self.pods > 1 and not self.cores:
            raise ValueError(f"cores 0: expected at least 1 to join {self.pods} pods")
        cables = self.hosts * self.nics_per_host + self.leaves * self.spines * self.cables
        if 2 * (cables + self.pods * self.spines * self.cores) > 1 << 30:
            raise ValueError(
                f"{self.hosts} hosts, {self.leaves} leaves: expected at most 2^30 directed links"
            )

    @property
    def racks(self) -> int:
        """Number of racks; the last one may be partly filled."""
        return -(-self.hosts // self.hosts_per_rack)

    @property
    def pods(self) -> int:
        """Number of pods; the last one may have fewer racks."""
        return -(-self.racks // self.racks_per_pod) if self.racks_per_pod else 1

    @property
    def leaves(self) -> int:
        """Number of leaves. They are numbered rack by rack, one leaf per rail."""
        return self.racks * self.rails

    @property
    def ports_down(self) -> int:
        """Number of a leaf's ports to hosts."""
        return self.hosts_per_rack * (self.nics_per_host // self.rails)

    @classmethod
    def of(
        cls,
        nics: int,
        *,
        nics_per_host: int | None = None,
        rails: int | None = None,
        tiers: int | None = None,
        oversubscription: float = 1.0,
        rate_bps: int = 400_000_000_000,
        fabric_rate_bps: int | None = None,
    ) -> Shape:
        """Return a usual shape of `nics` NICs. Raises ValueError if none fits.

        Hosts have one NIC below 256 NICs and 8 from there on (if 8 divides the number), and as many rails as
        NICs. A leaf has about sqrt(nics) ports down, a power of two and at most 32. It has as many cables up,
        divided by `oversubscription` and by fabric_rate_bps / rate_bps, one to each spine of its pod. From
        2,049 NICs on there are three tiers, because the 64 ports of a spine are too few for one pod: pods
        have 32 leaves, and each spine has as many ports up as down. Above 65,536 NICs leaves and pods are
        twice as wide.

        64 NICs: 8 leaves of 8 hosts, 8 spines. 1,024 NICs: 128 hosts of 8 NICs, 4 racks of 8 rails, 32
        leaves, 32 spines. 10,000 NICs: 10 pods of up to 32 leaves and 32 spines, 1,024 cores.
        """
        if nics < 2:
            raise ValueError(f"nics {nics}: expected at least 2")
        if not oversubscription > 0 or not math.isfinite(oversubscription):
            raise ValueError(f"oversubscription {oversubscription}: expected a number above 0")
        if tiers not in (None, 2, 3):
            raise ValueError(f"tiers {tiers}: expected 2 or 3")
        nics_per_host, rails = _host_nics(nics, nics_per_host, rails)
        fabric_rate_bps = rate_bps if fabric_rate_bps is None else fabric_rate_bps
        if rate_bps < 1 or fabric_rate_bps < 1:
            raise ValueError(f"rate_bps {rate_bps}, fabric_rate_bps {fabric_rate_bps}: expected above 0")
        widest = 32 if nics <= 65_536 else 64
        ports_per_host = nics_per_host // rails  # on one leaf
        ports_down = min(widest, 2 ** round(math.log2(math.sqrt(nics))))
        hosts_per_rack = max(1, ports_down // ports_per_host)
        uplink_share = rate_bps / (oversubscription * fabric_rate_bps)
        spines = max(1, math.ceil(hosts_per_rack * ports_per_host * uplink_share - 1e-9))
        if spines > 4_096:
            raise ValueError(f"oversubscription {oversubscription}: {spines} spines, expected at most 4096")
        racks = -(-nics // (nics_per_host * hosts_per_rack))
        racks_per_pod = cores = 0
        if tiers == 3 or (tiers is None and racks * rails > 2 * widest):
            racks_per_pod = max(1, widest // rails)
            pod_leaves = min(racks_per_pod, racks) * rails
            cores = max(1, math.ceil(pod_leaves / oversubscription - 1e-9))
        return cls(
            hosts=nics // nics_per_host,
            hosts_per_rack=hosts_per_rack,
            spines=spines,
            nics_per_host=nics_per_host,
            rails=rails,
            racks_per_pod=racks_per_pod,
            cores=cores,
            host_rate_bps=rate_bps,
            fabric_rate_bps=fabric_rate_bps,
            core_rate_bps=fabric_rate_bps,
        )


def _host_nics(nics: int, nics_per_host: int | None, rails: int | None) -> tuple[int, int]:
    """Return the number of NICs and of rails of a host; None selects the usual number. Raises ValueError."""
    if nics_per_host is None:
        nics_per_host = 8 if nics >= 256 and nics % 8 == 0 else 1
    if nics_per_host < 1 or nics % nics_per_host:
        raise ValueError(f"nics_per_host {nics_per_host}: expected a divisor of {nics} NICs")
    rails = nics_per_host if rails is None else rails
    if rails < 1 or nics_per_host % rails:
        raise ValueError(f"rails {rails}: expected a divisor of {nics_per_host} NICs a host")
    return nics_per_host, rails
