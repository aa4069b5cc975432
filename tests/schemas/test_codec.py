"""The codec: round trips in both wire formats, and one clear refusal for whatever is not an honest record."""

from __future__ import annotations

import copy
import io
import random
import time
import tracemalloc

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import codec
from schemas.codec import BadRecord
from schemas.formats import FORMATS
from schemas.topics import MAX_ELEMENTS, MAX_MESSAGE_BYTES, TOPICS
from tests.examples import examples

RECORDS = sorted({topic.record for topic in TOPICS.values()})
REASONS = {"TRUNCATED", "MALFORMED", "OUT_OF_RANGE", "TOO_LARGE", "UNKNOWN_SCHEMA"}


def read_or_refused(data, name, registry=None):
    """The record, or None where it was refused with a reason that a Reject can carry."""
    try:
        return codec.decode(data, name, registry)
    except BadRecord as refused:
        if refused.reason not in REASONS or "\n" in str(refused) or len(str(refused)) > 400:
            raise
        return None


def unchecked(name, record):
    """`record` on the wire as a writer without checks would put it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, codec.parsed_schema(name), record)
    return codec.header(name) + out.getvalue()


@pytest.mark.parametrize("name", RECORDS)
def test_round_trip_in_both_wire_formats(name, any_value, registry):
    @given(any_value(codec.raw_schema(name)))
    @settings(
        max_examples=examples(40),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    def both(record):
        single = codec.encode(name, record)
        assert single[:2] == b"\xc3\x01"
        assert codec.decode(single, name) == record
        assert codec.body_start(single, name) == 10
        framed = codec.encode(name, record, registry)
        assert framed[0] == 0
        assert framed[5:] == single[10:]
        assert codec.decode(framed, name, registry) == record
        assert codec.body_start(framed, name, registry) == 5
        assert codec.decode(single, name, registry) == record

    both()


def test_the_fingerprint_is_the_standards():
    """The Avro specification's own test vector for CRC-64-AVRO of the schema "int", little endian."""
    assert codec.fingerprint_of_schema("int") == bytes.fromhex("8f5c393f1ad57572")
    assert codec.header("Nic") == b"\xc3\x01" + codec.fingerprint_of("Nic")


def test_a_registry_is_asked_once_for_a_foreign_id(honest, registry):
    message = codec.encode("Nic", honest("Nic"), registry)
    for _ in range(3):
        codec.decode(message, "Nic", registry)
    assert registry.asked == 1


@pytest.mark.parametrize("name", RECORDS)
def test_every_truncation_is_refused(name, honest):
    message = codec.encode(name, honest(name))
    for size in range(len(message)):
        with pytest.raises(BadRecord) as found:
            codec.decode(message[:size], name)
        assert found.value.reason == ("UNKNOWN_SCHEMA" if size < 2 else "TRUNCATED"), size


@pytest.mark.parametrize("name", RECORDS)
def test_mutations_are_read_or_refused(name, honest):
    chance = random.Random(name)
    message = codec.encode(name, honest(name))
    for _ in range(400):
        mutated = bytearray(message)
        for _ in range(chance.randint(1, 4)):
            mutated[chance.randrange(len(mutated))] = chance.choice(
                [0, 1, 127, 128, 255, chance.randrange(256)]
            )
        read_or_refused(bytes(mutated), name)


@given(st.binary(max_size=200), st.sampled_from(RECORDS), st.booleans())
@settings(max_examples=examples(500))
def test_random_bodies_are_read_or_refused(data, name, headed):
    read_or_refused(codec.header(name) + data if headed else data, name)


def test_trailing_bytes_are_refused(honest):
    with pytest.raises(BadRecord, match="2 bytes after the record's end") as found:
        codec.decode(codec.encode("Nic", honest("Nic")) + b"\0\0", "Nic")
    assert found.value.reason == "MALFORMED"


def test_foreign_messages_are_named(honest, registry):
    nic = codec.encode("Nic", honest("Nic"))
    for data, text in (
        (nic, "message holds a Nic"),
        (b"\xc3\x01" + b"12345678" + nic[10:], "3132333435363738 is none of ours"),
        (b"{}", "begins with 7b7d"),
        (b"", "begins with nothing"),
        (b"\x00\x00\x00\x00\x05", "no schema registry is set"),
    ):
        with pytest.raises(BadRecord, match=text) as found:
            codec.decode(data, "Reject")
        assert found.value.reason == "UNKNOWN_SCHEMA"
    with pytest.raises(BadRecord, match="registry has no schema 5"):
        codec.decode(b"\x00\x00\x00\x00\x05", "Reject", registry)
    with pytest.raises(BadRecord, match="message holds a Nic"):
        codec.decode(codec.encode("Nic", honest("Nic"), registry), "Reject", registry)
    with pytest.raises(BadRecord, match="expected a schema id") as found:
        codec.decode(b"\x00\x00", "Reject", registry)
    assert found.value.reason == "TRUNCATED"


def places(schema, path=()):
    """(path, schema, field) of every leaf of a record."""
    for field in schema["fields"]:
        kind, at = field["type"], (*path, field["name"])
        if isinstance(kind, list):
            kind = next(branch for branch in kind if branch != "null")
        if isinstance(kind, dict) and kind["type"] == "array":
            kind, at = kind["items"], (*at, 0)
        if isinstance(kind, dict) and kind["type"] == "array":
            kind, at = kind["items"], (*at, 0)
        if isinstance(kind, dict) and kind["type"] == "record":
            yield from places(kind, at)
        else:
            yield at, kind["type"] if isinstance(kind, dict) else kind, field


def put(record, path, value):
    """`record` with `value` at `path`."""
    changed = at = copy.deepcopy(record)
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed


LEAVING_OUT = {
    name: [field["name"] for field in codec.raw_schema(name)["fields"] if field.get("leave_out")]
    for name in RECORDS
}
LEAVES = [(name, *place) for name in RECORDS for place in places(codec.raw_schema(name))]


@pytest.mark.parametrize(("name", "path", "kind", "limits"), LEAVES)
def test_every_field_refuses_wrong_values(name, path, kind, limits, honest):
    wrong = {
        "double": [float("nan"), float("inf"), float("-inf")],
        "float": [float("nan"), float("inf")],
        "int": [2**31, -(2**31) - 1],
        "string": ["x" * 513, "\x1b[2J"],
        "bytes": [b"x" * 4097],
    }.get(kind, [])
    low, high = limits.get("min"), limits.get("max")
    if low is not None:
        wrong = [*wrong, type(low)(low) - 1 if kind != "float" and abs(low) < 2**53 else 2 * low - 1]
    if high is not None:
        wrong = [*wrong, type(high)(high) + 1 if kind in ("int", "long") else 2 * high + 1]
    for value in wrong:
        try:
            message = unchecked(name, put(honest(name), path, value))
        except (ValueError, OverflowError):  # fastavro itself looks before it writes a union
            continue
        too_large = kind == "bytes" or (kind == "string" and len(value) > 512)
        field = next(step for step in reversed(path) if isinstance(step, str))
        if path[0] in LEAVING_OUT[name]:
            assert codec.decode(message, name)[path[0]] == []
            continue
        with pytest.raises(BadRecord, match=field) as found:
            codec.decode(message, name)
        assert found.value.reason == ("TOO_LARGE" if too_large else "OUT_OF_RANGE")


UNLIMITED = {"run"}
"""Fields whose every value is right: random ids of processes."""


@pytest.mark.parametrize(("name", "path", "kind", "limits"), LEAVES)
def test_every_field_states_its_limits(name, path, kind, limits):
    if kind in ("int", "long", "float", "double") and path[-1] not in UNLIMITED:
        assert limits["min"] <= limits["max"]
    if kind == "string":
        assert FORMATS[limits["format"]].first_wrong([FORMATS[limits["format"]].example]) is None


@pytest.mark.parametrize("number", [-1, -3, 3, 2**40])
def test_enum_numbers_that_are_none(number, honest):
    """fastavro would take -1 for the last symbol."""
    record = honest("PathDelays")
    message = codec.encode("PathDelays", record)
    marked = codec.encode("PathDelays", {**record, "state": "UNSYNCED"})
    at = next(i for i, (a, b) in enumerate(zip(message, marked, strict=True)) if a != b)
    zigzag = (number << 1) ^ (number >> 63)
    wire = bytearray()
    while zigzag >= 0x80:
        wire.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    bad = message[:at] + bytes([*wire, zigzag]) + message[at + 1 :]
    with pytest.raises(BadRecord) as found:
        codec.decode(bad, "PathDelays")
    assert found.value.reason == "OUT_OF_RANGE"


def test_enums_stand_where_the_codec_reads_them():
    """As a record's own field: in arrays and unions the codec would leave them numbers."""

    def walk(schema):
        if isinstance(schema, list):
            assert not any(isinstance(b, dict) and b["type"] == "enum" for b in schema)
            for branch in schema:
                walk(branch)
        elif isinstance(schema, dict) and schema["type"] == "record":
            for field in schema["fields"]:
                walk(field["type"])
        elif isinstance(schema, dict) and schema["type"] == "array":
            assert not (isinstance(schema["items"], dict) and schema["items"]["type"] == "enum")
            walk(schema["items"])

    for name in RECORDS:
        walk(codec.raw_schema(name))


@pytest.mark.parametrize(
    ("name", "field", "limit"),
    [
        ("Nic", "addresses", 1024),
        ("LinkEvent", "paths", MAX_ELEMENTS),
        ("ClockFits", "pairs", MAX_ELEMENTS),
        ("PathMaps", "paths", MAX_ELEMENTS),
        ("ActuatorConfig", "protected_jobs", codec.MAX_ARRAY),
    ],
)
def test_arrays_beyond_reason(honest, name, field, limit):
    """A record of evidence about 65,536 paths took a worker ten seconds."""
    record = honest(name)
    element = record[field][0]
    codec.decode(unchecked(name, put(record, (field,), [element] * limit)), name)
    expected = f"{field}: {limit + 1} elements, expected at most {limit}"
    with pytest.raises(BadRecord, match=expected) as found:
        codec.decode(unchecked(name, put(record, (field,), [element] * (limit + 1))), name)
    assert found.value.reason == "TOO_LARGE"


def test_messages_beyond_reason():
    with pytest.raises(BadRecord, match="expected at most 4194304") as found:
        codec.decode(codec.header("Nic") + b"\0" * MAX_MESSAGE_BYTES, "Nic")
    assert found.value.reason == "TOO_LARGE"


@pytest.mark.parametrize("claim", [2**20, 2**40, 2**62, -(2**40), -1])
@pytest.mark.parametrize("name", RECORDS)
def test_absurd_lengths_take_no_memory(name, claim):
    """The first field of every record is a string, then the claim hits wherever a length may stand."""
    zigzag = (claim << 1) ^ (claim >> 63)
    wire = bytearray()
    while zigzag >= 0x80:
        wire.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    wire.append(zigzag)
    for lead in range(0, 24, 2):
        message = codec.header(name) + b"\0" * lead + bytes(wire) + b"\0" * 64
        tracemalloc.start()
        try:
            read_or_refused(message, name)
            assert tracemalloc.get_traced_memory()[1] < 3_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("name", RECORDS)
def test_writers_obey_the_schema(name, honest):
    record = honest(name)
    with pytest.raises(ValueError, match=name):
        codec.encode(name, {**record, "stranger": 1})
    missing = dict(record)
    del missing[next(iter(record))]
    with pytest.raises(ValueError):
        codec.encode(name, missing)
    with pytest.raises(ValueError):
        codec.encode(name, put(record, (next(iter(record)),), object()))


def test_unknown_names():
    for name in ("Nothing", "../codec", "nic", ""):
        with pytest.raises(KeyError, match="no such schema"):
            codec.raw_schema(name)


def test_body_start_takes_only_our_own_schema(registry, honest):
    other = copy.deepcopy(codec.raw_schema("Nic"))
    other["fields"] = [field for field in other["fields"] if field["name"] != "capabilities"]
    message = b"\x00" + registry.id_of("Nic", other).to_bytes(4, "big")
    with pytest.raises(BadRecord, match="another schema than ours"):
        codec.body_start(message, "Nic", registry)


def of_one_field(kind, **limits):
    return {"type": "record", "name": "Nic", "fields": [{"name": "x", "type": kind, **limits}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"name": "Nic"},
        {"type": "record", "name": "Nic", "fields": 7},
        of_one_field("nowhere.Known"),
        of_one_field({"type": "array", "items": "null"}),
        of_one_field({"type": "array", "items": {"type": "record", "name": "N", "fields": []}}),
        of_one_field({"type": "map", "values": "null"}),
        of_one_field({"type": "array", "items": "Nic"}),
        of_one_field("long", min="low"),
        of_one_field("long", max=10**400),
        of_one_field({"type": "array", "items": "long"}, max_items="few"),
    ],
)
def test_registered_schemas_that_are_none_are_refused(schema, registry):
    """An array of nothing would let six bytes stand for a billion elements, and a type in itself would cost a
    level of the stack for each byte.
    """
    registry.schemas[7] = schema
    with pytest.raises(BadRecord) as found:
        codec.decode(b"\x00\x00\x00\x00\x07" + b"\xfe\xff\xff\xff\x0f\0", "Nic", registry)
    assert found.value.reason == "UNKNOWN_SCHEMA"


def test_values_of_foreign_writers_are_checked_too(registry, honest):
    """A writer with another schema, whose NaN is in a field that we know."""
    other = copy.deepcopy(codec.raw_schema("ClockOffsets"))
    other["fields"].append({"name": "extra", "type": "string"})
    record = {**honest("ClockOffsets"), "extra": "x"}
    number = registry.id_of("ClockOffsets", other)

    def written(record):
        out = io.BytesIO(b"\x00" + number.to_bytes(4, "big"))
        out.seek(5)
        fastavro.schemaless_writer(out, fastavro.parse_schema(copy.deepcopy(other)), record)
        return out.getvalue()

    read = codec.decode(written(record), "ClockOffsets", registry)
    assert read == honest("ClockOffsets")
    bad = codec.decode(
        written(put(record, ("clocks", 0, "drift_ppb"), float("nan"))), "ClockOffsets", registry
    )
    assert bad == {**read, "clocks": []}, "the bad clock is left out"
    with pytest.raises(BadRecord, match="parts: -1"):
        codec.decode(written(put(record, ("parts",), -1)), "ClockOffsets", registry)


def test_a_registry_that_is_away_is_no_verdict_on_the_message(honest):
    class Away:
        def id_of(self, name, schema):
            return 1

        def schema_of(self, schema_id):
            raise ConnectionError("registry is away")

    with pytest.raises(ConnectionError):
        codec.decode(b"\x00\x00\x00\x00\x01", "Nic", Away())


def test_six_hundred_pairs_are_read_in_milliseconds(honest):
    record = honest("ClockFits")
    record["pairs"] = record["pairs"] * 600
    message = codec.encode("ClockFits", record)
    best = 1.0
    for _ in range(5):
        begin = time.perf_counter()
        codec.decode(message, "ClockFits")
        best = min(best, time.perf_counter() - begin)
    assert best < 0.02  # about 1 ms on an idle core
