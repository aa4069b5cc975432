"""Checks of the services that an agent needs: Kafka with its topics, and ClickHouse."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fabrictime.install.outcome import Level, Outcome
from fabrictime.runtime.config import Config
from schemas import table_statements, tables
from schemas.kafka.admin import (
    TIMESTAMP_TYPE,
    TopicFault,
    TopicsError,
    allowed_operations,
    broker_values,
    topic_faults,
)
from schemas.kafka.reader import check_reachable
from schemas.topics import TOPICS

TIMEOUT_S: Final = 5.0
AGENT_SERVICES: Final = frozenset({"prober", "flows", "collectives", "auditor", "actuator"})
"""Writers and readers in the table of topics that run on a host."""
RIGHTS: Final = ("SELECT", "INSERT", "CREATE TABLE", "CREATE VIEW", "ALTER TABLE")
"""Rights of the history sink in the database."""
MAX_NAMES: Final = 4
REBALANCE_DELAY: Final = "group.initial.rebalance.delay.ms"
REBALANCE_DELAY_MS: Final = 500
"""The delay that docker-compose.yml and the guide set. With Kafka's default of 3,000 ms, a service whose
group has one member, such as link health, waits so long at each start."""
MAX_REBALANCE_DELAY_MS: Final = 1_000


def kafka_outcomes(config: Config) -> Iterator[Outcome]:
    """Yield outcomes for Kafka: reachable, topics, partition counts, append time, permissions, brokers."""
    kafka = config.kafka
    try:
        check_reachable(kafka)
        faults = topic_faults(
            kafka,
            partitions=config.log.partitions,
            retention_hours=config.log.retention_hours,
            timeout_s=TIMEOUT_S,
        )
    except (TopicsError, ValueError) as error:
        fix = f"check the address up.log_url = {kafka.bootstrap}, the brokers and the [kafka] table"
        yield Outcome("kafka", "reachable", Level.FAILED, str(error), fix)
        return
    yield Outcome("kafka", "reachable", Level.OK, kafka.bootstrap)
    yield from _topics(faults)
    yield from _permissions(config)
    try:
        yield _rebalance_delay(broker_values(kafka, REBALANCE_DELAY, TIMEOUT_S))
    except TopicsError as error:
        yield Outcome("kafka", "rebalance delay", Level.SKIPPED, f"{REBALANCE_DELAY}: {error}")


def _rebalance_delay(values: Mapping[int, str | None]) -> Outcome:
    """Return the outcome for the brokers' setting `REBALANCE_DELAY`. `values` is its value by broker id."""
    check = "rebalance delay"
    delays_ms = {number: int(value) for number, value in values.items() if value is not None}
    slow = [str(number) for number, delay_ms in delays_ms.items() if delay_ms > MAX_REBALANCE_DELAY_MS]
    if not delays_ms:
        return Outcome("kafka", check, Level.SKIPPED, f"the broker has no {REBALANCE_DELAY}")
    longest_ms = max(delays_ms.values())
    if not slow:
        return Outcome("kafka", check, Level.OK, f"{longest_ms} ms")
    text = (
        f"{REBALANCE_DELAY} is {longest_ms} on broker {_listed(slow)}: "
        f"a service whose group has one member reads nothing for {longest_ms / 1000:g} s after each start"
    )
    fix = f"set {REBALANCE_DELAY}={REBALANCE_DELAY_MS} in server.properties of each broker, and restart it"
    return Outcome("kafka", check, Level.WARNING, text, fix)


def _topics(faults: Sequence[TopicFault]) -> Iterator[Outcome]:
    """Yield one outcome per kind of topic fault, with the names of the topics."""
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for fault in faults:
        kinds[fault.text, fault.fix].append(fault.topic)
    for (text, fix), names in kinds.items():
        check = (
            "append time" if TIMESTAMP_TYPE in text else "partitions" if "partitions" in text else "topics"
        )
        yield Outcome("kafka", check, Level.FAILED, f"{_listed(names)}: {text}", fix)
    if not faults:
        counts = f"{len(TOPICS)} topics, their partitions and settings are as expected"
        yield Outcome("kafka", "topics", Level.OK, counts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _permissions(config: Config) -> Iterator[Outcome]:
    written = {topic.name for topic in TOPICS.values() if AGENT_SERVICES & set(topic.writers)}
    read = {topic.name for topic in TOPICS.values() if AGENT_SERVICES & set(topic.readers)}
    try:
        allowed = allowed_operations(config.kafka, sorted(written | read), TIMEOUT_S)
    except TopicsError as error:
        yield Outcome("kafka", "permissions", Level.WARNING, str(error), "run it again")
        return
    if not allowed:
        yield Outcome("kafka", "permissions", Level.SKIPPED, "the broker states no permissions")
        return
    for operation, names in (("WRITE", written), ("READ", read)):
        denied = sorted(name for name in names & allowed.keys() if operation not in allowed[name])
        if denied:
            user = config.kafka.sasl_username or "the agent's user"
            fix = (
                f"kafka-acls.sh --add --allow-principal User:{user} "
                f"--operation {operation} --topic {denied[0]}"
            )
            text = f"{operation} is denied on {_listed(denied)}"
            yield Outcome("kafka", "permissions", Level.FAILED, text, fix)
            return
    yield Outcome("kafka", "permissions", Level.OK, f"WRITE on {len(written)} topics, READ on {len(read)}")


def history_outcomes(config: Config) -> Iterator[Outcome]:
    """Yield outcomes for ClickHouse: reachable, tables, rights. The agent itself does not need ClickHouse."""
    if config.up.history_url is None:
        text = "up.history_url is not set; an agent needs no ClickHouse"
        yield Outcome("history", "reachable", Level.SKIPPED, text)
        return
    try:
        created = _query(config, f"{table_statements.CREATED.format(database=tables.DATABASE)} FORMAT JSON")
    except (OSError, ValueError) as error:
        fix = "check up.history_url, up.history_user and up.history_password_file"
        yield Outcome("history", "reachable", Level.FAILED, f"{config.history_url}: {error}", fix)
        return
    yield Outcome("history", "reachable", Level.OK, config.history_url)
    yield _tables(config, created)
    for right in RIGHTS:
        yield from _right(config, right)


def _tables(config: Config, created: Sequence[dict[str, Any]]) -> Outcome:
    history = config.streams.history
    days = tables.DAYS if history is None else history.retention.by_table()
    rows = [(row["name"], row["create_table_query"], row["columns"]) for row in created]
    statements = table_statements.missing(rows, days)
    if not statements:
        return Outcome("history", "tables", Level.OK, f"{len(rows)} tables of the contract are there")
    text = f"{len(statements)} statements would change tables, the first: {statements[0]:.60}"
    fix = "start the history sink, which makes tables: fabrictime service sink --config FILE"
    return Outcome("history", "tables", Level.WARNING, text, fix)


def _right(config: Config, right: str) -> Iterator[Outcome]:
    """Yield the outcome of a check whether the user has a right that the history sink needs."""
    try:
        (row,) = _query(config, f"CHECK GRANT {right} ON {tables.DATABASE}.* FORMAT JSON")
    except (OSError, ValueError) as error:
        yield Outcome("history", "rights", Level.SKIPPED, f"{right}: {error}")
        return
    user = config.up.history_user
    if next(iter(row.values())) in (1, "1", True):
        yield Outcome("history", "rights", Level.OK, f"{user} has {right}")
    else:
        fix = f"GRANT {right} ON {tables.DATABASE}.* TO {user}"
        yield Outcome("history", "rights", Level.FAILED, f"{user} has no {right} on {tables.DATABASE}", fix)


def _query(config: Config, statement: str) -> list[dict[str, Any]]:
    """Return the rows of a ClickHouse statement. Raises OSError or ValueError with a message of one line."""
    request = urllib.request.Request(config.history_url, statement.encode())  # noqa: S310 - http by the settings
    password = _password(config.up.history_password_file)
    credentials = f"{config.up.history_user}:{password}".encode()
    request.add_header("Authorization", f"Basic {base64.b64encode(credentials).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            rows: list[dict[str, Any]] = json.load(answer)["data"]
            return rows
    except urllib.error.HTTPError as error:
        with error:
            line = " ".join(error.read(400).decode("utf-8", "replace").split())
        raise ValueError(line or f"status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None


def _password(file: Path | None) -> str:
    return "" if file is None else file.read_text(encoding="utf-8").strip("\r\n")
