/* Clocks of a mesh from pairwise differences.
 *
 * Minimise sum_e w_e * (value_e - (x_b - x_a))^2 with w = robust / sigma^2. The normal equations are
 * L x = B^T W value with the graph's Laplacian L: singular by one constant a connected part, which is fixed
 * by the mean of each part, weighted by the diagonal of L, being 0.
 *
 * 1. Parts and a first guess by walking the graph from the first node of each part: sums along a tree, so
 *    that differences of 1e15 ns cancel before anything is squared.
 * 2. Corrections by conjugate gradients with the Jacobi preconditioner (Hestenes and Stiefel 1952; Saad,
 *    Iterative Methods for Sparse Linear Systems, section 9.2). A random mesh of 10 peers a node is an
 *    expander: some 20 steps, whatever its size.
 * 3. Robust weights (Huber, Robust Statistics, 1981; Holland and Welsch 1977), iterated: first Cauchy's, which
 *    let gross outliers go at once, until the scale settles; from there Huber's, whose answer is unique: an
 *    edge off by more than 1.5 scales counts as 1.5 * scale / |off|. The scale is that of the edges' own
 *    errors, or larger where the median residual says so. Each round solves only for what the last one left:
 *    L dx = B^T psi(residual). In L an edge weighs at least 1e-10 of what else hangs on either of its nodes,
 *    or a group that only bad edges hold would be singular in doubles; the right-hand side keeps the true
 *    weights, and with them the answer. (So such a group's sigma stays below 1e5 times its inner edges'.)
 * 4. Standard errors: the diagonal of L's pseudo-inverse. Parts of up to DENSE nodes: by Cholesky, exactly.
 *    Larger ones: DRAWS draws of edge noise solved at once; the nearest neighbours' share, 1 / L_ii, is known
 *    exactly and taken from the draw (a control variate), so that a few draws give a few percent.
 *    Both are scaled up where the part's residuals are larger than the edges' errors allow.
 */
#include "mesh.h"
#include "select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CAUCHY_ROUNDS 20
#define CAUCHY 2.4
#define HUBER_ROUNDS 8
#define HUBER 1.5
#define STEPS_MOST 2000
#define LEAST_SHARE 1e-10
#define ROUGH 1e-2 /* tolerance of a round that another one follows */
#define FINE 1e-7
#define DRAW_TOLERANCE 1e-4 /* the smooth errors of a long chain are a small part of the gradient */
#define DENSE 96
#define LEAST_PIVOT 1e-14
#define DRAWS 16

struct mesh {
    int64_t n, e;
    const int32_t *a, *b;
    const double *value, *sigma;
    int32_t *component;
    int64_t parts;
    /* neighbours of i: slots from[i]..from[i + 1) */
    int64_t *from;
    int32_t *to;
    int32_t *edge; /* number, in the slot's order */
    double *w;     /* weight of each slot */
    double *edge_w;
    double *diagonal;
};

static int build(struct mesh *m)
{
    m->from = calloc((size_t)m->n + 2, sizeof *m->from);
    m->to = malloc(((size_t)m->e * 2 + 1) * sizeof *m->to);
    m->edge = malloc(((size_t)m->e * 2 + 1) * sizeof *m->edge);
    m->w = malloc(((size_t)m->e * 2 + 1) * sizeof *m->w);
    m->edge_w = malloc(((size_t)m->e + 1) * sizeof *m->edge_w);
    m->diagonal = malloc(((size_t)m->n + 1) * sizeof *m->diagonal);
    if (!m->from || !m->to || !m->edge || !m->w || !m->edge_w || !m->diagonal)
        return 0;
    for (int64_t e = 0; e < m->e; e++)
        if (m->a[e] != m->b[e]) {
            m->from[m->a[e] + 2]++;
            m->from[m->b[e] + 2]++;
        }
    for (int64_t i = 0; i < m->n; i++)
        m->from[i + 2] += m->from[i + 1];
    for (int64_t e = 0; e < m->e; e++)
        if (m->a[e] != m->b[e]) {
            int64_t s = m->from[m->a[e] + 1]++, t = m->from[m->b[e] + 1]++;
            m->to[s] = m->b[e];
            m->to[t] = m->a[e];
            m->edge[s] = m->edge[t] = (int32_t)e;
        }
    return 1;
}

static void weigh(struct mesh *m, const double *robust)
{
    memset(m->diagonal, 0, (size_t)m->n * sizeof *m->diagonal);
    for (int64_t e = 0; e < m->e; e++) {
        m->edge_w[e] = robust[e] / (m->sigma[e] * m->sigma[e]);
        if (m->a[e] != m->b[e]) {
            m->diagonal[m->a[e]] += m->edge_w[e];
            m->diagonal[m->b[e]] += m->edge_w[e];
        }
    }
    for (int64_t e = 0; e < m->e; e++)
        m->edge_w[e] = fmax(m->edge_w[e], LEAST_SHARE * fmin(m->diagonal[m->a[e]], m->diagonal[m->b[e]]));
    for (int64_t i = 0; i < m->n; i++) {
        double sum = 0;
        for (int64_t s = m->from[i]; s < m->from[i + 1]; s++)
            sum += m->w[s] = m->edge_w[m->edge[s]];
        m->diagonal[i] = sum;
    }
}

/* Parts, and x by sums along a breadth-first tree; `queue` has room for n nodes. */
static void walk(struct mesh *m, double *x, int32_t *queue)
{
    for (int64_t i = 0; i < m->n; i++)
        m->component[i] = -1;
    m->parts = 0;
    for (int64_t root = 0; root < m->n; root++) {
        if (m->component[root] >= 0)
            continue;
        int64_t head = 0, tail = 0;
        queue[tail++] = (int32_t)root;
        m->component[root] = (int32_t)m->parts;
        x[root] = 0;
        while (head < tail) {
            int32_t i = queue[head++];
            for (int64_t s = m->from[i]; s < m->from[i + 1]; s++) {
                int32_t j = m->to[s];
                if (m->component[j] >= 0)
                    continue;
                double step = m->value[m->edge[s]];
                x[j] = m->a[m->edge[s]] == i ? x[i] + step : x[i] - step;
                m->component[j] = (int32_t)m->parts;
                queue[tail++] = j;
            }
        }
        m->parts++;
    }
}

/* Take each part's mean, weighted by the diagonal, off k interleaved columns. `sums` holds k + 1 a part. */
static void centre(const struct mesh *m, double *x, int k, double *sums)
{
    memset(sums, 0, (size_t)m->parts * (size_t)(k + 1) * sizeof *sums);
    for (int64_t i = 0; i < m->n; i++) {
        double *sum = sums + (int64_t)m->component[i] * (k + 1);
        sum[k] += m->diagonal[i];
        for (int c = 0; c < k; c++)
            sum[c] += m->diagonal[i] * x[i * k + c];
    }
    for (int64_t i = 0; i < m->n; i++) {
        const double *sum = sums + (int64_t)m->component[i] * (k + 1);
        if (sum[k] > 0)
            for (int c = 0; c < k; c++)
                x[i * k + c] -= sum[c] / sum[k];
    }
}

/* What rounding left in r along each part's constant, which no x can answer, is taken out. */
static void balance(const struct mesh *m, double *r, double *sums)
{
    memset(sums, 0, (size_t)m->parts * 2 * sizeof *sums);
    for (int64_t i = 0; i < m->n; i++) {
        sums[2 * m->component[i]] += r[i];
        sums[2 * m->component[i] + 1] += m->diagonal[i];
    }
    for (int64_t i = 0; i < m->n; i++) {
        const double *sum = sums + 2 * m->component[i];
        if (sum[1] > 0)
            r[i] -= m->diagonal[i] * (sum[0] / sum[1]);
    }
}

/* Solve L x = r for k interleaved right-hand sides; r is used up, x is set. `room` holds 3 * n * k. */
static inline __attribute__((always_inline)) void gradients_of(const struct mesh *m, double *x, double *r,
                                                               const int k, double tolerance, double *room)
{
    const int64_t n = m->n;
    double *p = room, *q = room + n * k;
    double rz[DRAWS], first[DRAWS], pq[DRAWS], step[DRAWS];
    memset(x, 0, (size_t)(n * k) * sizeof *x);
    memset(rz, 0, sizeof rz);
    for (int64_t i = 0; i < n; i++) {
        double inverse = m->diagonal[i] > 0 ? 1 / m->diagonal[i] : 0;
        for (int c = 0; c < k; c++) {
            p[i * k + c] = r[i * k + c] * inverse;
            rz[c] += r[i * k + c] * p[i * k + c];
        }
    }
    memcpy(first, rz, sizeof first);
    for (int steps = 0; steps < STEPS_MOST; steps++) {
        int going = 0;
        for (int c = 0; c < k; c++)
            going |= rz[c] > tolerance * tolerance * first[c] && rz[c] < 1e12 * first[c];
        if (!going)
            break;
        memset(pq, 0, sizeof pq);
        for (int64_t i = 0; i < n; i++) {
            double sum[DRAWS];
            for (int c = 0; c < k; c++)
                sum[c] = m->diagonal[i] * p[i * k + c];
            for (int64_t s = m->from[i]; s < m->from[i + 1]; s++) {
                const double *near = p + (int64_t)m->to[s] * k;
                double w = m->w[s];
                for (int c = 0; c < k; c++)
                    sum[c] -= w * near[c];
            }
            for (int c = 0; c < k; c++) {
                q[i * k + c] = sum[c];
                pq[c] += sum[c] * p[i * k + c];
            }
        }
        for (int c = 0; c < k; c++)
            step[c] = pq[c] > 0 ? rz[c] / pq[c] : 0;
        double next[DRAWS];
        memset(next, 0, sizeof next);
        for (int64_t i = 0; i < n; i++) {
            double inverse = m->diagonal[i] > 0 ? 1 / m->diagonal[i] : 0;
            for (int c = 0; c < k; c++) {
                x[i * k + c] += step[c] * p[i * k + c];
                double left = r[i * k + c] -= step[c] * q[i * k + c];
                next[c] += left * left * inverse;
            }
        }
        double turn[DRAWS];
        for (int c = 0; c < k; c++) {
            turn[c] = rz[c] > 0 && step[c] > 0 ? next[c] / rz[c] : 0;
            rz[c] = step[c] > 0 ? next[c] : 0;
        }
        for (int64_t i = 0; i < n; i++) {
            double inverse = m->diagonal[i] > 0 ? 1 / m->diagonal[i] : 0;
            for (int c = 0; c < k; c++)
                p[i * k + c] = r[i * k + c] * inverse + turn[c] * p[i * k + c];
        }
    }
}

static void gradients_one(const struct mesh *m, double *x, double *r, double tolerance, double *room)
{
    gradients_of(m, x, r, 1, tolerance, room);
}

static void gradients_draws(const struct mesh *m, double *x, double *r, double tolerance, double *room)
{
    gradients_of(m, x, r, DRAWS, tolerance, room);
}

/* Residuals of x; returns the median of |residual| / sigma over real edges (0 without), using `sorted`. */
static double residuals(const struct mesh *m, const double *x, double *residual, double *sorted)
{
    int64_t k = 0;
    for (int64_t e = 0; e < m->e; e++) {
        residual[e] = m->value[e] - (x[m->b[e]] - x[m->a[e]]);
        if (m->a[e] != m->b[e])
            sorted[k++] = fabs(residual[e]) / m->sigma[e];
    }
    if (k == 0)
        return 0;
    return ft_select(sorted, k, k / 2);
}

/* One round: solve for what x leaves with these weights; returns the new scale, at least 1. `room`: 5 n. */
static double correct(struct mesh *m, double *x, const double *weight, double *residual, double *sorted,
                      double *room, double *sums, double tolerance)
{
    double *correction = room, *r = room + m->n;
    weigh(m, weight);
    memset(r, 0, (size_t)m->n * sizeof *r);
    for (int64_t e = 0; e < m->e; e++)
        if (m->a[e] != m->b[e]) {
            double own = weight[e] / (m->sigma[e] * m->sigma[e]);
            double push = own * (m->value[e] - (x[m->b[e]] - x[m->a[e]]));
            r[m->b[e]] += push;
            r[m->a[e]] -= push;
        }
    balance(m, r, sums);
    gradients_one(m, correction, r, tolerance, room + 2 * m->n);
    for (int64_t i = 0; i < m->n; i++)
        if (isfinite(correction[i]))
            x[i] += correction[i];
    double typical = residuals(m, x, residual, sorted) * 1.4826;
    return typical > 1 ? typical : 1;
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Variances of a small part by inverting L + d d^T / sum(d): its inverse is, on what has weighted mean 0, the
 * variance of the solution with that mean, plus a constant known in advance. */
static void dense_variance(const struct mesh *m, const int32_t *node, int64_t k, const int32_t *place,
                           double *matrix, double *variance)
{
    double total = 0, mean = 0;
    for (int64_t i = 0; i < k; i++)
        total += m->diagonal[node[i]];
    mean = total / (double)k;
    if (!(total > 0)) {
        for (int64_t i = 0; i < k; i++)
            variance[node[i]] = INFINITY;
        return;
    }
    /* in units of the mean diagonal, for the scale of the numbers */
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j < k; j++)
            matrix[i * k + j] = m->diagonal[node[i]] / mean * (m->diagonal[node[j]] / total);
        matrix[i * k + i] += m->diagonal[node[i]] / mean;
        for (int64_t s = m->from[node[i]]; s < m->from[node[i] + 1]; s++)
            matrix[i * k + place[m->to[s]]] -= m->w[s] / mean;
    }
    for (int64_t j = 0; j < k; j++) { /* Cholesky, lower triangle */
        double whole = matrix[j * k + j], pivot = whole;
        for (int64_t c = 0; c < j; c++)
            pivot -= matrix[j * k + c] * matrix[j * k + c];
        /* what rounding cannot tell from 0 holds next to nothing: a very large error, not an infinite one */
        pivot = sqrt(fmax(pivot, LEAST_PIVOT * whole));
        matrix[j * k + j] = pivot;
        for (int64_t i = j + 1; i < k; i++) {
            double sum = matrix[i * k + j];
            for (int64_t c = 0; c < j; c++)
                sum -= matrix[i * k + c] * matrix[j * k + c];
            matrix[i * k + j] = sum / pivot;
        }
    }
    for (int64_t i = 0; i < k; i++) { /* diagonal of the inverse: columns of the inverted triangle */
        double y[DENSE], sum = 0;
        for (int64_t r = i; r < k; r++) {
            double v = r == i ? 1 : 0;
            for (int64_t c = i; c < r; c++)
                v -= matrix[r * k + c] * y[c];
            y[r] = v / matrix[r * k + r];
            sum += y[r] * y[r];
        }
        /* the added rank one gives every pair of nodes 1 / total in the inverse */
        double value = sum / mean - 1 / total;
        variance[node[i]] = value > 0 ? value : 0;
    }
}

static int variances(struct mesh *m, const int32_t *order, const int64_t *part_from, double *variance)
{
    int done = 0, large = 0;
    double *matrix = malloc((size_t)DENSE * DENSE * sizeof *matrix), *room = NULL, *sums = NULL;
    int32_t *place = malloc(((size_t)m->n + 1) * sizeof *place);
    if (matrix == NULL || place == NULL)
        goto out;
    for (int64_t c = 0; c < m->parts; c++) {
        int64_t k = part_from[c + 1] - part_from[c];
        const int32_t *node = order + part_from[c];
        if (k > DENSE) {
            large = 1;
            continue;
        }
        for (int64_t i = 0; i < k; i++)
            place[node[i]] = (int32_t)i;
        dense_variance(m, node, k, place, matrix, variance);
    }
    done = 1;
    if (!large)
        goto out;
    done = 0;
    size_t cells = (size_t)m->n * DRAWS;
    room = malloc(5 * cells * sizeof *room);
    sums = malloc((size_t)m->parts * (DRAWS + 1) * sizeof *sums);
    if (room == NULL || sums == NULL)
        goto out;
    double *x = room, *r = x + cells, *own = r + cells; /* own: first of gradients' three, read before */
    memset(r, 0, cells * sizeof *r);
    uint64_t seed = 1;
    for (int64_t e = 0; e < m->e; e++) {
        if (m->a[e] == m->b[e])
            continue;
        double w = sqrt(m->edge_w[e]);
        uint64_t bits = next_random(&seed);
        double *ra = r + (int64_t)m->a[e] * DRAWS, *rb = r + (int64_t)m->b[e] * DRAWS;
        for (int c = 0; c < DRAWS; c++) {
            /* noise of +-1 standard error: the variance of a sum asks for no more */
            double noise = (bits >> c & 1) ? w : -w;
            rb[c] += noise;
            ra[c] -= noise;
        }
    }
    /* E(x^2) = E(u^2) + E(x^2 - u^2) with u = r / L_ii, whose E(u^2) = 1 / L_ii is exact */
    for (int64_t i = 0; i < m->n; i++) {
        double sum = 0;
        if (m->component[i] >= 0 && m->diagonal[i] > 0)
            for (int c = 0; c < DRAWS; c++) {
                double u = r[i * DRAWS + c] / m->diagonal[i];
                sum += u * u;
            }
        own[i] = sum / DRAWS;
    }
    double *kept = malloc(((size_t)m->n + 1) * sizeof *kept);
    if (kept == NULL)
        goto out;
    memcpy(kept, own, (size_t)m->n * sizeof *kept);
    gradients_draws(m, x, r, DRAW_TOLERANCE, own);
    centre(m, x, DRAWS, sums);
    for (int64_t i = 0; i < m->n; i++) {
        int64_t part = m->component[i];
        if (part_from[part + 1] - part_from[part] <= DENSE)
            continue;
        double sum = 0, least = 0.5 / m->diagonal[i];
        for (int c = 0; c < DRAWS; c++)
            sum += x[i * DRAWS + c] * x[i * DRAWS + c];
        double value = 1 / m->diagonal[i] + sum / DRAWS - kept[i];
        variance[i] = value > least ? value : least;
    }
    free(kept);
    done = 1;
out:
    free(matrix);
    free(place);
    free(room);
    free(sums);
    return done;
}

int ft_solve_mesh(int64_t nodes, int64_t edges, const int32_t *a, const int32_t *b, const double *value,
                  const double *sigma, double *x, double *x_sigma, int32_t *component, double *residual,
                  double *weight)
{
    struct mesh m = {.n = nodes, .e = edges, .a = a, .b = b, .value = value, .sigma = sigma,
                     .component = component};
    int done = 0;
    size_t n = (size_t)nodes;
    double *room = malloc((5 * n + 1) * sizeof *room), *sorted = malloc(((size_t)edges + 1) * sizeof *sorted);
    double *sums = NULL;
    int64_t *part_from = NULL;
    int32_t *order = malloc((n + 1) * sizeof *order);
    if (!room || !sorted || !order || !build(&m))
        goto out;
    walk(&m, x, order);
    sums = malloc(((size_t)m.parts * 4 + 1) * sizeof *sums);
    part_from = calloc((size_t)m.parts + 2, sizeof *part_from);
    if (!sums || !part_from)
        goto out;
    for (int64_t e = 0; e < edges; e++)
        weight[e] = 1;

    double scale = correct(&m, x, weight, residual, sorted, room, sums, FINE);
    for (int round = 0; round < CAUCHY_ROUNDS; round++) {
        for (int64_t e = 0; e < edges; e++) {
            double off = residual[e] / (sigma[e] * scale * CAUCHY);
            weight[e] = 1 / (1 + off * off);
        }
        double before = scale;
        scale = correct(&m, x, weight, residual, sorted, room, sums, ROUGH);
        if (round > 1 && fabs(scale - before) <= 0.02 * before)
            break;
    }
    for (int round = 0; round < HUBER_ROUNDS; round++) {
        double changed = 0;
        for (int64_t e = 0; e < edges; e++) {
            double off = fabs(residual[e]) / (sigma[e] * scale * HUBER), kept = off > 1 ? 1 / off : 1;
            changed = fmax(changed, fabs(kept - weight[e]));
            weight[e] = kept;
        }
        if (round > 0 && changed < 0.02)
            break;
        scale = correct(&m, x, weight, residual, sorted, room, sums, ROUGH);
    }
    correct(&m, x, weight, residual, sorted, room, sums, FINE);
    centre(&m, x, 1, sums);

    /* nodes by part */
    for (int64_t i = 0; i < nodes; i++)
        part_from[component[i] + 2]++;
    for (int64_t c = 0; c < m.parts; c++)
        part_from[c + 1] += part_from[c];
    for (int64_t i = 0; i < nodes; i++)
        order[part_from[component[i] + 1]++] = (int32_t)i;
    if (!variances(&m, order, part_from, x_sigma))
        goto out;

    /* Where edges are worse than they say: the variance of Huber's estimate is E(psi^2) / E(psi')^2 times that
     * of plain least squares (Huber 1981, section 7.6), here per part and for the weighted Laplacian. */
    memset(sums, 0, (size_t)m.parts * 4 * sizeof *sums);
    for (int64_t e = 0; e < edges; e++)
        if (a[e] != b[e]) {
            double *part = sums + 4 * component[a[e]], pull = weight[e] * residual[e] / sigma[e];
            part[0] += pull * pull;
            part[1] += weight[e];
            part[2] += weight[e] == 1;
            part[3] += 1;
        }
    for (int64_t i = 0; i < nodes; i++) {
        int64_t c = component[i];
        const double *part = sums + 4 * c;
        double freedom = part[3] - (double)(part_from[c + 1] - part_from[c] - 1), worse = 1;
        if (freedom > 0) {
            double inner = fmax(part[2] / part[3], 0.3);
            worse = part[0] / freedom * (part[1] / part[3]) / (inner * inner);
        }
        x_sigma[i] = sqrt(x_sigma[i] * (worse > 1 ? worse : 1));
    }
    done = 1;
out:
    free(room);
    free(sorted);
    free(sums);
    free(part_from);
    free(order);
    free(m.from);
    free(m.to);
    free(m.edge);
    free(m.w);
    free(m.edge_w);
    free(m.diagonal);
    return done;
}
