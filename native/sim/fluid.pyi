from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Fluid", "packet_waits"]

def packet_waits(
    load: float, service_ns: float, spacing_ns: float, count: int, seed: int = 1
) -> NDArray[np.float64]: ...

class Fluid:
    nics: int
    links: int
    def __init__(
        self,
        *,
        rate_bps: ArrayLike,
        delay_ns: ArrayLike,
        buffer_bytes: ArrayLike,
        kind: ArrayLike,
        nics: int,
        start_ns: int = 0,
        step_ns: int = 100_000,
        packet_bytes: float = 4170,
        probe_bytes: float = 128,
        max_load: float = 0.95,
        mark_begin: float = 0.1,
        mark_full: float = 0.4,
        max_mark: float = 0.01,
        gain: float = ...,
        increase_share: float = 0.001,
        timer_ns: float = 55_000,
        min_rate_share: float = 0.001,
        idle_ns: float = 1_000_000,
        flowlet_ns: float = 0,
        slow_sender_bytes: float = 256_000,
        lossless: bool = True,
        rate_pps: float = 300,
        spacing_ns: int = 20_000,
        response_ns: tuple[float, float] = (5_000, 15_000),
        timeout_ns: float = 100_000_000,
        min_early_timeout_ns: float = 2_000_000,
        evidence_gap_ns: float = 5_000_000,
        evidence_slow_ns: float = 100_000_000,
        evidence_beat_ns: float = 1_000_000_000,
        noise_ns: float = 0,
        quantum_ns: float = 1,
        seed: int = 1,
    ) -> None: ...
    def set_nic_name(self, nic: int, name: str) -> None: ...
    def set_clock(
        self,
        nic: int,
        *,
        offset_ns: int = 0,
        drift_ppb: float = 0.0,
        wander_ppb_per_sqrt_s: float = 0.0,
        epoch_ns: int = 0,
        seed: int = 0,
        step_ns: int = 0,
        step_at_ns: int = 0,
    ) -> None: ...
    def set_groups(self, nic: ArrayLike, peer: ArrayLike, path: ArrayLike) -> None: ...
    def set_legs(
        self,
        start: ArrayLike,
        link: ArrayLike,
        reached: ArrayLike,
        back_start: ArrayLike,
        back_link: ArrayLike,
        back_reached: ArrayLike,
    ) -> None: ...
    def add_flow(self, nic: int, line_bps: float) -> int: ...
    def set_flow_path(self, flow: int, links: ArrayLike, reached: bool = True) -> None: ...
    def set_flow_routes(self, flow: int, routes: Sequence[ArrayLike]) -> None: ...
    def set_flow_limits(
        self, flow: int, demand_bps: float | None = None, limit_bps: float | None = None
    ) -> None: ...
    def send(self, flow: int, data_bytes: float | None = None) -> None: ...
    def add_job(
        self,
        phases: Sequence[tuple[Sequence[int], ArrayLike]],
        gap_ns: float = 0,
        begin_ns: float = 0,
        ends: Sequence[Sequence[tuple[int, int]]] | None = None,
    ) -> int: ...
    def stop_job(self, job: int) -> None: ...
    def set_job_gap(self, job: int, gap_ns: float) -> None: ...
    def trace_job(self, job: int) -> None: ...
    def job_times(self, job: int) -> tuple[int, float, NDArray[np.float64]]: ...
    def set_flow_line(self, flow: int, line_bps: float) -> None: ...
    def flow_cuts(self) -> NDArray[np.int64]: ...
    def set_link(
        self, link: int, *, up: bool = True, loss: float = 0, share: float = 1, base_load: float = 0
    ) -> None: ...
    def set_nic(
        self, nic: int, *, dead: bool = False, silent: bool = False, rate_pps: float | None = None
    ) -> None: ...
    def set_schedule(self, nic: int, at_ns: float, slot_ns: float, route: ArrayLike) -> None: ...
    def advance(self, until_ns: float) -> None: ...
    @property
    def now_ns(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def working(self) -> tuple[int, int]: ...
    @property
    def flows(self) -> int: ...
    def clock_ns(self, nic: int, at_ns: float) -> int: ...
    def flush(self, nic: int, run: int, batch: int) -> tuple[bytes, int]: ...
    def evidence(
        self, shard: str, runs: Sequence[int], numbers: list[int], kind: int
    ) -> list[tuple[int, float, int, bytes]]: ...
    def iterations(self) -> list[tuple[int, int, float, float, NDArray[np.float64] | None]]: ...
    def link_sums(self) -> NDArray[np.float64]: ...
    def link_max(self) -> NDArray[np.float64]: ...
    def flow_sums(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]: ...
    def flow_sums_of(self, flow: int) -> NDArray[np.float64]: ...
    def flow_backlog(self, flow: int) -> float: ...
    def totals(self) -> tuple[int, int, int, int]: ...
