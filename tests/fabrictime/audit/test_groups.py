"""Results of a fleet by check, cause, host, action and value."""

from collections import Counter

from fabrictime.audit.groups import (
    Level,
    check_groups,
    host_rows,
    level_of,
    of_category,
    spreads,
    worklist,
    worst_of,
)
from schemas.records import AuditAction, AuditCategory
from tests.fabrictime.audit.fleets import F, P, S, U, fact, finding, fleet, result

MTU, NUMA, ECC = "backend.mtu", "software.numa-balancing", "node.ecc"


def test_a_failed_check_has_the_level_of_its_severity() -> None:
    assert level_of(result(MTU, "h1", F)) is Level.ERROR
    assert level_of(result(NUMA, "h1", F)) is Level.WARNING
    assert [level_of(result(NUMA, "h1", status)) for status in (U, P, S)] == [
        Level.UNKNOWN,
        Level.PASSED,
        Level.SKIPPED,
    ]
    assert worst_of({Level.PASSED: 3, Level.UNKNOWN: 1, Level.ERROR: 0}) is Level.UNKNOWN
    assert worst_of({}) is Level.SKIPPED


def test_checks_are_ordered_by_the_number_of_their_errors() -> None:
    groups = check_groups(fleet(64))
    assert [group.check for group in groups[:4]] == [MTU, "backend.port-state", ECC, NUMA]
    assert (groups[0].failed, groups[0].hosts, groups[0].level) == (4, 64, Level.ERROR)
    assert groups[-1].level in (Level.PASSED, Level.SKIPPED)
    assert [category for category, _ in of_category(groups)][:2] == [
        AuditCategory.SOFTWARE,
        AuditCategory.NODE,
    ]


def test_hosts_with_the_same_text_are_one_cause() -> None:
    (group,) = check_groups(
        [
            result(MTU, "n10", F, "1500"),
            result(MTU, "n2", F, "1500"),
            result(MTU, "n3", F, "4200"),
            result(MTU, "n4", U, "denied"),
            result(MTU, "n5"),
        ]
    )
    assert [(each.text, each.hosts) for each in group.causes(Level.ERROR)] == [
        ("1500", ("n2", "n10")),
        ("4200", ("n3",)),
    ]
    assert [each.hosts for each in group.causes(Level.UNKNOWN)] == [("n4",)]
    assert group.causes(Level.PASSED) == []


def test_a_host_has_its_findings_ports_and_strongest_action() -> None:
    ports = [finding("ACTIVE", P, "mlx5_0"), finding("DOWN", F, "mlx5_1")]
    rows = host_rows(
        [
            result(NUMA, "n2", F),
            result(MTU, "n2", F),
            result("backend.port-state", "n2", F, findings=ports, sku="h100"),
            result(NUMA, "n1", F),
        ]
    )
    assert [(row.host, row.level, row.action, row.connections.active) for row in rows] == [
        ("n1", Level.WARNING, None, ""),
        ("n2", Level.ERROR, AuditAction.REPLACE, "1 of 2"),
    ]
    assert [each["check"] for each in rows[1].open] == [MTU, "backend.port-state", NUMA]
    assert rows[1].by_category[AuditCategory.BACKEND] == Counter({Level.ERROR: 2})
    assert list(worklist(rows)) == [(AuditAction.REPLACE, ["n2"])]


def test_values_that_differ_are_found_within_a_machine_type() -> None:
    def with_facts(host: str, sku: str, kernel: str, memory: float) -> object:
        facts = [fact("kernel", kernel), fact("memory_gib", memory), fact("equal", "x")]
        return result(ECC, host, facts=facts, sku=sku)

    found = spreads(
        [
            with_facts("n1", "h100", "6.8", 2015),
            with_facts("n2", "h100", "6.8", 2015),
            with_facts("n3", "h100", "6.5", 1951),
            with_facts("m1", "mi300x", "5.15", 1511),
        ]
    )
    kernel, memory = found
    assert (kernel.name, kernel.sku) == ("kernel", "h100")
    assert kernel.values == (("6.8", ("n1", "n2")), ("6.5", ("n3",)))
    assert kernel.figures is None
    assert memory.range == (1951, 2015, 2015)
