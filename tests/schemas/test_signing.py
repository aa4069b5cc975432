"""Signatures of decisions, fallbacks and config: altered, foreign and replayed records are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.codec import BadRecord
from schemas.input_error import InputError
from schemas.kafka.message import Message
from schemas.signing import SIGNED, ControlSettings, Signer, Verifier, new_key
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, LINK_HEALTH, Topic
from tests.later_schema import OneSchema, colliding_schema, later_schema, signed_later
from tests.records import make


class Keys:
    """Two key pairs in files; the first is accepted."""

    def __init__(self, folder: Path) -> None:
        self.accepted = folder / "accepted.pem"
        self.public = [new_key(folder / name) for name in ("one", "two")]
        self.one, self.two = (Signer(path.with_suffix("")) for path in self.public)
        self.accept(0)

    def accept(self, *numbers: int) -> None:
        self.accepted.write_bytes(b"# accepted\n" + b"\n".join(self.public[n].read_bytes() for n in numbers))

    def verifier(self) -> Verifier:
        return Verifier(self.accepted)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


def message(topic: Topic[Any], key: str, record: Any) -> Message:
    value = None if record is None else codec.encode(topic.record, record)
    return Message(1, topic.name, 0, 0, key, value)


def records() -> dict[Topic[Any], Any]:
    """Return a record of each signed topic, for host h1."""
    return {
        DECISIONS: make("Decision", host="h1", decision_id="s/1/0", shard="s", epoch=1, seq=0),
        FALLBACKS: make("Fallbacks", host="h1", shard="s", epoch=2, seq=3),
        CONFIG: make("ActuatorConfig", host="h1", version=4, at_ns=5),
    }


def reason(verifier: Verifier, checked: Message) -> str:
    with pytest.raises(BadRecord) as caught:
        verifier.check(checked)
    return caught.value.reason


@pytest.mark.parametrize("topic", SIGNED.values(), ids=list(SIGNED))
def test_a_signed_record_is_accepted_and_every_other_is_not(keys: Keys, topic: Topic[Any]) -> None:
    record, verifier = records()[topic], keys.verifier()
    signed = keys.one.signed(topic, "h1", record)
    verifier.check(message(topic, "h1", signed))
    verifier.check(message(topic, "h1", signed))
    assert not record["signature"], "the given record is not changed"
    foreign = keys.two.signed(topic, "h1", record)
    no_key = {**signed, "signature": foreign["signature"][:8] + signed["signature"][8:]}
    for other in (record, foreign, no_key, {**signed, "signature": signed["signature"][:-1]}, None):
        assert reason(verifier, message(topic, "h1", other)) == "FORGED"
    elsewhere = {**signed, "host": "h2"}
    assert reason(verifier, message(topic, "h2", elsewhere)) == "FORGED"
    assert verifier.accepts(message(topic, "h1", signed))
    assert not verifier.accepts(message(topic, "h1", record))


def test_other_topics_carry_no_signature(keys: Keys) -> None:
    keys.verifier().check(Message(1, LINK_HEALTH.name, 0, 0, "a", None))


@given(position=st.integers(0, 10_000), change=st.integers(1, 255), topic=st.sampled_from([*SIGNED.values()]))
def test_a_changed_byte_is_refused(keys: Keys, position: int, change: int, topic: Topic[Any]) -> None:
    signed = codec.encode(topic.record, keys.one.signed(topic, "h1", records()[topic]))
    altered = bytearray(signed)
    altered[position % len(signed)] ^= change
    with pytest.raises(BadRecord):
        keys.verifier().check(Message(1, topic.name, 0, 0, "h1", bytes(altered)))


@given(data=st.binary(max_size=300), topic=st.sampled_from([*SIGNED.values()]))
def test_arbitrary_bytes_are_refused(keys: Keys, data: bytes, topic: Topic[Any]) -> None:
    head = codec.header(topic.record)
    for value in (data, head + data):
        with pytest.raises(BadRecord):
            keys.verifier().check(Message(1, topic.name, 0, 0, "h1", value))


def test_a_record_of_an_older_schema_keeps_its_signature(keys: Keys) -> None:
    """A writer that lacks the newest fields signs its own schema, which readers know."""
    raw = dict(codec.raw_schema("ActuatorConfig"))
    raw["fields"] = [field for field in raw["fields"] if field["name"] != "slices"]

    registry = OneSchema(raw)
    record = dict(records()[CONFIG])
    del record["slices"]

    def encoded(signature: bytes) -> bytes:
        body = codec._written(
            "ActuatorConfig", {**record, "signature": signature}, fastavro.parse_schema(dict(raw))
        )
        return b"\x00\x00\x00\x00\x07" + body

    part, _ = codec.split_signature(encoded(b"x"), "ActuatorConfig", registry)
    signature = keys.one.signature(CONFIG, "h1", part)
    checked = Message(1, CONFIG.name, 0, 0, "h1", encoded(signature))
    keys.verifier().check(checked, registry)
    assert checked.decoded(CONFIG, registry)["slices"] == []


MOVE = {"from_path": 50_000, "to_path": 50_001}


def later_decision(keys: Keys) -> Message:
    """Return a decision that a later version signed."""
    value = signed_later(keys.one, DECISIONS, "h1", {**records()[DECISIONS], **MOVE})
    return Message(1, DECISIONS.name, 0, 0, "h1", value)


def test_a_record_of_a_later_schema_verifies(keys: Keys) -> None:
    _, later = later_schema("Decision")
    documented = {**later, "doc": "another text of the same schema"}
    for schema in (later, documented):
        checked = later_decision(keys)
        keys.verifier().check(checked, OneSchema(schema))
        record = checked.decoded(DECISIONS, OneSchema(schema))
        assert (record["from_path"], record["to_path"]) == (50_000, 50_001)


def test_another_schema_with_the_same_fingerprint_is_refused(keys: Keys) -> None:
    """The fingerprint is a CRC, so a schema with any fingerprint can be made."""
    fingerprint, _ = later_schema("Decision")
    forged = colliding_schema("Decision", "from_path", "to_path")
    assert codec.fingerprint_of_schema(forged) == fingerprint
    checked = later_decision(keys)
    record = checked.decoded(DECISIONS, OneSchema(forged))
    assert (record["from_path"], record["to_path"]) == (50_001, 50_000)
    with pytest.raises(BadRecord, match="not that of its content") as caught:
        keys.verifier().check(checked, OneSchema(forged))
    assert caught.value.reason == "FORGED"


def test_an_equal_canonical_text_gives_no_other_meaning(keys: Keys) -> None:
    """The canonical text has no logical types, and fastavro escapes nothing in names."""
    fingerprint, schema = later_schema("Decision")
    timed, merged, quoted = (copy.deepcopy(schema) for _ in range(3))
    names = [field["name"] for field in schema["fields"]]
    timed["fields"][names.index("at_ns")]["type"] = {"type": "long", "logicalType": "timestamp-millis"}
    for other, mark in ((merged, '"'), (quoted, '\\"')):
        other["fields"][names.index("seq")]["name"] = f'seq{mark},"type":"long"}},{{"name":"at_ns'
        del other["fields"][names.index("at_ns")]
    assert {codec.fingerprint_of_schema(other) for other in (timed, merged)} == {fingerprint}
    checked = later_decision(keys)
    keys.verifier().check(checked, OneSchema(timed))
    genuine = later_decision(keys).decoded(DECISIONS, OneSchema(schema))
    assert checked.decoded(DECISIONS, OneSchema(timed)) == genuine
    for other in (merged, quoted):
        with pytest.raises(BadRecord):
            keys.verifier().check(later_decision(keys), OneSchema(other))


@pytest.mark.parametrize("topic", [CONFIG, DECISIONS])
def test_a_signature_that_is_text_by_its_writers_schema_is_malformed(keys: Keys, topic: Topic[Any]) -> None:
    """A message without a key must not end the process that checks it."""
    raw = copy.deepcopy(codec.raw_schema(topic.record))
    field = next(field for field in raw["fields"] if field["name"] == "signature")
    field["type"] = ["null", "string", "bytes"]
    registry = OneSchema(raw)
    record = {**records()[topic], "signature": "abcdefghijkl"}
    body = codec._written(topic.record, record, fastavro.parse_schema(copy.deepcopy(raw)))
    value = b"\x00\x00\x00\x00\x07" + body
    with pytest.raises(BadRecord, match="expected bytes") as found:
        keys.verifier().check(Message(1, topic.name, 0, 0, "h1", value), registry)
    assert found.value.reason == "MALFORMED"


@pytest.mark.parametrize(
    ("topic", "older"),
    [(CONFIG, {"at_ns": 4}), (FALLBACKS, {"seq": 2}), (FALLBACKS, {"epoch": 1, "seq": 9})],
)
def test_an_older_signed_record_is_a_replay(keys: Keys, topic: Topic[Any], older: dict[str, int]) -> None:
    verifier, record = keys.verifier(), records()[topic]
    verifier.check(message(topic, "h1", keys.one.signed(topic, "h1", record)))
    old = message(topic, "h1", keys.one.signed(topic, "h1", {**record, **older}))
    assert reason(verifier, old) == "REPLAYED"
    restarted = keys.verifier()
    restarted.newest = dict(verifier.newest)
    assert reason(restarted, old) == "REPLAYED"


def test_keys_change_without_a_gap(keys: Keys) -> None:
    keys.accept(0)
    verifier, record = keys.verifier(), records()[DECISIONS]
    by_one, by_two = (
        message(DECISIONS, "h1", key.signed(DECISIONS, "h1", record)) for key in (keys.one, keys.two)
    )
    verifier.check(by_one)
    assert reason(verifier, by_two) == "FORGED"
    keys.accept(0, 1)
    verifier.check(by_one)
    verifier.check(by_two)
    keys.accept(1)
    verifier.check(by_two)
    assert reason(verifier, by_one) == "FORGED"
    keys.accepted.write_text("broken in mid-change")
    verifier.check(by_two)
    keys.accepted.unlink()
    verifier.check(by_two)
    keys.accept(0)


def test_unusable_keys_are_one_line_without_their_text(keys: Keys, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="require_signature: expected accepted_keys_file as well"):
        ControlSettings(require_signature=True)
    assert ControlSettings().verifier() is None
    private = tmp_path / "key"
    for text, expected in ((b"", "no key"), (b"no", "no key"), (keys.public[0].read_bytes(), "no key")):
        private.write_bytes(text)
        private.chmod(0o600)
        with pytest.raises(InputError, match=f"control.signing_key_file {private}: {expected}") as caught:
            ControlSettings(signing_key_file=private).signer()
        assert "\n" not in str(caught.value)
    private.write_bytes(b"")
    private.chmod(0o644)
    with pytest.raises(InputError, match="mode 0644"):
        Signer(private)
    with pytest.raises(InputError, match="no public key"):
        Verifier(private)
    with pytest.raises(InputError, match="No such file"):
        Verifier(tmp_path / "missing")
    assert (keys.public[0].with_suffix("")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("old", "new"), [(b"\x00\x00\x00", b"\x80\x00\x00\x00"), (b"\x00\x00", b"\x03\x00")])
def test_another_encoding_of_the_same_values_is_refused(keys: Keys, old: bytes, new: bytes) -> None:
    signed = codec.encode("Decision", keys.one.signed(DECISIONS, "h1", records()[DECISIONS]))
    places = [at for at in range(len(signed)) if signed[at : at + len(old)] == old]
    assert places
    for at in places:
        value = signed[:at] + new + signed[at + len(old) :]
        assert not keys.verifier().accepts(Message(1, DECISIONS.name, 0, 0, "h1", value))
