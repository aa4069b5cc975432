/* Eight MPI programs as people write them, with faults that the bench starts while they run.
 *
 * programs PAGE NAME BYTES COMPUTE_US. PAGE is a file that all ranks and the bench map: faults, the ranks' iterations
 * and process ids. A fault begins and ends with an iteration, so all ranks agree on the bytes of each message. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KIND, RANK, VALUE, FROM, TO, EVERY, BEGIN_NS, END_NS, SLOT };
enum { SLOTS = 2, ITERATIONS = SLOT * SLOTS, PIDS = ITERATIONS + 64, PAGE_NUMBERS = PIDS + 64 };
enum {
    COMPUTE = 1, /* VALUE us of computing in each EVERY-th iteration */
    SLEEP,       /* the same, asleep */
    WRITE,       /* VALUE KiB to the disk, synced, in each EVERY-th iteration */
    BYTES,       /* VALUE percent of the usual bytes */
    COUNT,       /* half of the count in a collective */
    SKIP,        /* no main exchange, once */
    STUCK,       /* asleep for ever */
    SPIN,        /* busy for ever */
    FIFO,        /* waits for a file that nobody writes */
    CIRCLE,      /* this rank and the next one wait for a message from each other */
    EXIT,        /* ends without MPI_Finalize */
    PAUSE        /* VALUE ms, once, by EVERY: 0 asleep, 1 writes, 2 computes, 3 reads */
};
enum { MAX_BYTES = 1 << 22, TASK_TAG = 1, RESULT_TAG = 2, NEVER_TAG = 9, ALL = -1 };

static volatile int64_t *page;
static int rank, ranks, bytes, compute_us;
static int64_t iteration;
static char *out, *in, file[4096], fifo[4096];

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void sleep_us(int64_t us) {
    struct timespec rest = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&rest, &rest)) {
    }
}

static void spin_us(int64_t us) {
    int64_t end = clock_ns(CLOCK_MONOTONIC) + us * 1000;
    while (clock_ns(CLOCK_MONOTONIC) < end) {
    }
}

/* Computes as a program does that mostly waits for an accelerator. */
static void compute(int64_t us) {
    spin_us(us * 15 / 100);
    sleep_us(us * 85 / 100 + rand() % (us / 10 + 1));
}

/* Writes past the page cache, so that limits of the disk's rate apply to this process. */
static void write_file(int64_t size) {
    int descriptor = open(file, O_WRONLY | O_CREAT | O_DIRECT, 0600);
    if (descriptor < 0) descriptor = open(file, O_WRONLY | O_CREAT, 0600);
    for (int64_t done = 0; done < size; done += 65536)
        if (pwrite(descriptor, in, 65536, done) != 65536) perror(file), exit(1);
    fsync(descriptor);
    close(descriptor);
}

static void read_fifo(void) {
    if (mkfifo(fifo, 0600)) perror(fifo), exit(1);
    close(open(fifo, O_RDONLY));
}

static volatile int64_t *slot(int number) {
    return page + number * SLOT;
}

static int covers(volatile int64_t *fault, int64_t at) {
    return fault[FROM] && at >= fault[FROM] && at < fault[TO];
}

static int is_mine(volatile int64_t *fault) {
    return fault[RANK] == ALL || fault[RANK] == rank;
}

static void stamp(volatile int64_t *place) {
    int64_t unset = 0;
    if (!*place) __atomic_compare_exchange_n((int64_t *)place, &unset, clock_ns(CLOCK_REALTIME), 0, 5, 5);
}

static int64_t bytes_of(int of) {
    int64_t size = bytes;
    for (int number = 0; number < SLOTS; number++) {
        volatile int64_t *fault = slot(number);
        if (fault[KIND] == BYTES && covers(fault, iteration) && (fault[RANK] == ALL || fault[RANK] == of))
            size = size * fault[VALUE] / 100;
    }
    return size < MAX_BYTES ? size : MAX_BYTES;
}

static int has(int kind) {
    for (int number = 0; number < SLOTS; number++)
        if (slot(number)[KIND] == kind && covers(slot(number), iteration) && is_mine(slot(number))) return 1;
    return 0;
}

static void pause_once(int64_t ms, int64_t act) {
    for (int64_t end = clock_ns(CLOCK_MONOTONIC) + ms * 1000000; clock_ns(CLOCK_MONOTONIC) < end;) {
        if (act == 1) write_file(1 << 20);
        if (act == 2) spin_us(3000);
        if (act == 3 && access(file, R_OK) == 0) close(open(file, O_RDONLY));
        sleep_us(act ? 10000 : 100000);
    }
}

static void suffer(volatile int64_t *fault) {
    int is_due = !fault[EVERY] || (iteration - fault[FROM]) % fault[EVERY] == 0;
    int other = fault[RANK] == rank ? (rank + 1) % ranks : fault[RANK];
    if (fault[KIND] == CIRCLE && (rank == fault[RANK] || rank == (fault[RANK] + 1) % ranks))
        MPI_Recv(in, 1, MPI_BYTE, other, NEVER_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!is_mine(fault)) return;
    if (fault[KIND] == COMPUTE && is_due) spin_us(fault[VALUE]);
    if (fault[KIND] == SLEEP && is_due) sleep_us(fault[VALUE]);
    if (fault[KIND] == WRITE && is_due) write_file(fault[VALUE] * 1024);
    if (fault[KIND] == PAUSE) pause_once(fault[VALUE], fault[EVERY]);
    while (fault[KIND] == STUCK) sleep_us(1000000);
    while (fault[KIND] == SPIN) spin_us(1000000);
    if (fault[KIND] == FIFO) read_fifo();
    if (fault[KIND] == EXIT) _exit(3);
}

/* Begins an iteration: shows it to the bench, computes, and applies the faults that cover it. */
static void begin(int64_t at) {
    iteration = page[ITERATIONS + rank] = at;
    compute(compute_us);
    for (int number = 0; number < SLOTS; number++) {
        volatile int64_t *fault = slot(number);
        if (covers(fault, at)) {
            stamp(fault + BEGIN_NS);
            suffer(fault);
        } else if (fault[FROM] && at >= fault[TO]) {
            stamp(fault + END_NS);
        }
    }
}

static void residual(void) {
    double mine = rank, sum;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void halo(void) {
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    MPI_Request requests[4];
    if (!has(SKIP)) {
        MPI_Irecv(in, MAX_BYTES, MPI_BYTE, left, 0, MPI_COMM_WORLD, requests);
        MPI_Irecv(in + MAX_BYTES, MAX_BYTES, MPI_BYTE, right, 1, MPI_COMM_WORLD, requests + 1);
        MPI_Isend(out, bytes_of(rank), MPI_BYTE, right, 0, MPI_COMM_WORLD, requests + 2);
        MPI_Isend(out, bytes_of(rank), MPI_BYTE, left, 1, MPI_COMM_WORLD, requests + 3);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }
    residual();
}

static void transpose(void) {
    int counts[64], places[64], in_counts[64], in_places[64];
    for (int peer = 0, at = 0; peer < ranks; peer++) {
        counts[peer] = peer == rank ? 0 : bytes_of(rank);
        in_counts[peer] = peer == rank ? 0 : bytes_of(peer);
        places[peer] = 0;
        in_places[peer] = at;
        at = (at + in_counts[peer]) % MAX_BYTES;
    }
    if (!has(SKIP))
        MPI_Alltoallv(out, counts, places, MPI_BYTE, in, in_counts, in_places, MPI_BYTE, MPI_COMM_WORLD);
    residual();
}

/* A pipeline: the first rank is at the head by as many iterations as there are ranks. */
static void ring(void) {
    if (rank) MPI_Recv(in, MAX_BYTES, MPI_BYTE, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank + 1 < ranks) MPI_Send(out, bytes_of(rank), MPI_BYTE, rank + 1, 0, MPI_COMM_WORLD);
    if (rank + 1 == ranks) MPI_Send(out, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    if (!rank && iteration > ranks)
        MPI_Recv(in, 1, MPI_BYTE, ranks - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void params(void) {
    int count = bytes_of(0);
    if (!has(SKIP))
        MPI_Gather(out, has(COUNT) ? count / 2 : count, MPI_BYTE, in, count, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Bcast(out, count, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void workers(void) {
    int64_t task[8] = {0};
    MPI_Status status;
    if (rank) {
        for (;;) {
            MPI_Recv(task, sizeof task, MPI_BYTE, 0, TASK_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            begin(task[0]);
            MPI_Send(out, bytes_of(rank), MPI_BYTE, 0, RESULT_TAG, MPI_COMM_WORLD);
        }
    }
    for (int64_t results = 0;; results++) {
        iteration = page[ITERATIONS] = task[0] = results / (ranks - 1) + 1;
        int worker = results % (ranks - 1) + 1;
        if (results >= ranks - 1) {
            MPI_Recv(in, MAX_BYTES, MPI_BYTE, MPI_ANY_SOURCE, RESULT_TAG, MPI_COMM_WORLD, &status);
            worker = status.MPI_SOURCE;
        }
        MPI_Send(task, sizeof task, MPI_BYTE, worker, TASK_TAG, MPI_COMM_WORLD);
    }
}

static void reduce(void) {
    if (!has(SKIP)) MPI_Allreduce(out, in, bytes_of(0) / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(out, 8, MPI_BYTE, 0, MPI_COMM_WORLD);
}

/* BYTES is the number of messages, of 64 to 1,087 bytes. */
static void small(void) {
    for (int64_t message = 0; message < bytes_of(0) && !has(SKIP); message++) {
        int step = 1 + message % (ranks - 1), size = 64 + message * 37 % 1024;
        MPI_Sendrecv(out, size, MPI_BYTE, (rank + step) % ranks, 0, in, MAX_BYTES, MPI_BYTE,
                     (rank + ranks - step) % ranks, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    residual();
}

static void files(void) {
    reduce();
    if (iteration % 20 == 0) {
        write_file(256 * 1024);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static const struct {
    const char *name;
    void (*exchange)(void);
} PROGRAMS[] = {{"halo", halo},       {"transpose", transpose}, {"ring", ring},   {"params", params},
                {"workers", workers}, {"reduce", reduce},       {"small", small}, {"files", files}};

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "programs: expected PAGE NAME BYTES COMPUTE_US\n"), 2;
    int descriptor = open(argv[1], O_RDWR);
    page = mmap(NULL, PAGE_NUMBERS * sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (page == MAP_FAILED) return perror(argv[1]), 2;
    bytes = atoi(argv[3]);
    compute_us = atoi(argv[4]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    srand(rank + 1);
    page[PIDS + rank] = getpid();
    snprintf(file, sizeof file, "%s.%d", argv[1], rank);
    snprintf(fifo, sizeof fifo, "%s.fifo", argv[1]);
    if (posix_memalign((void **)&in, 4096, 2 * MAX_BYTES) || !(out = calloc(1, MAX_BYTES))) return 1;
    memset(in, 0, 2 * MAX_BYTES);
    for (size_t at = 0; at < sizeof PROGRAMS / sizeof *PROGRAMS; at++)
        if (!strcmp(argv[2], PROGRAMS[at].name))
            for (int64_t count = 1;; count++) {
                if (strcmp(argv[2], "workers")) begin(count);
                PROGRAMS[at].exchange();
            }
    return fprintf(stderr, "programs: %s: unknown name\n", argv[2]), 2;
}
