"""The settings of a Kafka cluster, its address and security, and each client library's options from them.

A secret is given by the path of its file, which is read when a client is created. So no setting, dump or log
line contains a secret.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from schemas import codec
from schemas.input_error import InputError
from schemas.repeat_filter import RepeatFilter
from schemas.strict_model import StrictModel

_log = logging.getLogger(__name__)

ADDRESS: Final = r"([^\s,/:\[\]@]+|\[[0-9a-fA-F:.]+(%[^\s,/\[\]]+)?\]):\d{1,5}"
"""Pattern of one address, `host:port`; the host is a name, an IPv4 address, or an IPv6 one in brackets."""
ADDRESS_EXAMPLE: Final = "kafka1:9092,[fd00::2]:9092"
WORKER_METADATA_MS: Final = 2_000
"""Age at which aiokafka asks for metadata again: a topic that was deleted and made again is read after it."""
LOOPBACK_TTL_MS: Final = 86_400_000
"""Time for which librdkafka keeps a loopback address. The resolver may hide it while a host has no other
address of its family. Any other broker is resolved again: its name may lead to another address."""
CLIENT_METADATA_MS: Final = 5_000
"""The same for librdkafka, of which each host has several clients."""


class KafkaSettings(StrictModel):
    """The Kafka cluster and the schema registry: addresses, TLS, and how clients authenticate."""

    bootstrap: str = Field(
        default="127.0.0.1:19092",
        pattern=rf"^{ADDRESS}(,{ADDRESS})*$",
        examples=[ADDRESS_EXAMPLE],
        description="Kafka addresses, host:port or [IPv6 address]:port, separated by commas",
    )
    tls: bool = Field(default=False, description="whether to encrypt connections to the brokers")
    tls_ca_file: Path | None = Field(
        default=None, description="CA certificates (PEM) of the brokers; without it the system's"
    )
    tls_certificate_file: Path | None = Field(
        default=None, description="this client's certificate (PEM), for mutual TLS"
    )
    tls_key_file: Path | None = Field(default=None, description="private key (PEM) of that certificate")
    tls_key_password_file: Path | None = Field(
        default=None, description="file that holds the password of the private key"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = Field(
        default=None, description="how this client authenticates; without it no SASL"
    )
    sasl_username: str | None = Field(
        default=None, min_length=1, description="user name, or the client id of OAUTHBEARER"
    )
    sasl_password_file: Path | None = Field(
        default=None, description="file that holds the password, or the client secret of OAUTHBEARER"
    )
    oauth_token_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="token endpoint of OAUTHBEARER, for the grant client_credentials",
    )
    oauth_scope: str | None = Field(default=None, min_length=1, description="scope of the tokens")
    schema_registry_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@]+$",
        description="Confluent schema registry; messages then carry its wire format",
    )
    schema_registry_username: str | None = Field(
        default=None, min_length=1, description="user name at the schema registry"
    )
    schema_registry_password_file: Path | None = Field(
        default=None, description="file that holds that user's password"
    )
    schema_registry_ca_file: Path | None = Field(
        default=None, description="CA certificates (PEM) of the schema registry; without it the system's"
    )

    @model_validator(mode="after")
    def _complete(self) -> KafkaSettings:
        """Refuse an incomplete security configuration, which would be less secure than its author expects."""
        for name in ("tls_ca_file", "tls_certificate_file"):
            if getattr(self, name) is not None and not self.tls:
                raise ValueError(f"{name}: expected tls = true as well")
        for name, other in (
            ("tls_key_file", "tls_certificate_file"),
            ("tls_key_password_file", "tls_key_file"),
            ("sasl_username", "sasl_mechanism"),
            ("sasl_mechanism", "sasl_username"),
            ("sasl_username", "sasl_password_file"),
            ("sasl_password_file", "sasl_username"),
            ("schema_registry_username", "schema_registry_password_file"),
            ("schema_registry_password_file", "schema_registry_username"),
        ):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ValueError(f"{name}: expected {other} as well")
        if (self.sasl_mechanism == "OAUTHBEARER") != (self.oauth_token_url is not None):
            raise ValueError("oauth_token_url: expected exactly where sasl_mechanism is OAUTHBEARER")
        return self

    @property
    def security_protocol(self) -> str:
        """The value of Kafka's option `security.protocol`."""
        if self.sasl_mechanism is not None:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    @property
    def is_loopback(self) -> bool:
        """Whether all broker addresses are numeric loopback addresses."""
        addresses = self.bootstrap.split(",")
        return all(_is_loopback(address.rsplit(":", 1)[0].strip("[]")) for address in addresses)

    def confluent_options(self) -> dict[str, Any]:
        """Return the options of confluent-kafka clients. Raises ValueError for an unreadable secret."""
        options: dict[str, object] = {
            "bootstrap.servers": self.bootstrap,
            "topic.metadata.refresh.interval.ms": CLIENT_METADATA_MS,
        }
        if self.security_protocol != "PLAINTEXT":
            options["security.protocol"] = self.security_protocol
        values: dict[str, object] = {
            "ssl.ca.location": self.tls_ca_file,
            "ssl.certificate.location": self.tls_certificate_file,
            "ssl.key.location": self.tls_key_file,
            "ssl.key.password": _secret("tls_key_password_file", self.tls_key_password_file),
            "sasl.mechanism": self.sasl_mechanism,
        }
        password = _secret("sasl_password_file", self.sasl_password_file)
        if self.sasl_mechanism == "OAUTHBEARER":
            values |= {
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": self.oauth_token_url,
                "sasl.oauthbearer.client.id": self.sasl_username,
                "sasl.oauthbearer.client.secret": password,
                "sasl.oauthbearer.scope": self.oauth_scope,
            }
        else:
            values |= {"sasl.username": self.sasl_username, "sasl.password": password}
        return options | {name: str(value) for name, value in values.items() if value is not None}

    def aiokafka_options(self) -> dict[str, Any]:
        """Return the options of aiokafka clients. Raises ValueError for an unreadable secret."""
        options: dict[str, object] = {
            "bootstrap_servers": self.bootstrap,
            "metadata_max_age_ms": WORKER_METADATA_MS,
        }
        if self.security_protocol != "PLAINTEXT":
            options["security_protocol"] = self.security_protocol
        if self.tls:
            options["ssl_context"] = self._tls_context()
        if self.sasl_mechanism is not None:
            options["sasl_mechanism"] = self.sasl_mechanism
        password = _secret("sasl_password_file", self.sasl_password_file)
        if self.oauth_token_url is not None:
            from schemas.kafka.oauth import TokenProvider

            options["sasl_oauth_token_provider"] = TokenProvider(
                self.oauth_token_url, self.sasl_username or "", password or "", self.oauth_scope
            )
        elif self.sasl_mechanism is not None:
            options |= {"sasl_plain_username": self.sasl_username, "sasl_plain_password": password}
        return options

    def registry(self) -> codec.Registry:
        """Return a client of the schema registry; without a registry, a reader of the log's schemas."""
        if self.schema_registry_url is None:
            from schemas.kafka.schema_log import log_schemas

            return log_schemas(self)
        from schemas.kafka.registry import ConfluentRegistry

        password = _secret("schema_registry_password_file", self.schema_registry_password_file)
        user = None if password is None else (self.schema_registry_username or "", password)
        return ConfluentRegistry(self.schema_registry_url, user, self.schema_registry_ca_file)

    def _tls_context(self) -> ssl.SSLContext:
        password = _secret("tls_key_password_file", self.tls_key_password_file)
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            if self.tls_certificate_file is not None:
                # A password must be given: without one OpenSSL asks for it at the terminal.
                context.load_cert_chain(self.tls_certificate_file, self.tls_key_file, password or "")
        except OSError as error:
            files = [self.tls_ca_file, self.tls_certificate_file, self.tls_key_file]
            named = ", ".join(str(file) for file in files if file is not None)
            raise InputError(f"TLS files {named}: {error.strerror or error}") from error
        return context


Compression = Literal["none", "lz4", "zstd"]
KAFKA: Final = Field(default=KafkaSettings(), description="Kafka cluster and schema registry")
COMPRESSION: Final[Any] = Field(default="none", description="compression of messages")
"""Settings fields that every publishing service has."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _secret(name: str, file: Path | None) -> str | None:
    """Return a secret from its file, None without a file. Raises ValueError, with `name`, if unreadable."""
    if file is None:
        return None
    try:
        secret = file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InputError(f"{name} {file}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise InputError(f"{name} {file}: expected UTF-8 text") from None
    if not secret:
        raise InputError(f"{name} {file}: is empty")
    return secret


def as_settings(cluster: KafkaSettings | str) -> KafkaSettings:
    """Return `cluster` as settings; a string is the address of a cluster without security."""
    return KafkaSettings.model_construct(bootstrap=cluster) if isinstance(cluster, str) else cluster


def service_options(cluster: KafkaSettings | str) -> dict[str, Any]:
    """Return a service's options of confluent-kafka, with fast reconnects and errors in our own log."""
    settings = as_settings(cluster)
    loopback = {"broker.address.ttl": LOOPBACK_TTL_MS} if settings.is_loopback else {}
    return {
        **settings.confluent_options(),
        **loopback,
        "broker.address.family": "any",
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 2,
        "statistics.interval.ms": 0,
        "error_cb": partial(_log_repeated, RepeatFilter()),
    }


def _log_repeated(lines: RepeatFilter, error: object) -> None:
    """Log a client's error, unless the same error was logged recently."""
    if (line := lines.due(f"log: {error}")) is not None:
        _log.warning("%s", line)
