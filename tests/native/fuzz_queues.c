/* Queue inference under sanitizers: drawn links, routes, slots and knots, solved several times with one memory. */
#include "queues.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int64_t below(int64_t n) {
    return (int64_t)(draw() % (uint64_t)n);
}

static double share(void) {
    return (double)(draw() >> 11) / 9007199254740992.0;
}

/* Routes over `links` links, each at most once in a route, some routes empty. */
static void lay_routes(struct ft_queues *q, int64_t *start, int32_t *link) {
    int64_t at = 0;
    for (int64_t route = 0; route < q->routes; route++) {
        start[route] = at;
        for (int32_t l = 0; l < q->links; l++)
            if (!below(3)) link[at++] = l;
    }
    start[q->routes] = at;
}

static int solve(struct ft_queues *q, double scale) {
    struct ft_queue_slots s;
    memset(&s, 0, sizeof s);
    s.slots = below(9);
    s.observations = s.slots ? below(60) : 0;
    s.rounds = 1 + (int)below(3);
    s.sweeps = 1 + (int)below(12);
    s.merge = 1 + (int)below(5);
    s.knots = 1 + (int)below(4);
    s.slot_ns = 1e3 + 1e7 * share();
    size_t n = (size_t)s.observations, cells = (size_t)(s.slots * q->links);
    int64_t *start = calloc((size_t)s.slots + 1, sizeof *start);
    int32_t *route = calloc(n + 1, sizeof *route);
    double *column = calloc(4 * n + 1, sizeof *column), *out = calloc(2 * cells + 1, sizeof *out);
    double *at = column, *count = at + n, *delay = count + n, *noise = delay + n;
    for (int64_t t = 1; t <= s.slots; t++)
        start[t] = t == s.slots ? s.observations : start[t - 1] + below(s.observations - start[t - 1] + 1);
    for (size_t i = 0; i < n; i++) {
        route[i] = (int32_t)below(q->routes);
        at[i] = below(4) ? share() : (double)below(2);
        count[i] = 1 + (double)below(5);
        delay[i] = scale * (share() - 0.1);
        noise[i] = 1e-3 + 100 * share();
    }
    s.slot_start = start;
    s.route = route;
    s.at = at;
    s.count = count;
    s.delay_ns = delay;
    s.noise_ns = noise;
    s.queue_ns = out;
    s.sigma_ns = out + cells;
    int bad = !ft_queues_solve(q, &s);
    for (size_t c = 0; c < cells; c++)
        bad |= !(isfinite(s.queue_ns[c]) && s.queue_ns[c] >= 0 && isfinite(s.sigma_ns[c]));
    free(start);
    free(route);
    free(column);
    free(out);
    return bad;
}

int main(void) {
    for (int trial = 0; trial < 1500; trial++) {
        struct ft_queues q;
        memset(&q, 0, sizeof q);
        q.links = 1 + below(12);
        q.routes = 1 + below(20);
        int64_t *start = calloc((size_t)q.routes + 1, sizeof *start);
        int32_t *link = calloc((size_t)(q.routes * q.links) + 1, sizeof *link);
        double *own = calloc((size_t)(3 * q.links), sizeof *own);
        for (int64_t l = 0; l < q.links; l++)
            own[l] = trial % 2 ? 1 + 2e4 * share() : pow(10, 41 * share() - 30);
        q.packet_ns = own;
        q.last_ns = own + q.links;
        q.mean_ns = own + 2 * q.links;
        q.route_start = start;
        q.route_link = link;
        lay_routes(&q, start, link);
        double scale = pow(10, 12 * share());
        for (int call = 0; call < 4; call++)
            if (solve(&q, scale)) {
                printf("trial %d, call %d: not solved, or no finite queues\n", trial, call);
                return 1;
            }
        ft_queues_free(&q);
        free(start);
        free(link);
        free(own);
    }
    puts("clean");
    return 0;
}
