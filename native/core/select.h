/* Selection of quantiles without a full sort. */
#ifndef FABRICTIME_SELECT_H
#define FABRICTIME_SELECT_H

#include <stdint.h>

/* The k-th smallest (from 0) of n finite values, which are reordered: values[0..k) <= result <= the rest.
 * Selection by partitions without a branch on the values (Lomuto's; each value is moved whether or not it is
 * less), so random input costs no more than sorted input. */
static inline double ft_select(double *values, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (high - low > 12) {
        double a = values[low], b = values[low + (high - low) / 2], c = values[high];
        double pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
        int64_t less = low;
        for (int64_t i = low; i <= high; i++) {
            double v = values[i];
            values[i] = values[less];
            values[less] = v;
            less += v < pivot;
        }
        if (k < less) {
            high = less - 1;
        } else if (less > low) {
            low = less;
        } else { /* the pivot is the least: its equals go to the front */
            for (int64_t i = low; i <= high; i++) {
                double v = values[i];
                values[i] = values[less];
                values[less] = v;
                less += v == pivot;
            }
            if (k < less) return pivot;
            low = less;
        }
    }
    for (int64_t i = low + 1; i <= high; i++) {
        double v = values[i];
        int64_t j = i;
        for (; j > low && values[j - 1] > v; j--) values[j] = values[j - 1];
        values[j] = v;
    }
    return values[k];
}

#endif
