"""Identifies the process that holds a data directory, so that no other process is mistaken for it.

A process id is unique only within one boot of one host and one PID namespace. A data directory may be shared
by containers or, over NFS, by hosts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from producers.boot import boot_id

MAX_COMMAND: Final = 160
"""Characters of a command line that are shown."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process: its id, and the host, boot and PID namespace in which the id is valid."""

    pid: int
    boot: str
    pid_namespace: int
    host: str

    @classmethod
    def own(cls) -> Holder:
        """Return the `Holder` of this process."""
        return cls(os.getpid(), boot_id(), os.stat("/proc/self/ns/pid").st_ino, socket.gethostname())

    @classmethod
    def parse(cls, text: str) -> Holder | None:
        """Return the process that a lock file's text names; None if it names none."""
        try:
            fields = json.loads(text)
            return cls(
                int(fields["pid"]), str(fields["boot"]), int(fields["pid_namespace"]), str(fields["host"])
            )
        except (ValueError, KeyError, TypeError):
            return None

    def dump(self) -> str:
        """Return the text to write into a lock file."""
        return json.dumps(asdict(self)) + "\n"

    def describe(self) -> str:
        """Return a text about the process, with its id only if the id is valid here."""
        here = Holder.own()
        if self.boot != here.boot:
            return f"a process of host {self.host}"
        if self.pid_namespace != here.pid_namespace:
            return f"a process of another container ({self.host}) on this host"
        return describe(self.pid)


def describe(pid: int | None) -> str:
    """Return a text about a process, such as 'process 123 (fabrictime up --fleet none)', with as much detail
    as this user may see.
    """
    if pid is None:
        return "a process that this user may not look at"
    try:
        command = " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except psutil.Error:
        return f"process {pid}"
    return f"process {pid} ({command[:MAX_COMMAND]})"


def boot_s() -> float:
    """Return the time since boot, s, including suspends and unaffected by steps of the system clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def holder_in(path: Path) -> Holder | None:
    """Return the process that a lock file names; None if the file names none."""
    try:
        return Holder.parse(path.read_text(encoding="utf-8"))
    except OSError:
        return None
