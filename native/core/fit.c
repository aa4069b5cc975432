/* Fits the clock line of one pair to one window's samples.
 *
 * Let x be the prober's clock and theta(x) = a + b * x the peer's clock minus the prober's. A sample gives
 *
 *   forward f = t2 - t1 = d_f + q_f + theta + n_f,    reverse r = t4 - t3 = d_r + q_r - theta + n_r
 *
 * with the paths' fixed delays d, queueing q >= 0 and the timestamps' noise n. Queueing only adds, so the lowest
 * readings carry the clocks: with d_f = d_r, theta = (floor of f - floor of r) / 2.
 *
 * 1. A grossly wrong timestamp can be below the floor. Readings far below all others, measured by the distances
 *    of those, are dropped. Coded pairs (Huygens, NSDI'18, section 3) are not used: a pair that was received as
 *    far apart as it was sent is pure, but at 80 % load almost none is, while a single half that met no queue
 *    carries the clocks as well. The lowest readings need no such test.
 * 2. The line of the widest gap between the two clouds (margin.c): slope, floors, margin.
 * 3. If there are many readings without a queue, they form a mode of the noise's width on each floor, and the
 *    lowest of them is its outlier. The line is then the least-squares line through the modes: the mean of all
 *    readings within 2.5 standard deviations of the mode's middle. Mean shift from the bottom finds the mode
 *    (Fukunaga and Hostetler 1975) and adapts its width. A mode has at least MODE readings, twice as many as the
 *    band above, and is symmetric as noise is. Errors follow from the mode's width and number.
 * 4. Otherwise the line of step 2 is the result. Its error is the spread of the lowest few readings. The hull
 *    vertices of both clouds near its slope are part of the result: with a drift from earlier windows, the solver
 *    turns the line about them and gets the exact floors at that drift, as if it had all the samples.
 * 5. A step of a clock within the window shows as one jump between neighbouring minima of up to 16 bins that
 *    the rest does not explain. A small one shows as a line with one step that fits far better than a straight
 *    line. The standard error then becomes the whole range or the step, and the slope is unknown. A possible step
 *    widens the errors of step 4. The errors of step 3 grow with the differences between parts of the window
 *    beyond their noise (batch means).
 * 6. Timestamps in steps: the noise is at least that of rounding, and readings with few values have no shape.
 *
 * If there are too few samples for a line, the one with the smallest round trip gives the offset, and half of
 * that round trip is the error. Impossible timestamps (another epoch, negative round trips) are dropped. If they
 * are more than a tenth, the window is not trusted and the error is a second.
 *
 * Numbers: timestamps and clock differences reach 1e18 ns, so the median of each is subtracted in integers first. */
#include "margin.h"
#include "select.h"
#include "wide.h"
#include "window.h"

#include <math.h>
#include <string.h>

#define BINS           16
#define BIN_SAMPLES    8    /* of the poorer direction, in the mean */
#define MIN_POINTS     4    /* for a line */
#define MAX_SPAN_NS    60e9 /* stamps further from the median than this are of another clock */
#define MAX_STEP_NS    1e9  /* the same for clock differences */
#define MAX_RTT_NS     10e9
#define MAX_SLOPE      1e-3
#define NO_SLOPE_PPB   1e6
#define UNTRUSTED_NS   1e9
#define MIN_SIGMA_NS   0.5
#define PROBED         31  /* samples that the medians are taken of */
#define STEP_SURE      6.0 /* standard errors */
#define STEP_DOUBT     4.0
#define MODE           16 /* readings on a floor that make a hill */
#define MODE_SIGMAS    2.5
#define BATCHES        8
#define MODE_SHRINK    1.0476 /* standard deviation of a normal over that of its part within 2.5 of them */
#define ROUNDS         24     /* of mean shift */
#define CAP            24     /* times its foot's height: range in which a mode is searched */
#define MAX_CLIMB      2.5    /* times the usual value */
#define ROUNDED        1.3    /* times rounding's own width: that of hills without a shape */
#define SIMILAR        1.6    /* widths of the two hills, one over the other */
#define UNLIKE         3.0
#define MIN_SHAPE      -2 /* of one hill, where the other's makes up for it */
#define LOWEST         8  /* readings whose heights show how well a floor is known */
#define WRONG          3  /* wrong stamps a direction that a window may hold */
#define WRONG_GAPS     10.0
#define CORNERS_SIGMAS 6.0
#define MIN_VERTICES   100e-9 /* slope either way within which corners are handed on */
#define CORNERS_FREE   100e-6 /* the same without a line */

static double half_trip(double rtt) {
    return rtt / 2 > MIN_SIGMA_NS ? rtt / 2 : MIN_SIGMA_NS;
}

static void sort_longs(int64_t *v, int n) {
    for (int i = 1; i < n; i++) {
        int64_t value = v[i];
        int j = i;
        for (; j > 0 && v[j - 1] > value; j--) v[j] = v[j - 1];
        v[j] = value;
    }
}

struct bases {
    int64_t sent, forward, reverse;
    double grain; /* the noise that rounding alone makes, of a one-way reading */
};

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

static uint64_t distance(int64_t a, int64_t b) {
    return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

/* Medians of up to PROBED samples spread over the chain. If both clocks count in the same steps, their
 * differences are multiples of it, and a reading has two roundings: step / sqrt(6) rms. Between clocks with
 * little drift these take only two values, of which the mean is correct and neither value is. */
static struct bases bases_of(const struct ft_window *w, const struct ft_chain *chain) {
    int64_t sent[PROBED], forward[PROBED], reverse[PROBED];
    int64_t every = chain->samples / PROBED + 1, skip = every / 2;
    int n = 0;
    if (skip >= chain->samples) skip = 0;
    for (int64_t at = chain->first; at >= 0; at = w->pieces[at].next_of_peer) {
        const struct ft_piece *p = &w->pieces[at];
        for (; skip < p->n && n < PROBED; skip += every, n++) {
            sent[n] = p->sent[skip];
            forward[n] = p->forward[skip];
            reverse[n] = p->reverse[skip];
        }
        skip -= p->n;
    }
    uint64_t step = 0, of_sent = 0;
    for (int i = 1; i < n && step != 1; i++) {
        step = common_divisor(distance(forward[i], forward[0]), step);
        step = common_divisor(distance(reverse[i], reverse[0]), step);
        of_sent = of_sent == 1 ? 1 : common_divisor(distance(sent[i], sent[0]), of_sent);
    }
    step = step == 0 ? of_sent : step; /* all readings are similar */
    sort_longs(sent, n);
    sort_longs(forward, n);
    sort_longs(reverse, n);
    double grain = step < MAX_STEP_NS ? (double)step / 2.449 : 0;
    return (struct bases){sent[n / 2], forward[n / 2], reverse[n / 2], fmax(grain, MIN_SIGMA_NS)};
}

struct minima {
    double x[BINS], y[BINS]; /* y with the slope taken out; HUGE_VAL: empty */
};

static void minima_of(const struct ft_cloud *c, double slope, double from, double per_bin, int bins,
                      struct minima *out) {
    double begin = HUGE_VAL, end = -HUGE_VAL, low = HUGE_VAL, at = 0;
    int k = 0;
    for (int j = 0; j < bins; j++) out->y[j] = HUGE_VAL;
    for (int64_t i = 0; i < c->n; i++) {
        double x = c->x[i], y = c->y[i] - slope * x;
        if (!(x >= begin && x < end)) { /* samples come in runs of one bin */
            out->y[k] = low, out->x[k] = at;
            k = (int)((x - from) * per_bin);
            k = k < bins ? k : bins - 1;
            begin = from + k / per_bin;
            end = k < bins - 1 ? from + (k + 1) / per_bin : HUGE_VAL;
            low = out->y[k], at = out->x[k];
        }
        if (y < low) low = y, at = x;
    }
    out->y[k] = low, out->x[k] = at;
}

/* Points of the line: theta less slope * x at x, and the sum of both minima. */
struct points {
    double x[BINS], theta[BINS], trip[BINS];
    int n;
};

static void points_of(const struct ft_cloud *f, const struct ft_cloud *r, double slope, double from,
                      double per_bin, int bins, struct points *out) {
    struct minima lf, lr;
    minima_of(f, slope, from, per_bin, bins, &lf);
    minima_of(r, -slope, from, per_bin, bins, &lr);
    out->n = 0;
    for (int k = 0; k < bins; k++) {
        if (lf.y[k] == HUGE_VAL || lr.y[k] == HUGE_VAL) continue;
        out->x[out->n] = (lf.x[k] + lr.x[k]) / 2;
        out->theta[out->n] = (lf.y[k] - lr.y[k]) / 2;
        out->trip[out->n++] = lf.y[k] + lr.y[k];
    }
}

static double median(double *values, int n) {
    return ft_select(values, n, n / 2);
}

/* Height of each point's trip above a quiet one's: the `rank`-th lowest. The least is never used: a step's
 * bin takes each direction from another side. Returns the noise that trips betray: half their quartiles'
 * distance. */
static double excess_of(const struct points *p, int rank, double grain, double excess[BINS]) {
    double sorted[BINS];
    memcpy(sorted, p->trip, (size_t)p->n * sizeof *sorted);
    double quiet = ft_select(sorted, p->n, rank);
    double low = ft_select(sorted, p->n, p->n / 4), high = ft_select(sorted, p->n, 3 * p->n / 4);
    for (int k = 0; k < p->n; k++) excess[k] = p->trip[k] > quiet ? p->trip[k] - quiet : 0;
    double s0 = (high - low) / 2;
    return fmax(s0, fmax(grain / 2, MIN_SIGMA_NS));
}

/* Range of the points where some jump between neighbours is more than their usual scatter and their excess
 * explain; 0 where none is. The rate between neighbours (its median, in *rate) is taken out of both: unlike a
 * line's slope it does not follow a step. */
static double step_of(const struct points *p, const double excess[BINS], double s0, double *rate) {
    double rates[BINS], sizes[BINS], lowest = p->theta[0], highest = lowest;
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
        lowest = height < lowest ? height : lowest;
        highest = height > highest ? height : highest;
    }
    return found ? highest - lowest : 0;
}

/* A step too small to stand out between neighbours: the line that may step once, by least squares, over the
 * straight one. Takes the split that explains most; its size, and in *sureness how many of its standard errors
 * that is. (Straight through 16 points, the best of 13 splits reaches 4 in 2 % and 6 in 0.1 % of windows.) */
static double small_step_of(const struct points *p, const double excess[BINS], double s0, double *sureness) {
    double w[BINS], x[BINS], y[BINS], sw = 0, sx = 0, sy = 0, sxx = 0, sxy = 0, rest = 0, best = 0, size = 0;
    int split = 0;
    *sureness = 0;
    if (p->n < 6) return 0;
    for (int k = 0; k < p->n; k++) {
        w[k] = 1 / (s0 * s0 + excess[k] * excess[k] / 4);
        sw += w[k], sx += w[k] * p->x[k], sy += w[k] * p->theta[k];
    }
    for (int k = 0; k < p->n; k++) {
        x[k] = p->x[k] - sx / sw, y[k] = p->theta[k] - sy / sw;
        sxx += w[k] * x[k] * x[k], sxy += w[k] * x[k] * y[k];
    }
    if (!(sxx > 0)) return 0;
    for (int k = 0; k < p->n; k++) {
        y[k] -= sxy / sxx * x[k];
        rest += w[k] * y[k] * y[k];
    }
    /* the split's own indicator, less its mean and slope: the part that a straight line cannot follow */
    double later = sw, later_x = 0, later_y = 0;
    for (int k = 0; k < p->n - 2; k++) {
        later -= w[k], later_x -= w[k] * x[k], later_y -= w[k] * y[k];
        double own = later - later * later / sw - later_x * later_x / sxx;
        if (k < 1 || !(own > 1e-6 * sw)) continue;
        double explained = later_y * later_y / own;
        if (explained > best) best = explained, size = fabs(later_y / own), split = k + 1;
    }
    /* a step leaves round trips unchanged; a queue that begins or ends changes them by twice the change of
     * theta */
    double trips[BINS];
    memcpy(trips, p->trip, (size_t)p->n * sizeof *trips);
    if (split > 0 && fabs(median(trips + split, p->n - split) - median(trips, split)) > size) return 0;
    *sureness = sqrt(best / fmax((rest - best) / (p->n - 3), 1));
    return size;
}

static double add_bases(int64_t a, int64_t b) {
    __extension__ typedef __int128 wide;
    return (double)((wide)a + (wide)b);
}

/* (a - b) / 2: its whole part; the rest of 0, 0.5 or -0.5 in *rest. */
static int64_t half_difference(int64_t a, int64_t b, double *rest) {
    __extension__ typedef __int128 wide;
    wide d = (wide)a - (wide)b;
    *rest = (double)(int)(d % 2) / 2;
    return (int64_t)(d / 2);
}

/* The hill of readings on one floor: heights above the cloud's lowest line. */
struct mode {
    double middle, width, slack, shape;
    double lifted; /* by the queueing, at most */
    int lumpy;     /* a few steps of the clock */
};

/* The `limit` least heights above the line, ascending; returns how many there are. */
FT_WIDE static int lowest_heights(const struct ft_cloud *c, double slope, double floor, int limit,
                                  double *lowest) {
    const int step = 4 * FT_SIMD_WIDTH;
    int n = 0;
    double bar = HUGE_VAL;
    for (int64_t i = 0; i < c->n; i += step) {
        int64_t end = i + step < c->n ? i + step : c->n;
        if (end == i + step && n == limit) {
            ft_whole any = {0};
            for (int64_t j = i; j < end; j += FT_SIMD_WIDTH)
                any |= FT_LOAD(c->y + j) - slope * FT_LOAD(c->x + j) - floor < bar;
            if (!FT_ANY(any)) continue;
        }
        for (int64_t j = i; j < end; j++) {
            double h = c->y[j] - slope * c->x[j] - floor;
            if (h >= bar) continue;
            int k = n < limit ? n++ : limit - 1;
            for (; k > 0 && lowest[k - 1] > h; k--) lowest[k] = lowest[k - 1];
            lowest[k] = h;
            if (n == limit) bar = lowest[limit - 1];
        }
    }
    return n;
}

/* Readings that may belong to a hill: x and height. Lanes beyond the last hold nothing. */
struct readings {
    double *x, *h;
    int64_t n;
};

/* Take the readings up to `cap` above the line. */
static void take_below(const struct ft_cloud *c, double slope, double floor, double cap,
                       struct readings *out) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        double x = c->x[i], h = c->y[i] - slope * x - floor;
        out->h[n] = h;
        out->x[n] = x;
        n += h <= cap;
    }
    for (int k = 0; k < FT_SIMD_WIDTH; k++) out->h[n + k] = HUGE_VAL, out->x[n + k] = 0;
    out->n = n;
}

/* Powers of (h - middle) / width, summed over the readings within HILL_SIGMAS; and the number of those in the
 * two bands above. */
struct powers {
    double n, one, two, three, above;
};

FT_WIDE static struct powers powers_of(const struct readings *r, double middle, double width, int all) {
    ft_wide one = {0}, two = {0}, three = {0};
    ft_whole n = {0}, above = {0};
    double scale = 1 / width;
    for (int64_t i = 0; i < r->n; i += FT_SIMD_WIDTH) {
        ft_wide off = (FT_LOAD(r->h + i) - middle) * scale;
        ft_whole in = FT_SIZE(off) <= MODE_SIGMAS;
        ft_wide inside = FT_KEEP(in, off), square = inside * inside;
        n -= in;
        one += inside;
        two += square;
        if (all) {
            three += square * inside;
            above -= (off > MODE_SIGMAS) & (off <= 3 * MODE_SIGMAS);
        }
    }
    return (struct powers){(double)FT_SUM(n), FT_SUM(one), FT_SUM(two), FT_SUM(three), (double)FT_SUM(above)};
}

/* Height of the middle of a mode of n normal readings above its eighth-lowest one, within some percent. A
 * much higher one is the bulk of queued readings, not its foot. */
static double climb(double n) {
    return 1 + log(fmax(n / 12, 1));
}

/* Find the mode by mean shift from the bottom. `readings` receives the candidates. Returns 0 if there is
 * none. */
static int find_mode(const struct ft_cloud *c, double slope, double floor, const double *lowest, double grain,
                     struct readings *readings, struct mode *mode) {
    double start = fmax(lowest[LOWEST - 1], grain);
    double middle = start, width = start / 1.5, cap = 0, max_middle = MAX_CLIMB * start * climb((double)c->n);
    for (int round = 0; round < ROUNDS; round++) {
        if (middle + 3 * MODE_SIGMAS * width >
            cap) { /* at first, and where the foot was finer than the hill */
            cap = CAP * fmax(middle, width);
            take_below(c, slope, floor, cap, readings);
        }
        struct powers p = powers_of(readings, middle, width, 0);
        if (p.n < MODE) return 0;
        double shift = p.one / p.n, variance = p.two / p.n - shift * shift;
        double next = fmax(MODE_SHRINK * sqrt(fmax(variance, 0)) * width, grain);
        middle += shift * width;
        int still = fabs(shift) < 0.02 && fabs(next - width) < 0.02 * width;
        width = next;
        if (still) break;
        if (middle > max_middle) return 0;
    }
    struct powers p = powers_of(readings, middle, width, 1);
    if (p.n < MODE || p.n < 2 * p.above) return 0;
    /* Noise is symmetric, and its lowest of n readings is far below the middle: some sqrt(2 ln n) widths for
     * normal noise and 2.4 for rounding. Queued or late readings have a steep near edge and a tail above.
     * Each sign alone is weak for a few dozen readings. They are weighed together, each in its own scatter,
     * from the middle between normal noise and one or two exponentials. */
    double s1 = p.one / p.n, s2 = p.two / p.n - s1 * s1, s3 = p.three / p.n - 3 * s1 * s2 - s1 * s1 * s1;
    double skew = s3 / (s2 * sqrt(s2)) * sqrt(p.n / 6), deep = middle / width;
    double usual = fmin(0.65 * sqrt(2 * log(p.n)) - 0.15, 1.95);
    double shape = (deep - usual) / 0.2 - (skew - 0.2 * sqrt(p.n / 6)) / 0.6;
    int lumpy = grain > MIN_SIGMA_NS && width <= ROUNDED * grain;
    if (lumpy) shape = fmax(shape, 0.1); /* a few steps of the clock have no shape */
    /* The mean of the readings within k widths of itself, iterated, follows the readings at both edges as
     * well (the "Huber skip"). Its standard error is that of a mean times sqrt(t) / (t - k * e), with t = 0.9
     * the variance inside for a normal, and e the density of the edge beyond the normal's, here that of the
     * band's upper edge. */
    double density = p.above / (2 * MODE_SIGMAS * p.n);
    double gain = 0.9 - MODE_SIGMAS * density;
    /* that density, were it the same from the floor on, blurred like the hill itself, lifts the mean by its first
     * moment: the integral of z * Phi(z) over +-2.5 */
    *mode = (struct mode){middle, width, 0.95 / gain, shape, 2.64 * density * width / gain, lumpy};
    return middle <= MAX_CLIMB * climb(p.n) * start;
}

struct line {
    double at, theta, slope, sigma, slope_sigma, noise, margin;
    int64_t used;
};

/* Means of the readings of one hill, heights from its middle with the slope changed by `cycle`, and their sums of
 * squares about these. */
struct sums {
    double n, x, h, xx, xh, hh;
};

FT_WIDE static struct sums sums_of(const struct readings *r, const struct mode *mode, double cycle,
                                   double about) {
    ft_wide x1 = {0}, h1 = {0}, xx = {0}, xh = {0}, hh = {0};
    ft_whole n = {0};
    double reach = MODE_SIGMAS * mode->width, middle = mode->middle;
    for (int64_t i = 0; i < r->n; i += FT_SIMD_WIDTH) {
        ft_wide x = FT_LOAD(r->x + i), off = FT_LOAD(r->h + i) - cycle * x - middle;
        ft_whole in = FT_SIZE(off) <= reach;
        x = FT_KEEP(in, x - about);
        off = FT_KEEP(in, off);
        n -= in;
        x1 += x;
        h1 += off;
        xx += x * x;
        xh += x * off;
        hh += off * off;
    }
    struct sums s = {(double)FT_SUM(n), FT_SUM(x1), FT_SUM(h1), FT_SUM(xx), FT_SUM(xh), FT_SUM(hh)};
    if (s.n > 0) {
        s.xx -= s.x * s.x / s.n;
        s.xh -= s.x * s.h / s.n;
        s.hh = fmax(s.hh - s.h * s.h / s.n, 0);
        s.x = about + s.x / s.n;
        s.h /= s.n;
    }
    return s;
}

/* Means of the hill's readings by time, in BATCHES equal parts of from..to. */
struct batches {
    double n[BATCHES], h[BATCHES];
};

static void batches_of(const struct readings *r, const struct mode *mode, double cycle, double from,
                       double to, struct batches *out) {
    double per_ns = BATCHES / (to - from), reach = MODE_SIGMAS * mode->width;
    *out = (struct batches){0};
    for (int64_t i = 0; i < r->n; i++) {
        double off = r->h[i] - cycle * r->x[i] - mode->middle;
        if (fabs(off) > reach) continue;
        int k = (int)((r->x[i] - from) * per_ns);
        k = k < BATCHES ? k : BATCHES - 1;
        out->n[k]++;
        out->h[k] += off;
    }
    for (int k = 0; k < BATCHES; k++) out->h[k] /= fmax(out->n[k], 1);
}

/* Factor of the standard errors over those of independent readings, by the method of batch means: the
 * residual of theta in each part of the window against the value that its number of readings explains. A
 * clock that wanders and delays that come in bursts show this way. The expectation counts as three parts
 * more. */
static double spells_of(const struct readings *of_f, const struct readings *of_r, const struct mode *on_f,
                        const struct mode *on_r, double cycle, double from, double to) {
    struct batches f, r;
    double squares = 0;
    int parts = 0;
    batches_of(of_f, on_f, cycle, from, to, &f);
    batches_of(of_r, on_r, -cycle, from, to, &r);
    double vf = pow(on_f->slack * on_f->width, 2), vr = pow(on_r->slack * on_r->width, 2);
    for (int k = 0; k < BATCHES; k++) {
        if (f.n[k] == 0 || r.n[k] == 0) continue;
        double off = f.h[k] - r.h[k];
        squares += off * off / (vf / f.n[k] + vr / r.n[k]);
        parts++;
    }
    return parts > 2 ? sqrt(fmax((squares + 3) / (parts - 2 + 3), 1)) : 1;
}

/* Least squares through both modes, one slope and two heights; returns 0 without modes. `workspace` holds
 * twice both clouds, and the SIMD width. */
static int through_hills(const struct ft_cloud *f, const struct ft_cloud *r, struct ft_gap gap, double from,
                         double to, const double *min_forward, const double *min_reverse, double grain,
                         double *workspace, struct line *line) {
    int64_t nf = f->n + FT_SIMD_WIDTH, nr = r->n + FT_SIMD_WIDTH;
    struct readings of_f = {workspace, workspace + nf, 0},
                    of_r = {workspace + 2 * nf, workspace + 2 * nf + nr, 0};
    struct mode on_f, on_r;
    double cycle = 0, about = (from + to) / 2;
    if (!find_mode(f, gap.slope, gap.forward, min_forward, grain, &of_f, &on_f) ||
        !find_mode(r, -gap.slope, gap.reverse, min_reverse, grain, &of_r, &on_r))
        return 0;
    /* Both directions have the noise of the same two clocks' timestamps: if one mode's shape is ambiguous,
     * the other's may decide, if both are similar. If one is much wider, it is not noise. */
    double wider = fmax(on_f.width, on_r.width) / fmin(on_f.width, on_r.width);
    double min_shape = fmin(on_f.shape, on_r.shape), shapes = on_f.shape + on_r.shape;
    if (!(shapes > 0 && min_shape > (wider < SIMILAR ? MIN_SHAPE : 0) && wider < UNLIKE)) return 0;
    struct sums a = {0}, b = {0};
    double information = 0;
    for (int round = 0; round < 3; round++) {
        a = sums_of(&of_f, &on_f, cycle, about);
        b = sums_of(&of_r, &on_r, -cycle, about);
        if (a.n < MODE || b.n < MODE || !(a.xx > 0) || !(b.xx > 0)) return 0;
        on_f.width = fmax(MODE_SHRINK * sqrt(a.hh / a.n), grain);
        on_r.width = fmax(MODE_SHRINK * sqrt(b.hh / b.n), grain);
        double wf = 1 / (on_f.width * on_f.width), wr = 1 / (on_r.width * on_r.width);
        information = wf * a.xx + wr * b.xx;
        double more = (wf * a.xh - wr * b.xh) / information;
        /* the modes' middles at their own mean x stay fixed while the slope turns */
        on_f.middle += a.h - more * a.x;
        on_r.middle += b.h + more * b.x;
        cycle += more;
    }
    double slope = gap.slope + cycle;
    double floor_f = gap.forward + on_f.middle + slope * a.x,
           floor_r = gap.reverse + on_r.middle - slope * b.x;
    double variance_f = on_f.slack * on_f.slack * on_f.width * on_f.width / a.n;
    double variance_r = on_r.slack * on_r.slack * on_r.width * on_r.width / b.n;
    /* queues raise both floors, theta only by half of the difference; on a few steps of the clocks the
     * queueing is arbitrary */
    double lifted_f = on_f.lifted, lifted_r = on_r.lifted, apart = lifted_f - lifted_r;
    double lifted = on_f.lumpy | on_r.lumpy ? lifted_f * lifted_f + lifted_r * lifted_r : apart * apart;
    double spells = spells_of(&of_f, &of_r, &on_f, &on_r, cycle, from, to);
    *line = (struct line){
        .at = (a.x + b.x) / 2,
        .theta = (floor_f - floor_r) / 2,
        .slope = slope,
        .sigma = sqrt(spells * spells * (variance_f + variance_r) + lifted) / 2,
        .slope_sigma = spells * fmax(on_f.slack, on_r.slack) / sqrt(information),
        .noise = sqrt((on_f.width * on_f.width + on_r.width * on_r.width) / 2),
        .margin = floor_f + floor_r - slope * (a.x - b.x),
        .used = (int64_t)((a.n + b.n) / 2),
    };
    return 1;
}

/* The line of the widest gap. A floor is known as well as its lowest readings agree. It is above the path's
 * own floor by about as much, in both directions alike unless one is much busier. Rounding raises it by up to
 * a step: on both sides alike, as far as drift carries the readings across several steps. */
static struct line through_gap(struct ft_gap gap, double from, double to, const double *min_forward,
                               const double *min_reverse, double grain) {
    double f = min_forward[LOWEST - 1], r = min_reverse[LOWEST - 1], at = (from + to) / 2;
    double rounding = grain * fmin(0.5, 0.12 + 2.5 * grain / (fabs(gap.slope) * (to - from)));
    double busier = 0.6 * fmax(fabs(f - r) - (f + r) / 4, 0);
    double scatter = (f * f + r * r) / 16 + rounding * rounding;
    double sigma = fmax(sqrt(scatter + busier * busier), MIN_SIGMA_NS);
    return (struct line){
        .at = at,
        .theta = (gap.forward - gap.reverse) / 2 + gap.slope * at,
        .slope = gap.slope,
        .sigma = sigma,
        .slope_sigma = 3.5 * fmax(sqrt(scatter), MIN_SIGMA_NS) / (to - from),
        .noise = 0,
        .margin = gap.forward + gap.reverse,
    };
}

/* Drop wrong timestamps below all others: up to WRONG readings of which the highest is WRONG_GAPS times as
 * far below the next one as the six above are apart. (Spacings of a true floor are similar: a chance of
 * 1e-6.) Returns the number dropped; `lowest` receives the lowest heights. */
static int without_wrong(struct ft_cloud *c, double slope, double floor, double lowest[LOWEST + WRONG]) {
    int n = lowest_heights(c, slope, floor, LOWEST + WRONG, lowest), wrong = 0;
    for (int k = 1; k <= WRONG && k + LOWEST <= n; k++)
        if (lowest[k] - lowest[k - 1] > WRONG_GAPS * fmax(lowest[k + LOWEST - 2] - lowest[k], MIN_SIGMA_NS))
            wrong = k;
    if (!wrong) return 0;
    double bar = lowest[wrong];
    int64_t k = 0;
    for (int64_t i = 0; i < c->n; i++) {
        double x = c->x[i], y = c->y[i];
        c->x[k] = x, c->y[k] = y;
        k += y - slope * x - floor >= bar;
    }
    c->n = k;
    return wrong;
}

static int pass_on(const struct ft_cloud *c, double sign, const struct line *line, double around, double half,
                   double whole, double *workspace, int64_t after_ns[FT_CORNERS],
                   double delay_ns[FT_CORNERS]) {
    double x[FT_CORNERS], y[FT_CORNERS];
    int n = ft_corners(c, sign * line->slope, around, workspace, x, y);
    for (int k = 0; k < n; k++) {
        double after = x[k] - whole;
        after_ns[k] = (int64_t)llrint(after);
        delay_ns[k] = half + y[k] - sign * (line->theta + line->slope * (x[k] - line->at));
    }
    return n;
}

/* The common state of a pair's gathered samples. */
struct gathered {
    struct ft_cloud f, r;
    double from, to, min_round_trip;
};

/* Whole numbers of less than 2^51 as doubles: they are put into the low bits of 1.5 * 2^52. */
#define MAGIC       0x4338000000000000
#define REAL(whole) ((ft_wide)((whole) + MAGIC) - 6755399441055744.0)

/* Append the usable of `n` samples to both clouds, which have capacity for the SIMD width beyond. Differences
 * are taken modulo 2^64, so that a counter may wrap. */
FT_WIDE static void gather(const struct ft_piece *p, const struct bases *base, double base_trip,
                           struct gathered *out) {
    int64_t rest[4][FT_SIMD_WIDTH];
    const int64_t span = (int64_t)MAX_SPAN_NS, max_step = (int64_t)MAX_STEP_NS;
    double *fx = out->f.x, *fy = out->f.y, *rx = out->r.x, *ry = out->r.y;
    ft_wide from = FT_ALL(out->from), to = FT_ALL(out->to), shortest = FT_ALL(out->min_round_trip);
    int64_t n = out->f.n;
    for (int64_t i = 0; i < p->n; i += FT_SIMD_WIDTH) {
        const int64_t *sent = p->sent + i, *forward = p->forward + i, *turnaround = p->turnaround + i;
        const int64_t *reverse = p->reverse + i;
        if (i + FT_SIMD_WIDTH > p->n) {
            for (int k = 0; k < FT_SIMD_WIDTH; k++) { /* missing values are made unusable */
                int there = i + k < p->n;
                rest[0][k] = there ? sent[k] : (int64_t)((uint64_t)base->sent + ((uint64_t)1 << 63));
                rest[1][k] = there ? forward[k] : 0;
                rest[2][k] = there ? turnaround[k] : 0;
                rest[3][k] = there ? reverse[k] : 0;
            }
            sent = rest[0], forward = rest[1], turnaround = rest[2], reverse = rest[3];
        }
        ft_count s = (ft_count)FT_LOAD_WHOLE(sent) - (uint64_t)base->sent;
        ft_count f = (ft_count)FT_LOAD_WHOLE(forward) - (uint64_t)base->forward;
        ft_count r = (ft_count)FT_LOAD_WHOLE(reverse) - (uint64_t)base->reverse;
        ft_whole t = FT_LOAD_WHOLE(turnaround);
        ft_whole usable = ((ft_whole)s >= -span) & ((ft_whole)s <= span) & ((ft_whole)f >= -max_step) &
                          ((ft_whole)f <= max_step) & ((ft_whole)r >= -max_step) & ((ft_whole)r <= max_step);
        ft_wide df = REAL(f), dr = REAL(r), trip = df + dr + base_trip;
        usable &= (trip >= 0) & (trip <= MAX_RTT_NS);
        /* theta as of the peer's stamp: half a round trip after t1, and its turnaround later */
        ft_wide x = REAL(s) + trip * 0.5, later = x + FT_KEEP((t >= 0) & (t <= max_step), REAL((ft_count)t));
        FT_STORE(fx + n, x);
        FT_STORE(fy + n, df);
        FT_STORE(rx + n, later);
        FT_STORE(ry + n, dr);
        from = FT_PICK(usable & (x < from), x, from);
        to = FT_PICK(usable & (later > to), later, to);
        shortest = FT_PICK(usable & (trip < shortest), trip, shortest);
        if (!FT_ANY(~usable)) {
            n += FT_SIMD_WIDTH;
            continue;
        }
        for (int64_t k = 0, first = n; k < FT_SIMD_WIDTH; k++) {
            fx[n] = fx[first + k], fy[n] = fy[first + k], rx[n] = rx[first + k], ry[n] = ry[first + k];
            n -= usable[k];
        }
    }
    out->f.n = out->r.n = n;
    for (int k = 0; k < FT_SIMD_WIDTH; k++) {
        out->from = fmin(out->from, from[k]);
        out->to = fmax(out->to, to[k]);
        out->min_round_trip = fmin(out->min_round_trip, shortest[k]);
    }
}

int ft_fit(struct ft_window *w, const struct ft_chain *chain, struct ft_pair_fit *fit) {
    int64_t n = chain->samples;
    if (n == 0) return 0;
    int64_t each = n + FT_SIMD_WIDTH;
    double *scratch = ft_window_scratch(w, 8 * each);
    if (scratch == NULL) return -1;
    double *workspace = scratch + 4 * each;

    struct bases base = bases_of(w, chain);
    double base_trip = add_bases(base.forward, base.reverse), base_rest;
    int64_t base_theta = half_difference(base.forward, base.reverse, &base_rest);
    struct gathered all = {{scratch, scratch + each, 0},
                           {scratch + 2 * each, scratch + 3 * each, 0},
                           HUGE_VAL,
                           -HUGE_VAL,
                           HUGE_VAL};
    for (int64_t at = chain->first; at >= 0; at = w->pieces[at].next_of_peer)
        gather(&w->pieces[at], &base, base_trip, &all);
    struct ft_cloud f = all.f, r = all.r;
    if (f.n == 0) return 0;
    double from = all.from, to = all.to, min_round_trip = all.min_round_trip;
    int64_t best = 0;
    while (best < f.n - 1 && f.y[best] + r.y[best] + base_trip > min_round_trip) best++;
    int64_t left_out = n - f.n, accepted = f.n;
    double best_x = f.x[best], best_theta = (f.y[best] - r.y[best]) / 2;

    int64_t fewer = f.n < r.n ? f.n : r.n;
    int bins = fewer / BIN_SAMPLES < BINS ? (int)(fewer / BIN_SAMPLES) : BINS, few = 1;
    struct line line = {.slope_sigma = NO_SLOPE_PPB * 1e-9};
    double step = 0, wrong_slope = 0, around = 0;
    if (bins >= MIN_POINTS && to - from >= 1000) {
        struct points p;
        double excess[BINS], min_forward[LOWEST + WRONG], min_reverse[LOWEST + WRONG];
        struct ft_gap gap = ft_widest_gap(&f, &r, MAX_SLOPE, workspace);
        if (without_wrong(&f, gap.slope, gap.forward, min_forward) +
            without_wrong(&r, -gap.slope, gap.reverse, min_reverse)) {
            gap = ft_widest_gap(&f, &r, MAX_SLOPE, workspace);
            lowest_heights(&f, gap.slope, gap.forward, LOWEST, min_forward);
            lowest_heights(&r, -gap.slope, gap.reverse, LOWEST, min_reverse);
        }
        points_of(&f, &r, gap.slope, from, bins / (to - from), bins, &p);
        few = p.n < MIN_POINTS;
        if (!few) {
            double s0 = excess_of(&p, p.n / 4, base.grain, excess), rate;
            double sureness, small = small_step_of(&p, excess, s0, &sureness);
            excess_of(&p, 1, base.grain, excess); /* a queue that came with most of the window is no step */
            step = step_of(&p, excess, s0, &rate);
            if (step == 0 && sureness > STEP_SURE) step = small;
            if (step > 0) {
                line = through_gap(gap, from, to, min_forward, min_reverse, base.grain);
                line.theta = 0;
                for (int i = 0; i < p.n; i++) line.theta += p.theta[i] / p.n;
                line.theta += gap.slope * line.at;
                line.sigma = step > line.sigma ? step : line.sigma;
                line.slope = fabs(gap.slope + rate) <= MAX_SLOPE ? gap.slope + rate : 0;
                line.slope_sigma = NO_SLOPE_PPB * 1e-9;
            } else {
                struct line hills;
                line = through_gap(gap, from, to, min_forward, min_reverse, base.grain);
                if (through_hills(&f, &r, gap, from, to, min_forward, min_reverse, base.grain, workspace,
                                  &hills) &&
                    hills.sigma < line.sigma) {
                    line = hills;
                    accepted = line.used;
                } else {
                    if (sureness > STEP_DOUBT) {
                        line.sigma = fmax(line.sigma, small / 2);
                        line.slope_sigma = fmax(line.slope_sigma, 2 * small / (to - from));
                    }
                    around = fmax(CORNERS_SIGMAS * line.slope_sigma, MIN_VERTICES);
                }
            }
            /* a slope that no clock has: not one clock's samples */
            if (fabs(line.slope) >= MAX_SLOPE) {
                wrong_slope = fabs(line.slope);
                few = 1;
            }
        }
    }
    if (few) {
        line = (struct line){.at = best_x,
                             .theta = best_theta,
                             .sigma = half_trip(min_round_trip),
                             .slope_sigma = NO_SLOPE_PPB * 1e-9,
                             .margin = 0};
        if (wrong_slope > 0)
            line.sigma = fmax(line.sigma, wrong_slope * (to - from));
        else
            around = CORNERS_FREE;
        line.margin = min_round_trip - base_trip;
    }
    if (10 * left_out > n) {
        line.sigma = fmax(line.sigma, UNTRUSTED_NS);
        around = 0;
    }

    double whole = floor(line.at);
    double rest = base_rest + line.theta - line.slope * (line.at - whole), whole_rest = nearbyint(rest);
    *fit = (struct ft_pair_fit){
        .at_ns = (int64_t)((uint64_t)base.sent + (uint64_t)(int64_t)whole),
        .offset_ns = (int64_t)((uint64_t)base_theta + (uint64_t)(int64_t)whole_rest),
        .offset_fraction_ns = rest - whole_rest,
        .drift_ppb = line.slope * 1e9,
        .sigma_ns = fmax(line.sigma, MIN_SIGMA_NS),
        .drift_sigma_ppb = fmin(line.slope_sigma * 1e9, NO_SLOPE_PPB),
        .rtt_min_ns = min_round_trip,
        .margin_ns = fmax(line.margin + base_trip, 0),
        .noise_ns = line.noise,
        .samples = n,
        .accepted = accepted,
    };
    if (around > 0) {
        fit->forward_corners = pass_on(&f, 1, &line, around, base_trip / 2, whole, workspace,
                                       fit->forward_after_ns, fit->forward_delay_ns);
        fit->reverse_corners = pass_on(&r, -1, &line, around, base_trip / 2, whole, workspace,
                                       fit->reverse_after_ns, fit->reverse_delay_ns);
    }
    return 1;
}
