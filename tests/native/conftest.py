"""Helpers of the native tests: Avro by hand, and simulated probe batches with a known truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from native.core import ProbeColumns

T0_NS = 1_763_700_000_000_000_000


def varint(value: int) -> bytes:
    """One Avro long."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out, rest])


def blocks(items: list[bytes], chance: random.Random) -> bytes:
    """An Avro array in random blocks, some with their size in bytes."""
    out = b""
    while items:
        n = chance.randint(1, len(items))
        body = b"".join(items[:n])
        items = items[n:]
        out += varint(-n) + varint(len(body)) + body if chance.random() < 0.5 else varint(n) + body
    return out + varint(0)


def encode_independently(record: dict[str, Any], chance: random.Random) -> bytes:
    """The body of a ProbeBatch as another Avro library might write it."""

    def text(value: str) -> bytes:
        return varint(len(value.encode())) + value.encode()

    groups = []
    for group in record["samples"]:
        body = text(group["peer"]) + varint(group["path"]) + varint(group["spacing_ns"])
        for name in ("sent", "forward", "turnaround", "reverse"):
            body += blocks([varint(value) for value in group[name]], chance)
        for name in ("lost", "no_t3", "dscp", "ecn"):
            body += varint(group.get(name, 0))
        for name in ("forward_ce", "reverse_ce"):
            body += blocks([varint(value) for value in group.get(name, ())], chance)
        groups.append(body)
    head = text(record["nic"])
    for name in ("run", "batch", "clock_ns", "system_ns"):
        head += varint(record[name])
    return head + blocks(groups, chance)


def as_record(columns: ProbeColumns) -> dict[str, Any]:
    """The columns as fastavro takes them."""
    groups = []
    for g, peer in enumerate(columns.peers):
        part = slice(int(columns.start[g]), int(columns.start[g + 1]))
        groups.append(
            {
                "peer": peer,
                "path": int(columns.path[g]),
                "spacing_ns": int(columns.spacing_ns[g]),
                "sent": [int(value) for value in np.diff(columns.sent[part], prepend=0)],
                "forward": columns.forward[part].tolist(),
                "turnaround": columns.turnaround[part].tolist(),
                "reverse": columns.reverse[part].tolist(),
                "lost": int(columns.lost[g]),
                "no_t3": int(columns.no_t3[g]),
                "dscp": int(columns.dscp[g]) if len(columns.dscp) else 0,
                "ecn": int(columns.ecn[g]) if len(columns.ecn) else 0,
                **{
                    name: (marks[(marks >= part.start) & (marks < part.stop)] - part.start).tolist()
                    for name, marks in (
                        ("forward_ce", columns.forward_ce),
                        ("reverse_ce", columns.reverse_ce),
                    )
                },
            }
        )
    head = {name: getattr(columns, name) for name in ("nic", "run", "batch", "clock_ns", "system_ns")}
    return {**head, "samples": groups}


def batch_of(
    groups: list[tuple[str, int, int, Any, Any, Any, Any]], nic: str = "a/eth0", **head: Any
) -> ProbeColumns:
    """Columns from groups of (peer, path, spacing_ns, sent, forward, turnaround, reverse)."""
    sizes = [len(group[3]) for group in groups]
    columns = [
        np.concatenate([np.asarray(group[c], np.int64) for group in groups] or [np.empty(0, np.int64)])
        for c in range(3, 7)
    ]
    count = len(groups)
    return ProbeColumns(
        nic,
        head.get("run", 1),
        head.get("batch", 0),
        T0_NS,
        T0_NS,
        [group[0] for group in groups],
        np.array([group[1] for group in groups], np.int32),
        np.array([group[2] for group in groups], np.int32),
        np.asarray(head.get("lost", np.zeros(count)), np.int32),
        np.asarray(head.get("no_t3", np.zeros(count)), np.int32),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        *columns,
    )


def simulate(
    rng: np.random.Generator,
    *,
    offset_ns: float = 0.0,
    drift_ppb: float = 0.0,
    samples: int = 480,
    noise_ns: float = 500.0,
    queued: float = 0.0,
    queue_ns: float = 50_000.0,
    forward_ns: float = 5_000.0,
    reverse_ns: float = 5_000.0,
    spacing_ns: int = 20_000,
    step_at_ns: float | None = None,
    step_ns: float = 0.0,
    at_ns: int = T0_NS,
    span_ns: int = 10**9,
    peer: str = "b/eth0",
    paths: int = 4,
) -> ProbeColumns:
    """One second of one pair. The peer's clock minus the prober's is offset_ns + drift * (t - at_ns)."""
    per = samples // paths // 2 * 2
    groups = []
    for path in range(paths):
        if spacing_ns:
            first = np.sort(rng.integers(0, span_ns, per // 2))
            sent = np.stack([first, first + spacing_ns], -1).reshape(per)
        else:
            sent = np.sort(rng.integers(0, span_ns, per))
        # a queue holds both probes of a pair, but not equally
        there = (
            forward_ns
            + rng.exponential(noise_ns, per)
            + (rng.random(per) < queued) * rng.exponential(queue_ns, per)
        )
        back = (
            reverse_ns
            + rng.exponential(noise_ns, per)
            + (rng.random(per) < queued) * rng.exponential(queue_ns, per)
        )
        turnaround = rng.integers(8_000, 30_000, per)

        def theta(at: Any) -> Any:
            stepped = 0.0 if step_at_ns is None else step_ns * (at >= step_at_ns)
            return offset_ns + drift_ppb * 1e-9 * at + stepped

        forward = np.round(there + theta(sent + there)).astype(np.int64)
        reverse = np.round(back - theta(sent + there + turnaround)).astype(np.int64)
        groups.append((peer, 40_000 + path, spacing_ns, sent + at_ns, forward, turnaround, reverse))
    return batch_of(groups)


@pytest.fixture(scope="session")
def avro_independent() -> Callable[[dict[str, Any], random.Random], bytes]:
    return encode_independently


@pytest.fixture(scope="session")
def avro_long() -> Callable[[int], bytes]:
    return varint


@pytest.fixture(scope="session")
def record_of() -> Callable[[ProbeColumns], dict[str, Any]]:
    return as_record


@pytest.fixture(scope="session")
def columns_of() -> Callable[..., ProbeColumns]:
    return batch_of


@pytest.fixture(scope="session")
def simulated() -> Callable[..., ProbeColumns]:
    return simulate
