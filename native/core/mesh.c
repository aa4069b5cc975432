/* Clocks of a mesh from pairwise differences, and from what is known of each before.
 *
 * Minimise sum_e rho((value_e - (x_b - x_a)) / sigma_e) + sum_i rho((prior_i - x_i) / prior_sigma_i): a prior is an
 * edge to a ground that stands at 0. With weights w = robust / sigma^2 of the edges and p of the priors that is
 * (L + P) x = B^T W value + P prior with the graph's Laplacian L. A part of the graph without a prior is
 * known up to a constant, which the mean of its nodes, weighted by the diagonal of L, being 0 fixes.
 *
 * 1. Near the answer first, so that nothing large is squared and no wrong edge is in the way. The priors as they
 *    stand, or sums along a tree where they don't fit the edges. Then each node at odds with half of its edges
 *    goes where most of them put it (the place with the most votes 1 / (1 + (off / 3 sigma)^2)), again and again;
 *    then each group of nodes that holds together. The next steps work on the small differences to that start.
 * 2. Robust weights, iterated (Holland and Welsch 1977): an edge off by t scales counts as 1.5 / t from t = 1.5 on
 *    (Huber, Robust Statistics, 1981) and falls as t^-5 far out, so that gross errors pull at nothing at all. The
 *    scale of a part's edges, and that of its priors, is 1, or larger where the median residual says so. Each
 *    round solves only for what the last one left.
 * 3. Parts of up to DENSE nodes are solved by elimination. L + P has no positive element off the diagonal, and
 *    with the diagonal kept as a sum nothing is ever subtracted (Grassmann, Taksar and Heyman 1985): sigmas may
 *    differ by any factor. Larger parts by conjugate gradients, diagonally scaled (Hestenes and Stiefel 1952; Saad,
 *    Iterative Methods for Sparse Linear Systems, section 9.2), with the constant solved for apart. A random mesh
 *    of 10 peers a node is an expander: 4 steps a round, whatever its size.
 * 4. Standard errors: the diagonal of the inverse. Small parts exactly, larger ones from draws of noise (see
 *    mesh_cg.h). Both are scaled up where residuals are larger than the sigmas allow; what the sigmas claim is
 *    worth CLAIM degrees of freedom.
 * 5. Where an answer stands against about as many votes for another, sigma says so: of single nodes everywhere,
 *    of groups of nodes in small parts.
 */
#include "mesh_state.h"

/* Large workspaces in large pages where the system has them: scattered reads of a mesh miss small pages. */
void *ft_mesh_alloc(int64_t count, size_t size) {
    size_t bytes = ((size_t)count + AHEAD) * size;
    if (bytes < 2 * LARGE_PAGE) return malloc(bytes);
    void *workspace = aligned_alloc(LARGE_PAGE, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
#ifdef MADV_HUGEPAGE
    if (workspace != NULL)
        madvise(workspace, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    return workspace;
}

double *ft_mesh_doubles(int64_t n) {
    return ft_mesh_alloc(n, sizeof(double));
}

int32_t *ft_mesh_numbers(int64_t n) {
    return ft_mesh_alloc(n, sizeof(int32_t));
}

static int64_t *places(int64_t n) {
    int64_t *workspace = ft_mesh_alloc(n + 2, sizeof *workspace);
    if (workspace != NULL) memset(workspace, 0, ((size_t)n + 2) * sizeof *workspace);
    return workspace;
}

/* Sigma of a number, its rounding taken in: of 1e18 ns a double knows some 100 ns. */
static double rounded_sigma(double sigma, double number) {
    double rounding = fabs(number) * ROUNDING;
    return rounding > 0.01 * sigma ? sqrt(sigma * sigma + rounding * rounding) : sigma;
}

/* Parts, and nodes and edges in their order. */
static int build(struct mesh *m) {
    struct ft_mesh *of = m->of;
    const int64_t n = m->n = of->nodes;
    m->order = ft_mesh_numbers(n);
    m->part_node = places(n);
    m->out = places(n);
    m->in = places(n);
    int32_t *place = ft_mesh_numbers(n), *part = of->component;
    int done = 0;
    if (!m->order || !m->part_node || !m->out || !m->in || !place) goto out;
    for (int64_t i = 0; i < n; i++) place[i] = (int32_t)i;
    for (int64_t e = 0; e < of->edges; e++) {
        int32_t a = root_of(place, of->a[e]), b = root_of(place, of->b[e]);
        if (a < b)
            place[b] = a;
        else
            place[a] = b;
    }
    of->parts = 0;
    for (int64_t i = 0; i < n; i++) /* a root is the lowest of its part, so it comes first */
        part[i] = place[i] == i ? (int32_t)of->parts++ : part[root_of(place, (int32_t)i)];
    for (int64_t i = 0; i < n; i++) m->part_node[part[i] + 2]++;
    for (int64_t c = 0; c < of->parts; c++) m->part_node[c + 2] += m->part_node[c + 1];
    for (int64_t i = 0; i < n; i++) {
        place[i] = (int32_t)m->part_node[part[i] + 1]++;
        m->order[place[i]] = (int32_t)i;
    }
    for (int64_t e = 0; e < of->edges; e++)
        if (of->a[e] != of->b[e]) {
            m->out[place[of->a[e]] + 2]++;
            m->in[place[of->b[e]] + 2]++;
        }
    for (int64_t i = 0; i < n; i++) {
        m->out[i + 2] += m->out[i + 1];
        m->in[i + 2] += m->in[i + 1];
    }
    const int64_t edges = m->e = m->out[n + 1];
    m->a = ft_mesh_numbers(edges);
    m->b = ft_mesh_numbers(edges);
    m->edge = ft_mesh_numbers(edges);
    m->into = ft_mesh_numbers(edges);
    m->y = ft_mesh_doubles(edges);
    m->inverse = ft_mesh_doubles(edges);
    m->w = ft_mesh_doubles(edges);
    if (!m->a || !m->b || !m->edge || !m->into || !m->y || !m->inverse || !m->w) goto out;
    memset(m->b + edges, 0, AHEAD * sizeof *m->b); /* read ahead of the last edge */
    for (int64_t e = 0; e < of->edges; e++)
        if (of->a[e] != of->b[e]) {
            int32_t a = place[of->a[e]], b = place[of->b[e]];
            int64_t k = m->out[a + 1]++;
            m->a[k] = a;
            m->b[k] = b;
            m->edge[k] = (int32_t)e;
            m->y[k] = of->value[e];
            m->inverse[k] = 1 / rounded_sigma(of->sigma[e], of->value[e]);
        }
    for (int64_t k = 0; k < edges; k++) m->into[m->in[m->b[k] + 1]++] = (int32_t)k;
    m->node = ft_mesh_alloc(n, sizeof *m->node);
    m->start = ft_mesh_doubles(n);
    m->q = ft_mesh_doubles(n);
    m->prior_inverse = ft_mesh_doubles(n);
    m->ground = ft_mesh_doubles(n);
    m->workspace = ft_mesh_doubles(6 * (n > DENSE ? n : DENSE) + 2 * DENSE * DENSE);
    m->sorted = ft_mesh_doubles(SAMPLE);
    if (!m->node || !m->start || !m->q || !m->prior_inverse || !m->ground || !m->workspace || !m->sorted)
        goto out;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = m->order[i];
        int has = of->prior != NULL && isfinite(of->prior_sigma[at]);
        m->q[i] = has ? of->prior[at] : 0;
        m->prior_inverse[i] = has ? 1 / rounded_sigma(of->prior_sigma[at], of->prior[at]) : 0;
        m->start[i] = 0;
    }
    done = 1;
out:
    free(place);
    return done;
}

static void drop(struct mesh *m) {
    free(m->order), free(m->a), free(m->b), free(m->edge), free(m->out), free(m->in), free(m->into);
    free(m->part_node), free(m->y), free(m->inverse), free(m->w), free(m->node), free(m->start), free(m->q);
    free(m->prior_inverse), free(m->ground), free(m->workspace), free(m->sorted);
}

/* Median of |y - (x_b - x_a)| * w over a part's edges, of every so many where they are many. */
double ft_mesh_median_of_start(const struct mesh *m, const struct part *part, const double *x) {
    int64_t k = 0, stride = part->e / SAMPLE + 1;
    for (int64_t e = part->first; e < part->first + part->e; e += stride)
        m->sorted[k++] = fabs(m->y[e] - (x[m->b[e]] - x[m->a[e]])) * m->w[e];
    return k ? ft_select(m->sorted, k, k / 2) : 0;
}

double ft_mesh_scale_of_edges(const struct mesh *m, const struct part *part, const double *inverse) {
    int64_t k = 0, stride = part->e / SAMPLE + 1;
    for (int64_t e = part->first; e < part->first + part->e; e += stride)
        m->sorted[k++] = fabs(m->y[e] - (m->node[m->b[e]].x - m->node[m->a[e]].x)) * inverse[e];
    return k ? fmax(1, 1.4826 * ft_select(m->sorted, k, k / 2)) : 1;
}

double ft_mesh_scale_of_priors(const struct mesh *m, const struct part *part) {
    int64_t k = 0, stride = part->n / SAMPLE + 1;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i += stride)
        if (m->prior_inverse[i] > 0) m->sorted[k++] = fabs(m->q[i] - m->node[i].x) * m->prior_inverse[i];
    return k ? fmax(1, 1.4826 * ft_select(m->sorted, k, k / 2)) : 1;
}

/* The smaller of two sigmas has the lower bucket; `coarse`: within a factor of 16 they count as one, else of 1.4. */
static int64_t bucket_of(double inverse, int coarse) {
    uint64_t bits;
    memcpy(&bits, &inverse, sizeof bits);
    int64_t at = (int64_t)(bits >> 51) - 2 * (1023 - 66); /* sigmas are below 2^66 and above 2^-31 */
    at = LADDER - 1 - (at < 0 ? 0 : at > LADDER - 1 ? LADDER - 1 : at);
    return coarse ? at / 8 : at;
}

/* Sums along a tree from the nodes that have an x (known 1), or from the first, to all others, by the edges of
 * least sigma (Prim's tree, 1957; of like sigmas by the one that came first, so that paths stay short). `vague` gets
 * the variance of that. Returns 0 without memory. */
int ft_mesh_spread(const struct mesh *m, const struct part *part, double *x, double *vague, uint8_t *known,
                   int coarse) {
    const int64_t low = part->lowest, n = part->n;
    /* waiting edges in lists by bucket, each edge twice: towards b, towards a */
    int32_t head[LADDER], last[LADDER], *next = ft_mesh_numbers(2 * part->e);
    int64_t lowest = LADDER, seed = low;
    if (next == NULL) return 0;
    for (int k = 0; k < LADDER; k++) head[k] = last[k] = -1;
    for (int64_t i = low; i < low + n && !known[seed]; i++) seed = known[i] ? i : seed;
    if (!known[seed]) {
        x[seed] = vague[seed] = 0;
        known[seed] = 1;
    }
    for (int64_t i = seed;;) {
        /* the edges of a node that was reached */
        for (int64_t s = m->in[i] - m->in [i + 1], e = m->out[i]; s < 0 || e < m->out[i + 1];
             s < 0 ? s++ : e++) {
            int64_t at = s < 0 ? m->into[m->in[i + 1] + s] : e, far = s < 0 ? m->a[at] : m->b[at];
            if (known[far]) continue;
            int32_t entry = (int32_t)(2 * (at - part->first) + (s < 0));
            int64_t k = bucket_of(m->inverse[at], coarse);
            next[entry] = -1;
            if (head[k] < 0)
                head[k] = entry;
            else
                next[last[k]] = entry;
            last[k] = entry;
            lowest = k < lowest ? k : lowest;
        }
        if (seed < low + n) { /* all that have an x first */
            for (seed++; seed < low + n && !(known[seed] & 1); seed++);
            if (seed < low + n) {
                i = seed;
                continue;
            }
        }
        int64_t to = -1;
        while (to < 0) {
            while (lowest < LADDER && head[lowest] < 0) lowest++;
            if (lowest == LADDER) break;
            int32_t entry = head[lowest];
            head[lowest] = next[entry];
            int64_t e = part->first + entry / 2, from = entry % 2 ? m->b[e] : m->a[e];
            int64_t far = entry % 2 ? m->a[e] : m->b[e];
            if (known[far]) continue;
            to = far;
            x[to] = entry % 2 ? x[from] - m->y[e] : x[from] + m->y[e];
            vague[to] = vague[from] + 1 / (m->inverse[e] * m->inverse[e]);
            known[to] = 2;
        }
        if (to < 0) break;
        i = to;
    }
    free(next);
    return 1;
}

/* 1 / the standard error of an edge's residual at a start of that variance, into w. */
void ft_mesh_soften(const struct mesh *m, const struct part *part, const double *vague) {
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++)
        for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
            double inverse = m->inverse[e];
            __builtin_prefetch(vague + m->b[e + AHEAD]);
            m->w[e] = inverse / sqrt(1 + (vague[i] + vague[m->b[e]]) * inverse * inverse);
        }
}

static int solve_part(struct mesh *m, int64_t number) {
    struct ft_mesh *of = m->of;
    struct part part = {.lowest = m->part_node[number],
                        .n = m->part_node[number + 1] - m->part_node[number],
                        .scale = 1,
                        .prior_scale = 1};
    const int64_t low = part.lowest, n = part.n;
    double *inverse = m->workspace, *variance = inverse + n, *torn_by = variance + n, worse, prior_worse, dof;
    part.first = m->out[low];
    part.e = m->out[low + n] - part.first;
    if (!ft_mesh_begin(m, &part)) return 0;
    ft_mesh_rounds(m, &part);
    if (!ft_mesh_finish(m, &part, &dof, &worse, &prior_worse)) return 0;
    of->dof[number] = dof;
    of->scale[number] = sqrt(worse);
    worse = fmax(1, dof > 0 ? (CLAIM + dof * worse) / (CLAIM + dof) : 1);
    ft_mesh_anchor(m, &part, worse / prior_worse, NULL, inverse);
    if (!part.priors && part.e) { /* the mean is 0; the start's first, so that it costs x nothing */
        double mean = 0, rest = 0, base = m->start[low];
        for (int64_t i = 0; i < n; i++) mean += (m->start[low + i] - base) / (inverse[i] * part.whole);
        for (int64_t i = 0; i < n; i++)
            rest += (m->start[low + i] - base - mean + m->node[low + i].x) / (inverse[i] * part.whole);
        for (int64_t i = 0; i < n; i++)
            of->x[m->order[low + i]] = m->start[low + i] - base - mean + (m->node[low + i].x - rest);
    } else {
        for (int64_t i = low; i < low + n; i++)
            of->x[m->order[i]] = part.priors ? m->start[i] + m->node[i].x : 0;
    }
    if (!of->want_sigma) return 1;
    if (!part.priors && !part.e) {
        of->x_sigma[m->order[low]] = INFINITY;
        return 1;
    }
    if (n <= DENSE) {
        ft_mesh_exact_variance(m, &part, variance);
        memset(torn_by, 0, (size_t)n * sizeof *torn_by);
        if (of->robust && !ft_mesh_contested_groups(m, &part, torn_by)) return 0;
        for (int64_t i = 0; i < n; i++) m->node[low + i].spare = fmax(m->node[low + i].spare, torn_by[i]);
    } else if (!ft_mesh_drawn_variance(m, &part, variance))
        return 0;
    for (int64_t i = 0; i < n; i++)
        of->x_sigma[m->order[low + i]] =
            rounded_sigma(hypot(sqrt(variance[i] * worse), m->node[low + i].spare), of->x[m->order[low + i]]);
    return 1;
}

int ft_solve_mesh(struct ft_mesh *of) {
    struct mesh m = {.of = of};
    int done = build(&m);
    if (done)
        for (int64_t e = 0; e < of->edges; e++)
            if (of->a[e] == of->b[e]) {
                of->residual[e] = of->value[e];
                of->weight[e] = 1;
                of->leverage[e] = 0;
            }
    for (int64_t c = 0; done && c < of->parts; c++) done = solve_part(&m, c);
    drop(&m);
    return done;
}
