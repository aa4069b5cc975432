#include "streams.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PERIOD        65521 /* of the byte pattern: a prime, so that no power of two hides a shift */
#define CHUNK         (256 * 1024)
#define EVENTS        256
#define WAKE_BYTES    8192 /* granularity of wake-ups, instead of single packets */
#define SLOTS_AT_ONCE 1024

struct ft_job {
    int ranks, phases, streams, epoll, check, running;
    int *part_begin, *phase, *left, *needs;
    ft_part *parts;
    ft_stream *stream;
    uint32_t **slot;
    int64_t *slots, *slots_capacity;
    int64_t slot_ns, slots_max, begin_ns, gap_ns, resume_ns, iterations, finished, spoilt;
    int ranks_left, broken, failed;
    ft_iteration now, *done;
    int64_t done_count, done_capacity;
    unsigned char *pattern, *scratch;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Values that epoll returns: stream and direction, or the outside descriptor. */
#define OUTSIDE UINT64_MAX
static uint64_t tag(int stream, int receiving) {
    return (uint64_t)stream << 1 | (uint64_t)receiving;
}

static void *zeroed(int64_t count, size_t size) {
    return calloc(count > 0 ? (size_t)count : 1, size);
}

ft_job *ft_job_new(int ranks, int phases, int streams, const int *senders, const int *receivers,
                   const int *part_begin, const ft_part *parts, int64_t iterations, int64_t gap_ns,
                   int64_t slot_ns, int64_t slots_max, int check) {
    ft_job *job = zeroed(1, sizeof *job);
    if (!job) return NULL;
    int cells = ranks * phases, count = part_begin[cells];
    job->ranks = ranks, job->phases = phases, job->streams = streams, job->check = check;
    job->iterations = iterations, job->gap_ns = gap_ns, job->slot_ns = slot_ns, job->slots_max = slots_max;
    job->epoll = epoll_create1(EPOLL_CLOEXEC);
    job->part_begin = zeroed(cells + 1, sizeof(int));
    job->phase = zeroed(ranks, sizeof(int));
    job->left = zeroed(cells, sizeof(int));
    job->needs = zeroed(cells, sizeof(int));
    job->parts = zeroed(count, sizeof(ft_part));
    job->stream = zeroed(streams, sizeof(ft_stream));
    job->slot = zeroed(streams, sizeof(uint32_t *));
    job->slots = zeroed(streams, sizeof(int64_t));
    job->slots_capacity = zeroed(streams, sizeof(int64_t));
    job->pattern = malloc(PERIOD + CHUNK);
    job->scratch = malloc(CHUNK);
    if (job->epoll < 0 || !job->part_begin || !job->phase || !job->left || !job->needs || !job->parts ||
        !job->stream || !job->slot || !job->slots || !job->slots_capacity || !job->pattern || !job->scratch) {
        ft_job_free(job);
        return NULL;
    }
    memcpy(job->part_begin, part_begin, ((size_t)cells + 1) * sizeof(int));
    memcpy(job->parts, parts, (size_t)count * sizeof(ft_part));
    uint32_t state = 1;
    for (int i = 0; i < PERIOD; i++) {
        state = state * 1664525u + 1013904223u;
        job->pattern[i] = (unsigned char)(state >> 24);
    }
    memcpy(job->pattern + PERIOD, job->pattern, CHUNK < PERIOD ? CHUNK : PERIOD);
    for (int i = PERIOD * 2; i < PERIOD + CHUNK; i++) job->pattern[i] = job->pattern[i - PERIOD];
    for (int s = 0; s < streams; s++) {
        job->stream[s].sender = senders[s], job->stream[s].receiver = receivers[s];
        job->stream[s].tx = job->stream[s].rx = job->stream[s].phase = -1;
    }
    for (int r = 0; r < ranks; r++) {
        for (int p = 0; p < phases; p++) {
            int cell = r * phases + p;
            for (int i = part_begin[cell]; i < part_begin[cell + 1]; i++) {
                job->needs[cell]++;
                job->needs[job->stream[parts[i].stream].receiver * phases + p]++;
            }
        }
    }
    return job;
}

void ft_job_free(ft_job *job) {
    if (!job) return;
    if (job->epoll >= 0) close(job->epoll);
    for (int s = 0; job->slot && s < job->streams; s++) free(job->slot[s]);
    free(job->part_begin), free(job->phase), free(job->left), free(job->needs), free(job->parts),
        free(job->stream);
    free(job->slot), free(job->slots), free(job->slots_capacity), free(job->pattern), free(job->scratch),
        free(job->done);
    free(job);
}

static int watch(ft_job *job, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(job->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

int ft_job_watch(ft_job *job, int fd) {
    return watch(job, fd, EPOLLIN, OUTSIDE);
}

static void broke(ft_job *job, ft_stream *stream, int code) {
    if (!stream->broken) job->broken++;
    stream->broken = code ? code : ECONNRESET;
}

static void count(ft_job *job, int s, int64_t bytes, int64_t at_ns) {
    if (!job->slot_ns) return;
    int64_t slot = (at_ns - job->begin_ns) / job->slot_ns;
    if (slot < 0 || slot >= job->slots_max) return;
    if (slot >= job->slots_capacity[s]) {
        int64_t capacity = (slot / SLOTS_AT_ONCE + 2) * SLOTS_AT_ONCE;
        uint32_t *larger = realloc(job->slot[s], (size_t)capacity * sizeof(uint32_t));
        if (!larger) {
            job->failed = ENOMEM;
            return;
        }
        memset(larger + job->slots_capacity[s], 0,
               (size_t)(capacity - job->slots_capacity[s]) * sizeof(uint32_t));
        job->slot[s] = larger, job->slots_capacity[s] = capacity;
    }
    job->slot[s][slot] += (uint32_t)bytes;
    if (slot >= job->slots[s]) job->slots[s] = slot + 1;
}

static void push(ft_job *job, int s) {
    ft_stream *stream = &job->stream[s];
    while (stream->tx >= 0 && !stream->tx_blocked && !stream->broken && stream->sent < stream->goal) {
        uint64_t max = stream->goal - stream->sent;
        ssize_t done = send(stream->tx, job->pattern + stream->sent % PERIOD,
                            max < CHUNK ? (size_t)max : CHUNK, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done >= 0) {
            stream->sent += (uint64_t)done;
        } else if (errno == EAGAIN) {
            stream->tx_blocked = 1;
        } else if (errno != EINTR) {
            broke(job, stream, errno);
        }
    }
}

/* Set the number of bytes that wakes us: few wake-ups, but the last byte of a part at once. */
static void set_lowat(ft_stream *stream) {
    uint64_t missing = stream->goal > stream->got ? stream->goal - stream->got : 1;
    int lowat = missing < WAKE_BYTES ? (int)missing : WAKE_BYTES;
    if (stream->rx < 0 || lowat == stream->lowat) return;
    if (setsockopt(stream->rx, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat) == 0) stream->lowat = lowat;
}

static void start(ft_job *job, int rank, int64_t at_ns) {
    int cell = rank * job->phases + job->phase[rank];
    for (int i = job->part_begin[cell]; i < job->part_begin[cell + 1]; i++) {
        ft_stream *stream = &job->stream[job->parts[i].stream];
        stream->phase = job->phase[rank], stream->begin_ns = at_ns;
        stream->goal += job->parts[i].bytes;
        set_lowat(stream);
        push(job, job->parts[i].stream);
    }
}

/* Move a rank through the phases in which it waits for nothing. */
static void advance(ft_job *job, int rank, int64_t at_ns) {
    while (job->phase[rank] < job->phases && !job->left[rank * job->phases + job->phase[rank]]) {
        if (++job->phase[rank] == job->phases) {
            job->ranks_left--;
            return;
        }
        start(job, rank, at_ns);
    }
}

static void begin_iteration(ft_job *job, int64_t at_ns) {
    memcpy(job->left, job->needs, (size_t)(job->ranks * job->phases) * sizeof(int));
    memset(job->phase, 0, (size_t)job->ranks * sizeof(int));
    job->ranks_left = job->ranks;
    job->now = (ft_iteration){.begin_ns = at_ns, .slowest = -1};
    for (int r = 0; r < job->ranks; r++) start(job, r, at_ns);
    for (int r = 0; r < job->ranks; r++) advance(job, r, at_ns);
}

static void end_iteration(ft_job *job, int64_t at_ns) {
    if (job->done_count == job->done_capacity) {
        int64_t capacity = job->done_capacity ? job->done_capacity * 2 : 256;
        ft_iteration *larger = realloc(job->done, (size_t)capacity * sizeof *larger);
        if (!larger) {
            job->failed = ENOMEM;
            return;
        }
        job->done = larger, job->done_capacity = capacity;
    }
    job->now.end_ns = at_ns;
    job->done[job->done_count++] = job->now;
    job->finished++;
    job->resume_ns = at_ns + job->gap_ns;
}

static void arrived(ft_job *job, int s, uint64_t bytes, int64_t at_ns) {
    ft_stream *stream = &job->stream[s];
    stream->got += bytes;
    count(job, s, (int64_t)bytes, at_ns);
    if (stream->got < stream->goal || stream->phase < 0) {
        set_lowat(stream);
        return;
    }
    int phase = stream->phase;
    stream->phase = -1;
    int64_t took = at_ns - stream->begin_ns;
    if (took > job->now.slowest_ns) job->now.slowest_ns = took, job->now.slowest = s;
    job->left[stream->sender * job->phases + phase]--;
    job->left[stream->receiver * job->phases + phase]--;
    if (job->phase[stream->sender] == phase) advance(job, stream->sender, at_ns);
    if (job->phase[stream->receiver] == phase) advance(job, stream->receiver, at_ns);
}

static void pull(ft_job *job, int s) {
    ft_stream *stream = &job->stream[s];
    uint64_t sum = 0;
    while (stream->rx >= 0 && !stream->broken) {
        /* With checking, bytes are copied and compared; otherwise the kernel discards them. */
        ssize_t done = job->check ? recv(stream->rx, job->scratch, CHUNK, MSG_DONTWAIT)
                                  : recv(stream->rx, NULL, 1 << 22, MSG_DONTWAIT | MSG_TRUNC);
        if (done > 0) {
            if (job->check) {
                const unsigned char *wanted = job->pattern + (stream->got + sum) % PERIOD;
                for (ssize_t i = 0; memcmp(job->scratch, wanted, (size_t)done) && i < done; i++)
                    job->spoilt += job->scratch[i] != wanted[i];
            }
            sum += (uint64_t)done;
            if (stream->got + sum >= stream->goal) break; /* nothing more was sent */
        } else if (done == 0) {
            broke(job, stream, ECONNRESET);
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            broke(job, stream, errno);
        }
    }
    if (sum) arrived(job, s, sum, now_ns());
}

int ft_job_attach_tx(ft_job *job, int s, int fd, uint64_t from) {
    ft_stream *stream = &job->stream[s];
    int code = watch(job, fd, EPOLLOUT | EPOLLRDHUP | EPOLLET, tag(s, 0));
    if (code) return code;
    if (stream->broken) job->broken--;
    stream->tx = fd, stream->sent = from, stream->tx_blocked = stream->broken = 0;
    if (job->running) push(job, s);
    return 0;
}

int ft_job_attach_rx(ft_job *job, int s, int fd) {
    ft_stream *stream = &job->stream[s];
    int code = watch(job, fd, EPOLLIN | EPOLLET, tag(s, 1));
    if (code) return code;
    stream->rx = fd, stream->lowat = 1;
    set_lowat(stream);
    return 0;
}

static int detach(ft_job *job, int *slot) {
    int fd = *slot;
    if (fd >= 0) epoll_ctl(job->epoll, EPOLL_CTL_DEL, fd, NULL);
    *slot = -1;
    return fd;
}

int ft_job_detach_tx(ft_job *job, int s) {
    return detach(job, &job->stream[s].tx);
}

int ft_job_detach_rx(ft_job *job, int s) {
    ft_stream *stream = &job->stream[s];
    int broken = stream->broken;
    stream->broken = 0;
    if (stream->rx >= 0) pull(job, s); /* take the bytes that have arrived */
    if (stream->broken) job->broken--;
    stream->broken = broken;
    return detach(job, &stream->rx);
}

int ft_job_take_broken(ft_job *job, int *code) {
    for (int s = 0; job->broken && s < job->streams; s++) {
        if (!job->stream[s].broken) continue;
        *code = job->stream[s].broken;
        job->stream[s].broken = 0;
        job->broken--;
        return s;
    }
    return -1;
}

int ft_job_run(ft_job *job, int64_t until_ns) {
    struct epoll_event events[EVENTS];
    int outside = 0;
    if (!job->running) {
        job->running = 1;
        job->begin_ns = now_ns();
        begin_iteration(job, job->begin_ns);
    }
    for (;;) {
        int64_t now = now_ns();
        while (!job->ranks_left) {
            if (!job->resume_ns) end_iteration(job, now);
            if (job->failed) return -job->failed;
            if (job->iterations && job->finished >= job->iterations) return FT_DONE;
            if (now < job->resume_ns) break;
            job->resume_ns = 0;
            begin_iteration(job, now);
        }
        if (outside) return FT_OUTSIDE;
        if (job->broken) return FT_BROKEN;
        if (now >= until_ns) return FT_TIMEOUT;
        int64_t wake_ns = job->resume_ns && job->resume_ns < until_ns ? job->resume_ns : until_ns;
        int ready = epoll_wait(job->epoll, events, EVENTS, (int)((wake_ns - now + 999999) / 1000000));
        if (ready < 0) return errno == EINTR ? FT_TIMEOUT : -errno;
        for (int i = 0; i < ready; i++) {
            if (events[i].data.u64 == OUTSIDE) {
                outside = 1;
                continue;
            }
            int s = (int)(events[i].data.u64 >> 1);
            ft_stream *stream = &job->stream[s];
            if (events[i].data.u64 & 1) {
                pull(job, s);
            } else if (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
                int code = 0;
                socklen_t size = sizeof code;
                if (stream->tx >= 0) getsockopt(stream->tx, SOL_SOCKET, SO_ERROR, &code, &size);
                if (code || events[i].events & (EPOLLHUP | EPOLLRDHUP)) broke(job, stream, code);
            } else {
                stream->tx_blocked = 0;
                push(job, s);
            }
        }
    }
}

ft_stream *ft_job_stream(ft_job *job, int stream) {
    return &job->stream[stream];
}

int64_t ft_job_iterations(ft_job *job, const ft_iteration **first) {
    *first = job->done;
    return job->done_count;
}

void ft_job_taken(ft_job *job) {
    job->done_count = 0;
}

int64_t ft_job_slots(ft_job *job, int stream, const uint32_t **first) {
    *first = job->slot[stream];
    return job->slots[stream];
}

int64_t ft_job_begin_ns(ft_job *job) {
    return job->begin_ns;
}
int64_t ft_job_spoilt(ft_job *job) {
    return job->spoilt;
}
