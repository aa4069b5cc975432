"""The interface between checks and a host: files, directories, links, commands, and the network.

All paths are absolute paths on the host. `live_host.py` reads a real host.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, Protocol

from producers.audit.host.network import Network
from producers.audit.settings import CheckSettings

if TYPE_CHECKING:
    from producers.audit.load.traffic_plan import TrafficRound

NVML: Final = "nvml"
"""Command that prints the state of all GPUs (producers/audit/gpu/nvml.py)."""
STREAM: Final = "memory-bandwidth"
"""Command that measures the bandwidth of the memory (producers/audit/load/stream.py)."""
TRAINING: Final = "training"
"""Command that trains a small network on every GPU (producers/audit/load/training.py)."""
OVERLAP: Final = "overlap"
"""Command that computes while it communicates (producers/audit/load/overlap.py)."""
VOLUME: Final = "volume"
"""Command that claims a small volume in Kubernetes and deletes it (producers/audit/storage/volume.py)."""
TRAFFIC: Final = "traffic"
"""Command that runs a host's part of a round of traffic (producers/audit/load/traffic.py)."""
ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV, errno.ENXIO, errno.ESRCH})
"""Error numbers that mean that a thing is not there. sysfs returns EINVAL for a value that a device does not
have, and /proc returns ESRCH for a process that has ended."""


class Unreadable(Exception):
    """Something that should be readable is not: permission, I/O error, time-out, failed command."""


class Missing(Unreadable):
    """A file, directory or command is not there."""


class NotRecorded(Exception):
    """A record of a host, such as a support bundle, lacks a file or output that the host itself may have."""


class Host(Network, Protocol):
    """The part of a host that a check may read: files and commands, and the network of `Network`."""

    settings: CheckSettings

    def read(self, path: str) -> str:
        """Return a file's text, stripped. Raises Missing, Unreadable."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises Missing, Unreadable."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory. Raises Missing, Unreadable."""
        ...

    def space(self, path: str) -> tuple[int, int, int, int]:
        """Return a file system's size and free bytes, inodes and free inodes. Raises Missing, Unreadable."""
        ...

    def clock_status(self) -> int:
        """Return the status bits of the system clock, as adjtimex(2) returns them. Raises Unreadable."""
        ...

    def target(self, path: str) -> str:
        """Return the path that a symbolic link leads to. Raises Missing, Unreadable."""
        ...

    def run(self, *command: str) -> str:
        """Run a command and return its output. Raises Missing, and Unreadable if it fails or takes too long.

        Checks that call the same command within seconds share its output.
        """
        ...

    def load(self, limit_s: float, *command: str) -> str:
        """Return the output of a new run of an active check's command, which may take `limit_s`.

        Leading arguments `NAME=VALUE` set its environment.
        """
        ...

    def now_s(self) -> float:
        """Return the system clock's time, seconds since the Unix epoch."""
        ...

    def traffic_round(self) -> TrafficRound:
        """Return the round of traffic that this run is part of. Raises Missing if it is part of none."""
        ...

    def pause(self, wanted_s: float) -> float:
        """Wait about `wanted_s` between two readings of a counter; return the seconds that passed."""
        ...


def as_unreadable(name: str, error: OSError) -> Unreadable:
    """Return the error to raise for `name`: Missing if it is not there, else Unreadable."""
    kind = Missing if error.errno in ABSENT else Unreadable
    return kind(f"{name}: {error.strerror or error}")
