"""Settings of the packet-forwarding testbed: its size, its rates and the clocks of its NICs.

The model checks the `fabric` table of the TOML file, for `fabrictime.testbed.fabric.fabric.Fabric`.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.strict_model import StrictModel, quantity

ETHERNET_BYTES = 14
"""Header of a frame, which queues and rates count in addition to the MTU."""
HOSTS_PER_LEAF_MAX = 127
MAX_CLASSES = 8
"""Maximum number of traffic classes of a port: as many as Ethernet has priorities."""
BURST_NS = 100_000
"""Time for which a port may exceed its rate if no burst is set: the delay of a late timer."""

TRANSIT_24_MAX = 32_768
"""Maximum number of cables between leaves and spines if each has a /24 prefix."""

AnswerForm = Literal[
    "ports",
    "transit_30",
    "transit_24",
    "loopback",
    "anycast",
    "anycast_loopback",
    "rate_limited",
    "silent_spines",
    "silent",
    "tunnel",
    "flat",
]

UNSTABLE_PPB_PER_SQRT_S = 10_000.0
"""Random walk of a broken oscillator: ten thousand times that of a good one."""


class FabricClass(StrictModel):
    """A traffic class of the fabric: a queue of its own at every port, and a marking threshold."""

    dscp: int = quantity(0, (0, 63), "DSCP of the class's packets")
    priority: int = quantity(0, (0, 7), "order in which classes take capacity that others leave; 0 is first")
    share_percent: float = Field(
        default=50.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="part of a link's rate that the class has under any load of the others; all classes "
        "together: at most 100",
    )
    mark_percent: float | None = Field(
        default=None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="part of a link's rate above which switches mark the class's ECN-capable packets (CE); "
        "null: none is marked",
    )
    mark_bytes: int = quantity(
        30_000, (1_520, 100_000_000), "bytes above that rate after which marking begins"
    )


class FabricSettings(StrictModel):
    """A leaf-spine fabric of network namespaces: every host on a leaf, every leaf on every spine."""

    hosts: int = quantity(8, (1, 512), "hosts, spread evenly over the leaves")
    leaves: int = quantity(4, (1, 128), "leaf switches")
    spines: int = quantity(4, (1, 64), "spine switches")
    nics_per_host: int = quantity(
        1, (1, 16), "NICs of a host; above 1, NIC r of each host of a rack is on leaf r (rail r)"
    )
    links_per_leaf_spine: int = quantity(1, (1, 8), "parallel links between each leaf and each spine")
    host_rate_bps: int = quantity(
        100_000_000, (0, 32_000_000_000), "bit/s of a host's link, each way; 0: not limited"
    )
    fabric_rate_bps: int = quantity(
        100_000_000, (0, 32_000_000_000), "bit/s of a link between leaf and spine, each way; 0: not limited"
    )
    mtu_bytes: int = quantity(
        1_500,
        (1_280, 9_216),
        "bytes of the largest packet; large ones cost fewer looks a byte, and queue longer",
    )
    buffer_bytes: int = quantity(
        200_000, (3_000, 1_000_000_000), "bytes a limited port queues before it drops"
    )
    burst_bytes: int | None = quantity(
        None,
        (1_520, 10_000_000),
        "bytes a limited port may send at once; null: a full packet and 100 us of its rate",
    )
    classes: tuple[FabricClass, ...] = Field(
        default=(),
        max_length=MAX_CLASSES,
        description="traffic classes, each with a queue at every port; packets of other DSCPs wait with the "
        "first; without any, a port has one queue and marks nothing",
    )
    answers: AnswerForm = Field(
        default="ports",
        description="how switches answer traces: from ports with /31, /30 or /24 prefixes (ports, "
        "transit_30, transit_24), from loopbacks, with one gateway address on all leaves "
        "(anycast, anycast_loopback), at Linux' default rate (rate_limited), not at all "
        "(silent_spines, silent); tunnel: from loopbacks, and spines are hidden; flat: one "
        "subnet, no router",
    )
    hash_seed: int = quantity(
        20_240_229, (1, 2**32 - 1), "seed of the flow hash that chooses among equal paths"
    )
    hash_protocol: bool = Field(
        default=True,
        description="whether UDP and TCP of the same ports may take different paths, as on most switches",
    )
    shard: str = Field(
        default="fabric",
        pattern=r"^[^\s/>]{1,64}$",
        description="shard that every NIC of the fabric belongs to",
    )
    clock_seed: int = quantity(1, (0, 2**63 - 1), "seed that the NICs' clocks are drawn from")
    clock_offset_max_ns: int = quantity(
        0,
        (0, 60_000_000_000),
        "each NIC's clock starts within this many ns of the true time; 0: it starts right",
    )
    clock_drift_max_ppb: float = Field(
        default=0.0,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="each NIC's clock drifts by at most this many ppb; 0: none drifts",
    )
    clock_wander_ppb_per_sqrt_s: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        allow_inf_nan=False,
        description="random walk of each NIC's drift, ppb per square root of a second",
    )
    unstable_clocks: tuple[str, ...] = Field(
        default=(),
        max_length=512,
        description=f"NICs such as h7/eth1 whose drift walks by {UNSTABLE_PPB_PER_SQRT_S:g} ppb per square "
        "root of a second: no network can synchronise them",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.leaves % self.nics_per_host:
            raise ValueError(
                f"leaves {self.leaves}: expected a multiple of nics_per_host {self.nics_per_host}, "
                "one leaf a rail"
            )
        racks = self.leaves // self.nics_per_host
        if -(-self.hosts // racks) > HOSTS_PER_LEAF_MAX:
            raise ValueError(
                f"hosts {self.hosts}: expected at most {HOSTS_PER_LEAF_MAX * racks}, "
                f"{HOSTS_PER_LEAF_MAX} a leaf"
            )
        self._check_classes()
        cables = self.leaves * self.spines * self.links_per_leaf_spine
        if self.answers == "transit_24" and cables > TRANSIT_24_MAX:
            raise ValueError(f"answers transit_24: {cables} cables, expected at most {TRANSIT_24_MAX}")
        for name in ("host_rate_bps", "fabric_rate_bps"):
            rate = getattr(self, name)
            if 0 < rate < 1_000_000:
                raise ValueError(f"{name} {rate}: expected 0 or at least 1000000")
            if rate and self.burst_for(rate) > self.buffer_bytes:
                raise ValueError(
                    f"buffer_bytes {self.buffer_bytes}: expected at least the burst, {self.burst_for(rate)}"
                )
        return self

    def _check_classes(self) -> None:
        if not self.classes:
            return
        dscps = [traffic_class.dscp for traffic_class in self.classes]
        if len(set(dscps)) < len(dscps):
            raise ValueError(f"classes: DSCP {dscps}, expected each once")
        percent = sum(traffic_class.share_percent for traffic_class in self.classes)
        if percent > 100 + 1e-9:
            raise ValueError(f"classes: share_percent {percent:g} together, expected at most 100")
        if not (self.host_rate_bps and self.fabric_rate_bps):
            raise ValueError("classes: expected host_rate_bps and fabric_rate_bps above 0, which they divide")

    @property
    def frame_bytes(self) -> int:
        """Size of the largest Ethernet frame, bytes."""
        return self.mtu_bytes + ETHERNET_BYTES

    def burst_for(self, rate_bps: int) -> int:
        """Return the number of bytes that a port of this rate may send in one burst."""
        if self.burst_bytes is not None:
            return self.burst_bytes
        return self.frame_bytes + rate_bps * BURST_NS // 8_000_000_000
