"""Reads the segment of a profiled process for the reporter, without trust in its content.

`Reader` copies and checks events. The events that it returns are plausible, but may be untrue. reader.h has the
rules.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

import os

import numpy as np

__all__ = [
    "ALGORITHMS", "BEGIN", "COMMUNICATORS", "END", "EVENT", "FUNCTIONS", "NO_COMMUNICATOR", "PROTOCOLS", "QUEUE_PAIR", "SENDS",
    "SOURCES", "SPLIT", "TRANSFER", "Communicator", "Counters", "Reader", "SegmentError",
]

from native.collectives import Communicator, Counters, SegmentError
from native.collectives.labels import printable

cdef extern from "reader.h":
    enum:
        FT_READER_TEXT
        FT_COMMUNICATORS
        FT_ROW_ENDED
        FT_DEVICES
        FT_EVENT_BEGIN
        FT_EVENT_END
        FT_EVENT_TRANSFER
        FT_EVENT_QUEUE_PAIR
        FT_FLAG_SENDS
        FT_FLAG_SPLIT
    struct ft_event:
        uint64_t begin_raw_ns
    struct ft_segment:
        uint32_t source, rings, ring_events, pid
        uint64_t created_raw_ns
        char job[128]
        char tenant[128]
        char version_text[64]
    struct ft_segment_communicator:
        uint32_t ready, rank, ranks, nodes, generation
        uint64_t id
        char name[128]
        char gpu[32]
    struct ft_segment_device:
        char name[60]
    struct ft_reader:
        int fd
        ft_segment head
    struct ft_reader_counters:
        uint64_t dropped, misuse, ringless, invalid
        uint32_t rings
        bint closed
    bint ft_reader_open(ft_reader *, int, char *)
    void ft_reader_close(ft_reader *)
    uint64_t ft_reader_waiting(ft_reader *)
    uint64_t ft_reader_drain(ft_reader *, ft_event *, uint64_t) nogil
    void ft_reader_commit(ft_reader *)
    void ft_reader_rewind(ft_reader *)
    void ft_reader_count(ft_reader *, ft_reader_counters *)
    uint64_t ft_reader_batch(const ft_reader *)
    void ft_reader_set_batch(ft_reader *, uint64_t)
    uint32_t ft_reader_communicators(const ft_reader *, uint64_t *)
    bint ft_reader_communicator(const ft_reader *, uint32_t, ft_segment_communicator *)
    bint ft_reader_device(const ft_reader *, uint32_t, ft_segment_device *)

BEGIN, END, TRANSFER, QUEUE_PAIR = FT_EVENT_BEGIN, FT_EVENT_END, FT_EVENT_TRANSFER, FT_EVENT_QUEUE_PAIR
SENDS, SPLIT = FT_FLAG_SENDS, FT_FLAG_SPLIT
NO_COMMUNICATOR = 0xFFFF
COMMUNICATORS = FT_COMMUNICATORS
SOURCES = ("UNKNOWN", "NCCL", "RCCL", "MPI", "VERBS")
FUNCTIONS = (
    "UNKNOWN", "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "BROADCAST", "REDUCE", "ALL_TO_ALL", "GATHER",
    "SCATTER", "SCAN", "BARRIER", "SEND", "RECEIVE", "SEND_RECEIVE", "WAIT", "GATHERV",
    "SCATTERV",
)
ALGORITHMS = ("", "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT", "COPY_ENGINE")
PROTOCOLS = ("", "LL", "LL128", "SIMPLE")

# struct ft_event in segment.h; where it has a union, both names.
_FIELDS = (
    ("begin_raw_ns", "i8", 0), ("end_raw_ns", "i8", 8), ("operation", "i8", 16), ("sequence", "i8", 24), ("created", "i8", 24),
    ("bytes", "i8", 32), ("tag", "i8", 40), ("kind", "u1", 48), ("function", "u1", 49), ("algorithm", "u1", 50),
    ("protocol", "u1", 51), ("communicator", "u2", 52), ("channel", "u2", 54), ("peer", "i4", 56),
    ("flags", "u2", 60), ("device", "u2", 62), ("steps", "u4", 64), ("queue_pair", "u4", 64),
    ("sampled", "u4", 68), ("completed", "u4", 68), ("launch_ns", "u4", 72), ("min_ns", "u4", 72),
    ("kernel_ns", "u4", 76), ("max_ns", "u4", 76), ("gpu_late_ns", "i8", 80), ("sum_ns", "i8", 80),
    ("peer_late_ns", "i8", 88), ("p99_ns", "i8", 88), ("network_late_ns", "i8", 96), ("posted", "i8", 96),
    ("flush_ns", "i8", 104),
)
EVENT = np.dtype({
    "names": [name for name, _, _ in _FIELDS], "formats": [kind for _, kind, _ in _FIELDS],
    "offsets": [offset for _, _, offset in _FIELDS], "itemsize": sizeof(ft_event),
})


cdef str _text(const char *text):
    return printable(<bytes>text)


cdef class Reader:
    """A reader of the segment behind a file descriptor, which remains the caller's.

    Raises SegmentError if the descriptor is not of a segment.
    """

    cdef ft_reader reader
    cdef bint opened

    def __cinit__(self, int fd):
        cdef char why[FT_READER_TEXT]
        cdef int own = os.dup(fd)
        self.opened = ft_reader_open(&self.reader, own, why)
        if not self.opened:
            os.close(own)
            raise SegmentError(_text(why))

    def __dealloc__(self):
        self.close()

    def close(self):
        """Unmap the segment. Events that were not committed are read again by the next reader."""
        if self.opened:
            self.opened = False
            ft_reader_close(&self.reader)

    cdef ft_reader *_open(self) except NULL:
        if not self.opened:
            raise ValueError("reader: closed, expected open")
        return &self.reader

    def drain(self, uint64_t max_events=65536):
        """Copy up to `max_events` pending events. Return the valid events, of dtype EVENT.

        Events of one thread are in order; those of several threads are not.
        """
        cdef ft_reader *reader = self._open()
        cdef uint64_t wanted = min(ft_reader_waiting(reader), max_events)
        cdef uint64_t valid
        events_read = np.empty(wanted, EVENT)
        cdef ft_event *events = <ft_event *><size_t>events_read.ctypes.data
        with nogil:
            valid = ft_reader_drain(reader, events, wanted)
        return events_read[:valid]

    def commit(self):
        """Free the space of all drained events; call it after their publication."""
        ft_reader_commit(self._open())

    def rewind(self):
        """Make the next `drain` repeat the events since the last commit."""
        ft_reader_rewind(self._open())

    @property
    def waiting(self):
        """Upper bound of the number of pending events."""
        return ft_reader_waiting(self._open())

    @property
    def batch(self):
        """Number of the process's next record, which the segment keeps for the next reader."""
        return ft_reader_batch(self._open())

    @batch.setter
    def batch(self, uint64_t number):
        ft_reader_set_batch(self._open(), number)

    def counters(self):
        """Return totals since the segment was made; `invalid` counts invalid events of this reader only."""
        cdef ft_reader_counters c
        ft_reader_count(self._open(), &c)
        return Counters(c.dropped, c.misuse, c.ringless, c.invalid, c.rings, c.closed)

    def communicators(self):
        """Return the registered communicators, by their index in events."""
        cdef ft_segment_communicator c
        cdef ft_reader *reader = self._open()
        cdef uint64_t changed
        cdef uint32_t used = ft_reader_communicators(reader, &changed)
        return {
            n: Communicator(
                c.id, _text(c.name), c.rank, c.ranks, c.nodes, _text(c.gpu), c.generation, c.ready == FT_ROW_ENDED
            )
            for n in range(used) if ft_reader_communicator(reader, n, &c)
        }

    @property
    def communicators_changed(self):
        """A number that differs after each change of `communicators`."""
        cdef uint64_t changed
        ft_reader_communicators(self._open(), &changed)
        return changed

    def devices(self):
        """Return the names of the registered RDMA devices, by their index in events."""
        cdef ft_segment_device device
        cdef ft_reader *reader = self._open()
        return {n: _text(device.name) for n in range(FT_DEVICES) if ft_reader_device(reader, n, &device)}

    @property
    def source(self):
        """Library that wrote the segment, one of SOURCES."""
        return SOURCES[self._open().head.source]

    @property
    def pid(self):
        """Process id in the process's own namespace, as the process states it."""
        return self._open().head.pid

    @property
    def created_raw_ns(self):
        """CLOCK_MONOTONIC_RAW, ns, when the segment was made, as the process states it."""
        return self._open().head.created_raw_ns

    @property
    def job(self):
        """Label of the job, or an empty text."""
        return _text(self._open().head.job)

    @property
    def tenant(self):
        """Label of the tenant, or an empty text."""
        return _text(self._open().head.tenant)

    @property
    def version(self):
        """Versions of library and plugin interface, such as 2.30.7/v6."""
        return _text(self._open().head.version_text)

    @property
    def capacity(self):
        """Number of rings, and number of events per ring."""
        return self._open().head.rings, self._open().head.ring_events
