/* Early losses: a request is declared lost long before its last time-out, and the loss is undone if its answer arrives.
 *
 * A late answer has two possible causes. The network's share of a round trip comes from path and queues. The rest
 * comes from the peer, whose thread may get no processor for tens of milliseconds. So each path keeps two running
 * 99th percentiles, of the network's share and of the whole round trip. A request is lost once
 *
 *   4 x the network's p99, and at least the minimum time-out, have passed since it left this host, and
 *     the peer has answered a request that left half of that later. A peer reads requests in order of arrival, so
 *     the earlier one has not arrived: RACK (RFC 8985) finds losses in TCP by this rule. Or
 *     4 x the p99 of the whole round trip have passed too, whatever the peer does.
 *
 * A peer without CPU time answers nothing, so nothing overtakes: its requests wait for the second time-out. A request
 * without a send timestamp has not left this host, and is no loss of the network.
 *
 * If no later request is in flight that could overtake, the peer needs a tail loss probe, on the path of its last
 * answer. Without it, a NIC that probes a peer every 10 ms detects a loss 10 ms late (RFC 8985, section 7). A silent
 * peer gets SIGNS such probes, each after twice the interval; a path with a long loss streak needs no more. A peer
 * that answers slowly would get one with every answer, so all tail loss probes together are one in COST requests, and
 * BURST at once.
 *
 * If the network itself delivers an answer after its request was declared lost, a queue has built up, and the quantile
 * needs some twenty answers to follow. Until then the path's time-out is twice the delay of the slowest such answer,
 * but at most half of the longest, until DELAYED_NS after the last answer that took half as long and longer than the
 * quantile allows. So requests in that queue are not declared lost again and again (as in TCP, RFC 4015), and
 * failures after the queue is gone are declared as early as before.
 *
 * The quantile is followed in logarithms by the rule of Robbins and Monro (1951): up by 0.99 steps for a value above
 * it, down by 0.01 for one below. It begins high and with large steps, so that a new path is declared late rather
 * than wrongly.
 *
 * Requests wait in a wheel of time slots, each a ring of those due in it. An answered request leaves its ring, so only
 * unanswered ones are ever read. */
#include "losses.h"

#include <stdlib.h>
#include <string.h>

enum { WHEEL = 1024, TAIL = 16, REPORT_STREAK = 8, LEARNED = 256, SIGNS = 4, COST = 2, BURST = 32 };
enum { IDLE, ASKED, LEFT, OVERDUE }; /* not waiting; sent; known to have left; waits for a sign of its peer */

static const int64_t TICK = 250000, LIVES_NS = 1000000000, DELAYED_NS = 500000000;
static const double FIRST_NS = 2.5e6, MIN_NS = 1e3;
/* exp(0.99 g) and exp(-0.01 g) for g = 1, then g = 0.2 */
static const double UP[2] = {2.6912344723, 1.2189624}, DOWN[2] = {0.9900498337, 0.9980019987};

typedef struct {
    int64_t sent;
    uint32_t path_index, next, prev;
    uint8_t state, declared, class;
} request;

typedef struct {
    double network, whole; /* ns, running p99 */
    uint16_t networks, wholes, touched;
    uint32_t lost, answered, late, delayed, loss_streak, overdue;
    int64_t last_lost, answered_sent, arrived;
    int64_t slow, slow_until; /* least time-out, since the network held an answer up */
    int64_t tail[TAIL];       /* when the newest of those in a row were sent, a ring */
    int64_t first_lost;
} path_state;

typedef struct {
    int64_t since, answered_sent, newest_sent;
    int64_t sign_at;                       /* time of its last tail loss probe */
    uint8_t used, tail_probes, sign_waits; /* tail loss probes since its last answer */
} peer_state;

struct ft_losses {
    uint32_t peers, paths, classes, slots, waiting, overdue;
    int64_t min_timeout, max_timeout, cursor; /* ticks before it have been evaluated */
    int64_t due;
    request *requests; /* slots, then the heads of the wheel's rings, then that of OVERDUE */
    path_state *states;
    ft_class_news *by_class; /* of each path's classes */
    peer_state *of;
    uint32_t *touched, touches;
    uint32_t *silent, silents; /* peers of which a sign is wanted */
    uint32_t credit;           /* for signs, each COST */
    int urgent;
    ft_losses_counts counts;
};

static const int64_t NONE = INT64_MIN;

static void learn(double *quantile, uint16_t *seen, int64_t ns) {
    int slow = *seen >= LEARNED;
    double x = (double)ns;
    *quantile *= x > *quantile ? UP[slow] : DOWN[slow];
    if (*quantile < MIN_NS) *quantile = MIN_NS;
    if (*quantile > 1e11) *quantile = 1e11;
    if (!slow) ++*seen;
}

static int64_t within(const ft_losses *l, double p99) {
    double t = 4 * p99;
    return t <= (double)l->min_timeout   ? l->min_timeout
           : t >= (double)l->max_timeout ? l->max_timeout
                                         : (int64_t)t;
}

static int64_t network_timeout(const ft_losses *l, const path_state *w) {
    int64_t t = within(l, w->network);
    return t > w->slow ? t : w->slow;
}

static int64_t whole_timeout(const ft_losses *l, const path_state *w) {
    int64_t network = network_timeout(l, w), whole = within(l, w->whole);
    return whole > network ? whole : network;
}

/* --- the wheel ---------------------------------------------------------------------------------------------- */

static void unlink_request(ft_losses *l, uint32_t slot) {
    request *r = &l->requests[slot];
    if (r->state == IDLE) return;
    l->requests[r->prev].next = r->next;
    l->requests[r->next].prev = r->prev;
    if (r->state == OVERDUE) {
        l->overdue--;
        l->states[r->path_index].overdue--;
    } else {
        l->waiting--;
    }
}

static void link_at(ft_losses *l, uint32_t slot, uint32_t head, int state) {
    request *r = &l->requests[slot], *h = &l->requests[head];
    r->prev = h->prev;
    r->next = head;
    l->requests[h->prev].next = slot;
    h->prev = slot;
    r->state = (uint8_t)state;
    if (state == OVERDUE) {
        l->overdue++;
        l->states[r->path_index].overdue++;
    } else {
        l->waiting++;
    }
}

/* Look at it again once `at` has passed, or at the wheel's end where that is further. */
static void link_due(ft_losses *l, uint32_t slot, int64_t at, int state) {
    int64_t tick = at / TICK + 1;
    if (tick < l->cursor) tick = l->cursor;
    if (tick >= l->cursor + WHEEL) tick = l->cursor + WHEEL - 1;
    link_at(l, slot, l->slots + (uint32_t)(tick % WHEEL), state);
    if (tick * TICK < l->due) l->due = tick * TICK;
}

static void find_due(ft_losses *l) {
    l->due = FT_NEVER;
    if (!l->waiting) return;
    for (int64_t tick = l->cursor; tick < l->cursor + WHEEL; tick++) {
        uint32_t head = l->slots + (uint32_t)(tick % WHEEL);
        if (l->requests[head].next == head) continue;
        l->due = tick * TICK;
        return;
    }
}

/* --- life --------------------------------------------------------------------------------------------------- */

static void forget(path_state *w) {
    *w = (path_state){.network = FIRST_NS, .whole = FIRST_NS, .touched = w->touched, .overdue = w->overdue};
    w->first_lost = w->last_lost = w->answered_sent = w->arrived = NONE;
}

ft_losses *ft_losses_new(uint32_t peers, uint32_t paths, uint32_t classes, uint32_t slots,
                         int64_t min_timeout, int64_t max_timeout) {
    ft_losses *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    size_t states = (size_t)peers * paths, nodes = (size_t)slots + WHEEL + 1;
    l->peers = peers;
    l->paths = paths;
    l->classes = classes;
    l->slots = slots;
    l->min_timeout = min_timeout;
    l->max_timeout = max_timeout;
    l->due = FT_NEVER;
    l->credit = COST * BURST;
    l->requests = calloc(nodes, sizeof *l->requests);
    l->states = calloc(states, sizeof *l->states);
    l->by_class = calloc(states * classes, sizeof *l->by_class);
    l->of = calloc(peers, sizeof *l->of);
    l->touched = calloc(states, sizeof *l->touched);
    l->silent = calloc(peers, sizeof *l->silent);
    if (!l->requests || !l->states || !l->by_class || !l->of || !l->touched || !l->silent) {
        ft_losses_free(l);
        return NULL;
    }
    for (size_t i = slots; i < nodes; i++) l->requests[i].next = l->requests[i].prev = (uint32_t)i;
    for (size_t i = 0; i < states; i++) forget(&l->states[i]);
    return l;
}

void ft_losses_free(ft_losses *l) {
    if (!l) return;
    free(l->requests);
    free(l->states);
    free(l->by_class);
    free(l->of);
    free(l->touched);
    free(l->silent);
    free(l);
}

static ft_class_news *class_of(ft_losses *l, const request *r) {
    return &l->by_class[r->path_index * l->classes + r->class];
}

static void forget_classes(ft_losses *l, uint32_t path_index) {
    memset(&l->by_class[path_index * l->classes], 0, l->classes * sizeof *l->by_class);
}

static void forget_counts(ft_losses *l, uint32_t path_index) {
    path_state *w = &l->states[path_index];
    w->loss_streak = w->lost = w->answered = w->late = w->delayed = 0;
    forget_classes(l, path_index);
}

void ft_losses_add_peer(ft_losses *l, uint32_t peer, int fresh, int64_t now) {
    l->of[peer] = (peer_state){.since = now,
                               .answered_sent = NONE,
                               .newest_sent = NONE,
                               .used = 1,
                               .sign_waits = l->of[peer].sign_waits};
    for (uint32_t p = 0; p < l->paths; p++) {
        path_state *w = &l->states[peer * l->paths + p];
        if (fresh) forget(w);
        forget_counts(l, peer * l->paths + p);
        w->first_lost = w->last_lost = w->answered_sent = w->arrived = NONE;
    }
}

void ft_losses_remove_peer(ft_losses *l, uint32_t peer) {
    l->of[peer].used = 0;
    for (uint32_t p = 0; p < l->paths; p++) {
        forget_counts(l, peer * l->paths + p);
    }
}

void ft_losses_new_path(ft_losses *l, uint32_t path) {
    for (uint32_t p = 0; p < l->peers; p++) {
        forget(&l->states[p * l->paths + path]);
        forget_classes(l, p * l->paths + path);
    }
}

static int counts(const ft_losses *l, const request *r) {
    const peer_state *peer = &l->of[r->path_index / l->paths];
    return peer->used && r->sent >= peer->since;
}

static void touch(ft_losses *l, uint32_t path_index) {
    if (l->states[path_index].touched) return;
    l->states[path_index].touched = 1;
    l->touched[l->touches++] = path_index;
}

/* --- the life of a request
 * ------------------------------------------------------------------------------------ */

void ft_losses_sent(ft_losses *l, uint32_t slot, uint32_t path_index, uint32_t class, int64_t now) {
    unlink_request(l, slot);
    request *r = &l->requests[slot];
    path_state *w = &l->states[path_index];
    if (w->slow && now >= w->slow_until) w->slow = 0;
    r->sent = now;
    r->path_index = path_index;
    r->class = (uint8_t)class;
    r->declared = 0;
    l->of[path_index / l->paths].newest_sent = now;
    if (l->credit < COST * BURST) l->credit++;
    if (!l->waiting) {
        l->due = FT_NEVER;
        if (now / TICK > l->cursor) l->cursor = now / TICK;
    }
    link_due(l, slot, now + network_timeout(l, w), ASKED);
}

int64_t ft_losses_sent_at(const ft_losses *l, uint32_t slot) {
    return l->requests[slot].sent;
}

void ft_losses_left(ft_losses *l, uint32_t slot, int64_t at) {
    request *r = &l->requests[slot];
    if (r->state != ASKED) return;
    if (at > r->sent && counts(l, r)) r->sent = at; /* never into the time of another peer */
    r->state = LEFT;
}

/* A request that left at `sent` is answered: earlier ones no longer count in the loss streak. */
static int cut_row(path_state *w, int64_t sent) {
    if (!w->loss_streak || sent < w->first_lost) return 0;
    uint32_t kept = w->loss_streak < TAIL ? w->loss_streak : TAIL, left = 0;
    int64_t later[TAIL], first = FT_NEVER;
    for (uint32_t i = 0; i < kept; i++) {
        int64_t lost = w->tail[(w->loss_streak - 1 - i) % TAIL];
        if (lost <= sent) continue;
        if (lost < first) first = lost;
        later[left++] = lost;
    }
    for (uint32_t i = 0; i < left; i++) w->tail[i] = later[left - 1 - i];
    w->loss_streak = left;
    w->first_lost = left ? first : NONE;
    return 1;
}

int ft_losses_answered(ft_losses *l, uint32_t slot, int64_t at, int64_t round) {
    request *r = &l->requests[slot];
    path_state *w = &l->states[r->path_index];
    peer_state *peer = &l->of[r->path_index / l->paths];
    int declared = r->declared;
    unlink_request(l, slot);
    r->state = IDLE;
    r->declared = 0;
    learn(&w->whole, &w->wholes, round);
    if (!counts(l, r)) return declared;
    touch(l, r->path_index);
    w->answered++;
    class_of(l, r)->answered++;
    if (at > w->arrived) w->arrived = at;
    if (r->sent > w->answered_sent) w->answered_sent = r->sent;
    if (r->sent > peer->answered_sent) peer->answered_sent = r->sent;
    peer->tail_probes = 0;
    if (declared) {
        w->late++;
        class_of(l, r)->late++;
        l->counts.spurious++;
    }
    if (cut_row(w, r->sent)) l->urgent = 1;
    return declared;
}

void ft_losses_dscps(ft_losses *l, uint32_t path_index, uint32_t class, uint8_t forward, uint8_t reverse) {
    ft_class_news *news = &l->by_class[path_index * l->classes + class];
    news->forward = forward;
    news->reverse = reverse;
}

void ft_losses_too_late(ft_losses *l, uint32_t slot, int64_t at) {
    request *r = &l->requests[slot];
    path_state *w = &l->states[r->path_index];
    if (counts(l, r) && at > w->arrived) w->arrived = at;
}

void ft_losses_network(ft_losses *l, uint32_t path_index, int64_t ns, int declared) {
    path_state *w = &l->states[path_index];
    int backed_off = w->slow && w->arrived < w->slow_until;
    if ((declared || backed_off) && ns > within(l, w->network) && l->of[path_index / l->paths].used) {
        int64_t slow = ns < l->max_timeout / 4 ? 2 * ns : l->max_timeout / 2;
        w->delayed++;
        if (!backed_off || slow > w->slow) w->slow = slow;
        if (slow >= w->slow / 2) w->slow_until = w->arrived + DELAYED_NS;
        touch(l, path_index);
    }
    learn(&w->network, &w->networks, ns);
}

void ft_losses_unsent(ft_losses *l, uint32_t slot, int refused) {
    unlink_request(l, slot);
    l->requests[slot].state = IDLE;
    l->counts.stuck += (uint64_t)refused;
}

int ft_losses_declared(const ft_losses *l, uint32_t slot) {
    return l->requests[slot].declared;
}

static void report(ft_losses *l, request *r) {
    path_state *w = &l->states[r->path_index];
    r->declared = 1;
    touch(l, r->path_index);
    w->lost++;
    class_of(l, r)->lost++;
    if (r->sent > w->last_lost) w->last_lost = r->sent;
    if (r->sent > w->answered_sent) {
        w->tail[w->loss_streak % TAIL] = r->sent;
        if (!w->loss_streak++ || r->sent < w->first_lost) w->first_lost = r->sent;
    }
    if (w->loss_streak <= REPORT_STREAK) l->urgent = 1;
}

void ft_losses_over(ft_losses *l, uint32_t slot) {
    request *r = &l->requests[slot];
    if (r->state == ASKED)
        l->counts.stuck += (uint64_t)counts(l, r);
    else if (r->state != IDLE && counts(l, r))
        report(l, r);
    unlink_request(l, slot);
    r->state = IDLE;
    r->declared = 0;
}

/* Whether it is lost at `now`; if not, when to look again. */
static int lost_by(const ft_losses *l, const request *r, int64_t now, int64_t *again) {
    const path_state *w = &l->states[r->path_index];
    int64_t network = network_timeout(l, w), whole = r->sent + whole_timeout(l, w);
    if (r->sent + network > now) {
        *again = r->sent + network;
        return 0;
    }
    *again = whole;
    return now >= whole || l->of[r->path_index / l->paths].answered_sent >= r->sent + network / 2;
}

/* A request is overdue: schedule a tail loss probe to its peer, unless a late enough request is in flight. */
static void want_sign(ft_losses *l, const request *r, int64_t now) {
    const path_state *w = &l->states[r->path_index];
    uint32_t number = r->path_index / l->paths;
    peer_state *peer = &l->of[number];
    int64_t network = network_timeout(l, w);
    if (l->credit < COST || peer->sign_waits || w->loss_streak >= REPORT_STREAK) return;
    if (peer->newest_sent >= r->sent + network / 2) return;
    if (peer->tail_probes &&
        (peer->tail_probes == SIGNS || now < peer->sign_at + (network << peer->tail_probes)))
        return;
    peer->sign_waits = 1;
    l->silent[l->silents++] = number;
}

static void evaluate_one(ft_losses *l, uint32_t slot, int64_t now) {
    request *r = &l->requests[slot];
    int state = r->state;
    int64_t again;
    unlink_request(l, slot);
    r->state = IDLE;
    if (!counts(l, r)) return;
    if (state == ASKED) { /* still here, as far as we know */
        link_due(l, slot, now + network_timeout(l, &l->states[r->path_index]), ASKED);
    } else if (lost_by(l, r, now, &again)) {
        report(l, r);
        l->counts.declared++;
    } else if (state == OVERDUE || again > r->sent + network_timeout(l, &l->states[r->path_index])) {
        link_at(l, slot, l->slots + WHEEL, OVERDUE);
        want_sign(l, r, now);
    } else {
        link_due(l, slot, again, LEFT);
    }
}

void ft_losses_evaluate(ft_losses *l, int64_t now) {
    uint32_t head = l->slots + WHEEL;
    for (uint32_t slot = l->requests[head].next, left = l->overdue; left; left--) {
        uint32_t next = l->requests[slot].next; /* those that still wait go to the end */
        evaluate_one(l, slot, now);
        slot = next;
    }
    int64_t end = now / TICK;
    if (l->waiting && l->due <= now) {
        int64_t from = l->due / TICK;
        if (end - from >= WHEEL) from = end - WHEEL + 1;
        for (int64_t tick = from; tick <= end; tick++) {
            uint32_t ring = l->slots + (uint32_t)(tick % WHEEL), first = l->requests[ring].next;
            if (first == ring) continue;
            /* out of the wheel first: an entry that is put back must not be met again in this pass */
            uint32_t last = l->requests[ring].prev;
            l->requests[ring].next = l->requests[ring].prev = ring;
            l->requests[last].next = first;
            l->requests[first].prev = last;
            l->cursor = tick + 1;
            for (uint32_t slot = first;;) {
                uint32_t next = l->requests[slot].next;
                int end_of_ring = slot == last;
                evaluate_one(l, slot, now);
                if (end_of_ring) break;
                slot = next;
            }
        }
    }
    if (end + 1 > l->cursor) l->cursor = end + 1;
    find_due(l);
}

int64_t ft_losses_due(const ft_losses *l, int *waits) {
    *waits = l->overdue > 0;
    return l->waiting ? l->due : FT_NEVER;
}

uint32_t ft_losses_silent(const ft_losses *l) {
    return l->silents;
}

/* The path that the peer answered over last, of those without pending requests; -1: none recently. */
static int64_t living_path(const ft_losses *l, uint32_t peer, int64_t now) {
    int64_t found = -1, newest = now - LIVES_NS;
    for (uint32_t path_index = peer * l->paths; path_index < (peer + 1) * l->paths; path_index++) {
        const path_state *w = &l->states[path_index];
        if (w->overdue || w->loss_streak || w->arrived == NONE || w->arrived <= newest) continue;
        newest = w->arrived;
        found = path_index;
    }
    return found;
}

uint32_t ft_losses_tail_probes(ft_losses *l, int64_t now, uint32_t *states, uint32_t max_states) {
    uint32_t n = 0, kept = 0;
    for (uint32_t i = 0; i < l->silents; i++) {
        uint32_t number = l->silent[i];
        peer_state *peer = &l->of[number];
        if (n == max_states) {
            l->silent[kept++] = number;
            continue;
        }
        peer->sign_waits = 0;
        int64_t path_index = peer->used ? living_path(l, number, now) : -1;
        if (path_index < 0 || l->credit < COST) continue;
        l->credit -= COST;
        peer->sign_at = now;
        peer->tail_probes++;
        states[n++] = (uint32_t)path_index;
    }
    l->silents = kept;
    return n;
}

/* --- reports
 * --------------------------------------------------------------------------------------------------- */

int ft_losses_urgent(const ft_losses *l) {
    return l->urgent;
}

static int64_t age(int64_t now, int64_t at) {
    return at == NONE ? -1 : at > now ? 0 : now - at;
}

uint32_t ft_losses_take(ft_losses *l, int64_t now, ft_path_news *news, uint32_t max_paths) {
    uint32_t n = 0, kept = 0;
    l->urgent = 0;
    for (uint32_t i = 0; i < l->touches; i++) {
        uint32_t path_index = l->touched[i];
        path_state *w = &l->states[path_index];
        if (n == max_paths) {
            l->touched[kept++] = path_index;
            continue;
        }
        w->touched = 0;
        if (!w->lost && !w->answered && !w->delayed) continue; /* its peer has left */
        news[n++] = (ft_path_news){.path_index = path_index,
                                   .lost = w->lost,
                                   .answered = w->answered,
                                   .late = w->late,
                                   .delayed = w->delayed,
                                   .loss_streak = w->loss_streak,
                                   .first_lost_age = w->loss_streak ? age(now, w->first_lost) : -1,
                                   .last_lost_age = age(now, w->last_lost),
                                   .answered_age = age(now, w->answered_sent),
                                   .arrived_age = age(now, w->arrived),
                                   .timeout = network_timeout(l, w)};
        memcpy(news[n - 1].class, &l->by_class[path_index * l->classes], l->classes * sizeof *l->by_class);
        forget_classes(l, path_index);
        w->lost = w->answered = w->late = w->delayed = 0;
    }
    l->touches = kept;
    return n;
}

ft_losses_counts ft_losses_counted(const ft_losses *l) {
    return l->counts;
}
