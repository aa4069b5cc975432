"""Probe engine, `ProbeBatch` decoder, fits, reduction and mesh solve: pure functions of figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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

_MODULES: Final = {
    "columns": (
        "ClockLine",
        "MeshSolution",
        "PairFits",
        "PathDelayColumns",
        "ProbeColumns",
    ),
    "decode": (
        "BadBatch",
        "NameCache",
        "ProbeBatches",
        "batches_of",
        "decode_probe_batch",
        "decode_probe_batches",
        "encode_probe_batch",
    ),
    "delays": ("encode_path_delays",),
    "mesh": ("solve_mesh",),
    "probe": (
        "Engine",
        "Link",
        "Peer",
        "Sockets",
        "TestClock",
        "link_of",
        "open_sockets",
        "siphash24",
    ),
    "window": (
        "NicWindow",
        "bucket_edges_ns",
        "bucket_of",
    ),
}
"""Names by the module that defines them. It is loaded at the first use: most need numpy, which a process that
reads clock pages does not."""
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import and return the attribute `name` from its module, at first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
