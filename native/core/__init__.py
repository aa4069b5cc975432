"""Probe engine, `ProbeBatch` decoder, fits, reduction and mesh solve. Pure figures in, pure figures out."""

from native.core.columns import ClockLine, MeshSolution, PairFits, PathDelayColumns, ProbeColumns
from native.core.decode import BadBatch, decode_probe_batch, encode_probe_batch
from native.core.mesh import solve_mesh
from native.core.window import NicWindow, bucket_edges_ns, bucket_of

__all__ = [
    "BadBatch",
    "ClockLine",
    "MeshSolution",
    "NicWindow",
    "PairFits",
    "PathDelayColumns",
    "ProbeColumns",
    "bucket_edges_ns",
    "bucket_of",
    "decode_probe_batch",
    "encode_probe_batch",
    "solve_mesh",
]
