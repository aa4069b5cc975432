"""The lists of `fabrictime topics acls`, enforced by the authorizer of a real Apache Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from schemas.kafka import BEGINNING, KafkaSettings, acls
from schemas.kafka.admin import create_topics
from schemas.kafka.publisher import Publisher, PublishFailed
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader
from schemas.topics import CONFIG, DECISIONS, INVENTORY, PROBES
from tests.kafka.conftest import apache_kafka
from tests.waiting import wait_until

pytestmark = pytest.mark.kafka

USERS = ("broker", "prober", "solve", "actuator", "config", "stranger")
PROPERTIES = """
listeners=CLIENT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}}
advertised.listeners=CLIENT://127.0.0.1:{{port}}
listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  username="broker" password="broker-password" {users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:broker;User:ANONYMOUS
"""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory, kafka_version):
    """The same cluster for each user. Only the controller's own connections are anonymous."""
    folder = tmp_path_factory.mktemp("acls")
    users = " ".join(f'user_{name}="{name}-password"' for name in USERS)
    for name in USERS:
        (folder / name).write_text(f"{name}-password")
    topics = {topic.name: topic for topic in (CONFIG, DECISIONS, INVENTORY, PROBES)}
    with apache_kafka(folder, kafka_version, PROPERTIES.format(users=users)) as address:
        settings = {
            name: KafkaSettings(
                bootstrap=address,
                sasl_mechanism="PLAIN",
                sasl_username=name,
                sasl_password_file=folder / name,
            )
            for name in USERS
        }
        create_topics(settings["broker"], partitions=1, topics=topics)
        admin = AdminClient(settings["broker"].confluent_options())
        for service in ("prober", "solve", "actuator", "config"):
            for created in admin.create_acls(acls.bindings(service, f"User:{service}")).values():
                created.result(30)
        wait_until(lambda: can_write(settings["prober"], PROBES), 30, name="the lists are in force")
        yield settings


def can_write(cluster, topic):
    publisher = Publisher(cluster, options={"delivery.timeout.ms": 5000})
    publisher.send(topic.name, "h1", b"any")
    try:
        publisher.flush(20)
    except PublishFailed:
        return False
    return True


def can_read(cluster, topic):
    try:
        with TopicReader.open(cluster, {topic: BEGINNING}) as reader:
            list(reader.read_to_end())
    except (LogUnavailable, TopicMissing):
        return False
    return True


@pytest.mark.parametrize(
    ("service", "writes"),
    [
        ("prober", {PROBES, INVENTORY}),
        ("solve", {DECISIONS}),
        ("actuator", set()),
        ("config", {CONFIG}),
        ("stranger", set()),
    ],
)
def test_a_service_publishes_to_its_topics_alone(clusters, service, writes):
    topics = (PROBES, INVENTORY, DECISIONS, CONFIG)
    assert {topic for topic in topics if can_write(clusters[service], topic)} == writes


def test_a_service_reads_its_topics_alone(clusters):
    assert can_read(clusters["actuator"], DECISIONS)
    assert can_read(clusters["prober"], INVENTORY)
    assert not can_read(clusters["prober"], DECISIONS)
    assert not can_read(clusters["stranger"], INVENTORY)
