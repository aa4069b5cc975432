/* The widest gap between two clouds of points, and the corners of the clouds that decide it. */
#ifndef FABRICTIME_MARGIN_H
#define FABRICTIME_MARGIN_H

#include <stdint.h>

/* Points (x, y) of one direction. */
struct ft_cloud {
    double *x, *y;
    int64_t n;
};

/* y_f >= forward + slope * x over the one cloud, y_r >= reverse - slope * x over the other, each touched. */
struct ft_gap {
    double slope, forward, reverse;
};

/* Find the slope within +-`max_slope` for which forward + reverse is greatest. Both clouds hold at least a point;
 * `workspace` holds 2 * (f->n + r->n) doubles. */
struct ft_gap ft_widest_gap(const struct ft_cloud *f, const struct ft_cloud *r, double max_slope,
                            double *workspace);

/* Least of y - slope * x. */
double ft_support(const struct ft_cloud *c, double slope);

#define FT_CORNERS 8

/* Hull vertices of the cloud that are lowest for some slope within +-`around` of `slope`, in the order of x,
 * at most FT_CORNERS (those nearest to `slope`). `workspace` holds 4 * c->n doubles. Returns their number. */
int ft_corners(const struct ft_cloud *c, double slope, double around, double *workspace, double x[FT_CORNERS],
               double y[FT_CORNERS]);

#endif
