/* Weighted robust least squares on a graph; see mesh.c. */
#ifndef FABRICTIME_MESH_H
#define FABRICTIME_MESH_H

#include <stdint.h>

/* Solve x[b] - x[a] = value over `edges` edges with standard errors sigma > 0; all inputs checked before.
 * Returns 0 without memory. */
int ft_solve_mesh(int64_t nodes, int64_t edges, const int32_t *a, const int32_t *b, const double *value,
                  const double *sigma, double *x, double *x_sigma, int32_t *component, double *residual,
                  double *weight);

#endif
