from numpy.typing import ArrayLike

from native.core.columns import MeshSolution

def solve_mesh(
    nodes: int,
    a: ArrayLike,
    b: ArrayLike,
    value: ArrayLike,
    sigma: ArrayLike,
    prior: ArrayLike | None = None,
    prior_sigma: ArrayLike | None = None,
    *,
    robust: bool = True,
    want_sigma: bool = True,
) -> MeshSolution: ...
