/* Byte streams between the ranks of a job, in one epoll loop: each phase's transfers, and the times of
 * arrival.
 *
 * A stream is a numbered sequence of bytes from one rank to another. It uses a pair of connected sockets,
 * which may be replaced while it runs; the numbers continue. Byte k of any stream is a function of k
 * alone, so a checking reader detects a missing, duplicate or foreign byte.
 *
 * A rank passes through its phases in order. In a phase it sends its part on some streams and waits for
 * its part on others. It continues when all of them have arrived. When all ranks are done, the iteration
 * ends and the next one begins. No call blocks. The caller owns the sockets. */
#ifndef FABRICTIME_STREAMS_H
#define FABRICTIME_STREAMS_H

#include <stdint.h>

typedef struct {
    int sender, receiver; /* ranks */
    int tx, rx;           /* sockets, -1: none */
    uint64_t sent;        /* number of the next byte for tx */
    uint64_t got;         /* bytes that arrived, in all */
    uint64_t goal;        /* number up to which it sends */
    int phase;            /* phase of the present part, -1: none */
    int64_t begin_ns;     /* when that part began */
    int tx_blocked;       /* tx accepts no more until epoll reports it writable */
    int broken;           /* errno that ended tx or rx, 0: none */
    int lowat;            /* bytes at which rx wakes us, as last set */
} ft_stream;

typedef struct {
    int stream;
    uint64_t bytes;
} ft_part;

typedef struct {
    int64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    int slowest;              /* stream that took longest within its phase */
    int64_t slowest_ns;
} ft_iteration;

typedef struct ft_job ft_job;

enum { FT_TIMEOUT = 0, FT_OUTSIDE = 1, FT_BROKEN = 2, FT_DONE = 3 };

/* `part_begin` has ranks * phases + 1 elements: rank r sends parts [part_begin[r * phases + p],
 * part_begin[.. + 1]) in phase p. Return NULL without memory or descriptors (errno). `slot_ns` 0: no
 * slots. */
ft_job *ft_job_new(int ranks, int phases, int streams, const int *senders, const int *receivers,
                   const int *part_begin, const ft_part *parts, int64_t iterations, int64_t gap_ns,
                   int64_t slot_ns, int64_t slots_max, int check);
void ft_job_free(ft_job *job);
int ft_job_watch(ft_job *job, int fd); /* ft_job_run returns FT_OUTSIDE when it is readable */
int ft_job_attach_tx(ft_job *job, int stream, int fd, uint64_t from); /* continue with byte number `from` */
int ft_job_attach_rx(ft_job *job, int stream, int fd);
int ft_job_detach_tx(ft_job *job, int stream); /* return the descriptor, -1: there was none */
int ft_job_detach_rx(ft_job *job, int stream);
int ft_job_take_broken(ft_job *job, int *code); /* a stream to detach, -1: none */
int ft_job_run(ft_job *job, int64_t until_ns);  /* monotonic; return one of the reasons above, or -errno */

ft_stream *ft_job_stream(ft_job *job, int stream);
int64_t ft_job_iterations(ft_job *job,
                          const ft_iteration **first); /* finished iterations that are not yet taken */
void ft_job_taken(ft_job *job);
int64_t ft_job_slots(ft_job *job, int stream, const uint32_t **first); /* bytes that arrived in each slot */
int64_t ft_job_begin_ns(ft_job *job);
int64_t ft_job_spoilt(ft_job *job); /* bytes that differ from the pattern, if checked */

#endif
