#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "reader.h"

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW };
#define COUNT_MAX (UINT64_C(1) << 62)

static uint64_t load(const uint64_t *value) {
    return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

/* Copy a part of the segment. Return false if it cannot be read. */
static bool copy(const struct ft_reader *reader, void *to, uint64_t size, uint64_t offset) {
    char *at = to;

    while (size) {
        ssize_t n = pread(reader->fd, at, size, (off_t)offset);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (uint64_t)n;
        offset += (uint64_t)n;
    }
    return true;
}

/* End a text with its first NUL or at its size. Readers make it printable (labels.py). */
static void end_text(char *text, size_t size) {
    size_t n = strnlen(text, size - 1);

    memset(text + n, 0, size - n);
}

/* Check the copied header. Return the reason why it is none, or NULL. */
static const char *fault(const struct ft_segment *head, uint64_t bytes) {
    if (memcmp(head->magic, FT_SEGMENT_MAGIC, sizeof(head->magic)))
        return "magic, expected " FT_SEGMENT_MAGIC;
    if (head->version != FT_SEGMENT_VERSION) return "version, expected 2";
    if (head->rings < 1 || head->rings > FT_RINGS_MAX) return "rings, expected 1 to 256";
    if (head->ring_events < FT_RING_EVENTS_MIN || head->ring_events > FT_RING_EVENTS_MAX ||
        (head->ring_events & (head->ring_events - 1)))
        return "events of a ring, expected a power of two from 64 to 65536";
    if (head->bytes != bytes || ft_segment_bytes(head->rings, head->ring_events) != bytes)
        return "size, expected that of its rings";
    if (head->source > FT_SOURCE_VERBS) return "source, expected 0 to 4";
    return NULL;
}

static struct ft_ring_head *ring_of(const struct ft_reader *reader, uint32_t n) {
    return (void *)(reader->map + ft_segment_rings_at() + n * ft_segment_ring_bytes(reader->ring_events));
}

static const struct ft_segment *live(const struct ft_reader *reader) {
    return (const void *)reader->map;
}

static uint32_t rings_used(const struct ft_reader *reader) {
    uint64_t used = load(&live(reader)->rings_used);

    return used < reader->rings ? (uint32_t)used : reader->rings;
}

bool ft_reader_open(struct ft_reader *reader, int fd, char text[FT_READER_TEXT]) {
    struct stat status;
    struct statfs system;
    const char *why;
    int seals = fcntl(fd, F_GET_SEALS);

    memset(reader, 0, sizeof(*reader));
    reader->fd = fd;
    if (fstat(fd, &status) || fstatfs(fd, &system) || !S_ISREG(status.st_mode) ||
        system.f_type != TMPFS_MAGIC || seals < 0 || (seals & SEALS) != SEALS) {
        snprintf(text, FT_READER_TEXT, "descriptor: expected a memfd sealed against shrinking and growing");
        return false;
    }
    if (status.st_size < FT_SEGMENT_HEAD || status.st_size > FT_SEGMENT_MAX) {
        snprintf(text, FT_READER_TEXT, "segment: %lld bytes, expected 4096 to %d", (long long)status.st_size,
                 FT_SEGMENT_MAX);
        return false;
    }
    reader->bytes = (uint64_t)status.st_size;
    why = copy(reader, &reader->head, sizeof(reader->head), 0) ? fault(&reader->head, reader->bytes)
                                                               : "header, expected readable";
    if (why) {
        snprintf(text, FT_READER_TEXT, "segment: wrong %s", why);
        return false;
    }
    reader->map = mmap(NULL, reader->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (reader->map == MAP_FAILED) {
        snprintf(text, FT_READER_TEXT, "segment: cannot be mapped: errno %d, expected read and write access",
                 errno);
        return false;
    }
    reader->rings = reader->head.rings;
    reader->ring_events = reader->head.ring_events;
    end_text(reader->head.job, sizeof(reader->head.job));
    end_text(reader->head.tenant, sizeof(reader->head.tenant));
    end_text(reader->head.version_text, sizeof(reader->head.version_text));
    /* Rings that are not in use yet begin at 0: their heads are not touched. */
    for (uint32_t n = 0; n < rings_used(reader); n++)
        reader->ring[n].at = reader->ring[n].committed = load(&ring_of(reader, n)->tail);
    return true;
}

void ft_reader_close(struct ft_reader *reader) {
    munmap(reader->map, reader->bytes);
    close(reader->fd);
}

/* Events between `at` and the ring's head. More than the ring holds: none of them can be trusted. */
static uint64_t unread(struct ft_reader *reader, uint32_t n) {
    uint64_t head = load(&ring_of(reader, n)->head);

    if (head - reader->ring[n].at > reader->ring_events) {
        reader->invalid++;
        reader->ring[n].at = head;
    }
    return head - reader->ring[n].at;
}

uint64_t ft_reader_waiting(struct ft_reader *reader) {
    uint64_t sum = 0;

    for (uint32_t n = 0; n < rings_used(reader); n++) sum += unread(reader, n);
    return sum;
}

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Copy up to `max` events of a ring, not beyond its end. Return how many. */
static uint64_t take(struct ft_reader *reader, uint32_t n, struct ft_event *events, uint64_t max) {
    struct ft_reader_ring *ring = &reader->ring[n];
    uint64_t count = unread(reader, n);
    uint64_t slot = ring->at & (reader->ring_events - 1);
    uint64_t offset = ft_segment_rings_at() + n * ft_segment_ring_bytes(reader->ring_events) + FT_RING_HEAD;

    if (count > max) count = max;
    if (count > reader->ring_events - slot) count = reader->ring_events - slot;
    if (count && !copy(reader, events, count * sizeof(*events), offset + slot * sizeof(*events))) {
        reader->invalid += count;
        memset(events, 0, count * sizeof(*events));
    }
    ring->at += count;
    return count;
}

uint64_t ft_reader_drain(struct ft_reader *reader, struct ft_event *events, uint64_t max) {
    uint32_t used = rings_used(reader);
    uint64_t taken = 0, valid = 0, until_ns;

    for (uint32_t i = 0; i < used && taken < max; i++) {
        uint32_t n = (reader->next + i) % used;

        for (int part = 0; part < 2 && taken < max; part++)
            taken += take(reader, n, events + taken, max - taken);
        if (taken == max) reader->next = (n + 1) % used;
    }
    until_ns = now_ns() + 1000000;
    for (uint64_t i = 0; i < taken; i++) {
        if (!ft_event_plausible(&events[i], until_ns)) continue;
        if (valid != i) events[valid] = events[i];
        valid++;
    }
    reader->invalid += taken - valid;
    return valid;
}

void ft_reader_commit(struct ft_reader *reader) {
    for (uint32_t n = 0; n < rings_used(reader); n++) {
        struct ft_reader_ring *ring = &reader->ring[n];

        if (ring->committed == ring->at) continue;
        __atomic_store_n(&ring_of(reader, n)->tail, ring->at, __ATOMIC_RELEASE);
        ring->committed = ring->at;
    }
}

void ft_reader_rewind(struct ft_reader *reader) {
    for (uint32_t n = 0; n < reader->rings; n++) reader->ring[n].at = reader->ring[n].committed;
}

/* A counter of the segment, if it grew since. */
static uint64_t grown(uint64_t before, const uint64_t *counter) {
    uint64_t now = load(counter);

    return now > before && now < COUNT_MAX / FT_RINGS_MAX ? now : before;
}

uint64_t ft_reader_batch(const struct ft_reader *reader) {
    uint64_t batch = load(&live(reader)->batch);

    return batch < COUNT_MAX ? batch : 0;
}

void ft_reader_set_batch(struct ft_reader *reader, uint64_t batch) {
    __atomic_store_n(&((struct ft_segment *)(void *)reader->map)->batch, batch, __ATOMIC_RELEASE);
}

void ft_reader_count(struct ft_reader *reader, struct ft_reader_counters *counters) {
    memset(counters, 0, sizeof(*counters));
    counters->rings = rings_used(reader);
    for (uint32_t n = 0; n < counters->rings; n++) {
        struct ft_reader_ring *ring = &reader->ring[n];

        ring->dropped = grown(ring->dropped, &ring_of(reader, n)->dropped);
        ring->misuse = grown(ring->misuse, &ring_of(reader, n)->misuse);
        counters->dropped += ring->dropped;
        counters->misuse += ring->misuse;
    }
    reader->ringless = grown(reader->ringless, &live(reader)->ringless);
    counters->ringless = reader->ringless;
    counters->invalid = reader->invalid;
    counters->closed = load(&live(reader)->closed) == 1;
}

uint32_t ft_reader_communicators(const struct ft_reader *reader, uint64_t *changed) {
    uint64_t used;

    *changed = load(&live(reader)->communicators_changed);
    used = load(&live(reader)->communicators_used);
    return used < FT_COMMUNICATORS ? (uint32_t)used : FT_COMMUNICATORS;
}

/* Copy a row twice, so that one that changes meanwhile is none. */
bool ft_reader_communicator(const struct ft_reader *reader, uint32_t n, struct ft_segment_communicator *out) {
    uint64_t offset = FT_SEGMENT_HEAD + (uint64_t)n * sizeof(*out);
    struct ft_segment_communicator again;

    if (n >= FT_COMMUNICATORS || !copy(reader, out, sizeof(*out), offset) ||
        !copy(reader, &again, sizeof(again), offset) || memcmp(out, &again, sizeof(again)))
        return false;
    if ((out->ready != FT_ROW_IN_USE && out->ready != FT_ROW_ENDED) || out->rank > FT_RANK_MAX ||
        out->ranks > FT_RANK_MAX + 1 || out->nodes > FT_RANK_MAX + 1)
        return false;
    end_text(out->name, sizeof(out->name));
    end_text(out->gpu, sizeof(out->gpu));
    return true;
}

bool ft_reader_device(const struct ft_reader *reader, uint32_t n, struct ft_segment_device *out) {
    if (n >= FT_DEVICES || !copy(reader, out, sizeof(*out), ft_segment_devices_at() + n * sizeof(*out)))
        return false;
    if (out->ready != 1) return false;
    end_text(out->name, sizeof(out->name));
    return out->name[0];
}
