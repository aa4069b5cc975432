"""Measures an audit of 64 hosts on the packet-forwarding testbed, and the cost of a host's passive checks."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Final

import psutil

from fabrictime.audit.report import AuditReport, counted
from fabrictime.audit.stored import from_json
from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, RunningFabric, needs_fabric, running_fabric
from fabrictime.runtime import status
from producers.audit.checks import CHECKS
from producers.audit.host.live import LiveHost
from producers.audit.runner import run_checks
from producers.audit.settings import AuditSettings

HOSTS, QUICK_HOSTS = 64, 8
SETTINGS: Final = """
[fabric]
hosts = {hosts}
leaves = 8
spines = 4
[probes]
peers = {peers}
rate_pps = 10
flow_pps = 0
[up]
act = "off"
start_timeout_s = 600
web = false
clock_pages = false
[audit]
every_s = 0
"""
"""Settings with few probes, so that two processors can run 64 hosts and all their switches."""
LIMIT_S: Final = 120
START_S: Final = 600.0
"""Time for 64 agents to start, each with its own interpreter."""
CONNECTIVITY: Final = "fabric.connectivity"
KEYS: Final = ("audit_64_hosts_s", "full_mesh_64_nics_s", "agent_rss_mb")


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in some minutes."""
    progress("live: passive checks of this host")
    return {"passive_cpu_share": _cpu_share()} | _on_fabric(progress, quick)


def _cpu_share() -> Figure:
    """Return the share of a processor that hourly passive checks use, including the commands they start."""
    checks = [check for check in CHECKS.values() if not check.active]
    before_s = _processor_s()
    count = sum(1 for _ in run_checks(checks, LiveHost()))
    used_s = _processor_s() - before_s
    return Figure(
        used_s / AuditSettings().every_s, note=f"{used_s:.2f} s of a processor an hour for {count} checks"
    )


def _processor_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


@needs_fabric(KEYS)
def _on_fabric(progress: Progress, quick: bool = False) -> dict[str, Value]:
    hosts = QUICK_HOSTS if quick else HOSTS
    settings = SETTINGS.format(hosts=hosts, peers=hosts - 1)
    with running_fabric(progress, settings, minutes=30, start_s=START_S) as fabric:
        progress(f"live: audit of {hosts} hosts")
        audit_report, took_s = _audit(fabric)
        progress(f"live: connectivity of {hosts} NICs")
        mesh, mesh_s = _audit(fabric, "--only", CONNECTIVITY)
        return {
            "audit_64_hosts_s": Figure(
                took_s, note=f"{len(audit_report.hosts)} hosts, {counted(audit_report.all_results())}"
            ),
            "full_mesh_64_nics_s": Figure(mesh_s, note=f"{counted(mesh.all_results())}"),
            "agent_rss_mb": _rss_mb(fabric),
        }


def _audit(fabric: RunningFabric, *options: str) -> tuple[AuditReport, float]:
    """Run an audit; return its report and the seconds that it took. Raises CannotRun."""
    command = [sys.executable, "-m", "fabrictime", "audit", "--fleet", "--json", "--log", fabric.bootstrap]
    begin_s = time.perf_counter()
    done = subprocess.run([*command, *options], capture_output=True, check=False, timeout=2 * LIMIT_S)
    took_s = time.perf_counter() - begin_s
    if not done.stdout.strip():
        raise CannotRun(f"fabrictime audit: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return from_json(done.stdout.decode()), took_s


def _rss_mb(fabric: RunningFabric) -> float:
    for row in status.read(fabric.data)["children"]:
        if row["name"].startswith("auditor") and row["pid"]:
            return float(psutil.Process(int(row["pid"])).memory_info().rss) / 1e6
    raise CannotRun("no auditor is running")
