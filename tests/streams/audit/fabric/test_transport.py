"""The transport of running jobs, from records of the profilers."""

from __future__ import annotations

import pytest

from fabrictime.audit.fabric import Entry, fabric_of
from schemas.records import AuditStatus, CollectiveBatch
from schemas.topics import COLLECTIVES
from schemas.topology import Topology
from streams.audit.fabric.transport import job_transports
from tests.records import make, make_part

MB = 1 << 20


def batch(host, process, nics, *, job="j", version="2.27.3/v4", nodes=4, algorithm="RING", moved=100 * MB):
    """Return a record of a process with an all-reduce between hosts, and queue pairs of these NICs."""
    return make(
        CollectiveBatch,
        job=job,
        host=host,
        process=process,
        source="NCCL",
        version=version,
        communicators=[make_part(CollectiveBatch, "Communicator", id="c", rank=0, ranks=8, nodes=nodes)],
        summaries=[
            make_part(
                CollectiveBatch,
                "CollectiveSummary",
                function="ALL_REDUCE",
                count=1,
                bytes=moved,
                algorithm=algorithm,
            )
        ],
        queue_pairs=[
            make_part(CollectiveBatch, "QueuePairDelay", nic=f"{host}/{nic}", bytes=MB) for nic in nics
        ],
    )


def findings(*records):
    entries = (Entry(COLLECTIVES.name, record["job"], record) for record in records)
    fabric = fabric_of([], entries, Topology(), before_ns=0, peers=1)
    return [(found.host, found.status, found.text) for found in job_transports(fabric)]


def hosts(nics, *, of_last=None, count=4, **fields):
    """Return records of two processes on each host; the last host has other NICs."""
    return [
        batch(
            f"h{number}",
            f"{process}-1",
            (nics if of_last is None or number < count - 1 else of_last)[process::2],
            **fields,
        )
        for number in range(count)
        for process in range(2)
    ]


ALL = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")


def test_hosts_that_use_all_nics_pass():
    [(host, status, text)] = findings(*hosts(ALL))
    assert (host, status) == ("fleet", AuditStatus.PASSED)
    assert text == "job j: 4 hosts move data by RDMA over 16 NICs"


def test_a_host_without_queue_pairs_fell_back_to_sockets():
    [(host, status, text)] = findings(*hosts(ALL, of_last=()))
    assert (host, status) == ("h3", AuditStatus.FAILED)
    assert "200 MiB of job j without an RDMA queue pair" in text


def test_a_host_on_one_rail_of_four_is_named():
    [(host, status, text)] = findings(*hosts(ALL, of_last=("mlx5_2",)))
    assert (host, status) == ("h3", AuditStatus.FAILED)
    assert "over 1 NICs (h3/mlx5_2), most hosts over 4" in text


def test_a_job_without_any_queue_pair_is_unknown():
    """Racks joined by NVLink, and plugins of other makes, have none either."""
    assert [status for _, status, _ in findings(*hosts(()))] == [AuditStatus.UNKNOWN]


@pytest.mark.parametrize(
    "fields",
    [
        {"version": "2.24.3/v2"},
        {"nodes": 1},
        {"algorithm": "NVLS"},
        {"algorithm": "COLLNET_DIRECT"},
        {"moved": MB},
    ],
)
def test_a_silent_host_is_not_blamed_without_evidence(fields):
    records = [*hosts(ALL, count=3), batch("h9", "1-1", (), **fields)]
    assert [status for _, status, _ in findings(*records)] == [AuditStatus.PASSED]


def test_two_hosts_do_not_show_how_many_nics_are_usual():
    assert [status for _, status, _ in findings(*hosts(ALL, of_last=ALL[:1], count=2))] == [
        AuditStatus.PASSED
    ]


def test_hosts_with_fewer_processes_are_compared_with_their_like():
    records = [*hosts(ALL), batch("h9", "1-1", ALL[:2])]
    assert [status for _, status, _ in findings(*records)] == [AuditStatus.PASSED]


def test_without_jobs_the_check_is_skipped():
    assert [status for _, status, _ in findings()] == [AuditStatus.SKIPPED]
