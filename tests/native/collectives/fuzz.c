/* The reader against hostile segments: spoilt headers, indexes and events, and a writer that spoils them while
 * they are read. Built by test_reader.py with the sanitizers; prints "clean" at the end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "reader.h"

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                          \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { RINGS = 4, EVENTS = 64, ROUNDS = 3000, RACES = 3000 };

static uint64_t state = 88172645463325252ULL;
static atomic_bool stop;

static uint64_t chance(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* A number at which checks tend to be wrong. */
static uint64_t edge(void) {
    static const uint64_t values[] = {0,          1,          63,
                                      64,         65,         255,
                                      256,        257,        0x7fffffff,
                                      0x80000000, 0xffffffff, UINT64_C(1) << 46,
                                      INT64_MAX,  UINT64_MAX, UINT64_MAX - 63};

    return chance(3) ? values[chance(sizeof(values) / sizeof(*values))] : chance(UINT64_MAX);
}

static char *made(int *fd, uint64_t bytes) {
    char *map;
    struct ft_segment *head;

    *fd = memfd_create("fuzz", MFD_ALLOW_SEALING);
    CHECK(*fd >= 0 && !ftruncate(*fd, (off_t)bytes));
    CHECK(!fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    CHECK(map != MAP_FAILED);
    if (bytes < sizeof(*head)) return map;
    head = (void *)map;
    memcpy(head->magic, FT_SEGMENT_MAGIC, sizeof(head->magic));
    head->version = FT_SEGMENT_VERSION;
    head->bytes = bytes;
    head->rings = RINGS;
    head->ring_events = EVENTS;
    head->rings_used = RINGS;
    return map;
}

static void spoil(char *map, uint64_t bytes) {
    uint64_t ring = ft_segment_rings_at() + chance(RINGS) * ft_segment_ring_bytes(EVENTS);
    uint64_t value = edge();

    switch (chance(5)) {
    case 0: /* any word of the header */
        memcpy(map + chance(52) * 8, &value, 1 + chance(8));
        break;
    case 1: /* head, tail and counters of a ring */
        memcpy(map + ring + chance(9) * 8, &value, 8);
        break;
    case 2: /* an event */
        memcpy(map + ring + FT_RING_HEAD + chance(EVENTS * 16) * 8, &value, 1 + chance(8));
        break;
    case 3: /* a communicator or a device */
        memcpy(map + FT_SEGMENT_HEAD + chance((FT_COMMUNICATORS * 256 + FT_DEVICES * 64) / 8) * 8, &value, 8);
        break;
    default: /* anything */
        memcpy(map + chance(bytes / 8) * 8, &value, 8);
    }
}

static void use(struct ft_reader *reader) {
    static struct ft_event events[RINGS * EVENTS + 7];
    struct ft_reader_counters before, after;
    struct ft_segment_communicator communicator;
    struct ft_segment_device device;
    uint64_t max = chance(sizeof(events) / sizeof(*events)) + 1;

    ft_reader_count(reader, &before);
    CHECK(ft_reader_waiting(reader) <= RINGS * EVENTS);
    uint64_t count = ft_reader_drain(reader, events, max);

    CHECK(count <= max);
    for (uint64_t n = 0; n < count; n++) {
        CHECK(events[n].kind >= FT_EVENT_BEGIN && events[n].kind <= FT_EVENT_QUEUE_PAIR);
        CHECK(events[n].function <= FT_WAIT && events[n].bytes <= FT_BYTES_MAX);
        CHECK(events[n].communicator < FT_COMMUNICATORS || events[n].communicator == UINT16_MAX);
    }
    if (chance(2)) ft_reader_commit(reader);
    if (!chance(4)) ft_reader_rewind(reader);
    ft_reader_count(reader, &after);
    CHECK(after.dropped >= before.dropped && after.misuse >= before.misuse);
    CHECK(after.ringless >= before.ringless && after.invalid >= before.invalid);
    for (uint32_t n = 0; n < FT_COMMUNICATORS + 2; n += 1 + (uint32_t)chance(64))
        if (ft_reader_communicator(reader, n, &communicator))
            CHECK(strlen(communicator.name) < sizeof(communicator.name));
    for (uint32_t n = 0; n < FT_DEVICES + 2; n++)
        if (ft_reader_device(reader, n, &device)) CHECK(strlen(device.name) < sizeof(device.name));
    CHECK(strlen(reader->head.job) < sizeof(reader->head.job));
}

static void one(uint64_t bytes, int spoilt) {
    static struct ft_reader reader;
    char text[FT_READER_TEXT];
    int fd;
    char *map = made(&fd, bytes);

    for (int n = 0; n < spoilt && bytes >= ft_segment_bytes(RINGS, EVENTS); n++) spoil(map, bytes);
    if (!ft_reader_open(&reader, fd, text)) {
        CHECK(*text && strlen(text) < sizeof(text));
        close(fd);
    } else {
        for (int n = 0; n < 3; n++) use(&reader);
        ft_reader_close(&reader);
    }
    munmap(map, bytes);
}

static void *race(void *arg) {
    uint64_t *map = arg, bytes = ft_segment_bytes(RINGS, EVENTS), x = 1;

    while (!atomic_load(&stop)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        __atomic_store_n(&map[x % (bytes / 8)], x % 5 ? x % 300 : x, __ATOMIC_RELAXED);
        __atomic_fetch_add(&map[(ft_segment_rings_at() + x % RINGS * ft_segment_ring_bytes(EVENTS)) / 8],
                           x % 3, __ATOMIC_RELEASE);
    }
    return NULL;
}

int main(void) {
    static struct ft_reader reader;
    uint64_t bytes = ft_segment_bytes(RINGS, EVENTS);
    char text[FT_READER_TEXT];
    pthread_t thread;
    int fd;
    char *map;

    for (int round = 0; round < ROUNDS; round++) one(bytes, (int)chance(12));
    for (uint64_t size = 0; size < 9000; size += 1 + chance(700)) one(size ? size : 1, 0);
    one(bytes - 1, 3);
    one(bytes + 1, 3);
    map = made(&fd, bytes);
    CHECK(ft_reader_open(&reader, fd, text));
    CHECK(!pthread_create(&thread, NULL, race, map));
    for (int n = 0; n < RACES; n++) use(&reader);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    ft_reader_close(&reader);
    munmap(map, bytes);
    puts("clean");
    return 0;
}
