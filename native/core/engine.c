/* One thread per NIC sends requests and answers those of others.
 *
 *      prober                          responder
 *        | t1 --------- request -------> t2 |     both 40 bytes: equal delay on equal links
 *        | t4 <--------- reply --------- t3 |     carries t2 and a ticket
 *        |                                  |     some ms later, for all tickets of this peer:
 *        | ------------ collect ----------> |     tickets
 *        | <----------- follow-up --------- |     their t3, the kernel's own stamps; as long as the collect
 *
 * So no answer is larger than its request. All four timestamps are the kernel's (or the NIC's), hence the thread
 * need not hurry: it wakes to send and to answer, and then reads replies, timestamps and follow-ups in batches.
 *
 * Packets, big endian: magic 'FT', version and kind, count; u32 seq; u64 run; then
 *   request  i64 sender's system clock, u32 hash of the target NIC's name, u32 TOS byte with which it leaves
 *   reply    i64 t2, u32 ticket, u32 TOS byte with which the request arrived (classes.c)
 *   collect  count * (u32 seq, u32 ticket, u32 0)
 *   follow-up count * (u32 seq, i64 t3)
 *   trace    i64 sender's system clock, u32 hash of the traced NIC's name, u32 TTL
 *   traced   the same 16 bytes: the trace with this sequence number arrived
 *   size     i64 sender's system clock, u32 hash of the target NIC's name, u32 bytes of its UDP payload
 *   sized    the same 16 bytes: a packet of that size arrived
 * and last the u64 SipHash-2-4 of source address, destination address, both ports and all of the above. A size probe
 * continues with zeros up to its size.
 *
 * A probe is single or a coded pair; its two halves have the sequence numbers 2n and 2n + 1.
 *
 * losses.c declares requests lost long before the time-out of the samples. It runs whenever a request may be overdue,
 * after all arrived packets were read: an unread answer is not lost. */
#include "engine_state.h"

static uint32_t power_of_two(uint32_t minimum) {
    uint32_t n = 64;
    while (n < minimum && n < 1U << 30) n <<= 1;
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
    size_t peers = (size_t)config->max_peers, paths = peers * (size_t)config->paths,
           groups = paths * (size_t)config->classes * 2;
    uint32_t probes = power_of_two(config->table_probes), ids = probes * 2;
    e->probe_mask = probes - 1;
    e->reply_mask = power_of_two(config->reply_ring) - 1;
    e->peers = calloc(peers, sizeof *e->peers);
    e->active = calloc(peers, sizeof *e->active);
    e->probes = calloc(probes, sizeof *e->probes);
    e->collections = calloc(peers, sizeof *e->collections);
    e->collecting = calloc(peers, sizeof *e->collecting);
    e->next_class = calloc(paths, sizeof *e->next_class);
    e->traces.items = calloc(FT_TRACE_HITS, sizeof *e->traces.items);
    e->sizes.items = calloc(FT_TRACE_HITS, sizeof *e->sizes.items);
    e->probers = calloc(FT_PROBERS, sizeof *e->probers);
    e->replies = calloc(e->reply_mask + 1, sizeof *e->replies);
    int fine = e->peers && e->active && e->probes && e->collections && e->collecting && e->replies &&
               e->traces.items && e->sizes.items && e->probers && e->next_class;
    for (int i = 0; i < 2; i++) {
        e->outputs[i].samples = calloc(config->out_samples, sizeof(ft_sample));
        e->outputs[i].lost = calloc(groups, sizeof(uint32_t));
        e->outputs[i].no_t3 = calloc(groups, sizeof(uint32_t));
        fine = fine && e->outputs[i].samples && e->outputs[i].lost && e->outputs[i].no_t3;
    }
    e->losses = ft_losses_new((uint32_t)peers, (uint32_t)config->paths, (uint32_t)config->classes, probes * 2,
                              config->overdue_ns, config->timeout_ns);
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
    e->responder_tos = config->class[0].tos;
    e->name_bytes =
        e->responder_address.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    for (int i = -1; i < config->paths && !error; i++) {
        int fd = i < 0 ? responder_fd : path_fds[i];
        error = ft_stamping_on(e, fd);
        if (!error) error = ft_errors_on(e, fd);
        if (!error) error = ft_class_on(e, fd);
        if (!error && i < 0 && config->device_index) error = ft_device_on(e, fd);
        if (!error && i >= 0) error = ft_fragments_off(e, fd);
        if (i < 0 || error) continue;
        path_socket *path = &e->paths[i];
        path->fd = fd;
        path->tos = config->class[0].tos;
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
    for (uint32_t i = 0; fine && i <= e->probe_mask; i++) e->probes[i].number = ~i, e->probes[i].settled = 1;
    ft_batch_init(e, &e->in);
    ft_batch_init(e, &e->out);
    ft_batch_init(e, &e->extra);
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
    free(e->probes);
    free(e->collections);
    free(e->collecting);
    free(e->next_class);
    free(e->replies);
    free(e->traces.items);
    free(e->sizes.items);
    free(e->probers);
    free(e->schedule.path_index);
    free(e->flow_schedule.path_index);
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

/* Let waiting threads take the lock before the loop continues. */
static void yield_lock(ft_engine *e) {
    pthread_mutex_unlock(&e->mutex);
    while (atomic_load(&e->waiters)) sched_yield();
    pthread_mutex_lock(&e->mutex);
}

static int sleep_on(int epoll, struct epoll_event *events, int max_events, int64_t ns) {
#ifdef SYS_epoll_pwait2
    static atomic_int missing;
    if (!atomic_load(&missing)) {
        struct timespec t = {ns / 1000000000, ns % 1000000000};
        int ready = (int)syscall(SYS_epoll_pwait2, epoll, events, max_events, &t, NULL, 0);
        if (ready >= 0 || errno != ENOSYS) return ready;
        atomic_store(&missing, 1);
    }
#endif
    return epoll_wait(epoll, events, max_events, (int)((ns + 999999) / 1000000));
}

int ft_engine_run(ft_engine *e, int64_t for_ns) {
    double gap_ns = 1e9 / e->config.rate_pps;
    prctl(PR_SET_TIMERSLACK, gap_ns > 1e6 ? 50000UL : gap_ns > 1e5 ? 10000UL : 1000UL, 0, 0, 0);
    pthread_mutex_lock(&e->mutex);
    int64_t now = monotonic(), end = for_ns < 0 ? INT64_MAX : now + for_ns, polled = 0, paused = 0;
    if (e->schedule.count)
        ft_join_schedule(e, now);
    else if (!e->next_probe_ns || now - e->next_probe_ns > MAX_DEBT_NS)
        e->next_probe_ns = now + draw_gap(e, 2e9 / e->config.rate_pps);
    if (e->flow_schedule.count) ft_join_flow_schedule(e, now);
    e->cap_at = e->answer_cap_at = now;
    e->running = 1;
    int error = 0;
    while (!atomic_load(&e->stopping) && now < end && !error) {
        if (atomic_load(&e->waiters)) yield_lock(e);
        ft_send_due(e, now);
        now = monotonic();
        int outstanding = e->tail_stamp != e->head;
        int64_t second_due = INT64_MAX;
        if (e->second != e->head) {
            const probe *s = &e->probes[e->second & e->probe_mask];
            second_due = s->pair && s->halves[1].state == WAITING ? s->second_due : now;
        }
        /* a pair's second half does not wait for the drain, unless that is long overdue */
        int64_t since = now - e->last_drain;
        int64_t overdue = ft_next_overdue(e, now);
        int64_t collect = e->collectings ? e->collect_at : INT64_MAX;
        if (outstanding &&
            (since >= e->config.drain_ns || e->sent_since_drain >= DRAIN_SENT || now >= overdue ||
             now >= collect) &&
            (second_due - now > SPIN_NS || since >= 3 * e->config.drain_ns ||
             e->sent_since_drain >= 2 * DRAIN_SENT)) {
            ft_drain_paths(e, now);
            now = monotonic();
            overdue = ft_next_overdue(e, now);
            collect = e->collectings ? e->collect_at : INT64_MAX;
        } else if (!outstanding && since >= IDLE_NS) { /* traces of peers, while this prober is idle */
            ft_drain_paths(e, now);
        }
        int64_t due = earlier(end, now + IDLE_NS);
        if (e->actives) due = earlier(due, e->next_probe_ns);
        if (e->actives && e->flow_schedule.count) due = earlier(due, e->next_flow_ns);
        if (outstanding)
            due = earlier(earlier(due, collect), earlier(overdue, e->last_drain + 2 * e->config.drain_ns));
        due = earlier(due, second_due);
        if (paused) due = earlier(due, paused);
        if (ft_has_tail_probes(e)) due = now;
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
                if (events[i].events & EPOLLERR) ft_drain_responder_stamps(e);
                if (events[i].events & EPOLLIN && !ft_respond(e, now)) {
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
        ft_came_late(e, now - due);
        if (e->late_owed && now - e->late_rung_at >= LATE_RING_NS) {
            ft_ring(e);
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

void ft_engine_set_peer(ft_engine *e, int slot, const struct sockaddr_storage *address, uint32_t nic_hash) {
    peer_slot *p = &e->peers[slot];
    ft_losses_add_peer(e->losses, (uint32_t)slot, !p->used, monotonic());
    p->address = *address;
    p->nic_hash = nic_hash;
    if (p->used) return;
    p->used = 1;
    p->active_at = e->actives;
    e->active[e->actives++] = slot;
    if (e->actives > 1) return;
    if (e->flow_schedule.count) ft_join_flow_schedule(e, monotonic());
    if (e->schedule.count)
        ft_join_schedule(e, monotonic());
    else
        e->next_probe_ns = monotonic() + draw_gap(e, 2e9 / e->config.rate_pps);
}

void ft_engine_clear_peer(ft_engine *e, int slot) {
    peer_slot *p = &e->peers[slot];
    if (!p->used) return;
    p->used = 0;
    ft_losses_remove_peer(e->losses, (uint32_t)slot);
    int last = e->active[--e->actives];
    e->active[p->active_at] = last;
    e->peers[last].active_at = p->active_at;
}

static int path_of_group(const ft_engine *e, int group) {
    return group / 2 / e->config.classes % e->config.paths;
}

int ft_engine_set_path(ft_engine *e, int i, int fd) {
    path_socket *path = &e->paths[i];
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size)) return errno;
    int error = ft_stamping_on(e, fd);
    if (!error) error = ft_errors_on(e, fd);
    if (!error) error = ft_class_on(e, fd);
    if (!error) error = ft_fragments_off(e, fd);
    if (!error && watch(e->epoll_paths, fd, EPOLLIN, (uint32_t)i)) error = errno;
    if (error) return error;
    epoll_ctl(e->epoll_paths, EPOLL_CTL_DEL, path->fd, NULL);
    path->fd = fd;
    path->tos = e->config.class[0].tos;
    path->address = address;
    path->next_id = path->drops = 0;
    memset(path->seq_of, 0xff, (path->id_mask + 1) * sizeof(uint32_t));
    for (uint32_t n = e->tail_stamp; n != e->head; n++) {
        probe *s = &e->probes[n & e->probe_mask];
        if (s->settled || s->path != i) continue;
        for (int k = 0; k <= s->pair; k++) {
            s->halves[k].state = UNSENT;
            ft_losses_unsent(e->losses, slot_of(e, s, k), 0);
        }
        s->settled = 1;
    }
    ft_losses_new_path(e->losses, (uint32_t)i);
    ft_output *out = &e->outputs[e->front]; /* its measurements belong to the old socket's port */
    uint32_t left = 0;
    for (uint32_t k = 0; k < out->count; k++)
        if (path_of_group(e, (int)out->samples[k].group) != i) out->samples[left++] = out->samples[k];
    out->count = left;
    for (int g = 0; g < ft_engine_groups(e); g++)
        if (path_of_group(e, g) == i) out->lost[g] = out->no_t3[g] = 0;
    return 0;
}

static int take_hits(ft_hits *hits, ft_trace_hit *into, int max_hits) {
    int n = hits->count < max_hits ? hits->count : max_hits;
    memcpy(into, hits->items, (size_t)n * sizeof *into);
    memmove(hits->items, hits->items + n, (size_t)(hits->count - n) * sizeof *into);
    hits->count -= n;
    return n;
}

int ft_engine_trace_hits(ft_engine *e, ft_trace_hit *into, int max_hits) {
    return take_hits(&e->traces, into, max_hits);
}

int ft_engine_size_hits(ft_engine *e, ft_trace_hit *into, int max_hits) {
    return take_hits(&e->sizes, into, max_hits);
}

int ft_engine_recent_probers(ft_engine *e, ft_prober *into, int max_probers) {
    int64_t now = monotonic();
    int n = 0;
    for (int i = 0; i < FT_PROBERS && n < max_probers; i++)
        if (e->probers[i].seen_ns && now - e->probers[i].seen_ns < ASKED_NS) into[n++] = e->probers[i];
    return n;
}

static void put_timed(ft_engine *e, uint8_t *p, int kind, const struct sockaddr_storage *source,
                      const struct sockaddr_storage *target, uint32_t nic_hash, uint32_t seq, uint32_t last) {
    ft_head_of(p, kind, 0, seq, e->config.run);
    put64(p + 16, (uint64_t)now_of(CLOCK_REALTIME));
    put32(p + 24, nic_hash);
    put32(p + 28, last);
    put64(p + 32, ft_mac_of(e, source, target, p, FT_TRACE_BYTES - MAC));
}

void ft_engine_trace_packet(ft_engine *e, uint8_t *p, const struct sockaddr_storage *source,
                            const struct sockaddr_storage *target, uint32_t nic_hash, uint32_t seq,
                            uint32_t ttl) {
    put_timed(e, p, KIND_TRACE, source, target, nic_hash, seq, ttl);
}

void ft_engine_size_packet(ft_engine *e, uint8_t *p, const struct sockaddr_storage *source,
                           const struct sockaddr_storage *target, uint32_t nic_hash, uint32_t seq,
                           uint32_t size) {
    put_timed(e, p, KIND_SIZE, source, target, nic_hash, seq, size);
}

int ft_engine_is_traced(ft_engine *e, const uint8_t *p, int size, const struct sockaddr_storage *from,
                        const struct sockaddr_storage *own) {
    return size == FT_TRACE_BYTES && kind_of(p, size) == KIND_TRACED && get64(p + 8) == e->config.run &&
           ft_mac_of(e, from, own, p, FT_TRACE_BYTES - MAC) == get64(p + FT_TRACE_BYTES - MAC);
}

void ft_engine_set_rate(ft_engine *e, double rate_pps) {
    e->config.rate_pps = rate_pps;
}

void ft_engine_set_schedule(ft_engine *e, ft_schedule schedule) {
    free(e->schedule.path_index);
    e->schedule = schedule;
    if (schedule.count)
        ft_join_schedule(e, monotonic());
    else
        e->next_probe_ns = monotonic() + draw_gap(e, 2e9 / e->config.rate_pps);
}

void ft_engine_shift_schedule(ft_engine *e, int64_t at_ns) {
    if (!e->schedule.count) return;
    int64_t by = at_ns - e->schedule.at_ns;
    e->schedule.at_ns = at_ns;
    if (by > MAX_DEBT_NS || by < -MAX_DEBT_NS) ft_join_schedule(e, monotonic());
}

void ft_engine_set_flow_probing(ft_engine *e, ft_schedule flow_schedule) {
    free(e->flow_schedule.path_index);
    e->flow_schedule = flow_schedule;
    if (flow_schedule.count) ft_join_flow_schedule(e, monotonic());
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

/* Read the kernel's count of drops by full buffers, even if no later packet carried it. */
static void ask_drops(ft_engine *e, int fd, uint32_t *last) {
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t size = sizeof memory;
    ancillary a = {.has_drops = 1};
    if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &size) || size <= SK_MEMINFO_DROPS * sizeof *memory)
        return;
    a.drops = memory[SK_MEMINFO_DROPS];
    ft_note_drops(e, &a, last);
}

void ft_engine_clocks(ft_engine *e, int64_t *clock_ns, int64_t *system_ns) {
    read_clocks(e, clock_ns, system_ns);
}

const ft_counters *ft_engine_counters(ft_engine *e) {
    ft_losses_counts counted = ft_losses_counted(e->losses);
    e->counters.overdue = counted.declared;
    e->counters.spurious = counted.spurious;
    e->counters.stuck = counted.stuck;
    return &e->counters;
}

uint32_t ft_engine_evidence(ft_engine *e, ft_trouble *trouble, ft_path_news *news, uint32_t max_paths) {
    int64_t now = monotonic();
    uint32_t n = ft_losses_take(e->losses, now, news, max_paths);
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
    return e->config.max_peers * e->config.paths * e->config.classes * 2;
}

void ft_engine_scatter(ft_engine *e, ft_output *out, int64_t *start, int64_t *sent, int64_t *forward,
                       int64_t *turnaround, int64_t *reverse, uint8_t *marks) {
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
        marks[at] = (uint8_t)s->marks;
    }
}

void ft_engine_inject(ft_engine *e, int path, const uint8_t *data, int size,
                      const struct sockaddr_storage *from) {
    uint8_t copy[MAX_BYTES] = {0};
    int taken = size > MAX_BYTES ? 0 : size;
    memcpy(copy, data, (size_t)taken);
    int kind = kind_of(copy, taken);
    if (path >= 0)
        ft_on_path_packet(e, path, copy, taken, from, 1, -1, monotonic());
    else if (kind == KIND_TRACE)
        ft_answer_trace(e, -1, &e->responder_address, copy, taken, from, monotonic());
    else if (kind == KIND_TRACED)
        ft_on_traced(e, -1, &e->responder_address, copy, taken, from);
    else if (kind_of(data, size) == KIND_SIZE)
        ft_answer_size(e, &e->responder_address, data, size, from);
    else
        ft_answer(e, copy, taken, from, 1, -1, now_of(CLOCK_REALTIME), &e->out, 0);
}
