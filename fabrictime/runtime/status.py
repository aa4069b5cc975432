"""Maintains the state file that a running `up` writes and `fabrictime status` reads, and the `up`'s lock.

The state holds pid, fleet, addresses and children, and is valid only while that `up` lives. The lock lets one
`up` at a time use a data directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from fabrictime.runtime.holder import Holder, boot_s, describe, holder_in
from producers.boot import boot_id
from schemas.input_error import InputError

if TYPE_CHECKING:
    from fabrictime.state.health import Health

STATE_FILE: Final = "run/state.json"
MAX_AGE_S: Final = 15.0
"""Age of the state, s, above which `up` itself hangs. It writes each second, on a full disk every 10 s."""
LOCK_FILE: Final = "run/lock"


class NotReady(InputError):
    """An `up` runs on the data directory, but has not written its state yet."""


class InUse(InputError):
    """Another process uses the data directory."""


class Lock:
    """Locks a data directory for this process. The kernel releases the lock when the process ends."""

    def __init__(self, directory: Path) -> None:
        """Take the lock. Raises ValueError with the holder's name if another process holds the lock.

        Raises ValueError also if the directory cannot be created or written to, or if others may enter it and
        it is neither empty nor ours. The directory is made accessible to its owner only.
        """
        self._directory, self._fds = directory, list[int]()
        try:
            self._take(directory)
        except OSError as error:
            raise InputError(
                f"{directory}: {error.strerror}, expected a directory that we can make and write to"
            ) from None

    def _take(self, directory: Path) -> None:
        if (
            directory.is_dir()
            and directory.stat().st_mode & 0o077
            and not (directory / LOCK_FILE).exists()
            and any(directory.iterdir())
        ):
            raise InputError(f"{directory}: others may enter it and it is not empty, expected our own")
        for part in (directory, directory / "run", directory / "secrets"):
            part.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        path = directory / LOCK_FILE
        # The directory is locked too: a file that somebody removed locks nothing for the next process.
        fds: list[int] = []
        try:
            for place, flags in ((directory, os.O_RDONLY | os.O_DIRECTORY), (path, os.O_RDWR | os.O_CREAT)):
                fds.append(os.open(place, flags | os.O_CLOEXEC, 0o600))
                fcntl.flock(fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for fd in fds:
                os.close(fd)
            holder = holder_in(path)
            user = "another process" if holder is None else holder.describe()
            raise InUse(f"{directory}: in use by {user}") from None
        os.ftruncate(fds[1], 0)
        os.pwrite(fds[1], Holder.own().dump().encode(), 0)
        self._directory, self._fds = directory, fds

    def check(self) -> str | None:
        """Lock the directory again if it or the lock file was removed; return a line about it, else None.

        Raises InUse if another process has locked the directory meanwhile.
        """
        problems = [
            name
            for name, path, fd in (
                ("the data directory", self._directory, self._fds[0]),
                ("its lock file", self._directory / LOCK_FILE, self._fds[1]),
            )
            if not _is_at(path, fd)
        ]
        if not problems:
            return None
        self.release()
        with contextlib.suppress(OSError):  # a service may have made it again, for everybody to enter
            self._directory.chmod(0o700)
        self._take(self._directory)
        return f"{self._directory}: {' and '.join(problems)} had been removed, and was made again"

    @property
    def is_locked(self) -> bool:
        """Whether this process holds the lock."""
        return bool(self._fds)

    def release(self) -> None:
        """Release the lock of the data directory."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def _is_at(path: Path, fd: int) -> bool:
    """Return whether the file at `path` is still the open file `fd`."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False


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
    """Write the state file atomically. Its times are since boot, because the system clock may step."""
    path = directory / STATE_FILE
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({**state, "boot": boot_id(), "written_boot_s": boot_s()}), encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(path)


def read(directory: Path) -> dict[str, Any]:
    """Return the state of the `up` that runs on this data directory.

    Raises ValueError if none runs, NotReady while it starts.
    """
    if not _locked(directory / LOCK_FILE):
        raise InputError(f"{directory}: no `fabrictime up` is running on this data directory")
    try:
        state: dict[str, Any] = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise NotReady(f"{directory}: `fabrictime up` is just starting, expected its state") from error
    try:
        age_s, written_s = _ages_s(state, (directory / STATE_FILE).stat().st_mtime)
    except (AttributeError, KeyError, TypeError):
        raise InputError(
            f"{directory / STATE_FILE}: of another form, expected an `up` of this version of fabrictime"
        ) from None
    state |= {"age_s": round(age_s, 1), "written_s": round(written_s, 1)}
    return state


def _ages_s(state: Mapping[str, Any], modified_s: float) -> tuple[float, float]:
    """Return (seconds since an `up` started, since it wrote its state). `modified_s`: time of the file."""
    if state.get("boot") == boot_id() and "started_boot_s" in state:
        now_s = boot_s()
        return now_s - state["started_boot_s"], now_s - state["written_boot_s"]
    now_s = time.time()  # the state of another host or an older release: only the wall clock is known
    return now_s - state["started_s"], now_s - modified_s


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
    """Return whether an `up` holds the lock file. Raises ValueError if the file belongs to another user."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError as error:
        raise InputError(f"{path}: {error.strerror}, expected a data directory of this user") from None
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


def with_health(state: Mapping[str, Any], health: Health) -> dict[str, Any]:
    """Return the state with the fleet's health. If the health cannot be read, evidence counts as missing."""
    is_unread = health.level == "bad" and health.cause and not state["missing_evidence"]
    missing = [health.cause] if is_unread else state["missing_evidence"]
    return {**state, "missing_evidence": missing, "health": asdict(health)}


def show(state: Mapping[str, Any]) -> None:
    """Print a state that `with_health` has completed, as text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fabrictime.state.labels import LEVEL_COLOURS

    console, health = Console(), state["health"]
    for text, style in (
        (health["sentence"], f"bold {LEVEL_COLOURS[health['level']]}"),
        (health["consequence"], "yellow"),
    ):
        if text:
            console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)
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
