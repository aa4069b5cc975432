/* Selection of quantiles without a full sort. */
#ifndef FABRICTIME_SELECT_H
#define FABRICTIME_SELECT_H

#include <stdint.h>

/* The k-th smallest (from 0) of n finite values, which are reordered: values[0..k) <= result <= the rest.
 * Hoare's selection with the median of three as pivot. */
static inline double ft_select(double *values, int64_t n, int64_t k)
{
    int64_t low = 0, high = n - 1;
    while (high - low > 8) {
        double a = values[low], b = values[low + (high - low) / 2], c = values[high];
        double pivot = a < b ? (b < c ? b : (a < c ? c : a)) : (a < c ? a : (b < c ? c : b));
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot)
                i++;
            while (values[j] > pivot)
                j--;
            if (i <= j) {
                double t = values[i];
                values[i++] = values[j];
                values[j--] = t;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            return values[k];
    }
    for (int64_t i = low + 1; i <= high; i++) {
        double v = values[i];
        int64_t j = i;
        for (; j > low && values[j - 1] > v; j--)
            values[j] = values[j - 1];
        values[j] = v;
    }
    return values[k];
}

#endif
