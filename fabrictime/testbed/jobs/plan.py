"""Plans the traffic of a job by rank and phase, before any connection opens. No I/O.

`JobPlan` has the connections, each a stream from one rank to another, and the parts that each rank sends in
each phase. A rank begins a phase when its own sends and receives of the former phase are complete; all ranks
begin an iteration together.

- all-to-all, pairwise: in phase s (from 0) rank i sends its chunk to rank i + s + 1 and receives from i - s -
  1.
- ring all-reduce: 2 (n - 1) phases, in each of which rank i sends a chunk to rank i + 1.
- incast: one phase, in which all ranks but the first send to the first.
- rpc: rank 0 sends a request to rank 1, which answers on the same connection.
- bulk: rank 0 sends to rank 1 without an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["alltoall", "allreduce", "incast", "rpc", "bulk"]
ENDLESS_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Route:
    """One connection: a stream from rank `sender` to rank `receiver`, and with rpc the stream `back`."""

    stream: int
    sender: int
    receiver: int
    back: int | None = None


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The traffic of a job.

    `ends[stream]` is (sender, receiver); `parts[rank][phase]` has (stream, bytes).
    """

    ranks: int
    routes: tuple[Route, ...]
    ends: tuple[tuple[int, int], ...]
    parts: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]

    @property
    def iteration_bytes(self) -> int:
        """Return the bytes that all ranks together send in one iteration."""
        return sum(size for rank in self.parts for phase in rank for _, size in phase)

    def phases(self) -> list[list[tuple[int, int, int]]]:
        """Return (sender, receiver, bytes) of each connection, for each phase."""
        return [
            [(*self.ends[stream], size) for rank in self.parts for stream, size in rank[phase]]
            for phase in range(len(self.parts[0]))
        ]


def make_job_plan(kind: Kind, ranks: int, connections: int, size_bytes: int) -> JobPlan:
    """Return the plan of a job of a kind of traffic.

    `size_bytes` is the input of a rank (alltoall, allreduce: divided into a chunk per rank), or the payload
    of each connection (incast, rpc). Raises ValueError if a connection would have nothing to send.
    """
    divided = kind in ("alltoall", "allreduce")
    chunk = size_bytes // ranks // connections if divided else size_bytes
    if chunk < 1:
        raise ValueError(f"size_bytes {size_bytes}: expected a byte a connection at least")
    if kind == "rpc":
        return _rpc_plan(connections, chunk)
    steps = _steps(kind, ranks)
    streams: dict[tuple[int, int], range] = {}
    for at, pair in enumerate(dict.fromkeys(pair for phase in steps for pair in phase)):
        streams[pair] = range(at * connections, (at + 1) * connections)
    ends = tuple(pair for pair, own in streams.items() for _ in own)
    size = ENDLESS_BYTES if kind == "bulk" else chunk
    return JobPlan(
        ranks,
        tuple(Route(stream, *pair) for stream, pair in enumerate(ends)),
        ends,
        tuple(tuple(_parts(rank, phase, streams, size) for phase in steps) for rank in range(ranks)),
    )


def _steps(kind: Kind, ranks: int) -> list[list[tuple[int, int]]]:
    """Return the (sender, receiver) pairs of each phase."""
    if kind == "alltoall":
        return [[(i, (i + s) % ranks) for i in range(ranks)] for s in range(1, ranks)]
    if kind == "allreduce":
        return [[(i, (i + 1) % ranks) for i in range(ranks)]] * (2 * (ranks - 1))
    if kind == "incast":
        return [[(i, 0) for i in range(1, ranks)]]
    return [[(0, 1)]]


def _parts(
    rank: int, phase: Sequence[tuple[int, int]], streams: Mapping[tuple[int, int], range], size: int
) -> tuple[tuple[int, int], ...]:
    """Return (stream, bytes) of each part that a rank sends in a phase."""
    return tuple((stream, size) for pair in phase if pair[0] == rank for stream in streams[pair])


def _rpc_plan(connections: int, size: int) -> JobPlan:
    """Return the plan of a request-response job: each connection carries one stream in each direction."""
    requests = tuple((2 * c, size) for c in range(connections))
    answers = tuple((2 * c + 1, size) for c in range(connections))
    return JobPlan(
        2,
        tuple(Route(2 * c, 0, 1, 2 * c + 1) for c in range(connections)),
        ((0, 1), (1, 0)) * connections,
        ((requests, ()), ((), answers)),
    )
