"""Makes hostile records from good ones: well-formed messages that no correct writer sends.

Each message differs from a good one in one aspect: a field at an extreme, a mutated byte, a truncation,
another topic's record, a null, a wrong key, or times long past. The seed determines all messages.
"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import fastavro

from schemas import codec
from schemas.topics import TOPICS

EXTREME_NUMBERS: Final[dict[str, tuple[Any, ...]]] = {
    "int": (-(2**31), 2**31 - 1, -1, 0),
    "long": (-(2**63), 2**63 - 1, -1, 0, 1_795_632_065_339_913_141),
    "float": (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, -1.0),
    "double": (float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1.7e13, -1.0),
}
EXTREME_STRINGS: Final = (
    "",
    "h1/eth1>h2/eth1",
    "/",
    "a/b/c/d",
    ">",
    "x" * 512,
    "\x1b[2J",
    "h1/eth1\n",
    "../../etc/passwd",
    "'; DROP TABLE delays; --",
    "<script>alert(1)</script>",
    "\u202e",
    "no such host/eth9",
    "256.0.0.1",
    "::ffff:10.0.0.1",
)
EXTREME_BYTES: Final = (b"", b"\x00" * 4096, b"\xff")
KINDS: Final = ("extreme", "mutated", "truncated", "foreign", "null", "wrong_key", "old", "nonsense")

MIN_EPOCH_NS: Final = 10**18
"""A long integer of at least this size is taken for a time since the Unix epoch."""
PAST_S: Final = (3600, 10 * 365 * 86400)
"""Range of how much older an old record is than a good one: from an hour to ten years."""

Path = tuple[str | int, ...]


class Message(NamedTuple):
    """A message to publish, with the kind of hostile change in it."""

    topic: str
    key: bytes | None
    value: bytes | None
    kind: str


def places_of(value: Any, schema: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the path and the Avro type of each number, string and bytes of a record."""
    if isinstance(schema, list):
        schema = next(branch for branch in schema if branch != "null")
        if value is None:
            kind = schema["type"] if isinstance(schema, dict) else schema
            if kind in EXTREME_NUMBERS or kind == "string":
                yield path, kind
            return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        for field in schema["fields"]:
            yield from places_of(value[field["name"]], field["type"], (*path, field["name"]))
    elif kind == "array":
        for index, item in enumerate(value[:2]):
            yield from places_of(item, schema["items"], (*path, index))
    elif kind in EXTREME_NUMBERS or kind in ("string", "bytes"):
        yield path, kind


class HostileMaker:
    """Makes hostile messages for all topics from good messages."""

    def __init__(self, good: Mapping[str, Sequence[tuple[bytes | None, bytes]]], seed: int) -> None:
        """Set up the maker from the keys and values of `good` messages by topic.

        A topic without good messages gets only messages of kinds that need none.
        """
        self._good = {topic: list(messages) for topic, messages in good.items() if messages}
        self._random = random.Random(seed)  # noqa: S311  # repeatable, not secret
        self._topics = sorted(self._good)
        self._records: dict[tuple[str, int], Any] = {}
        if not self._topics:
            raise ValueError("no good message of any topic")

    def make(self) -> Message:
        """Return the next hostile message."""
        topic = self._random.choice(self._topics)
        kind = self._random.choice(KINDS)
        index = self._random.randrange(len(self._good[topic]))
        key, value = self._good[topic][index]
        if kind == "extreme":
            return Message(topic, key, self._extreme(topic, index), kind)
        if kind == "mutated":
            return Message(topic, key, self._mutated(value), kind)
        if kind == "truncated":
            return Message(topic, key, value[: self._random.randrange(len(value))], kind)
        if kind == "foreign":
            other = self._random.choice(self._good[self._random.choice(self._topics)])
            return Message(topic, key, other[1], kind)
        if kind == "null":
            return Message(topic, self._strange_key(), None, kind)
        if kind == "wrong_key":
            return Message(topic, self._strange_key(), value, kind)
        if kind == "old":
            return Message(topic, key, self._old(topic, index), kind)
        size = self._random.randrange(64)
        return Message(topic, key, self._random.randbytes(size), kind)

    def _extreme(self, topic: str, index: int) -> bytes:
        """Return an encoded record with one field at an extreme value, without checking it."""
        name = TOPICS[topic].record
        schema = codec.raw_schema(name)
        record = self._record(topic, index, name)
        places = list(places_of(record, schema))
        for _ in range(8):
            path, kind = self._random.choice(places)
            changed = copy.deepcopy(record)
            _put(changed, path, self._value(kind))
            written = _written(name, changed)
            if written is not None:  # fastavro itself refuses some values in a union
                return written
        return codec.header(name)

    def _old(self, topic: str, index: int) -> bytes:
        """Return an encoded good record whose times are moved into the past."""
        name = TOPICS[topic].record
        record = copy.deepcopy(self._record(topic, index, name))
        past_ns = self._random.randint(*PAST_S) * 1_000_000_000
        for path, kind in list(places_of(record, codec.raw_schema(name))):
            value = _at(record, path)
            if kind == "long" and value is not None and value >= MIN_EPOCH_NS:
                _put(record, path, value - past_ns)
        return _written(name, record) or codec.header(name)

    def _record(self, topic: str, index: int, name: str) -> Any:
        record = self._records.get((topic, index))
        if record is None:
            record = self._records[topic, index] = codec.decode(self._good[topic][index][1], name)
        return record

    def _value(self, kind: str) -> Any:
        if kind == "string":
            return self._random.choice(EXTREME_STRINGS)
        if kind == "bytes":
            return self._random.choice(EXTREME_BYTES)
        return self._random.choice(EXTREME_NUMBERS[kind])

    def _mutated(self, value: bytes) -> bytes:
        mutated = bytearray(value)
        for _ in range(self._random.randint(1, 3)):
            mutated[self._random.randrange(len(mutated))] = self._random.randrange(256)
        return bytes(mutated)

    def _strange_key(self) -> bytes | None:
        return self._random.choice(
            (None, b"", b"\xff\xfe", b"nobody/eth0", b"x" * 300, b"another-shard", b"*", b"a>b")
        )


def _at(record: Any, path: Path) -> Any:
    for step in path:
        record = record[step]
    return record


def _put(record: Any, path: Path, value: Any) -> None:
    _at(record, path[:-1])[path[-1]] = value


def _written(name: str, record: Any) -> bytes | None:
    """Encode a record without checking it; return None if Avro cannot encode it."""
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, codec.parsed_schema(name), record)
    except (ValueError, OverflowError, TypeError):
        return None
    return codec.header(name) + out.getvalue()
