"""Defines which users' programs may connect to a Unix socket, and the names of those users' jobs."""

from __future__ import annotations

import array
import errno
import grp
import os
import pwd
import re
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field

USERS_PATTERN: Final = r"^(owner|all|group:[A-Za-z_][A-Za-z0-9_.-]{0,31})$"
"""The setting of a socket's users: its owner, all users, or the members of a group."""
SOCKET_USERS: Final[Any] = Field(
    default="owner",
    pattern=USERS_PATTERN,
    examples=["group:hpc"],
    description="users whose programs may connect: owner, all, or the members of group:NAME. Jobs of other "
    "users than the owner have names that end with @USER",
)
_UCRED: Final = struct.Struct("=iII")
_SO_PEERGROUPS: Final = 59
_MAX_GROUPS: Final = 256
"""Maximum number of groups that Python reads from a socket."""


class Peer(NamedTuple):
    """The program at the other end of a connection; `pid` is 0 if it is in another PID namespace."""

    pid: int
    user: int


@dataclass(frozen=True, slots=True)
class SocketAccess:
    """The users that may connect to a socket besides its owner: the members of a group, or all users."""

    group: int | None = None
    everyone: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether users besides the owner may connect."""
        return self.everyone or self.group is not None

    @property
    def mode(self) -> int:
        """The permission bits of the socket's file."""
        return 0o666 if self.everyone else 0o600 if self.group is None else 0o660

    def prepare_folder(self, folder: Path) -> None:
        """Create the socket's folder. Raises PermissionError if the socket's users cannot enter it."""
        absent = [part for part in (folder, *folder.parents) if not part.exists()]
        folder.mkdir(mode=0o711 if self.is_shared else 0o700, parents=True, exist_ok=True)
        if not self.is_shared:
            return
        for part in absent:  # the umask may have kept the users out of folders that are new
            part.chmod(0o711)
        for part in (folder.resolve(), *folder.resolve().parents):
            status = part.stat()
            is_group_entry = status.st_gid == self.group and status.st_mode & stat.S_IXGRP
            if not status.st_mode & stat.S_IXOTH and not is_group_entry:
                mode = stat.S_IMODE(status.st_mode)
                raise PermissionError(
                    errno.EACCES,
                    f"folder {part}: mode {mode:o}, expected one that the socket's users can enter (711);"
                    " or name a socket in another folder",
                )

    def admit(self, name: str) -> None:
        """Let the users connect: set group and mode of the file. Raises PermissionError if not allowed to."""
        if not self.is_shared:
            return
        if self.group is not None:
            try:
                os.chown(name, -1, self.group, follow_symlinks=False)
            except PermissionError:
                text = f"user {os.geteuid()} is not in the group {self.group} that socket_users names"
                raise PermissionError(errno.EPERM, text) from None
        os.chmod(name, self.mode)

    def admits(self, user: int) -> bool:
        """Return whether programs of the user id `user` may connect."""
        if user == os.geteuid() or self.everyone:
            return True
        return self.group is not None and self.group in _groups_of_user(user)

    def check(self, connection: socket.socket) -> Peer:
        """Return the peer of a connection. Raises PermissionError for a user without access."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        process, user, group = _UCRED.unpack(raw)
        if user == os.geteuid() or self.everyone:
            return Peer(process, user)
        if self.group is None:
            raise PermissionError(f"user {user} is not this socket's owner (setting socket_users)")
        if self.group not in {group, *_groups_of(connection, user, group)}:
            raise PermissionError(f"user {user} is not in the group {self.group} of this socket")
        return Peer(process, user)


OWNER: Final = SocketAccess()


def access_of(users: str) -> SocketAccess:
    """Return the access that a setting `socket_users` states.

    Raises ValueError, also for an unknown group.
    """
    if not re.fullmatch(USERS_PATTERN, users):
        raise ValueError(f"socket_users {users!r}: expected owner, all or group:NAME")
    if users in ("owner", "all"):
        return SocketAccess(everyone=users == "all")
    name = users.partition(":")[2]
    try:
        return SocketAccess(group=grp.getgrnam(name).gr_gid)
    except KeyError:
        raise ValueError(f"socket_users {users!r}: this host has no group {name}") from None


def owned_name(name: str, user: int) -> str:
    r"""Return a job's name for display: a job of another user than ours ends with '@' and that user's name.

    An '@' in the name itself becomes '\x40', so no user can imitate the job name of another user.
    """
    name = name.replace("@", r"\x40")
    if user == os.geteuid() or not name:
        return name
    try:
        return f"{name}@{pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"{name}@{user}"


def _groups_of(connection: socket.socket, user: int, group: int) -> list[int]:
    """Return the supplementary groups of a peer's process; if it has too many to read, those of its user."""
    groups = array.array("I")
    try:
        groups.frombytes(
            connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS * groups.itemsize)
        )
    except OSError:
        return _groups_of_user(user, group)
    return groups.tolist()


def _groups_of_user(user: int, group: int | None = None) -> list[int]:
    """Return the group ids of a user id from the system's database, with `group`; empty if unknown."""
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return []
    return os.getgrouplist(entry.pw_name, entry.pw_gid if group is None else group)
