"""Options of both client libraries from one settings model."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from pydantic import ValidationError

from schemas.kafka.oauth import TokenProvider
from schemas.kafka.publisher import publisher_options
from schemas.kafka.settings import KafkaSettings, as_settings, service_options

REFRESH = {"topic.metadata.refresh.interval.ms": 5000}
"""A topic that was deleted and made again is found after this time, not after five minutes."""


@pytest.fixture
def files(tmp_path):
    """A certificate with its encrypted key, and the files of two secrets."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -days 1 -subj /CN=me -passout pass:hush -keyout key -out pem"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "key-password").write_text("hush\n")
    (tmp_path / "password").write_text("s3cret \n")
    return tmp_path


def secure(files, **given):
    return KafkaSettings(
        tls=True,
        tls_ca_file=files / "pem",
        tls_certificate_file=files / "pem",
        tls_key_file=files / "key",
        tls_key_password_file=files / "key-password",
        sasl_username="fabrictime",
        sasl_password_file=files / "password",
        **{"bootstrap": "a:9093,b:9093", "sasl_mechanism": "SCRAM-SHA-512", **given},
    )


def test_a_plain_address_needs_no_other_option():
    assert as_settings("h:1").confluent_options() == {"bootstrap.servers": "h:1", **REFRESH}
    assert as_settings("h:1").aiokafka_options() == {"bootstrap_servers": "h:1", "metadata_max_age_ms": 2000}
    assert as_settings("h:1").registry().id_of("Nic", {}) is None, "messages carry fingerprints"
    assert publisher_options("h:1") == {
        "bootstrap.servers": "h:1",
        "partitioner": "murmur2_random",
        **REFRESH,
    }


def test_tls_mutual_tls_and_sasl(files):
    expected = {
        "bootstrap.servers": "a:9093,b:9093",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(files / "pem"),
        "ssl.certificate.location": str(files / "pem"),
        "ssl.key.location": str(files / "key"),
        "ssl.key.password": "hush",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "fabrictime",
        "sasl.password": "s3cret ",
    }
    settings = secure(files)
    assert settings.confluent_options() == expected | REFRESH
    for made in (service_options(settings), publisher_options(settings)):
        assert made.items() >= expected.items()
    options = settings.aiokafka_options()
    assert options.pop("ssl_context").get_ca_certs()[0]["subject"] == ((("commonName", "me"),),)
    assert options == {
        "bootstrap_servers": "a:9093,b:9093",
        "metadata_max_age_ms": 2000,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "fabrictime",
        "sasl_plain_password": "s3cret ",
    }
    assert KafkaSettings(tls=True).aiokafka_options()["security_protocol"] == "SSL"
    without_tls = KafkaSettings(
        sasl_mechanism="PLAIN", sasl_username="u", sasl_password_file=files / "password"
    )
    assert without_tls.aiokafka_options()["security_protocol"] == "SASL_PLAINTEXT"


def test_oauth_for_both_libraries(files):
    settings = secure(
        files, sasl_mechanism="OAUTHBEARER", oauth_token_url="https://id/token", oauth_scope="kafka"
    )
    options = settings.confluent_options()
    assert options["sasl.mechanism"] == "OAUTHBEARER"
    assert {name: value for name, value in options.items() if "oauth" in name} == {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://id/token",
        "sasl.oauthbearer.client.id": "fabrictime",
        "sasl.oauthbearer.client.secret": "s3cret ",
        "sasl.oauthbearer.scope": "kafka",
    }
    assert not options.keys() & {"sasl.username", "sasl.password"}
    for_aiokafka = settings.aiokafka_options()
    assert isinstance(for_aiokafka["sasl_oauth_token_provider"], TokenProvider)
    assert not for_aiokafka.keys() & {"sasl_plain_username", "sasl_plain_password"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_librdkafka_accepts_the_options(files, mechanism):
    oauth = {"oauth_token_url": "http://127.0.0.1:1/token"} if mechanism == "OAUTHBEARER" else {}
    settings = secure(files, bootstrap="127.0.0.1:1", sasl_mechanism=mechanism, **oauth)
    quiet = {**settings.confluent_options(), "log_level": 0}
    Consumer({**quiet, "group.id": "g"}).close()
    Producer(quiet).purge()
    AdminClient(quiet)


def test_no_secret_is_shown(files):
    settings = secure(files)
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert "s3cret" not in text
        assert "hush" not in text


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"bootstrap": "nowhere"}, "bootstrap"),
        ({"sasl_mechanism": "MAGIC"}, "sasl_mechanism"),
        ({"tls_ca_file": "/ca"}, "tls_ca_file: expected tls"),
        ({"tls": True, "tls_key_file": "/key"}, "expected tls_certificate_file"),
        ({"sasl_mechanism": "PLAIN"}, "expected sasl_username"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "u"}, "expected sasl_password_file"),
        ({"sasl_username": "u", "sasl_password_file": "/p"}, "expected sasl_mechanism"),
        ({"oauth_token_url": "https://id/token"}, "oauth_token_url"),
        ({"schema_registry_url": "http://u:p@h"}, "schema_registry_url"),
        ({"schema_registry_username": "u"}, "expected schema_registry_password_file"),
    ],
)
def test_half_a_configuration_is_refused(wrong, named):
    with pytest.raises(ValidationError, match=named):
        KafkaSettings.model_validate({"bootstrap": "a:1", **wrong})


def test_unreadable_files_are_named(files):
    settings = secure(files)
    (files / "key-password").write_text("wrong")
    with pytest.raises(ValueError, match=f"TLS files {files}") as found:
        settings.aiokafka_options()
    assert "wrong" not in str(found.value)
    (files / "password").write_text("\n")
    with pytest.raises(ValueError, match=r"sasl_password_file .*: is empty"):
        settings.confluent_options()
    (files / "password").unlink()
    with pytest.raises(ValueError, match=r"sasl_password_file .*: No such file"):
        settings.confluent_options()


def test_services_log_the_same_error_once(caplog):
    warn = service_options("h:1")["error_cb"]
    warn("down")
    warn("down")
    warn("up")
    assert [record.getMessage() for record in caplog.records] == ["log: down", "log: up"]


@pytest.mark.parametrize(
    ("bootstrap", "is_loopback"),
    [
        ("127.0.0.1:9092", True),
        ("[::1]:9092,127.0.0.2:9092", True),
        ("10.0.0.1:9092", False),  # its brokers may announce names, whose addresses change
        ("[fe80::1%eth0]:9092", False),
        ("kafka1:9092", False),
        ("127.0.0.1:9092,kafka1:9092", False),
    ],
)
def test_only_loopback_addresses_are_resolved_once(bootstrap, is_loopback):
    settings = KafkaSettings(bootstrap=bootstrap)
    assert settings.is_loopback is is_loopback
    assert ("broker.address.ttl" in service_options(settings)) is is_loopback
    Consumer({**service_options(settings), "group.id": "g"}).close()
