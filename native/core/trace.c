/* Traces: answers of hops and of the far end, and answers to the traces of others. */
#include "engine_state.h"

void ft_put_hit(ft_engine *e, ft_hits *hits, int arrived, int path, const ancillary *a,
                const struct sockaddr_storage *target, const uint8_t *data, int size) {
    if (hits->count == FT_TRACE_HITS) {
        e->counters.trace_hits_dropped++;
        return;
    }
    ft_trace_hit *h = &hits->items[hits->count++];
    *h = (ft_trace_hit){.arrived = arrived, .path = path, .target = *target};
    if (a) {
        h->type = a->icmp_type;
        h->code = a->icmp_code;
        h->mtu = a->mtu;
        h->hop = a->offender;
    }
    h->size = size < (int)sizeof h->data ? size : (int)sizeof h->data;
    memcpy(h->data, data, (size_t)h->size);
}

/* A network error for one of our packets. An error that quotes a probe is no answer to a trace; one that
 * quotes too little may be. */
void ft_on_icmp(ft_engine *e, int path, const ancillary *a, const struct msghdr *m, const uint8_t *data,
                int size) {
    e->counters.icmp_errors++;
    if (ft_is_too_big(e, a)) { /* only a size probe is that big */
        ft_put_hit(e, &e->sizes, 0, path, a, m->msg_name, data, size);
        return;
    }
    int is_ours = size >= 4 && data[0] == 'F' && data[1] == 'T';
    if (is_ours && (data[2] & 15) != KIND_TRACE) return;
    ft_put_hit(e, &e->traces, 0, path, a, m->msg_name, data, size);
}

void ft_note_prober(ft_engine *e, const struct sockaddr_storage *from, int traced, int64_t now) {
    uint8_t block[24] = {0};
    ft_put_address(block, block + 16, from);
    uint32_t at = (uint32_t)ft_siphash(e->config.key, block, sizeof block), oldest = at & (FT_PROBERS - 1);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t here = (at + i) & (FT_PROBERS - 1);
        ft_prober *k = &e->probers[here];
        if (k->seen_ns && ft_same_address(&k->address, from)) {
            k->seen_ns = now;
            if (traced)
                k->traced_ns = now;
            else
                k->probed_ns = now;
            return;
        }
        if (k->seen_ns < e->probers[oldest].seen_ns) oldest = here;
    }
    e->probers[oldest] = (ft_prober){*from, now, traced ? now : 0, traced ? 0 : now};
}

/* Whether the first FT_TRACE_BYTES of a packet to `own` are of a sender with the key, for this NIC and recent. */
int ft_is_acceptable(ft_engine *e, const struct sockaddr_storage *own, const uint8_t *p,
                     const struct sockaddr_storage *from) {
    if (ft_mac_of(e, from, own, p, FT_TRACE_BYTES - MAC) ^ get64(p + FT_TRACE_BYTES - MAC)) {
        e->counters.bad_mac++;
        return 0;
    }
    if (get32(p + 24) != e->config.nic_hash) {
        e->counters.wrong_nic++;
        return 0;
    }
    int64_t age;
    int wraps = __builtin_sub_overflow(now_of(CLOCK_REALTIME), (int64_t)get64(p + 16), &age);
    if (e->config.max_age_ns && (wraps || age > e->config.max_age_ns || age < -e->config.max_age_ns)) {
        e->counters.stale_time++;
        return 0;
    }
    return 1;
}

/* Confirm a trace or size probe that arrived on path socket `path` (-1: the responder) with FT_TRACE_BYTES of that
 * kind. Returns whether the answer was sent. */
int ft_confirm(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p,
               const struct sockaddr_storage *from, int kind) {
    uint8_t q[FT_TRACE_BYTES];
    memcpy(q, p, FT_TRACE_BYTES - MAC);
    q[2] = (uint8_t)(VERSION << 4 | kind);
    put64(q + FT_TRACE_BYTES - MAC, ft_mac_of(e, own, from, q, FT_TRACE_BYTES - MAC));
    if (ft_engine_send(e, path, 0, q, sizeof q, from, 0)) {
        e->counters.send_errors++;
        return 0;
    }
    e->counters.bytes_answered += FT_TRACE_BYTES;
    return 1;
}

/* A trace that arrived on path socket `path` (-1: the responder): confirm it with as many bytes, if the sender has
 * the key. */
void ft_answer_trace(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p, int size,
                     const struct sockaddr_storage *from, int64_t now) {
    if (size != FT_TRACE_BYTES) {
        e->counters.malformed++;
        return;
    }
    if (!ft_is_acceptable(e, own, p, from)) return;
    e->counters.traces_received++;
    e->counters.bytes_asked += (uint64_t)size;
    if (path < 0) ft_note_prober(e, from, 1, now);
    if (e->answer_tokens < 1) {
        e->counters.answers_capped++;
        return;
    }
    e->answer_tokens -= 1;
    e->counters.traces_answered += (uint64_t)ft_confirm(e, path, own, p, from, KIND_TRACED);
}

void ft_on_traced(ft_engine *e, int path, const struct sockaddr_storage *own, const uint8_t *p, int size,
                  const struct sockaddr_storage *from) {
    if (size != FT_TRACE_BYTES)
        e->counters.malformed++;
    else if (get64(p + 8) != e->config.run)
        e->counters.stale_run++;
    else if (!ft_engine_is_traced(e, p, size, from, own))
        e->counters.bad_mac++;
    else
        ft_put_hit(e, &e->traces, 1, path, NULL, from, p, size);
}
