"""Calls of an operator that cost a message or an output, never the worker, if they fail."""

from __future__ import annotations

from collections.abc import Sequence

from schemas import codec
from schemas.kafka.message import Message
from schemas.unexpected import DATA_ERRORS
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import Operator, Output

__all__ = ["encode", "take"]


def take(operator: Operator, messages: Sequence[Message], tables: FabricTables) -> bool:
    """Let an operator take messages; return whether it could.

    Operators reject bad messages one by one. An error that they do not foresee costs the whole batch: which
    message caused it is not known, and none may be taken twice. So all are rejected.
    """
    try:
        operator.take(messages, tables)
    except DATA_ERRORS as error:
        rejected = {(message.place, message.offset) for message, _ in operator.rejected}
        others = (each for each in messages if (each.place, each.offset) not in rejected)
        operator.rejected += [(message, error) for message in others]
        return False
    return True


def encode(operator: Operator, output: Output, registry: codec.Registry | None) -> bool:
    """Encode an output; return whether that was possible. Its `value` is then at hand."""
    try:
        output.value(registry)
    except DATA_ERRORS as error:
        operator.failed.append((output.key, error))
        return False
    return True
