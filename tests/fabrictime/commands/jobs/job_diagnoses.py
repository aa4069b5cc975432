"""Diagnoses of jobs for the tests of the commands about jobs."""

from __future__ import annotations

from typing import Any

from schemas.records import Diagnosis
from tests.records import make, make_part

S = 1_000_000_000
LINK = "leaf2:swp3>spine3:swp2"


def split(rank: int, network_ns: int, **more: Any) -> Any:
    return make_part(
        Diagnosis,
        "RankTime",
        rank=rank,
        host=f"h{rank // 2}",
        nic=f"h{rank // 2}/mlx5_{rank % 2}",
        compute_ns=3 * S,
        network_late_ns=network_ns,
        peer_late_ns=2 * S - network_ns,
        **more,
    )


def flow(number: int, peer: int, delay_ns: int | None, **more: Any) -> Any:
    links = [f"h{number}:mlx5_0>leaf2:swp{number}", LINK, f"leaf3:swp{peer}>h{peer}:mlx5_0"]
    return make_part(
        Diagnosis,
        "JobFlow",
        **{
            "nic": f"h{number}/mlx5_0",
            "peer": f"h{peer}/mlx5_0",
            "paths": 1,
            "rate_bps": 4e10,
            "delay_ns": delay_ns,
            "links": links,
            **more,
        },
    )


def healthy(job: str, number: int, end_ns: int, **more: Any) -> Any:
    """Return a diagnosis of five seconds of a job with eight ranks."""
    return make(
        Diagnosis,
        job=job,
        number=number,
        begin_ns=end_ns - 5 * S,
        end_ns=end_ns,
        **{
            "shard": "fabric",
            "since_ns": end_ns - 60 * S,
            "verdict": "HEALTHY",
            "confidence": 0.95,
            "text": "nothing is wrong with the network, and no rank is late",
            "remedy": "",
            "subject": "",
            "ranks_seen": 8,
            "ranks_total": 8,
            "hosts": 4,
            "operations": 40,
            "bytes": 10**9,
            "iteration_ns": 110_000_000,
            "expected_iteration_ns": 108_000_000,
            "bus_bps": 3.6e11,
            "expected_bus_bps": 3.65e11,
            "bound_ns": 700.0,
            "time_splits": [split(rank, S) for rank in range(8)],
            "flows": [flow(number, (number + 1) % 4, 4_000) for number in range(4)],
            **more,
        },
    )


def contended(job: str, number: int, end_ns: int, **more: Any) -> Any:
    """Return a diagnosis of the same job while another one shares a link with one of its flows."""
    evidence = make_part(
        Diagnosis,
        "DiagnosisEvidence",
        topic="fabric.contention",
        subject=LINK,
        quantity="delay_ns",
        number=94e3,
        expected=4e3,
        at_ns=end_ns - S,
        text="leaf2 to spine3 had a queue for 97% of the time; job B sends 61% of its traffic",
    )
    alternative = make_part(
        Diagnosis,
        "Alternative",
        verdict="SLOW_FLOW",
        confidence=0.3,
        subject="h3/mlx5_0",
        text="h3/mlx5_0 to h0/mlx5_0 is slower than its like",
    )
    return healthy(
        job,
        number,
        end_ns,
        **{
            "since_ns": end_ns - 20 * S,
            "verdict": "CONTENTION",
            "confidence": 0.9,
            "blames_network": True,
            "subject": LINK,
            "subjects": [LINK, "B"],
            "links": [LINK],
            "nics": ["h3/mlx5_0"],
            "ranks": [6],
            "jobs": ["B"],
            "text": "job B shares leaf2 to spine3 with h3/mlx5_0 to h0/mlx5_0",
            "remedy": "let the policy move one of the two flows: fabrictime config act",
            "loss_share": 0.31,
            "evidence": [evidence],
            "alternatives": [alternative],
            "missing": ["no queue-pair delays of rank 2"],
            "iteration_ns": 205_000_000,
            "bus_bps": 1.9e11,
            "time_splits": [
                split(rank, 1_900_000_000 if rank == 6 else 200_000_000, last_arrivals=30 * (rank == 6))
                for rank in range(8)
            ],
            "flows": [
                flow(number, (number + 1) % 4, 94_000 if number == 3 else 4_000) for number in range(4)
            ],
            **more,
        },
    )
