/* Replays calls as NCCL makes them, without a GPU: for tests and for `fabrictime bench workload plugin`. */
#ifndef FABRICTIME_REPLAY_H
#define FABRICTIME_REPLAY_H

#include "profiler_abi.h"
#include "segment.h"

enum { REPLAY_CHANNELS = 64, REPLAY_TRANSFERS = 256, REPLAY_DEPTH = 8 };

/* Durations of calls, in ns. */
struct times {
    uint32_t *ns;
    size_t count, capacity;
    uint32_t *bare; /* durations of a clock read, measured the same */
};

/* NCCL's side of one communicator at one rank. */
struct caller {
    const struct ft_nccl_profiler *table;
    int version, mask;
    int rank, ranks, nodes, pid;
    uint64_t id;
    void *context;
    uint64_t sequences[8]; /* by function */
    struct times *times;   /* NULL: do not measure */
    uint64_t calls;
};

/* One direction of one channel of an operation. */
struct transfer {
    int peer;
    uint8_t channel;
    bool sends;
    void *operation, *steps[REPLAY_DEPTH], *chunks[REPLAY_DEPTH];
};

/* An operation as NCCL plans it. */
struct plan {
    const char *function, *algorithm, *protocol;
    uint8_t function_number, algorithm_number, protocol_number; /* of version 1 */
    int peer; /* of a point-to-point operation; -1: a collective */
    size_t count;
    int channels, steps, chunk;
    uint64_t tag;
    int transfer_count;
    struct transfer transfers[REPLAY_TRANSFERS];
    void *group_api, *api, *group, *task, *kernels[REPLAY_CHANNELS];
};

/* caller.c */
bool caller_load(struct caller *of, const char *plugin, int version);
void caller_init(struct caller *of, const char *name);
void caller_finalize(struct caller *of);
void *caller_start(struct caller *of, struct ft_nccl_descriptor *descriptor, unsigned type, void *parent);
void caller_stop(struct caller *of, void *event);
void caller_record(struct caller *of, void *event, int state, size_t value);
void plan_ring(struct plan *to, const struct caller *of, int channels, int steps);
void plan_tree(struct plan *to, const struct caller *of, int channels, int steps);
void plan_p2p(struct plan *to, const struct caller *of, int peer, bool sends, int channels, int steps);
void plan_launch(struct caller *of, struct plan *plan);   /* the user's thread */
void plan_progress(struct caller *of, struct plan *plan); /* the proxy's thread */

void kernels_begin(struct caller *of, struct plan *plan);
void kernels_end(struct caller *of, struct plan *plan);

/* One step of a transfer, in parts, as the proxy's loop reaches them. */
void step_post(struct caller *of, struct transfer *transfer, int step);
void step_move(struct caller *of, struct transfer *transfer, int step, size_t bytes);
void step_end(struct caller *of, struct transfer *transfer, int step);
void transfer_begin(struct caller *of, struct plan *plan, struct transfer *transfer);
void transfer_end(struct caller *of, struct transfer *transfer);

/* drain.c: the reporter's side */
bool drain_open(const char *folder);
bool drain_wait(void);
uint64_t drain(void (*visit)(const struct ft_event *event, void *user), void *user);
struct counters {
    uint64_t read, dropped, misuse, invalid;
    bool closed;
};
struct counters drain_counters(void);

/* split.c */
void split(const char *plugin, uint64_t seed, int scripts);

/* clock.c: time that the replay sets itself, if it is not 0 */
extern __thread uint64_t replay_now_ns;
uint64_t clock_ns(void);

#endif
