"""Serves control sockets of running programs, closed to other users. Requests and answers are lines of JSON.

A request is, for example, `{"command": "fault", "line": "grey 20% leaf1>spine2"}`. The answer has a line
`{"ok": true, "result": ...}` for each result, or `{"ok": false, "error": "one line"}` for a refusal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from schemas.ipc import CHECK_S, SocketFile, check_owner, connect, listen, read_line

_LINE_BYTES_MAX: Final = 65_536
_ANSWER_BYTES_MAX: Final = 64 << 20
_IDLE_S: Final = 10.0
_CONNECTIONS_MAX: Final = 32
_WAKE_S: Final = 0.1
_AGAIN_S: Final = 0.5
"""Pause after the failure to accept a connection."""
REFUSALS: Final = (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, RecursionError)
"""Errors of a command that are always returned to the client: they show an unusable value."""

_log = logging.getLogger(__name__)

Request = dict[str, Any]


class ControlServer:
    """Answers requests in threads of its own until `close`. A command's function yields its results."""

    def __init__(
        self,
        path: Path,
        name: str,
        commands: Mapping[str, Callable[[Request], Iterable[Any]]],
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        """Listen at `path`. Errors of the types `refusals` are returned to the client. Raises OSError."""
        self._name, self._commands = name, commands
        self._refusals: tuple[type[Exception], ...] = (*REFUSALS, *refusals)
        self._closing = threading.Event()
        self._slots = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._file = SocketFile(path, listen)
        self._thread = threading.Thread(target=self._accept, name=f"{name} control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._closing.set()
        with contextlib.suppress(OSError):  # wakes the thread where a shutdown does not
            connect(self._file.path, _WAKE_S).close()
        with contextlib.suppress(OSError):
            self._file.socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)
        self._file.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._file.check(time.monotonic())
            try:
                self._file.socket.settimeout(CHECK_S)
                connection, _ = self._file.socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._closing.is_set():
                    return
                _log.warning("%s control: cannot accept a connection: %s", self._name, error)
                self._closing.wait(_AGAIN_S)
                continue
            if self._closing.is_set():
                connection.close()
                return
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            request = threading.Thread(
                target=self._serve, args=(connection,), name=f"{self._name} request", daemon=True
            )
            try:
                request.start()
            except RuntimeError as error:
                _log.warning("%s control: cannot serve a connection: %s", self._name, error)
                connection.close()
                self._slots.release()

    def _serve(self, connection: socket.socket) -> None:
        """Read one request from a connection, answer it, and close the connection."""
        try:
            with connection:
                check_owner(connection)
                line = read_line(connection, _LINE_BYTES_MAX, _IDLE_S)
                connection.settimeout(_IDLE_S)
                for answer in self._answers(line):
                    connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError as error:
            _log.info("%s control: a client disconnected: %s", self._name, error)
        finally:
            self._slots.release()

    def _answers(self, line: bytes) -> Iterator[dict[str, Any]]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict) or request.get("command") not in self._commands:
                raise ValueError(f"request {line[:80]!r}: expected a command of {', '.join(self._commands)}")
            for result in self._commands[request["command"]](request):
                yield {"ok": True, "result": result}
        except self._refusals as error:
            text = " ".join(str(error).split()) or type(error).__name__
            yield {"ok": False, "error": f"missing {text}" if isinstance(error, KeyError) else text}
        except Exception as error:  # noqa: BLE001  # each request gets an answer
            _log.exception("%s control: a command failed", self._name)
            yield {"ok": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def exchange(
    connection: socket.socket, command: str, values: Mapping[str, Any]
) -> Generator[dict[str, Any], None, None]:
    """Send a request and yield the answers as they arrive; then close the connection. Raises OSError."""
    with connection:
        connection.sendall(json.dumps({"command": command, **values}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            while line := lines.readline(_ANSWER_BYTES_MAX):
                yield json.loads(line)
