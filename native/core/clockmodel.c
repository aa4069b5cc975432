/* The test clock. With s the seconds since epoch_ns it reads
 *     system + offset_ns + drift_ppb * s + x(s) + (step_ns from step_at_ns on),
 * where x is the integral of y, y(0) = 0, y(k + 1) = y(k) + wander * g(seed, k), linear in between, and g is a
 * standard normal deviate hashed from (seed, k): a random walk of frequency that anyone can compute again. */
#include "clockmodel.h"

#include <math.h>

static uint64_t mix(uint64_t z) { /* a 64-bit finaliser: xor-shifts and odd multipliers */
    z ^= z >> 32;
    z *= 0xd6e8feb86659fd93ULL;
    z ^= z >> 32;
    z *= 0xd6e8feb86659fd93ULL;
    return z ^ (z >> 32);
}

static double unit(uint64_t z) {
    return ((double)(z >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t seed, int64_t k) { /* Box and Muller (1958) */
    uint64_t a = mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ (uint64_t)k * 2);
    uint64_t b = mix(a ^ 0xa0761d6478bd642fULL);
    return sqrt(-2.0 * log(unit(a))) * cos(6.283185307179586 * unit(b));
}

void ft_clock_init(ft_clock *clock, int64_t offset_ns, double drift_ppb, double wander, int64_t epoch_ns,
                   uint64_t seed, int64_t step_ns, int64_t step_at_ns) {
    clock->offset_ns = offset_ns;
    clock->drift_ppb = drift_ppb;
    clock->wander = wander;
    clock->epoch_ns = epoch_ns;
    clock->seed = seed;
    clock->step_ns = step_ns;
    clock->step_at_ns = step_at_ns;
    clock->known = 0;
    clock->x[0] = clock->y[0] = 0;
}

static void advance(ft_clock *clock, int64_t second) {
    if (second <= clock->known - FT_CLOCK_MEMORY + 1) {
        clock->known = 0;
        clock->x[0] = clock->y[0] = 0;
    }
    while (clock->known < second) {
        int64_t k = clock->known;
        double y = clock->y[k % FT_CLOCK_MEMORY], next = y + clock->wander * normal(clock->seed, k);
        clock->x[(k + 1) % FT_CLOCK_MEMORY] = clock->x[k % FT_CLOCK_MEMORY] + (y + next) / 2;
        clock->y[(k + 1) % FT_CLOCK_MEMORY] = next;
        clock->known = k + 1;
    }
}

int64_t ft_clock_read(ft_clock *clock, int64_t system_ns) {
    int64_t since = system_ns - clock->epoch_ns;
    double s = (double)since * 1e-9, wander_ns = 0;
    if (clock->wander > 0 && since > 0) {
        int64_t second = since / 1000000000;
        if (second > FT_CLOCK_MAX_S) second = FT_CLOCK_MAX_S;
        advance(clock, second + 1);
        double f = (double)(since - second * 1000000000) * 1e-9;
        double y0 = clock->y[second % FT_CLOCK_MEMORY], y1 = clock->y[(second + 1) % FT_CLOCK_MEMORY];
        wander_ns = clock->x[second % FT_CLOCK_MEMORY] + y0 * f + (y1 - y0) * f * f / 2;
    }
    int64_t reading = system_ns + clock->offset_ns + llrint(clock->drift_ppb * s + wander_ns);
    return clock->step_ns && system_ns >= clock->step_at_ns ? reading + clock->step_ns : reading;
}
