"""Computes digests of an operator's dependencies other than the log: settings, topology file and code."""

from __future__ import annotations

import functools
import hashlib
from importlib import metadata
from pathlib import Path
from typing import Final

from schemas.topology import Topology
from streams.runtime.settings import StreamSettings

DIGITS: Final = 16
ROOT: Final = Path(__file__).resolve().parents[2]
TRANSPORT_SETTINGS: Final = frozenset(
    (
        *("kafka", "control", "group", "stages", "topology_file", "history"),
        *("buffer_messages", "fetch_kib", "commit_interval_ms", "session_timeout_s", "stall_s"),
    )
)
"""Settings that change no output but its signature: a worker's cluster, amounts read, and stages."""
CODE: Final = ("streams/**/*.py", "schemas/**/*.py", "native/core/*.so")


def settings_digest(settings: StreamSettings) -> str:
    """Return a digest of the settings that affect an operator's outputs."""
    return _digest(settings.model_dump_json(exclude=set(TRANSPORT_SETTINGS)).encode())


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
