/* The responder: answers to requests and collects. */
#include "engine_state.h"

void ft_drain_responder_stamps(ft_engine *e) {
    batch *b = &e->in;
    for (int iteration = 0; iteration < 16; iteration++) {
        int got = ft_batch_receive(e, b, e->responder_fd, BATCH, MSG_ERRQUEUE);
        for (int i = 0; i < got; i++) {
            ancillary a = ft_read_control(e, &b->messages[i].msg_hdr);
            if (a.is_icmp)
                ft_on_icmp(e, -1, &a, &b->messages[i].msg_hdr, b->data[i], (int)b->messages[i].msg_len);
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
    if (ft_mac_of(e, from, &e->responder_address, p, (size_t)(size - MAC)) ^ get64(p + size - MAC)) {
        e->counters.bad_mac++;
        return 0;
    }
    return 1;
}

/* Turn one packet into the answer at `out` message `i`. Returns its kind, 0: no answer. */
int ft_answer(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from, int64_t t2,
              int tos, int64_t system_ns, batch *out, int i) {
    int kind = kind_of(p, size);
    uint8_t *q = out->data[i];
    out->tos[i] = e->config.class[0].tos;
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
        ft_note_prober(e, from, 0, monotonic());
        if (t2 == FT_NO_STAMP) e->counters.no_rx_stamp++;
        uint32_t ticket = e->next_ticket++;
        e->replies[ticket & e->reply_mask] = (reply_slot){FT_NO_STAMP, get64(p + 8), ticket, get32(p + 4)};
        ft_head_of(q, KIND_REPLY, 0, get32(p + 4), get64(p + 8));
        put64(q + 16, (uint64_t)t2);
        put32(q + 24, ticket);
        put32(q + 28, tos < 0 ? 0 : FT_TOS_KNOWN | (uint8_t)tos);
        uint32_t sent = get32(p + 28);
        out->tos[i] = sent & FT_TOS_KNOWN ? (uint8_t)sent : 0;
        put64(q + 32, ft_mac_of(e, &e->responder_address, from, q, TIMED_BYTES - MAC));
        ft_batch_put(e, out, i, TIMED_BYTES, e->tx_flags, ticket);
        e->counters.requests_received++;
    } else if (kind == KIND_COLLECT && p[3] <= MAX_ENTRIES && size == HEAD + p[3] * ENTRY + MAC) {
        if (!authentic(e, p, size, from)) return 0;
        uint64_t run = get64(p + 8);
        ft_head_of(q, KIND_FOLLOWUP, p[3], 0, run);
        for (int k = 0; k < p[3]; k++) {
            uint32_t seq = get32(p + HEAD + k * ENTRY), ticket = get32(p + HEAD + k * ENTRY + 4);
            const reply_slot *r = &e->replies[ticket & e->reply_mask];
            int ours = r->ticket == ticket && r->seq == seq && r->run == run;
            put32(q + HEAD + k * ENTRY, seq);
            put64(q + HEAD + k * ENTRY + 4, (uint64_t)(ours ? r->t3 : FT_NO_STAMP));
        }
        put64(q + size - MAC, ft_mac_of(e, &e->responder_address, from, q, (size_t)(size - MAC)));
        ft_batch_put(e, out, i, size, 0, 0);
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
        int to = from + 1;
        while (to < n && b->tos[to] == b->tos[from]) to++;
        ft_use_class(e, e->responder_fd, &e->responder_tos, b->tos[from]);
        int done = ft_batch_send(e, b, e->responder_fd, from, to);
        for (int i = from; i < from + done; i++) e->counters.bytes_answered += b->vectors[i].iov_len;
        *sent += (uint64_t)done;
        from += done;
        if (from == to) continue;
        e->counters.send_errors++;
        if (e->id_by_counter && b->messages[from].msg_hdr.msg_control) {
            ft_restart_ids(e, e->responder_fd);
            return; /* the rest carry tickets of the old count */
        }
        from++;
    }
}

/* Answer the received packets. Returns 0 if the rate cap requires a wait. */
int ft_respond(ft_engine *e, int64_t now) {
    for (int iteration = 0; iteration < 4; iteration++) {
        refill(&e->answer_tokens, &e->answer_cap_at, e->config.answer_max_pps, now);
        int want = e->answer_tokens < BATCH ? (int)e->answer_tokens : BATCH;
        if (want < 1) {
            e->counters.answers_capped++;
            return 0;
        }
        batch *b = &e->in;
        /* MSG_TRUNC: the length of a size probe, whose end is not read */
        int got = ft_batch_receive(e, b, e->responder_fd, want, MSG_TRUNC), replies = 0, followups = 0;
        if (got <= 0) break;
        int64_t system_ns = now_of(CLOCK_REALTIME);
        int asks[BATCH], collects = 0;
        for (int i = 0; i < got; i++) {
            struct msghdr *m = &b->messages[i].msg_hdr;
            int whole = (int)b->messages[i].msg_len, size = m->msg_flags & MSG_TRUNC ? 0 : whole;
            ancillary a = ft_read_control(e, m);
            if (!i && a.raw && !e->config.hardware) ft_came_late(e, system_ns - a.raw);
            ft_note_drops(e, &a, &e->responder_drops);
            if (a.device_index && a.device_index != e->config.device_index) e->counters.wrong_device++;
            int kind = kind_of(b->data[i], whole);
            if (kind == KIND_SIZE)
                ft_answer_size(e, &e->responder_address, b->data[i], whole, &b->names[i]);
            else if (kind == KIND_TRACE)
                ft_answer_trace(e, -1, &e->responder_address, b->data[i], size, &b->names[i], now);
            else if (kind == KIND_TRACED)
                ft_on_traced(e, -1, &e->responder_address, b->data[i], size, &b->names[i]);
            else if (size > 2 && (b->data[i][2] & 15) == KIND_COLLECT)
                asks[collects++] = i;
            else
                replies += ft_answer(e, b->data[i], size, &b->names[i], a.stamp, a.tos, system_ns, &e->out,
                                     replies) != 0;
        }
        e->answer_tokens -= got;
        for (int k = 0; k < collects; k++) {
            int i = asks[k];
            followups += ft_answer(e, b->data[i], (int)b->messages[i].msg_len, &b->names[i], 0, -1, system_ns,
                                   &e->extra, followups) != 0;
        }
        if (replies) send_answers(e, &e->out, replies, &e->counters.replies_sent);
        if (followups) send_answers(e, &e->extra, followups, &e->counters.followups_sent);
        if (replies) ft_drain_responder_stamps(e);
        if (got < want) break;
    }
    return 1;
}
