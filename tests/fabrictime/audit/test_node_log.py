"""What the log knows of nodes."""

from actuators.nodes.fitness import Fitness
from fabrictime.audit.node_log import read_audits
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.topics import AUDIT
from tests.actuators.audit_results import run_of


def test_audits_are_read_to_the_end(log):
    cluster = KafkaSettings(bootstrap=log)
    publisher = Publisher(cluster)
    for record in run_of("h1", "a1", ["node.ecc"]) + run_of("h2", "a2"):
        publisher.publish(AUDIT, record["run"], record)
    publisher.send(AUDIT.name, "a1", b"garbage")
    publisher.flush(10)
    assert read_audits(cluster, "a1", 60).fitness("h1", 0).fitness is Fitness.UNFIT
    assert read_audits(cluster, "a1", 60).fitness("h2", 0).fitness is Fitness.UNKNOWN
    assert read_audits(cluster, None, 60).fitness("h2", 0).fitness is Fitness.FIT
