"""Locates `libfabrictime-qp.so`, which processes with queue pairs load (LD_PRELOAD) to move them.

The library is no extension module and does not use Python.
"""

from pathlib import Path


def library() -> Path:
    """Return the library's path. Raises FileNotFoundError if it was not built."""
    path = Path(__file__).resolve().parent / "libfabrictime-qp.so"
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built, expected after `make build`")
    return path
