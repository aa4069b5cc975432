/* A network of FIFO output queues, packet by packet.
 *
 * A link is a queue with a finite buffer, a server of constant rate and a wire of constant delay; switches
 * store and forward. The backlog of a queue is the work that it has accepted and not yet put on the wire,
 * including the rest of the packet in service, in ps of the link's time. A packet that arrives at t and
 * finds the backlog B leaves at t + B + service (Lindley's recursion). So a packet costs one event per
 * hop, its arrival at the far end, and none for its departure. It is dropped if B + service exceeds the
 * buffer. Between arrivals B falls at rate 1 down to 0, so its integral and the busy time over a slot are
 * exact sums of trapezoids, not samples.
 *
 * Packets leave a link in order. Each link keeps its packets in a list, and only the first of each list
 * competes for the next event, in a winner tree over links: an update follows a fixed path from leaf to
 * root, without a branch on the times. Sources (flows, probers) have a tree of their own; flows that start
 * later wait in a heap.
 *
 * Every source draws from its own generator (splitmix64, seeded by the simulation's seed and its number).
 * Marks and losses draw from the simulation's generator. So a run is a function of its arguments.
 *
 * Rate control is DCQCN (Zhu et al., SIGCOMM 2015): queues mark by backlog (RED), the receiver notifies
 * the sender at most every notify_every_ps. The sender cuts its rate by alpha / 2, and raises it in fast,
 * additive and hyper steps by timer and byte counter. Simplifications: the notification takes the base
 * delay of the reverse route and meets no queue; timers are processed when the flow sends, in their order.
 * There is no priority flow control: a lossless fabric has buffers that do not overflow. Dropped packets
 * of a message are sent again, after one base delay at the earliest. */
#include "packet.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER        INT64_MAX
#define NOTICE_BYTES 64

/* ---- numbers ---- */

static inline uint64_t scramble(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline uint64_t draw(uint64_t *state) {
    return scramble(*state += UINT64_C(0x9e3779b97f4a7c15));
}

/* Uniform over (0, 1]. */
static inline double uniform(uint64_t *state) {
    return (double)((draw(state) >> 11) + 1) * 0x1p-53;
}

static inline double exponential(uint64_t *state, double mean) {
    return -log(uniform(state)) * mean;
}

/* Return t + d; NEVER if that overflows. */
static inline int64_t later(int64_t t, double d) {
    return d < (double)(NEVER - t) * 0.999 ? t + (int64_t)(d + 0.5) : NEVER;
}

static int grow(void **array, int64_t *capacity, int64_t wanted, size_t element) {
    if (wanted <= *capacity) return 1;
    int64_t larger = *capacity * 2 > wanted ? *capacity * 2 : wanted + 16;
    void *moved = realloc(*array, (size_t)larger * element);
    if (moved == NULL) return 0;
    *array = moved;
    *capacity = larger;
    return 1;
}

/* ---- winner tree ---- */

static int tree_open(struct ft_tree *tree, int32_t leaves) {
    int32_t capacity = 2;
    while (capacity < leaves) capacity *= 2;
    struct ft_start *node = malloc(2 * (size_t)capacity * sizeof *node);
    if (node == NULL) return 0;
    for (int32_t i = 0; i < 2 * capacity; i++) node[i] = (struct ft_start){NEVER, 0};
    tree->node = node;
    tree->capacity = capacity;
    return 1;
}

static inline void tree_set(struct ft_tree *tree, int32_t id, int64_t at_ps) {
    struct ft_start *node = tree->node;
    uint32_t i = (uint32_t)tree->capacity + (uint32_t)id;
    int64_t at = at_ps, winner = id;
    for (;;) {
        node[i].at_ps = at;
        node[i].id = winner;
        if (i == 1) return;
        int64_t ahead = node[i ^ 1].at_ps - at, other = node[i ^ 1].id;
        int64_t mask =
            (ahead - (other < winner)) >> 63; /* all ones if the other is sooner, or equal and lower */
        at += ahead & mask;
        winner ^= (winner ^ other) & mask;
        i >>= 1;
    }
}

/* ---- queues and their exact sums ---- */

static inline void add_up(struct ft_queue *q, int64_t until_ps) {
    int64_t work = q->free_ps - q->last_ps, span = until_ps - q->last_ps;
    work = work > 0 ? work : 0;
    int64_t served = span < work ? span : work;
    q->busy_ps += served;
    q->area += (double)served * ((double)work - 0.5 * (double)served);
    q->last_ps = until_ps;
}

static void end_slots(struct ft_sim *sim, struct ft_queue *q, int64_t t) {
    int32_t link = (int32_t)(q - sim->queue);
    double byte_ps = (double)q->byte_fx / 65536.0;
    while (t >= q->slot_end_ps) {
        add_up(q, q->slot_end_ps);
        int64_t at = (q->slot_end_ps / sim->slot_ps - 1 - sim->first_slot) * sim->links + link;
        sim->depth[at] = (float)(q->area / ((double)sim->slot_ps * byte_ps));
        sim->deepest[at] = (float)((double)q->deepest_ps / byte_ps);
        sim->busy[at] = (float)((double)q->busy_ps / (double)sim->slot_ps);
        sim->bytes[at] = q->bytes;
        sim->drops[at] = q->drops;
        q->area = 0;
        q->busy_ps = q->bytes = q->drops = 0;
        q->deepest_ps = q->free_ps > q->slot_end_ps ? q->free_ps - q->slot_end_ps : 0;
        q->slot_end_ps += sim->slot_ps;
    }
}

static inline void account(struct ft_sim *sim, struct ft_queue *q, int64_t t) {
    if (t >= q->slot_end_ps) end_slots(sim, q, t);
    add_up(q, t);
}

/* Return a place for a new packet, the last freed first, so that the places stay in the cache; -1 without
 * memory. */
static inline int32_t take_place(struct ft_sim *sim) {
    if (sim->free_packet < 0) {
        int64_t capacity = sim->packet_capacity;
        if (capacity > INT32_MAX / 4 ||
            !grow((void **)&sim->packet, &sim->packet_capacity, capacity + 1, sizeof *sim->packet))
            return -1;
        for (int64_t i = sim->packet_capacity; i-- > capacity;) {
            sim->packet[i].next = sim->free_packet;
            sim->free_packet = (int32_t)i;
        }
    }
    int32_t place = sim->free_packet;
    sim->free_packet = sim->packet[place].next;
    return place;
}

/* ---- flows that start later ---- */

static int sooner(struct ft_start a, struct ft_start b) {
    return a.at_ps < b.at_ps || (a.at_ps == b.at_ps && a.id < b.id);
}

static int wait_until(struct ft_sim *sim, int32_t flow, int64_t at_ps) {
    if (!grow((void **)&sim->waiting, &sim->waiting_capacity, sim->n_waiting + 1, sizeof *sim->waiting))
        return 0;
    struct ft_start one = {at_ps, flow}, *heap = sim->waiting;
    int64_t i = sim->n_waiting++;
    for (; i > 0 && sooner(one, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = one;
    sim->flow[flow].pending = 1;
    return 1;
}

static struct ft_start next_waiting(struct ft_sim *sim) {
    struct ft_start *heap = sim->waiting, first = heap[0], last = heap[--sim->n_waiting];
    int64_t i = 0, n = sim->n_waiting;
    for (int64_t child = 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && sooner(heap[child + 1], heap[child])) child++;
        if (!sooner(heap[child], last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    sim->flow[first.id].pending = 0;
    return first;
}

/* ---- the tree of sources ---- */

static int32_t take_source(struct ft_sim *sim, int32_t owner) {
    if (sim->n_free == 0 && sim->seats == sim->sources.capacity) {
        struct ft_tree old = sim->sources;
        int32_t capacity = 2 * old.capacity;
        int32_t *owners = realloc(sim->slot_owner, (size_t)capacity * sizeof *owners);
        if (owners) sim->slot_owner = owners;
        int32_t *empty = realloc(sim->free_seats, (size_t)capacity * sizeof *empty);
        if (empty) sim->free_seats = empty;
        if (owners == NULL || empty == NULL || !tree_open(&sim->sources, capacity)) return -1;
        for (int32_t i = 0; i < old.capacity; i++)
            tree_set(&sim->sources, i, old.node[old.capacity + i].at_ps);
        free(old.node);
    }
    int32_t source_slot = sim->n_free ? sim->free_seats[--sim->n_free] : sim->seats++;
    sim->slot_owner[source_slot] = owner;
    return source_slot;
}

static void leave_seat(struct ft_sim *sim, int32_t source_slot) {
    tree_set(&sim->sources, source_slot, NEVER);
    sim->free_seats[sim->n_free++] = source_slot;
}

/* ---- rate control ---- */

static void rise(const struct ft_rules *rules, struct ft_control *c, double line) {
    int32_t max_steps = c->timer_steps > c->byte_steps ? c->timer_steps : c->byte_steps;
    int32_t min_steps = c->timer_steps < c->byte_steps ? c->timer_steps : c->byte_steps;
    if (min_steps > rules->fast_steps)
        c->target += rules->hyper * (min_steps - rules->fast_steps);
    else if (max_steps >= rules->fast_steps)
        c->target += rules->additive;
    c->target = c->target < line ? c->target : line;
    c->rate = (c->rate + c->target) / 2;
}

/* Process the sender's events up to t in their order: notifications, decay of alpha, increases by timer. */
static void control_until(const struct ft_rules *rules, struct ft_control *c, double line, int64_t t) {
    for (;;) {
        int64_t next = c->decay_at_ps < c->rise_at_ps ? c->decay_at_ps : c->rise_at_ps;
        if (c->notified_ps <= next) {
            next = c->notified_ps;
            if (next > t || next == NEVER) return;
            c->target = c->rate;
            c->rate *= 1 - c->alpha / 2;
            c->rate = c->rate > rules->min_rate ? c->rate : rules->min_rate;
            c->alpha = (1 - rules->g) * c->alpha + rules->g;
            c->decay_at_ps = next + rules->decay_ps;
            c->rise_at_ps = next + rules->rise_ps;
            c->timer_steps = c->byte_steps = 0;
            c->bytes = 0;
            c->notified_ps = NEVER;
        } else if (next > t) {
            return;
        } else if (next == c->decay_at_ps) {
            c->alpha *= 1 - rules->g;
            c->decay_at_ps += rules->decay_ps;
        } else {
            c->timer_steps++;
            rise(rules, c, line);
            c->rise_at_ps += rules->rise_ps;
        }
    }
}

/* ---- the life of a packet ---- */

static inline void leave_place(struct ft_sim *sim, int32_t place) {
    sim->packet[place].next = sim->free_packet;
    sim->free_packet = place;
}

/* Remove the packet at `place`. */
static int lost(struct ft_sim *sim, int32_t place, int64_t t) {
    const struct ft_packet *p = &sim->packet[place];
    leave_place(sim, place);
    if (p->probe) {
        sim->probe[p->owner - sim->first_probe].fate = 2;
        return 1;
    }
    struct ft_flow *flow = &sim->flow[p->owner];
    flow->dropped++;
    flow->dropped_bytes += p->bytes;
    if (flow->kind != FT_MESSAGE || flow->left < 0) return 1;
    flow->left += p->bytes;
    if (flow->source_slot < 0 && !flow->pending) return wait_until(sim, p->owner, t + flow->notify_delay_ps);
    return 1;
}

/* Put a packet into the queue of the link at its hop, or drop it. Return 0 without memory. */
static inline int enqueue(struct ft_sim *sim, int32_t place, int64_t t) {
    struct ft_packet *p = &sim->packet[place];
    int32_t link = sim->hops[p->hop];
    if (link < 0) return lost(sim, place, t);
    struct ft_queue *q = &sim->queue[link];
    account(sim, q, t);
    int64_t backlog = q->free_ps > t ? q->free_ps - t : 0;
    int64_t service = (int64_t)((p->bytes * q->byte_fx + 32768) >> 16);
    if (backlog + service > q->buffer_ps) {
        q->drops++;
        return lost(sim, place, t);
    }
    if (backlog > q->mark_from_ps && !p->marked && !p->probe) {
        double share =
            q->mark_share * (double)(backlog - q->mark_from_ps) / (double)(q->mark_full_ps - q->mark_from_ps);
        p->marked = backlog >= q->mark_full_ps || uniform(&sim->rng) <= share;
    }
    int64_t work = backlog + service;
    q->free_ps = t + work;
    q->bytes += p->bytes;
    q->deepest_ps = work > q->deepest_ps ? work : q->deepest_ps;
    p->at_ps = t + work + q->delay_ps;
    p->next = -1;
    if (q->first < 0) {
        q->first = q->last = place;
        tree_set(&sim->arrivals, link, p->at_ps);
    } else {
        sim->packet[q->last].next = place;
        q->last = place;
    }
    return 1;
}

static int send(struct ft_sim *sim, struct ft_packet packet, int64_t t) {
    int32_t place = take_place(sim);
    if (place < 0) return 0;
    sim->packet[place] = packet;
    return enqueue(sim, place, t);
}

/* Give a probe's request or answer to its first queue; its wait there is known at once. */
static int send_probe(struct ft_sim *sim, int64_t number, int32_t hop, uint16_t bytes, int answer,
                      int64_t t) {
    int32_t link = sim->hops[hop];
    int64_t wait = 0;
    if (link >= 0 && sim->queue[link].free_ps > t) wait = sim->queue[link].free_ps - t;
    struct ft_probe *probe = &sim->probe[number - sim->first_probe];
    if (answer) {
        probe->turnaround_ps = wait;
    } else {
        probe->wait_ps = wait;
        probe->sent_ps = t + wait;
    }
    return send(sim, (struct ft_packet){0, hop, (int32_t)number, -1, bytes, 0, answer ? 2 : 1}, t);
}

static int deliver(struct ft_sim *sim, int32_t place, int64_t t) {
    const struct ft_packet *p = &sim->packet[place];
    leave_place(sim, place);
    if (p->probe) {
        struct ft_probe *probe = &sim->probe[p->owner - sim->first_probe];
        if (p->probe == 2) {
            probe->reverse_ps = t - (probe->sent_ps + probe->forward_ps + probe->turnaround_ps);
            probe->fate = 1;
            return 1;
        }
        probe->forward_ps = t - probe->sent_ps;
        return send_probe(sim, p->owner, sim->prober[probe->prober].reverse, p->bytes, 1, t);
    }
    struct ft_flow *flow = &sim->flow[p->owner];
    flow->delivered_bytes += p->bytes;
    if (flow->delivered_bytes == flow->size) flow->done_ps = t;
    if (p->marked) {
        flow->marked++;
        if (flow->control >= 0) {
            struct ft_control *c = &sim->control[flow->control];
            const struct ft_rules *rules = &sim->rules[c->rules];
            if (t - c->last_notified_ps >= rules->notify_every_ps) {
                control_until(rules, c, flow->rate, t);
                c->last_notified_ps = t;
                if (c->notified_ps == NEVER) c->notified_ps = t + flow->notify_delay_ps;
            }
        }
    }
    return 1;
}

/* ---- sources ---- */

static int64_t burst_packets(struct ft_flow *flow) {
    if (flow->burst <= 1) return 1;
    double n = ceil(log(uniform(&flow->rng)) / log1p(-1 / flow->burst)); /* geometric, mean `burst` */
    return n < 1 ? 1 : n > 1e15 ? (int64_t)1e15 : (int64_t)n;
}

/* Send a flow's packet. Return the time of the next one, NEVER for none, -1 without memory. */
static int64_t send_packet(struct ft_sim *sim, int32_t number, int64_t t) {
    struct ft_flow *flow = &sim->flow[number];
    double rate = flow->rate;
    uint16_t bytes = flow->packet_bytes;
    if (flow->kind == FT_MESSAGE && flow->left >= 0 && flow->left < bytes) bytes = (uint16_t)flow->left;
    if (flow->control >= 0) {
        struct ft_control *c = &sim->control[flow->control];
        const struct ft_rules *rules = &sim->rules[c->rules];
        control_until(rules, c, flow->rate, t);
        c->bytes += bytes;
        if (c->rise_at_ps != NEVER && c->bytes >= rules->rise_bytes) {
            c->bytes -= rules->rise_bytes;
            c->byte_steps++;
            rise(rules, c, flow->rate);
        }
        rate = c->rate < rate ? c->rate : rate;
    }
    double gap = 8e12 * bytes / rate;
    int64_t next;
    if (flow->kind == FT_POISSON) {
        next = later(t, exponential(&flow->rng, gap));
    } else if (flow->kind == FT_BURSTY) {
        if (--flow->left > 0) {
            next = later(t, gap);
        } else {
            next = later(t, gap + exponential(&flow->rng, flow->pause_ps));
            flow->left = burst_packets(flow);
        }
    } else {
        if (flow->left >= 0) flow->left -= bytes;
        next = flow->left == 0 ? NEVER : later(t, gap);
    }
    flow->sent_bytes += bytes;
    if (!send(sim, (struct ft_packet){0, flow->path, number, -1, bytes, 0, 0}, t)) return -1;
    if (next == NEVER && flow->kind == FT_MESSAGE && flow->left > 0)
        return later(t, gap); /* it was dropped at once */
    return next < flow->stop_ps ? next : NEVER;
}

/* Return the time of the stream's next probe, or pair of probes, after one at `t`. */
static int64_t next_slot(struct ft_prober *prober, int64_t t) {
    if (prober->jitter_ps < 0) return later(t, exponential(&prober->rng, prober->gap_ps));
    prober->slot_start_ps = later(prober->slot_start_ps, prober->gap_ps);
    int64_t next = later(prober->slot_start_ps, uniform(&prober->rng) * (double)prober->jitter_ps);
    return next > t ? next : t + 1;
}

static int64_t send_request(struct ft_sim *sim, int32_t number, int64_t t) {
    if (!grow((void **)&sim->probe, &sim->probe_capacity, sim->n_probes + 1, sizeof *sim->probe)) return -1;
    struct ft_prober *prober = &sim->prober[number];
    sim->probe[sim->n_probes] = (struct ft_probe){t, 0, -1, -1, -1, number, 0};
    if (!send_probe(sim, sim->first_probe + sim->n_probes++, prober->forward, prober->bytes, 0, t)) return -1;
    int64_t next;
    if (prober->spacing_ps > 0 && !prober->second)
        next = t + prober->spacing_ps;
    else
        next = next_slot(prober, t);
    prober->second = prober->spacing_ps > 0 && !prober->second;
    return prober->second || next < prober->stop_ps ? next : NEVER;
}

/* Start a flow that was waiting: give it a slot in the tree. */
static int start_flow(struct ft_sim *sim, int32_t number, int64_t t) {
    struct ft_flow *flow = &sim->flow[number];
    int64_t next = t;
    if (flow->kind == FT_POISSON)
        next = later(t, exponential(&flow->rng, 8e12 * flow->packet_bytes / flow->rate));
    else if (flow->kind == FT_BURSTY)
        next = later(t, exponential(&flow->rng, flow->pause_ps));
    if (next >= flow->stop_ps) return 1;
    flow->source_slot = take_source(sim, number);
    if (flow->source_slot < 0) return 0;
    tree_set(&sim->sources, flow->source_slot, next);
    return 1;
}

static int arrive(struct ft_sim *sim, int32_t link, int64_t t) {
    struct ft_queue *q = &sim->queue[link];
    int32_t place = q->first;
    struct ft_packet *p = &sim->packet[place];
    q->first = p->next;
    tree_set(&sim->arrivals, link, p->next < 0 ? NEVER : sim->packet[p->next].at_ps);
    if (q->loss > 0 && uniform(&sim->rng) <= q->loss) return lost(sim, place, t);
    p->hop++;
    return sim->hops[p->hop] == FT_DELIVERED ? deliver(sim, place, t) : enqueue(sim, place, t);
}

static int source(struct ft_sim *sim, int32_t source_slot, int64_t t) {
    int32_t owner = sim->slot_owner[source_slot];
    int64_t next = owner >= 0 ? send_packet(sim, owner, t) : send_request(sim, -1 - owner, t);
    if (next < 0) return 0;
    if (next < NEVER) {
        tree_set(&sim->sources, source_slot, next);
        return 1;
    }
    leave_seat(sim, source_slot);
    if (owner >= 0) sim->flow[owner].source_slot = -1;
    return 1;
}

int ft_sim_run(struct ft_sim *sim, int64_t until_ps, int64_t events) {
    int64_t slots = until_ps / sim->slot_ps - sim->first_slot + 1;
    if (slots > sim->slot_capacity) {
        size_t cells = (size_t)slots * (size_t)sim->links;
        void **arrays[] = {(void **)&sim->depth, (void **)&sim->deepest, (void **)&sim->busy,
                           (void **)&sim->bytes, (void **)&sim->drops};
        size_t element[] = {sizeof *sim->depth, sizeof *sim->deepest, sizeof *sim->busy, sizeof *sim->bytes,
                            sizeof *sim->drops};
        for (int i = 0; i < 5; i++) {
            void *moved = realloc(*arrays[i], cells * element[i]);
            if (moved == NULL) return -1;
            *arrays[i] = moved;
        }
        sim->slot_capacity = slots;
    }
    int64_t done = 0;
    for (; done < events; done++) {
        struct ft_start link = sim->arrivals.node[1], source_slot = sim->sources.node[1];
        int64_t t = link.at_ps < source_slot.at_ps ? link.at_ps : source_slot.at_ps;
        int ok;
        if (sim->n_waiting && sim->waiting[0].at_ps <= t) {
            if (sim->waiting[0].at_ps >= until_ps) break;
            struct ft_start first = next_waiting(sim);
            sim->now_ps = first.at_ps;
            ok = start_flow(sim, (int32_t)first.id, first.at_ps);
        } else {
            if (t >= until_ps) break;
            sim->now_ps = t;
            ok = link.at_ps <= source_slot.at_ps ? arrive(sim, (int32_t)link.id, t)
                                                 : source(sim, (int32_t)source_slot.id, t);
        }
        if (!ok) return -1;
    }
    sim->events += done;
    if (done == events) return 0;
    sim->now_ps = until_ps;
    ft_sim_settle(sim);
    return 1;
}

void ft_sim_settle(struct ft_sim *sim) {
    for (int32_t link = 0; link < sim->links; link++) account(sim, &sim->queue[link], sim->now_ps);
}

/* ---- construction ---- */

int ft_sim_open(struct ft_sim *sim, int32_t links, int64_t slot_ps, uint64_t seed) {
    memset(sim, 0, sizeof *sim);
    sim->links = links;
    sim->slot_ps = slot_ps;
    sim->seed = sim->rng = scramble(seed ^ UINT64_C(0x5851f42d4c957f2d));
    sim->free_packet = -1;
    sim->queue = aligned_alloc(64, (size_t)links * sizeof *sim->queue); /* whole cache lines each */
    sim->slot_owner = malloc(64 * sizeof *sim->slot_owner);
    sim->free_seats = malloc(64 * sizeof *sim->free_seats);
    if (sim->queue == NULL || sim->slot_owner == NULL || sim->free_seats == NULL ||
        !tree_open(&sim->arrivals, links) || !tree_open(&sim->sources, 64)) {
        ft_sim_close(sim);
        return 0;
    }
    memset(sim->queue, 0, (size_t)links * sizeof *sim->queue);
    for (int32_t i = 0; i < links; i++) {
        sim->queue[i].first = sim->queue[i].last = -1;
        sim->queue[i].slot_end_ps = slot_ps;
        sim->queue[i].mark_from_ps = sim->queue[i].mark_full_ps = NEVER;
    }
    return 1;
}

void ft_sim_close(struct ft_sim *sim) {
    void *all[] = {sim->queue,   sim->arrivals.node, sim->sources.node, sim->slot_owner, sim->free_seats,
                   sim->waiting, sim->packet,        sim->hops,         sim->flow,       sim->control,
                   sim->rules,   sim->prober,        sim->probe,        sim->depth,      sim->deepest,
                   sim->busy,    sim->bytes,         sim->drops};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    memset(sim, 0, sizeof *sim);
}

int ft_sim_add_path(struct ft_sim *sim, const int32_t *links, int64_t n, int reached, int32_t *first) {
    if (!grow((void **)&sim->hops, &sim->hop_capacity, sim->n_hops + n + 1, sizeof *sim->hops)) return 0;
    *first = (int32_t)sim->n_hops;
    if (n) memcpy(sim->hops + sim->n_hops, links, (size_t)n * sizeof *links);
    sim->n_hops += n;
    sim->hops[sim->n_hops++] = reached ? FT_DELIVERED : FT_NO_ROUTE;
    return 1;
}

void ft_sim_set_path(struct ft_sim *sim, int64_t flow, int32_t first) {
    int64_t delay_ps = 0;
    for (int32_t at = first; sim->hops[at] >= 0; at++) {
        const struct ft_queue *q = &sim->queue[sim->hops[at]];
        delay_ps += q->delay_ps + (int64_t)((NOTICE_BYTES * q->byte_fx) >> 16);
    }
    sim->flow[flow].path = first;
    sim->flow[flow].notify_delay_ps = delay_ps;
}

int ft_sim_add_flow(struct ft_sim *sim, struct ft_flow flow, int64_t start_ps, const struct ft_rules *rules) {
    if (!grow((void **)&sim->flow, &sim->flow_capacity, sim->n_flows + 1, sizeof *sim->flow) ||
        !grow((void **)&sim->control, &sim->control_capacity, sim->n_controls + 1, sizeof *sim->control) ||
        !grow((void **)&sim->rules, &sim->rules_capacity, sim->n_rules + 1, sizeof *sim->rules))
        return 0;
    flow.control = -1;
    if (rules) {
        if (sim->n_rules == 0 || memcmp(rules, &sim->rules[sim->n_rules - 1], sizeof *rules) != 0)
            sim->rules[sim->n_rules++] = *rules;
        flow.control = (int32_t)sim->n_controls;
        sim->control[sim->n_controls++] = (struct ft_control){flow.rate,
                                                              flow.rate,
                                                              1,
                                                              NEVER,
                                                              NEVER,
                                                              NEVER,
                                                              -rules->notify_every_ps,
                                                              0,
                                                              0,
                                                              0,
                                                              (int32_t)sim->n_rules - 1};
    }
    flow.source_slot = -1;
    flow.pending = 0;
    flow.done_ps = -1;
    flow.start_ps = start_ps;
    flow.rng = scramble(sim->seed ^ scramble((uint64_t)sim->n_flows * 2 + 1));
    if (flow.kind == FT_BURSTY) flow.left = burst_packets(&flow);
    int64_t number = sim->n_flows++;
    sim->flow[number] = flow;
    ft_sim_set_path(sim, number, flow.path);
    return wait_until(sim, (int32_t)number, start_ps);
}

int ft_sim_add_prober(struct ft_sim *sim, struct ft_prober prober, int64_t start_ps) {
    if (!grow((void **)&sim->prober, &sim->prober_capacity, sim->n_probers + 1, sizeof *sim->prober))
        return 0;
    int32_t source_slot = take_source(sim, (int32_t)(-1 - sim->n_probers));
    if (source_slot < 0) return 0;
    prober.second = 0;
    prober.rng = scramble(sim->seed ^ scramble((uint64_t)sim->n_probers * 2 + 2));
    prober.slot_start_ps = start_ps;
    int64_t first = prober.jitter_ps < 0 ? later(start_ps, exponential(&prober.rng, prober.gap_ps))
                                         : later(start_ps, uniform(&prober.rng) * (double)prober.jitter_ps);
    sim->prober[sim->n_probers++] = prober;
    if (first < prober.stop_ps)
        tree_set(&sim->sources, source_slot, first);
    else
        leave_seat(sim, source_slot);
    return 1;
}

int64_t ft_sim_in_flight(const struct ft_sim *sim, int probes) {
    int64_t bytes = 0;
    for (int32_t link = 0; link < sim->links; link++) {
        for (int32_t place = sim->queue[link].first; place >= 0; place = sim->packet[place].next)
            bytes += !sim->packet[place].probe == !probes ? sim->packet[place].bytes : 0;
    }
    return bytes;
}

int64_t ft_sim_decided(const struct ft_sim *sim) {
    int64_t n = 0;
    while (n < sim->n_probes && sim->probe[n].fate) n++;
    return n;
}

void ft_sim_forget_probes(struct ft_sim *sim, int64_t n) {
    sim->n_probes -= n;
    sim->first_probe += n;
    if (sim->n_probes) memmove(sim->probe, sim->probe + n, (size_t)sim->n_probes * sizeof *sim->probe);
}

void ft_sim_forget_slots(struct ft_sim *sim, int64_t n) {
    sim->first_slot += n;
}
