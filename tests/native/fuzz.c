/* Feeds the hot path with what nobody vouches for; built by test_sanitized.py with the sanitizers on.
 * Prints "clean" at the end; whatever is wrong ends the program before that. */
#include "decode.h"
#include "mesh.h"
#include "window.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 5;

static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? state % below : state;
}

static int64_t number(int bits) {
    return (int64_t)chance(0) >> (64 - bits);
}

#define CHECK(status)                                                                                        \
    do {                                                                                                     \
        if (!(status)) {                                                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, #status);                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* A batch of `groups` groups; returns its length. */
static int64_t write_batch(uint8_t *out, int groups, int per) {
    uint8_t *p = ft_put_long(out, 3);
    int64_t values[64];
    memcpy(p, "a/b", 3);
    p += 3;
    for (int i = 0; i < 4; i++) p = ft_put_long(p, i == 1 ? 7 : number(63));
    p = ft_put_long(p, groups);
    for (int g = 0; g < groups; g++) {
        p = ft_put_long(p, 1);
        *p++ = (uint8_t)('a' + g / 2);
        p = ft_put_long(p, 40000 + g);
        p = ft_put_long(p, g % 2 * 500);
        for (int c = 0; c < 4; c++) {
            for (int i = 0; i < per; i++) values[i] = number(c == 0 ? 60 : 10 + 8 * c);
            p = c == 0 ? ft_put_stamps(p, values, per) : ft_put_array(p, values, per);
            CHECK(p != NULL);
        }
        p = ft_put_long(p, g);
        for (int i = 0; i < 3; i++) p = ft_put_long(p, i == 1 ? 26 : 0); /* no_t3, dscp, ecn */
        for (int way = 0; way < 2; way++) { /* every third sample is marked, on one way */
            int marked = (way ? 0 : (per + 2) / 3);
            for (int i = 0; i < marked; i++) values[i] = 3 * i;
            p = ft_put_array(p, values, marked);
        }
    }
    return ft_put_long(p, 0) - out;
}

static void digest(const struct ft_batches *b) {
    struct ft_window w;
    struct ft_pair_fit fit;
    struct ft_delays delays;
    struct ft_line line = {1, number(62), number(62), 0.25, (double)number(20), 3};
    memset(&w, 0, sizeof w);
    for (int64_t g = 0; g < b->groups; g++) {
        int64_t i = b->start[g];
        struct ft_piece piece = {.sent = b->column[0] + i,
                                 .forward = b->column[1] + i,
                                 .turnaround = b->column[2] + i,
                                 .reverse = b->column[3] + i,
                                 .n = b->start[g + 1] - i,
                                 .spacing_ns = b->spacing_ns[g]};
        int64_t counts[FT_COUNTS] = {b->lost[g], b->no_t3[g], b->ecn ? b->ecn[g] : 0};
        CHECK(ft_window_add(&w, (int32_t)(g / 2), b->path[g], b->dscp ? b->dscp[g] : 0, piece, counts));
    }
    for (int64_t i = 0; i < w.n_peers; i++)
        if (ft_fit(&w, &w.peers[i], &fit) > 0)
            CHECK(fabs(fit.offset_fraction_ns) <= 0.5 && isfinite(fit.drift_ppb) && fit.sigma_ns > 0 &&
                  fit.rtt_min_ns >= 0);
    for (int64_t r = 0; r < w.n_rows; r++) CHECK(ft_reduce(&w, &w.rows[r], &line, &line, &delays));
    ft_window_free(&w);
}

/* Decodes a copy that ends where its memory ends. Returns whether it was a batch. */
static int try_decode(const uint8_t *bytes, int64_t size) {
    struct ft_batches b = {0};
    struct ft_fault fault;
    uint8_t *exact = malloc((size_t)size + !size);
    memcpy(exact, bytes, (size_t)size);
    CHECK(ft_reserve(&b, 1, size));
    int good = ft_decode(exact, size, &b, &fault) == FT_OK;
    if (good) {
        CHECK(b.start[b.groups] == b.samples);
        CHECK(b.samples <= size / 4);
        digest(&b);
    } else {
        CHECK(fault.status != FT_OK && fault.at >= 0 && fault.at <= size);
    }
    ft_batches_free(&b);
    free(exact);
    return good;
}

/* A message between two others in the same columns, whole or not, leaves the others as they are. */
static void try_between(const uint8_t *good, int64_t good_size, const uint8_t *other, int64_t other_size) {
    struct ft_batches b = {0}, alone = {0};
    struct ft_fault fault;
    CHECK(ft_reserve(&b, 3, 0) && ft_reserve(&alone, 1, good_size));
    CHECK(ft_decode(good, good_size, &alone, &fault) == FT_OK);
    CHECK(ft_decode(good, good_size, &b, &fault) == FT_OK);
    int is_whole = ft_decode(other, other_size, &b, &fault) == FT_OK;
    CHECK(is_whole == !b.message[1].is_refused && (is_whole || b.message[1].groups == 0));
    CHECK(ft_decode(good, good_size, &b, &fault) == FT_OK);
    ft_trim(&b);
    CHECK(b.messages == 3 && b.start[b.groups] == b.samples);
    for (int k = 0; k < 3; k += 2) {
        const struct ft_message *m = &b.message[k];
        CHECK(m->groups == alone.groups && m->samples == alone.samples && m->lost == alone.message[0].lost);
        for (int64_t g = 0; g < m->groups; g++)
            CHECK(b.path[m->first_group + g] == alone.path[g] &&
                  b.start[m->first_group + g + 1] - m->first_sample == alone.start[g + 1]);
        for (int c = 0; c < 4; c++)
            CHECK(!memcmp(b.column[c] + m->first_sample, alone.column[c], (size_t)alone.samples * 8));
        for (int way = 0; way < 2; way++) {
            CHECK(m->marks[way] == alone.marks[way]);
            for (int64_t i = 0; i < m->marks[way]; i++)
                CHECK(b.marked[way][m->first_mark[way] + i] - m->first_sample == alone.marked[way][i]);
        }
    }
    ft_batches_free(&b);
    ft_batches_free(&alone);
}

static void fuzz_decode(void) {
    static uint8_t body[1 << 16], mutated[1 << 16];
    int read = 0;
    int64_t size = write_batch(body, 6, 12);
    CHECK(try_decode(body, size));
    for (int64_t n = 0; n < size; n++) CHECK(!try_decode(body, n));
    for (int round = 0; round < 30000; round++) {
        if (round % 1000 == 0) size = write_batch(body, 1 + (int)chance(8), 2 * (int)chance(20));
        memcpy(mutated, body, (size_t)size);
        for (uint64_t k = 0, n = 1 + chance(4); k < n; k++) {
            static const uint8_t hard[] = {0, 1, 127, 128, 255};
            mutated[chance((uint64_t)size)] = chance(2) ? hard[chance(5)] : (uint8_t)chance(256);
        }
        int64_t given = chance(3) ? size : (int64_t)chance((uint64_t)size + 1);
        read += try_decode(mutated, given);
        try_between(body, size, mutated, given);
    }
    CHECK(read > 100);
    for (int round = 0; round < 20000; round++) {
        int64_t n = (int64_t)chance(80);
        for (int64_t i = 0; i < n; i++) mutated[i] = (uint8_t)chance(chance(2) ? 4 : 256);
        try_decode(mutated, n);
    }
}

static void fuzz_window(void) {
    for (int round = 0; round < 3000; round++) {
        int64_t n = 1 + (int64_t)chance(120), start[2] = {0, n};
        struct ft_batches b = {.groups = 1, .samples = n, .start = start};
        int32_t zero = 0, spacing = n % 2 ? 0 : (int32_t)chance(2) * 50;
        b.path = b.lost = b.no_t3 = &zero;
        b.spacing_ns = &spacing;
        for (int c = 0; c < 4; c++) {
            int bits = 1 + (int)chance(64);
            b.column[c] = malloc((size_t)n * sizeof(int64_t));
            for (int64_t i = 0; i < n; i++)
                b.column[c][i] = chance(50) ? number(bits) : (chance(2) ? INT64_MIN : INT64_MAX);
        }
        digest(&b);
        for (int c = 0; c < 4; c++) free(b.column[c]);
    }
}

static void fuzz_mesh(void) {
    for (int round = 0; round < 300; round++) {
        int64_t nodes = 1 + (int64_t)chance(round % 20 ? 30 : 300),
                edges = (int64_t)chance(4 * (uint64_t)nodes);
        size_t n = (size_t)nodes, e = (size_t)edges + 1;
        int32_t *a = malloc(e * sizeof *a), *b = malloc(e * sizeof *b), *part = malloc(n * sizeof *part);
        double *of_edges = malloc(5 * e * sizeof *of_edges), *of_nodes = malloc(9 * n * sizeof *of_nodes);
        double *value = of_edges, *sigma = value + e, *prior = of_nodes, *prior_sigma = prior + n;
        double *x = prior_sigma + n, *x_sigma = x + n;
        struct ft_mesh mesh = {.nodes = nodes,
                               .edges = edges,
                               .a = a,
                               .b = b,
                               .value = value,
                               .sigma = sigma,
                               .robust = round % 7 > 0,
                               .want_sigma = round % 5 > 0,
                               .x = x,
                               .x_sigma = x_sigma,
                               .component = part,
                               .residual = sigma + e,
                               .weight = sigma + 2 * e,
                               .leverage = sigma + 3 * e,
                               .prior_residual = x + 2 * n,
                               .prior_weight = x + 3 * n,
                               .contradiction = x + 4 * n,
                               .scale = x + 5 * n,
                               .dof = x + 6 * n};
        int bits = 1 + (int)chance(60), spread = 1 + (int)chance(40);
        for (int64_t i = 0; i < edges; i++) {
            a[i] = (int32_t)chance((uint64_t)nodes);
            b[i] = (int32_t)chance((uint64_t)nodes);
            value[i] = (double)number(bits);
            sigma[i] = ldexp(1, (int)chance((uint64_t)spread) - 10);
        }
        for (int64_t i = 0; i < nodes; i++) {
            prior[i] = (double)number(bits);
            prior_sigma[i] = chance(3) ? ldexp(1, (int)chance((uint64_t)spread) - 10) : INFINITY;
        }
        if (chance(2)) {
            mesh.prior = prior;
            mesh.prior_sigma = prior_sigma;
        }
        CHECK(ft_solve_mesh(&mesh));
        for (int64_t i = 0; i < nodes; i++) {
            CHECK(isfinite(x[i]) && part[i] >= 0 && part[i] < mesh.parts && mesh.contradiction[i] >= 0);
            CHECK(!mesh.want_sigma || x_sigma[i] >= 0);
        }
        free(a), free(b), free(part), free(of_edges), free(of_nodes);
    }
}

int main(void) {
    fuzz_decode();
    fuzz_window();
    fuzz_mesh();
    for (int i = -5; i < 70; i++)
        CHECK(ft_bucket(ldexp(1.3, i)) >= 0 && ft_bucket(ldexp(1.3, i)) < FT_BUCKETS);
    puts("clean");
    return 0;
}
