/* The state of a mesh solve and the functions that its files share. */
#ifndef FT_MESH_STATE_H
#define FT_MESH_STATE_H

#include "mesh.h"
#include "select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ROUNDS         16
#define HUBER          1.5
#define FAR            8
#define VOTE           3
#define SETTLED        4
#define CANDIDATES     48
#define VISITS         40
#define JOINS          12
#define ROUGH          0.05 /* of a round's gradient, left to the next round */
#define FINE_OF_MANY   5e-4
#define FINE           2e-4 /* of the nodes' own standard errors: the last correction */
#define SMOOTH         1e4  /* times FINE squared: of a correction that hardly shows in the gradient */
#define MIN_WEIGHT     1e-12
#define LIGHT          1e-10
#define BEND           0.3
#define MAX_STEPS      2000
#define MIN_STEPS      64
#define MAX_WORK       4000000 /* nodes times steps beyond the least */
#define DENSE          96
#define MANY           8192 /* nodes from which on FEW_DRAWS do */
#define DRAWS          16
#define FEW_DRAWS      8
#define BATCHES        4
#define DRAW_TOLERANCE 1e-2
#define WIDE_TOLERANCE 1e-5
#define FARTHER        1.1 /* times the variance that the nearest neighbours alone leave */
#define SAMPLE         16384
#define SCATTERED      4 /* votes for as many different places count as one for another place */
#define TIE_FROM       0.36
#define TIE_TO         0.43
#define CONTESTS       64
#define LADDER         200
#define CLAIM          5 /* degrees of freedom that the given sigmas are worth against the residuals */
#define AHEAD          16
#define ROUNDING       1e-16
#define LARGE_PAGE     ((size_t)1 << 21)

struct node {
    double x, pull, weight, spare; /* values gathered at an edge's end, within one cache line */
};

/* Edges and nodes stand in the order of their parts; a and b are numbers in that order. */
struct mesh {
    struct ft_mesh *of;
    int64_t n, e;
    int32_t *order;        /* [n] the caller's number of a node */
    int32_t *a, *b, *edge; /* [e] sorted by a; the caller's number of an edge */
    int64_t *out;          /* [n + 1] edges from i: out[i]..out[i + 1) */
    int64_t *in;           /* [n + 1] edges to i: into[in[i]]..into[in[i + 1]) */
    int32_t *into;
    int64_t *part_node;
    double *y, *inverse, *w; /* [e] value, later less the start's difference; 1 / sigma; weight in L */
    struct node *node;       /* [n] x is the residual of the start */
    double *start;
    double *q, *prior_inverse; /* [n] prior, later less the start; 1 / its sigma, 0: none */
    double *ground;            /* [n] weight in P */
    double *workspace;         /* 6 n, and 6 DENSE + 2 DENSE^2 at least */
    double *sorted;            /* SAMPLE */
};

struct part {
    int64_t lowest, n, first, e;
    const int64_t *out; /* of its nodes, but counting all edges */
    const int32_t *b;   /* of its edges, but counting all nodes */
    const double *w, *ground;
    double *inverse;    /* of the diagonal of L + P */
    double hold, whole; /* sums of P and of the diagonal */
    double ask;         /* of the priors' pulls: the sum of all pulls, but for rounding */
    double scale, prior_scale;
    int64_t priors;
    int wide; /* sigmas that differ by large factors */
};

struct view { /* where a node's edges and prior put it, against where it stands, and with 1 / sigma */
    int64_t k;
    double *off, *inverse;
};

static inline int64_t degree_of(const struct mesh *m, int64_t i) {
    return m->out[i + 1] - m->out[i] + m->in[i + 1] - m->in[i];
}

static inline double kept_of(double t) {
    double far = (t - HUBER) * (1.0 / FAR), fall = 1 + far * far;
    return t <= HUBER ? 1 : HUBER / (t * fall * fall);
}

static inline int32_t root_of(int32_t *parent, int32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}

/* mesh.c */
void *ft_mesh_alloc(int64_t count, size_t size);
double *ft_mesh_doubles(int64_t n);
int32_t *ft_mesh_numbers(int64_t n);
double ft_mesh_median_of_start(const struct mesh *m, const struct part *part, const double *x);
double ft_mesh_scale_of_edges(const struct mesh *m, const struct part *part, const double *inverse);
double ft_mesh_scale_of_priors(const struct mesh *m, const struct part *part);
int ft_mesh_spread(const struct mesh *m, const struct part *part, double *x, double *vague, uint8_t *known,
                   int coarse);
void ft_mesh_soften(const struct mesh *m, const struct part *part, const double *vague);

/* mesh_start.c */
double ft_mesh_votes_at(const struct view *view, double at);
int ft_mesh_begin(struct mesh *m, struct part *part);

/* mesh_solve.c */
void ft_mesh_anchor(const struct mesh *m, struct part *part, double gain, double *r, double *workspace);
int64_t ft_mesh_eliminate(const struct mesh *m, const struct part *part, double *matrix, double *pivot);
void ft_mesh_substitute(int64_t n, const double *matrix, const double *pivot, int64_t base, double *r,
                        double *x);
void ft_mesh_rounds(struct mesh *m, struct part *part);

/* mesh_sigma.c */
int ft_mesh_contested_groups(const struct mesh *m, const struct part *part, double *add);
int ft_mesh_finish(struct mesh *m, struct part *part, double *dof, double *worse, double *prior_worse);
void ft_mesh_exact_variance(struct mesh *m, const struct part *part, double *variance);
int ft_mesh_drawn_variance(struct mesh *m, struct part *part, double *variance);

#endif
