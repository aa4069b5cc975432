/* Which requests are lost, as early as that can be said; losses.c says how. Knows no socket and no clock. */
#ifndef FT_LOSSES_H
#define FT_LOSSES_H

#include <stdint.h>

#define FT_NEVER INT64_MAX

typedef struct ft_losses ft_losses;

/* What is known of one way, a peer and a path, since the last take; ages in ns before it, -1: none. */
typedef struct {
    uint32_t path_index, lost, answered, late, delayed, loss_streak;
    int64_t first_lost_age, last_lost_age, answered_age, arrived_age, timeout;
} ft_path_news;

/* `slots` requests can be under way at once. `least`, `most`: ns, bounds of a time-out. NULL: no memory. */
ft_losses *ft_losses_new(uint32_t peers, uint32_t paths, uint32_t slots, int64_t least, int64_t most);
void ft_losses_free(ft_losses *l);

/* A peer begins to be asked: what was sent before `now` counts no more. `fresh`: nothing is known of it either. */
void ft_losses_add_peer(ft_losses *l, uint32_t peer, int fresh, int64_t now);
void ft_losses_remove_peer(ft_losses *l, uint32_t peer);
/* A path of all peers becomes another one: nothing is known of it. */
void ft_losses_new_path(ft_losses *l, uint32_t path);

void ft_losses_sent(ft_losses *l, uint32_t slot, uint32_t path_index, int64_t now);
int64_t ft_losses_sent_at(const ft_losses *l, uint32_t slot);
/* Its send stamp has come: it left the host at `at`. */
void ft_losses_left(ft_losses *l, uint32_t slot, int64_t at);
/* An answer came at `at`; `round`: ns by the stamps. Returns whether the request had been told lost. */
int ft_losses_answered(ft_losses *l, uint32_t slot, int64_t at, int64_t round);
/* An answer came after the last time-out. */
void ft_losses_too_late(ft_losses *l, uint32_t slot, int64_t at);
/* What the network alone took of a round trip, the peer's turnaround taken off. `declared`: its request had been told lost;
 * where the network itself took longer than 4 x its p99 the way is news (`delayed`), and else its peer was late. */
void ft_losses_network(ft_losses *l, uint32_t path_index, int64_t ns, int declared);
/* Forget it: the kernel did not take it. `refused`: since it has no way out of this host. */
void ft_losses_unsent(ft_losses *l, uint32_t slot, int refused);
int ft_losses_declared(const ft_losses *l, uint32_t slot);
/* The last time-out: an answer would come too late now. */
void ft_losses_over(ft_losses *l, uint32_t slot);

/* Judge what is overdue at `now`. Only once everything that had come by `now` was handed over. */
void ft_losses_evaluate(ft_losses *l, int64_t now);
/* When to judge next, FT_NEVER: nothing to judge. `waits`: some only wait for a sign of life of their peer. */
int64_t ft_losses_due(const ft_losses *l, int *waits);

/* How many peers are to be asked for a sign of life, without which nobody knows whether what they owe is lost. */
uint32_t ft_losses_silent(const ft_losses *l);
/* Put one way a peer that lives, as far as is known, into `states`, at most `most`, for a request each; return how many.
 * The rest waits for the next call; of a peer without such a way nothing is asked, and of none where signs have been
 * more than a share of what was sent. */
uint32_t ft_losses_tail_probes(ft_losses *l, int64_t now, uint32_t *states, uint32_t most);

/* Whether something came up that is worth telling at once. */
int ft_losses_urgent(const ft_losses *l);
/* Move what came up since the last take to `news`, at most `most` ways; the rest waits for the next take. */
uint32_t ft_losses_take(ft_losses *l, int64_t now, ft_path_news *news, uint32_t most);

typedef struct {
    uint64_t declared, spurious; /* told lost before the last time-out; of these, answered after all */
    uint64_t stuck;              /* never left the host */
} ft_losses_counts;
ft_losses_counts ft_losses_counted(const ft_losses *l);

#endif
