/* Runs a plugin without a GPU, and prints what a reporter reads.
 *
 *     replay run PLUGIN VERSION RANKS OPERATIONS   every event, a line each; a user's and a proxy's thread a rank
 *     replay cost PLUGIN THREADS CALLS             ns of a call, and of a clock read
 *     replay rate PLUGIN THREADS RATE SECONDS      events lost at RATE events/s
 *     replay flood PLUGIN THREADS EVENTS           events lost and counted, with a reader that is too slow
 *     replay split PLUGIN SEED SCRIPTS             error of the measured share of network waits; in the build
 *                                                  with simulated time (nccl-split) alone
 *
 * The segment's socket lies in the folder TMPDIR. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "replay.h"

enum { QUEUE = 8, MAX_THREADS = 64 };

static const char *plugin;
static int finished; /* threads, atomic */

static void die(const char *message) {
    fprintf(stderr, "replay: %s\n", message);
    exit(1);
}

static void load(struct caller *of, int version, int rank, int ranks) {
    memset(of, 0, sizeof(*of));
    if (!caller_load(of, plugin, version)) die("the plugin has no such version");
    of->rank = rank;
    of->ranks = ranks;
    of->nodes = (ranks + 7) / 8;
    of->id = 0x1234;
    caller_init(of, "replay");
    if (!of->context) die("the plugin records nothing");
}

/* run */

struct rank {
    struct caller user, proxy;
    struct plan plans[QUEUE];
    int operations, launched, progressed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static void plan_of(struct plan *to, const struct caller *of, int number) {
    int peer = (of->rank + 1 + number) % of->ranks;

    switch (number % 4) {
    case 0:
        plan_ring(to, of, 4, 40);
        break;
    case 1:
        plan_tree(to, of, 2, 200);
        break;
    default:
        plan_p2p(to, of, peer == of->rank ? (peer + 1) % of->ranks : peer, number % 4 == 2, 2, 10);
    }
    to->tag = (uint64_t)number + 1;
}

static void *user_thread(void *of) {
    struct rank *rank = of;

    for (int n = 0; n < rank->operations; n++) {
        pthread_mutex_lock(&rank->lock);
        while (n - rank->progressed == QUEUE) pthread_cond_wait(&rank->changed, &rank->lock);
        pthread_mutex_unlock(&rank->lock);
        plan_of(&rank->plans[n % QUEUE], &rank->user, n);
        plan_launch(&rank->user, &rank->plans[n % QUEUE]);
        pthread_mutex_lock(&rank->lock);
        rank->launched++;
        pthread_cond_broadcast(&rank->changed);
        pthread_mutex_unlock(&rank->lock);
    }
    __atomic_add_fetch(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void *proxy_thread(void *of) {
    struct rank *rank = of;

    for (int n = 0; n < rank->operations; n++) {
        pthread_mutex_lock(&rank->lock);
        while (rank->launched <= n) pthread_cond_wait(&rank->changed, &rank->lock);
        pthread_mutex_unlock(&rank->lock);
        plan_progress(&rank->proxy, &rank->plans[n % QUEUE]);
        pthread_mutex_lock(&rank->lock);
        rank->progressed++;
        pthread_cond_broadcast(&rank->changed);
        pthread_mutex_unlock(&rank->lock);
    }
    __atomic_add_fetch(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void print_event(const struct ft_event *event, void *user) {
    static const char *const kinds[] = {"NONE", "BEGIN", "END", "TRANSFER", "QUEUE_PAIR"};

    (void)user;
    printf("%s communicator=%u operation=%" PRIu64 " sequence=%" PRIu64
           " function=%u algorithm=%u protocol=%u "
           "bytes=%" PRIu64 " channel=%u peer=%d flags=%u steps=%u sampled=%u begin=%" PRIu64 " end=%" PRIu64
           " launch=%u kernel=%u gpu=%" PRIu64 " peer_late=%" PRIu64 " network=%" PRIu64 " flush=%" PRIu64
           " tag=%" PRIu64 " device=%u\n",
           kinds[event->kind], event->communicator, event->operation, event->sequence, event->function,
           event->algorithm, event->protocol, event->bytes, event->channel, event->peer, event->flags,
           event->steps, event->sampled, event->begin_raw_ns, event->end_raw_ns, event->launch_ns,
           event->kernel_ns, event->gpu_late_ns, event->peer_late_ns, event->network_late_ns, event->flush_ns,
           event->tag, event->device);
}

static void print_counters(uint64_t calls) {
    struct counters counters = drain_counters();

    printf("COUNTERS read=%" PRIu64 " dropped=%" PRIu64 " misuse=%" PRIu64 " invalid=%" PRIu64
           " closed=%d calls=%" PRIu64 "\n",
           counters.read, counters.dropped, counters.misuse, counters.invalid, counters.closed, calls);
}

static void run(int version, int ranks, int operations) {
    struct rank *all = calloc((size_t)ranks, sizeof(*all));
    pthread_t *threads = calloc(2 * (size_t)ranks, sizeof(*threads));
    uint64_t calls = 0;

    for (int n = 0; n < ranks; n++) {
        load(&all[n].user, version, n, ranks);
        all[n].proxy = all[n].user;
        all[n].operations = operations;
        pthread_mutex_init(&all[n].lock, NULL);
        pthread_cond_init(&all[n].changed, NULL);
    }
    if (!drain_wait()) die("no segment");
    for (int n = 0; n < ranks; n++) {
        pthread_create(&threads[2 * n], NULL, user_thread, &all[n]);
        pthread_create(&threads[2 * n + 1], NULL, proxy_thread, &all[n]);
    }
    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < 2 * ranks)
        if (!drain(print_event, NULL)) sched_yield();
    for (int n = 0; n < 2 * ranks; n++) pthread_join(threads[n], NULL);
    for (int n = 0; n < ranks; n++) {
        caller_finalize(&all[n].user);
        calls += all[n].user.calls + all[n].proxy.calls;
    }
    while (drain(print_event, NULL));
    print_counters(calls);
    free(all);
    free(threads);
}

/* cost */

struct worker {
    struct caller caller;
    struct times times;
    uint64_t events;
    double rate;
    uint64_t until_ns;
};

static void *cost_thread(void *of) {
    struct worker *worker = of;
    struct plan *plan = malloc(sizeof(*plan));

    while (worker->times.count < worker->times.capacity) {
        plan_ring(plan, &worker->caller, 4, 256);
        plan_launch(&worker->caller, plan);
        plan_progress(&worker->caller, plan);
    }
    free(plan);
    __atomic_add_fetch(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static int by_size(const void *a, const void *b) {
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;

    return first < second ? -1 : first > second;
}

static struct worker *start_workers(int threads, void *(*work)(void *), pthread_t *ids, size_t calls,
                                    double rate, double seconds) {
    struct worker *all = calloc((size_t)threads, sizeof(*all));
    uint64_t now = clock_ns();

    for (int n = 0; n < threads; n++) {
        load(&all[n].caller, 0, n, threads > 1 ? threads : 2);
        if (calls) {
            all[n].times.capacity = calls;
            all[n].times.ns = calloc(calls, sizeof(uint32_t));
            all[n].times.bare = calloc(calls, sizeof(uint32_t));
            all[n].caller.times = &all[n].times;
        }
        all[n].rate = rate / threads;
        all[n].until_ns = now + (uint64_t)(seconds * 1e9);
    }
    if (!drain_wait()) die("no segment");
    for (int n = 0; n < threads; n++) pthread_create(&ids[n], NULL, work, &all[n]);
    return all;
}

static void cost(int threads, size_t calls) {
    pthread_t ids[MAX_THREADS];
    struct worker *all = start_workers(threads, cost_thread, ids, calls, 0, 0);
    size_t count = calls * (size_t)threads;
    uint32_t *ns = calloc(count, sizeof(*ns)), *bare = calloc(count, sizeof(*bare));
    struct timespec pause = {.tv_nsec = 1000000};
    struct counters counters;

    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < threads)
        if (!drain(NULL, NULL)) nanosleep(&pause, NULL);
    for (int n = 0; n < threads; n++) {
        pthread_join(ids[n], NULL);
        memcpy(ns + (size_t)n * calls, all[n].times.ns, calls * sizeof(*ns));
        memcpy(bare + (size_t)n * calls, all[n].times.bare, calls * sizeof(*bare));
    }
    while (drain(NULL, NULL));
    counters = drain_counters();
    qsort(ns, count, sizeof(*ns), by_size);
    qsort(bare, count, sizeof(*bare), by_size);
    printf("{\"calls\": %zu, \"p50_ns\": %u, \"p99_ns\": %u, \"bare_p50_ns\": %u, \"bare_p99_ns\": %u, "
           "\"events\": %" PRIu64 ", \"dropped\": %" PRIu64 "}\n",
           count, ns[count / 2], ns[count / 100 * 99], bare[count / 2], bare[count / 100 * 99], counters.read,
           counters.dropped);
    exit(0);
}

/* rate, flood */

/* Make `count` events: transfers of an operation that is in progress. */
static void make_events(struct worker *worker, struct plan *plan, uint64_t count) {
    for (uint64_t n = 0; n < count; n++) {
        transfer_begin(&worker->caller, plan, &plan->transfers[0]);
        if (!plan->transfers[0].operation) die("no handle");
        transfer_end(&worker->caller, &plan->transfers[0]);
    }
    worker->events += count;
}

static struct plan *launched(struct worker *worker) {
    struct plan *plan = malloc(sizeof(*plan));

    plan_ring(plan, &worker->caller, 1, 1);
    worker->caller.mask &= ~FT_NCCL_NET_PLUGIN;
    plan_launch(&worker->caller, plan);
    return plan;
}

static void *rate_thread(void *of) {
    struct worker *worker = of;
    struct plan *plan = launched(worker);
    uint64_t begin = clock_ns(), now = begin, due;
    struct timespec pause = {.tv_nsec = 500000};

    while (now < worker->until_ns) {
        due = (uint64_t)((double)(now - begin) * 1e-9 * worker->rate);
        if (due > worker->events) make_events(worker, plan, due - worker->events);
        nanosleep(&pause, NULL);
        now = clock_ns();
    }
    free(plan);
    __atomic_add_fetch(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void *flood_thread(void *of) {
    struct worker *worker = of;
    struct plan *plan = launched(worker);

    make_events(worker, plan, (uint64_t)worker->rate);
    free(plan);
    __atomic_add_fetch(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void report_loss(struct worker *all, int threads, pthread_t *ids, uint64_t begin) {
    struct counters counters;
    uint64_t made = 0, end = clock_ns();

    for (int n = 0; n < threads; n++) {
        pthread_join(ids[n], NULL);
        made += all[n].events;
    }
    while (drain(NULL, NULL));
    counters = drain_counters();
    printf("{\"made\": %" PRIu64 ", \"read\": %" PRIu64 ", \"dropped\": %" PRIu64 ", \"invalid\": %" PRIu64
           ", \"misuse\": %" PRIu64 ", \"seconds\": %.3f}\n",
           made, counters.read, counters.dropped, counters.invalid, counters.misuse,
           (double)(end - begin) * 1e-9);
    exit(0);
}

static void rate(int threads, double events_per_s, double seconds) {
    pthread_t ids[MAX_THREADS];
    uint64_t begin = clock_ns();
    struct worker *all = start_workers(threads, rate_thread, ids, 0, events_per_s, seconds);
    struct timespec pause = {.tv_nsec = 200000};

    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < threads)
        if (drain(NULL, NULL) < 1024) nanosleep(&pause, NULL);
    report_loss(all, threads, ids, begin);
}

/* The reader sleeps longer than the rings last. */
static void flood(int threads, double events) {
    pthread_t ids[MAX_THREADS];
    uint64_t begin = clock_ns();
    struct worker *all = start_workers(threads, flood_thread, ids, 0, events, 0);
    struct timespec pause = {.tv_nsec = 20000000};

    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < threads) {
        drain(NULL, NULL);
        nanosleep(&pause, NULL);
    }
    report_loss(all, threads, ids, begin);
}

int main(int argc, char **argv) {
    const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";

    if (argc < 5) die("usage: replay run|cost|rate|flood|split PLUGIN ARGUMENTS; see replay.c");
    plugin = argv[2];
    if (!drain_open(folder)) die("cannot listen in TMPDIR");
    if (!strcmp(argv[1], "run") && argc == 6)
        run(atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
    else if (!strcmp(argv[1], "cost"))
        cost(atoi(argv[3]), (size_t)atol(argv[4]));
    else if (!strcmp(argv[1], "rate") && argc == 6)
        rate(atoi(argv[3]), atof(argv[4]), atof(argv[5]));
    else if (!strcmp(argv[1], "flood"))
        flood(atoi(argv[3]), atof(argv[4]));
#ifdef REPLAY_SIMULATED_TIME
    else if (!strcmp(argv[1], "split"))
        split(plugin, (uint64_t)atoll(argv[3]), atoi(argv[4]));
#endif
    else
        die("unknown mode or number of arguments");
    return 0;
}
