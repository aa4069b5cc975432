/* Standard errors: variances, ties and contested groups; steps 4 and 5 of mesh.c. */
#include "mesh_state.h"

/* How far a share of the votes for another place speaks against the present one: its standard error, as a part of
 * the way there; a third of the votes is a minority, from three to two on it is a tie. */
static double tie_share(double votes, double against) {
    double share = fmin(against / fmax(votes + against, 1e-9), 0.5);
    double ramp = fmin(fmax((share - TIE_FROM) / (TIE_TO - TIE_FROM), 0), 1);
    return sqrt(share * (1 - share)) * ramp;
}

/* The standard error of a node's place from other places that its edges and prior vote for; `workspace`: 2 (degree + 1). */
static double contested_sigma(const struct mesh *m, const struct part *part, int64_t i, double *workspace) {
    struct view view = {0, workspace, workspace + degree_of(m, i) + 1};
    for (int64_t s = m->in[i] - m->in [i + 1]; s < m->out[i + 1] - m->out[i]; s++) {
        int64_t e = s < 0 ? m->into[m->in[i + 1] + s] : m->out[i] + s;
        double off = m->y[e] - (m->node[m->b[e]].x - m->node[m->a[e]].x);
        view.off[view.k] = s < 0 ? off : -off;
        view.inverse[view.k++] = m->inverse[e] / part->scale;
    }
    if (m->prior_inverse[i] > 0) {
        view.off[view.k] = m->q[i] - m->node[i].x;
        view.inverse[view.k++] = m->prior_inverse[i] / part->prior_scale;
    }
    double votes = ft_mesh_votes_at(&view, 0), strongest = 0, scattered = (double)view.k - votes;
    int64_t stride = view.k / CANDIDATES + 1;
    for (int64_t k = 0; k < view.k; k += stride) {
        double away = fabs(view.off[k]);
        if (away * view.inverse[k] > SETTLED && away * 0.5 > strongest) /* few of many may agree by chance */
            strongest = fmax(strongest, away * tie_share(votes, fmax(ft_mesh_votes_at(&view, view.off[k]),
                                                                     scattered / SCATTERED)));
    }
    return strongest;
}

/* The possible errors of a small part: its edges, and its priors as edges from a ground n, from ends[2 k] to
 * ends[2 k + 1], by how much the far end would have to move to fit; odd: they don't. */
struct arcs {
    int64_t n, count;
    int32_t *ends, *from, *list; /* at node i: ends list[from[i]]..list[from[i + 1]) */
    double *off, *inverse;
    uint8_t *odd;
    int8_t *flow;
};

static int arcs_of(const struct mesh *m, const struct part *part, struct arcs *arcs) {
    const int64_t n = part->n, low = part->lowest, capacity = part->e + part->priors;
    int64_t k = 0;
    *arcs = (struct arcs){n,
                          capacity,
                          ft_mesh_numbers(2 * capacity),
                          ft_mesh_numbers(n + 3),
                          ft_mesh_numbers(2 * capacity),
                          ft_mesh_doubles(capacity),
                          ft_mesh_doubles(capacity),
                          ft_mesh_alloc(capacity, 1),
                          ft_mesh_alloc(capacity, 1)};
    if (!arcs->ends || !arcs->from || !arcs->list || !arcs->off || !arcs->inverse || !arcs->odd ||
        !arcs->flow)
        return 0;
    for (int64_t e = part->first; e < part->first + part->e; e++, k++) {
        arcs->ends[2 * k] = (int32_t)(m->a[e] - low);
        arcs->ends[2 * k + 1] = (int32_t)(m->b[e] - low);
        arcs->off[k] = m->y[e] - (m->node[m->b[e]].x - m->node[m->a[e]].x);
        arcs->inverse[k] = m->inverse[e] / part->scale;
    }
    for (int64_t i = 0; i < n; i++)
        if (m->prior_inverse[low + i] > 0) {
            arcs->ends[2 * k] = (int32_t)n;
            arcs->ends[2 * k + 1] = (int32_t)i;
            arcs->off[k] = m->q[low + i] - m->node[low + i].x;
            arcs->inverse[k++] = m->prior_inverse[low + i] / part->prior_scale;
        }
    memset(arcs->from, 0, ((size_t)n + 3) * sizeof *arcs->from);
    for (k = 0; k < 2 * capacity; k++) arcs->from[arcs->ends[k] + 2]++;
    for (int64_t i = 0; i <= n; i++) arcs->from[i + 2] += arcs->from[i + 1];
    for (k = 0; k < 2 * capacity; k++) arcs->list[arcs->from[arcs->ends[k] + 1]++] = (int32_t)k;
    for (k = 0; k < capacity; k++) arcs->odd[k] = fabs(arcs->off[k]) * arcs->inverse[k] > SETTLED;
    return 1;
}

static void drop_arcs(struct arcs *arcs) {
    free(arcs->ends), free(arcs->from), free(arcs->list), free(arcs->off), free(arcs->inverse),
        free(arcs->odd);
    free(arcs->flow);
}

/* Mark in `near` the nodes that node `at` reaches by arcs that fit and have residual capacity; `by` receives
 * the end from which each was reached. Stops at node `to`. */
static void reach(const struct arcs *arcs, int32_t at, int32_t to, uint8_t *near, int32_t *by) {
    int32_t queue[DENSE + 1];
    int head = 0, tail = 0;
    near[at] = 1;
    queue[tail++] = at;
    while (head < tail && !near[to]) {
        int32_t i = queue[head++];
        for (int64_t s = arcs->from[i]; s < arcs->from[i + 1]; s++) {
            int32_t end = arcs->list[s], far = arcs->ends[end ^ 1];
            if (near[far] || arcs->odd[end / 2] || arcs->flow[end / 2] == (end & 1 ? -1 : 1)) continue;
            near[far] = 1;
            by[far] = end;
            queue[tail++] = far;
        }
    }
}

/* Add to `add` the votes against a cut of `prior_inverse` arcs that fit; odd arc k pulls one side. */
static void weigh_cut(const struct arcs *arcs, const struct part *part, int64_t k, const uint8_t *near,
                      int64_t prior_inverse, double *add) {
    double against = 0, moves = 0;
    for (int64_t j = 0; j < arcs->count; j++) {
        int direction = near[arcs->ends[2 * j]] - near[arcs->ends[2 * j + 1]];
        double t = (direction * arcs->off[j] - arcs->off[k]) * fmin(arcs->inverse[j], arcs->inverse[k]) *
                   (1.0 / VOTE);
        if (direction && arcs->odd[j]) against += 1 / (1 + t * t);
    }
    for (int64_t i = 0; i < arcs->n; i++) moves += near[i];
    moves = moves * 2 < (double)arcs->n ? 0 : moves * 2 > (double)arcs->n ? 1 : 0.5;
    if (part->priors) moves = near[arcs->n];
    double size = fabs(arcs->off[k]) * tie_share((double)prior_inverse, against);
    for (int64_t i = 0; i < arcs->n; i++) add[i] = fmax(add[i], size * fabs(near[i] - moves));
}

/* Groups of nodes in a small part that nothing but a tie holds where they are. For each edge or prior that does not
 * fit: the least cuts between its ends through those that do (Ford and Fulkerson 1956, by the shortest paths), as
 * far as one could be no more than a tie with the votes for the other place. `add` gets the standard error of each
 * node's place from that, the side of the ground, or of more nodes, standing still. Returns 0 without memory. */
int ft_mesh_contested_groups(const struct mesh *m, const struct part *part, double *add) {
    struct arcs arcs;
    int64_t odd = 0, seen = 0;
    int done = arcs_of(m, part, &arcs);
    for (int64_t k = 0; done && k < arcs.count; k++) odd += arcs.odd[k];
    for (int64_t k = 0; done && k < arcs.count; k++) {
        if (!arcs.odd[k] || seen++ % (odd / CONTESTS + 1)) continue;
        const int32_t start = arcs.ends[2 * k], end = arcs.ends[2 * k + 1];
        int64_t rivals = 0, prior_inverse = 0;
        for (int64_t j = 0; j < arcs.count; j++)
            rivals += arcs.odd[j] && fabs(fabs(arcs.off[j]) - fabs(arcs.off[k])) <
                                         SETTLED * (1 / arcs.inverse[j] + 1 / arcs.inverse[k]);
        const int64_t limit = (int64_t)((double)rivals * (1 / TIE_FROM - 1)) + 1;
        int32_t by[DENSE + 1];
        uint8_t near[DENSE + 1];
        memset(arcs.flow, 0, (size_t)arcs.count);
        for (; prior_inverse <= limit; prior_inverse++) { /* one path more, while there is one */
            memset(near, 0, sizeof near);
            reach(&arcs, start, end, near, by);
            if (!near[end]) break;
            for (int32_t i = end; i != start; i = arcs.ends[by[i]])
                arcs.flow[by[i] / 2] = (int8_t)(arcs.flow[by[i] / 2] + (by[i] & 1 ? -1 : 1));
        }
        if (prior_inverse > limit) continue;
        weigh_cut(&arcs, part, k, near, prior_inverse, add);
        for (int64_t j = 0; j < arcs.count;
             j++) { /* from one least cut to the next, over an arc it is full with */
            int32_t one = arcs.ends[2 * j], other = arcs.ends[2 * j + 1], next = near[one] ? other : one;
            if (arcs.odd[j] || near[one] == near[other]) continue;
            reach(&arcs, next, end, near, by);
            if (near[end]) break;
            weigh_cut(&arcs, part, k, near, prior_inverse, add);
            j = -1;
        }
    }
    drop_arcs(&arcs);
    return done;
}

/* Residuals of a part: the figures of edges and nodes, and the factors on the variance by which its edges and
 * priors are worse than stated: E(psi^2) / E(psi')^2 (Huber 1981, section 7.6) over degrees of freedom, for
 * the weighted matrix. Returns 0 without memory. */
int ft_mesh_finish(struct mesh *m, struct part *part, double *dof, double *worse, double *prior_worse) {
    struct ft_mesh *of = m->of;
    struct node *node = m->node;
    const int64_t low = part->lowest, n = part->n;
    const double over = 1 / part->scale;
    double pulls = 0, all_kept = 0, inner = 0;
    double share = 0, prior_pulls = 0, prior_kept = 0;
    int64_t degree = 0;
    for (int64_t i = low; i < low + n; i++) {
        degree = degree_of(m, i) > degree ? degree_of(m, i) : degree;
        node[i].pull = node[i].weight = node[i].spare = 0;
    }
    double *offs = ft_mesh_doubles(2 * degree + 2);
    if (offs == NULL) return 0;
    /* per node: sum of the weights, of squares of the near residuals, and their count */
    for (int64_t i = low; i < low + n; i++)
        for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
            __builtin_prefetch(node + m->b[e + AHEAD], 1);
            struct node *near = node + m->b[e];
            double inverse = m->inverse[e], off = m->y[e] - (near->x - node[i].x),
                   t = fabs(off) * inverse * over;
            double kept = of->robust ? kept_of(t) : 1, pull = kept * off * inverse,
                   square = t < 3 ? t * t : 9;
            double w = m->w[e] = fmax(kept, MIN_WEIGHT) * inverse * inverse;
            of->residual[m->edge[e]] = off;
            of->weight[m->edge[e]] = kept;
            pulls += pull * pull;
            all_kept += kept;
            inner += kept >= 1;
            near->weight += w;
            near->pull += square;
            near->spare += t >= 3;
            node[i].weight += w;
            node[i].pull += square;
            node[i].spare += t >= 3;
        }
    for (int64_t i = low; i < low + n; i++) {
        double off = m->q[i] - node[i].x, all = (double)degree_of(m, i), found = 0;
        double kept = m->prior_inverse[i] > 0
                          ? (of->robust ? kept_of(fabs(off) * m->prior_inverse[i] / part->prior_scale) : 1)
                          : 0;
        double pull = kept * off * m->prior_inverse[i];
        prior_pulls += pull * pull;
        prior_kept += kept;
        share += m->ground[i] > 0 ? m->ground[i] / (m->ground[i] + node[i].weight) : 0;
        of->prior_residual[m->order[i]] = m->prior_inverse[i] > 0 ? off : 0;
        of->prior_weight[m->order[i]] = kept;
        if (3 * node[i].spare > all) { /* more than noise: the median shows how far */
            int64_t k = 0;
            for (int64_t e = m->out[i]; e < m->out[i + 1]; e++)
                offs[k++] = fabs(m->y[e] - (node[m->b[e]].x - node[i].x)) * m->inverse[e];
            for (int64_t s = m->in[i]; s < m->in[i + 1]; s++) {
                int64_t e = m->into[s];
                offs[k++] = fabs(m->y[e] - (node[i].x - node[m->a[e]].x)) * m->inverse[e];
            }
            found = 1.4826 * ft_select(offs, k, (k - 1) / 2) * over;
        } else if (all > 0) {
            found = sqrt(node[i].pull / all);
        }
        of->contradiction[m->order[i]] = found;
        int lost = m->prior_inverse[i] > 0 && kept < 0.5;
        node[i].spare =
            of->robust && 3 * (node[i].spare + lost) > all ? contested_sigma(m, part, i, offs) : 0;
    }
    free(offs);
    double edges = (double)part->e,
           parameters = (double)n - 1 - (part->priors ? fmin(share, (double)n - 1) : 0);
    *dof = edges - parameters;
    *worse = 1;
    if (*dof > 0 && all_kept > 0) {
        double bent = fmax(inner / edges, 0.3);
        *worse = pulls / *dof * (all_kept / edges) / (bent * bent);
    }
    double prior_dof = prior_kept - fmin(1 + share, prior_kept);
    *prior_worse = fmax(1, (CLAIM + prior_pulls) / (CLAIM + prior_dof));
    return 1;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Variances and leverages of a small part, from the whole inverse. */
void ft_mesh_exact_variance(struct mesh *m, const struct part *part, double *variance) {
    const int64_t n = part->n, low = part->lowest;
    double *matrix = m->workspace + 6 * n, *all = matrix + n * n, pivot[DENSE], unit[DENSE], mean[DENSE];
    int64_t base = ft_mesh_eliminate(m, part, matrix, pivot);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) unit[j] = i == j;
        if (i == base)
            memset(all + i * n, 0, (size_t)n * sizeof *all);
        else
            ft_mesh_substitute(n, matrix, pivot, base, unit, all + i * n);
    }
    double offset = 0;
    memset(mean, 0, sizeof mean);
    if (base >= 0) { /* against the mean of the part, weighted by the diagonal, or as light priors place it */
        const int light = part->hold > 0;
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < n; j++)
                mean[i] += all[i * n + j] *
                           (light ? part->ground[j] / part->hold : 1 / (part->inverse[j] * part->whole));
            offset += mean[i] * (light ? part->ground[i] / part->hold : 1 / (part->inverse[i] * part->whole));
        }
        offset += light ? 1 / part->hold : 0;
    }
    for (int64_t i = 0; i < n; i++) variance[i] = fmax(all[i * n + i] - 2 * mean[i] + offset, 0);
    for (int64_t e = part->first; e < part->first + part->e; e++) {
        int64_t a = m->a[e] - low, b = m->b[e] - low;
        double apart = all[a * n + a] + all[b * n + b] - 2 * all[a * n + b];
        m->of->leverage[m->edge[e]] = fmin(fmax(m->w[e] * apart, 0), 1);
    }
}

/* A bound on the variance if gradients did not converge, on long rings and grids: the variance along a path
 * through a tree, from the priors or from the first node; further paths can only reduce it. Returns 0 without
 * memory. */
static int bound_by_tree(const struct mesh *m, const struct part *part, double *variance) {
    const int64_t n = part->n, low = part->lowest;
    struct mesh tree = *m;
    double *x = ft_mesh_doubles(2 * n), *vague = x + n, *inverse = ft_mesh_doubles(part->e), mean = 0;
    uint8_t *known = ft_mesh_alloc(n, 1);
    int done = 0;
    if (x == NULL || inverse == NULL || known == NULL) goto out;
    for (int64_t k = 0; k < part->e; k++) inverse[k] = sqrt(m->w[part->first + k]);
    tree.inverse = inverse - part->first;
    for (int64_t i = 0; i < n; i++) {
        x[i] = 0;
        if ((known[i] = part->ground[i] > 0)) vague[i] = 1 / part->ground[i];
    }
    done = ft_mesh_spread(&tree, part, x - low, vague - low, known - low, 1);
    if (!part->priors)
        for (int64_t i = 0; i < n; i++) mean += vague[i] / (double)n;
    for (int64_t i = 0; done && i < n; i++) variance[i] = fmax(variance[i], vague[i] + mean);
out:
    free(x);
    free(inverse);
    free(known);
    return done;
}

/* Combine the variances of two halves with shrinkage: the difference of the halves is chance, and as far as
 * the nodes differ by chance, they take the mean (Stein 1956; Efron and Morris 1973). The compared values are
 * ratios to the variance from the nodes within two steps: 1 / sum_j w_ij (L_jj - w_ij) / L_jj, exact on a
 * tree of that depth. */
static void shrink_variance(struct mesh *m, const struct part *part, double *variance, const double *other) {
    const int64_t n = part->n, low = part->lowest;
    double *near = m->workspace + 3 * n, sum = 0, squares = 0, chance = 0;
    memcpy(near, part->ground, (size_t)n * sizeof *near);
    for (int64_t i = 0, e = part->first; i < n; i++)
        for (; e < part->out[i + 1]; e++) {
            __builtin_prefetch(near + m->b[e + AHEAD] - low, 1);
            int64_t j = m->b[e] - low;
            near[i] += m->w[e] * fmax(1 - m->w[e] * part->inverse[j], 0);
            near[j] += m->w[e] * fmax(1 - m->w[e] * part->inverse[i], 0);
        }
    for (int64_t i = 0; i < n; i++) {
        near[i] = 1 / fmax(near[i], 1e-3 / part->inverse[i]);
        double ratio = (variance[i] + other[i]) / 2 / near[i], apart = (variance[i] - other[i]) / 2 / near[i];
        sum += ratio;
        squares += ratio * ratio;
        chance += apart * apart;
    }
    double mean = sum / (double)n, spread = squares / (double)n - mean * mean;
    double own = spread > 0 ? fmax(1 - chance / (double)n / spread, 0) : 0;
    for (int64_t i = 0; i < n; i++) {
        double ratio = (variance[i] + other[i]) / 2 / near[i];
        variance[i] = fmax((mean + own * (ratio - mean)) * near[i], 0.5 * part->inverse[i]);
    }
}

#define CG_NAME    gradients_of_draws
#define CG_DRAWN   draws
#define CG_SQUARES squares_of_draws
#define CG_REAL    double
#define CG_COLUMNS DRAWS
#include "mesh_cg.h"

#define CG_NAME    gradients_of_few_draws
#define CG_DRAWN   few_draws
#define CG_SQUARES squares_of_few_draws
#define CG_REAL    float
#define CG_COLUMNS FEW_DRAWS
#include "mesh_cg.h"

int ft_mesh_drawn_variance(struct mesh *m, struct part *part, double *variance) {
    return part->n < MANY || part->wide ? draws(m, part, variance) : few_draws(m, part, variance);
}
