"""`PathDelayColumns` to the Avro body of `PathDelays`, without a Python object a path.

In: the record's head and a range of rows. Out: the body; the caller prepends `codec.header("PathDelays")`. Avro
1.12: int and long are zig-zag varints, an optional figure is the branch's number and 8 bytes little endian, an
array is a block's count, its elements and a zero.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

__all__ = ["encode_path_delays"]

cdef extern from "varint.h" nogil:
    uint8_t *_long "ft_put_varint"(uint8_t *out, int64_t value)

cdef enum:
    VARINT = 10  # most bytes of a number
    ROW = 9 * VARINT + 10 * 9 + 8 * VARINT  # most bytes of a row besides its peer's name and its buckets


cdef inline uint8_t *_text(uint8_t *out, bytes text):
    out = _long(out, len(text))
    memcpy(out, PyBytes_AS_STRING(text), len(text))
    return out + len(text)


cdef inline uint8_t *_figure(uint8_t *out, double value) noexcept nogil:
    if value != value:
        out[0] = 0
        return out + 1
    out[0] = 2
    memcpy(out + 1, &value, 8)
    return out + 9


cdef inline uint8_t *_numbers(uint8_t *out, const int32_t[::1] values, int64_t begin, int64_t end) noexcept nogil:
    cdef int64_t i
    if end > begin:
        out = _long(out, end - begin)
        for i in range(begin, end):
            out = _long(out, values[i])
    out[0] = 0
    return out + 1


def encode_path_delays(str nic not None, str shard not None, int64_t window, int part, int parts,
                       int64_t window_start_ns, int64_t window_end_ns, int state, columns, Py_ssize_t begin,
                       Py_ssize_t end):
    """Return the body of one `PathDelays` with rows [begin, end) of `columns`.

    `state` is the number of a `ClockSync` symbol. NaN becomes null. Raises ValueError where rows are not there.
    """
    cdef Py_ssize_t rows = len(columns.peers), r, i
    if not 0 <= begin <= end <= rows:
        raise ValueError(f"rows {begin} to {end}: expected a range within 0 to {rows}")
    cdef const int32_t[::1] path = columns.path
    cdef const int64_t[::1] count = columns.count
    cdef const int64_t[::1] lost = columns.lost
    cdef const int64_t[::1] no_t3 = columns.no_t3
    cdef const int32_t[::1] dscp = columns.dscp
    cdef const int64_t[::1] ecn = columns.ecn
    cdef const int64_t[::1] ce0 = columns.forward_ce
    cdef const int64_t[::1] ce1 = columns.reverse_ce
    cdef const double[::1] f0 = columns.forward_min_ns
    cdef const double[::1] f1 = columns.forward_p50_ns
    cdef const double[::1] f2 = columns.forward_p99_ns
    cdef const double[::1] r0 = columns.reverse_min_ns
    cdef const double[::1] r1 = columns.reverse_p50_ns
    cdef const double[::1] r2 = columns.reverse_p99_ns
    cdef const double[::1] t0 = columns.rtt_min_ns
    cdef const double[::1] t1 = columns.rtt_p50_ns
    cdef const double[::1] t2 = columns.rtt_p99_ns
    cdef const double[::1] bound = columns.bound_ns
    cdef const int64_t[::1] fs = columns.forward_bucket_start
    cdef const int32_t[::1] fb = columns.forward_bucket
    cdef const int32_t[::1] fc = columns.forward_bucket_count
    cdef const int64_t[::1] rs = columns.reverse_bucket_start
    cdef const int32_t[::1] rb = columns.reverse_bucket
    cdef const int32_t[::1] rc = columns.reverse_bucket_count
    if min(len(path), len(count), len(lost), len(no_t3), len(f0), len(f1), len(f2), len(r0), len(r1), len(r2),
           len(t0), len(t1), len(t2), len(bound), len(fs) - 1, len(rs) - 1, len(dscp), len(ecn), len(ce0), len(ce1)) < rows:
        raise ValueError(f"columns of {rows} peers: a column is shorter")
    if fs[rows] > min(len(fb), len(fc)) or rs[rows] > min(len(rb), len(rc)):
        raise ValueError(f"buckets: {fs[rows]} and {rs[rows]} expected, a column is shorter")
    for r in range(rows):
        if not (0 <= fs[r] <= fs[r + 1] and 0 <= rs[r] <= rs[r + 1]):
            raise ValueError(f"bucket starts of row {r}: expected ascending numbers")
    cdef bytes nic_ = nic.encode(), shard_ = shard.encode()
    cdef list peers = [name.encode() for name in columns.peers[begin:end]]
    cdef int64_t capacity = len(nic_) + len(shard_) + 12 * VARINT
    cdef bytes peer
    for peer in peers:
        capacity += len(peer) + ROW
    capacity += 2 * VARINT * (fs[end] - fs[begin] + rs[end] - rs[begin])
    cdef bytes buffer = PyBytes_FromStringAndSize(NULL, capacity)
    cdef uint8_t *first = <uint8_t *>PyBytes_AS_STRING(buffer)
    cdef uint8_t *out = first
    out = _text(out, nic_)
    out = _text(out, shard_)
    out = _long(out, window)
    out = _long(out, part)
    out = _long(out, parts)
    out = _long(out, window_start_ns)
    out = _long(out, window_end_ns)
    out = _long(out, state)
    if end > begin:
        out = _long(out, end - begin)
    for i in range(end - begin):
        r = begin + i
        out = _text(out, <bytes>peers[i])
        out = _long(out, path[r])
        out = _long(out, count[r])
        out = _long(out, lost[r])
        out = _long(out, no_t3[r])
        out = _figure(out, f0[r])
        out = _figure(out, f1[r])
        out = _figure(out, f2[r])
        out = _figure(out, r0[r])
        out = _figure(out, r1[r])
        out = _figure(out, r2[r])
        out = _figure(out, t0[r])
        out = _figure(out, t1[r])
        out = _figure(out, t2[r])
        out = _figure(out, bound[r])
        out = _numbers(out, fb, fs[r], fs[r + 1])
        out = _numbers(out, fc, fs[r], fs[r + 1])
        out = _numbers(out, rb, rs[r], rs[r + 1])
        out = _numbers(out, rc, rs[r], rs[r + 1])
        out = _long(out, dscp[r])
        out = _long(out, ecn[r])
        out = _long(out, ce0[r])
        out = _long(out, ce1[r])
    out[0] = 0
    return buffer[: out + 1 - first]
