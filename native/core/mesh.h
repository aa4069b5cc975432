/* Weighted robust least squares on a graph; see mesh.c. */
#ifndef FABRICTIME_MESH_H
#define FABRICTIME_MESH_H

#include <stdint.h>

struct ft_mesh {
    /* in: x[b] - x[a] = value, with standard errors sigma > 0; all checked before */
    int64_t nodes, edges;
    const int32_t *a, *b;
    const double *value, *sigma;
    /* in, both NULL where no node has one: x = prior, with standard error prior_sigma > 0, infinite for none */
    const double *prior, *prior_sigma;
    int robust, want_sigma;
    /* out, [nodes] */
    double *x, *x_sigma, *prior_residual, *prior_weight, *contradiction;
    int32_t *component;
    /* out, [edges] */
    double *residual, *weight, *leverage;
    /* out, one per connected part, with capacity for `nodes` */
    int64_t parts;
    double *scale, *dof;
};

/* Solve. Returns 0 without memory. */
int ft_solve_mesh(struct ft_mesh *mesh);

#endif
