/* The queue pairs of this process: a list for the agent's thread, and a table from a queue pair's address
 * to its counters, which posting threads read without a lock. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "delays.h"

/* Open addressing; queue pairs beyond the table's size are ignored. A used place never becomes empty
 * again, so a search ends at the first place that was never used. */
enum { PLACES = 1 << 15, SEARCH = 256 };

static struct {
    _Atomic(const struct ft_qp *) qp;
    _Atomic(struct ft_pair *) pair;
} table[PLACES];
static const struct ft_qp *const USED = (const struct ft_qp *)&table;

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ft_pair *pairs;
static uint64_t last_count;

void ft_registry_lock(void) {
    pthread_mutex_lock(&registry_lock);
}

void ft_registry_unlock(void) {
    pthread_mutex_unlock(&registry_lock);
}

struct ft_pair *ft_pairs(void) {
    return pairs;
}

static uint32_t place_of(const struct ft_qp *qp) {
    return (uint32_t)(((uint64_t)(uintptr_t)qp * 0x9E3779B97F4A7C15u) >> 40) % PLACES;
}

struct ft_pair *ft_pair_of(const struct ft_qp *qp) {
    uint32_t place = place_of(qp);

    for (int i = 0; i < SEARCH; i++, place = (place + 1) % PLACES) {
        const struct ft_qp *found = atomic_load_explicit(&table[place].qp, memory_order_acquire);

        if (found == qp) return atomic_load_explicit(&table[place].pair, memory_order_relaxed);
        if (!found) return NULL;
    }
    return NULL;
}

struct ft_pair *ft_pair_named(const char *key) {
    struct ft_pair *pair = pairs;

    while (pair && (pair->dead || strcmp(pair->key, key))) pair = pair->next;
    return pair;
}

/* A number that grows with every queue pair of this host, in any process: microseconds since boot. */
static uint64_t create_count(void) {
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t count = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;

    last_count = count > last_count ? count : last_count + 1;
    return last_count;
}

struct ft_pair *ft_pair_add(struct ft_qp *qp, const char *device, const struct ft_qp_init_attr *init) {
    struct ft_pair *pair = calloc(1, sizeof(*pair));
    uint32_t place = place_of(qp);

    if (!pair) return NULL;
    pair->qp = qp;
    pair->qp_num = qp->qp_num;
    pair->qp_type = qp->qp_type;
    pair->mtu = 1024;
    pair->header_bytes = 58;
    pthread_mutex_init(&pair->lock, NULL);
    snprintf(pair->device, sizeof(pair->device), "%s", device);
    ft_registry_lock();
    pair->created = create_count();
    snprintf(pair->key, sizeof(pair->key), "qp:%s:%u:%llu", pair->device, pair->qp_num,
             (unsigned long long)pair->created);
    for (int i = 0; i < SEARCH; i++, place = (place + 1) % PLACES) {
        const struct ft_qp *found = atomic_load_explicit(&table[place].qp, memory_order_relaxed);

        if (found && found != USED) continue;
        if (ft_measures()) pair->delays = ft_delays_add(qp, init);
        atomic_store_explicit(&table[place].pair, pair, memory_order_relaxed);
        atomic_store_explicit(&table[place].qp, qp, memory_order_release);
        pair->next = pairs;
        pairs = pair;
        ft_registry_unlock();
        return pair;
    }
    ft_registry_unlock();
    free(pair);
    return NULL;
}

void ft_pair_retire(struct ft_pair *pair) {
    uint32_t place = place_of(pair->qp);

    ft_registry_lock();
    for (int i = 0; i < SEARCH; i++, place = (place + 1) % PLACES) {
        if (atomic_load_explicit(&table[place].qp, memory_order_relaxed) != pair->qp) continue;
        atomic_store_explicit(&table[place].qp, USED, memory_order_release);
        break;
    }
    if (pair->delays) ft_delays_retire(pair->delays);
    pair->dead = true;
    ft_registry_unlock();
}

void ft_pair_free(struct ft_pair *pair) {
    struct ft_pair **link = &pairs;

    while (*link && *link != pair) link = &(*link)->next;
    if (*link) *link = pair->next;
    if (pair->delays) ft_delays_free(pair->delays);
    pthread_mutex_destroy(&pair->lock);
    free(pair);
}

void ft_registry_forget(void) {
    pthread_mutex_init(&registry_lock, NULL);
    pairs = NULL;
    memset(table, 0, sizeof(table));
    ft_delays_forget();
}

FT_EXPORT int fabrictime_qp_standby(const char *device, uint32_t qp_num, fabrictime_standby take, void *arg) {
    int found = 2; /* ENOENT */

    ft_registry_lock();
    for (struct ft_pair *pair = pairs; pair; pair = pair->next) {
        if (pair->dead || pair->qp_num != qp_num || strcmp(pair->device, device)) continue;
        pair->standby = take;
        pair->standby_arg = arg;
        pair->changed = true;
        found = 0;
    }
    ft_registry_unlock();
    if (!found) ft_agent_wake();
    return found;
}
