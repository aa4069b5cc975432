/* The probe engine: prober and responder of one NIC in one thread. engine.c describes it. */
#ifndef FT_ENGINE_H
#define FT_ENGINE_H

#include <netinet/in.h>
#include <stdint.h>

#include "clockmodel.h"
#include "losses.h"
#include "siphash.h"

#define FT_NO_STAMP  INT64_MIN
#define FT_MAX_PATHS 64
#define FT_MAX_PEERS 1024

enum { FT_CE_FORWARD = 1, FT_CE_REVERSE = 2, FT_ECN_BOTH = 4 }; /* marks of a sample */

/* name and meaning */
#define FT_COUNTERS(X)                                                                                       \
    X(requests_sent)    /* requests that the kernel took */                                                  \
    X(replies_received) /* first replies to our requests */                                                  \
    X(samples)          /* probes with all four stamps */                                                    \
    X(pairs)            /* coded pairs kept */                                                               \
    X(pairs_demoted)    /* complete pairs whose real spacing differs too much from the set one */            \
    X(lost)             /* requests without a reply in time */                                               \
    X(overdue)          /* requests declared lost before that time was over */                               \
    X(spurious)         /* of these, answered in time after all */                                           \
    X(stuck)            /* requests that never left this host: not counted as lost */                        \
    X(flow_probes)      /* requests sent by flow probing */                                                  \
    X(tail_probes)      /* tail loss probes to peers that owe an answer */                                   \
    X(no_t3)            /* replies without sound stamps */                                                   \
    X(no_t1)            /* requests without a send timestamp: they never left the host */                    \
    X(late)             /* replies after the verdict */                                                      \
    X(duplicates)       /* replies and follow-ups that were there already */                                 \
    X(stale_run)        /* answers to another run */                                                         \
    X(collects_sent)    /* packets that collect follow-ups */                                                \
    X(followups_received)                                                                                    \
    X(requests_received)                                                                                     \
    X(replies_sent)                                                                                          \
    X(collects_received)                                                                                     \
    X(followups_sent)                                                                                        \
    X(malformed)        /* packets that are none of ours: magic, version, kind, length */                    \
    X(bad_mac)          /* strangers, other keys, other addresses */                                         \
    X(wrong_nic)        /* meant for another NIC than this */                                                \
    X(stale_time)       /* requests further from our system clock than allowed: replays */                   \
    X(no_rx_stamp)      /* packets that came without a receive stamp */                                      \
    X(unknown_stamp)    /* transmit stamps that belong to nothing we remember */                             \
    X(send_errors)      /* packets that the kernel refused for lack of buffer space */                       \
    X(unreachable)      /* requests that the kernel could not route: counted as lost */                      \
    X(rx_queue_drops)   /* packets that our full socket buffers lost */                                      \
    X(overflow_samples) /* samples that were not drained in time */                                          \
    X(table_full)       /* probes postponed because the state table was full */                              \
    X(missed_timers)    /* probes skipped because this thread got no processor in time */                    \
    X(cpu_starved)      /* times that this thread, or its answer, came late */                               \
    X(capped)           /* probes postponed by the rate cap */                                               \
    X(answers_capped)   /* times that answering waited for the rate cap */                                   \
    X(throttled)        /* times that the rate was lowered since the thread fell behind */                   \
    X(traces_received)  /* traces of others that came all the way to us */                                   \
    X(wrong_device)     /* packets for this NIC that another NIC of the host received */                     \
    X(traces_answered)                                                                                       \
    X(sizes_answered)     /* size probes of others that came all the way to us */                            \
    X(icmp_errors)        /* errors that the network sent back for our packets, traces' among them */        \
    X(trace_hits_dropped) /* answers to our traces that were not read in time */                             \
    X(wakeups)                                                                                               \
    X(ce_forward)     /* requests that arrived with CE, by their replies */                                  \
    X(ce_reverse)     /* replies that arrived with CE */                                                     \
    X(ecn_cleared)    /* replies that show that the network cleared the ECN field */                         \
    X(dscp_changed)   /* replies that show that the network changed the DSCP */                              \
    X(bytes_asked)    /* payload of authentic requests and collects received */                              \
    X(bytes_answered) /* payload of replies and follow-ups sent */

typedef struct {
#define X(name) uint64_t name;
    FT_COUNTERS(X)
#undef X
} ft_counters;

/* A traffic class: the TOS byte (DSCP << 2 | ECN), and the socket priority; -1: the kernel's own choice. */
typedef struct {
    uint8_t tos;
    int priority;
} ft_class;

typedef struct {
    int max_peers, paths;
    int classes; /* probes of one path take them in turn */
    ft_class class[FT_MAX_CLASSES];
    int spare; /* the last so many paths: only flow probing uses them */
    int64_t spacing_ns, timeout_ns, overdue_ns, cpu_starved_ns, drain_ns, max_age_ns;
    int64_t collect_delay_ns;  /* from the first reply to the packet that collects */
    int64_t collect_period_ns; /* > 0: collect at its multiples on the system clock, plus the delay */
    double rate_pps, max_pps, answer_max_pps;
    uint64_t run, seed;
    uint32_t nic_hash;
    uint32_t singles; /* single probes with each pair, over all paths in a fixed cycle; 0: two pairs share a
                  * wake-up */
    ft_key key;
    int hardware;     /* take raw hardware stamps */
    int device_index; /* interface that requests are to arrive by; 0: any */
    uint32_t table_probes, out_samples, reply_ring;
} ft_config;

/* A schedule of slots. Slot k begins at `at_ns` + k * `length_ns` (monotonic clock). Its probes leave
 * together within its first half, on the paths [k % count * probes ...] of `path_index`: peer slot * paths +
 * path, -1: any. */
typedef struct {
    int64_t at_ns;
    double length_ns;
    uint32_t count, probes; /* slots of a round; probes of a slot */
    int32_t *path_index;    /* [count * probes], the engine's own from then on */
} ft_schedule;

typedef struct {
    uint32_t group : 29; /* (((peer * paths) + path) * classes + class) * 2 + (1 for a coded pair) */
    uint32_t marks : 3;
    uint32_t order;
    int64_t sent, forward, turnaround, reverse;
} ft_sample;

typedef struct {
    ft_sample *samples;
    uint32_t count;
    uint32_t *lost, *no_t3; /* by group */
    int64_t clock_ns, system_ns;
} ft_output;

/* An answer to a trace: an ICMP error from a hop, or the far end's word that it arrived. */
typedef struct {
    int arrived;                         /* 1: the far end answered; 0: ICMP */
    int path;                            /* the socket that sent: a path's index, -1: the responder */
    int type, code, mtu;                 /* mtu: bytes, as a router states it; 0: none */
    struct sockaddr_storage target, hop; /* the traced address; the sender of the answer */
    int size;
    uint8_t data[40]; /* as much of the trace packet as came back */
} ft_trace_hit;

/* A prober that probes this NIC, for tracing the answers' route. */
typedef struct {
    struct sockaddr_storage address;
    int64_t seen_ns, traced_ns,
        probed_ns; /* monotonic: the last of any, trace that arrived, probe; 0: never */
} ft_prober;

enum { FT_TRACE_BYTES = 40, FT_MAX_SIZE = 65507, FT_TRACE_HITS = 1024, FT_PROBERS = 4096 };

/* Conditions of an interval that may explain its losses. */
typedef struct {
    int64_t clock_ns, system_ns, interval_ns;
    int64_t
        late_ns; /* longest that the thread, or an answer of it, came later than meant; 0 below starved_ns */
    int64_t queue_ns; /* longest that a request waited in the host's own queue */
    uint64_t missed_timers, stuck, receive_drops, capped;
} ft_trouble;

typedef struct ft_engine ft_engine;

ft_engine *ft_engine_new(const ft_config *config, int responder_fd, const int *path_fds, int phc_fd);
void ft_engine_free(ft_engine *e);
int ft_engine_run(ft_engine *e, int64_t for_ns); /* 0, or an errno */
void ft_engine_stop(ft_engine *e);
void ft_engine_lock(ft_engine *e);
void ft_engine_unlock(ft_engine *e);
/* the following want the lock */
void ft_engine_set_peer(ft_engine *e, int slot, const struct sockaddr_storage *address, uint32_t nic_hash);
void ft_engine_clear_peer(ft_engine *e, int slot);
void ft_engine_set_rate(ft_engine *e, double rate_pps);
void ft_engine_set_schedule(ft_engine *e,
                            ft_schedule schedule); /* count 0: exponential gaps and random paths again */
void ft_engine_shift_schedule(ft_engine *e, int64_t at_ns); /* the same turns, from another time on */
/* Ways that are to be looked at more often than turns or chance have it: single probes on top, in turns of their own. A
 * way of -1, or one that is gone, sends nothing. count 0: none */
void ft_engine_set_flow_probing(ft_engine *e, ft_schedule flow_schedule);
ft_clock *ft_engine_clock(ft_engine *e, int in_use);
/* Replace the socket of path i; probes in flight there are forgotten, not lost. Returns 0, or an errno. */
int ft_engine_set_path(ft_engine *e, int i, int fd);
int ft_engine_trace_hits(ft_engine *e, ft_trace_hit *into, int max_hits);     /* takes them */
int ft_engine_recent_probers(ft_engine *e, ft_prober *into, int max_probers); /* of the last ASKED_NS */
/* write a trace packet of FT_TRACE_BYTES */
void ft_engine_trace_packet(ft_engine *e, uint8_t *p, const struct sockaddr_storage *source,
                            const struct sockaddr_storage *target, uint32_t nic_hash, uint32_t seq,
                            uint32_t ttl);
/* Write the first FT_TRACE_BYTES of a size probe with `size` bytes of UDP payload, of which all others are zero. */
void ft_engine_size_packet(ft_engine *e, uint8_t *p, const struct sockaddr_storage *source,
                           const struct sockaddr_storage *target, uint32_t nic_hash, uint32_t seq,
                           uint32_t size);
int ft_engine_size_hits(ft_engine *e, ft_trace_hit *into, int max_hits); /* takes them */
/* Send a packet from path socket `path` (-1: the responder) in a class, with a TTL of its own (0: the usual one).
 * Returns 0, or an errno. */
int ft_engine_send(ft_engine *e, int path, int class, const uint8_t *data, size_t size,
                   const struct sockaddr_storage *target, int ttl);
/* Let all packets of a socket that is not the engine's leave in the first class. Returns 0, or an errno. */
int ft_engine_use_first_class(const ft_engine *e, int fd);
/* whether these bytes are a peer's answer to our trace, sent to `own` */
int ft_engine_is_traced(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from,
                        const struct sockaddr_storage *own);
ft_output *ft_engine_swap(ft_engine *e); /* valid until the next swap */
/* Losses and answers since the last call; see losses.h. `evidence_fd` is readable while there is urgent news. */
uint32_t ft_engine_evidence(ft_engine *e, ft_trouble *trouble, ft_path_news *news, uint32_t max_paths);
int ft_engine_evidence_fd(ft_engine *e);
void ft_engine_clocks(ft_engine *e, int64_t *clock_ns, int64_t *system_ns);
const ft_counters *ft_engine_counters(ft_engine *e);
const char *const *ft_counter_names(void);
int ft_counter_count(void);
double ft_engine_throttle(ft_engine *e);
int ft_engine_groups(ft_engine *e);
/* order samples by group, stable; `start` has groups + 1 elements. Wants no lock. */
void ft_engine_scatter(ft_engine *e, ft_output *out, int64_t *start, int64_t *sent, int64_t *forward,
                       int64_t *turnaround, int64_t *reverse, uint8_t *marks);
/* one packet through the parser, as if it had come from `from` on path socket `path` (-1: the responder) */
void ft_engine_inject(ft_engine *e, int path, const uint8_t *data, int size,
                      const struct sockaddr_storage *from);

#endif
