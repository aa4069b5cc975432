"""Simulated results of a fleet, with planted faults, for the tests of the audit's report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fabrictime.audit.collect import Collector
from fabrictime.audit.report import AuditReport
from producers.audit.checks import CHECKS
from schemas.records import AuditFact, AuditFinding, AuditResult, AuditStatus

START_NS = 1_795_000_000_000_000_000
P, F, U, S = AuditStatus.PASSED, AuditStatus.FAILED, AuditStatus.UNKNOWN, AuditStatus.SKIPPED


def result(
    check: str, host: str, status: AuditStatus = P, text: str = "as expected", **more: object
) -> AuditResult:
    """Return the result of a real check on a host."""
    declared = CHECKS[check]
    record: AuditResult = {
        "run": "r1", "host": host, "shard": "s0", "sku": "", "check": check,
        "category": declared.category, "title": declared.title, "status": status,
        "severity": declared.severity, "action": declared.action, "remedy": declared.remedy, "text": text,
        "checked_ns": START_NS, "took_ns": 1_000_000, "checks": len(CHECKS),
        "findings": [finding(text, status)], "facts": [],
    }  # fmt: skip
    record.update(more)  # type: ignore[typeddict-item]
    return record


def report(results: Iterable[AuditResult], missing: Iterable[str] = ()) -> AuditReport:
    """Return the report of these results, as the collector makes it."""
    found = [each | {"checks": 1} for each in results]
    collector = Collector("r1", [*missing], START_NS, {})
    for each in found:
        collector.add(each)
    return collector.report(START_NS + 12_300_000_000, 60)


def finding(text: str, status: AuditStatus, subject: str = "") -> AuditFinding:
    return {"subject": subject, "status": status, "text": text}


def fact(name: str, value: str | float, subject: str = "") -> AuditFact:
    number = None if isinstance(value, str) else value
    return {"name": name, "subject": subject, "text": str(value), "number": number}


def fleet(hosts: int) -> Iterator[AuditResult]:
    """Yield the results of `hosts` hosts: one in 40 has a fault, and all lack an NVMe drive."""
    for number in range(1, hosts + 1):
        host = f"node{number:03d}"
        for check in CHECKS:
            yield _on_host(check, host, number)


def _on_host(check: str, host: str, number: int) -> AuditResult:
    if check == "backend.port-state":
        down = number % 40 == 7
        states = [finding("ACTIVE, LinkUp", P, f"mlx5_{nic}") for nic in range(7)]
        states.append(finding("DOWN, Polling" if down else "ACTIVE, LinkUp", F if down else P, "mlx5_7"))
        text = "mlx5_7: state 1: DOWN, expected ACTIVE" if down else "8 ports"
        return result(check, host, F if down else P, text, findings=states)
    if check == "backend.mtu" and 20 <= number < 24:
        return result(check, host, F, "eth1: 1500 bytes, others 9000")
    if check == "software.numa-balancing" and number % 3 == 0:
        return result(check, host, F, "kernel.numa_balancing 1, expected 0")
    if check == "node.ecc" and number == 31:
        return result(check, host, F, "mc0: 2 uncorrectable errors <script>alert(1)</script>")
    if check == "node.clock-synchronised" and number % 50 == 9:
        return result(check, host, U, "adjtimex: permission denied")
    if check.startswith("storage.nvme"):
        return result(check, host, S, "/sys/class/nvme is missing")
    facts = []
    if check == "software.kernel-taint":
        facts = [fact("kernel", "6.8.0-45-generic" if number % 30 else "6.8.0-31-generic")]
    if check == "node.memory":
        facts = [fact("memory_gib", 2015.0 - (number * 37 % 11) / 10 - 64 * (number == 12))]
    return result(check, host, facts=facts)
