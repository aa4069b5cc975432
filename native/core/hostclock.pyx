"""Reads clocks of this host against CLOCK_MONOTONIC_RAW, and writes the host's clock page.

In: clock ids, a page's descriptor, its content as bytes. Out: crossings; a page that readers find whole.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strerror

import mmap

cdef extern from "clockpage.h":
    int64_t ft_page_raw_ns() nogil
    int ft_page_cross(int clock, int tries, int64_t *before, int64_t *clock_ns, int64_t *after) nogil
    uint64_t ft_page_read(const uint64_t *sequence, const uint64_t *copies, size_t count, uint64_t *to,
                          int *whole) nogil
    int ft_page_write(uint64_t *sequence, uint64_t *copies, size_t count, const uint64_t *source,
                      int64_t from_raw_ns, int64_t latest_raw_ns) nogil

__all__ = ["PageWriter", "cross", "raw_ns"]


def raw_ns():
    """Return the reading of CLOCK_MONOTONIC_RAW."""
    return ft_page_raw_ns()


def cross(int clock, int tries=16):
    """Return (raw_before_ns, clock_ns, raw_after_ns): `clock` read between two readings of
    CLOCK_MONOTONIC_RAW, the shortest of `tries`. Raises OSError for a clock that cannot be read."""
    cdef int64_t before = 0, read = 0, after = 0
    cdef int error
    if not 1 <= tries <= 1000:
        raise ValueError(f"tries {tries}: expected 1 to 1000")
    with nogil:
        error = ft_page_cross(clock, tries, &before, &read, &after)
    if error:
        raise OSError(error, f"clock {clock}: {strerror(error).decode()}")
    return before, read, after


cdef class PageWriter:
    """Writes two copies behind a sequence number, in a file mapped shared.

    `sequence_at` and `copies_at`: offsets in bytes, multiples of 8; `copy_bytes`: size of one copy.
    """

    cdef object _map
    cdef unsigned char[::1] _view
    cdef size_t _sequence_at, _copies_at, _copy_bytes

    def __init__(self, int fd, size_t size, size_t sequence_at, size_t copies_at, size_t copy_bytes):
        if sequence_at % 8 or copies_at % 8 or copy_bytes % 8:
            raise ValueError(f"offsets {sequence_at}, {copies_at}, {copy_bytes}: expected multiples of 8")
        if not sequence_at + 8 <= copies_at <= copies_at + 2 * copy_bytes <= size:
            raise ValueError(f"two copies of {copy_bytes} bytes at {copies_at}: expected within {size} bytes")
        self._sequence_at, self._copies_at, self._copy_bytes = sequence_at, copies_at, copy_bytes
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._view = self._map

    cdef uint64_t *_state_words(self, size_t at) except NULL:
        if self._view is None:
            raise ValueError("page: closed")
        return <uint64_t *> &self._view[at]

    @property
    def sequence(self):
        """Twice the number of the last update."""
        return self._state_words(self._sequence_at)[0]

    def read(self):
        """Return the content that readers get at present, as bytes."""
        cdef uint64_t *sequence = self._state_words(self._sequence_at)
        cdef uint64_t *copies = self._state_words(self._copies_at)
        cdef bytes content = bytes(self._copy_bytes)
        cdef uint64_t *to = <uint64_t *> malloc(self._copy_bytes)
        cdef int whole = 0
        if to == NULL:
            raise MemoryError
        try:
            ft_page_read(sequence, copies, self._copy_bytes // 8, to, &whole)
            if not whole:
                raise BlockingIOError("page: another writer is at work")
            memcpy(<char *> content, to, self._copy_bytes)
        finally:
            free(to)
        return content

    def write(self, bytes content not None, int64_t from_raw_ns=0, int64_t latest_raw_ns=2**63 - 1):
        """Replace the content from `from_raw_ns` on (waiting for it); return False, and leave everything as
        it was, where it is later than `latest_raw_ns` by then."""
        cdef uint64_t *sequence = self._state_words(self._sequence_at)
        cdef uint64_t *copies = self._state_words(self._copies_at)
        cdef uint64_t *source
        cdef int stands
        if <size_t> len(content) != self._copy_bytes:
            raise ValueError(f"content of {len(content)} bytes: expected {self._copy_bytes}")
        if from_raw_ns - ft_page_raw_ns() > 10_000_000:
            raise ValueError(f"from_raw_ns {from_raw_ns}: expected at most 10 ms ahead")
        source = <uint64_t *> malloc(self._copy_bytes)
        if source == NULL:
            raise MemoryError
        memcpy(source, <const char *> content, self._copy_bytes)
        with nogil:
            stands = ft_page_write(sequence, copies, self._copy_bytes // 8, source, from_raw_ns, latest_raw_ns)
        free(source)
        return bool(stands)

    def close(self):
        """Unmap and close the file."""
        self._view = None
        self._map.close()
