"""Keeps the state file that a running `up` writes and `fabrictime status` reads, and the directory's lock.

The state holds pid, fleet, addresses and children, and is valid only while that `up` lives. The lock lets one
`up` at a time use a data directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

STATE_FILE: Final = "run/state.json"
MAX_AGE_S: Final = 15.0
"""Age of the state, s, above which `up` itself hangs. It writes the state each second, on a full disk every
10 s.
"""
LOCK_FILE: Final = "run/lock"


class Lock:
    """Locks a data directory for this process. The kernel releases the lock when the process ends."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises ValueError, which says who holds it, if another process does.

        Raises ValueError also if the directory cannot be created or written to, or if others may enter it and
        it is neither empty nor ours. The directory is made accessible to its owner only.
        """
        try:
            self._take(directory)
        except OSError as error:
            raise ValueError(
                f"{directory}: {error.strerror}, expected a directory that we can make and write to"
            ) from None

    def _take(self, directory: Path) -> None:
        if (
            directory.is_dir()
            and directory.stat().st_mode & 0o077
            and not (directory / LOCK_FILE).exists()
            and any(directory.iterdir())
        ):
            raise ValueError(f"{directory}: others may enter it and it is not empty, expected our own")
        for part in (directory, directory / "run", directory / "secrets"):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        path = directory / LOCK_FILE
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise ValueError(f"{directory}: in use by {describe(_pid_in(path))}") from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Release the directory."""
        os.close(self._fd)


def _pid_in(path: Path) -> int | None:
    text = path.read_text(encoding="utf-8").strip()
    return int(text) if text.isdigit() else None


def describe(pid: int | None) -> str:
    """Return a text about a process, such as 'process 123 (fabrictime up --fleet none)', with what this user
    may see of it.
    """
    if pid is None:
        return "a process that this user may not look at"
    try:
        command = " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
    except psutil.Error:
        return f"process {pid}"
    return f"process {pid} ({command[:160]})"


def port_holder(host: str, port: int) -> str:
    """Return a text about the process that listens on a TCP port."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        connections = []
    pids = [
        c.pid
        for c in connections
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid is not None
    ]
    return describe(pids[0] if pids else None)


def write(directory: Path, state: Mapping[str, Any]) -> None:
    """Write the state for `read`, which never sees a part of it."""
    path = directory / STATE_FILE
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state), encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(path)


def read(directory: Path) -> dict[str, Any]:
    """Return the state of the `up` that runs on this data directory. Raises ValueError if none runs."""
    if not _locked(directory / LOCK_FILE):
        raise ValueError(f"{directory}: no `fabrictime up` is running on this data directory")
    try:
        state: dict[str, Any] = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{directory}: `fabrictime up` is just starting ({error})") from None
    state["age_s"] = round(time.time() - state["started_s"], 1)
    state["written_s"] = round(time.time() - (directory / STATE_FILE).stat().st_mtime, 1)
    return state


def wrong(state: Mapping[str, Any]) -> list[str]:
    """Return a line for each service that does not work, and for each kind of missing evidence."""
    lines = []
    if state["written_s"] > MAX_AGE_S:
        lines.append(f"`fabrictime up` (pid {state['pid']}) has not reported for {state['written_s']:.0f} s")
    lines += [f"health is not known: {phrase}" for phrase in state["missing_evidence"]]
    for row in state["children"]:
        if row["fault"] is not None:
            lines.append(f"{row['name']}: {row['fault']}")
        elif row["state"] != "ready":
            lines.append(f"{row['name']}: {row['state']}")
    return lines


def _locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def show(state: Mapping[str, Any]) -> None:
    """Print the state as text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    console.print(
        f"pid {state['pid']}, fleet {state['fleet']}, up for {state['age_s']:.0f} s, "
        f"data in {state['directory']}",
        soft_wrap=True,
        highlight=False,
    )
    for line in wrong(state):
        console.print(line, style="red", soft_wrap=True, highlight=False, markup=False)
    for name, address in state["addresses"].items():
        console.print(f"{name}: {address}", soft_wrap=True, highlight=False)
    table = Table(box=None)
    for title in ("process", "pid", "state", "age s", "restarts"):
        table.add_column(title, no_wrap=True)
    table.add_column("status")  # the one column that may take two lines
    for row in state["children"]:
        cells = (row["name"], row["pid"], row["state"], row["age_s"], row["restarts"])
        texts = ["" if cell is None else str(cell) for cell in cells]
        fault = row["fault"]
        table.add_row(*texts, Text(row["status"]) if fault is None else Text(fault, "red"))
    console.print(table)
