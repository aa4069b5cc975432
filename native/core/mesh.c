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
 *    then each group of nodes that holds together. What follows works on the small differences to that start.
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
#define LEAST_WEIGHT   1e-12
#define LIGHT          1e-10
#define BEND           0.3
#define STEPS_MOST     2000
#define STEPS_LEAST    64
#define WORK_MOST      4000000 /* nodes times steps beyond the least */
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
    double x, pull, weight, spare; /* what is gathered at an edge's end, within one cache line */
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
    struct node *node;       /* [n] x is what the start leaves */
    double *start;
    double *q, *held; /* [n] prior, later less the start; 1 / its sigma, 0: none */
    double *ground;   /* [n] weight in P */
    double *room;     /* 6 n, and 6 DENSE + 2 DENSE^2 at least */
    double *sorted;   /* SAMPLE */
};

struct part {
    int64_t lowest, n, first, e;
    const int64_t *out; /* of its nodes, but counting all edges */
    const int32_t *b;   /* of its edges, but counting all nodes */
    const double *w, *ground;
    double *inverse;    /* of the diagonal of L + P */
    double hold, whole; /* sums of P and of the diagonal */
    double ask;         /* of the priors' pulls: what all pulls sum to, but for rounding */
    double scale, prior_scale;
    int64_t priors;
    int wide; /* sigmas that differ by large factors */
};

/* Large rooms in large pages where the system has them: what is gathered all over a mesh misses small ones. */
static void *room_of(int64_t count, size_t size) {
    size_t bytes = ((size_t)count + AHEAD) * size;
    if (bytes < 2 * LARGE_PAGE) return malloc(bytes);
    void *room = aligned_alloc(LARGE_PAGE, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE);
#ifdef MADV_HUGEPAGE
    if (room != NULL) madvise(room, (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    return room;
}

static double *doubles(int64_t n) {
    return room_of(n, sizeof(double));
}

static int32_t *numbers(int64_t n) {
    return room_of(n, sizeof(int32_t));
}

static int64_t *places(int64_t n) {
    int64_t *room = room_of(n + 2, sizeof *room);
    if (room != NULL) memset(room, 0, ((size_t)n + 2) * sizeof *room);
    return room;
}

static int32_t root_of(int32_t *parent, int32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}

/* Sigma of a number, its rounding taken in: of 1e18 ns a double knows some 100 ns. */
static double told(double sigma, double number) {
    double rounding = fabs(number) * ROUNDING;
    return rounding > 0.01 * sigma ? sqrt(sigma * sigma + rounding * rounding) : sigma;
}

/* Parts, and nodes and edges in their order. */
static int build(struct mesh *m) {
    struct ft_mesh *of = m->of;
    const int64_t n = m->n = of->nodes;
    m->order = numbers(n);
    m->part_node = places(n);
    m->out = places(n);
    m->in = places(n);
    int32_t *place = numbers(n), *part = of->component;
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
    m->a = numbers(edges);
    m->b = numbers(edges);
    m->edge = numbers(edges);
    m->into = numbers(edges);
    m->y = doubles(edges);
    m->inverse = doubles(edges);
    m->w = doubles(edges);
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
            m->inverse[k] = 1 / told(of->sigma[e], of->value[e]);
        }
    for (int64_t k = 0; k < edges; k++) m->into[m->in[m->b[k] + 1]++] = (int32_t)k;
    m->node = room_of(n, sizeof *m->node);
    m->start = doubles(n);
    m->q = doubles(n);
    m->held = doubles(n);
    m->ground = doubles(n);
    m->room = doubles(6 * (n > DENSE ? n : DENSE) + 2 * DENSE * DENSE);
    m->sorted = doubles(SAMPLE);
    if (!m->node || !m->start || !m->q || !m->held || !m->ground || !m->room || !m->sorted) goto out;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = m->order[i];
        int has = of->prior != NULL && isfinite(of->prior_sigma[at]);
        m->q[i] = has ? of->prior[at] : 0;
        m->held[i] = has ? 1 / told(of->prior_sigma[at], of->prior[at]) : 0;
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
    free(m->held), free(m->ground), free(m->room), free(m->sorted);
}

static int64_t degree_of(const struct mesh *m, int64_t i) {
    return m->out[i + 1] - m->out[i] + m->in[i + 1] - m->in[i];
}

static double kept_of(double t) {
    double far = (t - HUBER) * (1.0 / FAR), fall = 1 + far * far;
    return t <= HUBER ? 1 : HUBER / (t * fall * fall);
}

/* Median of |y - (x_b - x_a)| * w over a part's edges, of every so many where they are many. */
static double median_of_start(const struct mesh *m, const struct part *part, const double *x) {
    int64_t k = 0, stride = part->e / SAMPLE + 1;
    for (int64_t e = part->first; e < part->first + part->e; e += stride)
        m->sorted[k++] = fabs(m->y[e] - (x[m->b[e]] - x[m->a[e]])) * m->w[e];
    return k ? ft_select(m->sorted, k, k / 2) : 0;
}

static double scale_of_edges(const struct mesh *m, const struct part *part, const double *inverse) {
    int64_t k = 0, stride = part->e / SAMPLE + 1;
    for (int64_t e = part->first; e < part->first + part->e; e += stride)
        m->sorted[k++] = fabs(m->y[e] - (m->node[m->b[e]].x - m->node[m->a[e]].x)) * inverse[e];
    return k ? fmax(1, 1.4826 * ft_select(m->sorted, k, k / 2)) : 1;
}

static double scale_of_priors(const struct mesh *m, const struct part *part) {
    int64_t k = 0, stride = part->n / SAMPLE + 1;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i += stride)
        if (m->held[i] > 0) m->sorted[k++] = fabs(m->q[i] - m->node[i].x) * m->held[i];
    return k ? fmax(1, 1.4826 * ft_select(m->sorted, k, k / 2)) : 1;
}

/* Of two sigmas the less has the lower bucket; `coarse`: within a factor of 16 they count as one, else of 1.4. */
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
static int spread(const struct mesh *m, const struct part *part, double *x, double *vague, uint8_t *known,
                  int coarse) {
    const int64_t low = part->lowest, n = part->n;
    /* waiting edges in lists by bucket, each edge twice: towards b, towards a */
    int32_t head[LADDER], last[LADDER], *next = numbers(2 * part->e);
    int64_t least = LADDER, seed = low;
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
            least = k < least ? k : least;
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
            while (least < LADDER && head[least] < 0) least++;
            if (least == LADDER) break;
            int32_t entry = head[least];
            head[least] = next[entry];
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
static void soften(const struct mesh *m, const struct part *part, const double *vague) {
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++)
        for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
            double inverse = m->inverse[e];
            __builtin_prefetch(vague + m->b[e + AHEAD]);
            m->w[e] = inverse / sqrt(1 + (vague[i] + vague[m->b[e]]) * inverse * inverse);
        }
}

struct view { /* where a node's edges and prior put it, against where it stands, and with 1 / sigma */
    int64_t k;
    double *off, *inverse;
};

static struct view view_of(const struct mesh *m, int64_t i, const double *x, double *room) {
    int64_t k = 0, most = degree_of(m, i) + 1;
    struct view view = {0, room, room + most};
    for (int64_t e = m->out[i]; e < m->out[i + 1]; e++, k++) {
        view.off[k] = (x[m->b[e]] - x[i]) - m->y[e];
        view.inverse[k] = m->w[e];
    }
    for (int64_t s = m->in[i]; s < m->in[i + 1]; s++, k++) {
        int64_t e = m->into[s];
        view.off[k] = m->y[e] - (x[i] - x[m->a[e]]);
        view.inverse[k] = m->w[e];
    }
    if (m->held[i] > 0) {
        view.off[k] = m->q[i] - x[i];
        view.inverse[k++] = m->held[i];
    }
    view.k = k;
    return view;
}

static double votes_at(const struct view *view, double at) {
    double votes = 0;
    for (int64_t k = 0; k < view->k; k++) {
        double t = (view->off[k] - at) * view->inverse[k] * (1.0 / VOTE);
        votes += 1 / (1 + t * t);
    }
    return votes;
}

/* The place, against the present one, that most of the view votes for; 0 where none beats the present. */
static double elect(const struct view *view) {
    double best = 0, most = votes_at(view, 0) + 0.5;
    int64_t stride = view->k / CANDIDATES + 1;
    for (int64_t k = 0; k < view->k; k += stride) {
        double votes = votes_at(view, view->off[k]);
        if (votes > most) {
            most = votes;
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
                   double *room) {
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
        struct view view = view_of(m, low + i, x, room);
        int64_t off = 0;
        for (int64_t k = 0; k < view.k; k++) off += fabs(view.off[k]) * view.inverse[k] > SETTLED;
        if (2 * off < view.k) continue;
        double by = elect(&view);
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

static int unite(int32_t *parent, int32_t a, int32_t b) {
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
static int64_t join(const struct mesh *m, const struct part *part, double *x) {
    const int64_t n = part->n, low = part->lowest;
    int32_t *forest = numbers(n), *parent = numbers(n), *size = NULL, *next = NULL;
    double *room = NULL;
    int64_t groups = n, moved = 0, most = 0, largest = 0;
    if (!forest || !parent) {
        moved = -1;
        goto out;
    }
    for (int64_t i = 0; i < n; i++) parent[i] = (int32_t)i;
    /* what holds together is one node the next time, as long as that brings much */
    for (int64_t before = 2 * n; before - groups > groups / 64 && groups > 1;) {
        before = groups;
        memcpy(forest, parent, (size_t)n * sizeof *forest);
        for (int64_t i = low; i < low + n && groups > 1; i++)
            for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
                __builtin_prefetch(x + m->b[e + AHEAD]);
                if (fabs(m->y[e] - (x[m->b[e]] - x[i])) * m->w[e] > SETTLED) continue;
                int32_t a = (int32_t)(i - low), b = (int32_t)(m->b[e] - low);
                if (root_of(parent, a) != root_of(parent, b) && !unite(forest, a, b))
                    groups -= unite(parent, a, b);
            }
    }
    if (groups == 1) goto out;
    size = numbers(2 * n);
    next = numbers(n);
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
        most = edges > most ? edges : most;
    }
    room = doubles(2 * most);
    if (room == NULL) {
        moved = -1;
        goto out;
    }
    for (int64_t group = 0; group < n; group++) {
        if (parent[group] != group || group == largest || touched[group]) continue;
        struct view view = {0, room, room + most};
        for (int64_t i = group; i >= 0; i = next[i]) {
            int64_t at = low + i, inward = m->in[at + 1] - m->in[at], outward = m->out[at + 1] - m->out[at];
            if (m->held[at] > 0) {
                view.off[view.k] = m->q[at] - x[at];
                view.inverse[view.k++] = m->held[at];
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
        double by = elect(&view);
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
    free(room);
    return moved;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Move a part's x to where its priors, taken together, put it: by their median. */
static void place_by_priors(const struct mesh *m, const struct part *part, double *x, double *room) {
    int64_t k = 0;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++)
        if (m->held[i] > 0) room[k++] = m->q[i] - x[i];
    if (k == 0) return;
    qsort(room, (size_t)k, sizeof *room, compare);
    double by = k % 2 ? room[k / 2] : room[k / 2 - 1] + (room[k / 2] - room[k / 2 - 1]) / 2;
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++) x[i] += by;
}

/* The priors as x, and sums along trees where there are none. */
static int from_priors(const struct mesh *m, const struct part *part, double *x, double *vague,
                       uint8_t *known, int coarse) {
    for (int64_t i = part->lowest; i < part->lowest + part->n; i++)
        if ((known[i] = m->held[i] > 0)) {
            x[i] = m->q[i];
            vague[i] = 1 / (m->held[i] * m->held[i]);
        }
    int done = spread(m, part, x, vague, known, coarse);
    soften(m, part, vague);
    return done;
}

static int from_edges(const struct mesh *m, const struct part *part, double *x, double *vague, uint8_t *known,
                      int coarse) {
    memset(known + part->lowest, 0, (size_t)part->n);
    int done = spread(m, part, x, vague, known, coarse);
    soften(m, part, vague);
    return done;
}

/* The k-th of `of` 1 / sigma of a part's edges, sampled. */
static double inverse_at(const struct mesh *m, const struct part *part, int k, int of) {
    int64_t count = 0, stride = part->e / SAMPLE + 1;
    for (int64_t e = part->first; e < part->first + part->e; e += stride) m->sorted[count++] = m->inverse[e];
    return count ? ft_select(m->sorted, count, (count - 1) * k / of) : 1;
}

/* Start near the answer; y and q become what is left, w what soften gives. Returns 0 without memory. */
static int begin(struct mesh *m, struct part *part) {
    const int64_t n = part->n, low = part->lowest;
    double *x = m->start, *vague = m->room - low, scale = INFINITY;
    int done = 0;
    int64_t degree = 0, vaguer = 0;
    double loose = inverse_at(m, part, 1, 10), tight = inverse_at(m, part, 9, 10);
    part->wide = tight > 30 * loose;
    for (int64_t i = low; i < low + n; i++) {
        degree = degree_of(m, i) > degree ? degree_of(m, i) : degree;
        part->priors += m->held[i] > 0;
        vaguer += m->held[i] > 0 && m->held[i] * 10 < tight;
    }
    uint8_t *known = calloc((size_t)n + 1, 1);
    int32_t *queue = numbers(2 * n);
    double *room = doubles((n > 2 * degree ? n : 2 * degree) + 2);
    if (!known || !queue || !room) goto out;
    if (part->priors && 2 * vaguer < part->priors) {
        if (!from_priors(m, part, x, vague, known - low, !part->wide)) goto out;
        scale = median_of_start(m, part, x) * 1.4826;
    }
    if (scale > SETTLED) {
        if (!from_edges(m, part, x, vague, known - low, !part->wide)) goto out;
        if (median_of_start(m, part, x) * 1.4826 < scale)
            place_by_priors(m, part, x, room);
        else if (!from_priors(m, part, x, vague, known - low, !part->wide))
            goto out;
    }
    if (m->of->robust) {
        settle(m, part, x, queue, known, room);
        for (int64_t moved = 1, time = 0; moved > 0 && time < JOINS; time++) {
            moved = join(m, part, x);
            if (moved < 0) goto out;
            if (moved > 0) settle(m, part, x, queue, known, room);
        }
        place_by_priors(m, part, x, room);
    }
    for (int64_t e = part->first; e < part->first + part->e; e++) {
        __builtin_prefetch(x + m->b[e + AHEAD]);
        m->y[e] -= x[m->b[e]] - x[m->a[e]];
    }
    for (int64_t i = low; i < low + n; i++) {
        m->q[i] -= m->held[i] > 0 ? x[i] : 0;
        m->node[i].x = 0;
    }
    done = 1;
out:
    free(known);
    free(queue);
    free(room);
    return done;
}

/* Weigh the edges by where x leaves them: w, and at each node their sum and the pull on it. `bend`: how much of the
 * robust weight's fall counts in w as it does in the pull's slope (1: all; 0: w is the robust weight). In the `first`
 * round w is what soften left there. */
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
            double held = kept < 1 ? kept * (1 - bend) : 1;
            double w = m->w[e] = fmax(held, LEAST_WEIGHT) * inverse * inverse;
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
 * pull on each node. `room`: n, for the inverse. */
static void anchor(const struct mesh *m, struct part *part, double gain, double *r, double *room) {
    part->hold = part->whole = part->ask = 0;
    part->inverse = room;
    part->out = m->out + part->lowest;
    part->b = m->b + part->first;
    part->w = m->w + part->first;
    part->ground = m->ground + part->lowest;
    for (int64_t k = 0, i = part->lowest; k < part->n; k++, i++) {
        double off = m->q[i] - m->node[i].x, held = m->held[i];
        double kept = m->of->robust ? kept_of(fabs(off) * held / part->prior_scale) : 1;
        double ground = m->ground[i] = fmax(kept, LEAST_WEIGHT) * held * held * gain;
        double diagonal = m->node[i].weight + ground;
        room[k] = 1 / fmax(diagonal, 1e-300);
        part->hold += ground;
        part->whole += diagonal;
        part->ask += kept * held * held * gain * off;
        if (r != NULL) r[k] = m->node[i].pull + kept * held * held * gain * off;
    }
}

/* Eliminate the nodes of a small part, the ground's edges kept beside; without priors, or where they weigh next to
 * nothing, the node that is held best stands for the ground. `matrix` [n * n] gets the factors, `pivot` [n] the
 * pivots. Returns that node, or -1. */
static int64_t eliminate(const struct mesh *m, const struct part *part, double *matrix, double *pivot) {
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
static void substitute(int64_t n, const double *matrix, const double *pivot, int64_t base, double *r,
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
static void rounds(struct mesh *m, struct part *part) {
    const int64_t n = part->n, low = part->lowest;
    double *r = m->room, *by = r + n, *inverse = by + n, *spare = inverse + n;
    for (int round = 0; round < ROUNDS; round++) {
        if (m->of->robust) {
            part->scale = scale_of_edges(m, part, round ? m->inverse : m->w);
            part->prior_scale = scale_of_priors(m, part);
        }
        double gain = part->scale / part->prior_scale;
        if (round < 2) /* what edges and priors differ by is not yet the edges' own error */
            gain = fmin(gain, 1);
        weigh(m, part, round < 2 ? 0 : 1 - BEND, round == 0);
        anchor(m, part, gain * gain, r, inverse);
        double fine = (n < MANY ? FINE : FINE_OF_MANY) * part->scale, enough = fine * fine * (double)n,
               left = 0;
        for (int64_t i = 0; i < n; i++) left += r[i] * r[i] * inverse[i];
        if (part->hold > 0) left += part->ask * part->ask / part->hold * (double)n;
        if (!(left > enough * 1e-12)) return;
        if (n <= DENSE) {
            double *matrix = m->room + 6 * n;
            int64_t base = eliminate(m, part, matrix, spare);
            substitute(n, matrix, spare, base, r, by);
            if (part->hold > 0 && base >= 0) {
                double shift = part->ask;
                for (int64_t i = 0; i < n; i++) shift -= part->ground[i] * by[i];
                for (int64_t i = 0; i < n; i++) by[i] += shift / part->hold;
            }
        } else {
            gradients(part, by, r, &part->ask, ROUGH, enough * ROUGH * ROUGH, ROUGH, spare);
        }
        /* what all go by belongs to the start: x stays small */
        double size = 0, common = part->priors && isfinite(by[0]) ? by[0] : 0;
        for (int64_t i = 0; i < n; i++)
            if (isfinite(by[i])) {
                size += by[i] * by[i] / inverse[i];
                m->node[low + i].x += by[i] - common;
                m->start[low + i] += common;
                m->q[low + i] -= m->held[low + i] > 0 ? common : 0;
            }
        if (left < enough && size < SMOOTH * enough) return;
    }
}

/* How far a share of the votes for another place speaks against the present one: its standard error, as a part of
 * the way there; a third of the votes is a minority, from three to two on it is a tie. */
static double tie(double votes, double against) {
    double share = fmin(against / fmax(votes + against, 1e-9), 0.5);
    double ramp = fmin(fmax((share - TIE_FROM) / (TIE_TO - TIE_FROM), 0), 1);
    return sqrt(share * (1 - share)) * ramp;
}

/* The standard error of a node's place from other places that its edges and prior vote for; `room`: 2 (degree + 1). */
static double torn(const struct mesh *m, const struct part *part, int64_t i, double *room) {
    struct view view = {0, room, room + degree_of(m, i) + 1};
    for (int64_t s = m->in[i] - m->in [i + 1]; s < m->out[i + 1] - m->out[i]; s++) {
        int64_t e = s < 0 ? m->into[m->in[i + 1] + s] : m->out[i] + s;
        double off = m->y[e] - (m->node[m->b[e]].x - m->node[m->a[e]].x);
        view.off[view.k] = s < 0 ? off : -off;
        view.inverse[view.k++] = m->inverse[e] / part->scale;
    }
    if (m->held[i] > 0) {
        view.off[view.k] = m->q[i] - m->node[i].x;
        view.inverse[view.k++] = m->held[i] / part->prior_scale;
    }
    double votes = votes_at(&view, 0), most = 0, scattered = (double)view.k - votes;
    int64_t stride = view.k / CANDIDATES + 1;
    for (int64_t k = 0; k < view.k; k += stride) {
        double away = fabs(view.off[k]);
        if (away * view.inverse[k] > SETTLED && away * 0.5 > most) /* few of many may agree by chance */
            most = fmax(most, away * tie(votes, fmax(votes_at(&view, view.off[k]), scattered / SCATTERED)));
    }
    return most;
}

/* What can be wrong in a small part: its edges, and its priors as edges from a ground n, from ends[2 k] to
 * ends[2 k + 1], by how much the far end would have to move to fit; odd: they don't. */
struct arcs {
    int64_t n, count;
    int32_t *ends, *from, *list; /* at node i: ends list[from[i]]..list[from[i + 1]) */
    double *off, *inverse;
    uint8_t *odd;
    int8_t *flow;
};

static int arcs_of(const struct mesh *m, const struct part *part, struct arcs *arcs) {
    const int64_t n = part->n, low = part->lowest, most = part->e + part->priors;
    int64_t k = 0;
    *arcs = (struct arcs){n,
                          most,
                          numbers(2 * most),
                          numbers(n + 3),
                          numbers(2 * most),
                          doubles(most),
                          doubles(most),
                          room_of(most, 1),
                          room_of(most, 1)};
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
        if (m->held[low + i] > 0) {
            arcs->ends[2 * k] = (int32_t)n;
            arcs->ends[2 * k + 1] = (int32_t)i;
            arcs->off[k] = m->q[low + i] - m->node[low + i].x;
            arcs->inverse[k++] = m->held[low + i] / part->prior_scale;
        }
    memset(arcs->from, 0, ((size_t)n + 3) * sizeof *arcs->from);
    for (k = 0; k < 2 * most; k++) arcs->from[arcs->ends[k] + 2]++;
    for (int64_t i = 0; i <= n; i++) arcs->from[i + 2] += arcs->from[i + 1];
    for (k = 0; k < 2 * most; k++) arcs->list[arcs->from[arcs->ends[k] + 1]++] = (int32_t)k;
    for (k = 0; k < most; k++) arcs->odd[k] = fabs(arcs->off[k]) * arcs->inverse[k] > SETTLED;
    return 1;
}

static void drop_arcs(struct arcs *arcs) {
    free(arcs->ends), free(arcs->from), free(arcs->list), free(arcs->off), free(arcs->inverse),
        free(arcs->odd);
    free(arcs->flow);
}

/* Mark in `near` what can be reached from node `at` by arcs that fit and have room for more flow; `by` gets the end
 * that each was reached from. Stops at node `to`. */
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

/* Add to `add` what the votes against a cut of `held` arcs that fit say; odd arc k asks one side to move. */
static void weigh_cut(const struct arcs *arcs, const struct part *part, int64_t k, const uint8_t *near,
                      int64_t held, double *add) {
    double against = 0, moves = 0;
    for (int64_t j = 0; j < arcs->count; j++) {
        int way = near[arcs->ends[2 * j]] - near[arcs->ends[2 * j + 1]];
        double t =
            (way * arcs->off[j] - arcs->off[k]) * fmin(arcs->inverse[j], arcs->inverse[k]) * (1.0 / VOTE);
        if (way && arcs->odd[j]) against += 1 / (1 + t * t);
    }
    for (int64_t i = 0; i < arcs->n; i++) moves += near[i];
    moves = moves * 2 < (double)arcs->n ? 0 : moves * 2 > (double)arcs->n ? 1 : 0.5;
    if (part->priors) moves = near[arcs->n];
    double size = fabs(arcs->off[k]) * tie((double)held, against);
    for (int64_t i = 0; i < arcs->n; i++) add[i] = fmax(add[i], size * fabs(near[i] - moves));
}

/* Groups of nodes in a small part that nothing but a tie holds where they are. For each edge or prior that does not
 * fit: the least cuts between its ends through those that do (Ford and Fulkerson 1956, by the shortest paths), as
 * far as one could be no more than a tie with the votes for the other place. `add` gets the standard error of each
 * node's place from that, the side of the ground, or of more nodes, standing still. Returns 0 without memory. */
static int contest(const struct mesh *m, const struct part *part, double *add) {
    struct arcs arcs;
    int64_t odd = 0, seen = 0;
    int done = arcs_of(m, part, &arcs);
    for (int64_t k = 0; done && k < arcs.count; k++) odd += arcs.odd[k];
    for (int64_t k = 0; done && k < arcs.count; k++) {
        if (!arcs.odd[k] || seen++ % (odd / CONTESTS + 1)) continue;
        const int32_t start = arcs.ends[2 * k], end = arcs.ends[2 * k + 1];
        int64_t rivals = 0, held = 0;
        for (int64_t j = 0; j < arcs.count; j++)
            rivals += arcs.odd[j] && fabs(fabs(arcs.off[j]) - fabs(arcs.off[k])) <
                                         SETTLED * (1 / arcs.inverse[j] + 1 / arcs.inverse[k]);
        const int64_t most = (int64_t)((double)rivals * (1 / TIE_FROM - 1)) + 1;
        int32_t by[DENSE + 1];
        uint8_t near[DENSE + 1];
        memset(arcs.flow, 0, (size_t)arcs.count);
        for (; held <= most; held++) { /* one path more, while there is one */
            memset(near, 0, sizeof near);
            reach(&arcs, start, end, near, by);
            if (!near[end]) break;
            for (int32_t i = end; i != start; i = arcs.ends[by[i]])
                arcs.flow[by[i] / 2] = (int8_t)(arcs.flow[by[i] / 2] + (by[i] & 1 ? -1 : 1));
        }
        if (held > most) continue;
        weigh_cut(&arcs, part, k, near, held, add);
        for (int64_t j = 0; j < arcs.count;
             j++) { /* from one least cut to the next, over an arc it is full with */
            int32_t one = arcs.ends[2 * j], other = arcs.ends[2 * j + 1], next = near[one] ? other : one;
            if (arcs.odd[j] || near[one] == near[other]) continue;
            reach(&arcs, next, end, near, by);
            if (near[end]) break;
            weigh_cut(&arcs, part, k, near, held, add);
            j = -1;
        }
    }
    drop_arcs(&arcs);
    return done;
}

/* What the rounds left of a part: the edges' and nodes' figures, and how much worse than they say its edges and
 * priors are, as factors on the variance: E(psi^2) / E(psi')^2 (Huber 1981, section 7.6) over degrees of
 * freedom, for the weighted matrix. Returns 0 without memory. */
static int finish(struct mesh *m, struct part *part, double *dof, double *worse, double *prior_worse) {
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
    double *offs = doubles(2 * degree + 2);
    if (offs == NULL) return 0;
    /* at each node: sum of the weights, of squares of what is not far off, and count of what is */
    for (int64_t i = low; i < low + n; i++)
        for (int64_t e = m->out[i]; e < m->out[i + 1]; e++) {
            __builtin_prefetch(node + m->b[e + AHEAD], 1);
            struct node *near = node + m->b[e];
            double inverse = m->inverse[e], off = m->y[e] - (near->x - node[i].x),
                   t = fabs(off) * inverse * over;
            double kept = of->robust ? kept_of(t) : 1, pull = kept * off * inverse,
                   square = t < 3 ? t * t : 9;
            double w = m->w[e] = fmax(kept, LEAST_WEIGHT) * inverse * inverse;
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
        double kept =
            m->held[i] > 0 ? (of->robust ? kept_of(fabs(off) * m->held[i] / part->prior_scale) : 1) : 0;
        double pull = kept * off * m->held[i];
        prior_pulls += pull * pull;
        prior_kept += kept;
        share += m->ground[i] > 0 ? m->ground[i] / (m->ground[i] + node[i].weight) : 0;
        of->prior_residual[m->order[i]] = m->held[i] > 0 ? off : 0;
        of->prior_weight[m->order[i]] = kept;
        if (3 * node[i].spare > all) { /* not noise alone: the median, which says how far */
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
        int lost = m->held[i] > 0 && kept < 0.5;
        node[i].spare = of->robust && 3 * (node[i].spare + lost) > all ? torn(m, part, i, offs) : 0;
    }
    free(offs);
    double edges = (double)part->e, told = (double)n - 1 - (part->priors ? fmin(share, (double)n - 1) : 0);
    *dof = edges - told;
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
static void exact_variance(struct mesh *m, const struct part *part, double *variance) {
    const int64_t n = part->n, low = part->lowest;
    double *matrix = m->room + 6 * n, *all = matrix + n * n, pivot[DENSE], unit[DENSE], mean[DENSE];
    int64_t base = eliminate(m, part, matrix, pivot);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) unit[j] = i == j;
        if (i == base)
            memset(all + i * n, 0, (size_t)n * sizeof *all);
        else
            substitute(n, matrix, pivot, base, unit, all + i * n);
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

/* A bound on the variance where gradients did not get to the end, on long rings and grids: what a path through a
 * tree leaves, from the priors or from the first node; more paths can only leave less. Returns 0 without memory. */
static int bound_by_tree(const struct mesh *m, const struct part *part, double *variance) {
    const int64_t n = part->n, low = part->lowest;
    struct mesh tree = *m;
    double *x = doubles(2 * n), *vague = x + n, *inverse = doubles(part->e), mean = 0;
    uint8_t *known = room_of(n, 1);
    int done = 0;
    if (x == NULL || inverse == NULL || known == NULL) goto out;
    for (int64_t k = 0; k < part->e; k++) inverse[k] = sqrt(m->w[part->first + k]);
    tree.inverse = inverse - part->first;
    for (int64_t i = 0; i < n; i++) {
        x[i] = 0;
        if ((known[i] = part->ground[i] > 0)) vague[i] = 1 / part->ground[i];
    }
    done = spread(&tree, part, x - low, vague - low, known - low, 1);
    if (!part->priors)
        for (int64_t i = 0; i < n; i++) mean += vague[i] / (double)n;
    for (int64_t i = 0; done && i < n; i++) variance[i] = fmax(variance[i], vague[i] + mean);
out:
    free(x);
    free(inverse);
    free(known);
    return done;
}

/* Two halves' variances into one, calmed: what the halves differ by is chance, and as far as chance is what the nodes
 * differ by, they take the mean (Stein 1956; Efron and Morris 1973). Compared are ratios to what the nodes within two
 * steps alone leave: 1 / sum_j w_ij (L_jj - w_ij) / L_jj, exact on a tree of that depth. */
static void calm(struct mesh *m, const struct part *part, double *variance, const double *other) {
    const int64_t n = part->n, low = part->lowest;
    double *near = m->room + 3 * n, sum = 0, squares = 0, chance = 0;
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

static int drawn_variance(struct mesh *m, struct part *part, double *variance) {
    return part->n < MANY || part->wide ? draws(m, part, variance) : few_draws(m, part, variance);
}

static int solve_part(struct mesh *m, int64_t number) {
    struct ft_mesh *of = m->of;
    struct part part = {.lowest = m->part_node[number],
                        .n = m->part_node[number + 1] - m->part_node[number],
                        .scale = 1,
                        .prior_scale = 1};
    const int64_t low = part.lowest, n = part.n;
    double *inverse = m->room, *variance = inverse + n, *torn_by = variance + n, worse, prior_worse, dof;
    part.first = m->out[low];
    part.e = m->out[low + n] - part.first;
    if (!begin(m, &part)) return 0;
    rounds(m, &part);
    if (!finish(m, &part, &dof, &worse, &prior_worse)) return 0;
    of->dof[number] = dof;
    of->scale[number] = sqrt(worse);
    worse = fmax(1, dof > 0 ? (CLAIM + dof * worse) / (CLAIM + dof) : 1);
    anchor(m, &part, worse / prior_worse, NULL, inverse);
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
        exact_variance(m, &part, variance);
        memset(torn_by, 0, (size_t)n * sizeof *torn_by);
        if (of->robust && !contest(m, &part, torn_by)) return 0;
        for (int64_t i = 0; i < n; i++) m->node[low + i].spare = fmax(m->node[low + i].spare, torn_by[i]);
    } else if (!drawn_variance(m, &part, variance))
        return 0;
    for (int64_t i = 0; i < n; i++)
        of->x_sigma[m->order[low + i]] =
            told(hypot(sqrt(variance[i] * worse), m->node[low + i].spare), of->x[m->order[low + i]]);
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
