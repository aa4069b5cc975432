/* Decode ProbeBatches, straight into common columns.
 *
 * The input is an Avro body as untrusted bytes. The output is columns, or the field that is wrong. Memory
 * grows only with the possible content of the bytes: a sample is four elements of at least one byte each.
 *
 * A varint is read with one 8-byte load: the first clear top bit ends it, and a cascade of three shifts
 * closes the gaps between the groups of seven bits. Longer ones (9 and 10 bytes) and the message's last bytes
 * go byte by byte. */
#include "decode.h"

#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "decode.c reads little-endian words"
#endif

struct reader {
    const uint8_t *begin, *p, *end;
    struct ft_fault *fault;
    int64_t group; /* within the message */
    struct ft_message *message;
};

static enum ft_bad bad(struct reader *r, enum ft_bad status, enum ft_field field, int64_t value,
                       int64_t expected) {
    *r->fault = (struct ft_fault){status, field, r->group, value, expected, r->p - r->begin};
    return status;
}

static inline int64_t unzigzag(uint64_t u) {
    return (int64_t)((u >> 1) ^ (0 - (u & 1)));
}

/* Byte by byte, bounds checked. Returns the next position, or NULL with the error set. */
static const uint8_t *varint_slow(const uint8_t *p, const uint8_t *end, uint64_t *out, enum ft_bad *status) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p == end) {
            *status = FT_TRUNCATED;
            return NULL;
        }
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1) break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return p;
        }
    }
    *status = FT_VARINT;
    return NULL;
}

#define TOP_BITS UINT64_C(0x8080808080808080)

/* Close the gaps in eight bytes of seven bits each. */
static inline uint64_t gather7(uint64_t w) {
    w = (w & UINT64_C(0x007f007f007f007f)) | ((w & UINT64_C(0x7f007f007f007f00)) >> 1);
    w = (w & UINT64_C(0x00003fff00003fff)) | ((w & UINT64_C(0x3fff00003fff0000)) >> 2);
    return (w & UINT64_C(0x000000000fffffff)) | ((w & UINT64_C(0x0fffffff00000000)) >> 4);
}

static enum ft_bad read_long(struct reader *r, enum ft_field field, int64_t *out) {
    uint64_t u;
    enum ft_bad status = FT_OK;
    const uint8_t *next = varint_slow(r->p, r->end, &u, &status);
    if (next == NULL) return bad(r, status, field, 0, 0);
    r->p = next;
    *out = unzigzag(u);
    return FT_OK;
}

/* An int field within [least, most]. */
static enum ft_bad read_int(struct reader *r, enum ft_field field, int64_t min_value, int64_t max_value,
                            int32_t *out) {
    int64_t value;
    enum ft_bad status = read_long(r, field, &value);
    if (status != FT_OK) return status;
    if (value < min_value) return bad(r, FT_BELOW, field, value, min_value);
    if (value > max_value) return bad(r, FT_ABOVE, field, value, max_value);
    *out = (int32_t)value;
    return FT_OK;
}

/* A clock's reading: bounded as stamps are, so that sums and differences of two keep within 64 bits. */
static enum ft_bad read_clock(struct reader *r, enum ft_field field, int64_t *out) {
    enum ft_bad status = read_long(r, field, out);
    if (status != FT_OK) return status;
    if (*out < -FT_MAX_NS) return bad(r, FT_BELOW, field, *out, -FT_MAX_NS);
    if (*out > FT_MAX_NS) return bad(r, FT_ABOVE, field, *out, FT_MAX_NS);
    return FT_OK;
}

static enum ft_bad read_name(struct reader *r, enum ft_field field, struct ft_span *out) {
    int64_t bytes;
    enum ft_bad status = read_long(r, field, &bytes);
    if (status != FT_OK) return status;
    if (bytes < 0) return bad(r, FT_BELOW, field, bytes, 0);
    if (bytes > 4 * FT_MAX_NAME_CHARS) return bad(r, FT_NAME_LONG, field, bytes, FT_MAX_NAME_CHARS);
    if (bytes > r->end - r->p) return bad(r, FT_TRUNCATED, field, bytes, r->end - r->p);
    *out = (struct ft_span){r->p, bytes};
    r->p += bytes;
    return FT_OK;
}

/* The head of an array block: *count elements (0: the array's end), and the end of the block if it is given,
 * else NULL. Each element takes `min_bytes` bytes or more, so a greater count cannot be true. */
static enum ft_bad read_block(struct reader *r, enum ft_field field, int64_t min_bytes, int64_t *count,
                              const uint8_t **block_end) {
    int64_t n, size;
    enum ft_bad status = read_long(r, field, &n);
    if (status != FT_OK) return status;
    *block_end = NULL;
    if (n < 0) {
        if (n == INT64_MIN) return bad(r, FT_BELOW, field, n, -FT_MAX_NS);
        n = -n;
        status = read_long(r, field, &size);
        if (status != FT_OK) return status;
        if (size < 0) return bad(r, FT_BELOW, field, size, 0);
        if (size > r->end - r->p) return bad(r, FT_TRUNCATED, field, size, r->end - r->p);
        *block_end = r->p + size;
    }
    if (n > (r->end - r->p) / min_bytes) return bad(r, FT_TRUNCATED, field, n, (r->end - r->p) / min_bytes);
    *count = n;
    return FT_OK;
}

/* n longs to out[0..n); with `stamps`, running sums that go on from *sum. */
static inline enum ft_bad read_longs(struct reader *r, enum ft_field field, int64_t n, int64_t *out,
                                     int stamps, int64_t *sum) {
    const uint8_t *p = r->p, *end = r->end;
    int64_t total = *sum;
    for (int64_t i = 0; i < n; i++) {
        uint64_t u;
        uint64_t chunk, ends = 0;
        if (__builtin_expect(end - p >= 8, 1)) {
            memcpy(&chunk, p, 8);
            ends = ~chunk & TOP_BITS;
        }
        if (__builtin_expect(ends != 0, 1)) {
            u = gather7(chunk & (ends ^ (ends - 1)));
            p += (__builtin_ctzll(ends) >> 3) + 1;
        } else {
            enum ft_bad status = FT_OK;
            const uint8_t *next = varint_slow(p, end, &u, &status);
            if (next == NULL) {
                r->p = p;
                return bad(r, status, field, 0, 0);
            }
            p = next;
            if (unzigzag(u) > FT_MAX_NS || unzigzag(u) < -FT_MAX_NS) {
                r->p = p;
                return bad(r, unzigzag(u) < 0 ? FT_BELOW : FT_ABOVE, field, unzigzag(u),
                           unzigzag(u) < 0 ? -FT_MAX_NS : FT_MAX_NS);
            }
        }
        int64_t value = unzigzag(u);
        if (stamps) {
            /* both within 2^62: the sum cannot wrap */
            total += value;
            if (__builtin_expect(total > FT_MAX_NS || total < -FT_MAX_NS, 0)) {
                r->p = p;
                return bad(r, total < 0 ? FT_BELOW : FT_ABOVE, field, total,
                           total < 0 ? -FT_MAX_NS : FT_MAX_NS);
            }
            value = total;
        }
        out[i] = value;
    }
    r->p = p;
    *sum = total;
    return FT_OK;
}

static int grow(void **array, int64_t capacity, size_t element) {
    void *moved = realloc(*array, (size_t)capacity * element);
    if (moved == NULL) return 0;
    *array = moved;
    return 1;
}

static int more_samples(struct ft_batches *b, int64_t wanted) {
    if (wanted <= b->sample_capacity) return 1;
    int64_t capacity = b->sample_capacity + b->sample_capacity / 2;
    if (capacity < wanted) capacity = wanted;
    for (int c = 0; c < 4; c++)
        if (!grow((void **)&b->column[c], capacity, sizeof(int64_t))) return 0;
    b->sample_capacity = capacity;
    return 1;
}

static int more_groups(struct ft_batches *b, int64_t wanted) {
    if (wanted <= b->group_capacity) return 1;
    int64_t capacity = b->group_capacity * 2 > wanted ? b->group_capacity * 2 : wanted;
    if (!grow((void **)&b->peer, capacity, sizeof *b->peer) ||
        !grow((void **)&b->path, capacity, sizeof *b->path) ||
        !grow((void **)&b->spacing_ns, capacity, sizeof *b->spacing_ns) ||
        !grow((void **)&b->lost, capacity, sizeof *b->lost) ||
        !grow((void **)&b->no_t3, capacity, sizeof *b->no_t3) ||
        !grow((void **)&b->dscp, capacity, sizeof *b->dscp) ||
        !grow((void **)&b->ecn, capacity, sizeof *b->ecn) ||
        !grow((void **)&b->start, capacity + 1, sizeof *b->start))
        return 0;
    b->group_capacity = capacity;
    return 1;
}

/* One array of longs into column c from sample `first` on; *count is the number of its elements. */
static enum ft_bad read_array(struct reader *r, struct ft_batches *b, int c, int64_t first, int64_t *count) {
    enum ft_field field = (enum ft_field)(FT_SENT + c);
    int64_t total = 0, sum = 0, n;
    const uint8_t *block_end;
    enum ft_bad status;
    for (;;) {
        /* each sample of `sent` still needs an element in three further arrays */
        status = read_block(r, field, c == 0 ? 4 : 1, &n, &block_end);
        if (status != FT_OK) return status;
        if (n == 0) break;
        if (c == 0) {
            int64_t of_message = first + total + n - r->message->first_sample;
            if (of_message > FT_MAX_SAMPLES)
                return bad(r, FT_MANY_SAMPLES, field, of_message, FT_MAX_SAMPLES);
            if (!more_samples(b, first + total + n)) return bad(r, FT_NO_MEMORY, field, first + total + n, 0);
        } else if (total + n > *count) {
            return bad(r, FT_LENGTHS, field, total + n, *count);
        }
        int64_t *out = b->column[c] + first + total;
        status = c == 0 ? read_longs(r, field, n, out, 1, &sum) : read_longs(r, field, n, out, 0, &sum);
        if (status != FT_OK) return status;
        if (block_end != NULL && r->p != block_end) return bad(r, FT_BLOCK_SIZE, field, r->p - block_end, 0);
        total += n;
    }
    if (c != 0 && total != *count) return bad(r, FT_LENGTHS, field, total, *count);
    *count = total;
    return FT_OK;
}

/* The ascending indices of a group's marked samples, `direction` 0: of requests, 1: of replies. */
static enum ft_bad read_marks(struct reader *r, struct ft_batches *b, int direction, int64_t first,
                              int64_t count) {
    enum ft_field field = (enum ft_field)(FT_FORWARD_CE + direction);
    int64_t begin = b->marks[direction], last = -1, sum = 0, n;
    const uint8_t *block_end;
    enum ft_bad status;
    for (;;) {
        status = read_block(r, field, 1, &n, &block_end);
        if (status != FT_OK) return status;
        if (n == 0) return FT_OK;
        int64_t total = b->marks[direction] - begin + n;
        if (total > count) return bad(r, FT_ABOVE, field, total, count);
        if (b->marks[direction] + n > b->mark_capacity[direction]) {
            int64_t capacity = 2 * b->mark_capacity[direction] + n;
            if (!grow((void **)&b->marked[direction], capacity, sizeof(int64_t)))
                return bad(r, FT_NO_MEMORY, field, capacity, 0);
            b->mark_capacity[direction] = capacity;
        }
        int64_t *out = b->marked[direction] + b->marks[direction];
        if ((status = read_longs(r, field, n, out, 0, &sum)) != FT_OK) return status;
        for (int64_t i = 0; i < n; last = out[i++] - first) {
            if (out[i] <= last) return bad(r, FT_BELOW, field, out[i], last + 1);
            if (out[i] >= count) return bad(r, FT_ABOVE, field, out[i], count - 1);
            out[i] += first;
        }
        b->marks[direction] += n;
        if (block_end != NULL && r->p != block_end) return bad(r, FT_BLOCK_SIZE, field, r->p - block_end, 0);
    }
}

static enum ft_bad read_group(struct reader *r, struct ft_batches *b) {
    int64_t g = b->groups, first = b->samples, count = 0;
    enum ft_bad status;
    r->group = g - r->message->first_group;
    if ((status = read_name(r, FT_PEER, &b->peer[g])) != FT_OK ||
        (status = read_int(r, FT_PATH, 0, FT_MAX_PATH, &b->path[g])) != FT_OK ||
        (status = read_int(r, FT_SPACING_NS, 0, FT_MAX_SPACING_NS, &b->spacing_ns[g])) != FT_OK)
        return status;
    for (int c = 0; c < 4; c++)
        if ((status = read_array(r, b, c, first, &count)) != FT_OK) return status;
    if (b->spacing_ns[g] > 0 && count % 2 != 0) return bad(r, FT_ODD, FT_SENT, count, 0);
    if ((status = read_int(r, FT_LOST, 0, FT_MAX_COUNT, &b->lost[g])) != FT_OK ||
        (status = read_int(r, FT_NO_T3, 0, FT_MAX_COUNT, &b->no_t3[g])) != FT_OK ||
        (status = read_int(r, FT_DSCP, 0, FT_MAX_DSCP, &b->dscp[g])) != FT_OK ||
        (status = read_int(r, FT_ECN, 0, FT_MAX_COUNT, &b->ecn[g])) != FT_OK)
        return status;
    for (int direction = 0; direction < 2; direction++)
        if ((status = read_marks(r, b, direction, first, count)) != FT_OK) return status;
    r->group = -1;
    r->message->lost += b->lost[g];
    b->samples = first + count;
    b->groups = g + 1;
    b->start[g + 1] = b->samples;
    return FT_OK;
}

/* Least bytes of a group: 13 fields of one byte. */
#define MIN_GROUP 13

static enum ft_bad read_batch(struct reader *r, struct ft_batches *b) {
    struct ft_message *m = r->message;
    enum ft_bad status;
    int64_t n;
    const uint8_t *block_end;
    if ((status = read_name(r, FT_NIC, &m->nic)) != FT_OK ||
        (status = read_long(r, FT_RUN, &m->run)) != FT_OK ||
        (status = read_long(r, FT_BATCH, &m->number)) != FT_OK)
        return status;
    if (m->number < 0) return bad(r, FT_BELOW, FT_BATCH, m->number, 0);
    if ((status = read_clock(r, FT_CLOCK_NS, &m->clock_ns)) != FT_OK ||
        (status = read_clock(r, FT_SYSTEM_NS, &m->system_ns)) != FT_OK)
        return status;
    for (;;) {
        status = read_block(r, FT_SAMPLES, MIN_GROUP, &n, &block_end);
        if (status != FT_OK) return status;
        if (n == 0) break;
        int64_t of_message = b->groups + n - m->first_group;
        if (of_message > FT_MAX_GROUPS) return bad(r, FT_MANY_GROUPS, FT_SAMPLES, of_message, FT_MAX_GROUPS);
        if (!more_groups(b, b->groups + n)) return bad(r, FT_NO_MEMORY, FT_SAMPLES, of_message, 0);
        for (int64_t i = 0; i < n; i++)
            if ((status = read_group(r, b)) != FT_OK) return status;
        if (block_end != NULL && r->p != block_end)
            return bad(r, FT_BLOCK_SIZE, FT_SAMPLES, r->p - block_end, 0);
    }
    if (r->p != r->end) return bad(r, FT_TRAILING, FT_END, r->end - r->p, 0);
    m->groups = b->groups - m->first_group;
    m->samples = b->samples - m->first_sample;
    for (int direction = 0; direction < 2; direction++)
        m->marks[direction] = b->marks[direction] - m->first_mark[direction];
    return FT_OK;
}

int ft_reserve(struct ft_batches *b, int64_t messages, int64_t bytes) {
    int64_t wanted = b->messages + messages;
    if (wanted > b->message_capacity) {
        if (!grow((void **)&b->message, wanted, sizeof *b->message)) return 0;
        b->message_capacity = wanted;
    }
    /* A usual sample takes 12 to 16 bytes: start with that number, at most one sample per four bytes. */
    if (!more_samples(b, b->samples + bytes / 12 + 16) || !more_groups(b, b->groups + bytes / 64 + 1))
        return 0;
    b->start[b->groups] = b->samples;
    return 1;
}

struct ft_message *ft_begin(struct ft_batches *b) {
    struct ft_message *m = &b->message[b->messages++];
    *m = (struct ft_message){
        .first_group = b->groups, .first_sample = b->samples, .first_mark = {b->marks[0], b->marks[1]}};
    return m;
}

int ft_grow(struct ft_batches *b, int64_t groups, int64_t samples) {
    return more_groups(b, groups) && more_samples(b, samples);
}

enum ft_bad ft_decode(const uint8_t *data, int64_t size, struct ft_batches *b, struct ft_fault *fault) {
    struct reader r = {data, data, data + size, fault, -1, ft_begin(b)};
    enum ft_bad status = read_batch(&r, b);
    if (status != FT_OK) ft_refuse(b);
    return status;
}

void ft_refuse(struct ft_batches *b) {
    struct ft_message *m = &b->message[b->messages - 1];
    b->groups = m->first_group;
    b->samples = m->first_sample;
    m->groups = m->samples = m->lost = 0;
    for (int direction = 0; direction < 2; direction++) {
        b->marks[direction] = m->first_mark[direction];
        m->marks[direction] = 0;
    }
    m->is_refused = 1;
}

void ft_trim(struct ft_batches *b) {
    if (b->sample_capacity - b->samples <= b->samples / 4 + 256) return;
    int64_t capacity = b->samples > 0 ? b->samples : 1;
    for (int c = 0; c < 4; c++)
        if (!grow((void **)&b->column[c], capacity, sizeof(int64_t))) return;
    b->sample_capacity = capacity;
}

void ft_batches_free(struct ft_batches *b) {
    free(b->message);
    free(b->peer);
    free(b->path);
    free(b->spacing_ns);
    free(b->lost);
    free(b->no_t3);
    free(b->start);
    free(b->dscp);
    free(b->ecn);
    for (int direction = 0; direction < 2; direction++) free(b->marked[direction]);
    for (int c = 0; c < 4; c++) free(b->column[c]);
    memset(b, 0, sizeof *b);
}

uint64_t ft_hash_name(struct ft_span name) {
    const uint64_t factor = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = (uint64_t)name.bytes * factor, chunk;
    int64_t i = 0;
    for (; i + 8 <= name.bytes; i += 8) {
        memcpy(&chunk, name.text + i, 8);
        hash = (hash ^ chunk) * factor;
        hash ^= hash >> 29;
    }
    chunk = 0;
    memcpy(&chunk, name.text + i, (size_t)(name.bytes - i));
    hash = (hash ^ chunk) * factor;
    return hash ^ hash >> 32;
}
