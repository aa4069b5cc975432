"""Converts ProbeBatch between Avro bytes and columns, in one pass over the bytes.

`decode_probe_batches` decodes many messages in one call; a message with invalid bytes is refused alone, with its
`BadBatch`. Memory stays within the possible content of the bytes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import numpy as np

from native.core.columns import ProbeColumns

__all__ = [
    "MAX_GROUPS", "MAX_NAME_CHARS", "MAX_SAMPLES", "BadBatch", "NameCache", "ProbeBatches", "batches_of",
    "decode_probe_batch", "decode_probe_batches", "encode_probe_batch",
]

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
    struct ft_fault:
        ft_bad status
        ft_field field
        int64_t group, value, expected, at
    int ft_reserve(ft_batches *b, int64_t messages, int64_t bytes) nogil
    ft_message *ft_begin(ft_batches *b) nogil
    int ft_grow(ft_batches *b, int64_t groups, int64_t samples) nogil
    ft_bad ft_decode(const uint8_t *data, int64_t size, ft_batches *b, ft_fault *fault) nogil
    void ft_refuse(ft_batches *b) nogil
    void ft_trim(ft_batches *b) nogil
    void ft_batches_free(ft_batches *b) nogil
    uint64_t ft_hash_name(ft_span name) nogil
    uint8_t *ft_put_long(uint8_t *out, int64_t value) nogil
    uint8_t *ft_put_array(uint8_t *out, const int64_t *values, int64_t n) nogil
    uint8_t *ft_put_stamps(uint8_t *out, const int64_t *values, int64_t n) nogil

MAX_SAMPLES = FT_MAX_SAMPLES
MAX_GROUPS = FT_MAX_GROUPS
MAX_NAME_CHARS = FT_MAX_NAME_CHARS

cdef object _ndarray = np.ndarray
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
    """Return the BadBatch exception for a decoding fault."""
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


cdef str _where(str field, int64_t group):
    return f"ProbeBatch.{field}" if group < 0 else f"ProbeBatch.samples[{group}].{field}"


cdef enum:
    SLOTS = 4096  # names that a cache holds at most


cdef class NameCache:
    """Caches names by their bytes, since messages repeat a few names.

    `first_wrong` returns the first name of a list that has not the format `expected`, or None. It is asked once
    for each name in the cache. Without it, every UTF-8 string is a name.
    """

    cdef object _first_wrong
    cdef str _expected
    cdef list _names
    cdef uint64_t _hash[SLOTS]

    def __init__(self, first_wrong=None, str expected not None=""):
        self._first_wrong, self._expected = first_wrong, expected
        self._names = [None] * SLOTS

    cdef str get(self, ft_span span, str field, int64_t group):
        """Return a name; raise BadBatch if it is none. `field`, `group`: the place of it in the message."""
        cdef uint64_t hash = ft_hash_name(span), slot = hash & (SLOTS - 1)
        cdef Py_ssize_t size
        cdef const char *text
        cdef object cached
        cached = self._names[slot]
        if cached is not None and self._hash[slot] == hash:
            text = PyUnicode_AsUTF8AndSize(cached, &size)
            if size == span.bytes and memcmp(text, span.text, size) == 0:
                return cached
        name = self._checked(span, field, group)
        self._names[slot] = name
        self._hash[slot] = hash
        return name

    cdef str _checked(self, ft_span span, str field, int64_t group):
        try:
            name = PyUnicode_DecodeUTF8(<const char *>span.text, span.bytes, NULL)
        except UnicodeDecodeError as error:
            raise BadBatch("MALFORMED", f"{_where(field, group)}: {error.reason} at byte {error.start} of the name, "
                                        "expected UTF-8") from None
        if len(name) > FT_MAX_NAME_CHARS:
            raise BadBatch("TOO_LARGE", f"{_where(field, group)}: {len(name)} characters, "
                                        f"expected at most {FT_MAX_NAME_CHARS}")
        if self._first_wrong is not None and self._first_wrong([name]) is not None:
            raise BadBatch("OUT_OF_RANGE", f"{_where(field, group)}: {name!r:.100}, expected {self._expected}")
        return name


cdef NameCache _ANY_NAMES = NameCache()


cdef object _column(const void *source, int64_t n, int64_t element, object dtype):
    """Return a new array of n elements copied from `source`."""
    cdef Py_buffer view
    array = _empty(n, dtype)
    if n:
        PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
        memcpy(view.buf, source, n * element)
        PyBuffer_Release(&view)
    return array


cdef class ProbeBatches:
    """Messages of `fabric.probes` in common columns, by number; they never change.

    `errors`: number and exception of each refused message; such a message is empty.
    """

    def __cinit__(self):
        self.nics, self.peers, self.errors = [], [], []

    def __dealloc__(self):
        ft_batches_free(&self.b)

    def __len__(self):
        return self.b.messages

    cdef ft_message *message(self, int64_t index) except NULL:
        if index < 0 or index >= self.b.messages:
            raise IndexError(f"message {index}: expected 0 to {self.b.messages - 1}")
        return &self.b.message[index]

    @property
    def samples(self):
        """Number of samples of all messages."""
        return self.b.samples

    def head(self, int64_t index):
        """Return (NIC, run, batch, clock_ns, system_ns, lost, samples) of a message; None if it was refused."""
        cdef ft_message *m = self.message(index)
        if m.is_refused:
            return None
        return self.nics[index], m.run, m.number, m.clock_ns, m.system_ns, m.lost, m.samples

    def columns(self, int64_t index):
        """Return a copy of a message's columns. Raises ValueError if it was refused."""
        cdef ft_message *m = self.message(index)
        cdef int64_t g = m.first_group, groups = m.groups, i = m.first_sample, samples = m.samples
        if m.is_refused:
            raise ValueError(f"message {index}: refused")
        start = _column(self.b.start + g, groups + 1, 8, _i8)
        start -= i
        forward_ce = _column(self.b.marked[0] + m.first_mark[0], m.marks[0], 8, _i8)
        forward_ce -= i
        reverse_ce = _column(self.b.marked[1] + m.first_mark[1], m.marks[1], 8, _i8)
        reverse_ce -= i
        return ProbeColumns(
            self.nics[index], m.run, m.number, m.clock_ns, m.system_ns, self.peers[g : g + groups],
            _column(self.b.path + g, groups, 4, _i4), _column(self.b.spacing_ns + g, groups, 4, _i4),
            _column(self.b.lost + g, groups, 4, _i4), _column(self.b.no_t3 + g, groups, 4, _i4), start,
            _column(self.b.column[0] + i, samples, 8, _i8), _column(self.b.column[1] + i, samples, 8, _i8),
            _column(self.b.column[2] + i, samples, 8, _i8), _column(self.b.column[3] + i, samples, 8, _i8),
            _column(self.b.dscp + g, groups, 4, _i4), _column(self.b.ecn + g, groups, 4, _i4),
            forward_ce, reverse_ce,
        )


cdef int _decode(ProbeBatches batches, data, Py_ssize_t start, key, NameCache names) except -1:
    """Decode the next message. Raises BadBatch, and then the message is refused."""
    cdef ft_fault fault
    cdef Py_buffer view
    cdef ft_message *m
    cdef ft_span *peer
    cdef int64_t g
    cdef str name = None
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len:
            raise IndexError(f"start {start}: expected 0 to {view.len}, the message's length")
        # The GIL is kept, since a message takes microseconds.
        if ft_decode(<const uint8_t *>view.buf + start, view.len - start, &batches.b, &fault) != FT_OK:
            raise _refuse(&fault, start)
        m = &batches.b.message[batches.b.messages - 1]
        peer = batches.b.peer + m.first_group
        try:
            nic = names.get(m.nic, "nic", -1)
            if key is not None and key != nic.encode():
                raise BadBatch("WRONG_KEY", f"key {key!r:.100}, expected the batch's NIC {nic!r:.100}")
            for g in range(m.groups):
                # groups of one peer usually stand together
                if (g == 0 or peer[g].bytes != peer[g - 1].bytes
                        or memcmp(peer[g].text, peer[g - 1].text, peer[g].bytes) != 0):
                    name = names.get(peer[g], "peer", g)
                batches.peers.append(name)
        except BadBatch:
            del batches.peers[m.first_group:]
            ft_refuse(&batches.b)
            raise
        batches.nics.append(nic)
    finally:
        PyBuffer_Release(&view)
    return 0


def decode_probe_batches(values, starts, keys=None, NameCache names not None=_ANY_NAMES):
    """Return the `ProbeBatches` of several messages, whose Avro bodies begin at byte `starts[k]` of `values[k]`.

    A value of None is refused without an error. `keys[k]` must be the message's NIC as bytes; without `keys`, keys
    are not checked. Raises MemoryError and IndexError, for a start beyond the value.
    """
    cdef ProbeBatches batches = ProbeBatches()
    cdef int64_t n = len(values), size = 0, k
    if len(starts) != n or (keys is not None and len(keys) != n):
        raise ValueError(f"{n} values: expected as many starts and keys")
    for value in values:
        if value is not None:
            size += len(value)
    if not ft_reserve(&batches.b, n, size):
        raise MemoryError(f"no memory for {n} messages of {size} bytes")
    for k in range(n):
        value = values[k]
        if value is None:
            ft_begin(&batches.b)
            ft_refuse(&batches.b)
            batches.nics.append(None)
            continue
        key = b"" if keys is not None and keys[k] is None else None if keys is None else keys[k]
        try:
            _decode(batches, value, starts[k], key, names)
        except BadBatch as error:
            batches.nics.append(None)
            batches.errors.append((k, error))
    ft_trim(&batches.b)
    return batches


def decode_probe_batch(data, Py_ssize_t start=0):
    """Return the `ProbeColumns` of the Avro body that begins at byte `start` of `data`.

    `data` is bytes or another contiguous buffer. Raises BadBatch for anything but an honest batch; IndexError
    where `start` is not within `data`.
    """
    cdef ProbeBatches batches = ProbeBatches()
    if not ft_reserve(&batches.b, 1, 0):
        raise MemoryError("no memory for a message")
    _decode(batches, data, start, None, _ANY_NAMES)
    return batches.columns(0)


cdef const void *_pointer(object array, object dtype, str field, int64_t *n) except? NULL:
    """Return the elements of a numpy column, which the caller keeps alive; their number in n[0]."""
    cdef Py_buffer view
    if type(array) is not _ndarray or array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{field}: expected a contiguous numpy array of {dtype} of one dimension")
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef const void *pointer = view.buf
    n[0] = view.len // view.itemsize if view.itemsize else 0
    PyBuffer_Release(&view)
    return pointer


cdef const void *_sized(object array, object dtype, str field, int64_t expected) except? NULL:
    cdef int64_t n
    cdef const void *pointer = _pointer(array, dtype, field, &n)
    if n != expected:
        raise ValueError(f"{field}: {n} elements, expected {expected}")
    return pointer


cdef int _copy_marks(ft_batches *b, int direction, object marks, int64_t first, int64_t samples) except -1:
    """Append the indices of one message's marked samples."""
    cdef int64_t n, i, last = -1
    cdef const int64_t *source = <const int64_t *>_pointer(marks, _i8, "CE", &n)
    cdef void *moved
    for i in range(n):
        if source[i] <= last or source[i] >= samples:
            raise ValueError(f"CE: {source[i]} after {last}, expected ascending indices below {samples}")
        last = source[i]
    if n > b.mark_capacity[direction] - b.marks[direction]:
        moved = realloc(b.marked[direction], (2 * b.marks[direction] + n) * sizeof(int64_t))
        if moved == NULL:
            raise MemoryError(f"no memory for {n} marks")
        b.marked[direction] = <int64_t *>moved
        b.mark_capacity[direction] = 2 * b.marks[direction] + n
    for i in range(n):
        b.marked[direction][b.marks[direction] + i] = first + source[i]
    b.marks[direction] += n
    return 0


cdef int _copy(ProbeBatches batches, columns) except -1:
    """Append one batch. Raises ValueError if its columns' lengths disagree."""
    cdef ft_batches *b = &batches.b
    cdef list peers = columns.peers
    cdef int64_t groups = len(peers), samples, g, c, first = b.samples, first_group = b.groups, direction
    cdef const int64_t *start = <const int64_t *>_sized(columns.start, _i8, "start", groups + 1)
    cdef const void *sample_columns[4]
    cdef const void *group_columns[6]
    cdef int32_t *targets[6]
    cdef int32_t *target
    sample_columns[0] = _pointer(columns.sent, _i8, "sent", &samples)
    for c, name in enumerate(("forward", "turnaround", "reverse"), 1):
        sample_columns[c] = _sized(getattr(columns, name), _i8, name, samples)
    for c, name in enumerate(("path", "spacing_ns", "lost", "no_t3", "dscp", "ecn")):
        column = getattr(columns, name)
        group_columns[c] = NULL
        if c <= 3 or len(column):
            group_columns[c] = _sized(column, _i4, name, groups)
    if start[0] != 0 or start[groups] != samples:
        raise ValueError(f"start: from {start[0]} to {start[groups]}, expected 0 to {samples}")
    for g in range(groups):
        if start[g + 1] < start[g]:
            raise ValueError(f"start[{g + 1}] {start[g + 1]}: expected at least {start[g]}")
        if not isinstance(peers[g], str):
            raise ValueError(f"peers[{g}] {peers[g]!r:.80}: expected a string")
    if not ft_grow(b, first_group + groups, first + samples):
        raise MemoryError(f"no memory for {samples} samples")
    targets[0], targets[1], targets[2] = b.path, b.spacing_ns, b.lost
    targets[3], targets[4], targets[5] = b.no_t3, b.dscp, b.ecn
    cdef ft_message *m = ft_begin(b)
    m.run, m.number, m.clock_ns, m.system_ns = columns.run, columns.batch, columns.clock_ns, columns.system_ns
    for direction, name in enumerate(("forward_ce", "reverse_ce")):
        _copy_marks(b, direction, getattr(columns, name), first, samples)
        m.marks[direction] = b.marks[direction] - m.first_mark[direction]
    for c in range(4):
        memcpy(b.column[c] + first, sample_columns[c], samples * sizeof(int64_t))
    for c in range(6):
        target = targets[c] + first_group
        if group_columns[c] == NULL:
            memset(target, 0, groups * sizeof(int32_t))
        else:
            memcpy(target, group_columns[c], groups * sizeof(int32_t))
    for g in range(groups):
        b.start[first_group + g + 1] = first + start[g + 1]
        m.lost += b.lost[first_group + g]
    b.groups += groups
    b.samples += samples
    m.groups, m.samples = groups, samples
    batches.nics.append(columns.nic)
    batches.peers.extend(peers)
    return 0


def batches_of(batches):
    """Return `ProbeBatches` with a copy of each `ProbeColumns`; None stands for a refused message.

    Raises ValueError where columns do not fit each other.
    """
    cdef ProbeBatches copies = ProbeBatches()
    if not ft_reserve(&copies.b, len(batches), 0):
        raise MemoryError(f"no memory for {len(batches)} messages")
    for columns in batches:
        if columns is None:
            ft_begin(&copies.b)
            ft_refuse(&copies.b)
            copies.nics.append(None)
        else:
            _copy(copies, columns)
    return copies


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
