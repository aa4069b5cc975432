"""Digests of all that an operator's output depends on beside the log."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from schemas.topology import Topology

__all__ = ["build_digest", "settings_digest", "topology_digest"]

DIGITS: Final = 16
ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = ("streams/**/*.py", "schemas/**/*.py", "native/core/*.so")


def settings_digest(settings: BaseModel) -> str:
    """Return a digest of a worker's settings."""
    return _digest(settings.model_dump_json().encode())


def topology_digest(topology: Topology) -> str:
    """Return a digest of the contents of the topology file."""
    return _digest(topology.file.model_dump_json().encode())


@functools.cache
def build_digest() -> str:
    """Return the version of the package and a digest of the code that computes outputs."""
    digest = hashlib.sha256()
    for pattern in CODE:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    try:
        version = metadata.version("fabrictime")
    except metadata.PackageNotFoundError:
        version = "unknown"
    return f"{version} {digest.hexdigest()[:DIGITS]}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
