"""Options of both client libraries from one settings model."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from schemas.kafka.publisher import publisher_options
from schemas.kafka.settings import KafkaSettings, as_settings, service_options

SECURE = KafkaSettings(
    bootstrap="a:9093,b:9093",
    tls=True,
    tls_ca_file="/ca.pem",
    tls_certificate_file="/me.pem",
    tls_key_file="/me.key",
    sasl_mechanism="SCRAM-SHA-512",
    sasl_username="fabrictime",
    sasl_password="secret",
)


def test_a_plain_address_needs_no_other_option():
    assert as_settings("h:1").confluent_options() == {"bootstrap.servers": "h:1"}
    assert as_settings("h:1").aiokafka_options() == {"bootstrap_servers": "h:1"}
    assert as_settings("h:1").registry() is None
    assert publisher_options("h:1") == {"bootstrap.servers": "h:1", "partitioner": "murmur2_random"}


def test_tls_mutual_tls_and_sasl():
    assert SECURE.confluent_options() == {
        "bootstrap.servers": "a:9093,b:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.key",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "fabrictime",
        "sasl.password": "secret",
    }
    assert "secret" not in repr(SECURE)
    plain = KafkaSettings(bootstrap="a:1", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    assert plain.aiokafka_options() == {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    assert KafkaSettings(bootstrap="a:1", tls=True).aiokafka_options()["security_protocol"] == "SSL"


def test_wrong_settings_raise():
    for wrong in ({"bootstrap": "nowhere"}, {"bootstrap": "a:1", "sasl_mechanism": "MAGIC"}):
        with pytest.raises(ValidationError):
            KafkaSettings.model_validate(wrong)


def test_services_log_the_same_error_once(caplog):
    warn = service_options("h:1")["error_cb"]
    warn("down")
    warn("down")
    warn("up")
    assert [record.getMessage() for record in caplog.records] == ["log: down", "log: up"]
