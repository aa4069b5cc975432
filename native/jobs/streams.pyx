"""Byte streams between the ranks of a job, in one epoll loop that never blocks and releases the GIL.

See streams.h for the rules.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.errno cimport errno

import os

__all__ = ["BROKEN", "DONE", "OUTSIDE", "TIMEOUT", "Streams"]

cdef extern from "streams.h":
    ctypedef struct ft_stream:
        int tx
        int rx
        uint64_t sent
        uint64_t got
        uint64_t goal

    ctypedef struct ft_part:
        int stream
        uint64_t bytes

    ctypedef struct ft_iteration:
        int64_t begin_ns
        int64_t end_ns
        int slowest
        int64_t slowest_ns

    ctypedef struct ft_job:
        pass

    enum:
        FT_TIMEOUT
        FT_OUTSIDE
        FT_BROKEN
        FT_DONE

    ft_job *ft_job_new(int, int, int, const int *, const int *, const int *, const ft_part *, int64_t, int64_t,
                       int64_t, int64_t, int)
    void ft_job_free(ft_job *)
    int ft_job_watch(ft_job *, int)
    int ft_job_attach_tx(ft_job *, int, int, uint64_t)
    int ft_job_attach_rx(ft_job *, int, int)
    int ft_job_detach_tx(ft_job *, int)
    int ft_job_detach_rx(ft_job *, int)
    int ft_job_take_broken(ft_job *, int *)
    int ft_job_run(ft_job *, int64_t) nogil
    ft_stream *ft_job_stream(ft_job *, int)
    int64_t ft_job_iterations(ft_job *, const ft_iteration **)
    void ft_job_taken(ft_job *)
    int64_t ft_job_slots(ft_job *, int, const uint32_t **)
    int64_t ft_job_begin_ns(ft_job *)
    int64_t ft_job_spoilt(ft_job *)

TIMEOUT, OUTSIDE, BROKEN, DONE = FT_TIMEOUT, FT_OUTSIDE, FT_BROKEN, FT_DONE


cdef class Streams:
    """The streams of one job.

    `ends[s]` is (sending rank, receiving rank); `parts[r][p]` lists the (stream, bytes) that rank r sends in
    phase p.
    """

    cdef ft_job *job
    cdef readonly int count

    def __cinit__(
        self, int ranks, ends, parts, *, int64_t iterations=0, int64_t gap_ns=0, int64_t slot_ns=0,
        int64_t slots_max=0, bint check=False,
    ):
        cdef int phases = len(parts[0]) if len(parts) else 0
        cdef int total = sum(len(cell) for rank in parts for cell in rank)
        if ranks < 1 or phases < 1 or len(parts) != ranks or any(len(rank) != phases for rank in parts):
            raise ValueError("parts: expected the same number of phases for every rank, at least one")
        self.count = len(ends)
        cdef int *senders = <int *>malloc((self.count + 1) * sizeof(int))
        cdef int *receivers = <int *>malloc((self.count + 1) * sizeof(int))
        cdef int *begin = <int *>malloc((ranks * phases + 1) * sizeof(int))
        cdef ft_part *flat = <ft_part *>malloc((total + 1) * sizeof(ft_part))
        try:
            if not senders or not receivers or not begin or not flat:
                raise MemoryError
            for at, (sender, receiver) in enumerate(ends):
                if not (0 <= sender < ranks and 0 <= receiver < ranks):
                    raise ValueError(f"stream {at}: ranks {sender} and {receiver}, expected below {ranks}")
                senders[at], receivers[at] = sender, receiver
            at = cell = 0
            for rank, of_rank in enumerate(parts):
                for of_phase in of_rank:
                    begin[cell] = at
                    cell += 1
                    for stream, size in of_phase:
                        if not 0 <= stream < self.count or senders[stream] != rank or size < 1:
                            raise ValueError(f"part of rank {rank}: stream {stream}, {size} bytes")
                        flat[at].stream, flat[at].bytes = stream, size
                        at += 1
            begin[cell] = at
            self.job = ft_job_new(
                ranks, phases, self.count, senders, receivers, begin, flat, iterations, gap_ns, slot_ns,
                slots_max, check,
            )
            if not self.job:
                raise OSError(errno, os.strerror(errno))
        finally:
            free(senders)
            free(receivers)
            free(begin)
            free(flat)

    def __dealloc__(self):
        ft_job_free(self.job)

    cdef ft_stream *_at(self, int stream) except NULL:
        if not 0 <= stream < self.count:
            raise IndexError(f"stream {stream}: expected below {self.count}")
        return ft_job_stream(self.job, stream)

    def watch(self, int fd):
        """Have `run` return OUTSIDE whenever `fd` is readable."""
        _check(ft_job_watch(self.job, fd))

    def attach_tx(self, int stream, int fd, uint64_t start):
        """Send the stream on `fd`, from byte number `start` on. The caller keeps ownership of `fd`."""
        self._at(stream)
        _check(ft_job_attach_tx(self.job, stream, fd, start))

    def attach_rx(self, int stream, int fd):
        """Receive the stream from `fd`; its first byte has the number `got`."""
        self._at(stream)
        _check(ft_job_attach_rx(self.job, stream, fd))

    def detach_tx(self, int stream):
        """Stop sending on the stream's socket."""
        self._at(stream)
        ft_job_detach_tx(self.job, stream)

    def detach_rx(self, int stream):
        """Count the bytes that have arrived, then stop receiving. Return `got`."""
        self._at(stream)
        ft_job_detach_rx(self.job, stream)
        return self._at(stream).got

    def broken(self):
        """Return the (stream, errno) of connections that broke since the last call; detach them."""
        cdef int code = 0
        found = []
        while (stream := ft_job_take_broken(self.job, &code)) >= 0:
            found.append((stream, code))
        return found

    def run(self, int64_t until_ns):
        """Run until the monotonic clock reads `until_ns` or an event occurs. Return TIMEOUT, OUTSIDE,
        BROKEN or DONE.

        The first call begins the first iteration.
        """
        cdef int why
        with nogil:
            why = ft_job_run(self.job, until_ns)
        return _check(why)

    def got(self, int stream):
        """Return how many bytes of the stream have arrived."""
        return self._at(stream).got

    def sent(self, int stream):
        """Return the number of the next byte to write to the socket."""
        return self._at(stream).sent

    def connected(self, int stream):
        """Return True if the stream's sender has a socket."""
        return self._at(stream).tx >= 0

    def iterations(self):
        """Return and remove the finished iterations: (begin_ns, end_ns, slowest stream, its ns)."""
        cdef const ft_iteration *first
        cdef int64_t count = ft_job_iterations(self.job, &first)
        found = [(first[i].begin_ns, first[i].end_ns, first[i].slowest, first[i].slowest_ns)
                 for i in range(count)]
        ft_job_taken(self.job)
        return found

    def slots(self, int stream):
        """Return the bytes that arrived in each slot since `begin_ns`, as native 32-bit words; shorter if
        no more arrived.
        """
        cdef const uint32_t *first
        self._at(stream)
        cdef int64_t count = ft_job_slots(self.job, stream, &first)
        return (<const char *>first)[:count * sizeof(uint32_t)] if count else b""

    @property
    def begin_ns(self):
        """Begin of the first iteration, ns of CLOCK_MONOTONIC."""
        return ft_job_begin_ns(self.job)

    @property
    def spoilt(self):
        """Bytes that differ from the pattern; counted only with `check`."""
        return ft_job_spoilt(self.job)


cdef int _check(int code) except -1:
    if code < 0:
        raise OSError(-code, os.strerror(-code))
    return code
