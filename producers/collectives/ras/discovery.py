"""Finds the RAS services of jobs on this host: listening sockets of processes, by port and inode.

Every process of a job listens on one address, `NCCL_RAS_ADDR` of its environment or port 28028 of the
loopback, and the kernel gives a connection to any of them (SO_REUSEPORT). RCCL reads the same variable.
Addresses are compared with the listening sockets of the network namespace, so no other service is queried. A
scan of processes follows a change of these sockets. It reads environments and descriptors of processes that
this user may inspect.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from producers.netns import in_netns

RAS_PORT: Final = 28028
VARIABLE: Final = "NCCL_RAS_ADDR"
_SETTINGS_FILE: Final = Path("/etc/nccl.conf")
_PROC: Final = Path("/proc")
_LISTENING: Final = "0A"
_ENVIRONMENT_BYTES: Final = 1 << 20
_MAX_SOCKETS: Final = 65_536
_MAX_PROCESSES: Final = 65_536
_MAX_DESCRIPTORS: Final = 65_536
MAX_SERVICES: Final = 64
"""Maximum number of addresses of one host that are asked."""
_SCAN_S: Final = 0.5
"""Maximum duration of a scan of processes, s; the rest follows with the next one."""
_PORT: Final = re.compile(r"(\d{1,5})\s*$")


class Socket(NamedTuple):
    """A listening TCP socket: its inode, its address, and the id of the user who owns it."""

    inode: int
    address: str
    port: int
    user: int


@dataclass(slots=True)
class Service:
    """An address on which processes of one user listen, with their readable `environments` by process id."""

    address: str
    port: int
    user: int
    sockets: int = 0
    """Number of processes that listen."""
    environments: dict[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """The service's IP address and port."""
        return self.address, self.port


def listening_sockets(netns: str | None, proc: Path = _PROC) -> list[Socket]:
    """Return the listening TCP sockets of a network namespace. Raises OSError if it cannot be entered."""

    def read() -> list[Socket]:
        sockets: list[Socket] = []
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                text = (proc / "thread-self/net" / name).read_text("ascii", "replace")
                sockets += parse_sockets(text)
        return sockets[:_MAX_SOCKETS]

    return in_netns(netns, read)


def parse_sockets(text: str) -> Iterator[Socket]:
    """Yield the listening sockets in the text of /proc/net/tcp or tcp6; skip malformed lines."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTENING:
            continue
        address, _, port = fields[1].partition(":")
        try:
            yield Socket(int(fields[9]), _address(address), int(port, 16), int(fields[7]))
        except ValueError:
            continue


def _address(digits: str) -> str:
    """Convert the hexadecimal address in an entry of /proc/net/tcp, which has the machine's byte order."""
    data = bytes.fromhex(digits)
    ordered = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return str(ipaddress.ip_address(ordered))


def port_of(address: str) -> int | None:
    """Return the port of an address such as `localhost:28028` or `[::1]:28030`; None if it has none."""
    match = _PORT.search(address.rpartition(":")[2]) if ":" in address else None
    port = int(match[1]) if match is not None else 0
    return port if 0 < port < 65_536 else None


def target_of(address: str) -> str:
    """Return the address to connect to for a socket bound to `address`: loopback for a wildcard address."""
    ip = ipaddress.ip_address(address)
    if not ip.is_unspecified:
        return address
    return "127.0.0.1" if ip.version == 4 else "::1"


def configured_port(file: Path = _SETTINGS_FILE) -> int:
    """Return the RAS port in NCCL's configuration file of this host, else the default port."""
    try:
        lines = file.read_text("utf-8", "replace")[:_ENVIRONMENT_BYTES].splitlines()
    except OSError:
        return RAS_PORT
    values = [line.partition("=")[2] for line in lines if line.partition("=")[0].strip() == VARIABLE]
    return next((port for value in reversed(values) if (port := port_of(value))), RAS_PORT)


class Discovery:
    """Finds the RAS services of the network namespace `netns`, or of this process's own if it is None."""

    def __init__(self, netns: str | None = None, proc: Path = _PROC) -> None:
        self._netns, self._proc = netns, proc
        self._environments: dict[int, Mapping[str, str]] = {}
        """Environments of the processes in `_owners`."""
        self._owners: dict[int, int] = {}
        """Process by inode of its listening socket."""
        self._inodes: frozenset[int] = frozenset()
        self._default_port = RAS_PORT

    def services(self) -> list[Service]:
        """Return the services, most processes first. Raises OSError if the namespace does not exist."""
        sockets = listening_sockets(self._netns, self._proc)
        inodes = frozenset(socket.inode for socket in sockets)
        if inodes != self._inodes:
            is_done = self._scan({socket.inode: socket.port for socket in sockets})
            self._inodes = inodes if is_done else frozenset()
        return list(self._grouped(sockets))[:MAX_SERVICES]

    def _grouped(self, sockets: Iterable[Socket]) -> list[Service]:
        services: dict[tuple[str, int, int], Service] = {}
        for socket in sockets:
            owner = self._owners.get(socket.inode)
            if owner is None and socket.port != self._default_port:
                continue
            key = (target_of(socket.address), socket.port, socket.user)
            service = services.setdefault(key, Service(*key))
            service.sockets += 1
            if owner is not None:
                service.environments[owner] = self._environments.get(owner, {})
        return sorted(services.values(), key=lambda one: (-one.sockets, one.port, one.address, one.user))

    def _scan(self, ports: Mapping[int, int]) -> bool:
        """Find the processes that own listening sockets; return False if the time was too short for all.

        `ports` has the port of each socket by inode.
        """
        end_s = time.monotonic() + _SCAN_S
        namespace = self._namespace()
        pids = self._processes()
        self._default_port = configured_port()
        self._owners = {inode: pid for inode, pid in self._owners.items() if inode in ports and pid in pids}
        for pid in pids - set(self._owners.values()):
            if time.monotonic() > end_s:
                return False
            if namespace is None or _link(self._proc / str(pid) / "ns/net") == namespace:
                self._examine(pid, ports)
        owners = set(self._owners.values())
        self._environments = {pid: known for pid, known in self._environments.items() if pid in owners}
        return True

    def _examine(self, pid: int, ports: Mapping[int, int]) -> None:
        """Store those listening sockets of a process that use its RAS port."""
        environment = self._environment(pid)
        own_port = port_of(environment.get(VARIABLE, "")) or self._default_port
        candidates = {inode for inode, port in ports.items() if port == own_port}
        for inode in self._own_sockets(pid, candidates):
            self._owners[inode], self._environments[pid] = pid, environment

    def _namespace(self) -> str | None:
        """Return the kernel's id of the network namespace; None if it cannot be read."""
        if self._netns is None:
            return _link(self._proc / "self/ns/net")
        return in_netns(self._netns, lambda: _link(self._proc / "thread-self/ns/net"))

    def _processes(self) -> set[int]:
        names = [entry.name for entry in os.scandir(self._proc) if entry.name.isdecimal()]
        return {int(name) for name in names[:_MAX_PROCESSES]}

    def _environment(self, pid: int) -> Mapping[str, str]:
        """Return the environment variables of a process; empty without the right to read them."""
        try:
            with (self._proc / str(pid) / "environ").open("rb") as file:
                data = file.read(_ENVIRONMENT_BYTES)
        except OSError:
            return {}
        pairs = (part.decode("utf-8", "replace").partition("=") for part in data.split(b"\0"))
        return {name: value for name, _, value in pairs if name}

    def _own_sockets(self, pid: int, inodes: Collection[int]) -> Iterator[int]:
        """Yield those of `inodes` that belong to sockets open in the process."""
        if not inodes:
            return
        try:
            with os.scandir(self._proc / str(pid) / "fd") as entries:
                for _, entry in zip(range(_MAX_DESCRIPTORS), entries, strict=False):
                    name = _link(Path(entry.path)) or ""
                    if name.startswith("socket:[") and int(name[8:-1]) in inodes:
                        yield int(name[8:-1])
        except OSError:
            return


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
