/* Early losses against a model that is as plain as can be: every request in a list, judged one by one.
 * Built by test_sanitized.py with the sanitizers on; prints "clean" at the end. */
#include "losses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ULL;

static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);                                               \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { PEERS = 3, PATHS = 2, WAYS = PEERS * PATHS, SLOTS = 64, CLASSES = 3 };
enum { IDLE, ASKED, LEFT, TOLD };

typedef struct {
    int64_t sent;
    int path_index, state;
} request;

typedef struct {
    uint64_t lost, answered, late;
    int64_t answered_sent;
    int64_t row[100000]; /* when those told lost were sent */
    int rows;
} path_index;

static path_index ways[WAYS];
static request requests[SLOTS];
static int64_t since[PEERS];
static int used[PEERS];

static int counts(const request *r) {
    return used[r->path_index / PATHS] && r->sent >= since[r->path_index / PATHS];
}

static int loss_streak(const path_index *w) {
    int n = 0;
    for (int i = 0; i < w->rows; i++) n += w->row[i] > w->answered_sent;
    return n;
}

static void model_told(request *r) {
    path_index *w = &ways[r->path_index];
    w->lost++;
    if (w->rows < 100000) w->row[w->rows++] = r->sent;
}

/* `least` and `most` equal: both time-outs are that, whatever was learned. Told at the judging that has passed it;
 * the wheel rounds up to its tick. */
static void against_model(int64_t timeout, int64_t step, int rounds) {
    static const int64_t TICK = 250000;
    ft_losses *l = ft_losses_new(PEERS, PATHS, CLASSES, SLOTS, timeout, timeout);
    CHECK(l);
    memset(ways, 0, sizeof ways);
    memset(requests, 0, sizeof requests);
    for (int i = 0; i < WAYS; i++) ways[i].answered_sent = INT64_MIN;
    int64_t now = 5000000000LL + (int64_t)chance(1000000000);
    for (int p = 0; p < PEERS; p++) {
        ft_losses_add_peer(l, (uint32_t)p, 1, now);
        used[p] = 1;
        since[p] = now;
    }
    uint64_t stuck = 0;
    int64_t judged_at = now;
    for (int round = 0; round < rounds; round++) {
        now += (int64_t)chance((uint64_t)step) + 1;
        uint32_t slot = (uint32_t)chance(SLOTS);
        request *r = &requests[slot];
        switch (chance(round % 1000 < 500 ? 8 : 12)) {
        case 0:
        case 1:
        case 2:
            if (r->state != IDLE) break;
            *r = (request){now, (int)chance(WAYS), ASKED};
            ft_losses_sent(l, slot, (uint32_t)r->path_index, (uint32_t)chance(CLASSES), now);
            break;
        case 3:
        case 4:
            if (r->state != ASKED) break;
            now += (int64_t)chance(2000);
            if (counts(r)) r->sent = now;
            r->state = LEFT;
            ft_losses_left(l, slot, now);
            break;
        case 5:
        case 6: {
            if (r->state == IDLE) break;
            int declared = ft_losses_answered(l, slot, now, now - r->sent);
            CHECK(declared == (r->state == TOLD));
            if (counts(r)) {
                path_index *w = &ways[r->path_index];
                w->answered++;
                w->late += (uint64_t)declared;
                if (r->sent > w->answered_sent) w->answered_sent = r->sent;
                int kept =
                    0; /* its own loss is taken back, also where it stands later than the newest answered one */
                for (int i = 0; i < w->rows; i++)
                    if (w->row[i] > w->answered_sent) w->row[kept++] = w->row[i];
                w->rows = kept;
            }
            r->state = IDLE;
            break;
        }
        case 7:
            if (r->state == IDLE || chance(4)) break;
            if (r->state == ASKED) stuck += (uint64_t)counts(r);
            if (r->state == LEFT && counts(r)) model_told(r);
            ft_losses_over(l, slot);
            r->state = IDLE;
            break;
        case 8:
            if (chance(200)) break;
            {
                uint32_t p = (uint32_t)chance(PEERS);
                if (used[p] && chance(2)) {
                    ft_losses_remove_peer(l, p);
                    used[p] = 0;
                } else {
                    ft_losses_add_peer(l, p, !used[p], now);
                    used[p] = 1;
                    since[p] = now;
                }
                for (int i = 0; i < PATHS; i++) {
                    path_index *w = &ways[p * PATHS + i];
                    w->lost = w->answered = w->late = 0;
                    w->rows = 0;
                    w->answered_sent = INT64_MIN;
                }
            }
            break;
        case 9: {
            if (chance(20)) break;
            ft_path_news news[WAYS];
            uint32_t most = (uint32_t)chance(WAYS) + 1, n = ft_losses_take(l, now, news, most);
            CHECK(n <= most && !ft_losses_urgent(l));
            for (uint32_t i = 0; i < n; i++) {
                path_index *w = &ways[news[i].path_index];
                CHECK(news[i].lost == w->lost && news[i].answered == w->answered && news[i].late == w->late);
                ft_class_news all = {.lost = 0};
                for (int c = 0; c < CLASSES; c++) {
                    all.lost += news[i].class[c].lost;
                    all.answered += news[i].class[c].answered;
                    all.late += news[i].class[c].late;
                }
                CHECK(all.lost == w->lost && all.answered == w->answered && all.late == w->late);
                int row = loss_streak(w);
                CHECK(news[i].loss_streak == (uint32_t)row || (row > 16 && news[i].loss_streak >= 16));
                CHECK(news[i].timeout == timeout);
                CHECK((news[i].first_lost_age >= 0) == (row > 0));
                CHECK(news[i].answered_age == (w->answered_sent == INT64_MIN ? -1 : now - w->answered_sent));
                w->lost = w->answered = w->late = 0;
            }
            if (n < most)
                for (int i = 0; i < WAYS; i++) CHECK(!ways[i].lost && !ways[i].answered);
            break;
        }
        default: {
            int64_t unjudged_ns = now - judged_at; /* what was due meanwhile had nobody to look at it */
            ft_losses_evaluate(l, now);
            int waits;
            for (uint32_t i = 0; i < SLOTS; i++) {
                request *q = &requests[i];
                if (q->state != LEFT) continue;
                if (ft_losses_declared(l, i)) {
                    CHECK(counts(q) && now >= q->sent + timeout);
                    model_told(q);
                    q->state = TOLD;
                } else if (counts(q)) {
                    CHECK(now < q->sent + 2 * timeout + 2 * TICK + unjudged_ns);
                }
            }
            int64_t at = ft_losses_due(l, &waits);
            CHECK(at > now && !waits);
            judged_at = now;
        }
        }
    }
    CHECK(ft_losses_counted(l).stuck == stuck);
    ft_losses_free(l);
}

/* Peers that are all asked from `now` on. */
static ft_losses *met(uint32_t peers, uint32_t paths, uint32_t slots, int64_t now) {
    ft_losses *l = ft_losses_new(peers, paths, CLASSES, slots, 2000000, 100000000);
    CHECK(l);
    for (uint32_t p = 0; p < peers; p++) ft_losses_add_peer(l, p, 1, now);
    return l;
}

static void leaves(ft_losses *l, uint32_t slot, uint32_t path_index, int64_t at) {
    ft_losses_sent(l, slot, path_index, path_index % CLASSES, at);
    ft_losses_left(l, slot, at);
}

/* A peer that is silent altogether waits for the long time-out; one that answers later requests does not. */
static void overtaken(void) {
    static const int64_t MS = 1000000;
    ft_path_news news[2];
    int64_t now = 1000 * MS;
    ft_losses *l = met(2, 1, 8, now);
    for (int i = 0; i < 3000; i++) { /* the network is quick, the peer sometimes slow */
        now += MS;
        leaves(l, 0, 0, now);
        ft_losses_network(l, 0, 20000, 0);
        ft_losses_answered(l, 0, now, i % 20 ? 50000 : 15 * MS);
    }
    ft_losses_take(l, now, news, 2);
    now += MS;
    int64_t sent = now;
    leaves(l, 0, 0, sent);
    int waits;
    for (now = sent; now < sent + 10 * MS; now += MS / 4) ft_losses_evaluate(l, now);
    CHECK(ft_losses_take(l, now, news, 2) == 0); /* the peer may be starved */
    ft_losses_due(l, &waits);
    CHECK(waits);
    leaves(l, 1, 0, sent + 5 * MS);
    ft_losses_answered(l, 1, now, 30000);
    ft_losses_evaluate(l, now);
    CHECK(ft_losses_urgent(l));
    CHECK(ft_losses_take(l, now, news, 2) == 1 && news[0].lost == 1 && news[0].loss_streak == 0 &&
          news[0].timeout == 2 * MS);
    sent = now;
    leaves(l, 2, 0, sent);
    for (; now < sent + 99 * MS; now += MS / 4) ft_losses_evaluate(l, now);
    CHECK(ft_losses_take(l, now, news, 2) == 1 && news[0].lost == 1 && news[0].loss_streak == 1);
    ft_losses_free(l);
}

/* Of answers that came after all, the stamps tell who was late: the network, or the peer. */
static void delayed(void) {
    static const int64_t MS = 1000000;
    ft_path_news news[2];
    int64_t now = 1000 * MS;
    ft_losses *l = met(1, 2, 8, now);
    for (int i = 0; i < 600; i++) {
        now += MS;
        leaves(l, 0, (uint32_t)i % 2, now);
        ft_losses_network(l, (uint32_t)i % 2, 20000, 0);
        ft_losses_answered(l, 0, now + 30000, 30000);
    }
    ft_losses_take(l, now, news, 2);
    for (int network = 0; network < 2; network++) {
        int64_t sent = now + MS;
        leaves(l, 1, 0, sent);
        leaves(l, 2, 1, sent + 5 * MS);
        now = sent + 9 * MS;
        CHECK(!ft_losses_answered(l, 2, now, 4 * MS)); /* overtakes */
        ft_losses_evaluate(l, now);
        CHECK(ft_losses_take(l, now, news, 2) == 2 && ft_losses_declared(l, 1));
        now = sent + 30 * MS;
        CHECK(ft_losses_answered(l, 1, now, 30 * MS));
        CHECK(ft_losses_take(l, now, news, 2) == 1 && news[0].late == 1 && news[0].delayed == 0);
        ft_losses_network(l, 1, 50 * MS, 0); /* was not told lost */
        ft_losses_network(l, 0, network ? 25 * MS : MS, 1);
        if (network)
            CHECK(ft_losses_take(l, now, news, 2) == 1 && news[0].path_index == 0 && news[0].delayed == 1 &&
                  !news[0].lost);
        CHECK(ft_losses_take(l, now, news, 2) == 0);
    }
    ft_losses_network(l, 0, 99 * MS, 1);
    ft_losses_remove_peer(l, 0);
    ft_losses_network(l, 0, 99 * MS, 1);
    CHECK(ft_losses_take(l, now, news, 2) == 0); /* it has left */
    ft_losses_free(l);
}

/* Two peers with three paths each, of which all but the last of the second was answered over; its peers are slow now
 * and then. */
static ft_losses *two_that_live(int64_t *now) {
    static const int64_t MS = 1000000;
    ft_path_news news[6];
    *now = 1000 * MS;
    ft_losses *l = met(2, 3, 64, *now);
    for (int i = 0; i < 6000; i++) {
        uint32_t path_index = (uint32_t)i % 5;
        *now += MS / 10;
        leaves(l, 0, path_index, *now);
        ft_losses_network(l, path_index, 20000, 0);
        ft_losses_answered(l, 0, *now, i / 5 % 20 ? 50000 : 15 * MS);
    }
    ft_losses_take(l, *now, news, 6);
    return l;
}

/* A peer is asked for a sign of life where nothing under way could tell whether it lives, and not without end. */
static void tail_probes(void) {
    static const int64_t MS = 1000000;
    int64_t now;
    ft_losses *l = two_that_live(&now);
    ft_path_news news[6];
    uint32_t ways[2];

    now += MS;
    int64_t sent = now;
    leaves(l, 1, 0, sent);
    ft_losses_evaluate(l, now += 3 * MS);
    CHECK(ft_losses_silent(l) == 1 && !ft_losses_urgent(l));
    CHECK(ft_losses_tail_probes(l, now, ways, 0) == 0 && ft_losses_silent(l) == 1);
    CHECK(ft_losses_tail_probes(l, now, ways, 2) == 1 && ways[0] == 2); /* answered after way 1 was */
    CHECK(ft_losses_silent(l) == 0);
    leaves(l, 2, ways[0], now);
    ft_losses_evaluate(l, now += MS);
    CHECK(ft_losses_silent(l) == 0); /* it is under way */
    ft_losses_answered(l, 2, now, 30000);
    ft_losses_evaluate(l, now);
    CHECK(ft_losses_take(l, now, news, 6) == 2); /* lost, and the sign, 4 ms after it was sent */

    leaves(l, 1, 0, now);
    leaves(l, 2, 1, now + MS); /* late enough to overtake it */
    ft_losses_evaluate(l, now += 5 * MS / 2);
    CHECK(ft_losses_silent(l) == 0);
    ft_losses_answered(l, 2, now, 30000);
    ft_losses_evaluate(l, now);
    ft_losses_take(l, now, news, 6);

    /* a peer that says nothing any more: each sign is waited for twice as long, four of them; the other has its own */
    uint32_t asked = 0, slot = 10;
    int64_t before = now, gap = 0;
    leaves(l, 3, 0, now);
    leaves(l, 4, 3, now);
    for (int64_t end = now + 1000 * MS; now < end; now += MS / 4) {
        ft_losses_evaluate(l, now);
        uint32_t n = ft_losses_tail_probes(l, now, ways, 2);
        for (uint32_t i = 0; i < n; i++) {
            leaves(l, slot++, ways[i], now);
            if (ways[i] >= 3) continue; /* the other peer answers none either: counted once */
            CHECK(!asked || now - before >= gap);
            gap = asked ? 2 * (now - before) - MS : 0;
            before = now;
            asked++;
        }
    }
    CHECK(asked >= 2 && asked <= 4);
    CHECK(slot - 10 <= 8);
    leaves(l, 5, 1, now); /* it is back */
    ft_losses_answered(l, 5, now, 30000);
    leaves(l, 6, 0, now);
    ft_losses_evaluate(l, now += 3 * MS);
    CHECK(ft_losses_tail_probes(l, now, ways, 2) == 1 && ways[0] == 1);
    ft_losses_free(l);

    /* a path that goes on losing needs no more, and a peer that answers over no other path has none to be asked over */
    l = two_that_live(&now);
    asked = 0;
    for (int i = 0; i < 200; i++) {
        leaves(l, 1, 0, now += MS);
        for (int step = 0; step < 40; step++) {
            ft_losses_evaluate(l, now += MS / 4);
            if (!ft_losses_tail_probes(l, now, ways, 2)) continue;
            CHECK(ways[0] == 1 || ways[0] == 2);
            asked++;
            leaves(l, 2, ways[0], now);
            ft_losses_answered(l, 2, now, 30000);
        }
    }
    CHECK(asked >= 7 && asked <= 9);
    now += 2000 * MS;
    leaves(l, 1, 3, now);
    ft_losses_evaluate(l, now += 3 * MS);
    CHECK(ft_losses_silent(l) == 1 && ft_losses_tail_probes(l, now, ways, 2) == 0 &&
          ft_losses_silent(l) == 0);
    ft_losses_remove_peer(l, 0);
    ft_losses_free(l);
}

/* A peer that answers, but slowly, owes an answer all the time: signs stay a share of what it is sent anyhow. */
static void slow(void) {
    static const int64_t MS = 1000000;
    int64_t now, due[64] = {0};
    ft_losses *l = two_that_live(&now);
    uint32_t ways[2], slot = 1, sent = 0, asked = 0;
    for (int step = 0; step < 40000; step++) {
        now += MS / 4;
        for (uint32_t s = 1; s < 64; s++) {
            if (!due[s] || due[s] > now) continue;
            ft_losses_answered(l, s, now, 50000);
            due[s] = 0;
        }
        ft_losses_evaluate(l, now);
        uint32_t n = ft_losses_tail_probes(l, now, ways, 2);
        if (!n && step % 40 == 0) {
            ways[n++] = 0;
            sent++;
        } else {
            asked += n;
        }
        for (uint32_t i = 0; i < n; i++, slot = slot % 63 + 1) {
            leaves(l, slot, ways[i], now);
            due[slot] = now + 5 * MS;
        }
    }
    CHECK(sent > 800 && asked > 32);
    CHECK(asked <= 32 + (sent + asked) / 2);
    ft_losses_free(l);
}

/* Anything in any order: what is asked for is one way a peer, of one that is met. */
static void wild(void) {
    static const int64_t MS = 1000000;
    ft_losses *l = ft_losses_new(PEERS, PATHS, CLASSES, SLOTS, 2 * MS, 100 * MS);
    int64_t now = 1000 * MS;
    CHECK(l);
    memset(used, 0, sizeof used);
    for (int round = 0; round < 200000; round++) {
        now += (int64_t)chance(MS);
        uint32_t slot = (uint32_t)chance(SLOTS), peer = (uint32_t)chance(PEERS), asked[PEERS];
        switch (chance(10)) {
        case 0:
        case 1:
            ft_losses_sent(l, slot, (uint32_t)chance(WAYS), (uint32_t)chance(CLASSES), now);
            break;
        case 2:
            ft_losses_left(l, slot, now);
            break;
        case 3:
            ft_losses_answered(l, slot, now, (int64_t)chance(20 * MS));
            break;
        case 4:
            ft_losses_over(l, slot);
            break;
        case 5:
            ft_losses_evaluate(l, now);
            break;
        case 6: {
            uint32_t most = (uint32_t)chance(PEERS + 1), n = ft_losses_tail_probes(l, now, asked, most),
                     met = 0;
            CHECK(n <= most && ft_losses_silent(l) <= PEERS);
            for (uint32_t i = 0; i < n; i++) {
                CHECK(asked[i] < WAYS && used[asked[i] / PATHS] && !(met & 1U << asked[i] / PATHS));
                met |= 1U << asked[i] / PATHS;
                if (chance(2))
                    ft_losses_sent(l, (uint32_t)chance(SLOTS), asked[i], (uint32_t)chance(CLASSES), now);
            }
            break;
        }
        case 7:
            if (chance(100)) break;
            if (used[peer])
                ft_losses_remove_peer(l, peer);
            else
                ft_losses_add_peer(l, peer, (int)chance(2), now);
            used[peer] = !used[peer];
            break;
        case 8:
            ft_losses_network(l, (uint32_t)chance(WAYS), (int64_t)chance(120 * MS), (int)chance(2));
            break;
        default:
            if (!chance(100))
                ft_losses_new_path(l, (uint32_t)chance(PATHS));
            else
                ft_losses_unsent(l, slot, 1);
        }
    }
    ft_losses_free(l);
}

/* A queue comes up and stands: the first answer that it holds up makes its way patient, for a while after the last. */
static void queue(void) {
    static const int64_t MS = 1000000;
    ft_path_news news[1];
    int64_t now = 1000 * MS, lost = 0, delayed = 0;
    ft_losses *l = met(1, 1, 8, now);
    for (int i = 0; i < 600; i++) {
        now += MS;
        leaves(l, 0, 0, now);
        ft_losses_network(l, 0, 20000, 0);
        ft_losses_answered(l, 0, now + 30000, 30000);
    }
    ft_losses_take(l, now, news, 1);
    CHECK(news[0].timeout == 2 * MS);
    for (int i = 0; i < 8; i++) { /* each takes 9 ms, the next leaves after 50 */
        int64_t sent = now += 50 * MS;
        leaves(l, 1, 0, sent);
        for (; now < sent + 9 * MS; now += MS / 4) ft_losses_evaluate(l, now);
        int declared = ft_losses_answered(l, 1, now, 9 * MS);
        ft_losses_network(l, 0, 9 * MS, declared);
        CHECK(ft_losses_take(l, now, news, 1) == 1);
        CHECK(news[0].timeout == 18 * MS);
        lost += news[0].lost;
        delayed += news[0].delayed;
    }
    CHECK(lost == 1 && delayed == 8);
    for (int i = 0; i < 4; i++) { /* small ones do not prolong what a great one began */
        now += 150 * MS;
        leaves(l, 2, 0, now);
        ft_losses_answered(l, 2, now + 3 * MS, 3 * MS);
        ft_losses_network(l, 0, 3 * MS, 0);
    }
    CHECK(ft_losses_take(l, now, news, 1) == 1 && news[0].timeout < 6 * MS && news[0].delayed == 3);
    int64_t sent = now += 50 * MS;
    leaves(l, 1, 0, sent);
    for (; now < sent + 99 * MS; now += MS / 4) ft_losses_evaluate(l, now);
    ft_losses_network(l, 0, 90 * MS, ft_losses_answered(l, 1, now, 99 * MS));
    CHECK(ft_losses_take(l, now, news, 1) == 1 && news[0].timeout == 50 * MS);
    now += 500 * MS;
    leaves(l, 2, 0, now);
    ft_losses_network(l, 0, 20000, 0);
    ft_losses_answered(l, 2, now + 30000, 30000);
    CHECK(ft_losses_take(l, now, news, 1) == 1 && news[0].timeout < 6 * MS && !news[0].delayed);
    ft_losses_free(l);
}

int main(void) {
    for (int i = 0; i < 40; i++) {
        against_model(2000000, i % 2 ? 200000 : 20000, 30000);
        against_model(60000000, 3000000, 30000);
        against_model(400000000, 8000000, 30000); /* further than the wheel reaches */
    }
    overtaken();
    delayed();
    queue();
    tail_probes();
    slow();
    wild();
    puts("clean");
    return 0;
}
