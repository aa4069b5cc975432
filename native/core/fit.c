/* The clock line of one pair from one window's samples: the first, simple estimate.
 *
 * Let x be the prober's clock and theta(x) = a + b * x the peer's clock minus the prober's. A sample gives
 *
 *   forward f = t2 - t1 = d_f + q_f + theta,    reverse r = t4 - t3 = d_r + q_r - theta
 *
 * with the paths' fixed delays d and queueing q >= 0. Queueing only adds, so the lowest samples carry the
 * clocks: with d_f = d_r, theta = (min f - min r) / 2, and whatever d_f - d_r is, |error| <= (f + r) / 2, half
 * the least round trip.
 *
 * 1. Coded pairs (Huygens, NSDI'18, section 3): two probes sent s apart and received s' apart saw the same
 *    queue; s' - s is just f' - f. A pair counts in a direction where |f' - f| is below a guard that follows
 *    the stamps' own noise: three times the lower quartile of all |f' - f|, at least 20 ns.
 * 2. Minimum filter (as NTP's clock filter, RFC 5905 section 10, per direction): the window is cut into up to
 *    16 bins; per bin the least f and the least r, after the slope known so far is taken out, give one point
 *    theta_k at x_k. The slope comes from the median of the points' pairwise slopes, in three rounds.
 * 3. Least squares line over the points, each with variance s0^2 + (e_k / 2)^2, where e_k is how far the
 *    bin's least f plus least r stand above a quiet bin's: a queue left in it can move theta_k by e_k / 2.
 *    The points' own scatter raises the variance where it is larger than that, and never lowers it.
 * 4. A step of a clock within the window shows as one jump between neighbouring points that the rest does not
 *    explain: the standard error then becomes the whole range of the points, and the slope counts as unknown.
 *
 * Too few samples for a line: the one with the least round trip gives the offset, and half of that round
 * trip is the error. Stamps that no window can hold (another epoch, negative round trips) are left out; where
 * they are more than a tenth, nothing here can be trusted and the error is a second.
 *
 * Numbers: stamps and clock differences reach 1e18 ns, so the median of each is taken off in integers first.
 */
#include "select.h"
#include "window.h"

#include <math.h>
#include <string.h>

#define BINS 16
#define BIN_SAMPLES 8        /* of the poorer direction, in the mean */
#define LEAST_POINTS 4       /* for a line */
#define GUARD_LEAST_NS 20.0
#define SPAN_MOST_NS 60e9    /* stamps further from the median than this are of another clock */
#define STEP_MOST_NS 1e9     /* the same for clock differences */
#define RTT_MOST_NS 10e9
#define SLOPE_MOST 1e-3
#define NO_SLOPE_PPB 1e6
#define UNTRUSTED_NS 1e9
#define LEAST_SIGMA_NS 0.5
#define PROBED 127           /* samples that the medians are taken of */

static double half_trip(double rtt)
{
    return rtt / 2 > LEAST_SIGMA_NS ? rtt / 2 : LEAST_SIGMA_NS;
}

static void sort_longs(int64_t *v, int n)
{
    for (int i = 1; i < n; i++) {
        int64_t value = v[i];
        int j = i;
        for (; j > 0 && v[j - 1] > value; j--)
            v[j] = v[j - 1];
        v[j] = value;
    }
}

struct bases {
    int64_t sent, forward, reverse;
};

/* Medians of up to PROBED samples spread over the chain. */
static struct bases bases_of(const struct ft_window *w, const struct ft_chain *chain)
{
    int64_t sent[PROBED], forward[PROBED], reverse[PROBED];
    int64_t step = chain->samples / PROBED + 1, skip = step / 2;
    int n = 0;
    if (skip >= chain->samples)
        skip = 0;
    for (int64_t at = chain->first; at >= 0; at = w->pieces[at].next_of_peer) {
        const struct ft_piece *p = &w->pieces[at];
        for (; skip < p->n && n < PROBED; skip += step, n++) {
            sent[n] = p->sent[skip];
            forward[n] = p->forward[skip];
            reverse[n] = p->reverse[skip];
        }
        skip -= p->n;
    }
    sort_longs(sent, n);
    sort_longs(forward, n);
    sort_longs(reverse, n);
    return (struct bases){sent[n / 2], forward[n / 2], reverse[n / 2]};
}

/* a - b as a double, exact where it is small, without wrapping where it is not. */
static inline double apart(int64_t a, int64_t b)
{
    int64_t difference;
    if (__builtin_expect(__builtin_sub_overflow(a, b, &difference), 0))
        return (double)a - (double)b;
    return (double)difference;
}

/* Points (x, y) of one direction. */
struct cloud {
    double *x, *y;
    uint8_t *bin;
    int64_t n;
};

struct minima {
    double x[BINS], y[BINS]; /* y with the slope taken out; HUGE_VAL: empty */
};

static void sort_into_bins(struct cloud *c, double from, double per_bin, int bins)
{
    for (int64_t i = 0; i < c->n; i++) {
        int k = (int)((c->x[i] - from) * per_bin);
        c->bin[i] = (uint8_t)(k < bins ? k : bins - 1);
    }
}

static void minima_of(const struct cloud *c, double slope, int bins, struct minima *out)
{
    for (int k = 0; k < bins; k++)
        out->y[k] = HUGE_VAL;
    for (int64_t i = 0; i < c->n; i++) {
        int k = c->bin[i];
        double y = c->y[i] - slope * c->x[i];
        if (y < out->y[k]) {
            out->y[k] = y;
            out->x[k] = c->x[i];
        }
    }
}

/* Points of the line: theta less slope * x at x, and the sum of both minima. */
struct points {
    double x[BINS], theta[BINS], trip[BINS];
    int n;
};

static void points_of(const struct cloud *f, const struct cloud *r, double slope, int bins, struct points *out)
{
    struct minima lf, lr;
    minima_of(f, slope, bins, &lf);
    minima_of(r, -slope, bins, &lr);
    out->n = 0;
    for (int k = 0; k < bins; k++) {
        if (lf.y[k] == HUGE_VAL || lr.y[k] == HUGE_VAL)
            continue;
        out->x[out->n] = (lf.x[k] + lr.x[k]) / 2;
        out->theta[out->n] = (lf.y[k] - lr.y[k]) / 2;
        out->trip[out->n++] = lf.y[k] + lr.y[k];
    }
}

static double median(double *values, int n)
{
    return ft_select(values, n, n / 2);
}

/* Median of all pairwise slopes (Theil, Sen); 0 where no two points differ in x. */
static double slope_of(const struct points *p)
{
    double slopes[BINS * (BINS - 1) / 2];
    int n = 0;
    for (int i = 0; i < p->n; i++)
        for (int j = i + 1; j < p->n; j++)
            if (p->x[j] != p->x[i])
                slopes[n++] = (p->theta[j] - p->theta[i]) / (p->x[j] - p->x[i]);
    return n ? median(slopes, n) : 0;
}

/* Height of each point's trip above a quiet one's (the lower quartile), and the noise that it betrays: half
 * the quartiles' distance. The least trip is not used: a step's bin takes each direction from another side. */
static double excess_of(const struct points *p, double excess[BINS])
{
    double sorted[BINS];
    memcpy(sorted, p->trip, (size_t)p->n * sizeof *sorted);
    double quiet = ft_select(sorted, p->n, p->n / 4), high = ft_select(sorted, p->n, 3 * p->n / 4);
    for (int k = 0; k < p->n; k++)
        excess[k] = p->trip[k] > quiet ? p->trip[k] - quiet : 0;
    double s0 = (high - quiet) / 2;
    return s0 > LEAST_SIGMA_NS ? s0 : LEAST_SIGMA_NS;
}

/* Range of the points where some jump between neighbours is more than their usual scatter and their excess
 * explain; 0 where none is. The rate between neighbours (its median, in *rate) is taken out of both: unlike a
 * line's slope it does not follow a step. */
static double step_of(const struct points *p, const double excess[BINS], double s0, double *rate)
{
    double rates[BINS], sizes[BINS], least = p->theta[0], most = least;
    int n = p->n - 1, found = 0;
    for (int k = 0; k < n; k++) {
        double dx = p->x[k + 1] - p->x[k];
        rates[k] = dx > 0 ? (p->theta[k + 1] - p->theta[k]) / dx : 0;
    }
    *rate = median(rates, n);
    for (int k = 0; k < n; k++)
        sizes[k] = fabs(p->theta[k + 1] - p->theta[k] - *rate * (p->x[k + 1] - p->x[k]));
    double usual = 1.5 * median(sizes, n);
    usual = usual > s0 ? usual : s0;
    for (int k = 0; k < n; k++) {
        double jump = fabs(p->theta[k + 1] - p->theta[k] - *rate * (p->x[k + 1] - p->x[k]));
        double height = p->theta[k + 1] - *rate * (p->x[k + 1] - p->x[0]);
        found |= jump > 8 * usual + excess[k] / 2 + excess[k + 1] / 2;
        least = height < least ? height : least;
        most = height > most ? height : most;
    }
    return found ? most - least : 0;
}

/* Lower quartile of up to 256 of the pairs' differences, three times: the guard. */
static double guard_of(double *differences, int64_t n)
{
    double guard = 3 * ft_select(differences, n, n / 4);
    return guard > GUARD_LEAST_NS ? guard : GUARD_LEAST_NS;
}

static double add_bases(int64_t a, int64_t b)
{
    __extension__ typedef __int128 wide;
    return (double)((wide)a + (wide)b);
}

/* (a - b) / 2: its whole part; the rest of 0, 0.5 or -0.5 in *rest. */
static double half_difference(int64_t a, int64_t b, double *rest)
{
    __extension__ typedef __int128 wide;
    wide d = (wide)a - (wide)b;
    *rest = (double)(int)(d % 2) / 2;
    return (double)(d / 2);
}

#define GUARDS 256

int ft_fit(struct ft_window *w, const struct ft_chain *chain, struct ft_pair_fit *fit)
{
    int64_t n = chain->samples;
    if (n == 0)
        return 0;
    double *scratch = ft_window_scratch(w, 8 * n + n / 4 + 1);
    if (scratch == NULL)
        return -1;
    /* all usable samples, in the order of the pieces; then the accepted ones of each direction */
    double *x = scratch, *y_f = x + n, *x_r = y_f + n, *y_r = x_r + n;
    uint8_t *bin = (uint8_t *)(scratch + 8 * n);
    struct cloud f = {y_r + n, y_r + 2 * n, bin, 0}, r = {y_r + 3 * n, y_r + 4 * n, bin + n, 0};

    struct bases base = bases_of(w, chain);
    double base_trip = add_bases(base.forward, base.reverse), base_rest;
    double base_theta = half_difference(base.forward, base.reverse, &base_rest);
    double trip_least = HUGE_VAL;
    int64_t left_out = 0, best = -1, k = 0, pairs = 0, pair_step;
    double spread_f[GUARDS], spread_r[GUARDS];

    pair_step = n / 2 / GUARDS + 1;
    int64_t pair_number = 0;
    for (int64_t at = chain->first; at >= 0; at = w->pieces[at].next_of_peer) {
        const struct ft_piece *p = &w->pieces[at];
        for (int64_t i = 0; i < p->n; i++, k++) {
            double dx = apart(p->sent[i], base.sent), df = apart(p->forward[i], base.forward);
            double dr = apart(p->reverse[i], base.reverse), turn = (double)p->turnaround[i];
            double trip = df + dr + base_trip;
            int usable = (fabs(dx) <= SPAN_MOST_NS) & (fabs(df) <= STEP_MOST_NS) & (fabs(dr) <= STEP_MOST_NS) &
                         (trip >= 0) & (trip <= RTT_MOST_NS);
            /* theta as of the peer's stamp: half a round trip after t1, and its turnaround later */
            x[k] = dx + trip / 2;
            x_r[k] = x[k] + ((turn >= 0) & (turn <= STEP_MOST_NS) ? turn : 0);
            y_f[k] = usable ? df : HUGE_VAL;
            y_r[k] = dr;
            left_out += !usable;
            if (usable && trip < trip_least) {
                trip_least = trip;
                best = k;
            }
        }
        if (p->spacing_ns > 0) {
            const double *pf = y_f + k - p->n, *pr = y_r + k - p->n;
            for (int64_t i = 0; i + 1 < p->n; i += 2)
                if (pf[i] != HUGE_VAL && pf[i + 1] != HUGE_VAL && pair_number++ % pair_step == 0 &&
                    pairs < GUARDS) {
                    spread_f[pairs] = fabs(pf[i + 1] - pf[i]);
                    spread_r[pairs++] = fabs(pr[i + 1] - pr[i]);
                }
        }
    }
    if (best < 0)
        return 0;

    double guard_f = 0, guard_r = 0;
    if (pairs) {
        guard_f = guard_of(spread_f, pairs);
        guard_r = guard_of(spread_r, pairs);
    }
    int64_t accepted = 0;
    k = 0;
    for (int64_t at = pairs ? chain->first : -1; at >= 0; at = w->pieces[at].next_of_peer) {
        const struct ft_piece *p = &w->pieces[at];
        for (int64_t i = 0; p->spacing_ns > 0 && i + 1 < p->n; i += 2) {
            int64_t a = k + i, b = a + 1;
            if (y_f[a] == HUGE_VAL || y_f[b] == HUGE_VAL)
                continue;
            int ok_f = fabs(y_f[b] - y_f[a]) <= guard_f, ok_r = fabs(y_r[b] - y_r[a]) <= guard_r;
            /* written always, kept where accepted */
            f.x[f.n] = x[a], f.y[f.n] = y_f[a], f.x[f.n + 1] = x[b], f.y[f.n + 1] = y_f[b];
            r.x[r.n] = x_r[a], r.y[r.n] = y_r[a], r.x[r.n + 1] = x_r[b], r.y[r.n + 1] = y_r[b];
            f.n += 2 * ok_f;
            r.n += 2 * ok_r;
            accepted += 2 * (ok_f | ok_r);
        }
        k += p->n;
    }
    int64_t fewer = f.n < r.n ? f.n : r.n;
    if (fewer < LEAST_POINTS * BIN_SAMPLES && fewer < n - left_out) {
        /* too few coded pairs: every usable sample, as it is */
        accepted = 0;
        for (int64_t i = 0; i < n; i++)
            if (y_f[i] != HUGE_VAL) {
                f.x[accepted] = x[i], f.y[accepted] = y_f[i];
                r.x[accepted] = x_r[i], r.y[accepted++] = y_r[i];
            }
        fewer = f.n = r.n = accepted;
    }

    double from = HUGE_VAL, to = -HUGE_VAL;
    for (int64_t i = 0; i < f.n; i++) {
        from = f.x[i] < from ? f.x[i] : from;
        to = f.x[i] > to ? f.x[i] : to;
    }
    for (int64_t i = 0; i < r.n; i++) {
        from = r.x[i] < from ? r.x[i] : from;
        to = r.x[i] > to ? r.x[i] : to;
    }
    int bins = fewer / BIN_SAMPLES < BINS ? (int)(fewer / BIN_SAMPLES) : BINS;
    struct points p = {.n = 0};
    double slope = 0, per_bin = to > from ? bins / (to - from) : 0;
    int line = bins >= LEAST_POINTS && to - from >= 1000;
    if (line) {
        sort_into_bins(&f, from, per_bin, bins);
        sort_into_bins(&r, from, per_bin, bins);
    }
    for (int round = 0; line && round < 3; round++) {
        points_of(&f, &r, slope, bins, &p);
        line = p.n >= LEAST_POINTS;
        if (line && round < 2)
            slope += slope_of(&p);
        line = line && fabs(slope) <= SLOPE_MOST;
    }

    double at, theta, sigma, slope_sigma = NO_SLOPE_PPB * 1e-9;
    if (line) {
        double excess[BINS], weight[BINS], s0 = excess_of(&p, excess);
        double sw = 0, sx = 0, st = 0;
        for (int i = 0; i < p.n; i++) {
            weight[i] = 1 / (s0 * s0 + excess[i] * excess[i] / 4);
            sw += weight[i];
            sx += weight[i] * p.x[i];
            st += weight[i] * p.theta[i];
        }
        at = sx / sw;
        theta = st / sw;
        double sxx = 0, sxt = 0, rate, step = step_of(&p, excess, s0, &rate);
        for (int i = 0; i < p.n; i++) {
            sxx += weight[i] * (p.x[i] - at) * (p.x[i] - at);
            sxt += weight[i] * (p.x[i] - at) * (p.theta[i] - theta);
        }
        double extra = sxx > 0 ? sxt / sxx : 0, chi = 0;
        for (int i = 0; i < p.n; i++) {
            double off = p.theta[i] - theta - extra * (p.x[i] - at);
            chi += weight[i] * off * off;
        }
        chi = p.n > 2 && chi / (p.n - 2) > 1 ? chi / (p.n - 2) : 1;
        theta += slope * at; /* the points had it taken out */
        sigma = sqrt(chi / sw);
        if (step > 0) {
            sigma = step > sigma ? step : sigma;
            slope = fabs(slope + rate) <= SLOPE_MOST ? slope + rate : 0;
        } else if (sxx > 0 && fabs(slope + extra) <= SLOPE_MOST) {
            slope += extra;
            slope_sigma = sqrt(chi / sxx);
        }
    } else {
        at = x[best];
        theta = (y_f[best] - y_r[best]) / 2;
        sigma = half_trip(trip_least);
        /* a slope that no clock has: not one clock's samples */
        if (fabs(slope) > SLOPE_MOST && sigma < fabs(slope) * (to - from))
            sigma = fabs(slope) * (to - from);
        slope = 0;
    }
    if (10 * left_out > n && sigma < UNTRUSTED_NS)
        sigma = UNTRUSTED_NS;
    if (slope_sigma > NO_SLOPE_PPB * 1e-9)
        slope_sigma = NO_SLOPE_PPB * 1e-9;

    double whole = floor(at);
    *fit = (struct ft_pair_fit){
        .at_ns = (int64_t)((uint64_t)base.sent + (uint64_t)(int64_t)whole),
        .offset_ns = base_theta + (base_rest + theta - slope * (at - whole)),
        .drift_ppb = slope * 1e9,
        .sigma_ns = sigma > LEAST_SIGMA_NS ? sigma : LEAST_SIGMA_NS,
        .drift_sigma_ppb = slope_sigma * 1e9,
        .rtt_min_ns = trip_least,
        .samples = n,
        .accepted = accepted,
    };
    return 1;
}
