/* Fabric time for C and C++ programs on a host that runs fabrictime's actuator: header only, Linux, no
 * library.
 *
 * It reads the page that the actuator keeps in shared memory. It returns fabric time now, or at any
 * timestamp of a clock or NIC of this host, with a bound on the true error that holds 99.9% of the time.
 * It uses no lock, no allocation, and no system call but clock_gettime (in user space). One reader may
 * serve all threads; open one per program, not per call.
 *
 *     ft_reader clock;
 *     int64_t time_ns, bound_ns;
 *     if (ft_open(&clock, NULL) == 0 && ft_now(&clock, &time_ns, &bound_ns) > FT_UNSYNCED)
 *       ...
 *     ft_close(&clock);
 *
 * Needs GCC or Clang, and _GNU_SOURCE or a -std=gnu dialect because C's strict modes hide clock_gettime.
 *
 * The page has a fixed head, a sequence number, and two copies of the content. The sequence's last bit
 * selects the copy to read. The writer makes it odd, writes copy 0, makes it even, writes copy 1. A reader
 * whose sequence is unchanged after copying has a complete copy. A writer that died half-way leaves the
 * other copy readable. */
#ifndef FABRICTIME_CLOCK_H
#define FABRICTIME_CLOCK_H

#if !defined(_GNU_SOURCE) && !defined(_DEFAULT_SOURCE) && !defined(_POSIX_C_SOURCE)
#define _DEFAULT_SOURCE 1
#endif

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fabrictime_clock.h: the page is little-endian"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Results of ft_now and ft_convert. Below zero: an error of ft_open, or an unknown clock. */
enum {
    FT_UNSYNCED = 0, /* no time: time_ns is 0 and bound_ns INT64_MAX */
    FT_HOLDOVER = 1, /* extrapolated from earlier measurements; the bound grows */
    FT_SYNCED = 2,
    FT_NO_PAGE = -1,    /* no file, or no permission to read it: see errno */
    FT_BAD_PAGE = -2,   /* not a page, truncated, or corrupt */
    FT_VERSION = -3,    /* a page of another version of fabrictime */
    FT_OTHER_BOOT = -4, /* written before this boot, or in another time namespace */
    FT_NO_CLOCK = -5    /* this host has no clock or NIC of that name */
};

/* A reader. Its fields are private. Do not copy it while it is in use. */
typedef struct {
    const unsigned char *map;
    int64_t reopen_ns; /* raw time of the next check for a new file */
    uint64_t device, inode;
    char path[1024];
} ft_reader;

/* -- layout of the page, version 2; docs/clients.md explains each field
 * ---------------------------------------- */

#define FT_PAGE_MAGIC    "FTCLOCK" /* including its NUL: 8 bytes */
#define FT_PAGE_VERSION  2u
#define FT_PAGE_BYTES    20480u
#define FT_PAGE_CLOCKS   32u
#define FT_PAGE_NICS     64u
#define FT_PAGE_SEQUENCE 256u /* offset of the sequence number */
#define FT_PAGE_COPY     320u /* offset of copy 0; copy 1 follows */
#define FT_FLAG_RETIRED  1u   /* another file has replaced this one */

typedef struct {
    char magic[8];
    uint32_t version, size_bytes;
    uint32_t crc; /* CRC-32 of the rest of this head */
    uint32_t reserved;
    unsigned char boot_id[16];
    uint64_t time_namespace; /* inode of /proc/self/ns/time, 0: unknown */
    uint64_t reserved2;
    uint64_t reserved3;
    char host[192];
} ft_page_head;

typedef struct {
    uint32_t crc; /* CRC-32 of the rest, to the end of `domain` */
    uint32_t state;
    uint64_t flags;
    int64_t raw_at_ns, fabric_at_ns; /* the model: fabric time at a reading of CLOCK_MONOTONIC_RAW */
    double rate_ppb;                 /* rate of fabric time relative to that clock */
    double slew_ppb;                 /* added to it until slew_end_raw_ns */
    int64_t slew_end_raw_ns;
    double bound_ns, growth_ppb, wander_ppb_per_s; /* bound: at raw_at_ns, without the remaining slew */
    int64_t holdover_raw_ns, expires_raw_ns;       /* from here at best HOLDOVER; from here UNSYNCED */
    int64_t reopen_raw_ns;                         /* from here the writer is late: check for another file */
    uint64_t steps;                                /* number of steps of fabric time */
    int64_t window;
    uint64_t domain_hash;
    int64_t writer_pid;
    uint32_t clocks, nics; /* used elements of the two tables */
    uint32_t tables_crc;   /* CRC-32 of both complete tables */
    uint32_t holdover_ms;  /* distance from its at_ns within which a clock's model is SYNCED, */
    int64_t written_raw_ns;
    uint32_t expires_ms; /* and within which it may be used at all */
    uint32_t reserved;
    char source[64]; /* the clock of this host that the model came from */
    char domain[88];
} ft_page_model;

typedef struct {
    char name[64]; /* without the host: system, ptp0 */
    uint32_t state;
    float offset_fraction_ns; /* below 1 ns */
    /* fabric time at its reading c is c + offset_ns + offset_fraction_ns + drift_ppb * 1e-9 * (c - at_ns) */
    int64_t at_ns, offset_ns;
    double drift_ppb;
    double bound_ns, growth_ppb, wander_ppb_per_s;
    int64_t since_ns; /* earlier readings are from before a step */
} ft_page_clock;

typedef struct {
    char name[60];  /* the device */
    uint32_t clock; /* index of the clock that timestamps it */
} ft_page_nic;

typedef struct {
    ft_page_model model;
    ft_page_clock clock[FT_PAGE_CLOCKS];
    ft_page_nic nic[FT_PAGE_NICS];
} ft_page_copy;

/* -- reading --------------------------------------------------------------------------------------------------- */

#define FT_TRIES_           1000 /* a writer would have to finish as many updates meanwhile */
#define FT_REOPEN_EVERY_NS_ INT64_C(1000000000)
#define FT_MAX_             4.6e18 /* limit of times and offsets, so that a sum of two fits */

static inline int64_t ft_raw_ns_(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + (int64_t)t.tv_nsec;
}

static inline uint64_t ft_sequence_(const unsigned char *map) {
    return __atomic_load_n((const uint64_t *)(const void *)(map + FT_PAGE_SEQUENCE), __ATOMIC_ACQUIRE);
}

static inline const unsigned char *ft_copy_(const unsigned char *map, uint64_t sequence) {
    return map + FT_PAGE_COPY + (size_t)(sequence & 1u) * sizeof(ft_page_copy);
}

/* Copy whole words, so that each is read once. */
static inline void ft_copy_quads_(void *to, const unsigned char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t quad = __atomic_load_n((const uint64_t *)(const void *)(from + i), __ATOMIC_RELAXED);
        memcpy((unsigned char *)to + i, &quad, 8);
    }
}

static inline int ft_unchanged_(const unsigned char *map, uint64_t sequence) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n((const uint64_t *)(const void *)(map + FT_PAGE_SEQUENCE), __ATOMIC_RELAXED) ==
           sequence;
}

static inline uint32_t ft_crc_(const unsigned char *data,
                               size_t bytes) { /* CRC-32 of IEEE 802.3, as zlib's */
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static inline int ft_small_file_(const char *path, char *text, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t got = read(fd, text, bytes - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return got > 0;
}

/* Return 1 if the page was written on this boot and in our time namespace, as far as is known. */
static inline int ft_same_clock_(const ft_page_head *head) {
    char text[64];
    unsigned char id[16] = {0};
    if (ft_small_file_("/proc/sys/kernel/random/boot_id", text, sizeof text)) {
        int digits = 0;
        for (const char *c = text; *c && digits < 32; c++) {
            int value = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;
            if (value < 0) continue;
            id[digits / 2] = (unsigned char)(id[digits / 2] | (digits % 2 ? value : value << 4));
            digits++;
        }
        if (digits == 32 && memcmp(id, head->boot_id, 16) != 0) return 0;
    }
    struct stat ns;
    return !head->time_namespace || stat("/proc/self/ns/time", &ns) != 0 ||
           (uint64_t)ns.st_ino == head->time_namespace;
}

/* Check the page behind `fd` and map it, replacing the one at `over` if given. Return 0 or an error. */
static inline int ft_map_(int fd, void *over, ft_reader *reader) {
    struct stat file;
    ft_page_head head;
    ft_page_copy copy;
    if (fstat(fd, &file) != 0) return FT_NO_PAGE;
    if (!S_ISREG(file.st_mode)) return FT_BAD_PAGE;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) return FT_BAD_PAGE;
    if (memcmp(head.magic, FT_PAGE_MAGIC, sizeof head.magic) != 0) return FT_BAD_PAGE;
    if (head.version != FT_PAGE_VERSION) return FT_VERSION;
    if (head.size_bytes != FT_PAGE_BYTES || file.st_size != (off_t)FT_PAGE_BYTES) return FT_BAD_PAGE;
    if (head.crc != ft_crc_((const unsigned char *)&head + offsetof(ft_page_head, reserved),
                            sizeof head - offsetof(ft_page_head, reserved)))
        return FT_BAD_PAGE;
    if (!ft_same_clock_(&head)) return FT_OTHER_BOOT;
    void *map = mmap(NULL, FT_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return FT_NO_PAGE;
    const unsigned char *bytes = (const unsigned char *)map;
    int result = FT_BAD_PAGE;
    for (int tries = 0; tries < FT_TRIES_; tries++) {
        uint64_t sequence = ft_sequence_(bytes);
        ft_copy_quads_(&copy, ft_copy_(bytes, sequence), sizeof copy);
        if (!ft_unchanged_(bytes, sequence)) continue;
        if (copy.model.crc == ft_crc_((const unsigned char *)&copy.model + 4, sizeof copy.model - 4) &&
            copy.model.tables_crc ==
                ft_crc_((const unsigned char *)copy.clock, sizeof copy.clock + sizeof copy.nic))
            result = 0;
        break;
    }
    if (result == 0 && over) {
        void *placed = mmap(over, FT_PAGE_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
        munmap(map, FT_PAGE_BYTES);
        if (placed == MAP_FAILED) return FT_NO_PAGE;
        bytes = (const unsigned char *)placed;
    } else if (result != 0) {
        munmap(map, FT_PAGE_BYTES);
        return result;
    }
    reader->device = (uint64_t)file.st_dev;
    reader->inode = (uint64_t)file.st_ino;
    if (!over) reader->map = bytes;
    return 0;
}

static inline int ft_default_path_(char *path, size_t bytes) {
    const char *given = getenv("FABRICTIME_CLOCK"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (given && *given) return snprintf(path, bytes, "%s", given) < (int)bytes;
    if (runtime && *runtime) {
        if (snprintf(path, bytes, "%s/fabrictime/clock", runtime) >= (int)bytes) return 0;
        if (access(path, R_OK) == 0) return 1;
    }
    return snprintf(path, bytes, "/run/fabrictime/clock") < (int)bytes;
}

/* Open the page at `path`. NULL: $FABRICTIME_CLOCK, else $XDG_RUNTIME_DIR/fabrictime/clock if it exists,
 * else /run/fabrictime/clock. Return 0, or an error below zero (then the reader need not be closed). */
static inline int ft_open(ft_reader *reader, const char *path) {
    memset(reader, 0, sizeof *reader);
    int fits = path ? snprintf(reader->path, sizeof reader->path, "%s", path) < (int)sizeof reader->path
                    : ft_default_path_(reader->path, sizeof reader->path);
    if (!fits) {
        errno = ENAMETOOLONG;
        return FT_NO_PAGE;
    }
    int fd = open(reader->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FT_NO_PAGE;
    int result = ft_map_(fd, NULL, reader);
    close(fd);
    return result;
}

static inline void ft_close(ft_reader *reader) {
    if (reader->map) munmap((void *)(uintptr_t)reader->map, FT_PAGE_BYTES);
    reader->map = NULL;
}

/* If the writer is late, open another file at the path, at most once a second. It is mapped in place of
 * the old one, so other threads can continue to read. */
static inline void ft_reopen_if_late_(ft_reader *reader, int64_t raw_ns) {
    int64_t due = __atomic_load_n(&reader->reopen_ns, __ATOMIC_RELAXED);
    if (raw_ns < due || !__atomic_compare_exchange_n(&reader->reopen_ns, &due, raw_ns + FT_REOPEN_EVERY_NS_,
                                                     0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    int before = errno;
    int fd = open(reader->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat file;
    if (fd >= 0) {
        if (fstat(fd, &file) == 0 &&
            ((uint64_t)file.st_dev != reader->device || (uint64_t)file.st_ino != reader->inode))
            (void)ft_map_(fd, (void *)(uintptr_t)reader->map, reader);
        close(fd);
    }
    errno = before;
}

static inline int ft_none_(int result, int64_t *time_ns, int64_t *bound_ns) {
    *time_ns = 0;
    *bound_ns = INT64_MAX;
    return result;
}

/* Round a bound up, plus 1 ns for the rounding of the time. Return 0 if it is not a valid bound. */
static inline int ft_bound_(double bound, int64_t *bound_ns) {
    if (!(bound >= 0 && bound < 1e18)) return 0;
    *bound_ns = (int64_t)bound + 2;
    return 1;
}

static inline int64_t ft_round_(double x) {
    return (int64_t)(x < 0 ? x - 0.5 : x + 0.5);
}

#define FT_MODEL_QUADS_ 13 /* the words of ft_page_model up to reopen_raw_ns */

/* Read fabric time now (ns since the Unix epoch) and its bound. Return the state. */
static inline int ft_now(ft_reader *reader, int64_t *time_ns, int64_t *bound_ns) {
    const unsigned char *map = reader->map;
    ft_page_model model;
    int tries = 0;
    if (!map) return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    for (;;) {
        uint64_t sequence = ft_sequence_(map);
        ft_copy_quads_(&model, ft_copy_(map, sequence), FT_MODEL_QUADS_ * 8);
        if (ft_unchanged_(map, sequence)) break;
        if (++tries == FT_TRIES_) return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    }
    int64_t raw_ns = ft_raw_ns_();
    if (raw_ns >= model.reopen_raw_ns || model.flags) ft_reopen_if_late_(reader, raw_ns);
    int64_t ahead_ns = raw_ns - model.raw_at_ns;
    if (model.state == FT_UNSYNCED || model.state > FT_SYNCED || raw_ns >= model.expires_raw_ns ||
        ahead_ns < -FT_REOPEN_EVERY_NS_)
        return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    double x = (double)ahead_ns, away = x < 0 ? -x : x;
    double slewing = (double)(model.slew_end_raw_ns - model.raw_at_ns), slewed = x < slewing ? x : slewing;
    double left = model.slew_ppb * 1e-9 * (slewing - slewed),
           faster = (model.rate_ppb * x + model.slew_ppb * slewed) * 1e-9;
    if (!ft_bound_(model.bound_ns + model.growth_ppb * 1e-9 * away +
                       model.wander_ppb_per_s * 1e-18 * away * away + (left < 0 ? -left : left),
                   bound_ns) ||
        !(faster > -1e18 && faster < 1e18))
        return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    *time_ns = model.fabric_at_ns + ahead_ns + ft_round_(faster);
    return model.state == FT_SYNCED && raw_ns >= model.holdover_raw_ns ? FT_HOLDOVER : (int)model.state;
}

/* Copy the clock `name` (a clock, or a NIC with a clock) and the page's model. Return 1 if it exists. */
static inline int ft_find_(const unsigned char *map, const char *name, ft_page_model *model,
                           ft_page_clock *clock) {
    ft_page_nic nic;
    char wanted[64] = {0};
    size_t length = strlen(name);
    memset(model, 0, sizeof *model);
    if (!length || length >= sizeof wanted) return 0;
    memcpy(wanted, name, length);
    for (int tries = 0; tries < FT_TRIES_; tries++) {
        uint64_t sequence = ft_sequence_(map);
        const unsigned char *copy = ft_copy_(map, sequence);
        int found = 0;
        ft_copy_quads_(model, copy, sizeof *model);
        uint32_t clocks = model->clocks < FT_PAGE_CLOCKS ? model->clocks : FT_PAGE_CLOCKS;
        uint32_t nics = model->nics < FT_PAGE_NICS ? model->nics : FT_PAGE_NICS;
        for (uint32_t i = 0; i < clocks && !found; i++) {
            ft_copy_quads_(clock, copy + offsetof(ft_page_copy, clock) + i * sizeof *clock, sizeof *clock);
            found = memcmp(clock->name, wanted, sizeof clock->name) == 0;
        }
        for (uint32_t i = 0; i < nics && !found; i++) {
            ft_copy_quads_(&nic, copy + offsetof(ft_page_copy, nic) + i * sizeof nic, sizeof nic);
            if (memcmp(nic.name, wanted, sizeof nic.name) != 0 || nic.clock >= clocks) continue;
            ft_copy_quads_(clock, copy + offsetof(ft_page_copy, clock) + nic.clock * sizeof *clock,
                           sizeof *clock);
            found = 1;
        }
        if (ft_unchanged_(map, sequence)) return found;
    }
    return 0;
}

/* Convert a reading `stamp_ns` of the clock `name` to fabric time. `name`: a clock ("ptp0", "system") or a
 * NIC device ("eth0"), with or without the host ("node17/eth0"). Return the state, or FT_NO_CLOCK.
 * FT_UNSYNCED includes a timestamp too far from the last measurement. */
static inline int ft_convert(ft_reader *reader, const char *name, int64_t stamp_ns, int64_t *time_ns,
                             int64_t *bound_ns) {
    const unsigned char *map = reader->map;
    if (!map) return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    ft_page_model model;
    ft_page_clock clock;
    const ft_page_head *head = (const ft_page_head *)(const void *)map;
    size_t host = strnlen(head->host, sizeof head->host);
    if (strncmp(name, head->host, host) == 0 && name[host] == '/') name += host + 1;
    int found = ft_find_(map, name, &model, &clock);
    int64_t raw_ns = ft_raw_ns_();
    if (raw_ns >= model.reopen_raw_ns || model.flags) ft_reopen_if_late_(reader, raw_ns);
    if (!found) return ft_none_(FT_NO_CLOCK, time_ns, bound_ns);
    if ((double)clock.offset_ns > FT_MAX_ || (double)clock.offset_ns < -FT_MAX_ ||
        (double)stamp_ns > FT_MAX_ || (double)stamp_ns < -FT_MAX_ || (double)clock.at_ns > FT_MAX_ ||
        (double)clock.at_ns < -FT_MAX_)
        return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    double x = (double)(stamp_ns - clock.at_ns), away = x < 0 ? -x : x;
    if (clock.state == FT_UNSYNCED || clock.state > FT_SYNCED || stamp_ns < clock.since_ns ||
        away > (double)model.expires_ms * 1e6)
        return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    double rest = (double)clock.offset_fraction_ns + clock.drift_ppb * 1e-9 * x;
    if (!ft_bound_(clock.bound_ns + clock.growth_ppb * 1e-9 * away +
                       clock.wander_ppb_per_s * 1e-18 * away * away,
                   bound_ns) ||
        !(rest > -1e18 && rest < 1e18))
        return ft_none_(FT_UNSYNCED, time_ns, bound_ns);
    *time_ns = stamp_ns + clock.offset_ns + ft_round_(rest);
    return clock.state == FT_SYNCED && away > (double)model.holdover_ms * 1e6 ? FT_HOLDOVER
                                                                              : (int)clock.state;
}

#ifdef __cplusplus
}
#endif

#endif
