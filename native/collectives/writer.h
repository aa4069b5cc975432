/* The profilers' side of a segment: one ring a thread, written without lock, allocation or system call.
 *
 *     ft_trace_open(FT_SOURCE_MPI, "4.1.4/pmpi");        once a process; starts the thread that passes the segment on
 *     int at = ft_trace_communicator(&communicator);     once a communicator
 *     uint64_t number = ft_trace_operation();            numbers operations
 *     ft_trace_put(&event);                              from any thread
 *     ft_trace_communicator_end(at);                     when it is freed
 *     ft_trace_close();                                  after the last operation
 */
#ifndef FABRICTIME_WRITER_H
#define FABRICTIME_WRITER_H

#include <stdbool.h>

#include "segment.h"

/* Create the segment of this process, or use it again. Return false without FABRICTIME_COLLECTIVES or without
 * memory. A child after fork has no segment. Its events are ignored until it opens one, and the indexes of its
 * parent's communicators do not apply. Call ft_trace_close as often. Not for the hot path. */
bool ft_trace_open(enum ft_source source, const char *version_text);
void ft_trace_close(void);

/* Register a communicator or a device. Return its index, or -1 if there is no room, which counts as a dropped
 * event. Not for the hot path. */
int ft_trace_communicator(const struct ft_segment_communicator *communicator);
int ft_trace_device(const char *name);

/* End a communicator after its last event, as often as it was registered. Its index is given out again after the
 * reader has read all events before. */
void ft_trace_communicator_end(int index);

/* Now, in ns of CLOCK_MONOTONIC_RAW. */
uint64_t ft_trace_now_ns(void);

/* A number for a new operation, from 1. */
uint64_t ft_trace_operation(void);

/* Copy an event into the calling thread's ring, or count it as dropped. The thread's first call takes a ring. */
void ft_trace_put(const struct ft_event *event);

/* Count a call that had to be ignored, or an event that the profiler itself had to drop. */
void ft_trace_misuse(void);
void ft_trace_dropped(void);

#endif
