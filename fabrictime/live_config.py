"""What is told live: read, change and compare the records of `fabric.config`.

In: names and values from the command line, the records that stand. Out: one new `ActuatorConfig`, checked
against the table of thresholds and the schema before it is published; tables and JSON of what is in force.
"""

from __future__ import annotations

import getpass
import json
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from schemas import codec
from schemas.topics import CONFIG
from streams.config import EVERYONE
from streams.solve.thresholds import THRESHOLDS, Thresholds, check_value

__all__ = ["Line", "LiveRecords", "changed", "lines", "parse_rule", "with_rule"]

CONNECT_TIMEOUT_S: Final = 5.0
SILENT_S: Final = 10.0
MODES: Final = ("OBSERVE", "ACT", "UNKNOWN")
RULE_FIELDS: Final = ("name", "from_group", "to_group", "p99_us", "for_s")


@dataclass(frozen=True, slots=True)
class Line:
    """One threshold in force; `set_by`: the key that sets it, None where it is the default."""

    name: str
    value: float
    default: float
    least: float
    most: float
    set_by: str | None
    doc: str


def lines(records: Mapping[str, Mapping[str, Any]], host: str = EVERYONE) -> list[Line]:
    """Return every threshold as it is in force at a host, by name."""
    keys = [key for key in dict.fromkeys((EVERYONE, host)) if key in records]
    values, _ = Thresholds.of(records[key] for key in keys)
    source: dict[str, str] = {}
    for key in keys:
        source |= {each["name"]: key for each in records[key]["thresholds"]}
    return [
        Line(name, values[name], t.default, t.least, t.most, source.get(name), t.doc)
        for name, t in sorted(THRESHOLDS.items())
    ]


def changed(
    record: Mapping[str, Any] | None, host: str, settings: Sequence[str], unset: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the record that follows `record` once `NAME=VALUE` settings are made and others taken back.

    Raises ValueError where a name or value is none, or nothing would change.
    """
    found = _next(record, host)
    values = {each["name"]: each["value"] for each in found["thresholds"]}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r}: expected NAME=VALUE")
        if name == "mode":
            if text not in MODES:
                raise ValueError(f"mode {text!r}: expected one of {', '.join(MODES)}")
            found["mode"] = text
            continue
        try:
            number = float(text)
        except ValueError:
            raise ValueError(f"threshold {name}: {text!r}, expected a number") from None
        values[name] = check_value(name, number)
    for name in unset:
        if name not in values:
            raise ValueError(f"threshold {name}: not set for {host}, nothing to take back")
        del values[name]
    found["thresholds"] = [{"name": name, "value": values[name]} for name in sorted(values)]
    return _checked(found, record)


def parse_rule(name: str, way: str, p99_us: float, for_s: float) -> dict[str, Any]:
    """Return the promise that a delay keeps; `way`: FROM>TO, two groups. Raises ValueError."""
    source, arrow, target = way.partition(">")
    if not arrow or not source or not target:
        raise ValueError(f"{way!r}: expected FROM>TO, as in 'rack:r3>rack:r7'")
    if not p99_us > 0 or for_s < 0:
        raise ValueError(f"rule {name}: p99_us {p99_us:g} and {for_s:g} s, expected above 0 and 0 or more")
    return dict(zip(RULE_FIELDS, (name, source, target, p99_us, for_s), strict=True))


def with_rule(
    record: Mapping[str, Any] | None, host: str, name: str, rule: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the record that follows `record` with a latency rule of that name, or, None, without it.

    Raises ValueError where there is none to take back.
    """
    found = _next(record, host)
    rules = {each["name"]: each for each in found["latency_rules"]}
    if rule is None and name not in rules:
        raise ValueError(f"rule {name}: not set for {host}, nothing to take back")
    if rule is None:
        del rules[name]
    else:
        rules[name] = dict(rule)
    found["latency_rules"] = [rules[each] for each in sorted(rules)]
    return _checked(found, record)


def _next(record: Mapping[str, Any] | None, host: str) -> dict[str, Any]:
    if not host or len(host) > 128 or any(c.isspace() for c in host):
        raise ValueError(f"host {host!r}: expected a host's name or *")
    old = record or {"version": 0, "mode": "UNKNOWN", "thresholds": [], "latency_rules": []}
    return {
        **old, "host": host, "version": old["version"] + 1, "at_ns": time.time_ns(),
        "by": f"{getpass.getuser()}@{socket.gethostname()}",
        "thresholds": list(old["thresholds"]), "latency_rules": list(old["latency_rules"]),
    }  # fmt: skip


def _checked(found: dict[str, Any], record: Mapping[str, Any] | None) -> dict[str, Any]:
    said = ("mode", "thresholds", "latency_rules")
    before = record or {"mode": "UNKNOWN", "thresholds": [], "latency_rules": []}
    if all(found[name] == before[name] for name in said):
        raise ValueError(f"{found['host']}: nothing would change")
    codec.decode(codec.encode(CONFIG.record, found), CONFIG.record)
    return found


class LiveRecords:
    """The newest record of each key of `fabric.config` at a log."""

    def __init__(self, bootstrap: str, registry: codec.Registry | None = None) -> None:
        """Read them all. Raises ValueError where the log or the topic is not there."""
        self._bootstrap, self._registry = bootstrap, registry
        self.records: dict[str, dict[str, Any]] = {}
        self._read()

    def _read(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap, "group.id": "fabrictime-config",
                "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0,
                "fetch.wait.max.ms": 50,
            }
        )  # fmt: skip
        try:
            try:
                known = consumer.list_topics(timeout=CONNECT_TIMEOUT_S).topics
            except KafkaException as error:
                raise ValueError(
                    f"log {self._bootstrap}: {error.args[0].str()}; is `fabrictime up` running?"
                ) from None
            if CONFIG.name not in known or not known[CONFIG.name].partitions:
                raise ValueError(f"topic {CONFIG.name}: does not exist at {self._bootstrap}")
            open_ = set(known[CONFIG.name].partitions)
            consumer.assign([TopicPartition(CONFIG.name, number, OFFSET_BEGINNING) for number in open_])
            heard_s = time.monotonic()
            while open_:
                for message in consumer.consume(500, 0.1):
                    heard_s = time.monotonic()
                    wrong = message.error()
                    if wrong is None:
                        self._take(message.key() or b"", message.value())
                    elif wrong.code() == KafkaError._PARTITION_EOF:
                        open_.discard(message.partition())
                if time.monotonic() - heard_s > SILENT_S:
                    raise ValueError(f"log {self._bootstrap}: no answer for {SILENT_S:g} s")
        finally:
            consumer.close()

    def _take(self, key: bytes, value: bytes | None) -> None:
        host = key.decode("utf-8", "replace")
        if value is None:
            self.records.pop(host, None)
            return
        try:
            self.records[host] = codec.decode(value, CONFIG.record, self._registry)
        except codec.BadRecord:  # what nobody can read is as if it were not there
            return

    def publish(self, record: Mapping[str, Any]) -> None:
        """Publish a record and wait for the log. Raises ValueError where it does not take it."""
        from confluent_kafka import Producer

        failed: list[str] = []
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap, "partitioner": "murmur2_random",
                "enable.idempotence": True, "log_level": 0, "delivery.timeout.ms": 10_000,
            }
        )  # fmt: skip
        producer.produce(
            CONFIG.name, codec.encode(CONFIG.record, record, self._registry), record["host"],
            on_delivery=lambda error, _: failed.append(error.str()) if error is not None else None,
        )  # fmt: skip
        if producer.flush(12) or failed:
            raise ValueError(f"log {self._bootstrap}: {failed[0] if failed else 'no answer'}; nothing is set")
        self.records[record["host"]] = dict(record)


def as_json(records: Mapping[str, Mapping[str, Any]], found: Sequence[Line]) -> str:
    """Return thresholds in force, latency rules and the records' versions as one line of JSON."""
    return json.dumps(
        {
            "thresholds": [asdict(line) for line in found],
            "latency_rules": [
                {**rule, "set_by": key} for key in sorted(records) for rule in records[key]["latency_rules"]
            ],
            "records": {
                key: {name: records[key][name] for name in ("version", "at_ns", "by", "mode")}
                for key in sorted(records)
            },
        },
        allow_nan=False,
    )


def show(records: Mapping[str, Mapping[str, Any]], found: Sequence[Line]) -> None:
    """Print thresholds, latency rules, and who set them."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(box=None, pad_edge=False)
    for title, side in (("threshold", "left"), ("value", "right"), ("default", "right"), ("takes", "right"),
                        ("set by", "left"), ("what it is", "left")):  # fmt: skip
        table.add_column(title, justify=side, no_wrap=title != "what it is")  # type: ignore[arg-type]
    for line in found:
        style = "bold" if line.set_by is not None else ""
        table.add_row(
            line.name, f"{line.value:g}", f"{line.default:g}", f"{line.least:g} to {line.most:g}",
            line.set_by or "-", line.doc, style=style,
        )  # fmt: skip
    console.print(table, highlight=False)
    for key in sorted(records):
        for rule in records[key]["latency_rules"]:
            console.print(
                f"rule {rule['name']}: p99 from {rule['from_group']} to {rule['to_group']} at most "
                f"{rule['p99_us']:g} us, above it for at most {rule['for_s']:g} s (set by {key})",
                highlight=False,
            )
    for key in sorted(records):
        record = records[key]
        console.print(
            f"{key}: version {record['version']} by {record['by']}, mode {record['mode']}", highlight=False
        )
