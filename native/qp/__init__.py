"""`libfabrictime-qp.so`: what a process that owns queue pairs loads (LD_PRELOAD) so that they can be moved.

Out: where the library lies. It is no extension module, and nothing of Python is in it.
"""

from pathlib import Path

__all__ = ["library"]


def library() -> Path:
    """Return the library's path. Raises FileNotFoundError where it was not built."""
    path = Path(__file__).resolve().parent / "libfabrictime-qp.so"
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built, expected after `make build`")
    return path
