/* When and where to probe: slots, flow probing, tail loss probes, rate caps. */
#include "engine_state.h"

/* Transmit timestamps to request: for some requests also the time of entering the host's queue, and so its
 * length. */
static uint32_t stamps_of(const ft_engine *e, uint32_t id) {
    return e->tx_flags | (id % QUEUE_ASKED || e->config.hardware ? 0 : SOF_TIMESTAMPING_TX_SCHED);
}

static void put_request(ft_engine *e, int i, probe *s, int which, int64_t system_ns) {
    batch *b = &e->out;
    uint8_t *p = b->data[i];
    path_socket *path = &e->paths[s->path];
    uint32_t seq = (s->number << 1) | (uint32_t)which, id = path->next_id++;
    ft_head_of(p, KIND_REQUEST, 0, seq, e->config.run);
    put64(p + 16, (uint64_t)system_ns);
    put32(p + 24, e->peers[s->peer].nic_hash);
    put32(p + 28, FT_TOS_KNOWN | e->config.class[s->class].tos);
    put64(p + 32, ft_mac_of(e, &path->address, &e->peers[s->peer].address, p, TIMED_BYTES - MAC));
    b->names[i] = e->peers[s->peer].address;
    ft_batch_put(e, b, i, TIMED_BYTES, stamps_of(e, id), id);
    path->seq_of[id & path->id_mask] = seq;
}

static void send_requests(ft_engine *e, const due_request *due, int n) {
    for (int from = 0; from < n;) {
        int path = due[from].s->path, class = due[from].s->class, to = from + 1;
        while (to < n && due[to].s->path == path && due[to].s->class == class) to++;
        int64_t before = monotonic();
        int error = ft_use_class(e, e->paths[path].fd, &e->paths[path].tos, e->config.class[class].tos),
            done = 0;
        if (!error) {
            done = ft_batch_send(e, &e->out, e->paths[path].fd, from, to);
            error = errno;
        }
        for (int i = from; i < from + done; i++) {
            due[i].s->halves[due[i].which].state = SENT;
            ft_losses_sent(e->losses, slot_of(e, due[i].s, due[i].which), path_of(e, due[i].s),
                           due[i].s->class, before);
            if (due[i].which == 0 && due[i].s->pair) due[i].s->second_due = before + e->config.spacing_ns;
        }
        e->sent_since_drain += (uint32_t)done;
        e->counters.requests_sent += (uint64_t)done;
        from += done;
        if (from == to) continue;
        half *h = &due[from].s->halves[due[from].which];
        if (error == EAGAIN || error == ENOBUFS || error == ENOMEM) {
            h->state = UNSENT;
            e->counters.send_errors++;
        } else { /* no route, link down, forbidden: the path has no answer, which counts as lost */
            h->state = SENT;
            ft_losses_unsent(e->losses, slot_of(e, due[from].s, due[from].which), 1);
            e->counters.unreachable++;
        }
        if (e->id_by_counter) { /* later messages carry ids of the old count */
            ft_restart_ids(e, e->paths[path].fd);
            for (int i = from + 1; i < n; i++) {
                if (due[i].s->path != path) continue;
                uint32_t seq = (due[i].s->number << 1) | (uint32_t)due[i].which;
                uint32_t id = e->paths[path].next_id++;
                e->paths[path].seq_of[id & e->paths[path].id_mask] = seq;
                ft_batch_put(e, &e->out, i, TIMED_BYTES, stamps_of(e, id), id);
            }
        }
        from++;
    }
}

static void keep_up(ft_engine *e, int64_t now, double mean_ns) {
    if (now - e->next_probe_ns > MAX_DEBT_NS) {
        e->counters.missed_timers += (uint64_t)((double)(now - e->next_probe_ns) / mean_ns) + 1;
        e->next_probe_ns = now;
        if (now - e->throttle_at > 100000000 || !e->throttle_at) {
            e->throttle = e->throttle * 0.7 < MIN_THROTTLE ? MIN_THROTTLE : e->throttle * 0.7;
            e->throttle_at = now;
            e->counters.throttled++;
        }
    } else if (e->throttle < 1 && now - e->throttle_at > 1000000000) {
        e->throttle = e->throttle * 1.25 > 1 ? 1 : e->throttle * 1.25;
        e->throttle_at = now;
    }
}

/* Two pairs share a wake-up, on two different paths: that halves the cost of a wake-up, and the gaps on each
 * path stay exponential. With one path there is no sharing. If single probes go with each pair, they share
 * its wake-up. */
static uint32_t probes_per_wakeup(const ft_engine *e) {
    uint32_t paths = (uint32_t)(e->actives * (e->config.paths - e->config.spare)),
             limit = e->config.singles ? 1 + e->config.singles : 2;
    return paths < limit ? paths : limit;
}

static uint32_t gcd(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The next of `paths` paths for a single probe: each once a round, in the same order, so that the gaps on each
 * are even; by golden steps, so that neighbours in time are far apart in peer and path. */
static uint32_t next_path(ft_engine *e, uint32_t paths) {
    if (e->round_of != paths) {
        e->round_of = paths;
        e->round_step = (uint32_t)(paths * 0.6180339887) + 1;
        while (gcd(e->round_step, paths) > 1) e->round_step++;
        e->round_at = draw_below(e, paths);
    }
    e->round_at = (e->round_at + e->round_step) % paths;
    return e->round_at;
}

/* Return the time of a turn: any time of its first half, so that no rhythm of the traffic hides from probes.
 * A throttled prober lets turns go by. */
static int64_t time_of_slot(ft_engine *e, const ft_schedule *t, int64_t *slot) {
    while (e->throttle < 1 && (double)(draw(e) >> 11) * 0x1p-53 >= e->throttle) ++*slot;
    double jitter = (double)(draw(e) >> 11) * 0x1p-54;
    return t->at_ns + (int64_t)(((double)*slot + jitter) * t->length_ns);
}

static int64_t first_slot(const ft_schedule *t, int64_t now) {
    return (int64_t)ceil((double)(now - t->at_ns) / t->length_ns);
}

static void next_slot(ft_engine *e) {
    e->next_probe_ns = time_of_slot(e, &e->schedule, &e->slot);
}

/* Look for the next turn that begins after `now`. */
void ft_join_schedule(ft_engine *e, int64_t now) {
    e->slot = first_slot(&e->schedule, now);
    next_slot(e);
}

static void next_flow_slot(ft_engine *e) {
    e->next_flow_ns = time_of_slot(e, &e->flow_schedule, &e->flow_slot);
}

void ft_join_flow_schedule(ft_engine *e, int64_t now) {
    e->flow_slot = first_slot(&e->flow_schedule, now);
    next_flow_slot(e);
}

/* The path of probe `i` of the slot, as peer slot * paths + path; -1 if the plan names none that still
 * exists. If one of them is a coded pair, the first one changes from round to round. */
static int64_t scheduled_path(const ft_engine *e, uint32_t i) {
    const ft_schedule *t = &e->schedule;
    int64_t round = e->slot / t->count, in_round = e->slot % t->count;
    if (in_round < 0) in_round += t->count;
    int32_t path_index =
        t->path_index[in_round * t->probes + (i + (uint32_t)(round < 0 ? -round : round)) % t->probes];
    return path_index >= 0 && e->peers[path_index / e->config.paths].used ? path_index : -1;
}

/* The class of a path's next probe: each in turn, so that the gaps of each are even. */
static uint8_t next_class(ft_engine *e, int peer, int path) {
    uint8_t *next = &e->next_class[peer * e->config.paths + path], class = *next;
    *next = (uint8_t)((class + 1) % e->config.classes);
    return class;
}

/* Begin a probe and put its first request as number `i` of the batch. */
static due_request begin_probe(ft_engine *e, int i, int peer, int path, int paired, int64_t now,
                               int64_t system_ns) {
    probe *s = &e->probes[e->head & e->probe_mask];
    *s = (probe){.number = e->head,
                 .peer = (uint16_t)peer,
                 .path = (uint8_t)path,
                 .class = next_class(e, peer, path),
                 .pair = (uint8_t)paired,
                 .second_due = INT64_MAX,
                 .deadline = now + e->config.timeout_ns};
    for (int k = 0; k <= paired; k++)
        s->halves[k] = (half){FT_NO_STAMP, FT_NO_STAMP, FT_NO_STAMP, FT_NO_STAMP, 0, WAITING, 0, 0, 0};
    e->head++;
    put_request(e, i, s, 0, system_ns);
    return (due_request){s, 0};
}

/* Append the single probes of the next slot of flow probing to the `n` requests of the batch; return the new
 * number. A probe that the rate cap or the table refuses is not repeated. */
static int put_flow_probes(ft_engine *e, due_request *due, int n, int64_t now, int64_t system_ns) {
    const ft_schedule *t = &e->flow_schedule;
    if (now - e->next_flow_ns > MAX_DEBT_NS) {
        e->counters.missed_timers += (uint64_t)((double)(now - e->next_flow_ns) / t->length_ns);
        ft_join_flow_schedule(e, now);
        return n;
    }
    int64_t at = e->flow_slot % t->count;
    refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
    for (uint32_t i = 0; i < t->probes && n < BATCH; i++) {
        int32_t path_index = t->path_index[(at < 0 ? at + t->count : at) * t->probes + i];
        if (path_index < 0 || !e->peers[path_index / e->config.paths].used) continue;
        if (e->cap_tokens < 1) {
            e->counters.capped++;
            break;
        }
        if (e->head - e->tail_stamp > e->probe_mask) {
            e->counters.table_full++;
            break;
        }
        e->cap_tokens -= 1;
        e->counters.flow_probes++;
        due[n] =
            begin_probe(e, n, path_index / e->config.paths, path_index % e->config.paths, 0, now, system_ns);
        n++;
    }
    e->flow_slot++;
    next_flow_slot(e);
    return n;
}

/* Return whether a peer needs a tail loss probe and the caps allow it. */
int ft_has_tail_probes(const ft_engine *e) {
    return ft_losses_silent(e->losses) && e->cap_tokens >= 1 && free_probes(e) > 0;
}

/* Put a single probe to each peer that owes an answer and may not live behind the `n` requests of the batch; returns
 * how many there are then. */
static int put_tail_probes(ft_engine *e, due_request *due, int n, int64_t now, int64_t system_ns) {
    uint32_t states[BATCH], limit = (uint32_t)(BATCH - n);
    refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
    if (limit > free_probes(e)) limit = free_probes(e);
    if (limit > e->cap_tokens)
        limit = e->cap_tokens < 1 ? 0 : (uint32_t)e->cap_tokens; /* pairs and answers overdraw */
    uint32_t asked = ft_losses_tail_probes(e->losses, now, states, limit);
    for (uint32_t i = 0; i < asked; i++, n++)
        due[n] = begin_probe(e, n, (int)(states[i] / (uint32_t)e->config.paths),
                             (int)(states[i] % (uint32_t)e->config.paths), 0, now, system_ns);
    e->cap_tokens -= asked;
    e->counters.tail_probes += asked;
    return n;
}

void ft_send_due(ft_engine *e, int64_t now) {
    due_request due[BATCH];
    int n = 0, fresh = 0, pair = e->config.spacing_ns > 0;
    int64_t system_ns = now_of(CLOCK_REALTIME);
    for (; e->second != e->head && n < BATCH - PROBES_PER_WAKEUP; e->second++) {
        probe *s = &e->probes[e->second & e->probe_mask];
        if (!s->pair || s->halves[1].state != WAITING) continue;
        if (s->second_due > now) break;
        put_request(e, n, s, 1, system_ns);
        due[n++] = (due_request){s, 1};
    }
    if (e->actives && e->next_probe_ns <= now) {
        int planned = e->schedule.count > 0;
        uint32_t together = planned ? e->schedule.probes : probes_per_wakeup(e);
        uint32_t alone = e->config.singles || planned ? together - 1 : 0;
        double mean_ns =
            planned ? e->schedule.length_ns
                    : 1e9 * ((1 + pair) * (together - alone) + alone) / (e->config.rate_pps * e->throttle);
        int64_t late = now - e->next_probe_ns;
        keep_up(e, now, mean_ns);
        if (planned && late > MAX_DEBT_NS) ft_join_schedule(e, now);
        refill(&e->cap_tokens, &e->cap_at, e->config.max_pps, now);
        uint32_t taken = UINT32_MAX;
        for (; fresh % together || (fresh + (int)together <= PROBES_PER_WAKEUP && e->next_probe_ns <= now);
             fresh++) {
            int single = alone && fresh % together; /* rides along */
            if (e->cap_tokens < 1) {
                e->counters.capped++;
                e->next_probe_ns = now + (int64_t)((1 - e->cap_tokens) * 1e9 / e->config.max_pps) + 1;
                break;
            }
            if (e->head - e->tail_stamp > e->probe_mask) {
                e->counters.table_full++;
                e->next_probe_ns = now + 1000000;
                break;
            }
            int paired = pair && !single;
            e->cap_tokens -= 1 + paired;
            uint32_t paths = (uint32_t)(e->config.paths - e->config.spare),
                     choices = (uint32_t)e->actives * paths;
            uint32_t choice;
            int64_t path_index = planned ? scheduled_path(e, fresh % together) : -1;
            if (path_index >= 0) {
                int64_t path = path_index % e->config.paths;
                choice = (uint32_t)(e->peers[path_index / e->config.paths].active_at * (int64_t)paths + path);
                if (!single) taken = path < (int64_t)paths ? choice : UINT32_MAX;
            } else if (single) {
                do choice = next_path(e, choices);
                while (choice == taken && choices > 1);
            } else {
                choice = draw_below(e, fresh % together ? choices - 1 : choices);
                if (fresh % together && choice >= taken)
                    choice++; /* another path than the first of the two */
                taken = choice;
            }
            int peer = path_index >= 0 ? (int)(path_index / e->config.paths) : e->active[choice / paths];
            int path = path_index >= 0 ? (int)(path_index % e->config.paths) : (int)(choice % paths);
            due[n] = begin_probe(e, n, peer, path, paired, now, system_ns);
            n++;
            if (planned) {
                if (fresh % together == together - 1) {
                    e->slot++;
                    next_slot(e);
                }
            } else if (fresh % together == 0) {
                e->next_probe_ns += draw_gap(e, mean_ns);
            }
        }
    }
    /* probes that are due, and those whose slot has begun while this thread is awake */
    if (e->actives && e->flow_schedule.count && n + (int)e->flow_schedule.probes <= BATCH &&
        (e->next_flow_ns <= now || (fresh && (double)(now - e->flow_schedule.at_ns) >=
                                                 (double)e->flow_slot * e->flow_schedule.length_ns)))
        n = put_flow_probes(e, due, n, now, system_ns);
    if (ft_losses_silent(e->losses)) n = put_tail_probes(e, due, n, now, system_ns);
    if (!n) return;
    send_requests(e, due, n);
    int64_t after = monotonic();
    for (int i = 0; i < n; i++) {
        due[i].s->deadline = after + e->config.timeout_ns;
        if (due[i].s->second_due == INT64_MAX && due[i].s->pair)
            due[i].s->second_due = after + e->config.spacing_ns;
        ft_settle(e, due[i].s);
    }
}
