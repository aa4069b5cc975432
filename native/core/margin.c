/* The widest gap between two clouds of points: the maximum-margin line in one dimension.
 *
 * Clouds: forward readings y_f = theta(x) + delay and reverse readings y_r = -theta(x) + delay, delays >= 0. A
 * line theta = a + b x lies below the one and, mirrored, below the other. The gap between them is
 *
 *   m(b) = F(b) + R(b),   F(b) = min_i (y_f,i - b x_f,i),   R(b) = min_j (y_r,j + b x_r,j),
 *
 * and the separating line of the widest gap (a support vector machine's, whose margin is measured along y
 * instead of across: slopes are below 1e-3, so that both agree to 1e-6) has the slope that maximises m.
 *
 * F and R are the support functions of the clouds' lower convex hulls: concave and piecewise linear in b, a
 * piece a corner. So is m, and its maximum is found exactly by cutting (Kelley 1960; in one dimension): the
 * corners that decide m at a slope give a straight line above all of m; a line that rises and one that falls
 * cross above the maximum; where m reaches the crossing, it is the maximum. A step costs one pass over the
 * points and ends at another corner of a hull.
 *
 * Once there is a cut on either side, only corners between the two touching points of each cloud can still
 * decide, and they all lie below the chord of these two (quickhull's argument: a point's value is linear in b
 * and above both cuts at their slopes, so that it can only dip below the lower of them if it does so where they
 * cross, which is at the chord's slope). The others are dropped, which leaves a handful. So some four passes
 * over all the points do, and nothing is sorted. */
#include "margin.h"
#include "wide.h"

#include <math.h>

#define MAX_STEPS   200
#define FIRST_REACH 2e-5 /* where a second slope is tried: quartz against quartz */
#define FARTHER     8
#define ROUNDING    1e-6 /* of values, which are sums of some 1e9 with 53 bits */

/* Least of y - b x over n points. */
FT_WIDE static double min_of(const double *x, const double *y, int64_t n, double b) {
    ft_wide lowest = FT_ALL(HUGE_VAL), other = lowest;
    double low = HUGE_VAL;
    int64_t i = 0;
    for (; i + 2 * FT_SIMD_WIDTH <= n; i += 2 * FT_SIMD_WIDTH) {
        ft_wide v = FT_LOAD(y + i) - b * FT_LOAD(x + i);
        ft_wide w = FT_LOAD(y + i + FT_SIMD_WIDTH) - b * FT_LOAD(x + i + FT_SIMD_WIDTH);
        lowest = FT_LESS(v, lowest);
        other = FT_LESS(w, other);
    }
    lowest = FT_LESS(other, lowest);
    for (; i < n; i++) {
        double v = y[i] - b * x[i];
        low = v < low ? v : low;
    }
    for (int k = 0; k < FT_SIMD_WIDTH; k++) low = lowest[k] < low ? lowest[k] : low;
    return low;
}

/* The first point with y - b x <= value; n where there is none. */
FT_WIDE static int64_t first_below(const double *x, const double *y, int64_t n, double b, double value) {
    int64_t i = 0;
    for (; i + 4 * FT_SIMD_WIDTH <= n; i += 4 * FT_SIMD_WIDTH) {
        ft_whole any = {0};
        for (int k = 0; k < 4 * FT_SIMD_WIDTH; k += FT_SIMD_WIDTH)
            any |= FT_LOAD(y + i + k) - b * FT_LOAD(x + i + k) <= value;
        if (FT_ANY(any)) break;
    }
    while (i < n && !(y[i] - b * x[i] <= value)) i++;
    return i;
}

/* The point at which a line of slope `at` touches a cloud: the point, and y - at * x there. */
struct touch {
    double at, x, y, value;
};

static struct touch touch_of(const struct ft_cloud *c, double b) {
    double value = min_of(c->x, c->y, c->n, b);
    int64_t i = first_below(c->x, c->y, c->n, b, value);
    if (i == c->n) /* a compiler that rounds the two loops differently */
        i = first_below(c->x, c->y, c->n - 1, b, value + ROUNDING);
    return (struct touch){b, c->x[i], c->y[i], value};
}

double ft_support(const struct ft_cloud *c, double slope) {
    return min_of(c->x, c->y, c->n, slope);
}

/* Copy the points on or below the chord of two touching points to `x`, `y`, which may be the cloud's own
 * places; returns their number. */
static int64_t below_chord(const struct ft_cloud *c, const struct touch *a, const struct touch *b, double *x,
                           double *y) {
    int64_t n = 0;
    if (a->x == b->x) {
        x[0] = a->x, y[0] = fmin(a->y, b->y);
        return 1;
    }
    double slope = fmin(fmax((b->y - a->y) / (b->x - a->x), fmin(a->at, b->at)), fmax(a->at, b->at));
    double limit = fmax(a->y - slope * a->x, b->y - slope * b->x) + ROUNDING;
    const double *cx = c->x, *cy = c->y;
    int64_t i = 0;
    for (;;) { /* nearly all are above: skip to the next that is not */
        i += first_below(cx + i, cy + i, c->n - i, slope, limit);
        if (i >= c->n) return n;
        x[n] = cx[i], y[n] = cy[i];
        n++, i++;
    }
}

struct ft_gap ft_widest_gap(const struct ft_cloud *f, const struct ft_cloud *r, double max_slope,
                            double *workspace) {
    /* a cut: m(b) <= value + rise * (b - at) */
    struct cut {
        double at, value, rise;
        struct touch f, r;
    } low = {0}, high = {0};
    int have_low = 0, have_high = 0;
    struct ft_cloud cf = *f, cr = *r;
    double *fx = workspace, *fy = fx + f->n, *rx = fy + f->n, *ry = rx + r->n;
    struct ft_gap best = {0, -HUGE_VAL, 0};
    double b = 0, reach = FIRST_REACH;
    for (int step = 0; step < MAX_STEPS; step++) {
        struct touch on_f = touch_of(&cf, b), on_r = touch_of(&cr, -b);
        double value = on_f.value + on_r.value;
        if (value > best.forward + best.reverse) best = (struct ft_gap){b, on_f.value, on_r.value};
        double rise = on_r.x - on_f.x;
        if (rise == 0) break;
        struct cut now = {b, value, rise, on_f, on_r};
        if (rise > 0)
            low = now, have_low = 1;
        else
            high = now, have_high = 1;
        double next;
        if (have_low && have_high) {
            next =
                (high.value - high.rise * high.at - low.value + low.rise * low.at) / (low.rise - high.rise);
            double crossing = low.value + low.rise * (next - low.at);
            if (crossing - (best.forward + best.reverse) <= ROUNDING || !(next > low.at && next < high.at))
                break;
            cf.n = below_chord(&cf, &low.f, &high.f, fx, fy);
            cr.n = below_chord(&cr, &low.r, &high.r, rx, ry);
            cf.x = fx, cf.y = fy, cr.x = rx, cr.y = ry;
        } else {
            next = fmin(reach, max_slope) * (rise > 0 ? 1 : -1);
            reach *= FARTHER;
        }
        if (next == b) break;
        b = next;
    }
    return best;
}

int ft_corners(const struct ft_cloud *c, double slope, double around, double *workspace, double x[FT_CORNERS],
               double y[FT_CORNERS]) {
    /* candidates for a minimum in between are below one of the chords of three touching points */
    struct touch from = touch_of(c, slope - around), middle = touch_of(c, slope),
                 to = touch_of(c, slope + around);
    double *kx = workspace, *kh = workspace + 2 * c->n;
    int64_t n = below_chord(c, &from, &middle, kx, kh);
    n += below_chord(c, &middle, &to, kx + n, kh + n);
    for (int64_t i = 0; i < n; i++) kh[i] -= slope * kx[i];
    /* Shell's sort by x, then by height: a handful, mostly in order */
    for (int64_t gap = n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (int64_t i = gap; i < n; i++) {
            double vx = kx[i], vh = kh[i];
            int64_t j = i;
            for (; j >= gap && (kx[j - gap] > vx || (kx[j - gap] == vx && kh[j - gap] > vh)); j -= gap)
                kx[j] = kx[j - gap], kh[j] = kh[j - gap];
            kx[j] = vx, kh[j] = vh;
        }
    /* lower hull, left to right (Andrew 1979) */
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++) {
        if (k && kx[k - 1] == kx[i]) continue;
        while (k >= 2 &&
               (kh[k - 1] - kh[k - 2]) * (kx[i] - kx[k - 1]) >= (kh[i] - kh[k - 1]) * (kx[k - 1] - kx[k - 2]))
            k--;
        kx[k] = kx[i], kh[k] = kh[i];
        k++;
    }
    /* of more than are wanted, those about the lowest */
    int64_t first = 0, last = k - 1, lowest_at = 0;
    for (int64_t i = 0; i < k; i++)
        if (kh[i] < kh[lowest_at]) lowest_at = i;
    while (last - first + 1 > FT_CORNERS) {
        if (lowest_at - first > last - lowest_at)
            first++;
        else
            last--;
    }
    for (int64_t i = first; i <= last; i++) {
        x[i - first] = kx[i];
        y[i - first] = kh[i] + slope * kx[i];
    }
    return (int)(last - first + 1);
}
