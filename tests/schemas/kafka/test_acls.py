"""Access control lists: they follow the table of topics, and nobody but the policy may publish decisions."""

from __future__ import annotations

import pytest

from schemas.kafka import acls
from schemas.topics import CONFIG, DECISIONS, FALLBACKS, TOPICS


def written(service: str) -> set[str]:
    return {name for acl in acls.acls_of(service) if "Write" in acl.operations for name in acl.names}


def test_each_service_writes_the_topics_of_its_table_entry_alone() -> None:
    for service in acls.services():
        assert written(service) == {name for name, topic in TOPICS.items() if service in topic.writers}
    deciding = {service for service in acls.services() if DECISIONS.name in written(service)}
    assert (
        deciding
        == {service for service in acls.services() if FALLBACKS.name in written(service)}
        == {"solve"}
    )
    assert {service for service in acls.services() if CONFIG.name in written(service)} == {"config"}


def test_bindings_and_command_lines_are_the_same_lists() -> None:
    for service in acls.services():
        lines = list(acls.command_lines(service, f"User:{service}"))
        options = sum(
            (line.count("--topic ") + line.count("--group ")) * line.count("--operation ") for line in lines
        )
        bindings = acls.bindings(service, f"User:{service}")
        assert len(set(bindings)) == len(bindings)
        assert len(bindings) == options > 0
        assert {binding.principal for binding in bindings} == {f"User:{service}"}


def test_an_unknown_service_is_named() -> None:
    with pytest.raises(ValueError, match="service 'probe': expected one of actuator, "):
        acls.acls_of("probe")
