from typing import Any

from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s

_Int32s = NDArray[Any]
_Columns = tuple[Int64s, NDArray[Any], Float64s, Float64s, Float64s, Float64s, Float64s]

class CellStore:
    def __init__(self, bucket_slots: int) -> None: ...
    def __bool__(self) -> bool: ...
    def clear(self) -> None: ...
    def add(
        self,
        slot: Int64s,
        route: _Int32s,
        at: Float64s,
        count: Float64s,
        mean_ns: Float64s,
        noise_ns: Float64s,
        ce: Float64s,
    ) -> None: ...
    def add_rows(
        self,
        first_slot: int,
        slot_ns: float,
        min_noise_ns: float,
        route: _Int32s,
        cells: Int64s,
        noise_ns: NDArray[Any],
        slot: Int64s,
        count: Int64s,
        mean_ns: NDArray[Any],
        at_ns: Int64s,
        ce: Int64s,
    ) -> None: ...
    def waiting(self, begin: int, end: int) -> _Columns: ...
    def take(self, begin: int, end: int) -> tuple[_Columns, int]: ...

def own_delays(
    route: _Int32s,
    mean_ns: Float64s,
    noise_ns: Float64s,
    senders: Int64s,
    last_links: Int64s,
    min_receivers: int,
    sigmas: float,
) -> Float64s: ...
def find_routes(
    keys: Int64s,
    route_at: _Int32s,
    ids: Int64s,
    nic: Int64s,
    peer: Int64s,
    path: Int64s,
    direction: Int64s,
    dscp: Int64s,
) -> tuple[Int64s, NDArray[Any], bool]: ...
def add_idle(
    route: _Int32s,
    direction: Int64s,
    singles: Int64s,
    idle: Int64s,
    round_trip: int,
    all_singles: Int64s,
    all_idle: Int64s,
) -> None: ...
def lay_out(
    slot: Int64s,
    route: _Int32s,
    at: Float64s,
    count: Float64s,
    mean_ns: Float64s,
    noise_ns: Float64s,
    first: int,
    slots: int,
    fold: int,
    every: int,
) -> tuple[Int64s, tuple[NDArray[Any], Float64s, Float64s, Float64s, Float64s], NDArray[Any]]: ...
def count_links(
    route_start: Int64s, route_link: Int64s, route: _Int32s, count: Float64s, links: int
) -> Int64s: ...
def busy_shares(
    route_start: Int64s,
    route_link: NDArray[Any],
    probes: Float64s,
    delayed: Float64s,
    share: Float64s,
    max_share: float,
    iterations: int,
) -> tuple[Float64s, Float64s]: ...
def check_columns(
    mean_ns: NDArray[Any],
    cells: Int64s,
    nic: Int64s,
    peer: Int64s,
    direction: Int64s,
    slot: Int64s,
    count: Int64s,
    at_ns: Int64s,
    ce: Int64s,
) -> tuple[int, int, int, int, int, int, int, int, float, bool]: ...
