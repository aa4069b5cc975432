"""Locates `libnccl-profiler-fabrictime.so`, the profiler plugin of NCCL and RCCL (NCCL_PROFILER_PLUGIN).

The library is no extension module and does not use Python.
"""

from pathlib import Path

__all__ = ["library"]


def library() -> Path:
    """Return the library's path. Raises FileNotFoundError if it was not built."""
    path = Path(__file__).resolve().parent / "libnccl-profiler-fabrictime.so"
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built, expected after `make build`")
    return path
