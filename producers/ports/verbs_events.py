"""Reads the events of an RDMA device's ports, such as PORT_ERR and PORT_ACTIVE, within milliseconds.

A separate process waits for them, because pyverbs holds the interpreter lock in every call. The
distribution's pyverbs may need the distribution's interpreter (`verbs_python`). This file is also that
process's program, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

EVENTS = (
    "CQ_ERR",
    "QP_FATAL",
    "QP_REQ_ERR",
    "QP_ACCESS_ERR",
    "COMM_EST",
    "SQ_DRAINED",
    "PATH_MIG",
    "PATH_MIG_ERR",
    "DEVICE_FATAL",
    "PORT_ACTIVE",
    "PORT_ERR",
    "LID_CHANGE",
    "PKEY_CHANGE",
    "SM_CHANGE",
    "SRQ_ERR",
    "SRQ_LIMIT_REACHED",
    "QP_LAST_WQE_REACHED",
    "CLIENT_REREGISTER",
    "GID_CHANGE",
    "WQ_FATAL",
)
"""Names of the values of enum ibv_event_type, in its order."""

END_S = 2.0


class VerbsEventReader:
    """Waits for a device's events in a separate process. After an event `fileno` is readable.

    `read` never blocks.
    """

    def __init__(self, device: str, python: str | None = None) -> None:
        """Start the process that waits for events. Raises OSError if that fails."""
        self.device = device
        self._process = subprocess.Popen(
            [python or sys.executable, "-I", str(Path(__file__).resolve()), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=True,
        )
        assert self._process.stdout is not None  # noqa: S101  # a pipe was asked for
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._rest, self._last_line = b"", ""
        self.ended: str | None = None
        """The last line that the process wrote before it ended; None while it runs."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable after an event."""
        return self._out

    def read(self) -> list[str]:
        """Return the names of the events since the last call, such as PORT_ERR."""
        names: list[str] = []
        while self.ended is None:
            try:
                data = os.read(self._out, 4096)
            except BlockingIOError:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                kind, _, name = line.decode(errors="replace").partition(" ")
                if kind == "event":
                    names.append(name)
                else:
                    self._last_line = line.decode(errors="replace").strip()
            if not data:
                self.ended = self._last_line or f"ended with {self._process.wait(END_S)}"
        return names

    def close(self) -> None:
        """End the process that waits for events."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(device: str) -> int:
    """Print one line per event until the input ends. Return exit code 2 if it cannot wait for events."""
    try:
        from pyverbs.device import Context
    except ImportError as error:
        print(f"{device}: pyverbs: {error}", flush=True)
        return 2
    before = _descriptors()
    try:
        context = Context(name=device)
    except Exception as error:  # noqa: BLE001  # pyverbs has errors of its own, known only where it is
        print(f"{device}: {error}", flush=True)
        return 2
    # pyverbs does not expose its event descriptor: it is the new one that is no device file
    events = [fd for fd, path in _descriptors().items() if fd not in before and not path.startswith("/dev/")]
    if not events:
        print(f"{device}: no descriptor of events", flush=True)
        return 2
    poll = select.poll()
    poll.register(events[-1], select.POLLIN)
    poll.register(sys.stdin.fileno(), select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if sys.stdin.fileno() in ready:
            return 0
        event = context.get_async_event()
        number = int(event.event_type)
        event.ack()
        print(f"event {EVENTS[number] if 0 <= number < len(EVENTS) else number}", flush=True)


def _descriptors() -> dict[int, str]:
    """Return this process's open file descriptors, each with the target of its link in /proc."""
    targets = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return targets


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
