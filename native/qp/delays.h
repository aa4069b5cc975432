/* Delays of queue pairs from post to completion, and their reports. */
#ifndef FABRICTIME_QP_DELAYS_H
#define FABRICTIME_QP_DELAYS_H

#include "qp.h"
#include "writer.h"

#define FT_UNTRACKED UINT64_MAX

/* A new queue pair, or NULL: it is of a type without acknowledgements, or there is no room. `init` holds what
 * the device granted. */
struct ft_delays *ft_delays_add(const struct ft_qp *qp, const struct ft_qp_init_attr *init);
void ft_delays_retire(struct ft_delays *delays); /* its queue pair is destroyed: no completion is its own */
void ft_delays_free(struct ft_delays *delays);   /* after its last report */
void ft_delays_forget(void);                     /* in a child after fork */

/* Requests about to be posted. Return the number of the first, for ft_delays_refused. From any thread. */
uint64_t ft_delays_post(struct ft_delays *delays, const struct ft_send_wr *wr);
void ft_delays_refused(struct ft_delays *delays, uint64_t first, const struct ft_send_wr *wr,
                       const struct ft_send_wr *bad);

/* Completions that were polled, at least one. From any thread. */
void ft_delays_polled(const struct ft_context *context, const struct ft_wc *wc, int count);

/* Fill an event with what completed since the last report. Return false if there is nothing to report. */
bool ft_delays_report(struct ft_delays *delays, struct ft_event *event);

#endif
