"""Mutual TLS and SASL against an Apache Kafka that accepts nothing else."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from schemas.kafka import BEGINNING, KafkaSettings
from schemas.kafka.admin import create_topics
from schemas.kafka.async_reader import AsyncTopicReader
from schemas.kafka.publisher import Publisher, PublishFailed
from schemas.kafka.reader import LogUnavailable, TopicReader
from schemas.records import LinkHealth
from schemas.topics import LINK_HEALTH
from tests.kafka.conftest import apache_kafka
from tests.records import make

pytestmark = pytest.mark.kafka

PROPERTIES = """
listeners=CLIENT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}}
advertised.listeners=CLIENT://127.0.0.1:{{port}}
listener.security.protocol.map=CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  username="broker" password="b" user_broker="b" user_fabrictime="s3cret";
ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.both
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
"""
NEW_KEY = "openssl req -newkey rsa:2048 -nodes -keyout"


def certificates(folder):
    """Write a CA, and a certificate with its key for the broker and for a client."""
    commands = [f"{NEW_KEY} ca.key -x509 -days 2 -subj /CN=ca -out ca.pem"]
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        commands += [
            f"{NEW_KEY} {name}.key -subj /CN={name} -out {name}.csr",
            f"openssl x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 "
            f"-extfile names -out {name}.pem",
        ]
    for command in commands:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    both = [(folder / f"server.{kind}").read_text() for kind in ("key", "pem")]
    (folder / "server.both").write_text("".join(both))


@pytest.fixture(scope="module")
def secured(tmp_path_factory, kafka_version):
    """Settings for a secured broker, and the folder of their files."""
    folder = tmp_path_factory.mktemp("secured")
    certificates(folder)
    (folder / "password").write_text("s3cret\n")
    (folder / "wrong").write_text("guess\n")
    with apache_kafka(folder, kafka_version, PROPERTIES.format(folder=folder)) as address:
        yield (
            KafkaSettings(
                bootstrap=address,
                tls=True,
                tls_ca_file=folder / "ca.pem",
                tls_certificate_file=folder / "client.pem",
                tls_key_file=folder / "client.key",
                sasl_mechanism="PLAIN",
                sasl_username="fabrictime",
                sasl_password_file=folder / "password",
            ),
            folder,
        )


def test_every_client_connects(secured):
    settings, _ = secured
    create_topics(settings, partitions=1, topics={LINK_HEALTH.name: LINK_HEALTH})
    publisher = Publisher(settings)
    publisher.publish(LINK_HEALTH, "a:1<>b:1", make(LinkHealth, subject="a:1<>b:1"))
    publisher.flush(30)
    with TopicReader.open(settings, {LINK_HEALTH: BEGINNING}) as reader:
        assert [message.key for message in reader.read_to_end()] == ["a:1<>b:1"]

    async def read():
        async with AsyncTopicReader(settings) as reader:
            await reader.assign({LINK_HEALTH: BEGINNING})
            found = []
            while not await reader.caught_up():
                found += await reader.poll(0.1)
            return [message.key for message in found]

    assert asyncio.run(read()) == ["a:1<>b:1"]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"sasl_password_file": "wrong"}, "Authentication failed"),
        ({"tls_ca_file": "client.pem"}, "certificate verify failed"),
    ],
)
def test_the_cause_of_a_refusal_is_named_without_the_secret(secured, change, cause):
    settings, folder = secured
    wrong = settings.model_copy(update={key: folder / name for key, name in change.items()})
    with pytest.raises(LogUnavailable, match=cause) as found:
        TopicReader.open(wrong, {LINK_HEALTH: BEGINNING})
    assert "guess" not in str(found.value)
    publisher = Publisher(wrong)
    publisher.publish(LINK_HEALTH, "x", None)
    with pytest.raises(PublishFailed):
        publisher.flush(1)
