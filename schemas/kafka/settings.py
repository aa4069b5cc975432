"""Address and security of a Kafka cluster, and the options of both client libraries that follow from them."""

from __future__ import annotations

import logging
import ssl
import time
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas import codec

__all__ = ["KafkaSettings", "as_settings", "service_options"]

_log = logging.getLogger(__name__)

REPEAT_WARNING_S: Final = 10.0
"""The same complaint of a client is logged at most this often."""


class KafkaSettings(BaseModel):
    """A Kafka cluster: its address, TLS, mutual TLS, SASL and schema registry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bootstrap: str = Field(
        pattern=r"^[^\s,:]+:\d+(,[^\s,:]+:\d+)*$",
        description="Kafka addresses, host:port, separated by commas",
    )
    schema_registry_url: str | None = Field(
        default=None, pattern=r"^https?://\S+$", description="schema registry; none: single-object encoding"
    )
    tls: bool = Field(default=False, description="encrypt connections to the brokers")
    tls_ca_file: str | None = Field(
        default=None, description="certificates that the brokers are checked against"
    )
    tls_certificate_file: str | None = Field(
        default=None, description="this client's certificate, for mutual TLS"
    )
    tls_key_file: str | None = Field(default=None, description="private key of this client's certificate")
    tls_key_password: str | None = Field(default=None, description="password of the private key", repr=False)
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, description="how this client authenticates; none: without SASL"
    )
    sasl_username: str | None = Field(default=None, description="user name for SASL")
    sasl_password: str | None = Field(default=None, description="password for SASL", repr=False)

    @property
    def security_protocol(self) -> str:
        """The value of Kafka's option `security.protocol`."""
        if self.sasl_mechanism is not None:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    def confluent_options(self) -> dict[str, Any]:
        """Return the address and security as options of confluent-kafka."""
        given = {
            "ssl.ca.location": self.tls_ca_file,
            "ssl.certificate.location": self.tls_certificate_file,
            "ssl.key.location": self.tls_key_file,
            "ssl.key.password": self.tls_key_password,
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
        }
        options: dict[str, object] = {"bootstrap.servers": self.bootstrap}
        if self.security_protocol != "PLAINTEXT":
            options["security.protocol"] = self.security_protocol
        return options | {name: value for name, value in given.items() if value is not None}

    def aiokafka_options(self) -> dict[str, Any]:
        """Return the address and security as arguments of aiokafka's clients."""
        options: dict[str, object] = {"bootstrap_servers": self.bootstrap}
        if self.security_protocol != "PLAINTEXT":
            options["security_protocol"] = self.security_protocol
        if self.tls:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            if self.tls_certificate_file is not None:
                context.load_cert_chain(self.tls_certificate_file, self.tls_key_file, self.tls_key_password)
            options["ssl_context"] = context
        if self.sasl_mechanism is not None:
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        return options

    def registry(self) -> codec.Registry | None:
        """Return a client of the schema registry; None if there is none."""
        if self.schema_registry_url is None:
            return None
        from schemas.registry import ConfluentRegistry

        return ConfluentRegistry(self.schema_registry_url)


def as_settings(cluster: KafkaSettings | str) -> KafkaSettings:
    """Return settings for a cluster that is given by its settings, or by its address alone."""
    return KafkaSettings.model_construct(bootstrap=cluster) if isinstance(cluster, str) else cluster


def service_options(cluster: KafkaSettings | str) -> dict[str, Any]:
    """Return the confluent-kafka options of a service: fast reconnects, errors in our own log."""
    return {
        **as_settings(cluster).confluent_options(),
        "broker.address.family": "any",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
        "statistics.interval.ms": 0,
        "error_cb": _RepeatFilter().warn,
    }


class _RepeatFilter:
    """Logs errors of a client, the same one at most every `REPEAT_WARNING_S`."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}

    def warn(self, error: object) -> None:
        line, now_s = str(error), time.monotonic()
        if now_s - self._last_s.get(line, float("-inf")) > REPEAT_WARNING_S:
            if len(self._last_s) > 100:
                self._last_s.clear()
            self._last_s[line] = now_s
            _log.warning("log: %s", line)
