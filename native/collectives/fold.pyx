"""Sums the events of one process by kind, and selects operations; see fold.h."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

import numpy as np

from native.collectives.reader import EVENT

__all__ = ["KIND", "Fold", "mix"]

cdef extern from "fold.h":
    ctypedef struct ft_fold_input "struct ft_fold_input":
        const uint64_t *communicators
        uint32_t communicator_count
        uint32_t device_count
        uint64_t now_raw_ns

    ctypedef struct ft_fold_counts_t "struct ft_fold_counts":
        uint64_t begun
        uint64_t ended
        uint64_t invalid
        uint32_t shift
        uint32_t open
        uint32_t slow

    ctypedef struct ft_fold "struct ft_fold":
        pass

    ft_fold *ft_fold_new(double)
    void ft_fold_free(ft_fold *)
    void ft_fold_sample(ft_fold *, uint32_t)
    void ft_fold_add(ft_fold *, const void *, uint64_t, const void *) nogil
    uint32_t ft_fold_take_kinds(ft_fold *, void *, uint32_t)
    uint32_t ft_fold_kinds(const ft_fold *)
    uint32_t ft_fold_kept(const ft_fold *)
    uint32_t ft_fold_take_kept(ft_fold *, void *, uint8_t *)
    uint32_t ft_fold_take_rows(ft_fold *, void *)
    uint32_t ft_fold_rows(const ft_fold *)
    uint32_t ft_fold_running(ft_fold *, uint64_t, void *, uint32_t)
    void ft_fold_forget(ft_fold *, uint64_t)
    ft_fold_counts_t ft_fold_counts(const ft_fold *)
    uint64_t ft_fold_mix(uint64_t, uint64_t)

KIND = np.dtype([
    ("communicator", "u2"), ("function", "u1"), ("algorithm", "u1"), ("protocol", "u1"), ("size_class", "u1"),
    ("measured", "u1"), ("pad", "u1"), ("first_seq", "u8"), ("last_seq", "u8"), ("count", "u8"), ("bytes", "u8"),
    ("busy_ns", "u8"), ("min_ns", "u8"), ("p50_ns", "u8"), ("max_ns", "u8"), ("launch_ns", "u8"),
    ("kernel_ns", "u8"), ("gpu_late_ns", "u8"), ("peer_late_ns", "u8"), ("network_late_ns", "u8"),
    ("flush_ns", "u8"),
], align=True)

cdef int _event_bytes = EVENT.itemsize


def mix(uint64_t communicator, uint64_t sequence):
    """Return 64 mixed bits of a communicator and a number, equal at all ranks."""
    return ft_fold_mix(communicator, sequence)


cdef void *_start(array) except? NULL:
    cdef uint8_t[::1] view = array.view(np.uint8)
    return &view[0] if view.shape[0] else NULL


cdef class Fold:
    """The sums, chosen operations and running operations of one process. `slow_factor`: an operation is slow
    above so many times the usual median of its kind."""

    cdef ft_fold *_fold

    def __cinit__(self, double slow_factor):
        if not slow_factor >= 1:
            raise ValueError(f"slow_factor {slow_factor}: expected at least 1")
        self._fold = ft_fold_new(slow_factor)
        if self._fold == NULL:
            raise MemoryError("fold of a process")

    def __dealloc__(self):
        ft_fold_free(self._fold)

    def add(self, events, communicators, int device_count, uint64_t now_raw_ns):
        """Add events, an array of EVENT; `communicators` has the ids (uint64) of the known communicators."""
        cdef ft_fold_input given
        cdef const uint64_t[::1] ids = communicators
        cdef void *start
        cdef uint64_t count = len(events)

        if events.dtype.itemsize != _event_bytes:
            raise ValueError(f"events of {events.dtype.itemsize} bytes: expected {_event_bytes}")
        if not count:
            return
        given.communicators = &ids[0] if ids.shape[0] else NULL
        given.communicator_count = <uint32_t>ids.shape[0]
        given.device_count = device_count
        given.now_raw_ns = now_raw_ns
        start = _start(events)
        with nogil:
            ft_fold_add(self._fold, start, count, &given)

    def sample(self, uint32_t shift):
        """Keep one of 2^shift operations from now on."""
        ft_fold_sample(self._fold, shift)

    @property
    def counts(self):
        """Counts since the beginning: begun, ended, invalid; now: shift, open; since the last take: slow."""
        return ft_fold_counts(self._fold)

    @property
    def kinds(self):
        """Number of kinds of operation with events since the last `take_kinds`."""
        return ft_fold_kinds(self._fold)

    def take_kinds(self):
        """Return the sums of each kind since the last call, an array of KIND."""
        cdef uint32_t count = ft_fold_kinds(self._fold)
        found = np.zeros(count, KIND)
        if count:
            ft_fold_take_kinds(self._fold, _start(found), count)
        return found

    def take_kept(self):
        """Return the operations kept since the last call, an array of EVENT, and the reasons: 0 all, 1
        sampled, 2 slow."""
        cdef uint32_t count = ft_fold_kept(self._fold)
        found, reasons = np.zeros(count, EVENT), np.zeros(count, np.uint8)
        if count:
            ft_fold_take_kept(self._fold, _start(found), <uint8_t *>_start(reasons))
        return found, reasons

    def take_rows(self):
        """Return the transfers and queue pairs since the last call, an array of EVENT; those of open
        operations are returned again."""
        cdef uint32_t count = ft_fold_rows(self._fold)
        found = np.zeros(count, EVENT)
        if count:
            ft_fold_take_rows(self._fold, _start(found))
        return found

    def running(self, uint64_t before_raw_ns, uint32_t limit):
        """Return the oldest open operations that began at `before_raw_ns` or earlier, an array of EVENT."""
        found = np.zeros(limit, EVENT)
        if not limit:
            return found
        return found[: ft_fold_running(self._fold, before_raw_ns, _start(found), limit)]

    def forget(self, uint64_t before_raw_ns):
        """Forget open operations that began before `before_raw_ns`, because events were lost."""
        ft_fold_forget(self._fold, before_raw_ns)
