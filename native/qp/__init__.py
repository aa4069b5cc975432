"""Locates `libfabrictime-qp.so`, which processes load by LD_PRELOAD to move their queue pairs.

The library is not an extension module and does not use Python.
"""

from pathlib import Path


def library() -> Path:
    """Return the library's path. Raises FileNotFoundError if it was not built."""
    path = Path(__file__).resolve().parent / "libfabrictime-qp.so"
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built, expected after `make build`")
    return path
