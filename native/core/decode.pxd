"""`ProbeBatches` for the modules that read its columns in C."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "decode.h":
    struct ft_span:
        const uint8_t *text
        int64_t bytes
    struct ft_message:
        ft_span nic
        int64_t run, number, clock_ns, system_ns
        int64_t first_group, groups, first_sample, samples
        int64_t first_mark[2]
        int64_t marks[2]
        int64_t lost
        int is_refused
    struct ft_batches:
        ft_message *message
        int64_t messages
        int64_t groups
        ft_span *peer
        int32_t *path
        int32_t *spacing_ns
        int32_t *lost
        int32_t *no_t3
        int32_t *dscp
        int32_t *ecn
        int64_t *start
        int64_t samples
        int64_t *column[4]
        int64_t *marked[2]
        int64_t marks[2]
        int64_t mark_capacity[2]


cdef class ProbeBatches:
    cdef ft_batches b
    cdef list nics   # a name or None for each message
    cdef list peers  # a name for each group
    cdef readonly list errors

    cdef ft_message *message(self, int64_t index) except NULL
