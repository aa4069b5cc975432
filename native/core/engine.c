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
 * and last the u64 SipHash-2-4 of source address, destination address, both ports and all of the above.
 *
 * A shot is one probe or one coded pair; its two halves have the sequence numbers 2n and 2n + 1. */
#define _GNU_SOURCE
#include "engine.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
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

enum { VERSION = 1, KIND_REQUEST = 1, KIND_REPLY = 2, KIND_COLLECT = 3, KIND_FOLLOWUP = 4 };
enum { HEAD = 16, TIMED_BYTES = 40, ENTRY = 12, MAC = 8, MAX_ENTRIES = 32 };
enum { MAX_BYTES = HEAD + MAX_ENTRIES * ENTRY + MAC, BATCH = 64, CONTROL = 160, ADDRESS_BLOCK = 40 };
enum { SHOTS_A_TURN = 16, DRAIN_SENT = 96 };
enum { FREE_HALF, WAITING, SENT, REPLIED, COMPLETE, LOST, INCOMPLETE, UNSENT };

static const double LEAST_THROTTLE = 1.0 / 16;
static const int64_t MAX_NS = (int64_t)1 << 62, MAX_DEBT_NS = 20000000, SPIN_NS = 30000, IDLE_NS = 20000000;

typedef struct {
  int64_t t1, t2, t3, t4;
  uint32_t ticket;
  uint8_t state, tried;
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
  uint32_t id_mask;
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
  int clocked, phc_fd, responder_fd, wake_fd, epoll_wake, epoll_paths, id_by_counter, running;
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
  uint32_t second; /* pairs whose second half waits: shots [second, head) may hold some */
  collection *collections;
  uint32_t *collecting; /* indices of collections that are not empty */
  uint32_t collectings;
  reply_slot *replies;
  uint32_t reply_mask, next_ticket, responder_drops;
  ft_output outputs[2];
  int front;
  uint32_t sent_since_drain;
  int64_t next_shot, last_drain, cap_at, answer_cap_at, throttle_at;
  double cap_tokens, answer_tokens, throttle;
  uint64_t random[4];
  ft_counters counters;
  batch in, out, extra;
};

/* --- small things ------------------------------------------------------------------------------------------- */

static int64_t now_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int64_t monotonic(void) { return now_of(CLOCK_MONOTONIC); }

static void put32(uint8_t *p, uint32_t v) { v = htobe32(v); memcpy(p, &v, 4); }
static void put64(uint8_t *p, uint64_t v) { v = htobe64(v); memcpy(p, &v, 8); }
static uint32_t get32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return be32toh(v); }
static uint64_t get64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return be64toh(v); }

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

static uint32_t draw_below(ft_engine *e, uint32_t n) { return (uint32_t)(((draw(e) >> 32) * n) >> 32); }

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
  uint32_t id, drops;
  int is_transmit, has_drops;
} ancillary;

static ancillary read_control(ft_engine *e, struct msghdr *message) {
  ancillary found = {FT_NO_STAMP, 0, 0, 0, 0};
  for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPING) {
      struct timespec t[3];
      memcpy(t, CMSG_DATA(c), sizeof t);
      const struct timespec *use = e->config.hardware ? &t[2] : &t[0];
      if (use->tv_sec || use->tv_nsec) {
        int64_t ns = use->tv_sec * 1000000000LL + use->tv_nsec;
        found.stamp = reading(e, ns);
      }
    } else if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
      memcpy(&found.drops, CMSG_DATA(c), 4);
      found.has_drops = 1;
    } else if ((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
               (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) {
      struct sock_extended_err error;
      memcpy(&error, CMSG_DATA(c), sizeof error);
      if (error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && error.ee_info == SCM_TSTAMP_SND) {
        found.is_transmit = 1;
        found.id = error.ee_data;
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

static int batch_receive(ft_engine *e, batch *b, int fd, int want, int flags) {
  for (int i = 0; i < want; i++) {
    struct msghdr *m = &b->messages[i].msg_hdr;
    m->msg_control = b->control[i];
    m->msg_controllen = CONTROL;
    m->msg_namelen = sizeof b->names[i];
    m->msg_flags = 0;
    b->vectors[i].iov_len = MAX_BYTES;
  }
  return recvmmsg(fd, b->messages, (unsigned)want, MSG_DONTWAIT | flags, NULL);
}

/* Point message i at `to` with `size` bytes; with `stamp`, ask for a transmit stamp under `id`. */
static void batch_put(ft_engine *e, batch *b, int i, int size, int stamp, uint32_t id) {
  struct msghdr *m = &b->messages[i].msg_hdr;
  m->msg_namelen = e->name_bytes;
  m->msg_flags = 0;
  b->vectors[i].iov_len = (size_t)size;
  if (!stamp) {
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
  memcpy(CMSG_DATA(c), &e->tx_flags, 4);
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
    memset(e->paths[p].seq_of, 0xff, (e->paths[p].id_mask + 1) * sizeof(uint32_t));
  }
}

/* Send messages [from, to) of `b`. Returns how many the kernel took; fewer than asked: errno says why. */
static int batch_send(ft_engine *e, batch *b, int fd, int from, int to) {
  int done = sendmmsg(fd, b->messages + from, (unsigned)(to - from), MSG_DONTWAIT);
  if (done < 0 && errno == EINVAL && !e->id_by_counter && b->messages[from].msg_hdr.msg_control) {
    e->id_by_counter = 1;
    restart_ids(e, e->responder_fd);
    for (int p = 0; p < e->config.paths; p++) restart_ids(e, e->paths[p].fd);
    errno = EAGAIN;
  }
  return done < 0 ? 0 : done;
}

static void note_drops(ft_engine *e, const ancillary *a, uint32_t *last) {
  if (!a->has_drops) return;
  e->counters.rx_queue_drops += a->drops - *last;
  *last = a->drops;
}

/* --- prober: from shot to sample ---------------------------------------------------------------------------- */

static half *half_of(ft_engine *e, uint32_t seq, shot **owner) {
  shot *s = &e->shots[(seq >> 1) & e->shot_mask];
  *owner = s;
  half *h = &s->halves[seq & 1];
  return (s->number & 0x7fffffff) == seq >> 1 && h->state >= SENT ? h : NULL;
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
    if (c->count) e->collecting[left++] = index;
    else c->listed = 0;
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

static void on_reply(ft_engine *e, const uint8_t *p, const struct sockaddr_storage *from, int64_t t4, int64_t now) {
  uint32_t seq = get32(p + 4);
  shot *s;
  half *h = half_of(e, seq, &s);
  if (!h || h->state == LOST) {
    e->counters.late++;
    return;
  }
  if (!same_address(from, &e->peers[s->peer].address)) {
    e->counters.malformed++;
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

static void on_path_packet(ft_engine *e, int path, const uint8_t *p, int size, const struct sockaddr_storage *from,
                           int64_t t4, int64_t now) {
  int kind = size >= TIMED_BYTES - ENTRY && p[0] == 'F' && p[1] == 'T' && p[2] >> 4 == VERSION ? p[2] & 15 : 0;
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
  if (kind == KIND_REPLY) on_reply(e, p, from, t4, now);
  else on_followup(e, p, from);
}

static void on_path_stamp(ft_engine *e, path_socket *path, const ancillary *a) {
  shot *s;
  half *h = half_of(e, path->seq_of[a->id & path->id_mask], &s);
  if (!h || a->stamp == FT_NO_STAMP || &e->paths[s->path] != path || h->t1 != FT_NO_STAMP) {
    e->counters.unknown_stamp++;
    return;
  }
  h->t1 = a->stamp;
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
      if (a.is_transmit) on_path_stamp(e, socket, &a);
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

static void drain_paths(ft_engine *e, int64_t now) {
  struct epoll_event events[FT_MAX_PATHS];
  int ready = epoll_wait(e->epoll_paths, events, FT_MAX_PATHS, 0);
  int more = 0;
  for (int i = 0; i < ready; i++) more |= drain_path(e, (int)events[i].data.u32, events[i].events, now);
  /* an answer that lies unread in our own socket is not lost */
  if (!more) expire(e, now);
  if (e->collectings) send_collections(e, now);
  e->last_drain = more ? now - 3 * e->config.drain_ns : now;
  e->sent_since_drain = 0;
}

typedef struct {
  shot *s;
  int which;
} aimed;

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
  batch_put(e, b, i, TIMED_BYTES, 1, id);
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
      e->counters.unreachable++;
    }
    if (e->id_by_counter) { /* what was put behind it carries ids of the old count */
      restart_ids(e, e->paths[path].fd);
      for (int i = from + 1; i < n; i++) {
        if (aims[i].s->path != path) continue;
        uint32_t seq = (aims[i].s->number << 1) | (uint32_t)aims[i].which;
        uint32_t id = e->paths[path].next_id++;
        e->paths[path].seq_of[id & e->paths[path].id_mask] = seq;
        batch_put(e, &e->out, i, TIMED_BYTES, 1, id);
      }
    }
    from++;
  }
}

static void refill(double *tokens, int64_t *at, double rate, int64_t now) {
  double most = rate * 0.005 < 32 ? 32 : rate * 0.005;
  *tokens += (double)(now - *at) * 1e-9 * rate;
  if (*tokens > most) *tokens = most;
  *at = now;
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
 * exponential. With one path there is nobody to share with. */
static int shots_together(const ft_engine *e) { return e->actives * e->config.paths > 1 ? 2 : 1; }

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
    int together = shots_together(e);
    double mean_ns = 1e9 * (1 + pair) * together / (e->config.rate_pps * e->throttle);
    keep_up(e, now, mean_ns);
    refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
    uint32_t taken = UINT32_MAX;
    for (; fresh < SHOTS_A_TURN && (e->next_shot <= now || fresh % together); fresh++) {
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
      e->cap_tokens -= 1 + pair;
      shot *s = &e->shots[e->head & e->shot_mask];
      uint32_t paths = (uint32_t)e->config.paths, choices = (uint32_t)e->actives * paths;
      uint32_t choice = draw_below(e, fresh % together ? choices - 1 : choices);
      if (fresh % together && choice >= taken) choice++; /* another path than the first of the two */
      taken = choice;
      *s = (shot){.number = e->head,
                  .peer = (uint16_t)e->active[choice / paths],
                  .path = (uint8_t)(choice % paths),
                  .pair = (uint8_t)pair,
                  .second_due = INT64_MAX,
                  .deadline = now + e->config.timeout_ns};
      for (int i = 0; i <= pair; i++)
        s->halves[i] = (half){FT_NO_STAMP, FT_NO_STAMP, FT_NO_STAMP, FT_NO_STAMP, 0, WAITING, 0};
      e->head++;
      put_request(e, n, s, 0, system_ns);
      aims[n++] = (aimed){s, 0};
      if (fresh % together == 0) e->next_shot += draw_gap(e, mean_ns);
    }
  }
  if (!n) return;
  send_requests(e, aims, n);
  int64_t after = monotonic();
  for (int i = 0; i < n; i++) {
    aims[i].s->deadline = after + e->config.timeout_ns;
    if (aims[i].s->second_due == INT64_MAX && pair) aims[i].s->second_due = after + e->config.spacing_ns;
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
      if (!a.is_transmit) continue;
      reply_slot *r = &e->replies[a.id & e->reply_mask];
      if (r->ticket == a.id && a.stamp != FT_NO_STAMP) r->t3 = a.stamp;
      else e->counters.unknown_stamp++;
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
  int kind = size >= TIMED_BYTES - ENTRY && p[0] == 'F' && p[1] == 'T' && p[2] >> 4 == VERSION ? p[2] & 15 : 0;
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
    if (t2 == FT_NO_STAMP) e->counters.no_rx_stamp++;
    uint32_t ticket = e->next_ticket++;
    e->replies[ticket & e->reply_mask] = (reply_slot){FT_NO_STAMP, get64(p + 8), ticket, get32(p + 4)};
    head_of(q, KIND_REPLY, 0, get32(p + 4), get64(p + 8));
    put64(q + 16, (uint64_t)t2);
    put32(q + 24, ticket);
    put32(q + 28, 0);
    put64(q + 32, mac_of(e, &e->responder_address, from, q, TIMED_BYTES - MAC));
    batch_put(e, out, i, TIMED_BYTES, 1, ticket);
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
      note_drops(e, &a, &e->responder_drops);
      if (size > 2 && (b->data[i][2] & 15) == KIND_COLLECT) asks[collects++] = i;
      else replies += answer(e, b->data[i], size, &b->names[i], a.stamp, system_ns, &e->out, replies) != 0;
    }
    e->answer_tokens -= got;
    for (int k = 0; k < collects; k++) {
      int i = asks[k];
      followups += answer(e, b->data[i], (int)b->messages[i].msg_len, &b->names[i], 0, system_ns, &e->extra,
                          followups) != 0;
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
  e->replies = calloc(e->reply_mask + 1, sizeof *e->replies);
  int fine = e->peers && e->active && e->shots && e->collections && e->collecting && e->replies;
  for (int i = 0; i < 2; i++) {
    e->outputs[i].samples = calloc(config->out_samples, sizeof(ft_sample));
    e->outputs[i].lost = calloc(groups, sizeof(uint32_t));
    e->outputs[i].no_t3 = calloc(groups, sizeof(uint32_t));
    fine = fine && e->outputs[i].samples && e->outputs[i].lost && e->outputs[i].no_t3;
  }
  e->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  e->epoll_wake = epoll_create1(EPOLL_CLOEXEC);
  e->epoll_paths = epoll_create1(EPOLL_CLOEXEC);
  int error = fine ? 0 : ENOMEM;
  if (!error && (e->wake_fd < 0 || e->epoll_wake < 0 || e->epoll_paths < 0)) error = errno;
  socklen_t size = sizeof e->responder_address;
  if (!error && getsockname(responder_fd, (struct sockaddr *)&e->responder_address, &size)) error = errno;
  e->name_bytes = e->responder_address.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
  int one = 1;
  for (int i = -1; i < config->paths && !error; i++) {
    int fd = i < 0 ? responder_fd : path_fds[i];
    error = stamping_on(e, fd);
    if (!error && setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &one, sizeof one)) error = errno;
    if (i < 0 || error) continue;
    path_socket *path = &e->paths[i];
    path->fd = fd;
    path->id_mask = ids - 1;
    path->seq_of = malloc(ids * sizeof(uint32_t));
    size = sizeof path->address;
    if (!path->seq_of) error = ENOMEM;
    else memset(path->seq_of, 0xff, ids * sizeof(uint32_t));
    if (!error && getsockname(fd, (struct sockaddr *)&path->address, &size)) error = errno;
    if (!error && watch(e->epoll_paths, fd, EPOLLIN, (uint32_t)i)) error = errno;
  }
  if (!error && (watch(e->epoll_wake, e->wake_fd, EPOLLIN, 1) || watch(e->epoll_wake, responder_fd, EPOLLIN, 0)))
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
  int fds[] = {e->wake_fd, e->epoll_wake, e->epoll_paths};
  for (int i = 0; i < 3; i++)
    if (fds[i] > 0) close(fds[i]);
  for (int i = 0; i < FT_MAX_PATHS; i++) free(e->paths[i].seq_of);
  for (int i = 0; i < 2; i++) {
    free(e->outputs[i].samples);
    free(e->outputs[i].lost);
    free(e->outputs[i].no_t3);
  }
  free(e->peers);
  free(e->active);
  free(e->shots);
  free(e->collections);
  free(e->collecting);
  free(e->replies);
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

void ft_engine_unlock(ft_engine *e) { pthread_mutex_unlock(&e->mutex); }

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

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

int ft_engine_run(ft_engine *e, int64_t for_ns) {
  double gap_ns = 1e9 / e->config.rate_pps;
  prctl(PR_SET_TIMERSLACK, gap_ns > 1e6 ? 50000UL : gap_ns > 1e5 ? 10000UL : 1000UL, 0, 0, 0);
  pthread_mutex_lock(&e->mutex);
  int64_t now = monotonic(), end = for_ns < 0 ? INT64_MAX : now + for_ns, polled = 0, paused = 0;
  if (!e->next_shot || now - e->next_shot > MAX_DEBT_NS)
    e->next_shot = now + draw_gap(e, 2e9 / e->config.rate_pps);
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
    if (outstanding && (since >= e->config.drain_ns || e->sent_since_drain >= DRAIN_SENT) &&
        (second_due - now > SPIN_NS || since >= 3 * e->config.drain_ns || e->sent_since_drain >= 2 * DRAIN_SENT)) {
      drain_paths(e, now);
      now = monotonic();
    }
    int64_t due = least(end, now + IDLE_NS);
    if (e->actives) due = least(due, e->next_shot);
    if (outstanding) due = least(due, e->last_drain + 2 * e->config.drain_ns);
    due = least(due, second_due);
    if (paused) due = least(due, paused);
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
  p->address = *address;
  p->nic_hash = nic_hash;
  if (p->used) return;
  p->used = 1;
  p->active_at = e->actives;
  e->active[e->actives++] = slot;
  if (e->actives == 1) e->next_shot = monotonic() + draw_gap(e, 2e9 / e->config.rate_pps);
}

void ft_engine_clear_peer(ft_engine *e, int slot) {
  peer_slot *p = &e->peers[slot];
  if (!p->used) return;
  p->used = 0;
  int last = e->active[--e->actives];
  e->active[p->active_at] = last;
  e->peers[last].active_at = p->active_at;
}

void ft_engine_set_rate(ft_engine *e, double rate_pps) { e->config.rate_pps = rate_pps; }

ft_clock *ft_engine_clock(ft_engine *e, int in_use) {
  e->clocked = in_use;
  return &e->clock;
}

ft_output *ft_engine_swap(ft_engine *e) {
  ft_output *full = &e->outputs[e->front];
  e->front = !e->front;
  ft_output *empty = &e->outputs[e->front];
  size_t groups = (size_t)ft_engine_groups(e);
  empty->count = 0;
  memset(empty->lost, 0, groups * sizeof(uint32_t));
  memset(empty->no_t3, 0, groups * sizeof(uint32_t));
  int64_t before = now_of(CLOCK_REALTIME);
  if (e->phc_fd >= 0) {
    full->clock_ns = now_of((clockid_t)(~(unsigned)e->phc_fd << 3 | 3)); /* the kernel's clock id of a /dev/ptpN */
    full->system_ns = before + (now_of(CLOCK_REALTIME) - before) / 2;
  } else {
    full->system_ns = before;
    full->clock_ns = before;
  }
  full->clock_ns = reading(e, full->clock_ns);
  return full;
}

const ft_counters *ft_engine_counters(ft_engine *e) { return &e->counters; }

const char *const *ft_counter_names(void) {
  static const char *const names[] = {
#define X(name) #name,
      FT_COUNTERS(X)
#undef X
  };
  return names;
}

int ft_counter_count(void) { return (int)(sizeof(ft_counters) / sizeof(uint64_t)); }
double ft_engine_throttle(ft_engine *e) { return e->throttle; }
int ft_engine_groups(ft_engine *e) { return e->config.max_peers * e->config.paths * 2; }

void ft_engine_scatter(ft_engine *e, ft_output *out, int64_t *start, int64_t *sent, int64_t *forward,
                       int64_t *turnaround, int64_t *reverse) {
  int groups = ft_engine_groups(e);
  memset(start, 0, (size_t)(groups + 1) * sizeof *start);
  for (uint32_t i = 0; i < out->count; i++) out->samples[i].order = (uint32_t)start[out->samples[i].group + 1]++;
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

void ft_engine_feed(ft_engine *e, int path, const uint8_t *data, int size, const struct sockaddr_storage *from) {
  uint8_t copy[MAX_BYTES] = {0};
  int taken = size > MAX_BYTES ? 0 : size;
  memcpy(copy, data, (size_t)taken);
  if (path >= 0) on_path_packet(e, path, copy, taken, from, 1, monotonic());
  else answer(e, copy, taken, from, 1, now_of(CLOCK_REALTIME), &e->out, 0);
}
