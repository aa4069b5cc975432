/* A rank of a job, for tests: writes a segment by commands, a line each, and answers each with a line.
 *
 *     job RANK RANKS COMMUNICATOR VERSION
 *         run COUNT NS BYTES      all-reduces that took NS each, begun and ended at once
 *         moved TRANSFERS NS      an all-reduce with so many transfers
 *         hang                    an all-reduce that begins
 *         pair NUMBER COUNT NS    chunks of a queue pair of mlx5_0
 *         wrong                   an event that ends before its begin
 *         close                   after the last operation */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "writer.h"

static int communicator, device;
static uint64_t sequence;

static struct ft_event made(enum ft_event_kind kind, uint64_t ns) {
    struct ft_event event;

    memset(&event, 0, sizeof(event));
    event.end_raw_ns = ft_trace_now_ns();
    event.begin_raw_ns = event.end_raw_ns - ns;
    event.kind = (uint8_t)kind;
    event.communicator = (uint16_t)communicator;
    event.peer = -1;
    return event;
}

/* Begin an all-reduce, and return the event of its end. */
static struct ft_event all_reduce(uint64_t ns, uint64_t bytes) {
    struct ft_event event = made(FT_EVENT_END, ns), begin;

    event.function = FT_ALL_REDUCE;
    event.algorithm = FT_RING;
    event.protocol = FT_SIMPLE;
    event.operation = ft_trace_operation();
    event.sequence = sequence++;
    event.bytes = bytes;
    event.channel = 2;
    begin = event;
    begin.kind = FT_EVENT_BEGIN;
    begin.end_raw_ns = 0;
    ft_trace_put(&begin);
    return event;
}

static void run(uint64_t count, uint64_t ns, uint64_t bytes) {
    while (count--) {
        struct ft_event event = all_reduce(ns, bytes);

        ft_trace_put(&event);
    }
}

static void moved(uint64_t transfers, uint64_t ns) {
    struct ft_event event = all_reduce(ns, 1 << 20), transfer = event;

    transfer.kind = FT_EVENT_TRANSFER;
    transfer.flags = FT_FLAG_SENDS | FT_FLAG_SPLIT;
    transfer.steps = 8;
    transfer.sampled = 4;
    transfer.gpu_late_ns = 1;
    transfer.network_late_ns = ns / 2;
    for (uint64_t n = 0; n < transfers; n++) {
        transfer.peer = 1;
        transfer.channel = (uint16_t)n;
        transfer.end_raw_ns = transfer.begin_raw_ns + ns / 2 + n;
        ft_trace_put(&transfer);
    }
    event.flags = FT_FLAG_SPLIT;
    event.steps = 8 * (uint32_t)transfers;
    event.sampled = 4 * (uint32_t)transfers;
    event.network_late_ns = ns / 2;
    ft_trace_put(&event);
}

static void pair(uint64_t number, uint64_t count, uint64_t ns) {
    struct ft_event event = made(FT_EVENT_QUEUE_PAIR, 1000000);

    event.device = (uint16_t)device;
    event.queue_pair = (uint32_t)number;
    event.completed = (uint32_t)count;
    event.bytes = count * 4096;
    event.min_ns = (uint32_t)(ns / 2);
    event.max_ns = (uint32_t)(ns * 2);
    event.sum_ns = ns * count;
    event.p99_ns = ns;
    event.communicator = UINT16_MAX;
    ft_trace_put(&event);
}

static void wrong(void) {
    struct ft_event event = made(FT_EVENT_END, 1000);

    event.end_raw_ns = event.begin_raw_ns - 500;
    ft_trace_put(&event);
}

int main(int argc, char **argv) {
    struct ft_segment_communicator world;
    char line[256], command[16];
    unsigned long long a, b, c;

    if (argc != 5 || !ft_trace_open(FT_SOURCE_NCCL, argv[4])) return 2;
    memset(&world, 0, sizeof(world));
    world.rank = (uint32_t)atoi(argv[1]);
    world.ranks = (uint32_t)atoi(argv[2]);
    world.nodes = 1;
    world.id = strtoull(argv[3], NULL, 16);
    communicator = ft_trace_communicator(&world);
    device = ft_trace_device("mlx5_0");
    while (fgets(line, sizeof(line), stdin)) {
        a = b = c = 0;
        if (sscanf(line, "%15s %llu %llu %llu", command, &a, &b, &c) < 1) continue;
        if (!strcmp(command, "run")) run(a, b, c);
        if (!strcmp(command, "moved")) moved(a, b);
        if (!strcmp(command, "hang")) (void)all_reduce(0, 1 << 20);
        if (!strcmp(command, "pair")) pair(a, b, c);
        if (!strcmp(command, "wrong")) wrong();
        if (!strcmp(command, "close")) ft_trace_close();
        puts(command);
        fflush(stdout);
    }
    return 0;
}
