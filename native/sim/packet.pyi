from typing import TypeAlias

from numpy.typing import ArrayLike

from native.sim.columns import Dcqcn, FlowColumns, LinkTruth, ProbeTruth

_Paths: TypeAlias = tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]

class PacketSim:
    def __init__(
        self,
        rate_bps: ArrayLike,
        delay_ns: ArrayLike,
        buffer_bytes: ArrayLike,
        slot_ns: int = 1_000_000,
        seed: int = 1,
        *,
        links: int | None = None,
        ecn: tuple[float, float, float] | None = None,
    ) -> None: ...
    @property
    def links(self) -> int: ...
    @property
    def now_ns(self) -> float: ...
    @property
    def events(self) -> int: ...
    def add_poisson(
        self,
        paths: _Paths,
        rate_bps: ArrayLike,
        packet_bytes: ArrayLike = 1000,
        start_ns: ArrayLike | None = None,
        stop_ns: ArrayLike | None = None,
    ) -> range: ...
    def add_bursty(
        self,
        paths: _Paths,
        rate_bps: ArrayLike,
        peak_bps: ArrayLike,
        burst_bytes: ArrayLike,
        packet_bytes: ArrayLike = 1000,
        start_ns: ArrayLike | None = None,
        stop_ns: ArrayLike | None = None,
    ) -> range: ...
    def add_messages(
        self,
        paths: _Paths,
        size_bytes: ArrayLike,
        rate_bps: ArrayLike,
        at_ns: ArrayLike | None = None,
        packet_bytes: ArrayLike = 1000,
        control: Dcqcn | None = None,
    ) -> range: ...
    def add_probes(
        self,
        forward: _Paths,
        reverse: _Paths,
        nic: ArrayLike,
        peer: ArrayLike,
        path: ArrayLike,
        rate_pps: ArrayLike,
        packet_bytes: ArrayLike = 82,
        spacing_ns: ArrayLike = 0,
        start_ns: ArrayLike | None = None,
        stop_ns: ArrayLike | None = None,
        jitter_ns: ArrayLike | None = None,
    ) -> range: ...
    def move(self, flows: ArrayLike, paths: _Paths) -> None: ...
    def set_rate(self, flows: ArrayLike, rate_bps: ArrayLike) -> None: ...
    def set_loss(self, links: ArrayLike, share: ArrayLike) -> None: ...
    def set_link_rate(self, links: ArrayLike, rate_bps: ArrayLike) -> None: ...
    def run(self, until_ns: float) -> None: ...
    def probes(self) -> ProbeTruth: ...
    def truth(self) -> LinkTruth: ...
    def flows(self) -> FlowColumns: ...
    def in_flight_bytes(self) -> tuple[int, int]: ...
