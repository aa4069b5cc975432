"""Reads pickles of plain data without `pickle`: no object is created, imported or called.

A Flight Recorder dump is a pickle, and an untrusted pickle may run any program. This reader accepts only the
opcodes of numbers, texts, lists, tuples and dictionaries, of protocols 0 to 5, and refuses all others.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, Final

_MAX_VALUES: Final = 20_000_000
_MARK: Final = object()


class NotPlain(ValueError):
    """Raised for data that are not a pickle, or a pickle with other than plain data."""


_CONSTANTS: Final[dict[str, Callable[[], Any]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
}
_VALUES: Final = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
        *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
        *("INT", "LONG", "FLOAT", "UNICODE", "STRING"),
    }
)
_IGNORED: Final = frozenset({"PROTO", "FRAME"})


class _Machine:
    """The stack and the memo of a pickle while its opcodes are executed."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        """Execute the opcode `name`. Raises NotPlain, IndexError, KeyError or TypeError for invalid data."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _VALUES:
            self.stack.append(argument)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name in _ACTIONS:
            _ACTIONS[name](self)
        elif name not in _IGNORED:
            raise NotPlain(f"opcode {name}: expected those of plain data")

    def pop_to_mark(self) -> list[Any]:
        """Remove the stack's last mark and the values above it; return these values."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError("no mark")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def tuple_of(self, count: int) -> None:
        """Replace the last `count` values on the stack by one tuple with these values."""
        if len(self.stack) < count:
            raise IndexError("too few values")
        values = tuple(self.stack[-count:])
        del self.stack[-count:]
        self.stack.append(values)

    def append(self, values: list[Any]) -> None:
        """Append `values` to the list on top of the stack. Raises NotPlain if there is another value."""
        if type(self.stack[-1]) is not list:
            raise NotPlain("append: expected a list")
        self.stack[-1].extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Put alternating keys and values into the dictionary on top of the stack. Raises NotPlain."""
        if type(self.stack[-1]) is not dict or len(values) % 2:
            raise NotPlain("items: expected a dictionary, and a value for each key")
        self.stack[-1].update(zip(values[::2], values[1::2], strict=True))


def _dict(machine: _Machine) -> None:
    values = machine.pop_to_mark()
    machine.stack.append({})
    machine.set_items(values)


def _one(machine: _Machine) -> list[Any]:
    return [machine.stack.pop()]


def _two(machine: _Machine) -> list[Any]:
    value, key = machine.stack.pop(), machine.stack.pop()
    return [key, value]


_ACTIONS: Final[dict[str, Callable[[_Machine], Any]]] = {
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine: machine.tuple_of(1),
    "TUPLE2": lambda machine: machine.tuple_of(2),
    "TUPLE3": lambda machine: machine.tuple_of(3),
    "LIST": lambda machine: machine.stack.append(machine.pop_to_mark()),
    "DICT": _dict,
    "APPEND": lambda machine: machine.append(_one(machine)),
    "APPENDS": lambda machine: machine.append(machine.pop_to_mark()),
    "SETITEM": lambda machine: machine.set_items(_two(machine)),
    "SETITEMS": lambda machine: machine.set_items(machine.pop_to_mark()),
}


def load_plain(data: bytes) -> Any:
    """Return the value in a pickle of plain data. Raises NotPlain if the pickle holds other data."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                break
            if count > _MAX_VALUES:
                raise NotPlain(f"more than {_MAX_VALUES} opcodes")
            machine.run(opcode.name, argument)
        (value,) = machine.stack
    except NotPlain:
        raise
    except (ValueError, IndexError, KeyError, TypeError, UnicodeError, OverflowError, MemoryError) as error:
        raise NotPlain(f"pickle: {str(error)[:100] or type(error).__name__}, expected plain data") from None
    if value is _MARK:
        raise NotPlain("pickle: no value, expected plain data")
    return value
