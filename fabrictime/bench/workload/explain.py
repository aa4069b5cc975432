"""Measures the time of `fabrictime explain` for a job of 256 ranks with an hour of diagnoses in the log.

The embedded log also holds records of other jobs. The time is that of the whole command for a user: start of
the interpreter, reading, text. The figure is the worst of several calls.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fabrictime.bench import Progress, Value
from fabrictime.bench._pipeline import embedded_log
from schemas import codec
from schemas.records import (
    Diagnosis,
    DiagnosisEvidence,
    JobFlow,
    RankTime,
    Verdict,
)
from schemas.topics import CONTENTION, DIAGNOSES
from streams.diagnosis.inputs import FAULT_WHOLE_TICKS, WHOLE_TICKS

RANKS: Final = 256
FLOWS: Final = 256
"""Number of flows in each record, as many as the product publishes."""
JOBS: Final = 8
"""Number of other jobs, which publish as much as the job that is explained."""
HOUR_S: Final = 3600
QUICK_S: Final = 300
PERIOD_S: Final = 5
CALLS: Final = 5
SLOW_S: Final = 600
"""Length of the job's slow period, at its end."""
S: Final = 1_000_000_000


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return the time of the command in s, and the bytes that it read."""
    with (
        tempfile.TemporaryDirectory(prefix="fabrictime-bench-explain-") as folder,
        embedded_log(Path(folder)) as address,
    ):
        progress(f"writing {JOBS} jobs of {RANKS} ranks")
        written = _fill(address, QUICK_S if quick else HOUR_S)
        progress("calling explain")
        times = [_call(address) for _ in range(2 if quick else CALLS)]
    return {"explain_answer_s": max(times), "explain_log_bytes": written}


def _call(address: str) -> float:
    """Run the command once; return the seconds that it took. Raises RuntimeError if its answer is wrong."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "fabrictime", "explain", "job0", "--since", "2h", "--log", address]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    took_s = time.monotonic() - began_s
    if process.returncode != 0 or "CONTENTION since" not in process.stdout:
        raise RuntimeError(
            f"explain: exit code {process.returncode}: {(process.stderr or process.stdout)[:500]}"
        )
    return took_s


def _fill(address: str, seconds: int) -> int:
    """Write the records of all jobs; return the total bytes of the explained job's records."""
    from schemas.kafka.producer import load_producer

    producer = load_producer(address, {"linger.ms": 20})
    written = 0
    now_ns = time.time_ns()
    for number, record in enumerate(_records(now_ns, seconds)):
        if number * PERIOD_S % (FAULT_WHOLE_TICKS if record["blames_network"] else WHOLE_TICKS):
            record["time_splits"], record["flows"] = [], []
        for job in range(JOBS):
            record["job"] = f"job{job}"
            value = codec.encode(Diagnosis, record)
            written += len(value) * (job == 0)
            producer.produce(DIAGNOSES.name, value, record["job"])
        if number % 20 == 0:
            producer.flush(60)
    if producer.flush(60):
        raise RuntimeError("the log did not take all records")
    return written


def _records(now_ns: int, seconds: int) -> Iterator[Diagnosis]:
    """Yield a record for every period up to now, of a healthy job that meets contention at the end."""
    flows = [_flow(rank % RANKS, 1 + rank // RANKS) for rank in range(FLOWS)]
    for number in range(seconds // PERIOD_S):
        end_ns = now_ns - (seconds - (number + 1) * PERIOD_S) * S
        slow = now_ns - end_ns < min(SLOW_S, seconds // 4) * S
        yield _record(end_ns, slow, flows)


def _nic(rank: int) -> str:
    return f"host{rank // 8}/mlx5_{rank % 8}"


def _flow(rank: int, step: int) -> JobFlow:
    peer = (rank + step) % RANKS
    links = [f"{_nic(rank)}>leaf{rank // 8}:swp{rank % 8}".replace("/", ":")]
    links += [f"leaf{rank // 8}:swp{32 + step}>spine{step}:swp{rank // 8}"]
    return {
        "nic": _nic(rank),
        "peer": _nic(peer),
        "paths": 2,
        "rate_bps": 2e10 + rank,
        "delay_ns": 4_000 + 7 * rank,
        "data_ns": 21_000 + 13 * rank,
        "links": links,
    }


def _record(end_ns: int, slow: bool, flows: list[JobFlow]) -> Diagnosis:
    network_ns = 2 * S if slow else S
    evidence: list[DiagnosisEvidence] = [
        {
            "topic": CONTENTION.name,
            "subject": f"leaf1:swp{spine}>spine{spine}:swp1",
            "quantity": "delay_ns",
            "number": 94e3,
            "expected": 4e3,
            "at_ns": end_ns,
            "text": f"spine {spine} had a queue for 97% of the time; job B sends 61% of its traffic",
        }
        for spine in range(4 if slow else 0)
    ]
    splits: list[RankTime] = [
        {
            "rank": rank,
            "host": f"host{rank // 8}",
            "nic": _nic(rank),
            "compute_ns": 3 * S - rank,
            "launch_ns": 10_000_000 + rank,
            "gpu_late_ns": 20_000_000 + rank,
            "peer_late_ns": 200_000_000 + rank,
            "network_late_ns": network_ns + rank,
            "flush_ns": 0,
            "last_arrivals": rank % 7,
        }
        for rank in range(RANKS)
    ]
    link = "leaf1:swp1>spine1:swp1"
    return {
        "job": "",
        "tenant": None,
        "shard": "fabric",
        "number": end_ns // S,
        "begin_ns": end_ns - PERIOD_S * S,
        "end_ns": end_ns,
        "since_ns": end_ns - PERIOD_S * S,
        "confidence": 0.9,
        "blames_network": slow,
        "subjects": [],
        "nics": [],
        "ranks": [],
        "text": "job B shares leaf1 to spine1" if slow else "nothing is wrong with the network",
        "remedy": "",
        "evidence": evidence,
        "alternatives": [],
        "missing": [],
        "ranks_seen": RANKS,
        "ranks_total": RANKS,
        "hosts": RANKS // 8,
        "operations": 400,
        "bytes": 10**12,
        "iteration_ns": 200_000_000 if slow else 110_000_000,
        "expected_iteration_ns": 108_000_000,
        "expected_bus_bps": 3.65e11,
        "bound_ns": 700.0,
        "time_splits": splits,
        "flows": flows,
        "verdict": Verdict.CONTENTION if slow else Verdict.HEALTHY,
        "subject": link if slow else "",
        "links": [link] if slow else [],
        "jobs": ["B"] if slow else [],
        "loss_share": 0.3 if slow else 0.0,
        "bus_bps": 1.9e11 if slow else 3.6e11,
    }
