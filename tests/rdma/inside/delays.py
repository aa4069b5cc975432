"""Reads what the libraries in a program record, for tests: delays of queue pairs, and operations of MPI.

It takes the segments as the reporter does, and needs the standard library alone. native/collectives/segment.h
has the layout."""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from dataclasses import dataclass, field

RINGS_AT, RING_HEAD, EVENT = 4096 + 4096 * 256 + 64 * 64, 256, 128
END, QUEUE_PAIR = 2, 4


@dataclass(frozen=True)
class Interval:
    """Completions of one queue pair within an interval; `created` is the last part of its flow's key."""

    created: int
    completed: int
    posted: int
    bytes: int
    min_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True)
class Operation:
    """An operation that ended."""

    pid: int
    function: int
    bytes: int
    took_ns: int


@dataclass
class Delays:
    """Reads the segments of processes that connect to a socket; keeps their intervals and operations."""

    folder: str
    intervals: list[Interval] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = f"{self.folder}/collectives"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.path)
        self._socket.listen()
        self._segments: list[mmap.mmap] = []
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def environment(self) -> dict[str, str]:
        return {"FABRICTIME_COLLECTIVES": self.path}

    def of(self, key: str, since: int = 0) -> list[Interval]:
        """Return the intervals of a queue pair, from the since-th of all on."""
        self.read()
        created = int(key.rpartition(":")[2])
        return [each for each in self.intervals[since:] if each.created == created]

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            _, (fd,), _, _ = socket.recv_fds(connection, 64, 1)
            self._segments.append(mmap.mmap(fd, os.fstat(fd).st_size))
            os.close(fd)
            connection.send(b"OK")
            self._connections.append(connection)

    def read(self) -> None:
        """Read the events that are new, and free their room."""
        for segment in self._segments:
            rings, events = struct.unpack_from("<II", segment, 24)
            for ring in range(rings):
                at = RINGS_AT + ring * (RING_HEAD + events * EVENT)
                (head,) = struct.unpack_from("<Q", segment, at)
                (tail,) = struct.unpack_from("<Q", segment, at + 64)
                for number in range(tail, head):
                    self._event(segment, at + RING_HEAD + number % events * EVENT)
                struct.pack_into("<Q", segment, at + 64, head)

    def _event(self, segment: mmap.mmap, at: int) -> None:
        begin, end, _, created, size = struct.unpack_from("<QQQQQ", segment, at)
        kind, function = segment[at + 48], segment[at + 49]
        if kind == END:
            (pid,) = struct.unpack_from("<I", segment, 40)
            self.operations.append(Operation(pid, function, size, end - begin))
        elif kind == QUEUE_PAIR:
            completed, min_ns, max_ns = struct.unpack_from("<III", segment, at + 68)
            p99, posted = struct.unpack_from("<QQ", segment, at + 88)
            self.intervals.append(Interval(created, completed, posted, size, min_ns, p99, max_ns))
