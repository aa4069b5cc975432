/* The packet-scale queue: waits of an M/D/1 queue at the load of a link. See fluid.c for the law. */
#include <math.h>

#include "fluid_state.h"

/* Draw the stationary work of M/D/1 at `load`, in units of one service. Sums of more than 16 terms are
 * normal. */
static double packet_work(rng_t *r, double load) {
    double u = unit(r);
    if (u >= load) return 0;
    double n = floor(log(u) / log(load));
    if (n < 1) n = 1; /* u just below load */
    if (n <= 16) {
        double sum = 0;
        for (int i = (int)n; i > 0; i--) sum += unit(r);
        return sum;
    }
    double a = sqrt(-2 * log(unit(r))) * cos(6.283185307179586 * unit(r));
    double sum = n / 2 + a * sqrt(n / 12);
    return sum > 0 ? sum : 0;
}

/* Return the work (ns) that a probe at t finds; `service_ns` is the time of one packet. */
double fl_packet_wait(rng_t *r, link_t *l, double t, double load, double service_ns) {
    double idle = 1 - load, tau = service_ns * (0.375 + load / (idle * idle)), d = fabs(t - l->waited_at);
    if (d > 8 * tau || fabs(load - l->waited_load) > 0.05 || unit(r) >= exp(-d / tau)) {
        l->waited = packet_work(r, load) * service_ns;
        l->waited_load = (float)load;
        l->waited_at = t;
    }
    return l->waited;
}

void fl_packet_waits(uint64_t seed, double load, double service_ns, double spacing_ns, int64_t n,
                     double *out) {
    rng_t r;
    link_t l = {.waited_at = -1e18};
    rng_seed(&r, seed);
    for (int64_t i = 0; i < n; i++) {
        double t = (double)i * spacing_ns;
        out[i] = fl_packet_wait(&r, &l, t, load, service_ns);
        l.waited_at = t;
    }
}
