/* Misuse of the profiler interface that was seen in the field, or may be: each case must neither crash nor spoil
 * the events that follow. Prints a line a case, at last "clean". */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "replay.h"

#define CHECK(status)                                                                                        \
    do {                                                                                                     \
        if (!(status)) {                                                                                     \
            fprintf(stderr, "version %d, line %d: %s\n", nccl.version, __LINE__, #status);                   \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const char *plugin;
static struct caller nccl;
static struct ft_event seen[4096];
static int seen_count;

static void keep(const struct ft_event *event, void *user) {
    (void)user;
    if (seen_count < 4096) seen[seen_count++] = *event;
}

static int read_all(void) {
    seen_count = 0;
    while (drain(keep, NULL));
    CHECK(!drain_counters().invalid);
    return seen_count;
}

static int count_of(enum ft_event_kind kind) {
    int count = 0;

    for (int n = 0; n < seen_count; n++) count += seen[n].kind == kind;
    return count;
}

static void open_communicator(int version) {
    nccl = (struct caller){.rank = 1, .ranks = 4, .nodes = 2, .id = 99};
    CHECK(caller_load(&nccl, plugin, version));
    caller_init(&nccl, "misuse");
    CHECK(nccl.context && drain_wait());
}

/* A whole operation is recorded as it should be. The ends of former ones may come with it. */
static void check_works(void) {
    static struct plan plan;
    static size_t count = 1000000;
    int kinds[FT_EVENT_QUEUE_PAIR + 1] = {0};
    uint64_t operation = 0;

    read_all();
    plan_ring(&plan, &nccl, 2, 8);
    plan.count = ++count;
    plan_launch(&nccl, &plan);
    plan_progress(&nccl, &plan);
    read_all();
    for (int n = 0; n < seen_count; n++)
        if (seen[n].kind == FT_EVENT_END && seen[n].bytes == 4 * count) operation = seen[n].operation;
    for (int n = 0; n < seen_count; n++)
        if (seen[n].operation == operation) kinds[seen[n].kind]++;
    CHECK(operation && kinds[FT_EVENT_TRANSFER] == 4 && kinds[FT_EVENT_BEGIN] == 1 &&
          kinds[FT_EVENT_END] == 1);
}

static uint64_t misuse(void) {
    return drain_counters().misuse;
}

static void stop_without_start(void) {
    uint64_t before = misuse();

    nccl.table->stop(NULL);
    nccl.table->stop((void *)0x10);
    nccl.table->stop((void *)(uintptr_t)-1);
    nccl.table->stop(nccl.context);
    nccl.table->stop(&nccl);
    CHECK(misuse() == before + 4);
}

static void record_without_start(void) {
    union ft_nccl_arguments arguments = {.step_bytes = 4};

    for (int state = -3; state < 40; state++) {
        nccl.table->record(NULL, state, NULL);
        nccl.table->record((void *)0x20, state, &arguments);
        nccl.table->record(nccl.context, state, &arguments);
    }
}

static void start_without_stop(void) {
    static struct plan plan;

    plan_ring(&plan, &nccl, 2, 20);
    for (int n = 0; n < 50; n++) {
        plan_launch(&nccl, &plan);
        for (int k = 0; k < plan.transfer_count; k++) {
            transfer_begin(&nccl, &plan, &plan.transfers[k]);
            for (int step = 0; step < 20; step++) step_post(&nccl, &plan.transfers[k], step);
            if (n % 2) transfer_end(&nccl, &plan.transfers[k]); /* with steps open */
        }
    }
}

static void record_and_stop_after_stop(void) {
    static struct plan plan;
    union ft_nccl_arguments arguments = {.step_bytes = 4};
    void *operation, *step;
    uint64_t before = misuse();

    plan_ring(&plan, &nccl, 1, 4);
    plan_launch(&nccl, &plan);
    nccl.table->stop(plan.task);
    transfer_begin(&nccl, &plan, &plan.transfers[0]);
    step_post(&nccl, &plan.transfers[0], 0);
    operation = plan.transfers[0].operation;
    step = plan.transfers[0].steps[0];
    CHECK(operation && step);
    step_end(&nccl, &plan.transfers[0], 0);
    for (int n = 0; n < 3; n++) {
        nccl.table->record(step, FT_NCCL_STEP_SEND_WAIT, &arguments);
        nccl.table->stop(step);
    }
    transfer_end(&nccl, &plan.transfers[0]);
    for (int n = 0; n < 3; n++) {
        nccl.table->record(operation, FT_NCCL_OP_IN_PROGRESS, &arguments);
        nccl.table->record(step, FT_NCCL_STEP_SEND_WAIT, &arguments);
        nccl.table->stop(operation);
        nccl.table->stop(step);
    }
    CHECK(misuse() == before + 1 + 6 + 12);
}

static void null_parents(void) {
    struct ft_nccl_descriptor descriptor;
    void *event;

    for (unsigned type = 1; type <= FT_NCCL_KERNEL_PHASE; type <<= 1) {
        memset(&descriptor, 0, sizeof(descriptor));
        event = caller_start(&nccl, &descriptor, type, NULL);
        caller_stop(&nccl, event);
    }
    nccl.table->start(nccl.context, &event, NULL);
    CHECK(!event);
    nccl.table->start(nccl.context, NULL, &descriptor);
    nccl.table->start(NULL, &event, &descriptor);
    memset(&descriptor, 0xff, sizeof(descriptor)); /* a type from the future */
    nccl.table->start(nccl.context, &event, &descriptor);
    CHECK(!event);
}

static void parents_of_other_types(void) {
    static struct plan plan;
    struct ft_nccl_descriptor descriptor;
    void *events[8];

    plan_ring(&plan, &nccl, 1, 4);
    plan_launch(&nccl, &plan);
    transfer_begin(&nccl, &plan, &plan.transfers[0]);
    step_post(&nccl, &plan.transfers[0], 0);
    void *parents[] = {plan.group,
                       plan.api,
                       plan.task,
                       plan.transfers[0].operation,
                       plan.transfers[0].steps[0],
                       nccl.context,
                       &plan,
                       (void *)(uintptr_t)0x7fffffffffffffff};

    for (unsigned type = 1; type <= FT_NCCL_KERNEL_PHASE; type <<= 1)
        for (int n = 0; n < 8; n++) {
            memset(&descriptor, 0, sizeof(descriptor));
            if (type == FT_NCCL_PROXY_OP) descriptor.proxy_op.pid = nccl.pid;
            events[n] = caller_start(&nccl, &descriptor, type, parents[n]);
            caller_record(&nccl, events[n], FT_NCCL_STEP_SEND_WAIT, 1);
            caller_stop(&nccl, events[n]);
        }
}

static void stale_handles(void) {
    static struct plan plan;
    struct ft_nccl_descriptor descriptor = {.proxy_op = {.pid = nccl.pid, .steps = 4}};
    void *task, *operation, *event;

    plan_ring(&plan, &nccl, 1, 4);
    plan_launch(&nccl, &plan);
    task = plan.task;
    transfer_begin(&nccl, &plan, &plan.transfers[0]);
    operation = plan.transfers[0].operation;
    for (int n = 0; n < 4; n++) plan_progress(&nccl, &plan); /* the slots are used again */
    check_works();
    for (int n = 0; n < 8; n++) {
        caller_stop(&nccl, operation);
        caller_stop(&nccl, task);
        event = caller_start(&nccl, &descriptor, FT_NCCL_PROXY_OP, task);
        caller_stop(&nccl, event);
        event = caller_start(&nccl, &descriptor, FT_NCCL_PROXY_STEP, operation);
        CHECK(!event);
        if (nccl.version >= 3) CHECK(!caller_start(&nccl, &descriptor, FT_NCCL_KERNEL_CHANNEL, task));
    }
}

/* With PXN, another process of the host passes on its handle, its context and its pid. */
static void another_process(void) {
    struct ft_nccl_descriptor descriptor = {
        .proxy_op = {.pid = nccl.pid + 1, .channel = 3, .peer = 2, .steps = 4, .chunk = 4096, .sends = 1}};
    void *context = nccl.context, *event;

    read_all();
    nccl.context = (void *)(uintptr_t)0x5555deadbeef;
    event = caller_start(&nccl, &descriptor, FT_NCCL_PROXY_OP, (void *)(uintptr_t)0x7fff12345678);
    caller_stop(&nccl, event);
    nccl.context = context;
    CHECK(event);
    read_all();
    CHECK(count_of(FT_EVENT_TRANSFER) == 1 && !seen[0].operation && seen[0].peer == 2);
}

static void many_channels(void) {
    static struct plan plan;
    void *kernels[256];

    plan_ring(&plan, &nccl, 1, 4);
    plan.channels = 256; /* 0 in 8 bits */
    plan_launch(&nccl, &plan);
    for (int n = 0; n < 256; n++) {
        struct ft_nccl_descriptor descriptor = {.kernel_channel = {.channel = (uint8_t)n, .timer = 5}};

        kernels[n] =
            nccl.version >= 3 ? caller_start(&nccl, &descriptor, FT_NCCL_KERNEL_CHANNEL, plan.task) : NULL;
        CHECK(nccl.version < 3 || kernels[n]);
        if (nccl.version >= 3) /* the same channel again */
            CHECK(!caller_start(&nccl, &descriptor, FT_NCCL_KERNEL_CHANNEL, plan.task));
    }
    transfer_begin(&nccl, &plan, &plan.transfers[0]);
    transfer_end(&nccl, &plan.transfers[0]);
    read_all();
    CHECK(nccl.version < 3 || !count_of(FT_EVENT_END));
    for (int n = 0; n < 256; n++) {
        caller_stop(&nccl, kernels[n]);
        caller_stop(&nccl, kernels[n]);
    }
    read_all();
    CHECK(count_of(FT_EVENT_END) == (nccl.version >= 3));
}

/* Fewer kernel channels than announced, in a build that counts otherwise: operations still end. */
static void fewer_kernels(void) {
    static struct plan plan;
    int ends = 0;

    for (int n = 0; n < 10; n++) {
        plan_ring(&plan, &nccl, 2, 4);
        plan.channels = 5;
        plan_launch(&nccl, &plan);
        plan.channels = 2;
        plan_progress(&nccl, &plan);
        read_all();
        ends += count_of(FT_EVENT_END);
    }
    CHECK(ends == 10);
}

static void *dying_thread(void *of) {
    struct plan *plan = of;

    plan_launch(&nccl, plan);
    for (int n = 0; n < plan->transfer_count; n++) {
        transfer_begin(&nccl, plan, &plan->transfers[n]);
        step_post(&nccl, &plan->transfers[n], 0);
    }
    return NULL;
}

/* A thread ends with events open, and another thread ends them. 600 threads, one after another. */
static void thread_death(void) {
    static struct plan plan;
    pthread_t thread;
    int transfers = 0;

    for (int n = 0; n < 600; n++) {
        plan_ring(&plan, &nccl, 2, 4);
        pthread_create(&thread, NULL, dying_thread, &plan);
        pthread_join(thread, NULL);
        for (int k = 0; k < plan.transfer_count; k++) {
            step_end(&nccl, &plan.transfers[k], 0);
            transfer_end(&nccl, &plan.transfers[k]);
        }
        read_all();
        transfers += count_of(FT_EVENT_TRANSFER);
    }
    CHECK(transfers == 2400);
}

static void exhausted_pool(void) {
    static struct plan plan;
    static void *tasks[20000];
    uint64_t before;
    int begun = 0;

    read_all();
    before = drain_counters().dropped;
    plan_ring(&plan, &nccl, 1, 4);
    for (int n = 0; n < 20000; n++) {
        struct ft_nccl_descriptor descriptor = {.proxy_op = {.pid = nccl.pid, .steps = 4, .peer = 1}};

        if (!n) plan_launch(&nccl, &plan);
        tasks[n] = caller_start(&nccl, &descriptor, FT_NCCL_PROXY_OP, plan.task);
        begun += tasks[n] != NULL;
    }
    CHECK(begun > 3000 && begun < 20000 && drain_counters().dropped - before == 20000u - (unsigned)begun);
    for (int n = 0; n < 20000; n++) {
        caller_stop(&nccl, tasks[n]);
        if (n % 1000 == 0) read_all();
    }
    read_all();
}

static void finalize_with_open_events(void) {
    static struct plan plan;
    void *former = nccl.context, *event;
    struct ft_nccl_descriptor descriptor = {0};

    plan_ring(&plan, &nccl, 2, 4);
    plan_launch(&nccl, &plan);
    for (int k = 0; k < plan.transfer_count; k++) {
        transfer_begin(&nccl, &plan, &plan.transfers[k]);
        step_post(&nccl, &plan.transfers[k], 0);
    }
    read_all();
    caller_finalize(&nccl);
    read_all();
    CHECK(count_of(FT_EVENT_TRANSFER) == 4 && count_of(FT_EVENT_END) >= 1);
    nccl.table->finalize(former); /* twice */
    nccl.table->finalize(NULL);
    nccl.table->finalize((void *)0x30);
    for (int k = 0; k < plan.transfer_count; k++) { /* events after it */
        step_move(&nccl, &plan.transfers[k], 0, 4);
        step_end(&nccl, &plan.transfers[k], 0);
        transfer_end(&nccl, &plan.transfers[k]);
    }
    nccl.context = former;
    event = caller_start(&nccl, &descriptor, FT_NCCL_COLLECTIVE, NULL);
    CHECK(!event);
    plan_launch(&nccl, &plan);
    plan_progress(&nccl, &plan);
    read_all();
    CHECK(!count_of(FT_EVENT_END) && !count_of(FT_EVENT_TRANSFER));
    caller_init(&nccl, "misuse");
    CHECK(nccl.context && nccl.context != former);
}

static void init_again(void) {
    void *former = nccl.context;

    for (int n = 0; n < 3; n++) {
        caller_init(&nccl, NULL);
        CHECK(nccl.context && nccl.context != former);
        check_works();
        caller_finalize(&nccl);
    }
    nccl.context = former;
    for (int n = 0; n < 400; n++) { /* more than fit: the rest is not recorded */
        void *context = NULL;
        int mask = 0;

        if (nccl.version >= 5) nccl.table->init(&context, 5, &mask, "x", 1, 2, 0, NULL);
        if (nccl.version == 4) nccl.table->init_v4(&context, &mask, "x", 5, 1, 2, 0, NULL);
        if (nccl.version < 4) nccl.table->init_v1(&context, &mask);
        if (n % 3 && context) nccl.table->finalize(context);
    }
    if (nccl.version >= 5) nccl.table->init(NULL, 5, NULL, NULL, -1, -1, -1, NULL);
}

/* After a message to the own rank, NCCL reports kernel channels for earlier operations: at once, with their times.
 * An operation's own begin and none of these times are recorded then. */
static void lagging_kernels(void) {
    static struct plan plan;
    struct timespec pause = {.tv_nsec = 20000000};
    const struct ft_event *end = NULL;
    uint64_t launched, moved;

    plan_p2p(&plan, &nccl, nccl.rank, true, 1, 0);
    plan.transfer_count = 0;
    plan_launch(&nccl, &plan);
    plan_ring(&plan, &nccl, 1, 2);
    plan.count = 77;
    launched = clock_ns();
    plan_launch(&nccl, &plan);
    for (int n = 0; n < plan.transfer_count; n++) transfer_begin(&nccl, &plan, &plan.transfers[n]);
    kernels_begin(&nccl, &plan);
    kernels_end(&nccl, &plan);
    for (int n = 0; n < plan.transfer_count; n++) step_post(&nccl, &plan.transfers[n], 0);
    nanosleep(&pause, NULL); /* the GPU is busy with other work */
    moved = clock_ns();
    for (int n = 0; n < plan.transfer_count; n++) {
        step_move(&nccl, &plan.transfers[n], 0, 4096);
        step_end(&nccl, &plan.transfers[n], 0);
        transfer_end(&nccl, &plan.transfers[n]);
    }
    read_all();
    for (int n = 0; n < seen_count; n++)
        if (seen[n].kind == FT_EVENT_END && seen[n].bytes == 4 * 77) end = &seen[n];
    CHECK(end && !end->kernel_ns && end->end_raw_ns >= moved);
    CHECK(end->begin_raw_ns >= (nccl.version < 3 ? launched : moved));
}

/* The child of a fork has its parent's handles. It may also make communicators of its own. */
static void forks(void) {
    static struct plan plan;
    int status;
    pid_t child;

    plan_ring(&plan, &nccl, 2, 4);
    plan_launch(&nccl, &plan);
    transfer_begin(&nccl, &plan, &plan.transfers[0]);
    step_post(&nccl, &plan.transfers[0], 0);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        step_end(&nccl, &plan.transfers[0], 0);
        transfer_end(&nccl, &plan.transfers[0]);
        plan_launch(&nccl, &plan);
        caller_finalize(&nccl);
        nccl.pid = getpid();
        caller_init(&nccl, "child");
        if (!nccl.context) _exit(3);
        plan_launch(&nccl, &plan);
        plan_progress(&nccl, &plan);
        caller_finalize(&nccl);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    step_end(&nccl, &plan.transfers[0], 0);
    transfer_end(&nccl, &plan.transfers[0]);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"stop without start", stop_without_start},
        {"record without start", record_without_start},
        {"start without stop", start_without_stop},
        {"record and stop after stop", record_and_stop_after_stop},
        {"NULL parents", null_parents},
        {"parents of other types", parents_of_other_types},
        {"stale handles", stale_handles},
        {"another process", another_process},
        {"256 channels", many_channels},
        {"fewer kernel channels", fewer_kernels},
        {"lagging kernel channels", lagging_kernels},
        {"thread death", thread_death},
        {"exhausted pool", exhausted_pool},
        {"finalize with open events", finalize_with_open_events},
        {"init again", init_again},
        {"fork", forks},
    };

    if (argc != 3 || !drain_open(getenv("TMPDIR"))) return 2;
    plugin = argv[1];
    for (unsigned n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
        open_communicator(atoi(argv[2]));
        check_works();
        cases[n].run();
        check_works();
        caller_finalize(&nccl);
        printf("%s\n", cases[n].name);
    }
    puts("clean");
    return 0;
}
