"""Derives access control lists of Apache Kafka: a service may use only the topics that name it.

A prober, for example, may not publish a decision. `schemas/topics.py` lists each topic's writers and readers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from schemas.topics import SCHEMAS, TOPICS

GROUPS: Final = {"actuator": "fabrictime-act-"}
"""Prefix of a service's consumer groups, where it differs from the common one."""
COMMON_GROUPS: Final = "fabrictime"
NOT_DEPLOYED: Final = frozenset({"bench", "sim"})
"""Writers and readers that run without an Apache Kafka."""


@dataclass(frozen=True, slots=True)
class Acl:
    """The operations that a service may perform on some resources of one type, such as topics."""

    operations: tuple[str, ...]
    resource: str
    """topic or group."""
    names: tuple[str, ...]
    is_prefix: bool = False


def services() -> list[str]:
    """Return the deployed services that the table of topics names as writers or readers, sorted."""
    names = {name for topic in TOPICS.values() for name in (*topic.writers, *topic.readers)}
    return sorted(names - NOT_DEPLOYED)


def acls_of(service: str) -> list[Acl]:
    """Return a service's access control lists. Raises ValueError if the service is unknown."""
    if service not in services():
        raise ValueError(f"service {service!r}: expected one of {', '.join(services())}")
    names: dict[tuple[str, ...], list[str]] = {}
    for name, topic in TOPICS.items():
        rights = [("Read", topic.readers), ("Write", topic.writers)]
        operations = tuple(operation for operation, users in rights if service in users)
        if operations:
            names.setdefault(("Describe", *operations), []).append(name)
    names.setdefault(("Describe", "Read"), []).append(SCHEMAS.name)
    acls = [Acl(operations, "topic", tuple(names[operations])) for operations in sorted(names)]
    group = GROUPS.get(service, COMMON_GROUPS)
    return [*acls, Acl(("Read",), "group", (group,), is_prefix=True)]


def command_lines(service: str, principal: str) -> Iterator[str]:
    """Yield options of Kafka's `kafka-acls.sh` that grant a service's access to `principal`."""
    for acl in acls_of(service):
        operations = " ".join(f"--operation {operation}" for operation in acl.operations)
        names = " ".join(f"--{acl.resource} {name}" for name in acl.names)
        pattern = " --resource-pattern-type prefixed" if acl.is_prefix else ""
        yield f"--add --allow-principal {principal} {operations} {names}{pattern}"


def bindings(service: str, principal: str) -> list[Any]:
    """Return a service's access control lists as `AclBinding` objects of confluent-kafka's admin client."""
    from confluent_kafka import admin as _admin

    admin: Any = _admin  # its names are not exported explicitly
    return [
        admin.AclBinding(
            admin.ResourceType[acl.resource.upper()],
            name,
            admin.ResourcePatternType.PREFIXED if acl.is_prefix else admin.ResourcePatternType.LITERAL,
            principal,
            "*",
            admin.AclOperation[operation.upper()],
            admin.AclPermissionType.ALLOW,
        )
        for acl in acls_of(service)
        for name in acl.names
        for operation in acl.operations
    ]
