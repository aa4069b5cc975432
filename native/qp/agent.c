/* The library's thread. It announces this process's queue pairs to the actuator and the flow reporter, and
 * carries out the actuator's commands. It is created at the first queue pair if FABRICTIME_CONTROL (the
 * actuator's socket), FABRICTIME_FLOWS (the flow reporter's) or FABRICTIME_COLLECTIVES (the reporter of
 * delays) names a socket, otherwise never.
 *
 * Locks are taken in the order pair, registry. Only this thread frees pairs, so a pointer from the list
 * stays valid until this thread frees it. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FT_WIRE_BYTES_ (1 << 20) /* messages about all queue pairs wait together */
#include "job_name.h"
#include "fabrictime_flow.h"
#include "delays.h"

enum { REPORT_MS = 100, DRAIN_MS = 1, KICK_MS = 20, RETRY_MS = 500 };

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static bool started, watching_forks;
static _Atomic int wake_fd = -1;
static ft_wire control, flows;
static bool tracing;
static uint64_t traced_ns;
static atomic_bool exiting;
static _Atomic unsigned iterations; /* iterations of the thread, which the exit handler waits for */

uint64_t ft_now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static const char *setting(const char *variable) {
    const char *value = secure_getenv(variable);

    return value && *value ? value : NULL;
}

bool ft_measures(void) {
    static _Atomic int wanted;
    int known = atomic_load_explicit(&wanted, memory_order_relaxed);

    if (!known) {
        known = setting("FABRICTIME_COLLECTIVES") ? 1 : 2;
        atomic_store_explicit(&wanted, known, memory_order_relaxed);
    }
    return known == 1;
}

bool ft_wanted(void) {
    static _Atomic int wanted;
    int known = atomic_load_explicit(&wanted, memory_order_relaxed);

    if (!known) {
        known = setting("FABRICTIME_CONTROL") || setting("FABRICTIME_FLOWS") || ft_measures() ? 1 : 2;
        atomic_store_explicit(&wanted, known, memory_order_relaxed);
    }
    return known == 1;
}

void ft_agent_wake(void) {
    int fd = atomic_load(&wake_fd);
    uint64_t one = 1;

    if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
        return; /* the counter is full and will wake the thread anyway */
}

/* A copy of a pair, taken under its lock. */
struct view {
    bool whole, roce, moves;
    uint16_t source_port;
    uint64_t rate_bps;
    char source[FT_ADDRESS], peer[FT_ADDRESS];
};

static struct view view_of(struct ft_pair *pair, bool alive) {
    struct view view;

    memset(&view, 0, sizeof(view));
    pthread_mutex_lock(&pair->lock);
    if (alive && !pair->dead && pair->has_path && pair->state == FT_QPS_RTS) {
        ft_learn_path(pair);
        view.whole = true;
        view.roce = pair->roce_v2 && pair->source[0];
        view.moves = pair->roce_v2 || pair->standby;
        view.source_port = pair->source_port;
        view.rate_bps = pair->rate_bps;
        memcpy(view.source, pair->source, sizeof(view.source));
        memcpy(view.peer, pair->peer, sizeof(view.peer));
        pair->paces = ft_device_paces(pair->qp->context, pair->qp_type);
    }
    pthread_mutex_unlock(&pair->lock);
    return view;
}

static void init_wire(ft_wire *wire, const char *variable) {
    const char *path = setting(variable);

    wire->fd = -1;
    snprintf(wire->path, sizeof(wire->path), "%s", path ? path : "");
}

static void send_line(ft_wire *wire, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void send_line(ft_wire *wire, const char *format, ...) {
    char line[1600];
    va_list arguments;

    va_start(arguments, format);
    if (vsnprintf(line, sizeof(line), format, arguments) < (int)sizeof(line)) ft_wire_send_(wire, line);
    va_end(arguments);
}

/* Write a label as a field of JSON, with a comma before it; nothing if it is empty. */
static void label(char *text, size_t size, const char *field, const char *value) {
    int used = snprintf(text, size, ",\"%s\":", field);

    if (!*value || !ft_json_(text + used, size - (size_t)used, value)) text[0] = 0;
}

static void report(struct ft_pair *pair, const struct view *view) {
    uint64_t bytes = atomic_load_explicit(&pair->frame_bytes, memory_order_relaxed);
    char job[320], tenant[320], name[FT_JOB_NAME], rate[48] = "";
    const char *can = "";

    if (pair->reported && bytes == pair->reported_bytes && view->source_port == pair->reported_port) return;
    ft_job_name(setting, name);
    label(job, sizeof(job), "job", name);
    ft_copy_name(name, setting("FABRICTIME_TENANT") ? setting("FABRICTIME_TENANT") : "");
    label(tenant, sizeof(tenant), "tenant", name);
    /* Commands arrive on the control socket: without it, nothing can be moved or paced. */
    if (control.path[0] && (view->moves || pair->paces))
        can = !pair->paces ? "\"MOVE\"" : view->moves ? "\"MOVE\",\"PACE\"" : "\"PACE\"";
    if (view->rate_bps)
        snprintf(rate, sizeof(rate), ",\"rate_limit_bps\":%llu", (unsigned long long)view->rate_bps);
    send_line(
        &flows,
        "{\"protocol\":\"roce\",\"flow\":\"%s\",\"source_address\":\"%s\",\"source_port\":%u,"
        "\"peer_address\":\"%s\",\"peer_port\":4791,\"sent_bytes\":%llu,\"at_ns\":%llu,\"can\":[%s]%s%s%s}",
        pair->key, view->source, view->source_port, view->peer, (unsigned long long)bytes,
        (unsigned long long)ft_now_ns(), can, rate, job, tenant);
    pair->reported = true;
    pair->reported_bytes = bytes;
    pair->reported_port = view->source_port;
}

static void announce(struct ft_pair *pair, const struct view *view) {
    send_line(&control, "FLOW %s %u %s", pair->key, view->source_port,
              view->moves && pair->paces ? "MOVE,PACE"
              : view->moves              ? "MOVE"
              : pair->paces              ? "PACE"
                                         : "-");
    pair->announced = true;
}

static void withdraw(struct ft_pair *pair) {
    if (pair->reported) { /* bytes that it sent last */
        struct view last = {.source_port = pair->reported_port};

        memcpy(last.source, pair->source, sizeof(last.source));
        memcpy(last.peer, pair->peer, sizeof(last.peer));
        if (last.source[0]) report(pair, &last);
    }
    if (pair->announced) send_line(&control, "GONE %s", pair->key);
    if (pair->reported)
        send_line(&flows, "{\"protocol\":\"roce\",\"flow\":\"%s\",\"closed\":true}", pair->key);
    pair->announced = pair->reported = false;
}

static void answer(struct ft_pair *pair, uint64_t id, const struct ft_result *result) {
    if (result->outcome == FT_DONE)
        send_line(&control, "DONE %llu %llu %s", (unsigned long long)id, (unsigned long long)result->in_force,
                  result->how);
    else if (result->outcome == FT_FAILED)
        send_line(&control, "FAILED %llu %s", (unsigned long long)id, result->text);
    else
        pair->move_id = id;
    if (result->outcome == FT_DONE) {
        ft_registry_lock();
        pair->changed = true;
        ft_registry_unlock();
    }
}

static void refuse(uint64_t id, const char *why) {
    send_line(&control, "FAILED %llu %s", (unsigned long long)id, why);
}

static void order(const char *line) {
    char key[FT_NAME * 2];
    struct ft_result result;
    struct ft_pair *pair;
    uint64_t id;
    int64_t value;
    int move;

    if (!ft_command_(line, &move, &id, key, sizeof(key), &value)) {
        send_line(&control, "ERROR expected MOVE or PACE, id, key and value");
        return;
    }
    if (move && (value < 1 || value > 65535)) {
        refuse(id, "source port: expected 1 to 65535");
        return;
    }
    ft_registry_lock();
    pair = ft_pair_named(key);
    ft_registry_unlock();
    if (!pair) {
        refuse(id, "no such queue pair");
        return;
    }
    pthread_mutex_lock(&pair->lock);
    if (pair->dead) {
        memset(&result, 0, sizeof(result));
        result.outcome = FT_FAILED;
        strcpy(result.text, "no such queue pair");
    } else if (move) {
        ft_move(pair, (uint16_t)value, &result);
    } else {
        ft_pace(pair, (uint64_t)value, &result);
    }
    pthread_mutex_unlock(&pair->lock);
    answer(pair, id, &result);
}

/* Continue moves that have not ended. Return ms until the next check, 0: there are none. */
static int finish_moves(struct ft_pair *pair) {
    int again_ms = 0;

    for (; pair; pair = pair->next) {
        struct ft_result result;

        pthread_mutex_lock(&pair->lock);
        if (!pair->draining || pair->dead) {
            if (!pair->dead && ft_now_ns() < pair->kick_until_ns) {
                if (pair->state == FT_QPS_RTS) ft_kick(pair);
                again_ms = again_ms ? again_ms : KICK_MS;
            }
            pthread_mutex_unlock(&pair->lock);
            continue;
        }
        ft_finish_drain(pair, &result);
        pthread_mutex_unlock(&pair->lock);
        if (result.outcome == FT_DRAINING)
            again_ms = DRAIN_MS;
        else
            answer(pair, pair->move_id, &result);
    }
    return again_ms;
}

/* Write what completed on a queue pair since the last report into the trace. */
static void trace(struct ft_pair *pair) {
    struct ft_event event;

    if (!tracing || !pair->delays || !ft_delays_report(pair->delays, &event)) return;
    if (!pair->trace_device) pair->trace_device = ft_trace_device(pair->device) + 1;
    event.device = (uint16_t)(pair->trace_device ? pair->trace_device - 1 : 0);
    event.created = pair->created;
    ft_trace_put(&event);
}

static void trace_all(struct ft_pair *pair) {
    uint64_t now_ns = ft_now_ns();

    if (!tracing || (now_ns - traced_ns < REPORT_MS * 1000000u && !atomic_load(&exiting))) return;
    traced_ns = now_ns;
    for (; pair; pair = pair->next) trace(pair);
}

/* Publish changes, and free pairs that are gone. Return true if bytes must be counted. */
static bool publish(bool all_control, bool all_flows) {
    struct ft_pair *pair, *next;
    bool any = false;

    ft_registry_lock();
    pair = ft_pairs();
    ft_registry_unlock();
    for (; pair; pair = next) {
        bool changed, dead;

        ft_registry_lock();
        next = pair->next;
        changed = pair->changed;
        dead = pair->dead;
        pair->changed = false;
        ft_registry_unlock();
        if (all_control) pair->announced = false;
        if (all_flows) pair->reported = false;

        struct view view;

        memset(&view, 0, sizeof(view));
        if (changed || all_control || flows.fd >= 0) view = view_of(pair, !dead);
        if (!dead && view.whole) {
            any = true;
            if (control.fd >= 0 && (changed || !pair->announced)) announce(pair, &view);
            if (flows.fd >= 0 && view.roce) report(pair, &view);
        } else if (dead || changed) {
            withdraw(pair);
        }
        if (dead) {
            pthread_mutex_lock(&pair->lock); /* wait until the thread that destroys it has released it */
            pthread_mutex_unlock(&pair->lock);
            trace(pair);
            ft_registry_lock();
            next = pair->next;
            ft_pair_free(pair);
            ft_registry_unlock();
        }
    }
    return any;
}

static void *work(void *arg) {
    bool counting = false, measuring = false;
    int moving_ms = 0;

    (void)arg;
    tracing = ft_trace_open(FT_SOURCE_VERBS, "verbs/1");
    for (;;) {
        bool down = (control.path[0] && control.fd < 0) || (flows.path[0] && flows.fd < 0);
        struct pollfd wait[3] = {
            {.fd = atomic_load(&wake_fd), .events = POLLIN},
            {.fd = control.fd, .events = (short)(POLLIN | (control.out_bytes ? POLLOUT : 0))},
            {.fd = flows.fd, .events = (short)(POLLIN | (flows.out_bytes ? POLLOUT : 0))},
        };
        int limit_ms = moving_ms                                  ? moving_ms
                       : measuring || (counting && flows.fd >= 0) ? REPORT_MS
                       : down                                     ? RETRY_MS
                                                                  : -1;
        uint64_t count;
        char line[sizeof(control.in)];

        if (poll(wait, 3, limit_ms) < 0 && errno != EINTR) return NULL;
        if ((wait[0].revents & POLLIN) && read(wait[0].fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
            return NULL;
        if (wait[1].revents && ft_wire_read_(&control))
            while (ft_wire_line_(&control, line)) order(line);
        if (wait[2].revents && ft_wire_read_(&flows))
            while (ft_wire_line_(&flows, line)); /* refusals are in the reporter's own log */

        bool all_control = ft_wire_open_(&control);
        bool all_flows = ft_wire_open_(&flows);

        ft_registry_lock();
        struct ft_pair *first = ft_pairs();
        ft_registry_unlock();
        moving_ms = finish_moves(first);
        trace_all(first);
        measuring = tracing && first;
        counting = publish(all_control, all_flows);
        ft_wire_flush_(&control);
        ft_wire_flush_(&flows);
        atomic_fetch_add(&iterations, 1);
    }
}

/* Before the process exits, publish the last bytes of its queue pairs: wait for one iteration, 100 ms at
 * most. */
static void __attribute__((destructor)) flush_at_exit(void) {
    const struct timespec pause = {0, 1000000};
    unsigned begun = atomic_load(&iterations);

    atomic_store(&exiting, true);
    for (int i = 0; started && i < 100 && atomic_load(&iterations) - begun < 2; i++) {
        ft_agent_wake();
        nanosleep(&pause, NULL);
    }
    if (started && tracing) ft_trace_close();
}

/* After fork the child has no thread, and must not use its parent's queue pairs and connections. */
static void in_child(void) {
    ft_registry_forget();
    ft_wire_close_(&control);
    ft_wire_close_(&flows);
    if (atomic_load(&wake_fd) >= 0) close(atomic_load(&wake_fd));
    atomic_store(&wake_fd, -1);
    pthread_mutex_init(&starting, NULL);
    started = tracing = false;
}

static void before_fork(void) {
    pthread_mutex_lock(&starting);
    ft_registry_lock();
}

static void in_parent(void) {
    ft_registry_unlock();
    pthread_mutex_unlock(&starting);
}

void ft_agent_start(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;

    pthread_mutex_lock(&starting);
    if (started) {
        pthread_mutex_unlock(&starting);
        return;
    }
    if (!watching_forks) watching_forks = !pthread_atfork(before_fork, in_parent, in_child);
    init_wire(&control, "FABRICTIME_CONTROL");
    init_wire(&flows, "FABRICTIME_FLOWS");
    atomic_store(&wake_fd, eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
    /* Leave signals to the application's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    started = !pthread_create(&thread, &attributes, work, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&starting);
}
