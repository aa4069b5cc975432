/* A start near the answer: priors, sums along a tree, votes of single nodes and of groups; step 1 of mesh.c. */
#include "mesh_state.h"

static struct view view_of(const struct mesh *m, int64_t i, const double *x, double *workspace) {
    int64_t k = 0, capacity = degree_of(m, i) + 1;
    struct view view = {0, workspace, workspace + capacity};
    for (int64_t e = m->out[i]; e < m->out[i + 1]; e++, k++) {
        view.off[k] = (x[m->b[e]] - x[i]) - m->y[e];
        view.inverse[k] = m->w[e];
    }
    for (int64_t s = m->in[i]; s < m->in[i + 1]; s++, k++) {
        int64_t e = m->into[s];
        view.off[k] = m->y[e] - (x[i] - x[m->a[e]]);
        view.inverse[k] = m->w[e];
    }
    if (m->prior_inverse[i] > 0) {
        view.off[k] = m->q[i] - x[i];
        view.inverse[k++] = m->prior_inverse[i];
    }
    view.k = k;
    return view;
}

double ft_mesh_votes_at(const struct view *view, double at) {
    double votes = 0;
    for (int64_t k = 0; k < view->k; k++) {
        double t = (view->off[k] - at) * view->inverse[k] * (1.0 / VOTE);
        votes += 1 / (1 + t * t);
    }
    return votes;
}

/* The place, against the present one, that most of the view votes for; 0 where none beats the present. */
static double majority_place(const struct view *view) {
    double best = 0, highest = ft_mesh_votes_at(view, 0) + 0.5;
    int64_t stride = view->k / CANDIDATES + 1;
    for (int64_t k = 0; k < view->k; k += stride) {
        double votes = ft_mesh_votes_at(view, view->off[k]);
        if (votes > highest) {
            highest = votes;
            best = view->off[k];
        }
    }
    if (best == 0) return 0;
    for (int round = 0; round < 3; round++) {
        double sum = 0, pull = 0;
        for (int64_t k = 0; k < view->k; k++) {
            double inverse = view->inverse[k], t = (view->off[k] - best) * inverse * (1.0 / VOTE);
            double w = inverse / (1 + t * t);
            w *= w;
            sum += w;
            pull += w * (view->off[k] - best);
        }
        if (sum > 0) best += pull / sum;
    }
    return best;
}

/* Move each node at odds with most of its edges where they put it, until none is left or tries run out. */
static void settle(const struct mesh *m, const struct part *part, double *x, int32_t *queue, uint8_t *visits,
                   double *workspace) {
    const int64_t n = part->n, low = part->lowest;
    int32_t *odd = queue, *waiting = queue + n; /* counts first, then the ring */
    memset(odd, 0, (size_t)n * sizeof *odd);
    for (int64_t e = part->first; e < part->first + part->e; e++) {
        __builtin_prefetch(x + m->b[e + AHEAD]);
        int off = fabs(m->y[e] - (x[m->b[e]] - x[m->a[e]])) * m->w[e] > SETTLED;
        odd[m->a[e] - low] += off;
        odd[m->b[e] - low] += off;
    }
    int64_t head = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        visits[i] = 0;
        if (2 * odd[i] >= degree_of(m, low + i) && odd[i]) {
            waiting[count++] = (int32_t)i;
            visits[i] = 128; /* waiting */
        }
    }
    while (count > 0) {
        int64_t i = waiting[head];
        head = head + 1 == n ? 0 : head + 1;
        count--;
        visits[i] &= 127;
        if (visits[i] >= VISITS) continue;
        visits[i]++;
        struct view view = view_of(m, low + i, x, workspace);
        int64_t off = 0;
        for (int64_t k = 0; k < view.k; k++) off += fabs(view.off[k]) * view.inverse[k] > SETTLED;
        if (2 * off < view.k) continue;
        double by = majority_place(&view);
        if (by == 0) continue;
        x[low + i] += by;
        for (int64_t e = m->out[low + i]; e < m->out[low + i + 1]; e++) {
            int64_t j = m->b[e] - low;
            if (!(visits[j] & 128)) {
                visits[j] |= 128;
                waiting[(head + count++) % n] = (int32_t)j;
            }
        }
        for (int64_t s = m->in [low + i]; s < m->in[low + i + 1]; s++) {
            int64_t j = m->a[m->into[s]] - low;
            if (!(visits[j] & 128)) {
                visits[j] |= 128;
                waiting[(head + count++) % n] = (int32_t)j;
            }
        }
    }
}

static int merge_roots(int32_t *parent, int32_t a, int32_t b) {
    a = root_of(parent, a);
    b = root_of(parent, b);
    if (a < b)
        parent[b] = a;
    else
        parent[a] = b;
    return a != b;
}

/* Groups of nodes that edges which fit hold together are moved as one, each to where most of its edges to larger
 * groups, and its priors, put it. One edge may fit by chance, or because a tree was laid along it: of the edges
 * that fit, those of a spanning forest are left out, so that a second one holds any two nodes of a group
 * together. Returns the number of groups moved, or -1 without memory. */
static int64_t merge_groups(const struct mesh *m, const struct part *part, double *x) {
    const int64_t n = part->n, low = part->lowest;
    int32_t *forest = ft_mesh_numbers(n), *parent = ft_mesh_numbers(n), *size = NULL, *next = NULL;
    double *workspace = NULL;
    int64_t groups = n, moved = 0, max_edges = 0, largest = 0;
    if (!forest || !parent) {
        moved = -1;
        goto out;
    }
    for (int64_t i = 0; i < n; i++) parent[i] = (int32_t)i;
    /* a group becomes one node in the next pass, as long as that helps much */
    for (int64_t before = 2 * n; before - groups > groups / 64 && groups > 1;) {
        before = groups;
        memcpy(forest, parent, (size_t)n * sizeof *forest);
        for (int64_t i = low; i < low + n && groups > 1; i++)
            for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
                __builtin_prefetch(x + m->b[e + AHEAD]);
                if (fabs(m->y[e] - (x[m->b[e]] - x[i])) * m->w[e] > SETTLED) continue;
                int32_t a = (int32_t)(i - low), b = (int32_t)(m->b[e] - low);
                if (root_of(parent, a) != root_of(parent, b) && !merge_roots(forest, a, b))
                    groups -= merge_roots(parent, a, b);
            }
    }
    if (groups == 1) goto out;
    size = ft_mesh_numbers(2 * n);
    next = ft_mesh_numbers(n);
    if (!size || !next) {
        moved = -1;
        goto out;
    }
    /* members of a group in a list from its root; touched: holds others, so it stays this time */
    int32_t *touched = size + n;
    memset(size, 0, 2 * (size_t)n * sizeof *size);
    for (int64_t i = n - 1; i >= 0; i--) { /* a root is the lowest of its group */
        int32_t root = root_of(parent, (int32_t)i);
        next[i] = i != root && size[root] ? touched[root] : -1;
        if (i == root)
            next[i] = size[root] ? touched[root] : -1;
        else
            touched[root] = (int32_t)i;
        if (++size[root] >= size[largest]) largest = root;
    }
    memset(touched, 0, (size_t)n * sizeof *touched);
    for (int64_t group = 0; group < n; group++) {
        int64_t edges = 0;
        for (int64_t i = group; parent[group] == group && group != largest && i >= 0; i = next[i])
            edges += degree_of(m, low + i) + 1;
        max_edges = edges > max_edges ? edges : max_edges;
    }
    workspace = ft_mesh_doubles(2 * max_edges);
    if (workspace == NULL) {
        moved = -1;
        goto out;
    }
    for (int64_t group = 0; group < n; group++) {
        if (parent[group] != group || group == largest || touched[group]) continue;
        struct view view = {0, workspace, workspace + max_edges};
        for (int64_t i = group; i >= 0; i = next[i]) {
            int64_t at = low + i, inward = m->in[at + 1] - m->in[at], outward = m->out[at + 1] - m->out[at];
            if (m->prior_inverse[at] > 0) {
                view.off[view.k] = m->q[at] - x[at];
                view.inverse[view.k++] = m->prior_inverse[at];
            }
            for (int64_t s = -inward; s < outward; s++) {
                int64_t e = s < 0 ? m->into[m->in[at + 1] + s] : m->out[at] + s;
                int32_t other = root_of(parent, (int32_t)((s < 0 ? m->a[e] : m->b[e]) - low));
                if (other == group || size[other] < size[group] ||
                    (size[other] == size[group] && other > group))
                    continue;
                double off = m->y[e] - (x[m->b[e]] - x[m->a[e]]);
                view.off[view.k] = s < 0 ? off : -off;
                view.inverse[view.k++] = m->w[e];
            }
        }
        double by = majority_place(&view);
        for (int64_t i = group; i >= 0; i = next[i]) {
            int64_t at = low + i;
            x[at] += by;
            if (by == 0) continue;
            for (int64_t e = m->out[at]; e < m->out[at + 1]; e++)
                touched[root_of(parent, (int32_t)(m->b[e] - low))] = 1;
            for (int64_t k = m->in[at]; k < m->in[at + 1]; k++)
                touched[root_of(parent, (int32_t)(m->a[m->into[k]] - low))] = 1;
        }
        moved += by != 0;
    }
out:
    free(forest);
    free(parent);
    free(size);
    free(next);
    free(workspace);
    return moved;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Move a part's x to where its priors, taken together, put it: by their median. */
static void place_by_priors(const struct mesh *m, const struct part *part, double *x, double *workspace) {
    int64_t k = 0;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++)
        if (m->prior_inverse[i] > 0) workspace[k++] = m->q[i] - x[i];
    if (k == 0) return;
    qsort(workspace, (size_t)k, sizeof *workspace, compare);
    double by =
        k % 2 ? workspace[k / 2] : workspace[k / 2 - 1] + (workspace[k / 2] - workspace[k / 2 - 1]) / 2;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++) x[i] += by;
}

/* The priors as x, and sums along trees where there are none. */
static int from_priors(const struct mesh *m, const struct part *part, double *x, double *vague,
                       uint8_t *known, int coarse) {
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++)
        if ((known[i] = m->prior_inverse[i] > 0)) {
            x[i] = m->q[i];
            vague[i] = 1 / (m->prior_inverse[i] * m->prior_inverse[i]);
        }
    int done = ft_mesh_spread(m, part, x, vague, known, coarse);
    ft_mesh_soften(m, part, vague);
    return done;
}

static int from_edges(const struct mesh *m, const struct part *part, double *x, double *vague, uint8_t *known,
                      int coarse) {
    memset(known + part->lowest, 0, (size_t)part->n);
    int done = ft_mesh_spread(m, part, x, vague, known, coarse);
    ft_mesh_soften(m, part, vague);
    return done;
}

/* The k-th of `of` 1 / sigma of a part's edges, sampled. */
static double inverse_at(const struct mesh *m, const struct part *part, int k, int of) {
    int64_t count = 0, stride = part->e / SAMPLE + 1;
    for (int64_t e = part->first; e < part->first + part->e; e += stride) m->sorted[count++] = m->inverse[e];
    return count ? ft_select(m->sorted, count, (count - 1) * k / of) : 1;
}

/* Start near the answer; y and q become the residuals, w the downweighted edges. Returns 0 without memory. */
int ft_mesh_begin(struct mesh *m, struct part *part) {
    const int64_t n = part->n, low = part->lowest;
    double *x = m->start, *vague = m->workspace - low, scale = INFINITY;
    int done = 0;
    int64_t degree = 0, vaguer = 0;
    double loose = inverse_at(m, part, 1, 10), tight = inverse_at(m, part, 9, 10);
    part->wide = tight > 30 * loose;
    for (int64_t i = low; i < low + n; i++) {
        degree = degree_of(m, i) > degree ? degree_of(m, i) : degree;
        part->priors += m->prior_inverse[i] > 0;
        vaguer += m->prior_inverse[i] > 0 && m->prior_inverse[i] * 10 < tight;
    }
    uint8_t *known = calloc((size_t)n + 1, 1);
    int32_t *queue = ft_mesh_numbers(2 * n);
    double *workspace = ft_mesh_doubles((n > 2 * degree ? n : 2 * degree) + 2);
    if (!known || !queue || !workspace) goto out;
    if (part->priors && 2 * vaguer < part->priors) {
        if (!from_priors(m, part, x, vague, known - low, !part->wide)) goto out;
        scale = ft_mesh_median_of_start(m, part, x) * 1.4826;
    }
    if (scale > SETTLED) {
        if (!from_edges(m, part, x, vague, known - low, !part->wide)) goto out;
        if (ft_mesh_median_of_start(m, part, x) * 1.4826 < scale)
            place_by_priors(m, part, x, workspace);
        else if (!from_priors(m, part, x, vague, known - low, !part->wide))
            goto out;
    }
    if (m->of->robust) {
        settle(m, part, x, queue, known, workspace);
        for (int64_t moved = 1, time = 0; moved > 0 && time < JOINS; time++) {
            moved = merge_groups(m, part, x);
            if (moved < 0) goto out;
            if (moved > 0) settle(m, part, x, queue, known, workspace);
        }
        place_by_priors(m, part, x, workspace);
    }
    for (int64_t e = part->first; e < part->first + part->e; e++) {
        __builtin_prefetch(x + m->b[e + AHEAD]);
        m->y[e] -= x[m->b[e]] - x[m->a[e]];
    }
    for (int64_t i = low; i < low + n; i++) {
        m->q[i] -= m->prior_inverse[i] > 0 ? x[i] : 0;
        m->node[i].x = 0;
    }
    done = 1;
out:
    free(known);
    free(queue);
    free(workspace);
    return done;
}
