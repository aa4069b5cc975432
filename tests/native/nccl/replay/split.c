/* The error of measured waits: collectives in simulated time, whose waits are known, against the plugin's
 * estimate from its measured steps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

enum { MAX_STEPS = 4096, ACTS = 3 * MAX_STEPS };

struct sums {
    double network, all;
};

/* One call or group of calls at one step, in the order of time. */
struct act {
    uint64_t at;
    int step, kind; /* 0: post, 1: move, 2: end */
};

static uint64_t state;

static double uniform(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

static int between(int low, int high) {
    return low + (int)(uniform() * (high - low + 1));
}

/* How the waits of one kind are distributed in a script. */
struct habit {
    double mean_ns;
    int kind; /* 0: nearly constant, 1: exponential, 2: lognormal, 3: rare and long, 4: a slow phase, 5: periodic */
    double phase, length;
    int period;
};

static struct habit draw_habit(void) {
    return (struct habit){.mean_ns = exp(log(500) + uniform() * log(400)),
                          .kind = between(0, 5),
                          .phase = uniform(),
                          .length = 0.02 + 0.4 * uniform(),
                          .period = between(2, 16)};
}

static uint64_t draw(const struct habit *of, int step, int steps) {
    double at = (double)step / steps, wait = of->mean_ns;

    if (of->kind == 0) wait *= 0.9 + 0.2 * uniform();
    if (of->kind == 1) wait *= -log(uniform());
    if (of->kind == 2) wait *= exp(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()) - 0.5);
    if (of->kind == 3) wait *= uniform() < 0.02 ? 40 : 0.2;
    if (of->kind == 4) wait *= at >= of->phase && at < of->phase + of->length ? 10 : 1;
    if (of->kind == 5) wait *= step % of->period ? 0.5 : 8;
    return (uint64_t)wait + 1;
}

static int by_time(const void *a, const void *b) {
    const struct act *first = a, *second = b;

    if (first->at != second->at) return first->at < second->at ? -1 : 1;
    if (first->step != second->step) return first->step - second->step;
    return first->kind - second->kind;
}

/* Replay one transfer, whose steps overlap as in NCCL, and add its true waits. */
static void replay_transfer(struct caller *caller, struct plan *plan, struct transfer *transfer,
                            const struct habit habits[3], struct sums *truth) {
    static struct act acts[ACTS];
    static uint64_t ends[MAX_STEPS];
    uint64_t begin = replay_now_ns, last_move = 0, last_end = 0;
    int count = 0;

    for (int step = 0; step < plan->steps; step++) {
        uint64_t post = step < REPLAY_DEPTH ? begin + (uint64_t)step * 50 : ends[step - REPLAY_DEPTH] + 50;
        uint64_t move = post + draw(&habits[0], step, plan->steps), end;

        if (move <= last_move) move = last_move + 10; /* in order */
        end = move + draw(&habits[1], step, plan->steps);
        if (end <= last_end) end = last_end + 10;
        last_move = move;
        last_end = ends[step] = end;
        acts[count++] = (struct act){post, step, 0};
        acts[count++] = (struct act){move, step, 1};
        acts[count++] = (struct act){end, step, 2};
        truth->all += (double)(end - post);
        truth->network += (double)(transfer->sends ? end - move : move - post);
    }
    qsort(acts, (size_t)count, sizeof(acts[0]), by_time);
    transfer_begin(caller, plan, transfer);
    for (int n = 0; n < count; n++) {
        replay_now_ns = acts[n].at;
        if (acts[n].kind == 0)
            step_post(caller, transfer, acts[n].step);
        else if (acts[n].kind == 1)
            step_move(caller, transfer, acts[n].step, (size_t)plan->chunk);
        else
            step_end(caller, transfer, acts[n].step);
    }
    transfer_end(caller, transfer);
    replay_now_ns = begin;
}

static void add_estimate(const struct ft_event *event, void *to) {
    struct sums *sums = to;

    if (event->kind != FT_EVENT_TRANSFER) return;
    sums->network += (double)event->network_late_ns;
    sums->all +=
        (double)(event->gpu_late_ns + event->peer_late_ns + event->network_late_ns + event->flush_ns);
}

static double replay_collective(struct caller *caller, struct plan *plan, double *measured) {
    struct sums truth = {0}, estimate = {0};
    struct habit sends[3], receives[3];
    uint64_t calls = caller->calls;
    int channels = 1 << between(1, 5), steps = (int)exp(log(16) + uniform() * log(256)) - 1;

    for (int n = 0; n < 3; n++) {
        sends[n] = draw_habit();
        receives[n] = draw_habit();
    }
    if (uniform() < 0.5)
        plan_ring(plan, caller, channels, steps);
    else
        plan_tree(plan, caller, channels, steps);
    plan_launch(caller, plan);
    for (int n = 0; n < plan->transfer_count; n++)
        replay_transfer(caller, plan, &plan->transfers[n], plan->transfers[n].sends ? sends : receives,
                        &truth);
    replay_now_ns += 1000000000u;
    while (drain(add_estimate, &estimate));
    *measured = (double)(caller->calls - calls);
    return fabs(estimate.network / estimate.all - truth.network / truth.all);
}

static int by_value(const void *a, const void *b) {
    double first = *(const double *)a, second = *(const double *)b;

    return first < second ? -1 : first > second;
}

/* Print the absolute error of the share of network waits, in points, over many collectives. */
void split(const char *plugin, uint64_t seed, int scripts) {
    struct caller caller = {.rank = 1, .ranks = 16, .nodes = 2, .id = 7};
    struct plan *plan = malloc(sizeof(*plan));
    double *errors = calloc((size_t)scripts, sizeof(*errors)), sum = 0, calls;

    state = seed * 2654435761u + 88172645463325252u;
    replay_now_ns = UINT64_C(1000000000000);
    setenv("FABRICTIME_COLLECTIVES_EVENTS", "65536", 1);
    if (!caller_load(&caller, plugin, 0)) exit(1);
    caller_init(&caller, "split");
    if (!caller.context || !drain_wait()) exit(1);
    caller.mask &= ~FT_NCCL_NET_PLUGIN;
    for (int n = 0; n < scripts; n++) {
        errors[n] = 100 * replay_collective(&caller, plan, &calls);
        sum += errors[n] * errors[n];
    }
    qsort(errors, (size_t)scripts, sizeof(*errors), by_value);
    printf("{\"scripts\": %d, \"rms_points\": %.3f, \"p50_points\": %.3f, \"p95_points\": %.3f, "
           "\"max_points\": %.3f, \"dropped\": %" PRIu64 "}\n",
           scripts, sqrt(sum / scripts), errors[scripts / 2], errors[(int)(scripts * 0.95)],
           errors[scripts - 1], drain_counters().dropped);
    exit(0);
}
