/* Events on their way to the ring.
 *
 * Calls that misuse one handle at the same time mix the fields of two operations, or one field is read before a
 * change and another after it: more steps are measured than started, an end has no time. The reader would refuse
 * such an event, and an operation whose end is refused would run for ever. */
#include "plugin.h"

/* Bound the fields that the reader would refuse. An operation that lasted too long begins later. */
static void __attribute__((noinline, cold)) mend(struct ft_event *event) {
    uint64_t now = ft_trace_now_ns();

    if (!event->begin_raw_ns || event->begin_raw_ns > now) event->begin_raw_ns = now;
    if (event->kind == FT_EVENT_BEGIN)
        event->end_raw_ns = 0;
    else if (event->end_raw_ns < event->begin_raw_ns || event->end_raw_ns > now)
        event->end_raw_ns = now;
    if (event->end_raw_ns && event->end_raw_ns - event->begin_raw_ns > FT_NS_MAX)
        event->begin_raw_ns = event->end_raw_ns - FT_NS_MAX;
    if (event->function > FT_WAIT) event->function = FT_UNKNOWN_FUNCTION;
    if (event->algorithm > FT_COPY_ENGINE) event->algorithm = FT_NO_ALGORITHM;
    if (event->protocol > FT_SIMPLE) event->protocol = FT_NO_PROTOCOL;
    if (event->communicator >= FT_COMMUNICATORS) event->communicator = UINT16_MAX;
    event->peer = ft_rank(event->peer);
    event->gpu_late_ns = ft_bounded(event->gpu_late_ns);
    event->peer_late_ns = ft_bounded(event->peer_late_ns);
    event->network_late_ns = ft_bounded(event->network_late_ns);
    event->flush_ns = ft_bounded(event->flush_ns);
    event->bytes = ft_bounded(event->bytes);
    if (event->tag > INT64_MAX) event->tag = 0;
    if (event->sequence > FT_SEQUENCE_MAX) event->sequence = 0;
    if (event->operation > FT_SEQUENCE_MAX) event->operation = 0;
    if (event->kind == FT_EVENT_TRANSFER && event->sampled > event->steps) event->sampled = event->steps;
    if (event->kind != FT_EVENT_QUEUE_PAIR) return;
    event->queue_pair &= FT_RANK_MAX;
    if (event->min_ns > event->max_ns) event->min_ns = event->max_ns;
    if (event->posted > FT_POSTED_MAX) event->posted = FT_POSTED_MAX;
}

/* Write an event that the reader takes. One that had to be changed counts as misuse as well. */
void ft_event_put(struct ft_event *event) {
    if (__builtin_expect(!ft_event_plausible(event, UINT64_MAX), 0)) {
        ft_trace_misuse();
        if (event->kind == FT_EVENT_QUEUE_PAIR && event->device >= FT_DEVICES)
            return; /* of which, is not known */
        mend(event);
    }
    ft_trace_put(event);
}
