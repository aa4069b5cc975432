"""Converts Avro arrays of numbers to numpy arrays and back, for records whose last fields are columns of
numbers.

Avro 1.12: int and long are zig-zag varints, float and double are little endian. An array is blocks of a count
and its elements, ended by a zero; a negative count is followed by the block's size.
"""

import numpy as np

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.math cimport isfinite
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

__all__ = ["BadArray", "decode_arrays", "encode_arrays", "first_outside"]

cdef extern from "varint.h" nogil:
    uint8_t *_put "ft_put_varint"(uint8_t *out, int64_t value)
    const uint8_t *_get "ft_get_varint"(const uint8_t *at, const uint8_t *end, int64_t *value)

cdef enum:
    VARINT = 10  # most bytes of a number


class BadArray(ValueError):
    """The bytes are not valid arrays; has the `reason` of the reject, the array and the error."""

    def __init__(self, reason, array, detail):
        super().__init__(detail)
        self.reason = reason
        self.array = array
        self.detail = detail


cdef uint8_t *_write(uint8_t *out, const Py_buffer *view, str kind) except NULL:
    """Write the elements of one array as `kind`: i, f or d. Raises TypeError for a type that does not fit."""
    cdef char letter = view.format[0]
    cdef int64_t n = view.shape[0], i
    cdef double real
    cdef float narrow
    if n == 0:
        out[0] = 0
        return out + 1
    out = _put(out, n)
    if kind == "i":
        if letter in b"lq" and view.itemsize == 8:
            for i in range(n):
                out = _put(out, (<const int64_t *>view.buf)[i])
        elif letter == b"i" and view.itemsize == 4:
            for i in range(n):
                out = _put(out, (<const int32_t *>view.buf)[i])
        else:
            raise TypeError(f"column of {view.format.decode()!r}: expected int64 or int32")
    elif letter not in b"fd":
        raise TypeError(f"column of {view.format.decode()!r}: expected float32 or float64")
    elif kind == "f":
        for i in range(n):
            narrow = (<const float *>view.buf)[i] if letter == b"f" else <float>(<const double *>view.buf)[i]
            memcpy(out + 4 * i, &narrow, 4)
        out += 4 * n
    else:
        for i in range(n):
            real = (<const float *>view.buf)[i] if letter == b"f" else (<const double *>view.buf)[i]
            memcpy(out + 8 * i, &real, 8)
        out += 8 * n
    out[0] = 0
    return out + 1


def encode_arrays(columns not None, str kinds not None):
    """Return the bytes of contiguous arrays of one dimension, one after the other, as the letters of `kinds` state:
    i for int or long (int64 or int32), f for float, d for double (float64 or float32). Raises TypeError for others."""
    cdef int64_t capacity = 0, k, n = len(columns), exported = 0
    cdef Py_buffer *views = <Py_buffer *>malloc((n + 1) * sizeof(Py_buffer))
    cdef bytes buffer
    cdef uint8_t *first
    cdef uint8_t *out
    if views == NULL:
        raise MemoryError(f"no memory for {n} columns")
    try:
        for column in columns:
            PyObject_GetBuffer(column, &views[exported], PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
            exported += 1
            if views[exported - 1].ndim != 1:
                raise TypeError(f"column of {views[exported - 1].ndim} dimensions: expected one")
            capacity += 2 * VARINT + views[exported - 1].shape[0] * VARINT
        buffer = PyBytes_FromStringAndSize(NULL, capacity)
        first = out = <uint8_t *>PyBytes_AS_STRING(buffer)
        for k in range(n):
            out = _write(out, &views[k], kinds[k])
        return buffer[: out - first]
    finally:
        for k in range(exported):
            PyBuffer_Release(&views[k])
        free(views)


def first_outside(columns not None, const int64_t[:, ::1] whole_limits not None,
                  const double[:, ::1] limits not None):
    """Return the number of the first array with an element outside its limits, or one that is not finite; -1: none.

    [arrays, 2] minimum and maximum: `whole_limits` for arrays of int64, `limits` for others.
    """
    cdef const int64_t[::1] whole
    cdef const float[::1] narrow
    cdef const double[::1] wide
    cdef int64_t low, high
    cdef Py_ssize_t i, number
    if not len(columns) == whole_limits.shape[0] == limits.shape[0]:
        raise ValueError(f"{len(columns)} arrays, limits of {whole_limits.shape[0]} and {limits.shape[0]}")
    for number, column in enumerate(columns):
        if column.dtype == np.int64:
            whole = column
            low, high = whole_limits[number, 0], whole_limits[number, 1]
            for i in range(whole.shape[0]):
                if not low <= whole[i] <= high:
                    return number
        elif column.dtype == np.float32:
            narrow = column
            for i in range(narrow.shape[0]):
                if not (isfinite(narrow[i]) and limits[number, 0] <= narrow[i] <= limits[number, 1]):
                    return number
        else:
            wide = column
            for i in range(wide.shape[0]):
                if not (isfinite(wide[i]) and limits[number, 0] <= wide[i] <= limits[number, 1]):
                    return number
    return -1


def decode_arrays(bytes data not None, Py_ssize_t start, str kinds not None, Py_ssize_t max_elements):
    """Return one array for each letter of `kinds`: i for int or long (int64), f for float (float32), d for double
    (float64). At most `max_elements` elements each. Raises BadArray, also where bytes are left over."""
    cdef const uint8_t *begin = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *end = begin + len(data)
    cdef const uint8_t *at = begin + start
    cdef const uint8_t *following
    cdef int64_t count, size, n, i, value = 0, remaining
    cdef int64_t[::1] whole
    cdef uint8_t[::1] raw
    if not 0 <= start <= len(data):
        raise ValueError(f"start {start}: expected within 0 to {len(data)}")
    found = []
    for number, kind in enumerate(kinds):
        size = 0 if kind == "i" else 4 if kind == "f" else 8
        parts = []
        n = 0
        while True:
            following = _get(at, end, &count)
            if following == NULL:
                raise _bad(number, count)
            at = following
            if count == 0:
                break
            if count < 0:
                following = _get(at, end, &value)
                if following == NULL:
                    raise _bad(number, value)
                at = following
                # the least int64 has no positive
                count = -(count + 1)
                count += 1 if count < max_elements + 1 else 0
            n += count
            if count > max_elements or n > max_elements:
                raise BadArray("TOO_LARGE", number, f"{n} elements, expected at most {max_elements}")
            remaining = end - at
            if remaining < count * (size if size else 1):
                raise BadArray("TRUNCATED", number, f"{count} elements, {remaining} bytes left")
            if size:
                array = np.empty(count * size, np.uint8)
                raw = array
                memcpy(&raw[0], at, count * size)
                at += count * size
                parts.append(array.view(np.float32 if size == 4 else np.float64))
                continue
            array = np.empty(count, np.int64)
            whole = array
            for i in range(count):
                following = _get(at, end, &value)
                if following == NULL:
                    raise _bad(number, value)
                at = following
                whole[i] = value
            parts.append(array)
        if len(parts) == 1:
            found.append(parts[0])
        else:
            dtype = np.int64 if not size else np.float32 if size == 4 else np.float64
            found.append(np.concatenate(parts) if parts else np.zeros(0, dtype))
    if at != end:
        raise BadArray("MALFORMED", len(kinds), f"{end - at} bytes after the record's end")
    return found


cdef object _bad(Py_ssize_t array, int64_t why):
    if why:
        return BadArray("MALFORMED", array, "a number of more than 64 bits")
    return BadArray("TRUNCATED", array, "ends in mid-number")
