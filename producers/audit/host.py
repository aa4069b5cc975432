"""The interface between checks and a host: files, directories, links, commands.

All paths are absolute paths of the host. `LiveHost` reads this host, or a recorded tree below another root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from pathlib import Path
from typing import Final, Protocol

__all__ = ["Host", "LiveHost", "Missing", "Unreadable"]

MAX_BYTES: Final = 4 << 20
"""Largest part of a file or output that is read: a check needs a few kilobytes."""
CHUNK_BYTES: Final = 1 << 16
"""Size of one read: files of sysctl refuse large ones."""
COMMAND_S: Final = 5.0
"""Time that a command may take."""
ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV, errno.ENXIO})
"""Errors of things that are not there: sysfs answers EINVAL for a value that a device does not have."""
SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/mft/bin"


class Unreadable(Exception):
    """Something that should be readable is not: permission, I/O error, time-out, failed command."""


class Missing(Unreadable):
    """A file, directory or command is not there."""


class Host(Protocol):
    """The part of a host that a check may read."""

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
        """Return the status bits of the system clock, as adjtimex(2). Raises Unreadable."""
        ...

    def run(self, *command: str) -> str:
        """Return what a command prints. Raises Missing, Unreadable where it fails or takes too long."""
        ...


class LiveHost:
    """This host, or another one's files below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def read(self, path: str) -> str:
        """Return a file's text, stripped. Raises Missing, Unreadable."""
        return self.read_bytes(path).decode("utf-8", "replace").strip("\n\x00 ")

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises Missing, Unreadable."""
        try:
            with self._at(path).open("rb", buffering=0) as file:
                content = file.read(CHUNK_BYTES) or b""
                while len(content) < MAX_BYTES and (more := file.read(CHUNK_BYTES)):
                    content += more
        except OSError as error:
            raise _as_unreadable(path, error) from error
        return content

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory. Raises Missing, Unreadable."""
        try:
            return sorted(os.listdir(self._at(path)))
        except OSError as error:
            raise _as_unreadable(path, error) from error

    def space(self, path: str) -> tuple[int, int, int, int]:
        """Return a file system's size and free bytes, inodes and free inodes. Raises Missing, Unreadable."""
        try:
            found = os.statvfs(self._at(path))
        except OSError as error:
            raise _as_unreadable(path, error) from error
        return (
            found.f_blocks * found.f_frsize,
            found.f_bavail * found.f_frsize,
            found.f_files,
            found.f_favail,
        )

    def clock_status(self) -> int:
        """Return the status bits of the system clock, as adjtimex(2). Raises Unreadable."""
        timex = (ctypes.c_long * 64)()  # struct timex: modes, offset, freq, maxerror, esterror, status
        if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
            raise Unreadable(f"adjtimex: {os.strerror(ctypes.get_errno())}")
        return int(
            ctypes.cast(ctypes.byref(timex, 5 * ctypes.sizeof(ctypes.c_long)), ctypes.POINTER(ctypes.c_int))[
                0
            ]
        )

    def run(self, *command: str) -> str:
        """Return what a command prints. Raises Missing, Unreadable where it fails or takes too long."""
        env = {"PATH": SEARCH_PATH, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=COMMAND_S,
                check=False,
                env=env,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError as error:
            raise Missing(f"{command[0]}: not installed") from error
        except subprocess.TimeoutExpired as error:
            raise Unreadable(f"{' '.join(command)}: no end within {COMMAND_S:g} s") from error
        except OSError as error:
            raise _as_unreadable(command[0], error) from error
        if done.returncode:
            errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
            text = f"{' '.join(command)}: exit code {done.returncode}"
            raise Unreadable(f"{text}, {errors[-1]}" if errors else text)
        return done.stdout[:MAX_BYTES].decode("utf-8", "replace")


def _as_unreadable(path: str, error: OSError) -> Unreadable:
    kind = Missing if error.errno in ABSENT else Unreadable
    return kind(f"{path}: {error.strerror or error}")
