"""Locates the libraries that an MPI job loads by LD_PRELOAD. They are not extension modules.

`libfabrictime-mpi.so` records the operations of the program, and is built if MPI is found.
`libfabrictime-testbed.so` is for the testbed: ranks that wait sleep, and TCP uses a given congestion control.
"""

from pathlib import Path


def library() -> Path:
    """Return the profiler's path. Raises FileNotFoundError if it was not built."""
    return _built("libfabrictime-mpi.so", "after `make build` where MPI is installed, or `make mpi`")


def testbed_library() -> Path:
    """Return the path of the testbed's library. Raises FileNotFoundError if it was not built."""
    return _built("libfabrictime-testbed.so", "after `make build`")


def _built(name: str, when: str) -> Path:
    path = Path(__file__).resolve().parent / name
    if not path.exists():
        raise FileNotFoundError(f"{path}: not built, expected {when}")
    return path
