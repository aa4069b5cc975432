"""Refuses writers' schemas by which a few bytes could encode any number of values.

A writer's schema may come from a log or a registry that others fill. Parts of zero bytes cost the reader
memory without any cost to the sender. A type that contains itself costs the reader a stack level per byte.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

MAX_EMPTY: Final = 16
"""Largest number of parts without a byte in a record: ours have none."""
_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


class _Size(NamedTuple):
    """Whether each value of a type takes at least a byte, and its largest number of parts of zero bytes."""

    has_byte: bool
    empty: int


_EMPTY: Final = _Size(False, 1)
_FILLED: Final = _Size(True, 0)


def check_bounded(schema: Any) -> None:
    """Raise ValueError unless the length of a message limits the number of values that it can hold."""
    _size(schema, {})


def _size(schema: Any, sizes: dict[str, _Size | None]) -> _Size:
    """Return the size of a type. `sizes`: the sizes of named types; None while a type is being defined."""
    if isinstance(schema, str):
        return _of_name(schema, sizes)
    if isinstance(schema, list):  # the branch's number is a byte
        branches = [_size(branch, sizes) for branch in schema if branch != "null"]
        return _Size(True, max((size.empty for size in branches), default=0))
    kind = schema["type"]
    if kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        if not _size(schema[part], sizes).has_byte:
            raise ValueError(f"{kind} of elements without a byte")
        return _FILLED
    if kind not in ("record", "error", "enum", "fixed"):
        return _size(kind, sizes)
    name = _plain(schema["name"])
    if name in sizes:
        raise ValueError(f"type {name} is defined twice")
    sizes[name] = None
    if kind in ("record", "error"):
        size = _of_fields(schema, sizes)
    else:
        size = _EMPTY if kind == "fixed" and not schema["size"] else _FILLED
    sizes[name] = size
    return size


def _of_name(name: str, sizes: dict[str, _Size | None]) -> _Size:
    if name in _PRIMITIVES:
        return _EMPTY if name == "null" else _FILLED
    size = sizes.get(_plain(name), _FILLED)
    if size is None:
        raise ValueError(f"type {name} contains itself")
    return size


def _of_fields(schema: Any, sizes: dict[str, _Size | None]) -> _Size:
    fields = [_size(field["type"], sizes) for field in schema["fields"]]
    empty = sum(size.empty for size in fields)
    if empty > MAX_EMPTY:
        raise ValueError(f"{schema['name']}: {empty} parts without a byte, expected at most {MAX_EMPTY}")
    has_byte = any(size.has_byte for size in fields)
    return _Size(has_byte, empty if has_byte else max(1, empty))


def _plain(name: str) -> str:
    """Return a type's name without its namespace."""
    return name.rpartition(".")[2]
