"""Reads a real host: files below a root, commands, and the network of a namespace."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from producers.audit.host import Missing, Unreadable, as_unreadable
from producers.audit.live_network import LiveNetwork
from producers.netns import in_netns

__all__ = ["LiveHost"]

MAX_BYTES: Final = 4 << 20
"""Largest part of a file or output that is read: a check needs a few kilobytes."""
CHUNK_BYTES: Final = 1 << 16
"""Size of one read: files of sysctl refuse large ones."""
COMMAND_S: Final = 5.0
"""Time that a command may take."""
SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/mft/bin"
NETWORK_FILES: Final = ("/proc/net", "/proc/sys/net/")
"""Files whose content depends on the network namespace of the reading thread."""
INTERFACE_FILES: Final = ("/sys/class/net", "/sys/class/infiniband/")

T = TypeVar("T")


class LiveHost(LiveNetwork):
    """This host, or another one's files below `root`, with the network of the namespace at `netns`.

    In a namespace, files of /proc/net and /proc/sys/net are the namespace's, and commands run in it. Its
    interfaces are not in sysfs, which shows those of the namespace that mounted it.
    """

    def __init__(self, root: Path = Path("/"), netns: str | None = None, nics: tuple[str, ...] = ()) -> None:
        """`nics`: interfaces of the NICs that the agent measures."""
        super().__init__(netns, nics)
        self._root = root

    def _at(self, path: str) -> Path:
        """Return the path of a file. Raises Missing for an interface's file of another namespace."""
        if self.netns is not None and path.startswith(INTERFACE_FILES):
            raise Missing(f"{path}: sysfs shows no other network namespace")
        if path == "/proc/net" or path.startswith("/proc/net/"):
            path = "/proc/thread-self/net" + path.removeprefix("/proc/net")
        return self._root / path.lstrip("/")

    def _open(self, path: str, work: Callable[[Path], T]) -> T:
        """Return `work` of the path, in the namespace if the file depends on it. Raises OSError, Missing."""
        at = self._at(path)
        is_own = path.startswith(NETWORK_FILES)
        return in_netns(self.netns if is_own else None, lambda: work(at))

    def read(self, path: str) -> str:
        """Return a file's text, stripped. Raises Missing, Unreadable."""
        return self.read_bytes(path).decode("utf-8", "replace").strip("\n\x00 ")

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises Missing, Unreadable."""
        try:
            return self._open(path, _content)
        except OSError as error:
            raise as_unreadable(path, error) from error

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory. Raises Missing, Unreadable."""
        try:
            return sorted(self._open(path, os.listdir))
        except OSError as error:
            raise as_unreadable(path, error) from error

    def space(self, path: str) -> tuple[int, int, int, int]:
        """Return a file system's size and free bytes, inodes and free inodes. Raises Missing, Unreadable."""
        try:
            found = os.statvfs(self._at(path))
        except OSError as error:
            raise as_unreadable(path, error) from error
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
            done = in_netns(self.netns, lambda: _run(command, env))
        except FileNotFoundError as error:
            raise Missing(f"{command[0]}: not installed") from error
        except subprocess.TimeoutExpired as error:
            raise Unreadable(f"{' '.join(command)}: no end within {COMMAND_S:g} s") from error
        except OSError as error:
            raise as_unreadable(command[0], error) from error
        if done.returncode:
            errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
            text = f"{' '.join(command)}: exit code {done.returncode}"
            raise Unreadable(f"{text}, {errors[-1]}" if errors else text)
        return done.stdout[:MAX_BYTES].decode("utf-8", "replace")


def _content(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        content = file.read(CHUNK_BYTES) or b""
        while len(content) < MAX_BYTES and (more := file.read(CHUNK_BYTES)):
            content += more
    return content


def _run(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command, capture_output=True, timeout=COMMAND_S, check=False, env=env, stdin=subprocess.DEVNULL
    )
