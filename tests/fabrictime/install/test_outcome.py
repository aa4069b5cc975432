"""Outcomes of audit checks in the report of an installation."""

from fabrictime.install.outcome import Level, audited
from fabrictime.testbed.audit.recorded import HEALTHY
from producers.audit.checks import CHECKS


def outcome_of(check_id, host):
    (outcome,) = audited("clock", CHECKS[check_id], host)
    return outcome


def test_each_status_has_its_level_and_a_fault_its_remedy():
    host = HEALTHY.copy()
    assert outcome_of("node.clock-source", host).level is Level.OK
    path = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    host.files[path] = "hpet\n"
    fault = outcome_of("node.clock-source", host)
    assert fault.level in (Level.WARNING, Level.FAILED)
    assert fault.fix == CHECKS["node.clock-source"].remedy
    host.denied.add(path)
    unread = outcome_of("node.clock-source", host)
    assert unread.level is Level.WARNING
    assert unread.fix == "Run it as root; the agent's service too"
    del host.files[path]
    host.denied.clear()
    assert outcome_of("node.clock-source", host).level is Level.SKIPPED
