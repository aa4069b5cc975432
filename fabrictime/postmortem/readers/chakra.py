"""Reads Chakra execution traces: protobuf files `NAME.RANK.et`, and JSON with one message per line.

Source of the format: mlcommons/chakra, schema/protobuf/et_def.proto. A file is a sequence of messages, each
preceded by its length: the metadata, then the nodes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fabrictime.postmortem.observations import Group, Observations, Span
from fabrictime.postmortem.readers.values import clean_function, count, text
from producers.collectives.flight_recorder import rank_of_name

MAX_NODES: Final = 2_000_000
_COLLECTIVE: Final = 7
_NAME, _TYPE, _START, _DURATION, _ATTRIBUTE = 2, 3, 6, 7, 10
"""Numbers of a node's fields."""
_INTEGERS: Final = frozenset({7, 9, 11, 13})
_TEXT: Final = 29
"""Numbers of an attribute's fields that hold whole numbers and a text."""
_FUNCTIONS: Final = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""Function by the number of `comm_type`."""


def _rank(name: str) -> int:
    stem = re.sub(r"\.(?:et|json|chakra|gz)", "", name)
    rank = rank_of_name(stem)
    if rank is None:
        raise ValueError("trace: no rank in its name, expected such as job.7.et")
    return rank


def read_chakra(name: str, data: bytes, out: Observations) -> None:
    """Add the collectives of a rank's protobuf trace. Raises ValueError if its first message is damaged."""
    rank = _rank(name)
    ordinals: Counter[tuple[Group, str]] = Counter()
    nodes = 0
    try:
        for message in _messages(data):
            nodes += 1
            fields = dict(_fields(message))
            if fields.get(_TYPE) == _COLLECTIVE:
                attributes = dict(_attributes(message))
                _add(
                    rank,
                    fields.get(_NAME),
                    fields.get(_START),
                    fields.get(_DURATION),
                    attributes,
                    ordinals,
                    out,
                )
    except (IndexError, UnicodeDecodeError):
        if nodes < 2:
            raise ValueError("trace: damaged, expected messages of Chakra's schema") from None
        out.notes.append(f"{name}: cut or damaged after {nodes:,} nodes")
    out.place(rank, "")


def _messages(data: bytes) -> Iterator[bytes]:
    at = 0
    for _ in range(MAX_NODES):
        if at >= len(data):
            return
        length, at = _varint(data, at)
        if length > len(data) - at:
            raise IndexError
        yield data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field of a message. Raises IndexError if the message is damaged."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        length = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            length, at = _varint(message, at)
        if length is None or length > len(message) - at:
            raise IndexError
        yield key >> 3, message[at : at + length]
        at += length


def _attributes(message: bytes) -> Iterator[tuple[str, int | str]]:
    for number, value in _fields(message):
        if number != _ATTRIBUTE or not isinstance(value, bytes):
            continue
        parts = dict(_fields(value))
        name = parts.get(1)
        if not isinstance(name, bytes):
            continue
        for field, content in parts.items():
            if field in _INTEGERS and isinstance(content, int):
                yield name.decode("utf-8", "replace"), content
            elif field == _TEXT and isinstance(content, bytes):
                yield name.decode("utf-8", "replace"), content.decode("utf-8", "replace")


def read_chakra_json(name: str, lines: Iterator[str], out: Observations) -> None:
    """Add the collectives of a rank's JSON trace. Raises ValueError if the trace holds no node."""
    rank = _rank(name)
    ordinals: Counter[tuple[Group, str]] = Counter()
    nodes = 0
    for line in lines:
        try:
            node = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            out.notes.append(f"{name}: cut or damaged after {nodes:,} nodes")
            break
        if not isinstance(node, dict):
            continue
        nodes += 1
        if node.get("type") in ("COMM_COLL_NODE", _COLLECTIVE):
            attributes = dict(_json_attributes(node.get("attr")))
            start, duration = node.get("startTimeMicros"), node.get("durationMicros")
            start = node.get("start_time_micros") if start is None else start
            duration = node.get("duration_micros") if duration is None else duration
            _add(rank, node.get("name"), start, duration, attributes, ordinals, out)
    if not nodes:
        raise ValueError("trace: expected one node of Chakra a line")
    out.place(rank, "")


def _json_attributes(attributes: Any) -> Iterator[tuple[str, Any]]:
    for attribute in attributes[:100] if isinstance(attributes, list) else ():
        if isinstance(attribute, dict):
            for key, value in attribute.items():
                if isinstance(key, str) and key.lower().endswith("val"):
                    yield text(attribute.get("name")), value


def _add(
    rank: int,
    name: Any,
    start_us: Any,
    duration_us: Any,
    attributes: Mapping[str, Any],
    ordinals: Counter[tuple[Group, str]],
    out: Observations,
) -> None:
    label = name.decode("utf-8", "replace") if isinstance(name, bytes) else text(name)
    kind = count(attributes.get("comm_type"), len(_FUNCTIONS) - 1)
    function = _FUNCTIONS[kind] if "comm_type" in attributes else clean_function(label)
    group = Group(text(attributes.get("pg_name")))
    ordinals[group, function] += 1
    out.groups[group] = None
    size = count(attributes.get("comm_size"), 10**15)
    begin_ns, duration_ns = count(start_us, 10**15) * 1000, count(duration_us, 10**12) * 1000
    seq = ordinals[group, function]
    out.spans.append(Span("chakra", rank, group, 0, seq, function, size, begin_ns, duration_ns))
