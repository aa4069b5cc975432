/* Robust iterations over one part: weights, elimination, conjugate gradients; steps 2 and 3 of mesh.c. */
#include "mesh_state.h"

/* Weight the edges by their residuals: w, and at each node their sum and its pull. `bend`: how much of the
 * robust weight's fall counts in w as it does in the pull's slope (1: all; 0: w is the robust weight). In the
 * `first` iteration w is the result of the start. */
static void weigh(const struct mesh *m, const struct part *part, double bend, int first) {
    struct node *node = m->node;
    const int robust = m->of->robust;
    const double over = 1 / part->scale;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++) node[i].pull = node[i].weight = 0;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++) {
        double pull = 0, weight = 0;
        const double x = node[i].x;
        for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
            __builtin_prefetch(node + m->b[e + AHEAD], 1);
            struct node *near = node + m->b[e];
            double inverse = m->inverse[e], off = m->y[e] - (near->x - x);
            double t = fabs(off) * (first ? m->w[e] : inverse) * over;
            double kept = robust ? kept_of(t) : 1, own = kept * inverse * inverse * off;
            double prior_inverse = kept < 1 ? kept * (1 - bend) : 1;
            double w = m->w[e] = fmax(prior_inverse, MIN_WEIGHT) * inverse * inverse;
            near->pull += own;
            near->weight += w;
            pull -= own;
            weight += w;
        }
        node[i].pull += pull;
        node[i].weight += weight;
    }
}

/* Weights of the priors, times `gain`, and with them the diagonal's inverse and the sums; `r`, unless NULL, gets the
 * pull on each node. `workspace`: n, for the inverse. */
void ft_mesh_anchor(const struct mesh *m, struct part *part, double gain, double *r, double *workspace) {
    part->hold = part->whole = part->ask = 0;
    part->inverse = workspace;
    part->out = m->out + part->lowest;
    part->b = m->b + part->first;
    part->w = m->w + part->first;
    part->ground = m->ground + part->lowest;
    for (int64_t k = 0, i = part->lowest; k < part->n; k++, i++) {
        double off = m->q[i] - m->node[i].x, prior_inverse = m->prior_inverse[i];
        double kept = m->of->robust ? kept_of(fabs(off) * prior_inverse / part->prior_scale) : 1;
        double ground = m->ground[i] = fmax(kept, MIN_WEIGHT) * prior_inverse * prior_inverse * gain;
        double diagonal = m->node[i].weight + ground;
        workspace[k] = 1 / fmax(diagonal, 1e-300);
        part->hold += ground;
        part->whole += diagonal;
        part->ask += kept * prior_inverse * prior_inverse * gain * off;
        if (r != NULL) r[k] = m->node[i].pull + kept * prior_inverse * prior_inverse * gain * off;
    }
}

/* Eliminate the nodes of a small part, the ground's edges kept beside; without priors, or where they weigh next to
 * nothing, the node that is held best stands for the ground. `matrix` [n * n] gets the factors, `pivot` [n] the
 * pivots. Returns that node, or -1. */
int64_t ft_mesh_eliminate(const struct mesh *m, const struct part *part, double *matrix, double *pivot) {
    const int64_t n = part->n, low = part->lowest;
    int64_t base = -1;
    double ground[DENSE];
    memset(matrix, 0, (size_t)(n * n) * sizeof *matrix);
    for (int64_t e = part->first; e < part->first + part->e; e++) {
        int64_t a = m->a[e] - low, b = m->b[e] - low;
        matrix[a * n + b] += m->w[e];
        matrix[b * n + a] += m->w[e];
    }
    if (part->hold > LIGHT * part->whole) {
        memcpy(ground, m->ground + low, (size_t)n * sizeof *ground);
    } else {
        base = 0;
        for (int64_t i = 1; i < n; i++) base = part->inverse[i] < part->inverse[base] ? i : base;
        for (int64_t i = 0; i < n; i++) {
            ground[i] = matrix[i * n + base];
            matrix[i * n + base] = matrix[base * n + i] = 0;
        }
        ground[base] = 1;
    }
    for (int64_t k = 0; k < n; k++) {
        double sum = ground[k], *row = matrix + k * n;
        for (int64_t j = k + 1; j < n; j++) sum += row[j];
        pivot[k] = sum = fmax(sum, 1e-300);
        double own = ground[k] / sum;
        for (int64_t i = k + 1; i < n; i++) {
            double share = row[i] / sum, *to = matrix + i * n;
            if (row[i] == 0) continue;
            ground[i] += row[i] * own;
            for (int64_t j = k + 1; j < n; j++) to[j] += share * row[j];
            to[i] = 0;
        }
        for (int64_t i = k + 1; i < n; i++) row[i] /= sum;
    }
    return base;
}

/* x = (L + P)^-1 r with the factors; r is used up. */
void ft_mesh_substitute(int64_t n, const double *matrix, const double *pivot, int64_t base, double *r,
                        double *x) {
    if (base >= 0) r[base] = 0;
    for (int64_t k = 0; k < n; k++)
        if (r[k] != 0)
            for (int64_t i = k + 1; i < n; i++) r[i] += matrix[k * n + i] * r[k];
    for (int64_t k = n - 1; k >= 0; k--) {
        double sum = r[k] / pivot[k];
        for (int64_t j = k + 1; j < n; j++) sum += matrix[k * n + j] * x[j];
        x[k] = sum;
    }
}

#define CG_NAME    gradients
#define CG_REAL    double
#define CG_COLUMNS 1
#include "mesh_cg.h"

/* Robust rounds over one part. */
void ft_mesh_rounds(struct mesh *m, struct part *part) {
    const int64_t n = part->n, low = part->lowest;
    double *r = m->workspace, *by = r + n, *inverse = by + n, *spare = inverse + n;
    for (int round = 0; round < ROUNDS; round++) {
        if (m->of->robust) {
            part->scale = ft_mesh_scale_of_edges(m, part, round ? m->inverse : m->w);
            part->prior_scale = ft_mesh_scale_of_priors(m, part);
        }
        double gain = part->scale / part->prior_scale;
        if (round < 2) /* the difference between edges and priors is not yet the edges' own error */
            gain = fmin(gain, 1);
        weigh(m, part, round < 2 ? 0 : 1 - BEND, round == 0);
        ft_mesh_anchor(m, part, gain * gain, r, inverse);
        double fine = (n < MANY ? FINE : FINE_OF_MANY) * part->scale, enough = fine * fine * (double)n,
               left = 0;
        for (int64_t i = 0; i < n; i++) left += r[i] * r[i] * inverse[i];
        if (part->hold > 0) left += part->ask * part->ask / part->hold * (double)n;
        if (!(left > enough * 1e-12)) return;
        if (n <= DENSE) {
            double *matrix = m->workspace + 6 * n;
            int64_t base = ft_mesh_eliminate(m, part, matrix, spare);
            ft_mesh_substitute(n, matrix, spare, base, r, by);
            if (part->hold > 0 && base >= 0) {
                double shift = part->ask;
                for (int64_t i = 0; i < n; i++) shift -= part->ground[i] * by[i];
                for (int64_t i = 0; i < n; i++) by[i] += shift / part->hold;
            }
        } else {
            gradients(part, by, r, &part->ask, ROUGH, enough * ROUGH * ROUGH, ROUGH, spare);
        }
        /* a common shift belongs to the start: x stays small */
        double size = 0, common = part->priors && isfinite(by[0]) ? by[0] : 0;
        for (int64_t i = 0; i < n; i++)
            if (isfinite(by[i])) {
                size += by[i] * by[i] / inverse[i];
                m->node[low + i].x += by[i] - common;
                m->start[low + i] += common;
                m->q[low + i] -= m->prior_inverse[low + i] > 0 ? common : 0;
            }
        if (left < enough && size < SMOOTH * enough) return;
    }
}
