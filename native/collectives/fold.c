#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fold.h"

#define DAY_NS    UINT64_C(86400000000000)
#define AHEAD_NS  UINT64_C(1000000000) /* an event this far in the future has a wrong time */
#define BYTES_MAX UINT64_C(1000000000000000)
#define SEQ_MAX   (UINT64_C(1) << 62)
#define PEER_MAX  (1 << 24)
#define SLOW_NS   50000 /* jitter of the scheduler: an operation is not slow by less */

enum {
    KINDS = 4096,
    PLACES = 4 * KINDS,
    OPEN = 1 << 16,
    OPEN_PLACES = OPEN * 2,
    ENDED = 1 << 16, /* numbers of operations that ended before their begin was read */
    ROWS = 1 << 17,
    SUBS = 32, /* of an octave: a median is within 2% */
    BUCKETS = 60 * SUBS,
    MIN_TYPICAL = 20, /* operations from which a median is usual */
    IDLE_TAKES = 60   /* after which a kind is forgotten if there is no room */
};

struct kind {
    struct ft_fold_kind sums;
    uint64_t key;
    double typical_ns; /* 0: unknown */
    uint64_t slow_ns;
    uint32_t *histogram;
    uint32_t idle; /* takes since its last operation */
};

struct slow {
    struct ft_event event;
    double ratio;
};

struct ft_fold {
    double slow_factor;
    struct ft_fold_counts counts;
    uint32_t shift;
    uint32_t kinds;
    struct kind kind[KINDS];
    uint16_t places[PLACES];           /* by hash: index + 1 of a kind */
    uint32_t open_places[OPEN_PLACES]; /* by hash: index + 1 of a begin */
    struct ft_event begins[OPEN];
    uint32_t free_begins[OPEN], free_count;
    uint64_t ended[ENDED];
    struct ft_event kept[FT_FOLD_KEPT];
    uint64_t numbers[FT_FOLD_KEPT + FT_FOLD_SLOW]; /* of kept operations, sorted */
    uint32_t kept_count;
    struct slow slow[FT_FOLD_SLOW];
    uint32_t slow_count;
    struct ft_event rows[ROWS];
    uint32_t row_count, fresh; /* rows from `fresh` on are of the last call of ft_fold_add */
};

static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t ft_fold_mix(uint64_t communicator, uint64_t sequence) {
    return mix(mix(communicator) ^ sequence);
}

struct ft_fold *ft_fold_new(double slow_factor) {
    /* Not by calloc, which may write zeros: a fold uses few of its pages. */
    struct ft_fold *fold =
        mmap(NULL, sizeof(*fold), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (fold == MAP_FAILED) return NULL;
    fold->slow_factor = slow_factor;
    fold->free_count = OPEN;
    for (uint32_t i = 0; i < OPEN; i++) fold->free_begins[i] = OPEN - 1 - i;
    return fold;
}

void ft_fold_free(struct ft_fold *fold) {
    if (!fold) return;
    for (uint32_t i = 0; i < fold->kinds; i++) free(fold->kind[i].histogram);
    munmap(fold, sizeof(*fold));
}

/* ---- open operations: open addressing with backward shift, so that no place stays used */

static uint32_t home_of(uint64_t operation) {
    return (uint32_t)(mix(operation) & (OPEN_PLACES - 1));
}

static uint32_t find_open(const struct ft_fold *fold, uint64_t operation) {
    uint32_t place = home_of(operation);

    while (fold->open_places[place] && fold->begins[fold->open_places[place] - 1].operation != operation)
        place = (place + 1) & (OPEN_PLACES - 1);
    return place;
}

static bool is_open(const struct ft_fold *fold, uint64_t operation) {
    return fold->open_places[find_open(fold, operation)] != 0;
}

static void close_place(struct ft_fold *fold, uint32_t place) {
    uint32_t next = place;

    fold->free_begins[fold->free_count++] = fold->open_places[place] - 1;
    for (;;) {
        next = (next + 1) & (OPEN_PLACES - 1);
        if (!fold->open_places[next]) break;
        uint32_t home = home_of(fold->begins[fold->open_places[next] - 1].operation);

        if (((next - home) & (OPEN_PLACES - 1)) >= ((next - place) & (OPEN_PLACES - 1))) {
            fold->open_places[place] = fold->open_places[next];
            place = next;
        }
    }
    fold->open_places[place] = 0;
}

static void begin(struct ft_fold *fold, const struct ft_event *event) {
    uint64_t *ended = &fold->ended[mix(event->operation) & (ENDED - 1)];

    fold->counts.begun++;
    if (*ended == event->operation) { /* its end was read first, from another thread's ring */
        *ended = 0;
        return;
    }
    uint32_t place = find_open(fold, event->operation);

    if (fold->open_places[place] || !fold->free_count) {
        fold->counts.invalid++;
        return;
    }
    uint32_t at = fold->free_begins[--fold->free_count];

    fold->begins[at] = *event;
    fold->open_places[place] = at + 1;
}

static void close_operation(struct ft_fold *fold, uint64_t operation) {
    uint32_t place = find_open(fold, operation);

    if (fold->open_places[place])
        close_place(fold, place);
    else
        fold->ended[mix(operation) & (ENDED - 1)] = operation;
}

/* ---- kinds */

static uint8_t bits_of(uint64_t value) {
    return value ? (uint8_t)(64 - __builtin_clzll(value)) : 0;
}

/* Buckets grow by a 32nd of an octave; below 32 ns they hold one ns. */
static uint32_t bucket_of(uint64_t ns) {
    uint32_t shift = ns < SUBS ? 0 : (uint32_t)bits_of(ns) - 6;

    return shift * SUBS + (uint32_t)(ns >> shift);
}

static uint64_t middle_of(uint32_t bucket) {
    uint32_t shift = bucket < 2 * SUBS ? 0 : bucket / SUBS - 1;
    uint64_t low = (uint64_t)(bucket - shift * SUBS) << shift;

    return low + ((UINT64_C(1) << shift) - 1) / 2;
}

/* Forget kinds without an operation for `idle` takes: those of communicators that are long gone. */
static void forget_kinds(struct ft_fold *fold, uint32_t idle) {
    uint32_t left = 0;

    memset(fold->places, 0, sizeof(fold->places));
    for (uint32_t i = 0; i < fold->kinds; i++) {
        struct kind kind = fold->kind[i];
        uint32_t place = (uint32_t)(mix(kind.key) & (PLACES - 1));

        if (!kind.sums.count && kind.idle >= idle) {
            free(kind.histogram);
            continue;
        }
        while (fold->places[place]) place = (place + 1) & (PLACES - 1);
        fold->kind[left] = kind;
        fold->places[place] = (uint16_t)++left;
    }
    memset(&fold->kind[left], 0, (fold->kinds - left) * sizeof(fold->kind[0]));
    fold->kinds = left;
}

static struct kind *find_kind(struct ft_fold *fold, uint64_t key, uint32_t *place) {
    for (*place = (uint32_t)(mix(key) & (PLACES - 1)); fold->places[*place];
         *place = (*place + 1) & (PLACES - 1))
        if (fold->kind[fold->places[*place] - 1].key == key) return &fold->kind[fold->places[*place] - 1];
    return NULL;
}

static struct kind *kind_of(struct ft_fold *fold, const struct ft_event *event) {
    uint8_t size_class = bits_of(event->bytes);
    uint64_t key = ((((uint64_t)event->communicator << 8 | event->function) << 8 | event->algorithm) << 8 |
                    event->protocol)
                       << 8 |
                   size_class;
    uint32_t place;
    struct kind *known = find_kind(fold, key, &place);

    if (known) return known;
    if (fold->kinds == KINDS) forget_kinds(fold, IDLE_TAKES);
    if (fold->kinds == KINDS) forget_kinds(fold, 0);
    if (fold->kinds == KINDS) return NULL;
    find_kind(fold, key, &place);

    struct kind *made = &fold->kind[fold->kinds];

    made->histogram = calloc(BUCKETS, sizeof(*made->histogram));
    if (!made->histogram) return NULL;
    fold->places[place] = (uint16_t)++fold->kinds;
    made->key = key;
    made->sums.communicator = event->communicator;
    made->sums.function = event->function;
    made->sums.algorithm = event->algorithm;
    made->sums.protocol = event->protocol;
    made->sums.size_class = size_class;
    return made;
}

static void add_sums(struct kind *kind, const struct ft_event *event, uint64_t ns) {
    struct ft_fold_kind *sums = &kind->sums;

    if (!sums->count || event->sequence < sums->first_seq) sums->first_seq = event->sequence;
    if (!sums->count || ns < sums->min_ns) sums->min_ns = ns;
    if (event->sequence > sums->last_seq) sums->last_seq = event->sequence;
    if (ns > sums->max_ns) sums->max_ns = ns;
    sums->count++;
    sums->bytes += event->bytes;
    sums->busy_ns += ns;
    sums->launch_ns += event->launch_ns;
    sums->kernel_ns += event->kernel_ns;
    sums->measured |= (event->launch_ns ? FT_HAS_LAUNCH : 0) | (event->kernel_ns ? FT_HAS_KERNEL : 0);
    if (event->flags & FT_FLAG_SPLIT) {
        sums->measured |= FT_HAS_SPLIT;
        sums->gpu_late_ns += event->gpu_late_ns;
        sums->peer_late_ns += event->peer_late_ns;
        sums->network_late_ns += event->network_late_ns;
        sums->flush_ns += event->flush_ns;
    }
    kind->histogram[bucket_of(ns)]++;
}

static uint64_t median_of(const struct kind *kind) {
    uint64_t left = (kind->sums.count + 1) / 2;
    uint32_t bucket = 0;

    while (left > kind->histogram[bucket]) left -= kind->histogram[bucket++];
    uint64_t ns = middle_of(bucket);

    return ns < kind->sums.min_ns ? kind->sums.min_ns : ns > kind->sums.max_ns ? kind->sums.max_ns : ns;
}

uint32_t ft_fold_kinds(const struct ft_fold *fold) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < fold->kinds; i++) count += fold->kind[i].sums.count != 0;
    return count;
}

uint32_t ft_fold_take_kinds(struct ft_fold *fold, struct ft_fold_kind *to, uint32_t max) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < fold->kinds && count < max; i++) {
        struct kind *kind = &fold->kind[i];
        struct ft_fold_kind *sums = &kind->sums;

        kind->idle = sums->count ? 0 : kind->idle + 1;
        if (!sums->count) continue;
        sums->p50_ns = median_of(kind);
        if (sums->count >= MIN_TYPICAL || kind->typical_ns > 0) {
            double now = (double)sums->p50_ns;

            kind->typical_ns = kind->typical_ns > 0 ? kind->typical_ns * 0.9 + now * 0.1 : now;
            kind->slow_ns = (uint64_t)(kind->typical_ns * fold->slow_factor) + SLOW_NS;
        }
        to[count++] = *sums;
        memset(&sums->measured, 0, sizeof(*sums) - offsetof(struct ft_fold_kind, measured));
        memset(kind->histogram, 0, BUCKETS * sizeof(*kind->histogram));
    }
    return count;
}

/* ---- single operations */

static bool is_sampled(const struct ft_fold *fold, const uint64_t *communicators,
                       const struct ft_event *event) {
    uint64_t mixed = ft_fold_mix(communicators[event->communicator], event->sequence);

    return !fold->shift || mixed >> (64 - fold->shift) == 0;
}

void ft_fold_sample(struct ft_fold *fold, uint32_t shift) {
    fold->shift = shift < 63 ? shift : 63;
}

/* Half of the operations, again chosen by number. */
static void thin(struct ft_fold *fold, const uint64_t *communicators) {
    uint32_t left = 0;

    ft_fold_sample(fold, fold->shift + 1);
    for (uint32_t i = 0; i < fold->kept_count; i++)
        if (is_sampled(fold, communicators, &fold->kept[i])) fold->kept[left++] = fold->kept[i];
    fold->kept_count = left;
}

static void keep_slow(struct ft_fold *fold, const struct ft_event *event, double ratio) {
    uint32_t at = fold->slow_count;

    if (at < FT_FOLD_SLOW) {
        fold->slow_count++;
    } else {
        at = 0;
        for (uint32_t i = 1; i < FT_FOLD_SLOW; i++)
            if (fold->slow[i].ratio < fold->slow[at].ratio) at = i;
        if (fold->slow[at].ratio >= ratio) return;
    }
    fold->slow[at] = (struct slow){*event, ratio};
}

static void keep(struct ft_fold *fold, const struct ft_event *event, const uint64_t *communicators) {
    while (fold->kept_count == FT_FOLD_KEPT && fold->shift < 63) thin(fold, communicators);
    if (is_sampled(fold, communicators, event) && fold->kept_count < FT_FOLD_KEPT)
        fold->kept[fold->kept_count++] = *event;
}

static void end(struct ft_fold *fold, const struct ft_event *event, const struct ft_fold_input *input) {
    uint64_t ns = event->end_raw_ns - event->begin_raw_ns;
    struct kind *kind = kind_of(fold, event);
    bool slow = kind && kind->slow_ns && ns > kind->slow_ns;

    if (event->operation) close_operation(fold, event->operation);
    if (!kind) {
        fold->counts.invalid++;
        return;
    }
    fold->counts.ended++;
    fold->counts.slow += slow;
    if (is_sampled(fold, input->communicators, event))
        keep(fold, event, input->communicators);
    else if (slow)
        keep_slow(fold, event, (double)ns / kind->typical_ns);
    add_sums(kind, event, ns);
}

uint32_t ft_fold_kept(const struct ft_fold *fold) {
    return fold->kept_count + fold->slow_count;
}

uint32_t ft_fold_take_kept(struct ft_fold *fold, struct ft_event *to, uint8_t *reasons) {
    uint32_t count = fold->kept_count;

    memcpy(to, fold->kept, count * sizeof(*to));
    memset(reasons, fold->shift ? FT_KEPT_SAMPLED : FT_KEPT_ALL, count);
    for (uint32_t i = 0; i < fold->slow_count; i++) {
        to[count] = fold->slow[i].event;
        reasons[count++] = FT_KEPT_SLOW;
    }
    fold->kept_count = fold->slow_count = fold->counts.slow = 0;
    return count;
}

/* ---- transfers and queue pairs */

static int by_number(const void *a, const void *b) {
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;

    return (first > second) - (first < second);
}

static uint32_t sort_numbers(struct ft_fold *fold) {
    uint32_t count = 0;

    for (uint32_t i = 0; i < fold->kept_count; i++) fold->numbers[count++] = fold->kept[i].operation;
    for (uint32_t i = 0; i < fold->slow_count; i++) fold->numbers[count++] = fold->slow[i].event.operation;
    qsort(fold->numbers, count, sizeof(fold->numbers[0]), by_number);
    return count;
}

/* Drop transfers of operations that have ended and are not kept. */
static void prune(struct ft_fold *fold) {
    uint32_t left = 0, numbers = sort_numbers(fold);

    for (uint32_t i = 0; i < fold->row_count; i++) {
        const struct ft_event *row = &fold->rows[i];

        if (i >= fold->fresh || row->kind == FT_EVENT_QUEUE_PAIR || is_open(fold, row->operation) ||
            bsearch(&row->operation, fold->numbers, numbers, sizeof(fold->numbers[0]), by_number))
            fold->rows[left++] = *row;
    }
    fold->row_count = fold->fresh = left;
}

uint32_t ft_fold_take_rows(struct ft_fold *fold, struct ft_event *to) {
    uint32_t count = fold->row_count, left = 0;

    for (uint32_t i = 0; i < count; i++) {
        to[i] = fold->rows[i];
        if (to[i].kind == FT_EVENT_TRANSFER && is_open(fold, to[i].operation)) fold->rows[left++] = to[i];
    }
    fold->row_count = fold->fresh = left;
    return count;
}

uint32_t ft_fold_rows(const struct ft_fold *fold) {
    return fold->row_count;
}

static void add_row(struct ft_fold *fold, const struct ft_event *event) {
    if (fold->row_count < ROWS) fold->rows[fold->row_count++] = *event;
}

/* ---- events */

static bool is_time_valid(const struct ft_event *event, uint64_t now_ns) {
    uint64_t last = event->end_raw_ns ? event->end_raw_ns : event->begin_raw_ns;

    return event->begin_raw_ns && last >= event->begin_raw_ns && last <= now_ns + AHEAD_NS &&
           (now_ns < DAY_NS || event->begin_raw_ns >= now_ns - DAY_NS) && last - event->begin_raw_ns < DAY_NS;
}

static bool is_operation_valid(const struct ft_event *event, const struct ft_fold_input *input) {
    return event->communicator < input->communicator_count && event->bytes <= BYTES_MAX &&
           event->sequence <= SEQ_MAX && event->peer >= -1 && event->peer < PEER_MAX;
}

static bool is_split_valid(const struct ft_event *event) {
    return event->gpu_late_ns <= DAY_NS && event->peer_late_ns <= DAY_NS &&
           event->network_late_ns <= DAY_NS && event->flush_ns <= DAY_NS;
}

/* Names of a newer profiler are unknown here, and no error. */
static void clear_unknown(struct ft_event *event) {
    if (event->function > FT_SCATTERV) event->function = FT_UNKNOWN_FUNCTION;
    if (event->algorithm > FT_COPY_ENGINE) event->algorithm = FT_NO_ALGORITHM;
    if (event->protocol > FT_SIMPLE) event->protocol = FT_NO_PROTOCOL;
    event->tag &= ~(UINT64_C(1) << 63);
}

static bool add_one(struct ft_fold *fold, struct ft_event *event, const struct ft_fold_input *input) {
    if (!is_time_valid(event, input->now_raw_ns) || !is_split_valid(event)) return false;
    if (event->kind == FT_EVENT_QUEUE_PAIR) {
        if (event->device >= input->device_count || event->bytes > BYTES_MAX || event->peer >= PEER_MAX)
            return false;
        add_row(fold, event);
        return true;
    }
    if (!is_operation_valid(event, input)) return false;
    clear_unknown(event);
    switch (event->kind) {
    case FT_EVENT_BEGIN:
        if (!event->operation) return false;
        event->end_raw_ns = 0;
        begin(fold, event);
        return true;
    case FT_EVENT_END:
        if (!event->end_raw_ns) return false;
        end(fold, event, input);
        return true;
    case FT_EVENT_TRANSFER:
        if (!event->operation || event->peer < 0) return false;
        add_row(fold, event);
        return true;
    default:
        return false;
    }
}

void ft_fold_add(struct ft_fold *fold, const struct ft_event *events, uint64_t count,
                 const struct ft_fold_input *input) {
    if (fold->row_count > ROWS / 4) prune(fold);
    fold->fresh = fold->row_count;
    for (uint64_t i = 0; i < count; i++) {
        struct ft_event event = events[i];

        if (!add_one(fold, &event, input)) fold->counts.invalid++;
    }
}

/* ---- running operations */

static int by_begin(const void *a, const void *b) {
    uint64_t first = ((const struct ft_event *)a)->begin_raw_ns,
             second = ((const struct ft_event *)b)->begin_raw_ns;

    return (first > second) - (first < second);
}

uint32_t ft_fold_running(struct ft_fold *fold, uint64_t before_raw_ns, struct ft_event *to, uint32_t max) {
    struct ft_event *found;
    uint32_t count = 0;

    if (fold->free_count == OPEN || !max) return 0;
    found = malloc((OPEN - fold->free_count) * sizeof(*found));
    if (!found) return 0;
    for (uint32_t place = 0; place < OPEN_PLACES; place++) {
        const struct ft_event *event;

        if (!fold->open_places[place]) continue;
        event = &fold->begins[fold->open_places[place] - 1];
        if (event->begin_raw_ns <= before_raw_ns) found[count++] = *event;
    }
    qsort(found, count, sizeof(*found), by_begin);
    if (count > max) count = max;
    memcpy(to, found, count * sizeof(*to));
    free(found);
    return count;
}

void ft_fold_forget(struct ft_fold *fold, uint64_t before_raw_ns) {
    for (uint32_t place = 0; place < OPEN_PLACES;) {
        if (fold->open_places[place] &&
            fold->begins[fold->open_places[place] - 1].begin_raw_ns < before_raw_ns)
            close_place(fold, place); /* another one may have moved here */
        else
            place++;
    }
}

struct ft_fold_counts ft_fold_counts(const struct ft_fold *fold) {
    struct ft_fold_counts counts = fold->counts;

    counts.shift = fold->shift;
    counts.open = OPEN - fold->free_count;
    return counts;
}
