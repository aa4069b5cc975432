/* The probe engine's state and the functions that its files share. */
#ifndef FT_ENGINE_STATE_H
#define FT_ENGINE_STATE_H

#define _GNU_SOURCE
#include "engine.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <linux/sock_diag.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SCM_TS_OPT_ID
#define SCM_TS_OPT_ID 81
#endif
#ifndef SO_RXQ_OVFL
#define SO_RXQ_OVFL 40
#endif

enum {
    VERSION = 1,
    KIND_REQUEST = 1,
    KIND_REPLY = 2,
    KIND_COLLECT = 3,
    KIND_FOLLOWUP = 4,
    KIND_TRACE = 5,
    KIND_TRACED = 6,
    KIND_SIZE = 7,
    KIND_SIZED = 8
};
enum { HEAD = 16, TIMED_BYTES = 40, ENTRY = 12, MAC = 8, MAX_ENTRIES = 32 };
enum { MAX_BYTES = HEAD + MAX_ENTRIES * ENTRY + MAC, BATCH = 64, CONTROL = 256, ADDRESS_BLOCK = 40 };
enum { PROBES_PER_WAKEUP = 16, DRAIN_SENT = 96, QUEUE_ASKED = 32, REPORTED_ERRORS = 8 };
enum { FREE_HALF, WAITING, SENT, REPLIED, COMPLETE, LOST, INCOMPLETE, UNSENT };

static const uint32_t FT_TOS_KNOWN = 1U << 31; /* beside a TOS byte on the wire */
static const double MIN_THROTTLE = 1.0 / 16;
static const int64_t MAX_NS = (int64_t)1 << 62, MAX_DEBT_NS = 20000000, SPIN_NS = 30000, IDLE_NS = 20000000;
static const int64_t ASKED_NS = 10000000000;
static const int64_t EARLY_DRAIN_NS = 1000000, LATE_RING_NS = 50000000, ALERT_NS = 1000000000;
/* Lateness that is reported at once; less of it does not affect a path's verdict and goes with the next
 * report. */
static const int64_t LATE_REPORT_NS = 20000000;

typedef struct {
    int64_t t1, t2, t3, t4;
    uint32_t ticket;
    uint8_t state, tried, declared, marks; /* declared: lost, before its answer */
} half;

typedef struct {
    half halves[2];
    int64_t deadline;
    int64_t second_due;
    uint32_t number;
    uint16_t peer;
    uint8_t path, pair, settled, class;
} probe;

/* Replies of one peer whose t3 is to be collected, by a packet on the path of the newest of them. */
typedef struct {
    uint32_t count;
    uint32_t seq[MAX_ENTRIES], ticket[MAX_ENTRIES];
    uint8_t listed, path;
} collection;

typedef struct {
    struct sockaddr_storage address;
    uint32_t nic_hash;
    int used, active_at;
} peer_slot;

typedef struct {
    int fd;
    struct sockaddr_storage address;
    uint32_t next_id, drops;
    uint32_t *seq_of; /* by stamp id */
    uint32_t id_mask, queued_id;
    int64_t queued_ns; /* when that id entered the host's queue */
    int tos;           /* set on the socket, -1: not known */
} path_socket;

typedef struct {
    int64_t t3;
    uint64_t run;
    uint32_t ticket, seq;
} reply_slot;

typedef struct {
    struct mmsghdr messages[BATCH];
    struct iovec vectors[BATCH];
    struct sockaddr_storage names[BATCH];
    uint8_t data[BATCH][MAX_BYTES];
    uint8_t control[BATCH][CONTROL];
    uint8_t tos[BATCH]; /* of answers */
} batch;

typedef struct {
    ft_trace_hit *items; /* [FT_TRACE_HITS] */
    int count;
} ft_hits;

struct ft_engine {
    ft_config config;
    ft_clock clock;
    int clocked, phc_fd, responder_fd, wake_fd, evidence_fd, rung, epoll_wake, epoll_paths, id_by_counter,
        running;
    pthread_mutex_t mutex;
    atomic_int waiters, stopping;
    socklen_t name_bytes;
    int responder_tos; /* set on the socket, -1: not known */
    uint32_t tx_flags;
    struct sockaddr_storage responder_address;
    path_socket paths[FT_MAX_PATHS];
    peer_slot *peers;
    int *active;
    int actives;
    probe *probes;
    uint32_t probe_mask, head, tail_reply, tail_stamp;
    uint32_t round_of, round_step, round_at; /* of single probes over the paths */
    uint32_t second;         /* pairs whose second half waits: probes [second, head) may hold some */
    collection *collections; /* by peer */
    uint8_t *next_class;     /* of each path of each peer */
    uint32_t *collecting;    /* peers whose collection is not empty */
    uint32_t collectings;
    int64_t collect_at; /* when all of them are sent */
    reply_slot *replies;
    uint32_t reply_mask, next_ticket, responder_drops;
    ft_output outputs[2];
    int front;
    uint32_t sent_since_drain;
    ft_schedule schedule;
    int64_t slot; /* the next one; its time is next_shot */
    ft_schedule flow_schedule;
    int64_t flow_slot, next_flow_ns; /* likewise */
    int64_t next_probe_ns, last_drain, cap_at, answer_cap_at, throttle_at;
    double cap_tokens, answer_tokens, throttle;
    uint64_t random[4];
    ft_losses *losses;
    int64_t since_realtime; /* the monotonic clock minus the system's, at the last drain */
    int64_t evidence_at, alert_till, late_rung_at;
    int late_owed;
    ft_trouble trouble, before; /* of this interval; counters at its start */
    ft_counters counters;
    ft_hits traces, sizes;
    ft_prober *probers;
    batch in, out, extra;
};

typedef struct {
    int64_t stamp; /* already on this NIC's clock */
    int64_t raw;
    uint32_t id, drops, kind;
    int tos; /* as received, -1: not known */
    int is_transmit, has_drops;
    int device_index; /* interface that received the packet; 0: not known */
    int is_icmp, icmp_type, icmp_code, mtu;
    struct sockaddr_storage offender;
} ancillary;

typedef struct {
    probe *s;
    int which;
} due_request;

static inline int64_t now_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline int64_t monotonic(void) {
    return now_of(CLOCK_MONOTONIC);
}

static inline int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline void put32(uint8_t *p, uint32_t v) {
    v = htobe32(v);
    memcpy(p, &v, 4);
}

static inline void put64(uint8_t *p, uint64_t v) {
    v = htobe64(v);
    memcpy(p, &v, 8);
}

static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return be32toh(v);
}

static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return be64toh(v);
}

static inline uint64_t draw(ft_engine *e) { /* xoshiro256**, Blackman and Vigna (2018) */
    uint64_t *s = e->random, result = ft_rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = ft_rotl(s[3], 45);
    return result;
}

static inline uint32_t draw_below(ft_engine *e, uint32_t n) {
    return (uint32_t)(((draw(e) >> 32) * n) >> 32);
}

static inline int64_t draw_gap(ft_engine *e, double mean_ns) {
    double u = ((double)(draw(e) >> 11) + 1) * 0x1p-53;
    double gap = -log(u) * mean_ns;
    return gap < 3.6e12 ? (int64_t)gap : 3600000000000LL;
}

static inline int64_t reading(ft_engine *e, int64_t system_ns) {
    return e->clocked ? ft_clock_read(&e->clock, system_ns) : system_ns;
}

static inline int group_of(const ft_engine *e, const probe *s, int paired) {
    return ((s->peer * e->config.paths + s->path) * e->config.classes + s->class) * 2 + paired;
}

static inline void refill(double *tokens, int64_t *at, double rate, int64_t now) {
    double burst = rate * 0.005 < 32 ? 32 : rate * 0.005;
    *tokens += (double)(now - *at) * 1e-9 * rate;
    if (*tokens > burst) *tokens = burst;
    *at = now;
}

static inline int kind_of(const uint8_t *p, int size) {
    return size >= TIMED_BYTES - ENTRY && p[0] == 'F' && p[1] == 'T' && p[2] >> 4 == VERSION ? p[2] & 15 : 0;
}

static inline half *half_of(ft_engine *e, uint32_t seq, probe **owner) {
    probe *s = &e->probes[(seq >> 1) & e->probe_mask];
    *owner = s;
    half *h = &s->halves[seq & 1];
    return (s->number & 0x7fffffff) == seq >> 1 && h->state >= SENT ? h : NULL;
}

/* The slot of a half in losses.c. */
static inline uint32_t slot_of(const ft_engine *e, const probe *s, int which) {
    return (s->number & e->probe_mask) << 1 | (uint32_t)which;
}

static inline uint32_t path_of(const ft_engine *e, const probe *s) {
    return (uint32_t)(s->peer * e->config.paths + s->path);
}

static inline uint32_t free_probes(const ft_engine *e) {
    return e->probe_mask + 1 - (e->head - e->tail_stamp);
}

/* wire.c */
void ft_put_address(uint8_t *p, uint8_t *port, const struct sockaddr_storage *a);
int ft_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
uint64_t ft_mac_of(const ft_engine *e, const struct sockaddr_storage *source,
                   const struct sockaddr_storage *target, const uint8_t *data, size_t size);
void ft_head_of(uint8_t *p, int kind, int count, uint32_t seq, uint64_t run);

/* classes.c */
int ft_class_on(const ft_engine *e, int fd);
int ft_use_class(const ft_engine *e, int fd, int *now, uint8_t tos);
void ft_note_marks(ft_engine *e, const probe *s, half *h, uint32_t returned, int tos);

/* timestamps.c */
int ft_is_from_network(int error);
ancillary ft_read_control(ft_engine *e, struct msghdr *message);
void ft_batch_init(ft_engine *e, batch *b);
int ft_batch_receive(ft_engine *e, batch *b, int fd, int want, int flags);
void ft_batch_put(ft_engine *e, batch *b, int i, int size, uint32_t stamps, uint32_t id);
int ft_errors_on(const ft_engine *e, int fd);
int ft_stamping_on(ft_engine *e, int fd);
int ft_device_on(const ft_engine *e, int fd);
void ft_restart_ids(ft_engine *e, int fd);
int ft_batch_send(ft_engine *e, batch *b, int fd, int from, int to);
void ft_note_drops(ft_engine *e, const ancillary *a, uint32_t *last);

/* sizes.c */
int ft_fragments_off(const ft_engine *e, int fd);
int ft_is_too_big(const ft_engine *e, const ancillary *a);
void ft_answer_size(ft_engine *e, const struct sockaddr_storage *own, const uint8_t *p, int size,
                    const struct sockaddr_storage *from);
void ft_on_sized(ft_engine *e, int path, const uint8_t *p, int size, const struct sockaddr_storage *from);

/* trace.c */
void ft_put_hit(ft_engine *e, ft_hits *hits, int arrived, int path, const ancillary *a,
                const struct sockaddr_storage *target, const uint8_t *data, int size);
int ft_is_acceptable(ft_engine *e, const struct sockaddr_storage *own, const uint8_t *p,
                     const struct sockaddr_storage *from);
int ft_confirm(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p,
               const struct sockaddr_storage *from, int kind);
void ft_on_icmp(ft_engine *e, int path, const ancillary *a, const struct msghdr *m, const uint8_t *data,
                int size);
void ft_note_prober(ft_engine *e, const struct sockaddr_storage *from, int traced, int64_t now);
void ft_answer_trace(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p, int size,
                     const struct sockaddr_storage *from, int64_t now);
void ft_on_traced(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p, int size,
                  const struct sockaddr_storage *from);

/* samples.c */
void ft_settle(ft_engine *e, probe *s);
void ft_on_path_packet(ft_engine *e, int path, const uint8_t *p, int size,
                       const struct sockaddr_storage *from, int64_t t4, int tos, int64_t now);
void ft_ring(ft_engine *e);
void ft_came_late(ft_engine *e, int64_t ns);
int64_t ft_next_overdue(const ft_engine *e, int64_t now);
void ft_drain_paths(ft_engine *e, int64_t now);

/* schedule.c */
void ft_join_schedule(ft_engine *e, int64_t now);
void ft_join_flow_schedule(ft_engine *e, int64_t now);
int ft_has_tail_probes(const ft_engine *e);
void ft_send_due(ft_engine *e, int64_t now);

/* responder.c */
void ft_drain_responder_stamps(ft_engine *e);
int ft_answer(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from, int64_t t2,
              int tos, int64_t system_ns, batch *out, int i);
int ft_respond(ft_engine *e, int64_t now);

#endif
