/* The writer's half of a host's clock page (its layout: clients/c/fabrictime_clock.h), and the crossing of two clocks. */
#ifndef FT_CLOCKPAGE_H
#define FT_CLOCKPAGE_H

#include <stddef.h>
#include <stdint.h>

int64_t ft_page_raw_ns(void); /* reading of CLOCK_MONOTONIC_RAW */
/* Read `clock` between two readings of CLOCK_MONOTONIC_RAW, the shortest of `tries`. Returns 0 or errno. */
int ft_page_cross(int clock, int tries, int64_t *before_ns, int64_t *clock_ns, int64_t *after_ns);
/* Copy the readable one of two copies; returns the sequence, or an odd number with *whole 0 where a writer is at it. */
uint64_t ft_page_read(const uint64_t *sequence, const uint64_t *copies, size_t count, uint64_t *to,
                      int *whole);
/* Put `from` in both copies. Readers change over once CLOCK_MONOTONIC_RAW has reached from_raw_ns; where that would be
 * after latest_raw_ns, nothing is changed. Returns 1 where the new content stands. */
int ft_page_write(uint64_t *sequence, uint64_t *copies, size_t count, const uint64_t *from,
                  int64_t from_raw_ns, int64_t latest_raw_ns);

#endif
