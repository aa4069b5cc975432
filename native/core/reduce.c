/* One-way delays of a (peer, path), with the clocks' difference taken out of every sample.
 *
 * With fabric time F = c + off(c), off(c) = offset + drift * (c - at), of prober p and peer q:
 *
 *   forward delay = F_q(t2) - F_p(t1) = (t2 - t1) + off_q(t2) - off_p(t1)
 *   reverse delay = F_p(t4) - F_q(t3) = (t4 - t3) + off_p(t4) - off_q(t3)
 *   round trip    = (t2 - t1) + (t4 - t3): the clocks' difference cancels
 *
 * t2 - t1 and the offsets can each be 1e18 ns while the delay is 5,000: the whole ns of the offsets' difference
 * are subtracted in integers, and only the small rest becomes a double.
 *
 * Quantiles are nearest rank: the p-quantile of n values is the ceil(p * n)-th smallest.
 */
#include "select.h"
#include "window.h"

#include <math.h>
#include <string.h>

int ft_bucket(double ns) {
    uint64_t bits;
    if (!(ns >= 1)) return 0;
    memcpy(&bits, &ns, sizeof bits);
    /* exponent and the two highest bits of the mantissa are 4 * (1023 + log2) + those bits */
    uint64_t bucket = (bits >> 50) - 4 * 1023;
    return bucket < FT_BUCKETS ? (int)bucket : FT_BUCKETS - 1;
}

/* Differences of stamps wrap as the machine does: absurd stamps give absurd delays, never undefined ones. */
static inline int64_t plus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static inline int64_t minus(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static void three(double *values, int64_t n, double lowest, double out[3]) {
    int64_t median = (n + 1) / 2 - 1, high = (99 * n + 99) / 100 - 1;
    out[0] = lowest;
    out[1] = ft_select(values, n, median);
    out[2] = high > median ? ft_select(values + median + 1, n - median - 1, high - median - 1) : out[1];
}

int ft_reduce(struct ft_window *w, const struct ft_row *row, const struct ft_line *prober,
              const struct ft_line *peer, struct ft_delays *out) {
    int64_t n = row->chain.samples, k = 0;
    int both = prober->known && peer->known;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 3; i++) out->forward[i] = out->reverse[i] = out->rtt[i] = NAN;
    out->bound_ns = both ? prober->bound_ns + peer->bound_ns : NAN;
    if (n == 0) return 1;
    double *rtt = ft_window_scratch(w, 3 * n);
    if (rtt == NULL) return 0;
    double *forward = rtt + n, *reverse = forward + n;
    double rtt_min = INFINITY, forward_min = INFINITY, reverse_min = INFINITY;

    int64_t whole = both ? minus(peer->offset_ns, prober->offset_ns) : 0;
    double rest = both ? peer->offset_fraction_ns - prober->offset_fraction_ns : 0;
    double rate_p = prober->drift_ppb * 1e-9, rate_q = peer->drift_ppb * 1e-9;

    for (int64_t at = row->chain.first; at >= 0; at = w->pieces[at].next_of_row) {
        const struct ft_piece *piece = &w->pieces[at];
        for (int64_t i = 0; i < piece->n; i++) {
            double trip = (double)plus(piece->forward[i], piece->reverse[i]);
            trip = trip > 0 ? trip : 0;
            rtt[k + i] = trip;
            rtt_min = trip < rtt_min ? trip : rtt_min;
        }
        if (both) {
            for (int64_t i = 0; i < piece->n; i++) {
                int64_t t1 = piece->sent[i], t2 = plus(t1, piece->forward[i]);
                int64_t t3 = plus(t2, piece->turnaround[i]), t4 = plus(t3, piece->reverse[i]);
                double there =
                    (double)plus(piece->forward[i], whole) + (rest + rate_q * (double)minus(t2, peer->at_ns) -
                                                              rate_p * (double)minus(t1, prober->at_ns));
                double back = (double)minus(piece->reverse[i], whole) -
                              (rest + rate_q * (double)minus(t3, peer->at_ns) -
                               rate_p * (double)minus(t4, prober->at_ns));
                forward[k + i] = there;
                reverse[k + i] = back;
                forward_min = there < forward_min ? there : forward_min;
                reverse_min = back < reverse_min ? back : reverse_min;
            }
            for (int64_t i = 0; i < piece->n; i++) {
                out->forward_bucket[ft_bucket(forward[k + i])]++;
                out->reverse_bucket[ft_bucket(reverse[k + i])]++;
            }
        }
        k += piece->n;
    }
    three(rtt, n, rtt_min, out->rtt);
    if (both) {
        three(forward, n, forward_min, out->forward);
        three(reverse, n, reverse_min, out->reverse);
    }
    return 1;
}
