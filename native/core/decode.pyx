"""Converts ProbeBatch between Avro bytes and numpy columns, in one pass over the bytes.

Invalid bytes are refused with `BadBatch`. Memory stays within the possible content of the bytes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

import numpy as np

from native.core.columns import ProbeColumns

__all__ = ["MAX_GROUPS", "MAX_NAME_CHARS", "MAX_SAMPLES", "BadBatch", "decode_probe_batch", "encode_probe_batch"]

cdef extern from "decode.h":
    enum:
        FT_MAX_SAMPLES
        FT_MAX_GROUPS
        FT_MAX_NAME_CHARS
        FT_MAX_PATH
        FT_MAX_SPACING_NS
        FT_MAX_COUNT
        FT_MAX_DSCP
    int64_t FT_MAX_NS
    cdef enum ft_bad:
        FT_OK
        FT_TRUNCATED
        FT_VARINT
        FT_BELOW
        FT_ABOVE
        FT_NAME_LONG
        FT_MANY_GROUPS
        FT_MANY_SAMPLES
        FT_BLOCK_SIZE
        FT_LENGTHS
        FT_ODD
        FT_TRAILING
        FT_NO_MEMORY
    cdef enum ft_field:
        FT_NIC
    struct ft_span:
        const uint8_t *text
        int64_t bytes
    struct ft_batch:
        ft_span nic
        int64_t run, batch, clock_ns, system_ns
        int64_t groups, group_capacity
        ft_span *peer
        int32_t *path
        int32_t *spacing_ns
        int32_t *lost
        int32_t *no_t3
        int32_t *dscp
        int32_t *ecn
        int64_t *start
        int64_t samples, sample_capacity
        int64_t *column[4]
        int64_t *marked[2]
        int64_t marks[2]
    struct ft_fault:
        ft_bad status
        ft_field field
        int64_t group, value, expected, at
    ft_bad ft_decode(const uint8_t *data, int64_t size, ft_batch *batch, ft_fault *fault) nogil
    void ft_batch_free(ft_batch *batch) nogil
    uint8_t *ft_put_long(uint8_t *out, int64_t value) nogil
    uint8_t *ft_put_array(uint8_t *out, const int64_t *values, int64_t n) nogil
    uint8_t *ft_put_stamps(uint8_t *out, const int64_t *values, int64_t n) nogil

MAX_SAMPLES = FT_MAX_SAMPLES
MAX_GROUPS = FT_MAX_GROUPS
MAX_NAME_CHARS = FT_MAX_NAME_CHARS

cdef object _empty = np.empty
cdef object _i4 = np.dtype(np.int32)
cdef object _i8 = np.dtype(np.int64)
cdef tuple _FIELDS = (
    "nic", "run", "batch", "clock_ns", "system_ns", "samples", "peer", "path", "spacing_ns",
    "sent", "forward", "turnaround", "reverse", "lost", "no_t3", "dscp", "ecn", "forward_ce", "reverse_ce", "end",
)


class BadBatch(ValueError):
    """A ProbeBatch that cannot be read. `reason`: a symbol of `Reject.reason`; the text: field, value, expected."""

    def __init__(self, reason, detail):
        super().__init__(detail)
        self.reason = reason


cdef _refuse(ft_fault *f, int64_t base):
    """Return the exception for a fault."""
    cdef str field = _FIELDS[<int>f.field]
    cdef str where = "ProbeBatch." + field if f.group < 0 else f"ProbeBatch.samples[{f.group}].{field}"
    at = f"at byte {base + f.at}"
    if f.status == FT_TRUNCATED:
        return BadBatch("TRUNCATED", f"{where}: message ends in mid-record {at}, expected more bytes")
    if f.status == FT_VARINT:
        return BadBatch("MALFORMED", f"{where}: varint beyond 64 bits {at}, expected at most 10 bytes")
    if f.status == FT_BELOW:
        return BadBatch("OUT_OF_RANGE", f"{where}: {f.value} {at}, expected at least {f.expected}")
    if f.status == FT_ABOVE:
        return BadBatch("OUT_OF_RANGE", f"{where}: {f.value} {at}, expected at most {f.expected}")
    if f.status == FT_NAME_LONG:
        return BadBatch("TOO_LARGE", f"{where}: {f.value} bytes {at}, expected at most {f.expected} characters")
    if f.status == FT_MANY_GROUPS:
        return BadBatch("TOO_LARGE", f"{where}: {f.value} elements {at}, expected at most {f.expected}")
    if f.status == FT_MANY_SAMPLES:
        return BadBatch("TOO_LARGE", f"{where}: {f.value} samples of the batch {at}, expected at most {f.expected}")
    if f.status == FT_BLOCK_SIZE:
        return BadBatch("MALFORMED", f"{where}: block ends {f.value} bytes off its stated size {at}, expected none")
    if f.status == FT_LENGTHS:
        return BadBatch("MALFORMED", f"{where}: {f.value} elements {at}, expected {f.expected} as in 'sent'")
    if f.status == FT_ODD:
        return BadBatch("MALFORMED", f"{where}: {f.value} samples {at}, expected an even number of a coded pair's")
    if f.status == FT_TRAILING:
        return BadBatch("MALFORMED", f"ProbeBatch: {f.value} bytes after the record's end {at}, expected none")
    return MemoryError(f"{where}: no memory for {f.value} elements")


cdef str _name(ft_span span, str field, int64_t group):
    try:
        name = PyUnicode_DecodeUTF8(<const char *>span.text, span.bytes, NULL)
    except UnicodeDecodeError as error:
        where = field if group < 0 else f"samples[{group}].{field}"
        raise BadBatch("MALFORMED", f"ProbeBatch.{where}: {error.reason} at byte {error.start} of the name, "
                                    "expected UTF-8") from None
    if len(name) > FT_MAX_NAME_CHARS:
        where = field if group < 0 else f"samples[{group}].{field}"
        raise BadBatch("TOO_LARGE", f"ProbeBatch.{where}: {len(name)} characters, "
                                    f"expected at most {FT_MAX_NAME_CHARS}")
    return name


cdef object _column(const void *source, int64_t n, int64_t element, object dtype):
    """Return a new array of n elements copied from `source`."""
    cdef Py_buffer view
    array = _empty(n, dtype)
    if n:
        PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
        memcpy(view.buf, source, n * element)
        PyBuffer_Release(&view)
    return array


def decode_probe_batch(data, Py_ssize_t start=0):
    """Return the `ProbeColumns` of the Avro body that begins at byte `start` of `data`.

    `data` is bytes or another contiguous buffer. Raises BadBatch for anything but an honest batch; IndexError
    where `start` is not within `data`.
    """
    cdef ft_batch b
    cdef ft_fault fault
    cdef Py_buffer view
    cdef int64_t g
    cdef list peers
    cdef str nic, peer
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len:
            raise IndexError(f"start {start}: expected 0 to {view.len}, the message's length")
        # The columns are scratch until they are copied out; the GIL is kept, since a batch takes microseconds.
        if ft_decode(<const uint8_t *>view.buf + start, view.len - start, &b, &fault) != FT_OK:
            ft_batch_free(&b)
            raise _refuse(&fault, start)
        try:
            nic = _name(b.nic, "nic", -1)
            peers = []
            peer = None
            for g in range(b.groups):
                # groups of one peer usually stand together: one string serves them all
                if (g == 0 or b.peer[g].bytes != b.peer[g - 1].bytes
                        or memcmp(b.peer[g].text, b.peer[g - 1].text, b.peer[g].bytes) != 0):
                    peer = _name(b.peer[g], "peer", g)
                peers.append(peer)
            return ProbeColumns(
                nic, b.run, b.batch, b.clock_ns, b.system_ns, peers,
                _column(b.path, b.groups, 4, _i4), _column(b.spacing_ns, b.groups, 4, _i4),
                _column(b.lost, b.groups, 4, _i4), _column(b.no_t3, b.groups, 4, _i4),
                _column(b.start, b.groups + 1, 8, _i8),
                _column(b.column[0], b.samples, 8, _i8), _column(b.column[1], b.samples, 8, _i8),
                _column(b.column[2], b.samples, 8, _i8), _column(b.column[3], b.samples, 8, _i8),
                _column(b.dscp, b.groups, 4, _i4), _column(b.ecn, b.groups, 4, _i4),
                _column(b.marked[0], b.marks[0], 8, _i8), _column(b.marked[1], b.marks[1], 8, _i8),
            )
        finally:
            ft_batch_free(&b)
    finally:
        PyBuffer_Release(&view)


cdef const char *_utf8(object text, str field, Py_ssize_t *size) except NULL:
    if not isinstance(text, str) or len(text) > FT_MAX_NAME_CHARS:
        raise ValueError(f"{field} {text!r:.80}: expected a string of at most {FT_MAX_NAME_CHARS} characters")
    return PyUnicode_AsUTF8AndSize(text, size)


cdef int _minimum(str field, int64_t value, int64_t min_value, int64_t max_value) except -1:
    if value < min_value or value > max_value:
        raise ValueError(f"{field} {value}: expected {min_value} to {max_value}")
    return 0


cdef object _as(object array, object dtype, str field):
    """Return `array` as contiguous `dtype` of one dimension."""
    made = np.ascontiguousarray(array)
    if made.ndim != 1 or (made.dtype != dtype and not (made.size == 0 or np.can_cast(made.dtype, dtype))):
        raise ValueError(f"{field}: {made.dtype} of shape {made.shape}, expected one dimension of {dtype}")
    return made.astype(dtype, copy=False)


cdef object _or_zeros(object array, int64_t n, str field):
    """Return `array` as n int32; n zeros for an empty one."""
    made = _as(array, _i4, field)
    if len(made) not in (0, n):
        raise ValueError(f"{field}: {len(made)} elements, expected {n} as in peers, or none")
    return made if len(made) else np.zeros(n, _i4)


cdef object _indices(object array, int64_t samples, str field):
    """Return `array` as ascending indices of samples."""
    made = _as(array, _i8, field)
    if len(made) and (made[0] < 0 or made[-1] >= samples or (np.diff(made) <= 0).any()):
        raise ValueError(f"{field}: expected ascending indices below {samples}")
    return made


cdef uint8_t *_put_marks(uint8_t *p, const int64_t[::1] marks, int64_t *at, int64_t begin, int64_t end) noexcept:
    """Write those of `marks` from number at[0] on that are below `end`, counted from `begin`."""
    cdef int64_t last = at[0], i
    while last < marks.shape[0] and marks[last] < end:
        last += 1
    if last > at[0]:
        p = ft_put_long(p, last - at[0])
    for i in range(at[0], last):
        p = ft_put_long(p, marks[i] - begin)
    at[0] = last
    return ft_put_long(p, 0)


def encode_probe_batch(columns):
    """Return the Avro body of `columns`, byte for byte as fastavro writes it. Raises ValueError if the
    columns do not fit each other or the schema."""
    cdef const int64_t[::1] start = _as(columns.start, _i8, "start")
    cdef const int64_t[::1] sent = _as(columns.sent, _i8, "sent")
    cdef const int64_t[::1] forward = _as(columns.forward, _i8, "forward")
    cdef const int64_t[::1] turnaround = _as(columns.turnaround, _i8, "turnaround")
    cdef const int64_t[::1] reverse = _as(columns.reverse, _i8, "reverse")
    cdef const int32_t[::1] path = _as(columns.path, _i4, "path")
    cdef const int32_t[::1] spacing_ns = _as(columns.spacing_ns, _i4, "spacing_ns")
    cdef const int32_t[::1] lost = _as(columns.lost, _i4, "lost")
    cdef const int32_t[::1] no_t3 = _as(columns.no_t3, _i4, "no_t3")
    cdef list peers = list(columns.peers)
    cdef int64_t groups = len(peers), samples = sent.shape[0], g, i, n, capacity
    cdef const int32_t[::1] dscp = _or_zeros(columns.dscp, groups, "dscp")
    cdef const int32_t[::1] ecn = _or_zeros(columns.ecn, groups, "ecn")
    cdef const int64_t[::1] forward_ce = _indices(columns.forward_ce, samples, "forward_ce")
    cdef const int64_t[::1] reverse_ce = _indices(columns.reverse_ce, samples, "reverse_ce")
    cdef int64_t forward_at = 0, reverse_at = 0
    cdef const int64_t *columns4[4]
    cdef const char *text
    cdef Py_ssize_t size
    cdef uint8_t *out
    cdef uint8_t *p
    if not (path.shape[0] == spacing_ns.shape[0] == lost.shape[0] == no_t3.shape[0] == groups):
        raise ValueError(f"path, spacing_ns, lost, no_t3: {path.shape[0]}, {spacing_ns.shape[0]}, {lost.shape[0]}, "
                         f"{no_t3.shape[0]} elements, expected {groups} as in peers")
    if not (forward.shape[0] == turnaround.shape[0] == reverse.shape[0] == samples):
        raise ValueError(f"forward, turnaround, reverse: {forward.shape[0]}, {turnaround.shape[0]}, "
                         f"{reverse.shape[0]} elements, expected {samples} as in sent")
    if start.shape[0] != groups + 1 or start[0] != 0 or start[groups] != samples:
        raise ValueError(f"start: {start.shape[0]} elements, expected {groups + 1} from 0 to {samples}")
    if samples > FT_MAX_SAMPLES or groups > FT_MAX_GROUPS:
        raise ValueError(f"{samples} samples, {groups} groups: expected at most {FT_MAX_SAMPLES}, {FT_MAX_GROUPS}")
    _minimum("batch", columns.batch, 0, 0x7fffffffffffffff)
    _minimum("clock_ns", columns.clock_ns, -FT_MAX_NS, FT_MAX_NS)
    _minimum("system_ns", columns.system_ns, -FT_MAX_NS, FT_MAX_NS)
    columns4[0] = &sent[0] if samples else NULL
    columns4[1] = &forward[0] if samples else NULL
    columns4[2] = &turnaround[0] if samples else NULL
    columns4[3] = &reverse[0] if samples else NULL
    # 10 bytes a long at most, 20 longs of overhead a group, and 8 bytes for the last write to run over
    _utf8(columns.nic, "nic", &size)
    capacity = 128 + size + 60 * samples + 260 * groups
    for peer in peers:
        _utf8(peer, "peer", &size)
        capacity += size
    out = <uint8_t *>malloc(capacity)
    if out == NULL:
        raise MemoryError(f"no memory for {capacity} bytes")
    try:
        text = _utf8(columns.nic, "nic", &size)
        p = ft_put_long(out, size)
        memcpy(p, text, size)
        p = ft_put_long(p + size, columns.run)
        p = ft_put_long(p, columns.batch)
        p = ft_put_long(p, columns.clock_ns)
        p = ft_put_long(p, columns.system_ns)
        if groups:
            p = ft_put_long(p, groups)
        for g in range(groups):
            n = start[g + 1] - start[g]
            if n < 0 or start[g] < 0 or start[g + 1] > samples:
                raise ValueError(f"start[{g + 1}] {start[g + 1]}: expected {start[g]} to {samples}")
            if spacing_ns[g] > 0 and n % 2:
                raise ValueError(f"group {g}: {n} samples, expected an even number of a coded pair's")
            _minimum("path", path[g], 0, FT_MAX_PATH)
            _minimum("spacing_ns", spacing_ns[g], 0, FT_MAX_SPACING_NS)
            _minimum("lost", lost[g], 0, FT_MAX_COUNT)
            _minimum("no_t3", no_t3[g], 0, FT_MAX_COUNT)
            text = _utf8(peers[g], "peer", &size)
            p = ft_put_long(p, size)
            memcpy(p, text, size)
            p = ft_put_long(p + size, path[g])
            p = ft_put_long(p, spacing_ns[g])
            i = start[g]
            p = ft_put_stamps(p, columns4[0] + i, n)
            if p == NULL:
                raise ValueError(f"group {g}: sent differs by more than 2^62 ns between neighbours")
            p = ft_put_array(p, columns4[1] + i, n)
            p = ft_put_array(p, columns4[2] + i, n)
            p = ft_put_array(p, columns4[3] + i, n)
            p = ft_put_long(p, lost[g])
            p = ft_put_long(p, no_t3[g])
            _minimum("dscp", dscp[g], 0, FT_MAX_DSCP)
            _minimum("ecn", ecn[g], 0, FT_MAX_COUNT)
            p = ft_put_long(p, dscp[g])
            p = ft_put_long(p, ecn[g])
            p = _put_marks(p, forward_ce, &forward_at, i, i + n)
            p = _put_marks(p, reverse_ce, &reverse_at, i, i + n)
        p = ft_put_long(p, 0)
        return PyBytes_FromStringAndSize(<const char *>out, p - out)
    finally:
        free(out)
