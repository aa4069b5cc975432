"""Implements `codec.Registry` with the Confluent Schema Registry: ids of our schemas, schemas of other ids.

Ids and schemas are requested once and cached for good, because a registry never changes the meaning of an id.
The module needs the extra `registry`. Subjects are the records' full names (RecordNameStrategy), because one
record may be on several topics.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from schemas.input_error import InputError

TIMEOUT_S: Final = 5.0


class RegistryMissing(ImportError):
    """The registry's client library is not installed."""


class RegistryUnavailable(OSError):
    """The schema registry did not answer correctly; the message that needs a schema may still be valid."""


class ConfluentRegistry:
    """A schema registry at `url`. `user`: name and password. `ca_file`: its CA certificates, PEM.

    Raises RegistryMissing if the client library is not installed, ValueError for an invalid URL.
    """

    def __init__(
        self,
        url: str,
        user: tuple[str, str] | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            raise InputError(f"schema_registry_url {origin!r}: expected http://HOST:PORT or https://…")
        client = _library()
        self._url = url
        self._error: type[Exception] = client.error.SchemaRegistryError
        self._schema = client.Schema
        options: dict[str, object] = {"url": url, "timeout": timeout_s, "max.retries": 0}
        if user is not None:
            options["basic.auth.user.info"] = ":".join(user)
        if ca_file is not None:
            options["ssl.ca.location"] = str(ca_file)
        self._client = client.SchemaRegistryClient(options)
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, Mapping[str, Any]] = {}

    def id_of(self, name: str, schema: Mapping[str, Any]) -> int:
        """Return the id of `schema` for record `name`; register the schema if it is new.

        Raises ValueError if the registry refuses the schema, RegistryUnavailable without an answer.
        """
        text = json.dumps(schema)
        schema_id = self._ids.get(text)
        if schema_id is not None:
            return schema_id
        subject = f"{schema['namespace']}.{name}" if "namespace" in schema else name
        try:
            new_id = int(self._client.register_schema(subject, self._schema(text, "AVRO")))
        except self._error as error:
            if getattr(error, "http_status_code", 500) in (409, 422):
                raise InputError(
                    f"schema {subject}: the registry at {self._url} refuses it: {error}"
                ) from error
            raise self._unavailable(error) from error
        except Exception as error:  # the client passes on whatever its HTTP library raises
            raise self._unavailable(error) from error
        self._ids[text] = new_id
        return new_id

    def schema_of(self, schema_id: int | bytes) -> Mapping[str, Any]:
        """Return the Avro schema with this id. Raises KeyError if there is none, or RegistryUnavailable."""
        if isinstance(schema_id, bytes):
            raise KeyError(f"schema {schema_id.hex()}: a schema registry has ids, no fingerprints")
        cached = self._schemas.get(schema_id)
        if cached is not None:
            return cached
        try:
            registered = self._client.get_schema(schema_id)
        except self._error as error:
            if getattr(error, "http_status_code", 500) == 404:
                raise KeyError(f"schema {schema_id}: none at {self._url}") from error
            raise self._unavailable(error) from error
        except Exception as error:  # as above
            raise self._unavailable(error) from error
        try:
            schema = json.loads(registered.schema_str)
        except (TypeError, ValueError) as error:
            raise KeyError(f"schema {schema_id}: no Avro schema at {self._url}") from error
        if not isinstance(schema, dict):
            raise KeyError(f"schema {schema_id}: {schema!r:.80} at {self._url}, expected an Avro record")
        self._schemas[schema_id] = schema
        return schema

    def _unavailable(self, error: Exception) -> RegistryUnavailable:
        return RegistryUnavailable(f"schema registry {self._url}: {type(error).__name__}: {error}"[:300])


def _library() -> Any:
    """Return the Python module of the registry's client library. Raises RegistryMissing if not installed."""
    try:
        # one of its own dependencies warns about another when it is imported
        with warnings.catch_warnings(record=True):
            import confluent_kafka.schema_registry as client
            import confluent_kafka.schema_registry.error  # noqa: F401  (an attribute of `client` from here on)
    except ImportError as error:
        raise RegistryMissing(
            f"schema_registry_url is set, but {error.name} is missing: pip install 'fabrictime[registry]'"
        ) from error
    return client
