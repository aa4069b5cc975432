/* ProbeBatch (Avro binary) to columns and back. See decode.c and encode.c. */
#ifndef FABRICTIME_DECODE_H
#define FABRICTIME_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* Largest batch: the content of the largest message (4 MiB) at 4 bytes a sample. */
#define FT_MAX_SAMPLES    (1 << 20)
#define FT_MAX_GROUPS     65536
#define FT_MAX_NAME_CHARS 512
#define FT_MAX_PATH       65535
/* As in schemas/ProbeBatch.avsc. */
#define FT_MAX_SPACING_NS 1000000000
#define FT_MAX_COUNT      10000000
#define FT_MAX_DSCP       63
/* Stamps and differences are held within +-2^62 ns (146 years), so that a sum of two never wraps. */
#define FT_MAX_NS ((int64_t)1 << 62)

enum ft_bad {
    FT_OK = 0,
    FT_TRUNCATED, /* the bytes end in mid-record */
    FT_VARINT,    /* more than 10 bytes, or more than 64 bits */
    FT_BELOW,     /* value below the field's minimum */
    FT_ABOVE,     /* value above the field's maximum */
    FT_NAME_LONG,
    FT_MANY_GROUPS,
    FT_MANY_SAMPLES,
    FT_BLOCK_SIZE, /* the length of a block differs from its header */
    FT_LENGTHS,    /* arrays of one group differ in length */
    FT_ODD,        /* coded pairs, but an odd count */
    FT_TRAILING,
    FT_NO_MEMORY,
};

enum ft_field {
    FT_NIC,
    FT_RUN,
    FT_BATCH,
    FT_CLOCK_NS,
    FT_SYSTEM_NS,
    FT_SAMPLES,
    FT_PEER,
    FT_PATH,
    FT_SPACING_NS,
    FT_SENT,
    FT_FORWARD,
    FT_TURNAROUND,
    FT_REVERSE,
    FT_LOST,
    FT_NO_T3,
    FT_DSCP,
    FT_ECN,
    FT_FORWARD_CE,
    FT_REVERSE_CE,
    FT_END,
};

/* The position of a name in the message. */
struct ft_span {
    const uint8_t *text;
    int64_t bytes;
};

/* One message: its head, and where its groups, samples and marks stand. A refused message has none. */
struct ft_message {
    struct ft_span nic; /* valid only while the message's bytes are */
    int64_t run, number, clock_ns, system_ns;
    int64_t first_group, groups, first_sample, samples;
    int64_t first_mark[2], marks[2];
    int64_t lost; /* sum of all groups */
    int is_refused;
};

/* Messages one after another in common columns. */
struct ft_batches {
    struct ft_message *message;
    int64_t messages, message_capacity;
    /* groups */
    int64_t groups, group_capacity;
    struct ft_span *peer; /* valid only while the message's bytes are */
    int32_t *path, *spacing_ns, *lost, *no_t3, *dscp, *ecn;
    int64_t *start; /* groups + 1 */
    /* samples */
    int64_t samples, sample_capacity;
    int64_t *column[4]; /* sent, forward, turnaround, reverse */
    /* numbers of the samples with CE, ascending: of requests, of replies */
    int64_t *marked[2], marks[2], mark_capacity[2];
};

struct ft_fault {
    enum ft_bad status;
    enum ft_field field;
    int64_t group; /* -1: not in a group */
    int64_t value, expected;
    int64_t at; /* byte of the message */
};

/* Prepare for `messages` more messages of `bytes` bytes in all. Returns 0 without memory. */
int ft_reserve(struct ft_batches *b, int64_t messages, int64_t bytes);
/* Append a message without groups; room for it is reserved. */
struct ft_message *ft_begin(struct ft_batches *b);
/* Make room for more groups and samples, of which there are so many in all. Returns 0 without memory. */
int ft_grow(struct ft_batches *b, int64_t groups, int64_t samples);
/* Decode data[0..size) into the next message, which is reserved. Returns FT_OK; else the message is refused, and
 * *fault is filled. */
enum ft_bad ft_decode(const uint8_t *data, int64_t size, struct ft_batches *b, struct ft_fault *fault);
/* Refuse the last message: drop its content. */
void ft_refuse(struct ft_batches *b);
/* Give back the memory beyond the content. */
void ft_trim(struct ft_batches *b);
void ft_batches_free(struct ft_batches *b);
uint64_t ft_hash_name(struct ft_span name);

/* Write a long as Avro does; returns the end. Room for 10 bytes is needed, 8 bytes are written at least. */
uint8_t *ft_put_long(uint8_t *out, int64_t value);
/* Write n longs as one Avro array: block count, elements, 0. Needs 10 * n + 20 bytes. */
uint8_t *ft_put_array(uint8_t *out, const int64_t *values, int64_t n);
/* The same for absolute stamps, as differences. Returns NULL where a difference exceeds FT_MAX_NS. */
uint8_t *ft_put_stamps(uint8_t *out, const int64_t *values, int64_t n);

#endif
