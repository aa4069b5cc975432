"""`fabrictime_client.records`: other programs read the topics, with nothing of fabrictime installed."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.runtime.topics_admin import publish_schemas
from fabrictime_client.records import RecordsError, _Decoder, records
from schemas import codec
from schemas.topics import TOPICS
from tests.embedded_log import EmbeddedLog, log_fixture  # noqa: F401 - a fixture
from tests.records import make
from tools.release_schemas import without_docs

ROOT = Path(__file__).resolve().parents[2]
DECODER = _Decoder({"bootstrap.servers": "127.0.0.1:9"})
DECODER._read_s = float("inf")  # it asks no log


def alert(text: str) -> dict[str, object]:
    record: dict[str, object] = make("Alert", text=text, subject="h1/eth1", alert_id=f"LINK:{text}:1")
    return record


def test_records_are_read_from_the_beginning_to_the_end(log: EmbeddedLog) -> None:
    for number in range(5):
        log.put("fabric.alerts", f"h{number}", alert(f"alert {number}"))
    read = list(records("fabric.alerts", log.bootstrap, start="beginning", follow=False))
    assert sorted((record.key, (record.value or {})["text"]) for record in read) == [
        (f"h{number}", f"alert {number}") for number in range(5)
    ]
    assert all(record.append_ns > 1_700_000_000 * 10**9 for record in read)
    (newest,) = {record.topic for record in read}
    assert newest == "fabric.alerts"


def test_seconds_before_now_and_new_records(log: EmbeddedLog) -> None:
    log.put("fabric.alerts", "h1", alert("before"))
    reader = records("fabric.alerts", log.bootstrap, start=3600.0)
    assert (next(reader).value or {})["text"] == "before"
    log.put("fabric.alerts", "h1", alert("after"))
    assert (next(reader).value or {})["text"] == "after"
    reader.close()
    assert list(records("fabric.alerts", log.bootstrap, follow=False)) == []


def test_a_bad_message_is_skipped_with_a_line(log: EmbeddedLog, caplog: pytest.LogCaptureFixture) -> None:
    newer = b"\xc3\x01" + bytes(8) + b"body"
    for data in (b"", b"{}", newer, codec.encode("Alert", alert("x"))[:-3]):
        log.put("fabric.alerts", "h1", data)
    log.put("fabric.alerts", "h1", alert("good"))
    with caplog.at_level(logging.WARNING):
        (record,) = records("fabric.alerts", log.bootstrap, start="beginning", follow=False)
    assert (record.value or {})["text"] == "good"
    assert len(caplog.messages) == 5  # the last one: there is no topic of schemas
    assert "schema 0000000000000000: unknown here and on fabric.schemas" in caplog.text


def test_a_record_of_a_later_version_is_read_by_its_schema_on_the_log(
    log: EmbeddedLog, caplog: pytest.LogCaptureFixture
) -> None:
    schema = json.loads(json.dumps(without_docs(codec.raw_schema("Alert"))))
    schema["fields"].append({"name": "later", "type": "string", "default": ""})
    fingerprint = codec.fingerprint_of_schema(schema)
    body = codec.encode("Alert", alert("later"))[codec.HEADER_BYTES :] + b"\x06red"
    published = {
        fingerprint.hex(): json.dumps(schema),
        "22" * 8: "[1]",
        "no fingerprint": "{}",
        "33" * 8: "[",
    }
    publish_schemas(log.bootstrap)
    for key, text in published.items():
        log.put("fabric.schemas", key, text.encode())
    for marked in (b"\x22" * 8, fingerprint):
        log.put("fabric.alerts", "h1", codec.SINGLE_OBJECT + marked + body)
    with caplog.at_level(logging.WARNING):
        [record] = records("fabric.alerts", log.bootstrap, start="beginning", follow=False)
    assert record.value == {**alert("later"), "later": "red"}
    assert len(caplog.messages) == 3


def test_an_unreadable_topic_is_one_line(log: EmbeddedLog) -> None:
    with pytest.raises(RecordsError, match=r"topic fabric\.nosuch: Broker: Unknown topic"):
        next(records("fabric.nosuch", log.bootstrap))
    with pytest.raises(RecordsError, match="start 'now': expected 'beginning', 'end' or seconds before now"):
        next(records("fabric.alerts", log.bootstrap, start="now"))


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_the_packed_schemas_read_each_topic(topic: str) -> None:
    record = make(TOPICS[topic].record)
    assert DECODER._decode(codec.encode(TOPICS[topic].record, record)) == codec.decode(
        codec.encode(TOPICS[topic].record, record), TOPICS[topic].type
    )


@given(st.binary(max_size=64), st.sampled_from(sorted(TOPICS)), st.integers(0, 200))
def test_any_bytes_are_a_record_or_a_line(noise: bytes, topic: str, at: int) -> None:
    whole = codec.encode(TOPICS[topic].record, make(TOPICS[topic].record))
    for data in (noise, whole[:at] + noise, whole[:10] + noise):
        message = SimpleNamespace(
            topic=lambda: topic, partition=lambda: 0, offset=lambda: 0, key=lambda: noise,
            value=lambda data=data: data, timestamp=lambda: (2, 1),
        )  # fmt: skip
        record = DECODER.record_of(message)
        assert record is None or isinstance(record.value, dict)


def test_without_the_extra_one_line_names_the_installation(made: SimpleNamespace) -> None:
    program = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        f"sys.path.insert(0, {str(made.PYTHON_CLIENT)!r})\n"
        "from fabrictime_client.records import records\n"
        "try: next(records('fabric.alerts'))\n"
        "except RuntimeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "confluent_kafka is missing: pip install 'fabrictime-client[records]'\n"


def test_kcat_shows_keys_and_sizes_as_documented(log: EmbeddedLog) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("no kcat (Debian: apt-get install kcat)")
    log.put("fabric.alerts", "h1", alert("x"))
    line = next(line for line in (ROOT / "docs" / "clients.md").read_text().splitlines() if "kcat -b" in line)
    arguments = shlex.split(line.partition("#")[0].replace("kafka:9092", log.bootstrap))
    done = subprocess.run([kcat, *arguments[1:]], capture_output=True, text=True, check=True, timeout=30)
    assert re.fullmatch(r"h1 \d{13} \d+ bytes\n", done.stdout)
