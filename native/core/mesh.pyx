"""Clocks of a mesh from pairwise differences: weighted robust least squares.

In: edges (a, b, value of x[b] - x[a], its standard error). Out: `MeshSolution`. The method stands in mesh.c.
"""

from libc.stdint cimport int32_t, int64_t

import numpy as np

from native.core.columns import MeshSolution

__all__ = ["solve_mesh"]

cdef extern from "mesh.h":
    int ft_solve_mesh(int64_t nodes, int64_t edges, const int32_t *a, const int32_t *b, const double *value,
                      const double *sigma, double *x, double *x_sigma, int32_t *component, double *residual,
                      double *weight) nogil


def solve_mesh(nodes, a, b, value, sigma):
    """Return the `MeshSolution` of x[b] - x[a] = value.

    `a`, `b`: [P] node numbers from 0; `value`, `sigma`: [P] in one unit, sigma above 0. An edge from a node to
    itself says nothing and only gets a residual. Raises ValueError where shapes, numbers or sigmas do not fit.
    """
    cdef const int32_t[::1] a_ = np.ascontiguousarray(a, np.int32)
    cdef const int32_t[::1] b_ = np.ascontiguousarray(b, np.int32)
    cdef const double[::1] value_ = np.ascontiguousarray(value, np.float64)
    cdef const double[::1] sigma_ = np.ascontiguousarray(sigma, np.float64)
    cdef int64_t n = nodes, edges = a_.shape[0], e
    cdef int done
    if not (b_.shape[0] == value_.shape[0] == sigma_.shape[0] == edges):
        raise ValueError(f"b, value, sigma: {b_.shape[0]}, {value_.shape[0]}, {sigma_.shape[0]} elements, "
                         f"expected {edges} as in a")
    if n < 0 or n > 0x7fffffff or edges > 0x3fffffff:
        raise ValueError(f"{n} nodes, {edges} edges: expected at most 2^31 - 1 and 2^30 - 1")
    for e in range(edges):
        if a_[e] < 0 or a_[e] >= n or b_[e] < 0 or b_[e] >= n:
            raise ValueError(f"edge {e}: nodes {a_[e]}, {b_[e]}, expected 0 to {n - 1}")
        if not (-1e19 < value_[e] < 1e19):
            raise ValueError(f"edge {e}: value {value_[e]}, expected a number within 1e19")
        if not (1e-9 <= sigma_[e] <= 1e19):
            raise ValueError(f"edge {e}: sigma {sigma_[e]}, expected 1e-9 to 1e19")
    x, x_sigma = np.zeros(n + 1), np.zeros(n + 1)
    component = np.zeros(n + 1, np.int32)
    residual, weight = np.zeros(edges + 1), np.ones(edges + 1)
    cdef double[::1] x_ = x, x_sigma_ = x_sigma, residual_ = residual, weight_ = weight
    cdef int32_t[::1] component_ = component
    with nogil:
        # empty inputs have no first element to point at
        done = ft_solve_mesh(n, edges, &a_[0] if edges else NULL, &b_[0] if edges else NULL,
                             &value_[0] if edges else NULL, &sigma_[0] if edges else NULL, &x_[0], &x_sigma_[0],
                             &component_[0], &residual_[0], &weight_[0])
    if not done:
        raise MemoryError(f"no memory for {n} nodes and {edges} edges")
    return MeshSolution(x[:n], x_sigma[:n], component[:n], residual[:edges], weight[:edges])
