"""Starts the worker process of `verbs_worker.py` and exchanges JSON lines with it, without blocking.

This module imports the standard library and `schemas.run_module` only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict

from schemas.run_module import script_command


class OpenRequest(TypedDict):
    """The first line to a worker: the device to open, and the settings of its prober."""

    nic: str
    device: str
    run: int
    key: str
    address: str | None
    port: int
    paths: int
    first_path_port: int
    rate_pps: float
    answer_max_pps: float
    timeout_ns: int
    max_age_ns: int
    flush_ns: int
    hardware: bool
    traffic_class: int
    sysfs: str
    seed: int


class Ready(TypedDict):
    """A worker's message that its device is open, with the device's properties."""

    device: str
    port: int
    gid: str
    kind: str
    lid: int
    path_bits: int
    speed_bps: int | None
    numbers: list[int]
    paths: list[int]
    sure: bool
    hardware: bool
    tick_ns: int
    refused: list[str]


class Batch(TypedDict):
    """A worker's message with the samples since its last batch."""

    number: int
    clock_ns: int
    system_ns: int
    bound_ns: int
    counters: dict[str, int]
    stamp_error_ns: int
    groups: list[list[Any]]
    """One list per path: peer, path, lost, no_t3 and the columns sent, forward, turnaround, reverse."""


class Message(TypedDict, total=False):
    """A JSON line from a worker. Exactly one of the fields is set."""

    ready: Ready
    batch: Batch
    error: str


UdPeerLine: TypeAlias = "tuple[str, str, int, int, Sequence[int]]"
"""Name, GID in hexadecimal, LID, number of free LID bits and queue pair numbers of a peer."""

_END_S: Final = 2.0
_READ_BYTES: Final = 1 << 16


def open_request(
    *,
    nic: str,
    device: str,
    run: int,
    key: bytes,
    address: str | None = None,
    port: int = 0,
    paths: int = 4,
    first_path_port: int = 0xC400,
    rate_pps: float = 200.0,
    answer_max_pps: float = 10_000.0,
    timeout_ms: float = 100.0,
    max_age_s: float = 300.0,
    flush_ms: int = 100,
    hardware: bool = True,
    traffic_class: int = 0,
    sysfs: Path = Path("/sys"),
) -> OpenRequest:
    """Build a worker's first input line: the request to open a device."""
    return {
        "nic": nic,
        "device": device,
        "run": run,
        "key": key.hex(),
        "address": address,
        "port": port,
        "paths": paths,
        "first_path_port": first_path_port,
        "rate_pps": rate_pps,
        "answer_max_pps": answer_max_pps,
        "timeout_ns": int(timeout_ms * 1e6),
        "max_age_ns": int(max_age_s * 1e9),
        "flush_ns": flush_ms * 1_000_000,
        "hardware": hardware,
        "traffic_class": traffic_class,
        "sysfs": str(sysfs),
        "seed": int.from_bytes(os.urandom(8), "big"),
    }


class WorkerProcess:
    """The worker process of one device. `fileno` is readable when output waits; `read` never blocks."""

    def __init__(self, first: OpenRequest, python: str | None = None) -> None:
        """Start the process with `first` as its first input line. Raises OSError if that fails."""
        self._process = subprocess.Popen(
            script_command(str(Path(__file__).parent / "verbs_worker.py"), python=python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=True,
        )
        assert self._process.stdin is not None  # noqa: S101  # pipes were asked for
        assert self._process.stdout is not None  # noqa: S101
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._rest, self._outgoing, self._error = b"", bytearray(), ""
        self.ended: str | None = None
        """The reason why the process ended; None while it runs."""
        self._send(first)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the worker has written."""
        return self._out

    def set_peers(self, peers: Sequence[UdPeerLine]) -> None:
        """Send the worker new peers, which replace its former peers."""
        self._send({"peers": [[*peer[:4], list(peer[4])] for peer in peers]})

    def read(self) -> list[Message]:
        """Return the messages that the worker has sent since the last call."""
        if self._outgoing:
            self._flush()
        messages: list[Message] = []
        while self.ended is None:
            try:
                data = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            messages += [json.loads(line) for line in lines]
            self._error = next(
                (message["error"] for message in reversed(messages) if "error" in message), self._error
            )
            if not data:
                self.ended = self._error or f"ended with {self._process.wait(_END_S)}"
        return messages

    def close(self) -> list[Message]:
        """End the worker process; return its messages that `read` has not returned."""
        process = self._process
        assert process.stdin is not None  # noqa: S101  # pipes were asked for
        assert process.stdout is not None  # noqa: S101
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        messages: list[Message] = []
        end = time.monotonic() + _END_S
        while self.ended is None and time.monotonic() < end:
            select.select([self._out], [], [], _END_S)
            messages += self.read()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        return messages

    def _send(self, message: Mapping[str, Any]) -> None:
        self._outgoing += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outgoing:
                del self._outgoing[: os.write(self._in, self._outgoing)]
