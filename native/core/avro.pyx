"""Decodes and checks a record's Avro body in one pass, by readers that are built from its schema.

A reader takes only bytes as our own encoder writes them, with all values within their limits. For any others it
raises `Refused`: the caller decodes them in the general way, which gives the values, or names the error.

Avro 1.12: int and long are zig-zag varints, float and double are little endian, strings and bytes follow their
length, and an array is blocks of a count and its elements, ended by a zero.
"""

import sys

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_SetItem
from cpython.list cimport PyList_Append
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.math cimport isfinite
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef extern from "varint.h" nogil:
    const uint8_t *_get "ft_get_varint"(const uint8_t *at, const uint8_t *end, int64_t *value)

__all__ = [
    "Reader", "Refused", "array_of", "boolean", "byte_string", "enum", "number", "optional", "read", "real", "record",
    "string",
]

cdef enum:
    CACHED = 256  # strings that a reader keeps
    CACHED_BYTES = 64  # longest of them


class Refused(ValueError):
    """The bytes need the general decoder."""


cdef int _refuse() except -1:
    raise Refused("bytes that must be decoded in the general way")


cdef struct Cursor:
    const uint8_t *at
    const uint8_t *end


cdef inline int64_t _long(Cursor *cursor) except? -1:
    cdef int64_t value
    cdef const uint8_t *end = _get(cursor.at, cursor.end, &value)
    if end == NULL:
        return _refuse()
    cursor.at = end
    return value


cdef inline int64_t _length(Cursor *cursor, int64_t longest) except -1:
    """Return the number of bytes that follow."""
    cdef int64_t length = _long(cursor)
    if length < 0 or length > longest or length > cursor.end - cursor.at:
        _refuse()
    return length


cdef class Reader:
    """Reads values of one type."""

    cdef object take(self, Cursor *cursor):
        raise NotImplementedError(type(self).__name__)


cdef class _Number(Reader):
    cdef int64_t low, high

    cdef object take(self, Cursor *cursor):
        cdef int64_t value = _long(cursor)
        if value < self.low or value > self.high:
            _refuse()
        return value


cdef class _Real(Reader):
    cdef double low, high
    cdef bint is_narrow

    cdef object take(self, Cursor *cursor):
        cdef double value
        cdef float narrow
        cdef int size = 4 if self.is_narrow else 8
        if cursor.end - cursor.at < size:
            _refuse()
        if self.is_narrow:
            memcpy(&narrow, cursor.at, 4)
            value = narrow
        else:
            memcpy(&value, cursor.at, 8)
        cursor.at += size
        if not isfinite(value) or value < self.low or value > self.high:
            _refuse()
        return value


cdef class _Boolean(Reader):
    cdef object take(self, Cursor *cursor):
        if cursor.at == cursor.end or cursor.at[0] > 1:
            _refuse()
        cursor.at += 1
        return cursor.at[-1] == 1


cdef class _Bytes(Reader):
    cdef int64_t longest

    cdef object take(self, Cursor *cursor):
        cdef int64_t length = _length(cursor, self.longest)
        cursor.at += length
        return PyBytes_FromStringAndSize(<const char *>cursor.at - length, length)


cdef class _String(Reader):
    """Keeps short strings that passed: records repeat the same few names."""

    cdef int64_t longest
    cdef object passes
    cdef list cache

    cdef object take(self, Cursor *cursor):
        cdef int64_t length = _length(cursor, 4 * self.longest)
        cdef const uint8_t *first = cursor.at
        cdef uint64_t place = 14695981039346656037u
        cdef const char *cached
        cdef Py_ssize_t size, i
        cursor.at += length
        if length > CACHED_BYTES:
            return self.checked(first, length)
        for i in range(length):  # FNV-1a
            place = (place ^ first[i]) * 1099511628211u
        place = (place ^ (place >> 32)) % CACHED
        text = self.cache[place]
        if text is not None:
            cached = PyUnicode_AsUTF8AndSize(text, &size)
            if size == length and memcmp(cached, first, length) == 0:
                return text
        text = self.checked(first, length)
        self.cache[place] = text
        return text

    cdef object checked(self, const uint8_t *first, int64_t length):
        try:
            text = PyUnicode_DecodeUTF8(<const char *>first, length, NULL)
        except UnicodeDecodeError:
            _refuse()
        if len(text) > self.longest or (self.passes is not None and not self.passes(text)):
            _refuse()
        return text


cdef class _Enum(Reader):
    cdef tuple symbols

    cdef object take(self, Cursor *cursor):
        cdef int64_t number = _long(cursor)
        if number < 0 or number >= PyTuple_GET_SIZE(self.symbols):
            _refuse()
        return <object>PyTuple_GET_ITEM(self.symbols, number)


cdef class _Optional(Reader):
    cdef Reader inner
    cdef int64_t null_branch

    cdef object take(self, Cursor *cursor):
        cdef int64_t branch = _long(cursor)
        if branch == self.null_branch:
            return None
        if branch != 1 - self.null_branch:
            _refuse()
        return self.inner.take(cursor)


cdef class _Array(Reader):
    cdef Reader element
    cdef int64_t longest

    cdef object take(self, Cursor *cursor):
        cdef list elements = []
        cdef Reader element = self.element
        cdef int64_t left = self.longest, count = _long(cursor), i
        while count != 0:
            if count < 0 or count > left:
                _refuse()
            left -= count
            for i in range(count):
                PyList_Append(elements, element.take(cursor))
            count = _long(cursor)
        return elements


cdef class _Record(Reader):
    cdef tuple names
    cdef tuple readers

    cdef object take(self, Cursor *cursor):
        cdef dict values = {}
        cdef Py_ssize_t i
        for i in range(PyTuple_GET_SIZE(self.names)):
            value = (<Reader>PyTuple_GET_ITEM(self.readers, i)).take(cursor)
            PyDict_SetItem(values, <object>PyTuple_GET_ITEM(self.names, i), value)
        return values


def read(Reader reader not None, bytes data not None, int64_t start):
    """Return the value that begins at offset `start`, and the offset of its end. Raises Refused."""
    cdef Cursor cursor
    cdef const uint8_t *first = <const uint8_t *>PyBytes_AS_STRING(data)
    if start < 0 or start > PyBytes_GET_SIZE(data):
        raise ValueError(f"offset {start}: expected 0 to {PyBytes_GET_SIZE(data)}")
    cursor.at, cursor.end = first + start, first + PyBytes_GET_SIZE(data)
    value = reader.take(&cursor)
    return value, cursor.at - first


def number(low=None, high=None):
    """Return the reader of an int or long within its limits."""
    cdef _Number reader = _Number()
    reader.low = INT64_MIN if low is None else max(low, INT64_MIN)
    reader.high = INT64_MAX if high is None else min(high, INT64_MAX)
    return reader


def real(low=None, high=None, bint is_narrow=False):
    """Return the reader of a finite double, or of a float if `is_narrow`, within its limits.

    Raises ValueError for a limit that is no double.
    """
    cdef _Real reader = _Real()
    for limit in (low, high):
        if limit is not None and float(limit) != limit:
            raise ValueError(f"limit {limit}: expected a double")
    reader.low = float("-inf") if low is None else low
    reader.high = float("inf") if high is None else high
    reader.is_narrow = is_narrow
    return reader


def boolean():
    """Return the reader of a boolean."""
    return _Boolean()


def byte_string(int64_t longest):
    """Return the reader of at most `longest` bytes."""
    cdef _Bytes reader = _Bytes()
    reader.longest = longest
    return reader


def string(int64_t longest, passes=None):
    """Return the reader of a string of at most `longest` characters; `passes` returns whether it has its format."""
    cdef _String reader = _String()
    reader.longest, reader.passes, reader.cache = longest, passes, [None] * CACHED
    return reader


def enum(symbols):
    """Return the reader of an enum."""
    cdef _Enum reader = _Enum()
    reader.symbols = tuple(symbols)
    return reader


def optional(Reader inner not None, int64_t null_branch):
    """Return the reader of a union of null, which is branch 0 or 1, and another type."""
    cdef _Optional reader = _Optional()
    reader.inner, reader.null_branch = inner, null_branch
    return reader


def array_of(Reader element not None, int64_t longest):
    """Return the reader of an array of at most `longest` elements; each takes at least a byte."""
    cdef _Array reader = _Array()
    reader.element, reader.longest = element, longest
    return reader


def record(names, readers):
    """Return the reader of a record: a dict of its fields in their order."""
    cdef _Record result = _Record()
    result.names, result.readers = tuple(map(sys.intern, names)), tuple(readers)
    for reader in result.readers:
        if not isinstance(reader, Reader):
            raise TypeError(f"{reader!r}: expected a Reader")
    return result
