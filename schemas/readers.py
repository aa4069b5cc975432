"""Builds the readers that decode and check a record in one pass, from its schema.

`native.core.avro` implements the readers, but this module does not import it, so `fabrictime-client` works
without it. A reader returns the same values as `fastavro` and the checks of `schemas.checks`, or refuses the
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from schemas.checks import INT_MAX, INT_MIN, MAX_BYTES, MAX_STRING, NO_LIMITS, Limits
from schemas.formats import Format


class ReaderMaker(Protocol):
    """Creates readers and decodes values with them; the module `native.core.avro` implements it."""

    @property
    def Refused(self) -> type[ValueError]:
        """The error for bytes that a reader refuses, so that fastavro must decode them."""

    def read(self, reader: Any, data: bytes, start: int) -> tuple[Any, int]:
        """Return the value at offset `start`, and the offset of its end. Raises `Refused`."""

    def number(self, low: float | None, high: float | None) -> Any:
        """Return the reader that decodes an int or long within `low` and `high`; None means no limit."""

    def real(self, low: float | None, high: float | None, is_narrow: bool) -> Any:
        """Return the reader of a double, or a float if `is_narrow`.

        Raises ValueError for an invalid limit.
        """

    def boolean(self) -> Any:
        """Return the reader that decodes a boolean to True or False."""

    def byte_string(self, longest: int) -> Any:
        """Return the reader that decodes bytes of at most the length `longest`."""

    def string(self, longest: int, passes: Callable[[str], bool] | None) -> Any:
        """Return the reader of a string of at most the length `longest`; `passes` checks its format."""

    def enum(self, symbols: Iterable[str]) -> Any:
        """Return the reader that decodes an enum to one of `symbols`."""

    def optional(self, inner: Any, null_branch: int) -> Any:
        """Return the reader of a union of null, at index `null_branch`, and the type that `inner` decodes."""

    def array_of(self, element: Any, longest: int) -> Any:
        """Return the reader of an array of at most `longest` elements, which `element` decodes."""

    def record(self, names: Iterable[str], readers: Iterable[Any]) -> Any:
        """Return the reader that decodes a record to a dict; `readers` decode the fields `names` in order."""


class _Unsupported(Exception):
    """A schema contains a type for which there is no reader."""


def reader_of(schema: Any, maker: ReaderMaker) -> Any | None:
    """Return the reader of a record whose enums are ints with the attribute `symbols`.

    None if a part of the record has no reader: a map, fixed, a union of several types, an enum that is no
    field, or a record within itself.
    """
    try:
        return _Builder(maker).reader(schema, NO_LIMITS)
    except _Unsupported:
        return None


class _Builder:
    def __init__(self, maker: ReaderMaker) -> None:
        self._maker = maker
        self._records: dict[str, Any] = {}
        """Maps a record's name to its reader."""

    def reader(self, schema: Any, limits: Limits) -> Any:
        """Return the reader of a schema's values; `limits` are those of the field that holds the values."""
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list):
            return self._optional(kind, limits)
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            return self._maker.array_of(self.reader(schema["items"], limits), limits.max_items)
        if isinstance(schema, dict) and "symbols" in schema:
            raise _Unsupported(f"enum {schema!r:.80}: expected a record's field")
        if kind in _SIMPLE:
            return _SIMPLE[kind](self._maker, limits)
        if isinstance(kind, str) and kind in self._records:
            return self._records[kind]
        raise _Unsupported(f"{kind!r:.80}")

    def _optional(self, branches: list[Any], limits: Limits) -> Any:
        others = [branch for branch in branches if branch != "null"]
        if len(branches) != 2 or len(others) != 1:
            raise _Unsupported(f"{branches!r:.80}: expected null and another type")
        return self._maker.optional(self.reader(others[0], limits), branches.index("null"))

    def _record(self, schema: Any) -> Any:
        fields = schema["fields"]
        readers = [self._field(field) for field in fields]
        reader = self._maker.record([field["name"] for field in fields], readers)
        for name in (schema["name"], f"{schema.get('namespace', '')}.{schema['name']}"):
            self._records[name] = reader
        return reader

    def _field(self, field: Any) -> Any:
        kind = field["type"]
        if isinstance(kind, dict) and "symbols" in kind:
            return self._maker.enum(kind["symbols"])
        return self.reader(kind, Limits.of_field(field))


def _int(maker: ReaderMaker, limits: Limits) -> Any:
    low = INT_MIN if limits.min is None else max(limits.min, INT_MIN)
    high = INT_MAX if limits.max is None else min(limits.max, INT_MAX)
    return maker.number(low, high)


def _real(maker: ReaderMaker, limits: Limits, is_narrow: bool = False) -> Any:
    try:
        return maker.real(limits.min, limits.max, is_narrow)
    except ValueError as error:
        raise _Unsupported(str(error)) from error


def _string(maker: ReaderMaker, limits: Limits) -> Any:
    return maker.string(MAX_STRING, None if limits.format is None else _test_of(limits.format))


def _test_of(form: Format) -> Callable[[str], bool]:
    return lambda text: form.has_passed((text,)) or form.first_wrong((text,)) is None


_SIMPLE: Final[dict[str, Callable[[ReaderMaker, Limits], Any]]] = {
    "int": _int,
    "long": lambda maker, limits: maker.number(limits.min, limits.max),
    "float": lambda maker, limits: _real(maker, limits, is_narrow=True),
    "double": _real,
    "boolean": lambda maker, limits: maker.boolean(),
    "string": _string,
    "bytes": lambda maker, limits: maker.byte_string(MAX_BYTES),
}
"""Maps the name of a simple type to the function that makes its reader."""
