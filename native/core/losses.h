/* Declares requests lost as early as possible; losses.c describes the rules. Knows no socket and no clock. */
#ifndef FT_LOSSES_H
#define FT_LOSSES_H

#include <stdint.h>

#define FT_NEVER       INT64_MAX
#define FT_MAX_CLASSES 8

typedef struct ft_losses ft_losses;

/* `forward`, `reverse`: 1 + the DSCP with which the newest answered request and its reply arrived, where the network
 * has changed it; 0: as sent, or not known. */
typedef struct {
    uint32_t lost, answered, late;
    uint8_t forward, reverse;
} ft_class_news;

/* Changes of one path since the last take; ages in ns before it, -1: none. `class`: of each traffic class. */
typedef struct {
    uint32_t path_index, lost, answered, late, delayed, loss_streak;
    int64_t first_lost_age, last_lost_age, answered_age, arrived_age, timeout;
    ft_class_news class[FT_MAX_CLASSES];
} ft_path_news;

/* `slots` requests can be under way at once. `min_timeout`, `max_timeout`: ns, bounds of a time-out. NULL: no memory. */
ft_losses *ft_losses_new(uint32_t peers, uint32_t paths, uint32_t classes, uint32_t slots,
                         int64_t min_timeout, int64_t max_timeout);
void ft_losses_free(ft_losses *l);

/* Start probing a peer: requests sent before `now` no longer count. `fresh`: forget its statistics too. */
void ft_losses_add_peer(ft_losses *l, uint32_t peer, int fresh, int64_t now);
void ft_losses_remove_peer(ft_losses *l, uint32_t peer);
/* A path of all peers becomes another one: nothing is known of it. */
void ft_losses_new_path(ft_losses *l, uint32_t path);

void ft_losses_sent(ft_losses *l, uint32_t slot, uint32_t path_index, uint32_t class, int64_t now);
int64_t ft_losses_sent_at(const ft_losses *l, uint32_t slot);
/* Its send stamp has come: it left the host at `at`. */
void ft_losses_left(ft_losses *l, uint32_t slot, int64_t at);
/* An answer arrived at `at`; `round`: ns by the timestamps. Returns whether the request had been declared
 * lost. */
int ft_losses_answered(ft_losses *l, uint32_t slot, int64_t at, int64_t round);
/* Note the DSCPs of an answered request and its reply, as in ft_class_news. */
void ft_losses_dscps(ft_losses *l, uint32_t path_index, uint32_t class, uint8_t forward, uint8_t reverse);
/* An answer came after the last time-out. */
void ft_losses_too_late(ft_losses *l, uint32_t slot, int64_t at);
/* The network's share of a round trip, without the peer's turnaround. `declared`: its request had been
 * declared lost. If the network itself took longer than 4 x its p99, the path is reported as `delayed`; else
 * the peer was late. */
void ft_losses_network(ft_losses *l, uint32_t path_index, int64_t ns, int declared);
/* Forget it: the kernel did not take it. `refused`: since it has no way out of this host. */
void ft_losses_unsent(ft_losses *l, uint32_t slot, int refused);
int ft_losses_declared(const ft_losses *l, uint32_t slot);
/* The last time-out: an answer would come too late now. */
void ft_losses_over(ft_losses *l, uint32_t slot);

/* Evaluate the overdue requests at `now`, after all packets that had arrived by `now` were processed. */
void ft_losses_evaluate(ft_losses *l, int64_t now);
/* Time of the next evaluation, FT_NEVER: none. `waits`: some requests only wait for a tail loss probe. */
int64_t ft_losses_due(const ft_losses *l, int *waits);

/* Number of peers that need a tail loss probe: without one, the fate of their requests is unknown. */
uint32_t ft_losses_silent(const ft_losses *l);
/* Write one path of each such peer into `states`, at most `max_states`, for a tail loss probe each, preferring
 * paths that live; return the number. The rest waits for the next call. A peer without such a path gets none,
 * and no peer does once tail loss probes exceed their share of all probes. */
uint32_t ft_losses_tail_probes(ft_losses *l, int64_t now, uint32_t *states, uint32_t max_states);

/* Return whether an event must be reported at once. */
int ft_losses_urgent(const ft_losses *l);
/* Move the changes since the last call to `news`, at most `max_paths` paths; the rest waits for the next call. */
uint32_t ft_losses_take(ft_losses *l, int64_t now, ft_path_news *news, uint32_t max_paths);

typedef struct {
    uint64_t declared, spurious; /* declared lost before the last time-out; of these, answered after all */
    uint64_t stuck;              /* never left the host */
} ft_losses_counts;
ft_losses_counts ft_losses_counted(const ft_losses *l);

#endif
