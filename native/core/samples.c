/* From a probe's packets and timestamps to a sample; requests without an answer. */
#include "engine_state.h"

/* Whether a - b is a time that a batch may carry: within 2^62 ns, see decode.h. */
static int valid_difference(int64_t a, int64_t b) {
    int64_t difference;
    return !__builtin_sub_overflow(a, b, &difference) && difference <= MAX_NS && difference >= -MAX_NS;
}

static void emit(ft_engine *e, const probe *s, const half *h, int paired) {
    ft_output *out = &e->outputs[e->front];
    if (out->count >= e->config.out_samples) {
        e->counters.overflow_samples++;
        return;
    }
    ft_sample *sample = &out->samples[out->count++];
    sample->group = (uint32_t)group_of(e, s, paired) & 0x1fffffff;
    sample->marks = h->marks & 7;
    sample->sent = h->t1;
    sample->forward = h->t2 - h->t1;
    sample->turnaround = h->t3 - h->t2;
    sample->reverse = h->t4 - h->t3;
    e->counters.samples++;
}

void ft_settle(ft_engine *e, probe *s) {
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

static void complete(ft_engine *e, probe *s, half *h) {
    if (h->state != REPLIED || h->t1 == FT_NO_STAMP || h->t2 == FT_NO_STAMP || h->t3 == FT_NO_STAMP ||
        h->t4 == FT_NO_STAMP)
        return;
    if (valid_difference(h->t2, h->t1) && valid_difference(h->t3, h->t2) && valid_difference(h->t4, h->t3)) {
        h->state = COMPLETE;
        int64_t network = (h->t4 - h->t1) - (h->t3 - h->t2);
        if (h->t3 >= h->t2 && network >= 0 && network < e->config.timeout_ns)
            ft_losses_network(e->losses, path_of(e, s), network, h->declared);
    } else { /* a peer's stamps that no clock shows: one such sample would have the whole batch refused */
        h->state = INCOMPLETE;
        e->counters.no_t3++;
        e->outputs[e->front].no_t3[group_of(e, s, s->pair)]++;
    }
    ft_settle(e, s);
}

static void send_collection(ft_engine *e, uint32_t peer) {
    collection *c = &e->collections[peer];
    int path = c->path;
    batch *b = &e->extra;
    uint8_t *p = b->data[0];
    ft_head_of(p, KIND_COLLECT, (int)c->count, 0, e->config.run);
    for (uint32_t i = 0; i < c->count; i++) {
        put32(p + HEAD + i * ENTRY, c->seq[i]);
        put32(p + HEAD + i * ENTRY + 4, c->ticket[i]);
        put32(p + HEAD + i * ENTRY + 8, 0);
    }
    int size = HEAD + (int)c->count * ENTRY;
    put64(p + size, ft_mac_of(e, &e->paths[path].address, &e->peers[peer].address, p, (size_t)size));
    b->names[0] = e->peers[peer].address;
    ft_batch_put(e, b, 0, size + MAC, 0, 0);
    /* In the first class: a full queue of another one loses no stamps, and its marks are those of probes. */
    if (!ft_use_class(e, e->paths[path].fd, &e->paths[path].tos, e->config.class[0].tos) &&
        ft_batch_send(e, b, e->paths[path].fd, 0, 1) == 1) {
        e->counters.collects_sent++;
        e->cap_tokens -= 1;
    } else {
        e->counters.send_errors++;
    }
    c->count = 0;
}

static void send_collections(ft_engine *e, int64_t now) {
    if (now < e->collect_at) return;
    for (uint32_t i = 0; i < e->collectings; i++) {
        collection *c = &e->collections[e->collecting[i]];
        if (c->count) send_collection(e, e->collecting[i]);
        c->listed = 0;
    }
    e->collectings = 0;
}

/* When to collect for a reply that is read now. With a period all NICs collect together, so that a responder wakes
 * once for the packets of all its peers. */
static int64_t next_collect(const ft_engine *e, int64_t now) {
    int64_t period = e->config.collect_period_ns, delay = e->config.collect_delay_ns;
    return period ? now + period - (now - e->since_realtime - delay) % period : now + delay;
}

static void want_stamp(ft_engine *e, const probe *s, uint32_t seq, half *h, int64_t now) {
    collection *c = &e->collections[s->peer];
    h->tried++;
    if (!c->listed) {
        c->listed = 1;
        if (!e->collectings) e->collect_at = next_collect(e, now);
        e->collecting[e->collectings++] = s->peer;
    }
    c->path = s->path;
    c->seq[c->count] = seq;
    c->ticket[c->count++] = h->ticket;
    if (c->count == MAX_ENTRIES) send_collection(e, s->peer);
}

static void on_reply(ft_engine *e, const uint8_t *p, const struct sockaddr_storage *from, int64_t t4, int tos,
                     int64_t now) {
    uint32_t seq = get32(p + 4);
    probe *s;
    half *h = half_of(e, seq, &s);
    if (!h) {
        e->counters.late++;
        return;
    }
    if (!ft_same_address(from, &e->peers[s->peer].address)) {
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
    ft_note_marks(e, s, h, get32(p + 28), tos);
    h->state = REPLIED;
    e->counters.replies_received++;
    /* t1 and t4 are of one clock; where one is missing, or the clock was set meanwhile, our own time serves */
    int64_t sent = ft_losses_sent_at(e->losses, slot_of(e, s, (int)(seq & 1))), round = now - sent, stamped;
    if (h->t1 != FT_NO_STAMP && t4 != FT_NO_STAMP && !__builtin_sub_overflow(t4, h->t1, &stamped) &&
        stamped >= 0 && stamped < round)
        round = stamped;
    h->declared = (uint8_t)ft_losses_answered(e->losses, slot_of(e, s, (int)(seq & 1)), sent + round, round);
    if (t4 == FT_NO_STAMP) e->counters.no_rx_stamp++;
    if (t4 != FT_NO_STAMP && h->t2 != FT_NO_STAMP) want_stamp(e, s, seq, h, now);
}

static void on_followup(ft_engine *e, const uint8_t *p, const struct sockaddr_storage *from) {
    e->counters.followups_received++;
    for (int i = 0; i < p[3]; i++) {
        uint32_t seq = get32(p + HEAD + i * ENTRY);
        int64_t t3 = (int64_t)get64(p + HEAD + i * ENTRY + 4);
        probe *s;
        half *h = half_of(e, seq, &s);
        if (t3 == FT_NO_STAMP || !h || !ft_same_address(from, &e->peers[s->peer].address)) continue;
        if (h->state != REPLIED || h->t3 != FT_NO_STAMP) {
            e->counters.duplicates++;
            continue;
        }
        h->t3 = t3;
        complete(e, s, h);
    }
}

void ft_on_path_packet(ft_engine *e, int path, const uint8_t *p, int size,
                       const struct sockaddr_storage *from, int64_t t4, int tos, int64_t now) {
    int kind = kind_of(p, size);
    if (kind == KIND_TRACE) {
        refill(&e->answer_tokens, &e->answer_cap_at, e->config.answer_max_pps, now);
        ft_answer_trace(e, path, &e->paths[path].address, p, size, from, now);
        return;
    }
    if (kind == KIND_TRACED) {
        ft_on_traced(e, path, &e->paths[path].address, p, size, from);
        return;
    }
    if (kind == KIND_SIZED) {
        ft_on_sized(e, path, p, size, from);
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
    if (ft_mac_of(e, from, &e->paths[path].address, p, (size_t)(size - MAC)) ^ get64(p + size - MAC)) {
        e->counters.bad_mac++;
        return;
    }
    if (kind == KIND_REPLY)
        on_reply(e, p, from, t4, tos, now);
    else
        on_followup(e, p, from);
}

static void on_path_stamp(ft_engine *e, path_socket *path, const ancillary *a, int64_t now) {
    probe *s;
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
    for (int iteration = 0; events & EPOLLERR && iteration < 16; iteration++) {
        int got = ft_batch_receive(e, b, socket->fd, BATCH, MSG_ERRQUEUE);
        for (int i = 0; i < got; i++) {
            ancillary a = ft_read_control(e, &b->messages[i].msg_hdr);
            if (a.is_transmit)
                on_path_stamp(e, socket, &a, now);
            else if (a.is_icmp)
                ft_on_icmp(e, path, &a, &b->messages[i].msg_hdr, b->data[i], (int)b->messages[i].msg_len);
        }
        if (!(more = got == BATCH)) break;
    }
    int stamps = more;
    for (int iteration = 0; events & EPOLLIN && iteration < 16; iteration++) {
        int got = ft_batch_receive(e, b, socket->fd, BATCH, 0);
        for (int i = 0; i < got; i++) {
            struct msghdr *m = &b->messages[i].msg_hdr;
            ancillary a = ft_read_control(e, m);
            ft_note_drops(e, &a, &socket->drops);
            int size = m->msg_flags & MSG_TRUNC ? 0 : (int)b->messages[i].msg_len;
            ft_on_path_packet(e, path, b->data[i], size, &b->names[i], a.stamp, a.tos, now);
        }
        if (!(more = got == BATCH)) break;
    }
    return stamps || more;
}

static void expire(ft_engine *e, int64_t now) {
    for (; e->tail_reply != e->head; e->tail_reply++) {
        probe *s = &e->probes[e->tail_reply & e->probe_mask];
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
        ft_settle(e, s);
    }
    for (; e->tail_stamp != e->tail_reply; e->tail_stamp++) {
        probe *s = &e->probes[e->tail_stamp & e->probe_mask];
        if (s->settled) continue;
        if (s->deadline + e->config.timeout_ns > now) break;
        for (int i = 0; i <= s->pair; i++) {
            half *h = &s->halves[i];
            if (h->state != REPLIED) continue;
            h->state = INCOMPLETE;
            e->counters.no_t3++;
            e->outputs[e->front].no_t3[group_of(e, s, s->pair)]++;
        }
        ft_settle(e, s);
    }
}

void ft_ring(ft_engine *e) {
    uint64_t one = 1;
    if (!e->rung) e->rung = write(e->evidence_fd, &one, sizeof one) == sizeof one;
}

/* The thread, or an answer, came so much later than it should have. */
void ft_came_late(ft_engine *e, int64_t ns) {
    if (ns < e->config.cpu_starved_ns || ns > 60000000000LL)
        return; /* no thread waits for minutes: a clock was set */
    e->counters.cpu_starved++;
    if (ns > e->trouble.late_ns) e->trouble.late_ns = ns;
    if (ns >= LATE_REPORT_NS) e->late_owed = 1;
}

/* When a request may be overdue and its answer is still to be looked for. While all is well every drain_ns is soon
 * enough; from the first loss on each is looked at as soon as it is due. */
int64_t ft_next_overdue(const ft_engine *e, int64_t now) {
    int waits;
    int64_t at = ft_losses_due(e->losses, &waits);
    if (waits) return earlier(at, e->last_drain + EARLY_DRAIN_NS);
    if (now >= e->alert_till && at < e->last_drain + e->config.drain_ns)
        at = e->last_drain + e->config.drain_ns;
    return at;
}

void ft_drain_paths(ft_engine *e, int64_t now) {
    struct epoll_event events[FT_MAX_PATHS];
    e->since_realtime = now - now_of(CLOCK_REALTIME);
    int ready = epoll_wait(e->epoll_paths, events, FT_MAX_PATHS, 0);
    int more = 0;
    for (int i = 0; i < ready; i++) more |= drain_path(e, (int)events[i].data.u32, events[i].events, now);
    /* an answer that lies unread in our own socket is not lost */
    if (!more) {
        ft_losses_evaluate(e->losses, now);
        expire(e, now);
    }
    if (ft_losses_urgent(e->losses)) {
        e->alert_till = now + ALERT_NS;
        ft_ring(e);
    }
    if (e->collectings) send_collections(e, now);
    e->last_drain = more ? now - 3 * e->config.drain_ns : now;
    e->sent_since_drain = 0;
}
