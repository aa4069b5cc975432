from numpy.typing import ArrayLike

from native.core.columns import Int32s

def plan_turns(
    way_start: ArrayLike,
    hop_start: ArrayLike,
    hop_link: ArrayLike,
    links: int,
    phase: ArrayLike,
    *,
    turns: int,
    shots: int = 1,
    seed: int = 0,
) -> Int32s: ...
