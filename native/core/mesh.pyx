"""Solves the clocks of a mesh from pairwise differences and priors: weighted robust least squares.

Edges are (a, b, value of x[b] - x[a], its standard error); priors are earlier estimates of x. The result is
`MeshSolution`. mesh.c has the method.
"""

from libc.stdint cimport int32_t, int64_t

import numpy as np

from native.core.columns import MeshSolution

__all__ = ["solve_mesh"]

cdef extern from "mesh.h":
    struct ft_mesh:
        int64_t nodes
        int64_t edges
        const int32_t *a
        const int32_t *b
        const double *value
        const double *sigma
        const double *prior
        const double *prior_sigma
        int robust
        int want_sigma
        double *x
        double *x_sigma
        double *prior_residual
        double *prior_weight
        double *contradiction
        int32_t *component
        double *residual
        double *weight
        double *leverage
        int64_t parts
        double *scale
        double *dof

    int ft_solve_mesh(ft_mesh *mesh) nogil


def solve_mesh(nodes, a, b, value, sigma, prior=None, prior_sigma=None, *, robust=True, want_sigma=True):
    """Return the `MeshSolution` of x[b] - x[a] = value and x = prior.

    `a`, `b`: [P] node numbers from 0; `value`, `sigma`: [P] in one unit, sigma above 0. An edge from a node
    to itself has no effect and only gets a residual. `prior`, `prior_sigma`: [nodes] in that unit, sigma
    above 0, infinite for a node without a prior. `robust` False: plain least squares. `want_sigma` False:
    `sigma` and `leverage` stay NaN. Near 1e18 a double resolves some 100 ns, and sigma includes that:
    subtract a common base from the priors first. Raises ValueError if shapes, numbers or sigmas do not fit.
    """
    cdef const int32_t[::1] a_ = np.ascontiguousarray(a, np.int32)
    cdef const int32_t[::1] b_ = np.ascontiguousarray(b, np.int32)
    cdef const double[::1] value_ = np.ascontiguousarray(value, np.float64)
    cdef const double[::1] sigma_ = np.ascontiguousarray(sigma, np.float64)
    cdef const double[::1] prior_, prior_sigma_
    cdef int64_t n = nodes, edges = a_.shape[0], e
    cdef int done, absolute = prior is not None
    cdef ft_mesh mesh
    if not (b_.shape[0] == value_.shape[0] == sigma_.shape[0] == edges):
        raise ValueError(f"b, value, sigma: {b_.shape[0]}, {value_.shape[0]}, {sigma_.shape[0]} elements, "
                         f"expected {edges} as in a")
    if n < 0 or n > 0x7ffffffe or edges > 0x3fffffff:
        raise ValueError(f"{n} nodes, {edges} edges: expected at most 2^31 - 2 and 2^30 - 1")
    for e in range(edges):
        if a_[e] < 0 or a_[e] >= n or b_[e] < 0 or b_[e] >= n:
            raise ValueError(f"edge {e}: nodes {a_[e]}, {b_[e]}, expected 0 to {n - 1}")
        if not (-1e19 < value_[e] < 1e19):
            raise ValueError(f"edge {e}: value {value_[e]}, expected a number within 1e19")
        if not (1e-9 <= sigma_[e] <= 1e19):
            raise ValueError(f"edge {e}: sigma {sigma_[e]}, expected 1e-9 to 1e19")
    if absolute != (prior_sigma is not None):
        raise ValueError(f"{'prior' if absolute else 'prior_sigma'} alone, expected both or none of prior "
                         "and prior_sigma")
    if absolute:
        prior_ = np.ascontiguousarray(prior, np.float64)
        prior_sigma_ = np.ascontiguousarray(prior_sigma, np.float64)
        if not (prior_.shape[0] == prior_sigma_.shape[0] == n):
            raise ValueError(f"prior, prior_sigma: {prior_.shape[0]}, {prior_sigma_.shape[0]} elements, "
                             f"expected {n}, one a node")
        for e in range(n):
            if prior_sigma_[e] == float("inf"):
                continue
            if not (1e-9 <= prior_sigma_[e] <= 1e19):
                raise ValueError(f"node {e}: prior_sigma {prior_sigma_[e]}, expected 1e-9 to 1e19, or inf")
            if not (-1e19 < prior_[e] < 1e19):
                raise ValueError(f"node {e}: prior {prior_[e]}, expected a number within 1e19")
    # empty inputs have no first element to point at: one to spare everywhere
    x, x_sigma, contradiction = np.zeros(n + 1), np.full(n + 1, np.nan), np.zeros(n + 1)
    prior_residual, prior_weight = np.zeros(n + 1), np.zeros(n + 1)
    component, scale, dof = np.zeros(n + 1, np.int32), np.ones(n + 1), np.zeros(n + 1)
    residual, weight, leverage = np.zeros(edges + 1), np.ones(edges + 1), np.full(edges + 1, np.nan)
    cdef double[::1] x_ = x, x_sigma_ = x_sigma, contradiction_ = contradiction
    cdef double[::1] prior_residual_ = prior_residual, prior_weight_ = prior_weight
    cdef double[::1] residual_ = residual, weight_ = weight, leverage_ = leverage, scale_ = scale, dof_ = dof
    cdef int32_t[::1] component_ = component
    mesh.nodes, mesh.edges, mesh.robust, mesh.want_sigma = n, edges, bool(robust), bool(want_sigma)
    mesh.a = &a_[0] if edges else NULL
    mesh.b = &b_[0] if edges else NULL
    mesh.value = &value_[0] if edges else NULL
    mesh.sigma = &sigma_[0] if edges else NULL
    mesh.prior = &prior_[0] if absolute and n else NULL
    mesh.prior_sigma = &prior_sigma_[0] if absolute and n else NULL
    mesh.x, mesh.x_sigma, mesh.contradiction = &x_[0], &x_sigma_[0], &contradiction_[0]
    mesh.prior_residual, mesh.prior_weight = &prior_residual_[0], &prior_weight_[0]
    mesh.component, mesh.scale, mesh.dof = &component_[0], &scale_[0], &dof_[0]
    mesh.residual, mesh.weight, mesh.leverage = &residual_[0], &weight_[0], &leverage_[0]
    mesh.parts = 0
    with nogil:
        done = ft_solve_mesh(&mesh)
    if not done:
        raise MemoryError(f"no memory for {n} nodes and {edges} edges")
    return MeshSolution(
        x[:n], x_sigma[:n], component[:n], residual[:edges], weight[:edges], prior_residual[:n],
        prior_weight[:n], contradiction[:n], leverage[:edges], scale[:mesh.parts], dof[:mesh.parts],
    )
