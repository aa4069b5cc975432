"""What the log knows of nodes."""

from actuators.nodes.fitness import Fitness
from fabrictime.audit.node_log import NodeLog, read_audits
from fabrictime.commands.config.live_config import PLAIN
from schemas.kafka.publisher import Publisher
from schemas.kafka.settings import KafkaSettings
from schemas.records import ActionOutcome, ActMode
from schemas.topics import AUDIT, CONFIG
from tests.actuators.audit_results import run_of


def test_audits_limits_and_reports_are_read_to_the_end(log):
    cluster = KafkaSettings(bootstrap=log)
    publisher = Publisher(cluster)
    for record in run_of("h1", "a1", ["node.ecc"]) + run_of("h2", "a2"):
        publisher.publish(AUDIT, record["run"], record)
    publisher.send(AUDIT.name, "a1", b"garbage")
    publisher.publish(CONFIG, "*", {**PLAIN, "mode": ActMode.ACT})
    publisher.publish(CONFIG, "h2", {**PLAIN, "host": "h2", "mode": ActMode.OBSERVE})
    publisher.publish(CONFIG, "h1", {**PLAIN, "host": "h1", "mode": ActMode.OBSERVE})
    publisher.publish(CONFIG, "h1", None)
    publisher.flush(10)
    found = NodeLog.read(cluster, 60)
    assert found.audits.hosts == ["h1", "h2"]
    assert (found.limits_of("h1").act, found.limits_of("h2").act) == (True, False)
    assert not found.is_reported("drain h1 a1", ActionOutcome.APPLIED)
    assert read_audits(cluster, "a1", 60).fitness("h1", 0).fitness is Fitness.UNFIT
    assert read_audits(cluster, "a1", 60).fitness("h2", 0).fitness is Fitness.UNKNOWN
    assert read_audits(cluster, None, 60).fitness("h2", 0).fitness is Fitness.FIT
