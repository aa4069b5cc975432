/* All samples of one prober in one window: pieces of columns, found by peer and by (peer, path). */
#ifndef FABRICTIME_WINDOW_H
#define FABRICTIME_WINDOW_H

#include "margin.h"

#include <stdint.h>

/* The samples of one group of one batch. The columns are borrowed. */
struct ft_piece {
    const int64_t *sent, *forward, *turnaround, *reverse;
    int64_t n;
    int32_t spacing_ns;
    int64_t next_of_peer, next_of_row; /* -1: the last one */
};

struct ft_chain {
    int64_t first, last; /* pieces; -1: none */
    int64_t samples;
};

/* One (peer, path, class). */
struct ft_row {
    int32_t peer, path, dscp;
    int64_t lost, no_t3, ecn, ce[2]; /* ce: of requests, of replies */
    struct ft_chain chain;
};

struct ft_window {
    struct ft_piece *pieces;
    int64_t n_pieces, piece_capacity;
    struct ft_row *rows;
    int64_t n_rows, row_capacity;
    struct ft_chain *peers;
    int64_t n_peers, peer_capacity;
    int64_t *slots; /* open addressing: row + 1, or 0 */
    int64_t n_slots;
    int64_t samples;
    /* scratch of fit and reduce, grown to the longest chain */
    double *scratch;
    int64_t scratch_capacity;
};

/* Counts of a group: lost, no_t3, ecn, marked requests, marked replies. */
enum { FT_COUNTS = 5 };

/* Add a group. `peer` is the caller's number of it, from 0 on without gaps. Returns 0 without memory. */
int ft_window_add(struct ft_window *w, int32_t peer, int32_t path, int32_t dscp, struct ft_piece piece,
                  const int64_t counts[FT_COUNTS]);
void ft_window_free(struct ft_window *w);
/* Room for n doubles, or NULL. */
double *ft_window_scratch(struct ft_window *w, int64_t n);

/* The clock line of one pair; see fit.c. */
struct ft_pair_fit {
    int64_t at_ns, offset_ns; /* the offset is offset_ns + offset_fraction_ns */
    double offset_fraction_ns, drift_ppb, sigma_ns, drift_sigma_ppb, rtt_min_ns, margin_ns, noise_ns;
    int64_t samples, accepted;
    /* corners of the lower hulls near the line's slope; none where the line needs no turning */
    int forward_corners, reverse_corners;
    int64_t forward_after_ns[FT_CORNERS], reverse_after_ns[FT_CORNERS];
    double forward_delay_ns[FT_CORNERS], reverse_delay_ns[FT_CORNERS];
};

/* Fit one peer's chain. Returns 1; 0 where no sample is acceptable; -1 without memory. */
int ft_fit(struct ft_window *w, const struct ft_chain *chain, struct ft_pair_fit *fit);

/* A clock in fabric time, as ClockLine; `known` 0: no line. */
struct ft_line {
    int known;
    int64_t at_ns, offset_ns; /* the offset is offset_ns + offset_fraction_ns */
    double offset_fraction_ns, drift_ppb, bound_ns;
};

#define FT_BUCKETS 256

/* Delays of one row; one-way figures NaN without both lines, all NaN without samples. */
struct ft_delays {
    double forward[3], reverse[3], rtt[3]; /* least, median, 99th percentile */
    double bound_ns;
    uint32_t forward_bucket[FT_BUCKETS], reverse_bucket[FT_BUCKETS];
};

/* Reduce one row. Returns 0 without memory. */
int ft_reduce(struct ft_window *w, const struct ft_row *row, const struct ft_line *prober,
              const struct ft_line *peer, struct ft_delays *out);

/* Bucket of a delay: 0 below 1 ns, else 4 * floor(log2 ns) + the next two bits. Never above 255. */
int ft_bucket(double ns);

#endif
