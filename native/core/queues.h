/* Queues of links from delays of the paths that cross them; see queues.c. */
#ifndef FABRICTIME_QUEUES_H
#define FABRICTIME_QUEUES_H

#include <stddef.h>
#include <stdint.h>

enum { FT_QUEUE_WORKSPACES = 24 };

struct ft_queue_workspace {
    void *at;
    size_t bytes;
};

struct ft_queues {
    int64_t links, routes;
    const int64_t *route_start; /* [routes + 1] */
    const int32_t *route_link;  /* links of each route, each at most once in a route */
    const double *packet_ns;    /* [links] time of a full packet: the grain of a queue */
    /* carried from call to call, [links] */
    double *last_ns; /* queue at the end of the last call */
    double *mean_ns; /* its mean over some time: the scale of its possible values */
    int64_t seen;    /* slots so far */
    /* memory kept for the next call: of the first estimate, and of the knots; all 0 at first */
    struct ft_queue_workspace buffer[2][FT_QUEUE_WORKSPACES];
};

struct ft_queue_slots {
    /* in: observations in the order of their slots; all checked before */
    int64_t slots, observations;
    const int64_t *slot_start; /* [slots + 1] */
    const int32_t *route;      /* [observations] */
    const double *at;          /* mean time of its probes within the slot, 0 to 1 */
    const double *count;       /* probes behind it */
    const double *delay_ns;    /* their mean delay above the route's floor */
    const double *noise_ns;    /* standard deviation of one probe's error by stamps and clocks */
    double slot_ns;
    int rounds, sweeps, merge; /* merge: slots that the first estimate takes together */
    int knots;                 /* in a slot, at least 1 */
    /* out, [slots][links]; sigma 0 and queue 0 for links that no route of the call crosses; sigma NULL: not needed */
    double *queue_ns, *sigma_ns;
    int64_t sweeps_done;
};

/* Solve. Returns 0 without memory. */
int ft_queues_solve(struct ft_queues *q, struct ft_queue_slots *s);

/* Give the memory back. */
void ft_queues_free(struct ft_queues *q);

#endif
