"""Administers a Kafka cluster: creates, checks and deletes topics; describes and deletes consumer groups.

Topics follow `schemas.topics`. No partition count is changed, or a NIC's records would move.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka import admin as _admin

from schemas.input_error import InputError
from schemas.kafka.settings import KafkaSettings, as_settings
from schemas.topics import TOPICS, Partitions, Topic

TIMEOUT_S: Final = 30.0
TIMESTAMP_TYPE: Final = "message.timestamp.type"
_LOG_APPEND_TIME: Final = "LogAppendTime"
admin: Any = _admin  # its names are imported there without being exported
LOG: Final = logging.getLogger(__name__)


class TopicsError(InputError):
    """The cluster cannot be reached, or topics differ from the contract; the text has one line per fault."""


class TopicFault(NamedTuple):
    """A topic that differs from the contract, and the command that corrects the difference."""

    topic: str
    text: str
    fix: str


class GroupsError(InputError):
    """The cluster cannot be reached, or refuses to delete a consumer group, which the text names."""


def _client(cluster: KafkaSettings | str, **options: object) -> Any:
    """Return an admin client that logs nothing: its errors are raised instead."""
    quiet = logging.getLogger(f"{__name__}.librdkafka")
    quiet.propagate = False
    return admin.AdminClient({**as_settings(cluster).confluent_options(), **options}, logger=quiet)


def group_state(cluster: KafkaSettings | str, group: str, timeout_s: float = TIMEOUT_S) -> tuple[str, int]:
    """Return a consumer group's state and number of members. Raises KafkaException or TimeoutError."""
    client = _client(cluster)
    description = client.describe_consumer_groups([group], request_timeout=timeout_s)[group].result(timeout_s)
    return description.state.name, len(description.members)


def create_topic(
    cluster: KafkaSettings | str, name: str, partitions: int, config: Mapping[str, str] | None = None
) -> None:
    """Create one topic that is not in the contract. Raises TopicsError."""
    client = _client(cluster)
    topic = admin.NewTopic(name, partitions, 1, config=dict(config or {}))
    error_text = _failure(client.create_topics([topic])[name], TIMEOUT_S)
    if error_text is not None:
        raise TopicsError(f"{name}: not created: {error_text}")


def delete_topics(cluster: KafkaSettings | str, names: Iterable[str]) -> None:
    """Delete topics with all their messages. Raises TopicsError."""
    client = _client(cluster)
    for name, deletion in client.delete_topics(list(names)).items():
        error_text = _failure(deletion, TIMEOUT_S)
        if error_text is not None:
            raise TopicsError(f"{name}: not deleted: {error_text}")


def delete_groups(cluster: KafkaSettings | str, names: Iterable[str]) -> None:
    """Delete consumer groups without members, with their offsets. Raises GroupsError."""
    client = _client(cluster)
    for name, deletion in client.delete_consumer_groups(list(names)).items():
        error_text = _failure(deletion, TIMEOUT_S)
        if error_text is not None:
            raise GroupsError(f"group {name}: not deleted: {error_text}")


def topic_config(cluster: KafkaSettings | str, name: str) -> dict[str, str]:
    """Return the configuration of a topic. Raises KafkaException or TimeoutError."""
    client = _client(cluster)
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, name)
    entries = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    return {key: str(entry.value) for key, entry in entries.items()}


def create_topics(
    cluster: KafkaSettings | str,
    *,
    partitions: int = 8,
    replication: int = 1,
    retention_hours: Mapping[str, float] | None = None,
    topics: Mapping[str, Topic] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Create the topics that are missing on the cluster, and set the configuration of the others.

    `retention_hours`: hours by the name of a topic's retention setting. Returns a line of text per topic.
    Raises TopicsError if the cluster is silent, refuses, or has a topic with a wrong partition count.
    """
    expected_topics = TOPICS if topics is None else topics
    hours = retention_hours or {}
    settings = as_settings(cluster)
    client = _client(settings, **{"socket.timeout.ms": round(timeout_s * 1000)})
    present = _present(client, settings, timeout_s)
    there = [topic for topic in expected_topics.values() if topic.name in present]
    missing = [
        _new(topic, partitions, replication, hours)
        for topic in expected_topics.values()
        if topic.name not in present
    ]
    # All topics are checked before one is created: a later attempt must not meet half of them.
    counts = {topic.name: len(present[topic.name].partitions) for topic in there}
    wrong = other_partitions(there, counts, partitions, bool(missing))
    lines: dict[str, str] = {}
    if not wrong:
        lines |= _configure(client, there, hours, timeout_s, wrong)
    if missing and not wrong:
        lines |= _create(client, missing, timeout_s, wrong)
    if wrong:
        raise TopicsError("\n".join(wrong))
    return [lines[name] for name in expected_topics if name in lines]


def broker_values(
    cluster: KafkaSettings | str, key: str, timeout_s: float = TIMEOUT_S
) -> dict[int, str | None]:
    """Return the configuration value `key` of each broker, by broker id; None where the key is missing.

    Raises TopicsError if the cluster does not answer or denies DescribeConfigs.
    """
    client = _client(cluster, **{"socket.timeout.ms": round(timeout_s * 1000)})
    try:
        numbers = sorted(client.list_topics(timeout=timeout_s).brokers)
        resources = [admin.ConfigResource(admin.ResourceType.BROKER, str(number)) for number in numbers]
        descriptions = client.describe_configs(resources, request_timeout=timeout_s)
        configs = [descriptions[resource].result(timeout_s) for resource in resources]
    except (KafkaException, TimeoutError) as error:
        raise TopicsError(f"log {as_settings(cluster).bootstrap}: {_text(error)}") from None
    return {
        number: getattr(config.get(key), "value", None)
        for number, config in zip(numbers, configs, strict=True)
    }


def topic_faults(
    cluster: KafkaSettings | str,
    *,
    partitions: int = 8,
    retention_hours: Mapping[str, float] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[TopicFault]:
    """Return the differences of the cluster's topics from the contract, without changing any topic.

    The arguments are those of `create_topics`. Raises TopicsError if the cluster does not answer.
    """
    client = _client(cluster, **{"socket.timeout.ms": round(timeout_s * 1000)})
    present = _present(client, as_settings(cluster), timeout_s)
    there = [topic for topic in TOPICS.values() if topic.name in present]
    absent = [name for name in TOPICS if name not in present]
    create = "fabrictime topics create"
    faults = [TopicFault(name, "is missing", create) for name in absent]
    counts = {topic.name: len(present[topic.name].partitions) for topic in there}
    for line in other_partitions(there, counts, partitions, bool(absent)):
        name, _, text = line.partition(": ")
        difference, _, remedy = text.partition("; nothing was created: ")
        faults.append(TopicFault(name, difference, remedy))
    differing, _, unread = _differing_configs(client, there, retention_hours or {}, timeout_s)
    for name, values in differing.items():
        if not values:
            continue
        others = ", ".join(f"{key} is not {value}" for key, value in sorted(values.items()))
        faults.append(TopicFault(name, others, create))
    for line in unread:
        name, _, text = line.partition(": ")
        faults.append(TopicFault(name, text, "allow DescribeConfigs"))
    return faults


def allowed_operations(
    cluster: KafkaSettings | str, names: Sequence[str], timeout_s: float = TIMEOUT_S
) -> dict[str, frozenset[str]]:
    """Return, by topic, the operations that the cluster allows this client, such as READ and WRITE.

    A topic is left out if it is missing or hidden, or if the broker does not report permissions. Raises
    TopicsError if the cluster does not answer.
    """
    client = _client(cluster, **{"socket.timeout.ms": round(timeout_s * 1000)})
    descriptions = client.describe_topics(
        TopicCollection(list(names)), include_authorized_operations=True, request_timeout=timeout_s
    )
    allowed: dict[str, frozenset[str]] = {}
    for name, description in descriptions.items():
        try:
            operations = description.result(timeout_s).authorized_operations
        except KafkaException as error:
            if "TRANSPORT" in _text(error) or "TIMED_OUT" in _text(error):
                raise TopicsError(f"log {as_settings(cluster).bootstrap}: {_text(error)}") from None
            continue
        if operations:
            allowed[name] = frozenset(operation.name for operation in operations)
    return allowed


def _present(client: Any, settings: KafkaSettings, timeout_s: float) -> dict[str, Any]:
    try:
        present: dict[str, Any] = client.list_topics(timeout=timeout_s).topics
    except KafkaException as error:
        raise TopicsError(f"log {settings.bootstrap}: {_text(error)}") from None
    return present


def other_partitions(
    there: Sequence[Topic], counts: Mapping[str, int], partitions: int, incomplete: bool
) -> list[str]:
    """Return a line, with the remedy, for each topic whose number of partitions is not the expected one.

    `incomplete`: other topics are missing, so a client or the broker probably created these topics.
    """
    data = {counts[topic.name] for topic in there if topic.partitions is Partitions.DATA}
    same = f"set log.partitions = {min(data)}, or " if len(data) == 1 and not incomplete else ""
    lines = []
    for topic in there:
        expected, count = _partitions(topic, partitions), counts[topic.name]
        if count != expected:
            remedy = f"{same if topic.partitions is Partitions.DATA else ''}delete it and create it again"
            cause = "; the broker's auto.create.topics.enable must be false" if incomplete else ""
            lines.append(
                f"{topic.name}: has {count} partitions, expected {expected} (log.partitions); "
                f"nothing was created: {remedy}{cause}"
            )
    return lines


def _create(client: Any, missing: list[Any], timeout_s: float, wrong: list[str]) -> dict[str, str]:
    creations: dict[str, Future[None]] = client.create_topics(missing, request_timeout=timeout_s)
    lines: dict[str, str] = {}
    for new in missing:
        error_text = _failure(creations[new.topic], timeout_s)
        if error_text is None:
            lines[new.topic] = f"{new.topic}: created, {new.num_partitions} partitions"
        elif "TOPIC_ALREADY_EXISTS" not in error_text:
            wrong.append(f"{new.topic}: not created: {error_text}")
        else:
            lines[new.topic] = f"{new.topic}: created by another at the same time"
    return lines


def _partitions(topic: Topic, data: int) -> int:
    return data if topic.partitions is Partitions.DATA else 1


def _config(topic: Topic, hours: Mapping[str, float]) -> dict[str, str]:
    return topic.config(retention_hours=hours.get(topic.retention_setting or ""))


def _new(topic: Topic, partitions: int, replication: int, hours: Mapping[str, float]) -> Any:
    return admin.NewTopic(
        topic.name, _partitions(topic, partitions), replication, config=_config(topic, hours)
    )


def _configure(
    client: Any, topics: list[Topic], hours: Mapping[str, float], timeout_s: float, wrong: list[str]
) -> dict[str, str]:
    """Set differing values that the broker supports; return a text by topic; append failures to `wrong`."""
    differing_by_topic, stamped, unread = _differing_configs(client, topics, hours, timeout_s)
    wrong += unread
    lines: dict[str, str] = {}
    changes: dict[str, tuple[Any, list[str]]] = {}
    for name, differing in differing_by_topic.items():
        lines[name] = f"{name}: is there"
        if differing:
            entries = [
                admin.ConfigEntry(
                    name,
                    value,
                    admin.ConfigSource.DYNAMIC_TOPIC_CONFIG,
                    incremental_operation=admin.AlterConfigOpType.SET,
                )
                for name, value in differing.items()
            ]
            resource = admin.ConfigResource(admin.ResourceType.TOPIC, name, incremental_configs=entries)
            changes[name] = (resource, sorted(differing))
    if changes:
        altered = [resource for resource, _ in changes.values()]
        set_ = client.incremental_alter_configs(altered, request_timeout=timeout_s)
        for name, (resource, keys) in changes.items():
            error_text = _failure(set_[resource], timeout_s)
            if error_text is None:
                lines[name] = f"{name}: is there, set {', '.join(keys)}"
            elif stamped.get(name):
                wrong.append(
                    f"{name}: {TIMESTAMP_TYPE} is {stamped[name]}, expected {_LOG_APPEND_TIME}, "
                    f"and could not be set: {error_text}"
                )
            elif "UNSUPPORTED" in error_text:
                lines[name] = f"{name}: is there; {', '.join(keys)} differ, but this broker sets them itself"
            else:
                wrong.append(f"{name}: {', '.join(keys)} not set: {error_text}")
    return lines


def _differing_configs(
    client: Any, topics: Sequence[Topic], hours: Mapping[str, float], timeout_s: float
) -> tuple[dict[str, dict[str, str]], dict[str, str | None], list[str]]:
    """Return, by topic, the expected configuration values that the topic does not have.

    Also return wrong values of `message.timestamp.type`, and a line per configuration that was not read.
    """
    resources = {topic.name: admin.ConfigResource(admin.ResourceType.TOPIC, topic.name) for topic in topics}
    differing: dict[str, dict[str, str]] = {}
    stamped: dict[str, str | None] = {}
    unread: list[str] = []
    if not topics:
        return differing, stamped, unread
    descriptions = client.describe_configs(list(resources.values()), request_timeout=timeout_s)
    for topic in topics:
        try:
            present = descriptions[resources[topic.name]].result(timeout_s)
        except (KafkaException, TimeoutError) as error:
            unread.append(f"{topic.name}: configuration not read: {_text(error)}")
            continue
        differing[topic.name] = {
            name: value
            for name, value in _config(topic, hours).items()
            if _policy(name, getattr(present.get(name), "value", None)) != _policy(name, value)
        }
        if TIMESTAMP_TYPE in differing[topic.name]:
            stamped[topic.name] = getattr(present.get(TIMESTAMP_TYPE), "value", None)
    return differing, stamped, unread


def _policy(name: str, value: str | None) -> str | None:
    """Return a configuration value; the list of `cleanup.policy` is sorted, so that values compare."""
    return ",".join(sorted(value.split(","))) if name == "cleanup.policy" and value else value


def _failure(future: Future[Any], timeout_s: float) -> str | None:
    try:
        future.result(timeout_s)
    except (KafkaException, TimeoutError) as error:
        return _text(error)
    return None


def _text(error: BaseException) -> str:
    inner = error.args[0] if error.args else error
    name = inner.name() if hasattr(inner, "name") else type(error).__name__
    detail = inner.str() if hasattr(inner, "str") else str(error)
    return f"{name}: {detail}".strip()
