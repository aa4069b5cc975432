/* The reporter's side of a segment. It trusts nothing in it: a segment can be written by anybody at any time.
 *
 * Only the heads of the rings are read in place, each value once. Events are copied by pread: the copy cannot
 * change while it is checked, and holes of a sparse segment cost no memory. The next reader reads an event again
 * unless ft_reader_commit followed it. */
#ifndef FABRICTIME_READER_H
#define FABRICTIME_READER_H

#include <stdbool.h>

#include "segment.h"

enum { FT_READER_TEXT = 160 };

struct ft_reader_ring {
    uint64_t at;        /* events read */
    uint64_t committed; /* of these, those that need not be read again */
    uint64_t dropped, misuse;
};

struct ft_reader {
    int fd;
    char *map;
    uint64_t bytes;
    uint32_t rings, ring_events;
    uint32_t next; /* ring to begin with */
    uint64_t invalid;
    uint64_t ringless;
    struct ft_segment head; /* a copy, texts end with a NUL */
    struct ft_reader_ring ring[FT_RINGS_MAX];
};

/* Open a segment. The descriptor becomes the reader's if it succeeds. Return false and one line of text. */
bool ft_reader_open(struct ft_reader *reader, int fd, char text[FT_READER_TEXT]);
void ft_reader_close(struct ft_reader *reader);

/* Events that wait, at most. */
uint64_t ft_reader_waiting(struct ft_reader *reader);

/* Copy up to `max` events, and leave out what no correct writer writes. Return how many are valid. */
uint64_t ft_reader_drain(struct ft_reader *reader, struct ft_event *events, uint64_t max);

/* Free the room of the events that were read. Otherwise they are read again: by the next reader of the
 * segment, or by this one after ft_reader_rewind. */
void ft_reader_commit(struct ft_reader *reader);
void ft_reader_rewind(struct ft_reader *reader);

/* Number of the process's next record, which the segment keeps for the next reader. */
uint64_t ft_reader_batch(const struct ft_reader *reader);
void ft_reader_set_batch(struct ft_reader *reader, uint64_t batch);

/* Totals since the segment was made; they never decrease. */
struct ft_reader_counters {
    uint64_t dropped, misuse, ringless, invalid;
    uint32_t rings;
    bool closed;
};
void ft_reader_count(struct ft_reader *reader, struct ft_reader_counters *counters);

/* Rows of communicators that are or were in use; `changed` differs after each change of a row. */
uint32_t ft_reader_communicators(const struct ft_reader *reader, uint64_t *changed);

/* Copy communicator or device n, texts end with a NUL. Return false if there is none. */
bool ft_reader_communicator(const struct ft_reader *reader, uint32_t n, struct ft_segment_communicator *out);
bool ft_reader_device(const struct ft_reader *reader, uint32_t n, struct ft_segment_device *out);

#endif
