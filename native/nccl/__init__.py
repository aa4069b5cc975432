"""Locates `libnccl-profiler-fabrictime.so`, the profiler plugin of NCCL and RCCL (NCCL_PROFILER_PLUGIN).

The library does not use Python. In a checkout, two programs replay NCCL's calls.
"""

from pathlib import Path
from typing import Literal


def library() -> Path:
    """Return the library's path. Raises FileNotFoundError if it was not built."""
    return _built("libnccl-profiler-fabrictime.so")


def program(name: Literal["nccl-replay", "nccl-split"]) -> Path:
    """Return the path of a program that loads the library. Raises FileNotFoundError outside a checkout."""
    return _built(name)


def _built(name: str) -> Path:
    path = Path(__file__).resolve().parent / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built, expected in a checkout after `make build`")
    return path
