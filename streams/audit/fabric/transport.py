"""Checks the transport that carries the bytes of running jobs: RDMA, and over how many NICs. Pure.

The profilers of NCCL and RCCL report each RDMA queue pair that moved data. A host that exchanges data with
other hosts and reports no queue pair uses sockets, or another vendor's network plugin. A host is compared
with the others of its job; if none of them uses queue pairs, the transport is unknown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from schemas.audit_remedy import remedy
from schemas.records import AuditStatus, CollectiveBatch, CollectiveSource
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, warning

PROFILED: Final = frozenset({CollectiveSource.NCCL, CollectiveSource.RCCL})
MIN_INTERFACE: Final = 3
"""First version of NCCL's profiler interface that reports queue pairs (2.26)."""
MIN_BYTES: Final = 64 << 20
"""Bytes of operations with other hosts from which on a host without queue pairs is a finding."""
MIN_HOSTS: Final = 3
"""Smallest number of hosts of which most show how many NICs are usual."""
IN_SWITCHES: Final = ("NVLS", "COLLNET")
"""Beginnings of algorithms that reduce in switches, whose data need not pass a queue pair of NCCL."""
_INTERFACE: Final = re.compile(r"/v(\d{1,3})$")


@dataclass(slots=True)
class HostUse:
    """Transport of a job on one host: bytes of operations with other hosts, and NICs with queue pairs."""

    network_bytes: int = 0
    nics: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)


def transports(records: Iterable[CollectiveBatch]) -> dict[str, dict[str, HostUse]]:
    """Return, by job and host, the transport of the job on each host that sent or received data."""
    jobs: dict[str, dict[str, HostUse]] = {}
    for record in records:
        match = _INTERFACE.search(record["version"])
        if record["source"] not in PROFILED or match is None or int(match[1]) < MIN_INTERFACE:
            continue
        use = jobs.setdefault(record["job"], {}).setdefault(record["host"], HostUse())
        use.processes.add(record["process"])
        use.network_bytes += _network_bytes(record)
        use.nics.update(pair["nic"] for pair in record["queue_pairs"] if pair["bytes"])
    return jobs


def _network_bytes(record: CollectiveBatch) -> int:
    """Return the number of bytes in operations of communicators that span hosts."""
    communicators = record["communicators"]
    return sum(
        summary["bytes"]
        for summary in record["summaries"]
        if summary["communicator"] < len(communicators)
        and communicators[summary["communicator"]]["nodes"] > 1
        and not summary["algorithm"].startswith(IN_SWITCHES)
    )


@warning("fabric.transport", "Jobs use RDMA, and as many NICs on each host")
@remedy.monitor("Start a short run with NCCL_DEBUG=INFO and `explain --folder`: docs/verdicts/fallback.md")
def job_transports(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a FAILED finding for each host that lacks queue pairs or NICs that its job's other hosts have.

    A job without such a host gets one finding: PASSED, or UNKNOWN if it has no queue pair at all.
    """
    jobs = transports(fabric.collectives)
    busy = {job: of_job for job, hosts in sorted(jobs.items()) if (of_job := _busy(hosts))}
    for job, hosts in busy.items():
        worse = list(_worse(job, hosts))
        yield from worse
        if not worse:
            yield _summary(job, hosts)
    if not busy:
        yield Found(FLEET, "", AuditStatus.SKIPPED, "no profiled job moves data between hosts")


def _busy(hosts: dict[str, HostUse]) -> dict[str, HostUse]:
    """Return the hosts that move data if there are two or more: a job on one host has no network."""
    busy = {host: use for host, use in hosts.items() if use.nics or use.network_bytes >= MIN_BYTES}
    return busy if len(busy) > 1 else {}


def _worse(job: str, hosts: dict[str, HostUse]) -> Iterator[Found]:
    with_rdma = {host: use for host, use in hosts.items() if use.nics}
    for host in sorted(hosts.keys() - with_rdma.keys()) if with_rdma else ():
        text = (
            f"{host} moved {hosts[host].network_bytes >> 20:,} MiB of job {job} without an RDMA queue pair: "
            f"sockets, or another plugin; {len(with_rdma)} other hosts use RDMA"
        )
        yield Found(host, "", AuditStatus.FAILED, text)
    by_processes: dict[int, dict[str, HostUse]] = {}
    for host, use in with_rdma.items():
        by_processes.setdefault(len(use.processes), {})[host] = use
    for peers in by_processes.values():
        yield from _fewer_nics(job, peers)


def _fewer_nics(job: str, hosts: dict[str, HostUse]) -> Iterator[Found]:
    """Yield a finding per host with fewer NICs than most hosts with equally many processes of the job."""
    common_nics, host_count = Counter(len(use.nics) for use in hosts.values()).most_common(1)[0]
    if len(hosts) < MIN_HOSTS or 2 * host_count <= len(hosts):
        return
    for host, use in sorted(hosts.items()):
        if len(use.nics) < common_nics:
            names = ", ".join(sorted(use.nics))
            text = (
                f"{host} moves data of job {job} over {len(use.nics)} NICs ({names}), "
                f"most hosts over {common_nics}"
            )
            yield Found(host, "", AuditStatus.FAILED, text)


def _summary(job: str, hosts: dict[str, HostUse]) -> Found:
    nics = sum(len(use.nics) for use in hosts.values())
    if not nics:
        text = f"job {job}: {len(hosts)} hosts move data without RDMA queue pairs: unknown transport"
        return Found(FLEET, "", AuditStatus.UNKNOWN, text)
    text = f"job {job}: {len(hosts)} hosts move data by RDMA over {nics} NICs"
    return Found(FLEET, "", AuditStatus.PASSED, text)
