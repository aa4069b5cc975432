"""The interface between checks and a host: files, directories, links, commands.

All paths are absolute paths of the host. `LiveHost` reads this host, or a recorded tree below another root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

__all__ = ["NVML", "Host", "LiveHost", "Missing", "Unreadable"]

MAX_BYTES: Final = 4 << 20
"""Largest part of a file or output that is read: a check needs a few kilobytes."""
CHUNK_BYTES: Final = 1 << 16
"""Size of one read: files of sysctl refuse large ones."""
COMMAND_S: Final = 5.0
"""Time that a command may take."""
NVML: Final = "nvml"
"""Command that prints the state of all GPUs (producers/audit/nvml.py)."""
OWN_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {NVML: (sys.executable, "-m", "producers.audit.nvml")}
"""Readers of ours that are processes of their own: a driver that hangs must not hang the agent."""
LIMITS_S: Final[Mapping[str, float]] = {NVML: 30.0, "ipmitool": 30.0, "smartctl": 15.0, "dpkg-query": 15.0}
"""Time that slow commands may take: NVML without persistence mode starts each GPU."""
KILLED_S: Final = 1.0
"""Time that a killed process has to end."""
FRESH_S: Final = 10.0
"""Age up to which checks of one run share a command's output."""
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

    def target(self, path: str) -> str:
        """Return the path that a symbolic link leads to. Raises Missing, Unreadable."""
        ...

    def run(self, *command: str) -> str:
        """Return what a command prints. Raises Missing, Unreadable where it fails or takes too long.

        Checks that ask for the same command within seconds share its output.
        """
        ...

    def load(self, limit_s: float, *command: str) -> str:
        """Return what a command of an active check prints, run anew and within `limit_s`.

        Leading arguments `NAME=VALUE` are its environment. Raises Missing, Unreadable.
        """
        ...


class _Output:
    """Output of a command, or its error, that several checks share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended_s = float("-inf")
        self.text = ""
        self.error: Unreadable | None = None


class LiveHost:
    """This host, or another one's files below `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._outputs: dict[tuple[str, ...], _Output] = {}

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

    def target(self, path: str) -> str:
        """Return the path that a symbolic link leads to. Raises Missing, Unreadable."""
        try:
            found = self._at(path).resolve(strict=True)
        except OSError as error:
            raise _as_unreadable(path, error) from error
        return "/" + str(found.relative_to(self._root.resolve()))

    def run(self, *command: str) -> str:
        """Return what a command prints. Raises Missing, Unreadable where it fails or takes too long.

        The lock of an output keeps other checks waiting for a run that is under way.
        """
        with self._lock:
            output = self._outputs.setdefault(command, _Output())
        with output.lock:
            if time.monotonic() - output.ended_s > FRESH_S:
                output.text, output.error = "", None
                try:
                    output.text = self.load(LIMITS_S.get(command[0], COMMAND_S), *command)
                except Unreadable as error:
                    output.error = error
                output.ended_s = time.monotonic()
            if output.error is not None:
                raise type(output.error)(str(output.error))
            return output.text

    def load(self, limit_s: float, *command: str) -> str:
        """Return what a command prints, run anew and within `limit_s`. Raises Missing, Unreadable.

        Leading arguments `NAME=VALUE` are its environment.
        """
        arguments = list(command)
        env = {"PATH": SEARCH_PATH, "LC_ALL": "C"}
        if arguments[0] in OWN_COMMANDS:
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
            arguments[:1] = OWN_COMMANDS[arguments[0]]
        while "=" in arguments[0]:
            name, _, value = arguments.pop(0).partition("=")
            env[name] = value
        try:
            child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
            )
        except FileNotFoundError as error:
            raise Missing(f"{arguments[0]}: not installed") from error
        except OSError as error:
            raise _as_unreadable(arguments[0], error) from error
        return _output(child, " ".join(command), limit_s)


def _output(child: subprocess.Popen[bytes], command: str, limit_s: float) -> str:
    """Return what `child` prints. One that a driver holds up is left behind: it cannot be killed."""
    try:
        printed, complaint = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(KILLED_S)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        raise Unreadable(f"{command}: no end within {limit_s:g} s") from error
    if child.returncode:
        errors = complaint.decode("utf-8", "replace").strip().splitlines()
        text = f"{command}: exit code {child.returncode}"
        raise Unreadable(f"{text}, {errors[-1]}" if errors else text)
    return printed[:MAX_BYTES].decode("utf-8", "replace")


def _as_unreadable(path: str, error: OSError) -> Unreadable:
    kind = Missing if error.errno in ABSENT else Unreadable
    return kind(f"{path}: {error.strerror or error}")
