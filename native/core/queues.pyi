from numpy.typing import ArrayLike

from native.core.columns import Float64s, QueueSlots

class QueueSolver:
    links: int
    routes: int
    sweeps_done: int
    def __init__(
        self,
        packet_ns: ArrayLike,
        route_start: ArrayLike,
        route_link: ArrayLike,
        *,
        merge: int = 4,
        rounds: int = 3,
        sweeps: int = 12,
    ) -> None: ...
    def set_routes(self, route_start: ArrayLike, route_link: ArrayLike) -> None: ...
    def state(self) -> tuple[Float64s, Float64s]: ...
    def restore(self, last_ns: ArrayLike, mean_ns: ArrayLike) -> None: ...
    def solve(
        self,
        slot_ns: float,
        slot_start: ArrayLike,
        route: ArrayLike,
        at: ArrayLike,
        count: ArrayLike,
        delay_ns: ArrayLike,
        noise_ns: ArrayLike,
        knots: int = 2,
        errors: bool = True,
    ) -> QueueSlots: ...
