"""A Confluent schema registry behind the codec's `Registry`: ids for our schemas, schemas for foreign ids.

Needs the extra `fabrictime[registry]`. Subjects follow the record name strategy: `fabrictime.ProbeBatch`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["ConfluentRegistry"]


class ConfluentRegistry:
    """Asks the registry once for each schema and id, then remembers. Errors of the registry are raised."""

    def __init__(self, url: str) -> None:
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
        except ImportError as error:
            raise RuntimeError(
                f"schema_registry_url {url}: needs the extra fabrictime[registry]: {error}"
            ) from error
        self._schema = Schema
        self._client = SchemaRegistryClient({"url": url})
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, Mapping[str, Any]] = {}

    def id_of(self, name: str, schema: Mapping[str, Any]) -> int:
        """Return the id under which `schema` is registered for `name`; registers it where it is not."""
        if name not in self._ids:
            subject = f"{schema.get('namespace', 'fabrictime')}.{name}"
            self._ids[name] = int(
                self._client.register_schema(subject, self._schema(json.dumps(schema), "AVRO"))
            )
        return self._ids[name]

    def schema_of(self, schema_id: int) -> Mapping[str, Any]:
        """Return the writer's schema of `schema_id`. Raises KeyError where the registry has none."""
        if schema_id not in self._schemas:
            from confluent_kafka.schema_registry.error import SchemaRegistryError

            try:
                text = self._client.get_schema(schema_id).schema_str
            except SchemaRegistryError as error:
                if error.http_status_code == 404:
                    raise KeyError(schema_id) from error
                raise
            self._schemas[schema_id] = json.loads(text or "null")
        return self._schemas[schema_id]
