"""Probe engine, `ProbeBatch` decoder, fits, reduction and mesh solve. Pure figures in, pure figures out."""

from native.core.columns import ClockLine, MeshSolution, PairFits, PathDelayColumns, ProbeColumns
from native.core.decode import (
    BadBatch,
    NameCache,
    ProbeBatches,
    batches_of,
    decode_probe_batch,
    decode_probe_batches,
    encode_probe_batch,
)
from native.core.delays import encode_path_delays
from native.core.mesh import solve_mesh
from native.core.probe import Engine, Link, Peer, Sockets, TestClock, link_of, open_sockets, siphash24
from native.core.window import NicWindow, bucket_edges_ns, bucket_of

__all__ = [
    "BadBatch",
    "ClockLine",
    "Engine",
    "Link",
    "MeshSolution",
    "NameCache",
    "NicWindow",
    "PairFits",
    "PathDelayColumns",
    "Peer",
    "ProbeBatches",
    "ProbeColumns",
    "Sockets",
    "TestClock",
    "batches_of",
    "bucket_edges_ns",
    "bucket_of",
    "decode_probe_batch",
    "decode_probe_batches",
    "encode_path_delays",
    "encode_probe_batch",
    "link_of",
    "open_sockets",
    "siphash24",
    "solve_mesh",
]
