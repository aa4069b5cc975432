from typing import Any

from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s

_Int32s = NDArray[Any]

def limit_depths(
    hop: Int64s,
    slot: Int64s,
    route: _Int32s,
    delay_ns: Float64s,
    beside_ns: Float64s,
    newest_ns: Float64s,
    packet_ns: Float64s,
    slots: int,
) -> Float64s: ...
def expected_depths(
    queue_ns: Float64s,
    level_ns: Float64s,
    mean_ns: Float64s,
    far_ns: Float64s,
    slope: Float64s,
    limit_ns: Float64s | None,
) -> tuple[Float64s, Float64s]: ...
def learn_cells(
    hop: Int64s,
    slot: Int64s,
    slots: int,
    route: _Int32s,
    count: Float64s,
    delay_ns: Float64s,
    far_ns: Float64s,
    all_count: Float64s,
    all_delay: Float64s,
) -> Float64s: ...
def learn_kept_back(
    hop: Int64s,
    slot: Int64s,
    route: _Int32s,
    count: Float64s,
    usual_ns: Float64s,
    slow_ns: Float64s,
    queue_ns: Float64s,
    queue_mean_ns: Float64s,
    sum_count: Float64s,
    sum_delay: Float64s,
    sum_x: Float64s,
    sum_xy: Float64s,
    sum_xx: Float64s,
) -> None: ...
def sum_routes(hop: Int64s, route: _Int32s, slot: Int64s, values: Float64s) -> Float64s: ...
def learn_pairs(
    hop: Int64s, route: _Int32s, slot: Int64s, error_ns: Float64s, var: Float64s
) -> tuple[float, float, float]: ...
def fit_shares(hop: Int64s, weight: Float64s, total: Float64s, values: Float64s, rounds: int) -> None: ...
def fit_slopes(
    hop: Int64s,
    xx: Float64s,
    wanted: Float64s,
    own: Float64s,
    cells: Float64s,
    spread: Float64s,
    prior: float,
    step_share: float,
    slope: Float64s,
    rounds: int,
) -> None: ...
