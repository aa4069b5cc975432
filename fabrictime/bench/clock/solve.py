"""Measures the mesh solve at the size of a large fleet, beside scipy's solvers on the same normal equations.

The mesh has 100,000 NICs that measure 10 random peers each: clocks some ms apart, pairs good to 3 to 30 ns,
1% of them wrong by 1 us to 1 s, priors good to 20 ns except 0.1% of the clocks, which stepped by 1 ms. Our
solver returns robust weights, standard errors and leverages. scipy gets the weights that our solver found and
solves once for the clocks alone: by conjugate gradients, diagonally scaled, to a thousandth of a standard
error; and by a sparse factorisation at a smaller size, since the factors of a random mesh fill up. Each
solver runs in a child process, with a time limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._machine import peak_mb
from native.core import MeshSolution, solve_mesh

NICS: Final = 100_000
PEERS: Final = 10
FACTOR_NICS: Final = 2_000
PRIOR_NS: Final = 20.0
TRIES: Final = 5
LIMIT_S: Final = 240.0


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the figures, after some 20 s, or 3 s with `quick`, which uses a fiftieth of the fleet."""
    nics, factor_nics = (NICS // 50, FACTOR_NICS // 4) if quick else (NICS, FACTOR_NICS)
    progress(f"mesh solve: {nics} NICs, {nics * PEERS} edges")
    figures: dict[str, Value] = {}
    ours = _child("ours", nics)
    if isinstance(ours, Missing):
        figures |= {"solve_100k_nics_1m_edges_s": ours, "solve_memory_mb": ours}
    else:
        size = f"{nics} NICs, {nics * PEERS} edges, one core"
        figures["solve_100k_nics_1m_edges_s"] = Figure(
            ours["seconds"], note=f"{size}, least of {TRIES}, with standard errors and leverages"
        )
        figures["solve_memory_mb"] = Figure(ours["memory_mb"], note=f"{size}, peak growth of the process")
        figures["solve_rms_error_over_sigma"] = Figure(ours["rms_over_sigma"], "1", "1 where sigma is honest")
    progress("mesh solve: scipy")
    for key, kind, size_nics in (("scipy_cg_s", "cg", nics), ("scipy_spsolve_s", "spsolve", factor_nics)):
        result = _child(kind, size_nics)
        if isinstance(result, Missing):
            figures[key] = result
            continue
        note = (
            f"{size_nics} NICs, one linear solve with our weights, no standard errors; matrix built in "
            f"{result['build_s']:.2f} s more, rms off ours by {result['off_sigma']:.1g} sigma; "
            f"ours in total at that size {result['ours_s']:.3g} s"
        )
        figures[key] = Figure(result["seconds"], "s", note)
    return figures


def _child(kind: str, nics: int) -> Any:
    """Measure in a child process; return its result, or Missing with the reason of its failure."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fabrictime.bench.clock.solve", kind, str(nics)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Missing(f"{kind} on {nics} NICs took longer than {LIMIT_S:.0f} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["without a word"]
        raise RuntimeError(f"bench clock: {kind} on {nics} NICs ended with {done.returncode}: {last[0]}")
    result = json.loads(done.stdout)
    return Missing(result["missing"]) if "missing" in result else result


@dataclass(frozen=True, slots=True)
class Fleet:
    """A mesh of measured pairs and the true clocks, in ns."""

    truth: NDArray[np.float64]
    a: NDArray[np.int32]
    b: NDArray[np.int32]
    value: NDArray[np.float64]
    sigma: NDArray[np.float64]
    prior: NDArray[np.float64]
    prior_sigma: NDArray[np.float64]

    @classmethod
    def of(cls, nics: int, seed: int = 1) -> Fleet:
        """Draw the fleet that the module's docstring describes."""
        rng = np.random.default_rng(seed)
        a = np.repeat(np.arange(nics, dtype=np.int32), PEERS)
        b = ((a + rng.integers(1, nics, a.size)) % nics).astype(np.int32)
        truth = rng.normal(0, 3e6, nics)
        sigma = rng.uniform(3, 30, a.size)
        value = truth[b] - truth[a] + rng.normal(0, 1, a.size) * sigma
        wrong = rng.random(a.size) < 0.01
        value[wrong] += rng.choice([-1.0, 1.0], wrong.sum()) * 10 ** rng.uniform(3, 9, wrong.sum())
        prior = truth + rng.normal(0, PRIOR_NS, nics)
        prior[rng.random(nics) < 0.001] += 1e6
        return cls(truth, a, b, value, sigma, prior, np.full(nics, PRIOR_NS))

    def solve(self) -> MeshSolution:
        """Solve the mesh with our solver."""
        return solve_mesh(
            len(self.truth), self.a, self.b, self.value, self.sigma, self.prior, self.prior_sigma
        )


def ours(nics: int) -> dict[str, float]:
    """Return the time, the memory and the errors of our solver."""
    fleet = Fleet.of(nics)
    before_mb = _memory_mb()
    solution = fleet.solve()
    memory_mb = peak_mb() - before_mb
    seconds = min(_seconds(fleet.solve) for _ in range(TRIES))
    off = (solution.x - fleet.truth) / solution.sigma
    return {"seconds": seconds, "memory_mb": memory_mb, "rms_over_sigma": float(np.sqrt(np.mean(off**2)))}


def scipys(kind: str, nics: int) -> dict[str, Any]:
    """Return the time of scipy's solver named `kind`: cg or spsolve."""
    try:
        from scipy import sparse
        from scipy.sparse.linalg import LinearOperator, cg, spsolve
    except ImportError as error:
        return {"missing": f"scipy is not installed ({error}): pip install 'fabrictime[bench]'"}
    fleet = Fleet.of(nics)
    ours_s = _seconds(fleet.solve)
    solution = fleet.solve()
    begin = time.perf_counter()
    weight = solution.weight / fleet.sigma**2
    hold = solution.prior_weight / fleet.prior_sigma**2
    ends = np.arange(nics)
    rows = np.concatenate([fleet.a, fleet.b, fleet.a, fleet.b, ends])
    columns = np.concatenate([fleet.a, fleet.b, fleet.b, fleet.a, ends])
    matrix = sparse.csc_array(
        (np.concatenate([weight, weight, -weight, -weight, hold]), (rows, columns)), shape=(nics, nics)
    )
    pull = weight * fleet.value
    right_side = np.bincount(fleet.b, pull, nics) - np.bincount(fleet.a, pull, nics) + hold * fleet.prior
    build_s = time.perf_counter() - begin

    def off(x: NDArray[np.float64]) -> float:
        return float(np.sqrt(np.mean(((x - solution.x) / solution.sigma) ** 2)))

    if kind == "spsolve":
        seconds = _seconds(lambda: spsolve(matrix, right_side))
        return {
            "seconds": seconds,
            "build_s": build_s,
            "ours_s": ours_s,
            "off_sigma": off(spsolve(matrix, right_side)),
        }
    rows_matrix, inverse = matrix.tocsr(), 1 / matrix.diagonal()
    scaled = LinearOperator((nics, nics), matvec=lambda r: inverse * r, dtype=np.float64)
    # from the priors on, as ours; the gradient in units of its own noise, as ours ends
    enough = 1e-3 * float(np.linalg.norm(np.sqrt(matrix.diagonal())))

    def gradients() -> NDArray[np.float64]:
        x: NDArray[np.float64] = cg(rows_matrix, right_side, x0=fleet.prior, rtol=0, atol=enough, M=scaled)[0]
        return x

    seconds = min(_seconds(gradients) for _ in range(3))
    return {"seconds": seconds, "build_s": build_s, "ours_s": ours_s, "off_sigma": off(gradients())}


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _memory_mb() -> float:
    """Return this process's resident memory, in MB, and reset its peak to that."""
    Path("/proc/self/clear_refs").write_text("5")
    return float(psutil.Process().memory_info().rss) / 1e6


def main() -> int:
    """Measure the solver that the parent process names; print the result as one JSON object."""
    kind, nics = sys.argv[1], int(sys.argv[2])
    print(json.dumps(ours(nics) if kind == "ours" else scipys(kind, nics)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
