from numpy.typing import ArrayLike

from native.core.columns import Int32s

def plan_schedule(
    path_start: ArrayLike,
    link_start: ArrayLike,
    path_link: ArrayLike,
    links: int,
    phase: ArrayLike,
    *,
    slots: int,
    probes_per_slot: int = 1,
    seed: int = 0,
) -> Int32s: ...
