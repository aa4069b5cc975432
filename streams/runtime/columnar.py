"""Encodes and decodes records whose last fields are columns of numbers, without a Python object per number.

Encoded bytes and errors are the same as those of `codec`. `codec` decodes older schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from native.core.arrays import BadArray, decode_arrays, encode_arrays, first_outside
from native.core.columns import Float64s, Int64s
from schemas import codec

_KINDS: Final = {"int": "i", "long": "i", "float": "f", "double": "d"}
_DTYPES: Final[dict[str, Any]] = {
    "i": np.dtype(np.int64),
    "f": np.dtype(np.float32),
    "d": np.dtype(np.float64),
}
_ARRAY: Final = np.ndarray
_MAX_INT: Final = 2**31 - 1
_MIN_LONG: Final = -(2**63)

R = TypeVar("R")
"""The type of a record: a class of `schemas.records`."""


class _Columns(NamedTuple):
    """The number columns at the end of a schema: names, kinds, and the minimum and maximum of each."""

    last: str
    names: tuple[str, ...]
    kinds: str
    minimum: tuple[float | None, ...]
    maximum: tuple[float | None, ...]
    whole_limits: Int64s
    """[columns, 2] minimum and maximum of whole numbers."""
    limits: Float64s
    """[columns, 2] minimum and maximum of all numbers."""


@cache
def _columns_of(name: str) -> _Columns:
    fields = codec.raw_schema(name)["fields"]
    begin = len(fields)
    while begin and isinstance(of := fields[begin - 1]["type"], dict) and of.get("items") in _KINDS:
        begin -= 1
    if not 0 < begin < len(fields):
        raise ValueError(f"{name}: expected some fields, then arrays of numbers")
    columns = fields[begin:]
    items = [field["type"]["items"] for field in columns]
    minimum = [
        field.get("min", -_MAX_INT - 1 if of == "int" else None)
        for field, of in zip(columns, items, strict=True)
    ]
    maximum = [
        field.get("max", _MAX_INT if of == "int" else None) for field, of in zip(columns, items, strict=True)
    ]
    return _Columns(
        fields[begin - 1]["name"],
        tuple(field["name"] for field in columns),
        "".join(_KINDS[of] for of in items),
        tuple(minimum),
        tuple(maximum),
        *_limits(items, minimum, maximum),
    )


def _limits(
    items: list[str], minimum: list[float | None], maximum: list[float | None]
) -> tuple[Int64s, Float64s]:
    """Return the [columns, 2] limits of columns with these item types, as integers and as floats."""
    limits = np.array([minimum, maximum], np.float64).T  # None becomes NaN
    limits = np.ascontiguousarray(np.where(np.isnan(limits), (-np.inf, np.inf), limits))
    bounds = np.zeros((len(items), 2), np.int64)
    for row, (of, low, high) in enumerate(zip(items, minimum, maximum, strict=True)):
        if of in ("int", "long"):
            bounds[row] = (_MIN_LONG if low is None else low, -_MIN_LONG - 1 if high is None else high)
    return bounds, limits


def as_column(values: NDArray[Any]) -> list[Any]:
    """Return the same array, typed as the list of numbers that a record's class declares."""
    return cast("list[Any]", values)


def encode_columnar(kind: type[R], record: R, registry: codec.Registry | None = None) -> bytes:
    """Encode a record of arrays or lists of numbers. Raises ValueError if it does not fit its schema."""
    name, values = kind.__name__, cast("Mapping[str, Any]", record)
    columns = _columns_of(name)
    arrays = [
        array if type(array := values[field]) is _ARRAY else np.asarray(array, _DTYPES[kind])
        for field, kind in zip(columns.names, columns.kinds, strict=True)
    ]
    try:
        body = encode_arrays(arrays, columns.kinds)
    except (TypeError, ValueError):  # arrays of other types, or with gaps
        arrays = [np.ascontiguousarray(a, _DTYPES[k]) for a, k in zip(arrays, columns.kinds, strict=True)]
        body = encode_arrays(arrays, columns.kinds)
    return codec.encode_head(name, values, columns.last, registry) + body


def decode_columnar(data: bytes, kind: type[R], registry: codec.Registry | None = None) -> R:
    """Decode and check a record, with arrays of int64, float32 or float64 as columns. Raises BadRecord."""
    return cast("R", _decoded(data, kind.__name__, registry))


def _decoded(data: bytes, name: str, registry: codec.Registry | None) -> dict[str, Any]:
    columns = _columns_of(name)
    try:
        start = codec.body_start(data, name, registry)
    except codec.BadRecord:
        record = codec.decode(data, name, registry)  # an older schema, or an unknown one
        for field, kind in zip(columns.names, columns.kinds, strict=True):
            record[field] = np.array(record[field], _DTYPES[kind])
        return record
    record, start = codec.decode_head_at(data, start, name, columns.last)
    try:
        arrays = decode_arrays(data, start, columns.kinds, codec.MAX_ARRAY)
    except BadArray as error:
        where = ".".join([name, *columns.names[error.array : error.array + 1]])
        raise codec.BadRecord(error.reason, f"{where}: {error.detail}") from error
    record.update(zip(columns.names, arrays, strict=True))
    outside = first_outside(arrays, columns.whole_limits, columns.limits)
    if outside >= 0:
        raise _out_of_range(name, columns, outside, arrays[outside])
    return record


def _out_of_range(name: str, columns: _Columns, number: int, array: NDArray[Any]) -> codec.BadRecord:
    """Return the error for a column that has an element outside its limits."""
    low, high, minimum = array.min(), array.max(), columns.minimum[number]
    if not (np.isfinite(low) and np.isfinite(high)):
        text = "expected finite numbers"
    elif minimum is not None and low < minimum:
        text = f"{low}, expected at least {minimum:.12g}"
    else:
        text = f"{high}, expected at most {columns.maximum[number]:.12g}"
    return codec.BadRecord("OUT_OF_RANGE", f"{name}.{columns.names[number]}: {text}")
