/* One thread a NIC asks and answers.
 *
 *      prober                          responder
 *        | t1 --------- request -------> t2 |     both 40 bytes: equal delay on equal links
 *        | t4 <--------- reply --------- t3 |     carries t2 and a ticket
 *        |                                  |     some ms later, for all tickets of this peer and path:
 *        | ------------ collect ----------> |     tickets
 *        | <----------- follow-up --------- |     their t3, the kernel's own stamps; as long as the collect
 *
 * So no answer is ever larger than its question. All four stamps are the kernel's (or the NIC's), hence the thread
 * need not hurry: it wakes to send and to answer, and reads replies, stamps and follow-ups in batches then.
 *
 * Packets, big endian: magic 'FT', version and kind, count; u32 seq; u64 run; then
 *   request  i64 sender's system clock, u32 hash of the asked NIC's name, u32 0
 *   reply    i64 t2, u32 ticket, u32 0
 *   collect  count * (u32 seq, u32 ticket, u32 0)
 *   follow-up count * (u32 seq, i64 t3)
 *   trace    i64 sender's system clock, u32 hash of the traced NIC's name, u32 TTL
 *   traced   the same 16 bytes: the trace with this sequence number came all the way
 * and last the u64 SipHash-2-4 of source address, destination address, both ports and all of the above.
 *
 * A shot is one probe or one coded pair; its two halves have the sequence numbers 2n and 2n + 1.
 *
 * losses.c says which requests are lost long before the time-out of the samples; it is asked whenever one may be
 * overdue, and only after all that had come by then was read: an answer that lies unread is not lost. */
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
    KIND_TRACED = 6
};
enum { HEAD = 16, TIMED_BYTES = 40, ENTRY = 12, MAC = 8, MAX_ENTRIES = 32 };
enum { MAX_BYTES = HEAD + MAX_ENTRIES * ENTRY + MAC, BATCH = 64, CONTROL = 160, ADDRESS_BLOCK = 40 };
enum { SHOTS_A_TURN = 16, DRAIN_SENT = 96, QUEUE_ASKED = 32, REPORTED_ERRORS = 8 };
enum { FREE_HALF, WAITING, SENT, REPLIED, COMPLETE, LOST, INCOMPLETE, UNSENT };

static const double LEAST_THROTTLE = 1.0 / 16;
static const int64_t MAX_NS = (int64_t)1 << 62, MAX_DEBT_NS = 20000000, SPIN_NS = 30000, IDLE_NS = 20000000;
static const int64_t ASKED_NS = 10000000000;
static const int64_t EARLY_DRAIN_NS = 1000000, LATE_RING_NS = 50000000, ALERT_NS = 1000000000;
/* Lateness that is told at once: less of it costs no path its verdict and goes with what is told anyhow. */
static const int64_t LATE_TELL_NS = 20000000;

typedef struct {
    int64_t t1, t2, t3, t4;
    uint32_t ticket;
    uint8_t state, tried, told; /* told: lost, before it was answered */
} half;

typedef struct {
    half halves[2];
    int64_t deadline;
    int64_t second_due;
    uint32_t number;
    uint16_t peer;
    uint8_t path, pair, settled;
} shot;

typedef struct {
    int64_t first_ns;
    uint32_t count;
    uint32_t seq[MAX_ENTRIES], ticket[MAX_ENTRIES];
    uint8_t listed;
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
} batch;

struct ft_engine {
    ft_config config;
    ft_clock clock;
    int clocked, phc_fd, responder_fd, wake_fd, evidence_fd, rung, epoll_wake, epoll_paths, id_by_counter,
        running;
    pthread_mutex_t mutex;
    atomic_int waiters, stopping;
    socklen_t name_bytes;
    uint32_t tx_flags;
    struct sockaddr_storage responder_address;
    path_socket paths[FT_MAX_PATHS];
    peer_slot *peers;
    int *active;
    int actives;
    shot *shots;
    uint32_t shot_mask, head, tail_reply, tail_stamp;
    uint32_t round_of, round_step, round_at; /* of single probes over the ways */
    uint32_t second; /* pairs whose second half waits: shots [second, head) may hold some */
    collection *collections;
    uint32_t *collecting; /* indices of collections that are not empty */
    uint32_t collectings;
    reply_slot *replies;
    uint32_t reply_mask, next_ticket, responder_drops;
    ft_output outputs[2];
    int front;
    uint32_t sent_since_drain;
    ft_turns turns;
    int64_t turn; /* the next one; its time is next_shot */
    ft_turns aims;
    int64_t aim, next_aim; /* likewise */
    int64_t next_shot, last_drain, cap_at, answer_cap_at, throttle_at;
    double cap_tokens, answer_tokens, throttle;
    uint64_t random[4];
    ft_losses *losses;
    int64_t since_realtime; /* the monotonic clock minus the system's, at the last drain */
    int64_t evidence_at, alert_till, late_rung_at;
    int late_owed;
    ft_trouble trouble, before; /* of this interval; counters at its start */
    ft_counters counters;
    ft_trace_hit *hits;
    int hit_count;
    ft_asker *askers;
    batch in, out, extra;
};

/* --- small things ------------------------------------------------------------------------------------------- */

static int64_t now_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t monotonic(void) {
    return now_of(CLOCK_MONOTONIC);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void put32(uint8_t *p, uint32_t v) {
    v = htobe32(v);
    memcpy(p, &v, 4);
}
static void put64(uint8_t *p, uint64_t v) {
    v = htobe64(v);
    memcpy(p, &v, 8);
}
static uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return be32toh(v);
}
static uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return be64toh(v);
}

static uint64_t draw(ft_engine *e) { /* xoshiro256**, Blackman and Vigna (2018) */
    uint64_t *s = e->random, result = ft_rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = ft_rotl(s[3], 45);
    return result;
}

static uint32_t draw_below(ft_engine *e, uint32_t n) {
    return (uint32_t)(((draw(e) >> 32) * n) >> 32);
}

static int64_t draw_gap(ft_engine *e, double mean_ns) {
    double u = ((double)(draw(e) >> 11) + 1) * 0x1p-53;
    double gap = -log(u) * mean_ns;
    return gap < 3.6e12 ? (int64_t)gap : 3600000000000LL;
}

/* 16 bytes of address (IPv4 mapped) to `p`, the port to `port`. */
static void put_address(uint8_t *p, uint8_t *port, const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;
        memcpy(p, &in6->sin6_addr, 16);
        memcpy(port, &in6->sin6_port, 2);
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        memset(p, 0, 10);
        p[10] = p[11] = 0xff;
        memcpy(p + 12, &in->sin_addr, 4);
        memcpy(port, &in->sin_port, 2);
    }
}

static int same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family) return 0;
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *x = (const struct sockaddr_in6 *)a, *y = (const struct sockaddr_in6 *)b;
        return x->sin6_port == y->sin6_port && !memcmp(&x->sin6_addr, &y->sin6_addr, 16);
    }
    const struct sockaddr_in *x = (const struct sockaddr_in *)a, *y = (const struct sockaddr_in *)b;
    return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
}

static uint64_t mac_of(const ft_engine *e, const struct sockaddr_storage *source,
                       const struct sockaddr_storage *target, const uint8_t *data, size_t size) {
    uint8_t block[ADDRESS_BLOCK] = {0};
    put_address(block, block + 32, source);
    put_address(block + 16, block + 34, target);
    ft_sip s = ft_sip_start(e->config.key);
    for (int i = 0; i < ADDRESS_BLOCK; i += 8) ft_sip_word(&s, ft_load64(block + i));
    return ft_sip_finish(s, data, size, ADDRESS_BLOCK);
}

static void head_of(uint8_t *p, int kind, int count, uint32_t seq, uint64_t run) {
    p[0] = 'F';
    p[1] = 'T';
    p[2] = (uint8_t)(VERSION << 4 | kind);
    p[3] = (uint8_t)count;
    put32(p + 4, seq);
    put64(p + 8, run);
}

static int64_t reading(ft_engine *e, int64_t system_ns) {
    return e->clocked ? ft_clock_read(&e->clock, system_ns) : system_ns;
}

static int group_of(const ft_engine *e, const shot *s, int paired) {
    return (s->peer * e->config.paths + s->path) * 2 + paired;
}

/* --- stamps ------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t stamp; /* already on this NIC's clock */
    int64_t raw;
    uint32_t id, drops, kind;
    int is_transmit, has_drops;
    int is_icmp, icmp_type, icmp_code;
    struct sockaddr_storage offender;
} ancillary;

static ancillary read_control(ft_engine *e, struct msghdr *message) {
    ancillary found = {.stamp = FT_NO_STAMP};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING) {
            struct timespec t[3];
            memcpy(t, CMSG_DATA(c), sizeof t);
            const struct timespec *use = e->config.hardware ? &t[2] : &t[0];
            if (use->tv_sec || use->tv_nsec) {
                int64_t ns = use->tv_sec * 1000000000LL + use->tv_nsec;
                found.raw = ns;
                found.stamp = reading(e, ns);
            }
        } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
            memcpy(&found.drops, CMSG_DATA(c), 4);
            found.has_drops = 1;
        } else if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
                   (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
            struct sock_extended_err error;
            memcpy(&error, CMSG_DATA(c), sizeof error);
            if (error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING) {
                found.is_transmit = 1;
                found.kind = error.ee_info;
                found.id = error.ee_data;
            } else if (error.ee_origin == SO_EE_ORIGIN_ICMP || error.ee_origin == SO_EE_ORIGIN_ICMP6) {
                size_t bytes =
                    c->cmsg_level == SOL_IPV6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
                found.is_icmp = 1;
                found.icmp_type = error.ee_type;
                found.icmp_code = error.ee_code;
                if (c->cmsg_len >= CMSG_LEN(sizeof error + bytes))
                    memcpy(&found.offender, CMSG_DATA(c) + sizeof error, bytes);
            }
        }
    }
    return found;
}

static void batch_init(ft_engine *e, batch *b) {
    for (int i = 0; i < BATCH; i++) {
        b->vectors[i].iov_base = b->data[i];
        b->messages[i].msg_hdr.msg_iov = &b->vectors[i];
        b->messages[i].msg_hdr.msg_iovlen = 1;
        b->messages[i].msg_hdr.msg_name = &b->names[i];
    }
}

/* Whether a call may have failed only since the network sent an error back for an earlier packet: each such error
 * fails one call on its socket, whatever that call is about. */
static int from_network(int error) {
    return error == EHOSTUNREACH || error == ECONNREFUSED || error == ENETUNREACH || error == ENOPROTOOPT ||
           error == EMSGSIZE || error == EHOSTDOWN || error == ENONET || error == EACCES || error == EPROTO;
}

static int batch_receive(ft_engine *e, batch *b, int fd, int want, int flags) {
    for (int i = 0; i < want; i++) {
        struct msghdr *m = &b->messages[i].msg_hdr;
        m->msg_control = b->control[i];
        m->msg_controllen = CONTROL;
        m->msg_namelen = sizeof b->names[i];
        m->msg_flags = 0;
        b->vectors[i].iov_len = MAX_BYTES;
    }
    int got = -1;
    for (int i = 0; i < REPORTED_ERRORS && got < 0; i++) {
        got = recvmmsg(fd, b->messages, (unsigned)want, MSG_DONTWAIT | flags, NULL);
        if (got < 0 && !from_network(errno)) break;
    }
    return got;
}

/* Message i has `size` bytes; with `stamps`, ask for these transmit stamps under `id`. */
static void batch_put(ft_engine *e, batch *b, int i, int size, uint32_t stamps, uint32_t id) {
    struct msghdr *m = &b->messages[i].msg_hdr;
    m->msg_namelen = e->name_bytes;
    m->msg_flags = 0;
    b->vectors[i].iov_len = (size_t)size;
    if (!stamps) {
        m->msg_control = NULL;
        m->msg_controllen = 0;
        return;
    }
    m->msg_control = b->control[i];
    m->msg_controllen = CMSG_SPACE(4) * (e->id_by_counter ? 1 : 2);
    struct cmsghdr *c = (struct cmsghdr *)b->control[i];
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SO_TIMESTAMPING;
    c->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(c), &stamps, 4);
    if (!e->id_by_counter) {
        c = (struct cmsghdr *)(b->control[i] + CMSG_SPACE(4));
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_TS_OPT_ID;
        c->cmsg_len = CMSG_LEN(4);
        memcpy(CMSG_DATA(c), &id, 4);
    }
}

static uint32_t report_flags(const ft_engine *e) {
    uint32_t flags = SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY;
    return flags | (e->config.hardware ? SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_RAW_HARDWARE
                                       : SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE);
}

/* Errors of the network are asked for, since a trace lives of them. */
static int errors_on(const ft_engine *e, int fd) {
    int one = 1;
    if (e->name_bytes == sizeof(struct sockaddr_in6) &&
        setsockopt(fd, SOL_IPV6, IPV6_RECVERR, &one, sizeof one))
        return errno;
    if (e->name_bytes == sizeof(struct sockaddr_in) && setsockopt(fd, SOL_IP, IP_RECVERR, &one, sizeof one))
        return errno;
    return setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof one) ? errno : 0;
}

static int stamping_on(ft_engine *e, int fd) {
    uint32_t flags = report_flags(e), off = flags & ~(uint32_t)SOF_TIMESTAMPING_OPT_ID;
    if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &off, sizeof off)) return errno;
    return setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) ? errno : 0;
}

/* Without ids of our own (before Linux 6.13) the kernel numbers stamped packets itself, and one that it refuses may
 * or may not have been numbered: so after any refusal its count is started anew, and stamps on the way are lost. */
static void restart_ids(ft_engine *e, int fd) {
    for (int i = 0; i < 64 && batch_receive(e, &e->in, fd, BATCH, MSG_ERRQUEUE) > 0; i++) {
    }
    stamping_on(e, fd);
    if (fd == e->responder_fd) {
        e->next_ticket = 0;
        for (uint32_t i = 0; i <= e->reply_mask; i++) e->replies[i].ticket = ~i;
    }
    for (int p = 0; p < e->config.paths; p++) {
        if (e->paths[p].fd != fd) continue;
        e->paths[p].next_id = 0;
        e->paths[p].queued_ns = 0;
        memset(e->paths[p].seq_of, 0xff, (e->paths[p].id_mask + 1) * sizeof(uint32_t));
    }
}

/* Send messages [from, to) of `b`. Returns how many the kernel took; fewer than asked: errno says why the next one
 * failed, and it is that packet's own failure unless it says EAGAIN. */
static int batch_send(ft_engine *e, batch *b, int fd, int from, int to) {
    int done = 0, errors = 0, pending;
    socklen_t size = sizeof pending;
    if (e->id_by_counter) getsockopt(fd, SOL_SOCKET, SO_ERROR, &pending, &size); /* clears it */
    while (done < to - from) {
        int sent = sendmmsg(fd, b->messages + from + done, (unsigned)(to - from - done), MSG_DONTWAIT);
        if (sent > 0) {
            done += sent;
            errors = 0;
            errno = EAGAIN;
            if (e->id_by_counter) break; /* whatever stopped it may have been numbered */
        } else if (e->id_by_counter || !from_network(errno) || ++errors == REPORTED_ERRORS) {
            break;
        }
    }
    if (!done && errno == EINVAL && !e->id_by_counter && b->messages[from].msg_hdr.msg_control) {
        e->id_by_counter = 1;
        restart_ids(e, e->responder_fd);
        for (int p = 0; p < e->config.paths; p++) restart_ids(e, e->paths[p].fd);
        errno = EAGAIN;
    }
    return done;
}

static void refill(double *tokens, int64_t *at, double rate, int64_t now) {
    double most = rate * 0.005 < 32 ? 32 : rate * 0.005;
    *tokens += (double)(now - *at) * 1e-9 * rate;
    if (*tokens > most) *tokens = most;
    *at = now;
}

static void note_drops(ft_engine *e, const ancillary *a, uint32_t *last) {
    if (!a->has_drops || (int32_t)(a->drops - *last) <= 0)
        return; /* stamped on a packet that came before the last */
    e->counters.rx_queue_drops += a->drops - *last;
    *last = a->drops;
}

/* --- traces ------------------------------------------------------------------------------------------------- */

static int kind_of(const uint8_t *p, int size) {
    return size >= TIMED_BYTES - ENTRY && p[0] == 'F' && p[1] == 'T' && p[2] >> 4 == VERSION ? p[2] & 15 : 0;
}

static void put_hit(ft_engine *e, int arrived, int path, const ancillary *a,
                    const struct sockaddr_storage *target, const uint8_t *data, int size) {
    if (e->hit_count == FT_TRACE_HITS) {
        e->counters.trace_hits_dropped++;
        return;
    }
    ft_trace_hit *h = &e->hits[e->hit_count++];
    *h = (ft_trace_hit){.arrived = arrived, .path = path, .target = *target};
    if (a) {
        h->type = a->icmp_type;
        h->code = a->icmp_code;
        h->hop = a->offender;
    }
    h->size = size < (int)sizeof h->data ? size : (int)sizeof h->data;
    memcpy(h->data, data, (size_t)h->size);
}

/* An error of the network for one of our packets. What quotes a probe is no answer to a trace; what quotes too little
 * to tell may be one. */
static void on_icmp(ft_engine *e, int path, const ancillary *a, const struct msghdr *m, const uint8_t *data,
                    int size) {
    e->counters.icmp_errors++;
    int told = size >= 4 && data[0] == 'F' && data[1] == 'T';
    if (told && (data[2] & 15) != KIND_TRACE) return;
    put_hit(e, 0, path, a, m->msg_name, data, size);
}

static void note_asker(ft_engine *e, const struct sockaddr_storage *from, int traced, int64_t now) {
    uint8_t block[24] = {0};
    put_address(block, block + 16, from);
    uint32_t at = (uint32_t)ft_siphash(e->config.key, block, sizeof block), oldest = at & (FT_ASKERS - 1);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t here = (at + i) & (FT_ASKERS - 1);
        ft_asker *k = &e->askers[here];
        if (k->asked_ns && same_address(&k->address, from)) {
            k->asked_ns = now;
            if (traced)
                k->traced_ns = now;
            else
                k->probed_ns = now;
            return;
        }
        if (k->asked_ns < e->askers[oldest].asked_ns) oldest = here;
    }
    e->askers[oldest] = (ft_asker){*from, now, traced ? now : 0, traced ? 0 : now};
}

/* A trace that came all the way: say so, with as many bytes, to whoever has the key. */
static void answer_trace(ft_engine *e, int fd, const struct sockaddr_storage *own, const uint8_t *p, int size,
                         const struct sockaddr_storage *from, int64_t now) {
    if (size != FT_TRACE_BYTES) {
        e->counters.malformed++;
        return;
    }
    if (mac_of(e, from, own, p, FT_TRACE_BYTES - MAC) ^ get64(p + FT_TRACE_BYTES - MAC)) {
        e->counters.bad_mac++;
        return;
    }
    if (get32(p + 24) != e->config.nic_hash) {
        e->counters.wrong_nic++;
        return;
    }
    int64_t age;
    int wraps = __builtin_sub_overflow(now_of(CLOCK_REALTIME), (int64_t)get64(p + 16), &age);
    if (e->config.max_age_ns && (wraps || age > e->config.max_age_ns || age < -e->config.max_age_ns)) {
        e->counters.stale_time++;
        return;
    }
    e->counters.traces_received++;
    e->counters.bytes_asked += (uint64_t)size;
    if (fd == e->responder_fd) note_asker(e, from, 1, now);
    if (e->answer_tokens < 1) {
        e->counters.answers_capped++;
        return;
    }
    e->answer_tokens -= 1;
    batch *b = &e->extra;
    uint8_t *q = b->data[0];
    memcpy(q, p, FT_TRACE_BYTES - MAC);
    q[2] = (uint8_t)(VERSION << 4 | KIND_TRACED);
    put64(q + FT_TRACE_BYTES - MAC, mac_of(e, own, from, q, FT_TRACE_BYTES - MAC));
    b->names[0] = *from;
    batch_put(e, b, 0, FT_TRACE_BYTES, 0, 0);
    if (batch_send(e, b, fd, 0, 1) == 1) {
        e->counters.traces_answered++;
        e->counters.bytes_answered += FT_TRACE_BYTES;
    } else {
        e->counters.send_errors++;
    }
}

static void on_traced(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p, int size,
                      const struct sockaddr_storage *from) {
    if (size != FT_TRACE_BYTES)
        e->counters.malformed++;
    else if (get64(p + 8) != e->config.run)
        e->counters.stale_run++;
    else if (!ft_engine_is_traced(e, p, size, from, own))
        e->counters.bad_mac++;
    else
        put_hit(e, 1, path, NULL, from, p, size);
}

/* --- prober: from shot to sample ---------------------------------------------------------------------------- */

static half *half_of(ft_engine *e, uint32_t seq, shot **owner) {
    shot *s = &e->shots[(seq >> 1) & e->shot_mask];
    *owner = s;
    half *h = &s->halves[seq & 1];
    return (s->number & 0x7fffffff) == seq >> 1 && h->state >= SENT ? h : NULL;
}

/* Where losses.c keeps a half. */
static uint32_t slot_of(const ft_engine *e, const shot *s, int which) {
    return (s->number & e->shot_mask) << 1 | (uint32_t)which;
}

static uint32_t way_of(const ft_engine *e, const shot *s) {
    return (uint32_t)(s->peer * e->config.paths + s->path);
}

/* Whether a - b is a time that a batch may carry: within 2^62 ns, see decode.h. */
static int sound_difference(int64_t a, int64_t b) {
    int64_t difference;
    return !__builtin_sub_overflow(a, b, &difference) && difference <= MAX_NS && difference >= -MAX_NS;
}

static void emit(ft_engine *e, const shot *s, const half *h, int paired) {
    ft_output *out = &e->outputs[e->front];
    if (out->count >= e->config.out_samples) {
        e->counters.overflow_samples++;
        return;
    }
    ft_sample *sample = &out->samples[out->count++];
    sample->group = (uint32_t)group_of(e, s, paired);
    sample->sent = h->t1;
    sample->forward = h->t2 - h->t1;
    sample->turnaround = h->t3 - h->t2;
    sample->reverse = h->t4 - h->t3;
    e->counters.samples++;
}

static void settle(ft_engine *e, shot *s) {
    int complete = 0;
    if (s->settled) return;
    for (int i = 0; i <= s->pair; i++) {
        if (s->halves[i].state < COMPLETE) return;
        complete += s->halves[i].state == COMPLETE;
    }
    s->settled = 1;
    int paired = 0;
    if (s->pair && complete == 2) {
        int64_t apart = s->halves[1].t1 - s->halves[0].t1, set = e->config.spacing_ns;
        paired = apart >= set / 4 && apart <= set * 4;
        e->counters.pairs += (uint64_t)paired;
        e->counters.pairs_demoted += (uint64_t)!paired;
    }
    if (paired && e->outputs[e->front].count + 2 > e->config.out_samples) {
        e->counters.overflow_samples += 2;
        return;
    }
    for (int i = 0; i <= s->pair; i++)
        if (s->halves[i].state == COMPLETE) emit(e, s, &s->halves[i], paired);
}

static void complete(ft_engine *e, shot *s, half *h) {
    if (h->state != REPLIED || h->t1 == FT_NO_STAMP || h->t2 == FT_NO_STAMP || h->t3 == FT_NO_STAMP ||
        h->t4 == FT_NO_STAMP)
        return;
    if (sound_difference(h->t2, h->t1) && sound_difference(h->t3, h->t2) && sound_difference(h->t4, h->t3)) {
        h->state = COMPLETE;
        int64_t network = (h->t4 - h->t1) - (h->t3 - h->t2);
        if (h->t3 >= h->t2 && network >= 0 && network < e->config.timeout_ns)
            ft_losses_network(e->losses, way_of(e, s), network, h->told);
    } else { /* a peer's stamps that no clock shows: one such sample would have the whole batch refused */
        h->state = INCOMPLETE;
        e->counters.no_t3++;
        e->outputs[e->front].no_t3[group_of(e, s, s->pair)]++;
    }
    settle(e, s);
}

static void send_collection(ft_engine *e, uint32_t index) {
    collection *c = &e->collections[index];
    int peer = (int)index / e->config.paths, path = (int)index % e->config.paths;
    batch *b = &e->extra;
    uint8_t *p = b->data[0];
    head_of(p, KIND_COLLECT, (int)c->count, 0, e->config.run);
    for (uint32_t i = 0; i < c->count; i++) {
        put32(p + HEAD + i * ENTRY, c->seq[i]);
        put32(p + HEAD + i * ENTRY + 4, c->ticket[i]);
        put32(p + HEAD + i * ENTRY + 8, 0);
    }
    int size = HEAD + (int)c->count * ENTRY;
    put64(p + size, mac_of(e, &e->paths[path].address, &e->peers[peer].address, p, (size_t)size));
    b->names[0] = e->peers[peer].address;
    batch_put(e, b, 0, size + MAC, 0, 0);
    if (batch_send(e, b, e->paths[path].fd, 0, 1) == 1) {
        e->counters.collects_sent++;
        e->cap_tokens -= 1;
    } else {
        e->counters.send_errors++;
    }
    c->count = 0;
}

static void send_collections(ft_engine *e, int64_t now) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < e->collectings; i++) {
        uint32_t index = e->collecting[i];
        collection *c = &e->collections[index];
        if (c->count && now - c->first_ns >= e->config.collect_delay_ns) send_collection(e, index);
        if (c->count)
            e->collecting[left++] = index;
        else
            c->listed = 0;
    }
    e->collectings = left;
}

static void want_stamp(ft_engine *e, const shot *s, uint32_t seq, half *h, int64_t now) {
    uint32_t index = (uint32_t)(s->peer * e->config.paths + s->path);
    collection *c = &e->collections[index];
    h->tried++;
    if (!c->listed) {
        c->listed = 1;
        e->collecting[e->collectings++] = index;
    }
    if (!c->count) c->first_ns = now;
    c->seq[c->count] = seq;
    c->ticket[c->count++] = h->ticket;
    if (c->count == MAX_ENTRIES) send_collection(e, index);
}

static void on_reply(ft_engine *e, const uint8_t *p, const struct sockaddr_storage *from, int64_t t4,
                     int64_t now) {
    uint32_t seq = get32(p + 4);
    shot *s;
    half *h = half_of(e, seq, &s);
    if (!h) {
        e->counters.late++;
        return;
    }
    if (!same_address(from, &e->peers[s->peer].address)) {
        e->counters.malformed++;
        return;
    }
    if (h->state == LOST) {
        e->counters.late++;
        ft_losses_too_late(e->losses, slot_of(e, s, (int)(seq & 1)), now);
        return;
    }
    if (h->state != SENT) {
        e->counters.duplicates++;
        return;
    }
    h->t2 = (int64_t)get64(p + 16);
    h->t4 = t4;
    h->ticket = get32(p + 24);
    h->state = REPLIED;
    e->counters.replies_received++;
    /* t1 and t4 are of one clock; where one is missing, or the clock was set meanwhile, our own time serves */
    int64_t sent = ft_losses_sent_at(e->losses, slot_of(e, s, (int)(seq & 1))), round = now - sent, stamped;
    if (h->t1 != FT_NO_STAMP && t4 != FT_NO_STAMP && !__builtin_sub_overflow(t4, h->t1, &stamped) &&
        stamped >= 0 && stamped < round)
        round = stamped;
    h->told = (uint8_t)ft_losses_answered(e->losses, slot_of(e, s, (int)(seq & 1)), sent + round, round);
    if (t4 == FT_NO_STAMP) e->counters.no_rx_stamp++;
    if (t4 != FT_NO_STAMP && h->t2 != FT_NO_STAMP) want_stamp(e, s, seq, h, now);
}

static void on_followup(ft_engine *e, const uint8_t *p, const struct sockaddr_storage *from) {
    e->counters.followups_received++;
    for (int i = 0; i < p[3]; i++) {
        uint32_t seq = get32(p + HEAD + i * ENTRY);
        int64_t t3 = (int64_t)get64(p + HEAD + i * ENTRY + 4);
        shot *s;
        half *h = half_of(e, seq, &s);
        if (t3 == FT_NO_STAMP || !h || !same_address(from, &e->peers[s->peer].address)) continue;
        if (h->state != REPLIED || h->t3 != FT_NO_STAMP) {
            e->counters.duplicates++;
            continue;
        }
        h->t3 = t3;
        complete(e, s, h);
    }
}

static void on_path_packet(ft_engine *e, int path, const uint8_t *p, int size,
                           const struct sockaddr_storage *from, int64_t t4, int64_t now) {
    int kind = kind_of(p, size);
    if (kind == KIND_TRACE) {
        refill(&e->answer_tokens, &e->answer_cap_at, e->config.answer_max_pps, now);
        answer_trace(e, e->paths[path].fd, &e->paths[path].address, p, size, from, now);
        return;
    }
    if (kind == KIND_TRACED) {
        on_traced(e, path, &e->paths[path].address, p, size, from);
        return;
    }
    int wanted = kind == KIND_REPLY ? TIMED_BYTES : HEAD + p[3 * (size > 3)] * ENTRY + MAC;
    if ((kind != KIND_REPLY && kind != KIND_FOLLOWUP) || size != wanted || size > MAX_BYTES) {
        e->counters.malformed++;
        return;
    }
    if (get64(p + 8) != e->config.run) {
        e->counters.stale_run++;
        return;
    }
    if (mac_of(e, from, &e->paths[path].address, p, (size_t)(size - MAC)) ^ get64(p + size - MAC)) {
        e->counters.bad_mac++;
        return;
    }
    if (kind == KIND_REPLY)
        on_reply(e, p, from, t4, now);
    else
        on_followup(e, p, from);
}

static void on_path_stamp(ft_engine *e, path_socket *path, const ancillary *a, int64_t now) {
    shot *s;
    uint32_t seq = path->seq_of[a->id & path->id_mask];
    half *h = half_of(e, seq, &s);
    if (a->kind == SCM_TSTAMP_SCHED) {
        path->queued_id = a->id;
        path->queued_ns = a->raw;
        return;
    }
    if (!h || a->stamp == FT_NO_STAMP || &e->paths[s->path] != path || h->t1 != FT_NO_STAMP) {
        e->counters.unknown_stamp++;
        return;
    }
    h->t1 = a->stamp;
    if (a->id == path->queued_id && path->queued_ns) {
        if (a->raw - path->queued_ns > e->trouble.queue_ns) e->trouble.queue_ns = a->raw - path->queued_ns;
        path->queued_ns = 0;
    }
    int64_t left = e->config.hardware ? 0 : a->raw + e->since_realtime;
    ft_losses_left(e->losses, slot_of(e, s, (int)(seq & 1)), left < now ? left : now);
    complete(e, s, h);
}

/* Returns whether more may wait in the socket. */
static int drain_path(ft_engine *e, int path, uint32_t events, int64_t now) {
    path_socket *socket = &e->paths[path];
    batch *b = &e->in;
    int more = 0;
    for (int turn = 0; events & EPOLLERR && turn < 16; turn++) {
        int got = batch_receive(e, b, socket->fd, BATCH, MSG_ERRQUEUE);
        for (int i = 0; i < got; i++) {
            ancillary a = read_control(e, &b->messages[i].msg_hdr);
            if (a.is_transmit)
                on_path_stamp(e, socket, &a, now);
            else if (a.is_icmp)
                on_icmp(e, path, &a, &b->messages[i].msg_hdr, b->data[i], (int)b->messages[i].msg_len);
        }
        if (!(more = got == BATCH)) break;
    }
    int stamps = more;
    for (int turn = 0; events & EPOLLIN && turn < 16; turn++) {
        int got = batch_receive(e, b, socket->fd, BATCH, 0);
        for (int i = 0; i < got; i++) {
            struct msghdr *m = &b->messages[i].msg_hdr;
            ancillary a = read_control(e, m);
            note_drops(e, &a, &socket->drops);
            int size = m->msg_flags & MSG_TRUNC ? 0 : (int)b->messages[i].msg_len;
            on_path_packet(e, path, b->data[i], size, &b->names[i], a.stamp, now);
        }
        if (!(more = got == BATCH)) break;
    }
    return stamps || more;
}

static void expire(ft_engine *e, int64_t now) {
    for (; e->tail_reply != e->head; e->tail_reply++) {
        shot *s = &e->shots[e->tail_reply & e->shot_mask];
        if (s->settled) continue;
        if (s->deadline > now || (s->pair && s->halves[1].state == WAITING)) break;
        for (uint32_t i = 0; i <= s->pair; i++) {
            half *h = &s->halves[i];
            if (h->state == SENT) {
                h->state = LOST;
                ft_losses_over(e->losses, slot_of(e, s, (int)i));
                e->counters.lost++;
                e->outputs[e->front].lost[group_of(e, s, s->pair)]++;
                e->counters.no_t1 += h->t1 == FT_NO_STAMP;
            } else if (h->state == REPLIED && h->t3 == FT_NO_STAMP && h->tried == 1) {
                want_stamp(e, s, (s->number << 1) | i, h, now);
            }
        }
        settle(e, s);
    }
    for (; e->tail_stamp != e->tail_reply; e->tail_stamp++) {
        shot *s = &e->shots[e->tail_stamp & e->shot_mask];
        if (s->settled) continue;
        if (s->deadline + e->config.timeout_ns > now) break;
        for (int i = 0; i <= s->pair; i++) {
            half *h = &s->halves[i];
            if (h->state != REPLIED) continue;
            h->state = INCOMPLETE;
            e->counters.no_t3++;
            e->outputs[e->front].no_t3[group_of(e, s, s->pair)]++;
        }
        settle(e, s);
    }
}

static void ring(ft_engine *e) {
    uint64_t one = 1;
    if (!e->rung) e->rung = write(e->evidence_fd, &one, sizeof one) == sizeof one;
}

/* The thread, or an answer, came so much later than it should have. */
static void came_late(ft_engine *e, int64_t ns) {
    if (ns < e->config.starved_ns || ns > 60000000000LL)
        return; /* no thread waits for minutes: a clock was set */
    e->counters.starved++;
    if (ns > e->trouble.late_ns) e->trouble.late_ns = ns;
    if (ns >= LATE_TELL_NS) e->late_owed = 1;
}

/* When a request may be overdue and its answer is still to be looked for. While all is well every drain_ns is soon
 * enough; from the first loss on each is looked at as soon as it is due. */
static int64_t next_overdue(const ft_engine *e, int64_t now) {
    int waits;
    int64_t at = ft_losses_due(e->losses, &waits);
    if (waits) return least(at, e->last_drain + EARLY_DRAIN_NS);
    if (now >= e->alert_till && at < e->last_drain + e->config.drain_ns)
        at = e->last_drain + e->config.drain_ns;
    return at;
}

static void drain_paths(ft_engine *e, int64_t now) {
    struct epoll_event events[FT_MAX_PATHS];
    e->since_realtime = now - now_of(CLOCK_REALTIME);
    int ready = epoll_wait(e->epoll_paths, events, FT_MAX_PATHS, 0);
    int more = 0;
    for (int i = 0; i < ready; i++) more |= drain_path(e, (int)events[i].data.u32, events[i].events, now);
    /* an answer that lies unread in our own socket is not lost */
    if (!more) {
        ft_losses_judge(e->losses, now);
        expire(e, now);
    }
    if (ft_losses_urgent(e->losses)) {
        e->alert_till = now + ALERT_NS;
        ring(e);
    }
    if (e->collectings) send_collections(e, now);
    e->last_drain = more ? now - 3 * e->config.drain_ns : now;
    e->sent_since_drain = 0;
}

typedef struct {
    shot *s;
    int which;
} aimed;

/* Transmit stamps to ask for: of some requests also when they entered the host's queue, and so its length. */
static uint32_t stamps_of(const ft_engine *e, uint32_t id) {
    return e->tx_flags | (id % QUEUE_ASKED || e->config.hardware ? 0 : SOF_TIMESTAMPING_TX_SCHED);
}

static void put_request(ft_engine *e, int i, shot *s, int which, int64_t system_ns) {
    batch *b = &e->out;
    uint8_t *p = b->data[i];
    path_socket *path = &e->paths[s->path];
    uint32_t seq = (s->number << 1) | (uint32_t)which, id = path->next_id++;
    head_of(p, KIND_REQUEST, 0, seq, e->config.run);
    put64(p + 16, (uint64_t)system_ns);
    put32(p + 24, e->peers[s->peer].nic_hash);
    put32(p + 28, 0);
    put64(p + 32, mac_of(e, &path->address, &e->peers[s->peer].address, p, TIMED_BYTES - MAC));
    b->names[i] = e->peers[s->peer].address;
    batch_put(e, b, i, TIMED_BYTES, stamps_of(e, id), id);
    path->seq_of[id & path->id_mask] = seq;
}

static void send_requests(ft_engine *e, const aimed *aims, int n) {
    for (int from = 0; from < n;) {
        int path = aims[from].s->path, to = from + 1;
        while (to < n && aims[to].s->path == path) to++;
        int64_t before = monotonic();
        int done = batch_send(e, &e->out, e->paths[path].fd, from, to);
        int error = errno;
        for (int i = from; i < from + done; i++) {
            aims[i].s->halves[aims[i].which].state = SENT;
            ft_losses_sent(e->losses, slot_of(e, aims[i].s, aims[i].which), way_of(e, aims[i].s), before);
            if (aims[i].which == 0 && aims[i].s->pair) aims[i].s->second_due = before + e->config.spacing_ns;
        }
        e->sent_since_drain += (uint32_t)done;
        e->counters.requests_sent += (uint64_t)done;
        from += done;
        if (from == to) continue;
        half *h = &aims[from].s->halves[aims[from].which];
        if (error == EAGAIN || error == ENOBUFS || error == ENOMEM) {
            h->state = UNSENT;
            e->counters.send_errors++;
        } else { /* no route, link down, forbidden: the path answers nothing, and that is what `lost` says */
            h->state = SENT;
            ft_losses_unsent(e->losses, slot_of(e, aims[from].s, aims[from].which), 1);
            e->counters.unreachable++;
        }
        if (e->id_by_counter) { /* what was put behind it carries ids of the old count */
            restart_ids(e, e->paths[path].fd);
            for (int i = from + 1; i < n; i++) {
                if (aims[i].s->path != path) continue;
                uint32_t seq = (aims[i].s->number << 1) | (uint32_t)aims[i].which;
                uint32_t id = e->paths[path].next_id++;
                e->paths[path].seq_of[id & e->paths[path].id_mask] = seq;
                batch_put(e, &e->out, i, TIMED_BYTES, stamps_of(e, id), id);
            }
        }
        from++;
    }
}

static void keep_up(ft_engine *e, int64_t now, double mean_ns) {
    if (now - e->next_shot > MAX_DEBT_NS) {
        e->counters.missed_timers += (uint64_t)((double)(now - e->next_shot) / mean_ns) + 1;
        e->next_shot = now;
        if (now - e->throttle_at > 100000000 || !e->throttle_at) {
            e->throttle = e->throttle * 0.7 < LEAST_THROTTLE ? LEAST_THROTTLE : e->throttle * 0.7;
            e->throttle_at = now;
            e->counters.throttled++;
        }
    } else if (e->throttle < 1 && now - e->throttle_at > 1000000000) {
        e->throttle = e->throttle * 1.25 > 1 ? 1 : e->throttle * 1.25;
        e->throttle_at = now;
    }
}

/* Two shots share a waking, to two different paths: that halves what waking costs, and the gaps on each path stay
 * exponential. With one path there is nobody to share with. Where single probes go along with each shot, these are
 * what shares its waking. */
static uint32_t shots_together(const ft_engine *e) {
    uint32_t ways = (uint32_t)(e->actives * (e->config.paths - e->config.spare)),
             most = e->config.singles ? 1 + e->config.singles : 2;
    return ways < most ? ways : most;
}

static uint32_t gcd(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The next of `ways` for a single probe: each once a round, in the same order, so that the gaps on each are even; by
 * golden steps, so that neighbours in time are far apart in peer and path. */
static uint32_t next_way(ft_engine *e, uint32_t ways) {
    if (e->round_of != ways) {
        e->round_of = ways;
        e->round_step = (uint32_t)(ways * 0.6180339887) + 1;
        while (gcd(e->round_step, ways) > 1) e->round_step++;
        e->round_at = draw_below(e, ways);
    }
    e->round_at = (e->round_at + e->round_step) % ways;
    return e->round_at;
}

/* Return the time of a turn: any time of its first half, so that no rhythm of the traffic hides from probes.
 * A throttled prober lets turns go by. */
static int64_t time_of_turn(ft_engine *e, const ft_turns *t, int64_t *turn) {
    while (e->throttle < 1 && (double)(draw(e) >> 11) * 0x1p-53 >= e->throttle) ++*turn;
    double jitter = (double)(draw(e) >> 11) * 0x1p-54;
    return t->at_ns + (int64_t)(((double)*turn + jitter) * t->length_ns);
}

static int64_t first_turn(const ft_turns *t, int64_t now) {
    return (int64_t)ceil((double)(now - t->at_ns) / t->length_ns);
}

static void take_turn(ft_engine *e) {
    e->next_shot = time_of_turn(e, &e->turns, &e->turn);
}

/* Look for the next turn that begins after `now`. */
static void join_turns(ft_engine *e, int64_t now) {
    e->turn = first_turn(&e->turns, now);
    take_turn(e);
}

static void take_aim(ft_engine *e) {
    e->next_aim = time_of_turn(e, &e->aims, &e->aim);
}

static void join_aims(ft_engine *e, int64_t now) {
    e->aim = first_turn(&e->aims, now);
    take_aim(e);
}

/* The way of shot `i` of the turn, as peer slot * paths + path; -1 where the plan has none that is still there. Which
 * one comes first, where one of them is a coded pair, changes from round to round. */
static int64_t planned_way(const ft_engine *e, uint32_t i) {
    const ft_turns *t = &e->turns;
    int64_t round = e->turn / t->count, in_round = e->turn % t->count;
    if (in_round < 0) in_round += t->count;
    int32_t way = t->way[in_round * t->shots + (i + (uint32_t)(round < 0 ? -round : round)) % t->shots];
    return way >= 0 && e->peers[way / e->config.paths].used ? way : -1;
}

/* Begin a shot and put its first request as number `i` of the batch. */
static aimed begin_shot(ft_engine *e, int i, int peer, int path, int paired, int64_t now, int64_t system_ns) {
    shot *s = &e->shots[e->head & e->shot_mask];
    *s = (shot){.number = e->head,
                .peer = (uint16_t)peer,
                .path = (uint8_t)path,
                .pair = (uint8_t)paired,
                .second_due = INT64_MAX,
                .deadline = now + e->config.timeout_ns};
    for (int k = 0; k <= paired; k++)
        s->halves[k] = (half){FT_NO_STAMP, FT_NO_STAMP, FT_NO_STAMP, FT_NO_STAMP, 0, WAITING, 0};
    e->head++;
    put_request(e, i, s, 0, system_ns);
    return (aimed){s, 0};
}

/* Put the single probes of the aims' next turn behind the `n` requests of the batch; returns how many there are then.
 * One that the rate cap or the table leaves no room for is not made up for. */
static int take_aims(ft_engine *e, aimed *aims, int n, int64_t now, int64_t system_ns) {
    const ft_turns *t = &e->aims;
    if (now - e->next_aim > MAX_DEBT_NS) {
        e->counters.missed_timers += (uint64_t)((double)(now - e->next_aim) / t->length_ns);
        join_aims(e, now);
        return n;
    }
    int64_t at = e->aim % t->count;
    refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
    for (uint32_t i = 0; i < t->shots && n < BATCH; i++) {
        int32_t way = t->way[(at < 0 ? at + t->count : at) * t->shots + i];
        if (way < 0 || !e->peers[way / e->config.paths].used) continue;
        if (e->cap_tokens < 1) {
            e->counters.capped++;
            break;
        }
        if (e->head - e->tail_stamp > e->shot_mask) {
            e->counters.table_full++;
            break;
        }
        e->cap_tokens -= 1;
        e->counters.aimed++;
        aims[n] = begin_shot(e, n, way / e->config.paths, way % e->config.paths, 0, now, system_ns);
        n++;
    }
    e->aim++;
    take_aim(e);
    return n;
}

static uint32_t free_shots(const ft_engine *e) {
    return e->shot_mask + 1 - (e->head - e->tail_stamp);
}

/* Whether there is a peer to ask for a sign of life, and leave to. */
static int has_signs(const ft_engine *e) {
    return ft_losses_silent(e->losses) && e->cap_tokens >= 1 && free_shots(e) > 0;
}

/* Put a single probe to each peer that owes an answer and may not live behind the `n` requests of the batch; returns
 * how many there are then. */
static int take_signs(ft_engine *e, aimed *aims, int n, int64_t now, int64_t system_ns) {
    uint32_t ways[BATCH], most = (uint32_t)(BATCH - n);
    refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
    if (most > free_shots(e)) most = free_shots(e);
    if (most > e->cap_tokens)
        most = e->cap_tokens < 1 ? 0 : (uint32_t)e->cap_tokens; /* pairs and answers overdraw */
    uint32_t asked = ft_losses_ask(e->losses, now, ways, most);
    for (uint32_t i = 0; i < asked; i++, n++)
        aims[n] = begin_shot(e, n, (int)(ways[i] / (uint32_t)e->config.paths),
                             (int)(ways[i] % (uint32_t)e->config.paths), 0, now, system_ns);
    e->cap_tokens -= asked;
    e->counters.signs += asked;
    return n;
}

static void shoot(ft_engine *e, int64_t now) {
    aimed aims[BATCH];
    int n = 0, fresh = 0, pair = e->config.spacing_ns > 0;
    int64_t system_ns = now_of(CLOCK_REALTIME);
    for (; e->second != e->head && n < BATCH - SHOTS_A_TURN; e->second++) {
        shot *s = &e->shots[e->second & e->shot_mask];
        if (!s->pair || s->halves[1].state != WAITING) continue;
        if (s->second_due > now) break;
        put_request(e, n, s, 1, system_ns);
        aims[n++] = (aimed){s, 1};
    }
    if (e->actives && e->next_shot <= now) {
        int planned = e->turns.count > 0;
        uint32_t together = planned ? e->turns.shots : shots_together(e);
        uint32_t alone = e->config.singles || planned ? together - 1 : 0;
        double mean_ns =
            planned ? e->turns.length_ns
                    : 1e9 * ((1 + pair) * (together - alone) + alone) / (e->config.rate_pps * e->throttle);
        int64_t late = now - e->next_shot;
        keep_up(e, now, mean_ns);
        if (planned && late > MAX_DEBT_NS) join_turns(e, now);
        refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
        uint32_t taken = UINT32_MAX;
        for (; fresh % together || (fresh + (int)together <= SHOTS_A_TURN && e->next_shot <= now); fresh++) {
            int single = alone && fresh % together; /* rides along */
            if (e->cap_tokens < 1) {
                e->counters.capped++;
                e->next_shot = now + (int64_t)((1 - e->cap_tokens) * 1e9 / e->config.max_pps) + 1;
                break;
            }
            if (e->head - e->tail_stamp > e->shot_mask) {
                e->counters.table_full++;
                e->next_shot = now + 1000000;
                break;
            }
            int paired = pair && !single;
            e->cap_tokens -= 1 + paired;
            uint32_t paths = (uint32_t)(e->config.paths - e->config.spare),
                     choices = (uint32_t)e->actives * paths;
            uint32_t choice;
            int64_t way = planned ? planned_way(e, fresh % together) : -1;
            if (way >= 0) {
                int64_t path = way % e->config.paths;
                choice = (uint32_t)(e->peers[way / e->config.paths].active_at * (int64_t)paths + path);
                if (!single) taken = path < (int64_t)paths ? choice : UINT32_MAX;
            } else if (single) {
                do choice = next_way(e, choices);
                while (choice == taken && choices > 1);
            } else {
                choice = draw_below(e, fresh % together ? choices - 1 : choices);
                if (fresh % together && choice >= taken)
                    choice++; /* another path than the first of the two */
                taken = choice;
            }
            int peer = way >= 0 ? (int)(way / e->config.paths) : e->active[choice / paths];
            int path = way >= 0 ? (int)(way % e->config.paths) : (int)(choice % paths);
            aims[n] = begin_shot(e, n, peer, path, paired, now, system_ns);
            n++;
            if (planned) {
                if (fresh % together == together - 1) {
                    e->turn++;
                    take_turn(e);
                }
            } else if (fresh % together == 0) {
                e->next_shot += draw_gap(e, mean_ns);
            }
        }
    }
    /* whose time has come, and whose turn has begun while this thread is awake anyhow */
    if (e->actives && e->aims.count && n + (int)e->aims.shots <= BATCH &&
        (e->next_aim <= now ||
         (fresh && (double)(now - e->aims.at_ns) >= (double)e->aim * e->aims.length_ns)))
        n = take_aims(e, aims, n, now, system_ns);
    if (ft_losses_silent(e->losses)) n = take_signs(e, aims, n, now, system_ns);
    if (!n) return;
    send_requests(e, aims, n);
    int64_t after = monotonic();
    for (int i = 0; i < n; i++) {
        aims[i].s->deadline = after + e->config.timeout_ns;
        if (aims[i].s->second_due == INT64_MAX && aims[i].s->pair)
            aims[i].s->second_due = after + e->config.spacing_ns;
        settle(e, aims[i].s);
    }
}

/* --- responder ---------------------------------------------------------------------------------------------- */

static void drain_responder_stamps(ft_engine *e) {
    batch *b = &e->in;
    for (int turn = 0; turn < 16; turn++) {
        int got = batch_receive(e, b, e->responder_fd, BATCH, MSG_ERRQUEUE);
        for (int i = 0; i < got; i++) {
            ancillary a = read_control(e, &b->messages[i].msg_hdr);
            if (a.is_icmp)
                on_icmp(e, -1, &a, &b->messages[i].msg_hdr, b->data[i], (int)b->messages[i].msg_len);
            if (!a.is_transmit) continue;
            reply_slot *r = &e->replies[a.id & e->reply_mask];
            if (r->ticket == a.id && a.stamp != FT_NO_STAMP)
                r->t3 = a.stamp;
            else
                e->counters.unknown_stamp++;
        }
        if (got < BATCH) break;
    }
}

static int authentic(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from) {
    if (mac_of(e, from, &e->responder_address, p, (size_t)(size - MAC)) ^ get64(p + size - MAC)) {
        e->counters.bad_mac++;
        return 0;
    }
    return 1;
}

/* Turn one packet into the answer at `out` message `i`. Returns its kind, 0: no answer. */
static int answer(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from, int64_t t2,
                  int64_t system_ns, batch *out, int i) {
    int kind = kind_of(p, size);
    uint8_t *q = out->data[i];
    if (kind == KIND_REQUEST && size == TIMED_BYTES) {
        if (!authentic(e, p, size, from)) return 0;
        if (get32(p + 24) != e->config.nic_hash) {
            e->counters.wrong_nic++;
            return 0;
        }
        int64_t age;
        int wraps = __builtin_sub_overflow(system_ns, (int64_t)get64(p + 16), &age);
        if (e->config.max_age_ns && (wraps || age > e->config.max_age_ns || age < -e->config.max_age_ns)) {
            e->counters.stale_time++;
            return 0;
        }
        note_asker(e, from, 0, monotonic());
        if (t2 == FT_NO_STAMP) e->counters.no_rx_stamp++;
        uint32_t ticket = e->next_ticket++;
        e->replies[ticket & e->reply_mask] = (reply_slot){FT_NO_STAMP, get64(p + 8), ticket, get32(p + 4)};
        head_of(q, KIND_REPLY, 0, get32(p + 4), get64(p + 8));
        put64(q + 16, (uint64_t)t2);
        put32(q + 24, ticket);
        put32(q + 28, 0);
        put64(q + 32, mac_of(e, &e->responder_address, from, q, TIMED_BYTES - MAC));
        batch_put(e, out, i, TIMED_BYTES, e->tx_flags, ticket);
        e->counters.requests_received++;
    } else if (kind == KIND_COLLECT && p[3] <= MAX_ENTRIES && size == HEAD + p[3] * ENTRY + MAC) {
        if (!authentic(e, p, size, from)) return 0;
        uint64_t run = get64(p + 8);
        head_of(q, KIND_FOLLOWUP, p[3], 0, run);
        for (int k = 0; k < p[3]; k++) {
            uint32_t seq = get32(p + HEAD + k * ENTRY), ticket = get32(p + HEAD + k * ENTRY + 4);
            const reply_slot *r = &e->replies[ticket & e->reply_mask];
            int ours = r->ticket == ticket && r->seq == seq && r->run == run;
            put32(q + HEAD + k * ENTRY, seq);
            put64(q + HEAD + k * ENTRY + 4, (uint64_t)(ours ? r->t3 : FT_NO_STAMP));
        }
        put64(q + size - MAC, mac_of(e, &e->responder_address, from, q, (size_t)(size - MAC)));
        batch_put(e, out, i, size, 0, 0);
        e->counters.collects_received++;
    } else {
        e->counters.malformed++;
        return 0;
    }
    out->names[i] = *from;
    e->counters.bytes_asked += (uint64_t)size;
    return kind;
}

static void send_answers(ft_engine *e, batch *b, int n, uint64_t *sent) {
    for (int from = 0; from < n;) {
        int done = batch_send(e, b, e->responder_fd, from, n);
        for (int i = from; i < from + done; i++) e->counters.bytes_answered += b->vectors[i].iov_len;
        *sent += (uint64_t)done;
        from += done;
        if (from == n) break;
        e->counters.send_errors++;
        if (e->id_by_counter && b->messages[from].msg_hdr.msg_control) {
            restart_ids(e, e->responder_fd);
            return; /* the rest carry tickets of the old count */
        }
        from++;
    }
}

/* Answer what has come. Returns 0 where the rate cap says to wait. */
static int respond(ft_engine *e, int64_t now) {
    for (int turn = 0; turn < 4; turn++) {
        refill(&e->answer_tokens, &e->answer_cap_at, e->config.answer_max_pps, now);
        int want = e->answer_tokens < BATCH ? (int)e->answer_tokens : BATCH;
        if (want < 1) {
            e->counters.answers_capped++;
            return 0;
        }
        batch *b = &e->in;
        int got = batch_receive(e, b, e->responder_fd, want, 0), replies = 0, followups = 0;
        if (got <= 0) break;
        int64_t system_ns = now_of(CLOCK_REALTIME);
        int asks[BATCH], collects = 0;
        for (int i = 0; i < got; i++) {
            struct msghdr *m = &b->messages[i].msg_hdr;
            int size = m->msg_flags & MSG_TRUNC ? 0 : (int)b->messages[i].msg_len;
            ancillary a = read_control(e, m);
            if (!i && a.raw && !e->config.hardware) came_late(e, system_ns - a.raw);
            note_drops(e, &a, &e->responder_drops);
            int kind = kind_of(b->data[i], size);
            if (kind == KIND_TRACE)
                answer_trace(e, e->responder_fd, &e->responder_address, b->data[i], size, &b->names[i], now);
            else if (kind == KIND_TRACED)
                on_traced(e, -1, &e->responder_address, b->data[i], size, &b->names[i]);
            else if (size > 2 && (b->data[i][2] & 15) == KIND_COLLECT)
                asks[collects++] = i;
            else
                replies +=
                    answer(e, b->data[i], size, &b->names[i], a.stamp, system_ns, &e->out, replies) != 0;
        }
        e->answer_tokens -= got;
        for (int k = 0; k < collects; k++) {
            int i = asks[k];
            followups += answer(e, b->data[i], (int)b->messages[i].msg_len, &b->names[i], 0, system_ns,
                                &e->extra, followups) != 0;
        }
        if (replies) send_answers(e, &e->out, replies, &e->counters.replies_sent);
        if (followups) send_answers(e, &e->extra, followups, &e->counters.followups_sent);
        if (replies) drain_responder_stamps(e);
        if (got < want) break;
    }
    return 1;
}

/* --- life --------------------------------------------------------------------------------------------------- */

static uint32_t power_of_two(uint32_t least) {
    uint32_t n = 64;
    while (n < least && n < 1U << 30) n <<= 1;
    return n;
}

static int watch(int epoll, int fd, uint32_t events, uint32_t tag) {
    struct epoll_event event = {.events = events, .data.u32 = tag};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

ft_engine *ft_engine_new(const ft_config *config, int responder_fd, const int *path_fds, int phc_fd) {
    ft_engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->config = *config;
    e->phc_fd = phc_fd;
    e->responder_fd = responder_fd;
    e->throttle = 1;
    e->tx_flags = config->hardware ? SOF_TIMESTAMPING_TX_HARDWARE : SOF_TIMESTAMPING_TX_SOFTWARE;
    pthread_mutex_init(&e->mutex, NULL);
    uint64_t z = config->seed;
    for (int i = 0; i < 4; i++) {
        ft_key key = {z, (uint64_t)i};
        e->random[i] = ft_siphash(key, (const uint8_t *)"fabrictime", 10) | (uint64_t)(i == 0);
    }
    size_t peers = (size_t)config->max_peers, groups = peers * (size_t)config->paths * 2;
    uint32_t shots = power_of_two(config->table_shots), ids = shots * 2;
    e->shot_mask = shots - 1;
    e->reply_mask = power_of_two(config->reply_ring) - 1;
    e->peers = calloc(peers, sizeof *e->peers);
    e->active = calloc(peers, sizeof *e->active);
    e->shots = calloc(shots, sizeof *e->shots);
    e->collections = calloc(groups / 2, sizeof *e->collections);
    e->collecting = calloc(groups / 2, sizeof *e->collecting);
    e->hits = calloc(FT_TRACE_HITS, sizeof *e->hits);
    e->askers = calloc(FT_ASKERS, sizeof *e->askers);
    e->replies = calloc(e->reply_mask + 1, sizeof *e->replies);
    int fine = e->peers && e->active && e->shots && e->collections && e->collecting && e->replies &&
               e->hits && e->askers;
    for (int i = 0; i < 2; i++) {
        e->outputs[i].samples = calloc(config->out_samples, sizeof(ft_sample));
        e->outputs[i].lost = calloc(groups, sizeof(uint32_t));
        e->outputs[i].no_t3 = calloc(groups, sizeof(uint32_t));
        fine = fine && e->outputs[i].samples && e->outputs[i].lost && e->outputs[i].no_t3;
    }
    e->losses = ft_losses_new((uint32_t)peers, (uint32_t)config->paths, shots * 2, config->overdue_ns,
                              config->timeout_ns);
    fine = fine && e->losses;
    e->evidence_at = monotonic();
    e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->evidence_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->epoll_wake = epoll_create1(EPOLL_CLOEXEC);
    e->epoll_paths = epoll_create1(EPOLL_CLOEXEC);
    int error = fine ? 0 : ENOMEM;
    if (!error && (e->wake_fd < 0 || e->evidence_fd < 0 || e->epoll_wake < 0 || e->epoll_paths < 0))
        error = errno;
    socklen_t size = sizeof e->responder_address;
    if (!error && getsockname(responder_fd, (struct sockaddr *)&e->responder_address, &size)) error = errno;
    e->name_bytes =
        e->responder_address.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    for (int i = -1; i < config->paths && !error; i++) {
        int fd = i < 0 ? responder_fd : path_fds[i];
        error = stamping_on(e, fd);
        if (!error) error = errors_on(e, fd);
        if (i < 0 || error) continue;
        path_socket *path = &e->paths[i];
        path->fd = fd;
        path->id_mask = ids - 1;
        path->seq_of = malloc(ids * sizeof(uint32_t));
        size = sizeof path->address;
        if (!path->seq_of)
            error = ENOMEM;
        else
            memset(path->seq_of, 0xff, ids * sizeof(uint32_t));
        if (!error && getsockname(fd, (struct sockaddr *)&path->address, &size)) error = errno;
        if (!error && watch(e->epoll_paths, fd, EPOLLIN, (uint32_t)i)) error = errno;
    }
    if (!error &&
        (watch(e->epoll_wake, e->wake_fd, EPOLLIN, 1) || watch(e->epoll_wake, responder_fd, EPOLLIN, 0)))
        error = errno;
    for (uint32_t i = 0; fine && i <= e->reply_mask; i++) e->replies[i].ticket = ~i;
    for (uint32_t i = 0; fine && i <= e->shot_mask; i++) e->shots[i].number = ~i, e->shots[i].settled = 1;
    batch_init(e, &e->in);
    batch_init(e, &e->out);
    batch_init(e, &e->extra);
    if (!error) return e;
    ft_engine_free(e);
    errno = error;
    return NULL;
}

void ft_engine_free(ft_engine *e) {
    if (!e) return;
    int fds[] = {e->wake_fd, e->evidence_fd, e->epoll_wake, e->epoll_paths};
    for (int i = 0; i < 4; i++)
        if (fds[i] > 0) close(fds[i]);
    for (int i = 0; i < FT_MAX_PATHS; i++) free(e->paths[i].seq_of);
    for (int i = 0; i < 2; i++) {
        free(e->outputs[i].samples);
        free(e->outputs[i].lost);
        free(e->outputs[i].no_t3);
    }
    ft_losses_free(e->losses);
    free(e->peers);
    free(e->active);
    free(e->shots);
    free(e->collections);
    free(e->collecting);
    free(e->replies);
    free(e->hits);
    free(e->askers);
    free(e->turns.way);
    free(e->aims.way);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

static void kick(ft_engine *e) {
    uint64_t one = 1;
    ssize_t done = write(e->wake_fd, &one, sizeof one);
    (void)done; /* full means that it will wake anyway */
}

void ft_engine_stop(ft_engine *e) {
    atomic_store(&e->stopping, 1);
    kick(e);
}

void ft_engine_lock(ft_engine *e) {
    atomic_fetch_add(&e->waiters, 1);
    pthread_mutex_lock(&e->mutex);
    atomic_fetch_sub(&e->waiters, 1);
}

void ft_engine_unlock(ft_engine *e) {
    pthread_mutex_unlock(&e->mutex);
}

/* Whoever wants the lock gets it before the loop goes on. */
static void give_way(ft_engine *e) {
    pthread_mutex_unlock(&e->mutex);
    while (atomic_load(&e->waiters)) sched_yield();
    pthread_mutex_lock(&e->mutex);
}

static int sleep_on(int epoll, struct epoll_event *events, int most, int64_t ns) {
#ifdef SYS_epoll_pwait2
    static atomic_int missing;
    if (!atomic_load(&missing)) {
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        int ready = (int)syscall(SYS_epoll_pwait2, epoll, events, most, &t, NULL, 0);
        if (ready >= 0 || errno != ENOSYS) return ready;
        atomic_store(&missing, 1);
    }
#endif
    return epoll_wait(epoll, events, most, (int)((ns + 999999) / 1000000));
}

int ft_engine_run(ft_engine *e, int64_t for_ns) {
    double gap_ns = 1e9 / e->config.rate_pps;
    prctl(PR_SET_TIMERSLACK, gap_ns > 1e6 ? 50000UL : gap_ns > 1e5 ? 10000UL : 1000UL, 0, 0, 0);
    pthread_mutex_lock(&e->mutex);
    int64_t now = monotonic(), end = for_ns < 0 ? INT64_MAX : now + for_ns, polled = 0, paused = 0;
    if (e->turns.count)
        join_turns(e, now);
    else if (!e->next_shot || now - e->next_shot > MAX_DEBT_NS)
        e->next_shot = now + draw_gap(e, 2e9 / e->config.rate_pps);
    if (e->aims.count) join_aims(e, now);
    e->cap_at = e->answer_cap_at = now;
    e->running = 1;
    int error = 0;
    while (!atomic_load(&e->stopping) && now < end && !error) {
        if (atomic_load(&e->waiters)) give_way(e);
        shoot(e, now);
        now = monotonic();
        int outstanding = e->tail_stamp != e->head;
        int64_t second_due = INT64_MAX;
        if (e->second != e->head) {
            const shot *s = &e->shots[e->second & e->shot_mask];
            second_due = s->pair && s->halves[1].state == WAITING ? s->second_due : now;
        }
        /* a pair's second half does not wait for the drain, unless that is long overdue */
        int64_t since = now - e->last_drain;
        int64_t overdue = next_overdue(e, now);
        if (outstanding &&
            (since >= e->config.drain_ns || e->sent_since_drain >= DRAIN_SENT || now >= overdue) &&
            (second_due - now > SPIN_NS || since >= 3 * e->config.drain_ns ||
             e->sent_since_drain >= 2 * DRAIN_SENT)) {
            drain_paths(e, now);
            now = monotonic();
            overdue = next_overdue(e, now);
        } else if (!outstanding && since >= IDLE_NS) { /* peers' traces, while nothing is asked here */
            drain_paths(e, now);
        }
        int64_t due = least(end, now + IDLE_NS);
        if (e->actives) due = least(due, e->next_shot);
        if (e->actives && e->aims.count) due = least(due, e->next_aim);
        if (outstanding) due = least(due, least(overdue, e->last_drain + 2 * e->config.drain_ns));
        due = least(due, second_due);
        if (paused) due = least(due, paused);
        if (has_signs(e)) due = now;
        int64_t wait = due - now;
        if (wait > SPIN_NS || now - polled > 100000) {
            struct epoll_event events[2];
            int ready;
            if (wait > SPIN_NS) {
                pthread_mutex_unlock(&e->mutex);
                ready = sleep_on(e->epoll_wake, events, 2, wait);
                pthread_mutex_lock(&e->mutex);
                e->counters.wakeups++;
            } else {
                ready = epoll_wait(e->epoll_wake, events, 2, 0);
            }
            if (ready < 0 && errno != EINTR) error = errno;
            now = polled = monotonic();
            for (int i = 0; i < ready; i++) {
                if (events[i].data.u32 == 1) {
                    uint64_t count;
                    if (read(e->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN) error = errno;
                    continue;
                }
                if (events[i].events & EPOLLERR) drain_responder_stamps(e);
                if (events[i].events & EPOLLIN && !respond(e, now)) {
                    struct epoll_event none = {.events = 0, .data.u32 = 0};
                    epoll_ctl(e->epoll_wake, EPOLL_CTL_MOD, e->responder_fd, &none);
                    paused = now + 1000000;
                }
            }
            now = monotonic();
            if (paused && now >= paused) {
                struct epoll_event all = {.events = EPOLLIN, .data.u32 = 0};
                epoll_ctl(e->epoll_wake, EPOLL_CTL_MOD, e->responder_fd, &all);
                paused = 0;
            }
        } else {
            while (now < due) now = monotonic();
        }
        came_late(e, now - due);
        if (e->late_owed && now - e->late_rung_at >= LATE_RING_NS) {
            ring(e);
            e->late_owed = 0;
            e->late_rung_at = now;
        }
    }
    if (paused) {
        struct epoll_event all = {.events = EPOLLIN, .data.u32 = 0};
        epoll_ctl(e->epoll_wake, EPOLL_CTL_MOD, e->responder_fd, &all);
    }
    e->running = 0;
    atomic_store(&e->stopping, 0);
    pthread_mutex_unlock(&e->mutex);
    return error;
}

/* --- what the owner does ------------------------------------------------------------------------------------ */

void ft_engine_set_peer(ft_engine *e, int slot, const struct sockaddr_storage *address, uint32_t nic_hash) {
    peer_slot *p = &e->peers[slot];
    ft_losses_meet(e->losses, (uint32_t)slot, !p->used, monotonic());
    p->address = *address;
    p->nic_hash = nic_hash;
    if (p->used) return;
    p->used = 1;
    p->active_at = e->actives;
    e->active[e->actives++] = slot;
    if (e->actives > 1) return;
    if (e->aims.count) join_aims(e, monotonic());
    if (e->turns.count)
        join_turns(e, monotonic());
    else
        e->next_shot = monotonic() + draw_gap(e, 2e9 / e->config.rate_pps);
}

void ft_engine_clear_peer(ft_engine *e, int slot) {
    peer_slot *p = &e->peers[slot];
    if (!p->used) return;
    p->used = 0;
    ft_losses_leave(e->losses, (uint32_t)slot);
    int last = e->active[--e->actives];
    e->active[p->active_at] = last;
    e->peers[last].active_at = p->active_at;
}

int ft_engine_set_path(ft_engine *e, int i, int fd) {
    path_socket *path = &e->paths[i];
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size)) return errno;
    int error = stamping_on(e, fd);
    if (!error) error = errors_on(e, fd);
    if (!error && watch(e->epoll_paths, fd, EPOLLIN, (uint32_t)i)) error = errno;
    if (error) return error;
    epoll_ctl(e->epoll_paths, EPOLL_CTL_DEL, path->fd, NULL);
    path->fd = fd;
    path->address = address;
    path->next_id = path->drops = 0;
    memset(path->seq_of, 0xff, (path->id_mask + 1) * sizeof(uint32_t));
    for (uint32_t n = e->tail_stamp; n != e->head; n++) {
        shot *s = &e->shots[n & e->shot_mask];
        if (s->settled || s->path != i) continue;
        for (int k = 0; k <= s->pair; k++) {
            s->halves[k].state = UNSENT;
            ft_losses_unsent(e->losses, slot_of(e, s, k), 0);
        }
        s->settled = 1;
    }
    ft_losses_new_path(e->losses, (uint32_t)i);
    for (int p = 0; p < e->config.max_peers; p++) e->collections[p * e->config.paths + i].count = 0;
    ft_output *out = &e->outputs[e->front]; /* what was measured there bears the old socket's port */
    uint32_t left = 0;
    for (uint32_t k = 0; k < out->count; k++)
        if ((int)(out->samples[k].group / 2) % e->config.paths != i) out->samples[left++] = out->samples[k];
    out->count = left;
    for (int g = 0; g < ft_engine_groups(e); g++)
        if (g / 2 % e->config.paths == i) out->lost[g] = out->no_t3[g] = 0;
    return 0;
}

int ft_engine_trace_hits(ft_engine *e, ft_trace_hit *into, int most) {
    int n = e->hit_count < most ? e->hit_count : most;
    memcpy(into, e->hits, (size_t)n * sizeof *into);
    memmove(e->hits, e->hits + n, (size_t)(e->hit_count - n) * sizeof *into);
    e->hit_count -= n;
    return n;
}

int ft_engine_askers(ft_engine *e, ft_asker *into, int most) {
    int64_t now = monotonic();
    int n = 0;
    for (int i = 0; i < FT_ASKERS && n < most; i++)
        if (e->askers[i].asked_ns && now - e->askers[i].asked_ns < ASKED_NS) into[n++] = e->askers[i];
    return n;
}

void ft_engine_trace_packet(ft_engine *e, uint8_t *p, const struct sockaddr_storage *source,
                            const struct sockaddr_storage *target, uint32_t nic_hash, uint32_t seq,
                            uint32_t ttl) {
    head_of(p, KIND_TRACE, 0, seq, e->config.run);
    put64(p + 16, (uint64_t)now_of(CLOCK_REALTIME));
    put32(p + 24, nic_hash);
    put32(p + 28, ttl);
    put64(p + 32, mac_of(e, source, target, p, FT_TRACE_BYTES - MAC));
}

int ft_engine_is_traced(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from,
                        const struct sockaddr_storage *own) {
    return size == FT_TRACE_BYTES && kind_of(p, size) == KIND_TRACED && get64(p + 8) == e->config.run &&
           mac_of(e, from, own, p, FT_TRACE_BYTES - MAC) == get64(p + FT_TRACE_BYTES - MAC);
}

void ft_engine_set_rate(ft_engine *e, double rate_pps) {
    e->config.rate_pps = rate_pps;
}

void ft_engine_set_turns(ft_engine *e, ft_turns turns) {
    free(e->turns.way);
    e->turns = turns;
    if (turns.count)
        join_turns(e, monotonic());
    else
        e->next_shot = monotonic() + draw_gap(e, 2e9 / e->config.rate_pps);
}

void ft_engine_shift_turns(ft_engine *e, int64_t at_ns) {
    if (!e->turns.count) return;
    int64_t by = at_ns - e->turns.at_ns;
    e->turns.at_ns = at_ns;
    if (by > MAX_DEBT_NS || by < -MAX_DEBT_NS) join_turns(e, monotonic());
}

void ft_engine_set_aims(ft_engine *e, ft_turns aims) {
    free(e->aims.way);
    e->aims = aims;
    if (aims.count) join_aims(e, monotonic());
}

ft_clock *ft_engine_clock(ft_engine *e, int in_use) {
    e->clocked = in_use;
    return &e->clock;
}

/* The stamping clock and the system's, at one moment. */
static void read_clocks(ft_engine *e, int64_t *clock_ns, int64_t *system_ns) {
    int64_t before = now_of(CLOCK_REALTIME);
    *clock_ns = *system_ns = before;
    if (e->phc_fd >= 0) {
        *clock_ns =
            now_of((clockid_t)(~(unsigned)e->phc_fd << 3 | 3)); /* the kernel's clock id of a /dev/ptpN */
        *system_ns = before + (now_of(CLOCK_REALTIME) - before) / 2;
    }
    *clock_ns = reading(e, *clock_ns);
}

ft_output *ft_engine_swap(ft_engine *e) {
    ft_output *full = &e->outputs[e->front];
    e->front = !e->front;
    ft_output *empty = &e->outputs[e->front];
    size_t groups = (size_t)ft_engine_groups(e);
    empty->count = 0;
    memset(empty->lost, 0, groups * sizeof(uint32_t));
    memset(empty->no_t3, 0, groups * sizeof(uint32_t));
    read_clocks(e, &full->clock_ns, &full->system_ns);
    return full;
}

/* What the kernel dropped since our buffers were full, also where no packet came since to say so. */
static void ask_drops(ft_engine *e, int fd, uint32_t *last) {
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t size = sizeof memory;
    ancillary a = {.has_drops = 1};
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) || size <= SK_MEMINFO_DROPS * sizeof *memory)
        return;
    a.drops = memory[SK_MEMINFO_DROPS];
    note_drops(e, &a, last);
}

void ft_engine_clocks(ft_engine *e, int64_t *clock_ns, int64_t *system_ns) {
    read_clocks(e, clock_ns, system_ns);
}

const ft_counters *ft_engine_counters(ft_engine *e) {
    ft_losses_counts counted = ft_losses_counted(e->losses);
    e->counters.overdue = counted.told;
    e->counters.taken_back = counted.taken_back;
    e->counters.stuck = counted.stuck;
    return &e->counters;
}

uint32_t ft_engine_evidence(ft_engine *e, ft_trouble *trouble, ft_way_news *news, uint32_t most) {
    int64_t now = monotonic();
    uint32_t n = ft_losses_take(e->losses, now, news, most);
    ask_drops(e, e->responder_fd, &e->responder_drops);
    for (int p = 0; p < e->config.paths; p++) ask_drops(e, e->paths[p].fd, &e->paths[p].drops);
    const ft_counters *c = ft_engine_counters(e);
    ft_trouble counted = {.missed_timers = c->missed_timers,
                          .stuck = c->stuck,
                          .receive_drops = c->rx_queue_drops,
                          .capped = c->capped + c->answers_capped};
    *trouble = e->trouble;
    trouble->missed_timers = counted.missed_timers - e->before.missed_timers;
    trouble->stuck = counted.stuck - e->before.stuck;
    trouble->receive_drops = counted.receive_drops - e->before.receive_drops;
    trouble->capped = counted.capped - e->before.capped;
    read_clocks(e, &trouble->clock_ns, &trouble->system_ns);
    trouble->interval_ns = now - e->evidence_at;
    e->before = counted;
    e->trouble = (ft_trouble){0};
    e->evidence_at = now;
    uint64_t count;
    if (e->rung && read(e->evidence_fd, &count, sizeof count) == sizeof count) e->rung = 0;
    return n;
}

int ft_engine_evidence_fd(ft_engine *e) {
    return e->evidence_fd;
}

const char *const *ft_counter_names(void) {
    static const char *const names[] = {
#define X(name) #name,
        FT_COUNTERS(X)
#undef X
    };
    return names;
}

int ft_counter_count(void) {
    return (int)(sizeof(ft_counters) / sizeof(uint64_t));
}
double ft_engine_throttle(ft_engine *e) {
    return e->throttle;
}
int ft_engine_groups(ft_engine *e) {
    return e->config.max_peers * e->config.paths * 2;
}

void ft_engine_scatter(ft_engine *e, ft_output *out, int64_t *start, int64_t *sent, int64_t *forward,
                       int64_t *turnaround, int64_t *reverse) {
    int groups = ft_engine_groups(e);
    memset(start, 0, (size_t)(groups + 1) * sizeof *start);
    for (uint32_t i = 0; i < out->count; i++)
        out->samples[i].order = (uint32_t)start[out->samples[i].group + 1]++;
    for (int g = 0; g < groups; g++) start[g + 1] += start[g];
    for (uint32_t i = 0; i < out->count; i++) {
        const ft_sample *s = &out->samples[i];
        int64_t at = start[s->group] + s->order;
        sent[at] = s->sent;
        forward[at] = s->forward;
        turnaround[at] = s->turnaround;
        reverse[at] = s->reverse;
    }
}

void ft_engine_feed(ft_engine *e, int path, const uint8_t *data, int size,
                    const struct sockaddr_storage *from) {
    uint8_t copy[MAX_BYTES] = {0};
    int taken = size > MAX_BYTES ? 0 : size;
    memcpy(copy, data, (size_t)taken);
    int kind = kind_of(copy, taken);
    if (path >= 0)
        on_path_packet(e, path, copy, taken, from, 1, monotonic());
    else if (kind == KIND_TRACE)
        answer_trace(e, e->responder_fd, &e->responder_address, copy, taken, from, monotonic());
    else if (kind == KIND_TRACED)
        on_traced(e, -1, &e->responder_address, copy, taken, from);
    else
        answer(e, copy, taken, from, 1, now_of(CLOCK_REALTIME), &e->out, 0);
}
