"""Answers the Kafka requests DescribeConfigs and AlterConfigs."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from fabrictime.log.errors import Code, LogError
from fabrictime.log.store import Store
from fabrictime.log.wire import Fields

_TOPIC: Final = 2
_BROKER: Final = 4
_SOURCE_TOPIC: Final = 1
_SOURCE_DEFAULT: Final = 5


class ConfigRequests:
    """Handles requests about the configuration of topics and of the broker."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe_configs(self, _: int, fields: Fields) -> Fields:
        """Return the configuration of each requested resource, with a mark on the overrides."""
        return {"resources": [self._describe(resource) for resource in fields["resources"] or ()]}

    def _describe(self, resource: Fields) -> Fields:
        kind, name = resource["resource_type"], resource["resource_name"] or ""
        code, message, entries = Code.NONE, None, []
        try:
            overrides = self._topic_overrides(name) if kind == _TOPIC else {}
            if kind not in (_TOPIC, _BROKER):
                raise LogError(Code.INVALID_REQUEST, f"resource type {kind}: expected a topic or a broker")
            entries = self._entries(overrides, resource["config_names"], read_only=kind == _BROKER)
        except LogError as error:
            code, message = error.code, str(error)
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": kind,
            "resource_name": name,
            "config_entries": entries,
        }

    def _entries(
        self, overrides: dict[str, str], selected_keys: Container[str] | None, read_only: bool
    ) -> list[Fields]:
        return [
            {
                "config_names": key,
                "config_value": value,
                "read_only": read_only,
                "is_default": key not in overrides,
                "config_source": _SOURCE_TOPIC if key in overrides else _SOURCE_DEFAULT,
                "is_sensitive": False,
                "config_synonyms": [],
            }
            for key, value in self._store.full_config(overrides).items()
            if selected_keys is None or key in selected_keys
        ]

    def _topic_overrides(self, name: str) -> dict[str, str]:
        topic = self._store.topics.get(name)
        if topic is None:
            raise LogError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name[:260]!r}: no such topic")
        return topic.overrides

    def alter_configs(self, _: int, fields: Fields) -> Fields:
        """Replace the overrides of topics, or only check them if the client requests a check."""
        answers = []
        for resource in fields["resources"] or ():
            code, message = Code.NONE, None
            kind, name = resource["resource_type"], resource["resource_name"] or ""
            try:
                if kind != _TOPIC:
                    raise LogError(Code.INVALID_REQUEST, f"resource type {kind}: expected a topic")
                self._topic_overrides(name)
                entries = resource["config_entries"] or ()
                config = {entry["config_name"]: entry["config_value"] or "" for entry in entries}
                if fields["validate_only"]:
                    self._store.check_config(config)
                else:
                    self._store.configure(name, config)
            except LogError as error:
                code, message = error.code, str(error)
            answers.append(
                {"error_code": code, "error_message": message, "resource_type": kind, "resource_name": name}
            )
        return {"resources": answers}
