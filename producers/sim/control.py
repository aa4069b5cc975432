"""The control socket of a running simulated fleet: owner-only, with one JSON line each way.

A request is, for example, `{"command": "fault", "line": "grey 20% leaf1>spine2"}`. The answer is `{"ok":
true, "result": ...}` or `{"ok": false, "error": "one line"}`. The simulation's own thread executes requests
between two ticks.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from schemas.ipc import check_owner, connect, leave, listen, read_line

__all__ = ["ControlServer", "NoFleet", "ask", "socket_path"]

_LINE_BYTES_MAX = 65_536
_ANSWER_BYTES_MAX = 64 << 20
_IDLE_S = 10.0
_LINE_S: Final = 2.0
"""Time for a client's request line; other clients wait meanwhile."""
_AGAIN_S: Final = 0.5
"""Pause after a connection could not be accepted."""

_log = logging.getLogger(__name__)

Request = dict[str, Any]
Commands = Mapping[str, Callable[[Request], Any]]


class NoFleet(RuntimeError):
    """No simulated fleet answers, or it refuses; the text is one line."""


def socket_path(data_directory: Path) -> Path:
    """Return the socket path of the simulated fleet of a data directory."""
    return data_directory / "run" / "sim.sock"


class ControlServer:
    """Receives requests in a thread of its own; `serve` executes them in the caller's thread."""

    def __init__(self, path: Path, commands: Commands) -> None:
        """Raises OSError where the socket cannot be made."""
        self._path, self._commands = path, commands
        self._asked: queue.SimpleQueue[tuple[Request, Future[Any]]] = queue.SimpleQueue()
        self._closing = threading.Event()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket = listen(path, blocking=True)
        self._thread = threading.Thread(target=self._accept, name="sim control", daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Execute the requests since the last call."""
        while True:
            try:
                request, answer = self._asked.get_nowait()
            except queue.Empty:
                return
            try:
                answer.set_result(self._commands[request["command"]](request))
            except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError) as error:
                answer.set_exception(error)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        leave(self._path, self._socket)
        self._thread.join(2 * _IDLE_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closing.is_set():
                    return
                _log.warning("sim control: cannot accept a connection: %s", error)
                self._closing.wait(_AGAIN_S)
                continue
            try:
                with connection:
                    check_owner(connection)
                    line = read_line(connection, _LINE_BYTES_MAX, _LINE_S)
                    connection.settimeout(_IDLE_S)
                    connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")
            except OSError as error:
                _log.info("sim control: a client disconnected: %s", error)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict) or request.get("command") not in self._commands:
                raise ValueError(f"request {line[:80]!r}: expected a command of {', '.join(self._commands)}")
            answer: Future[Any] = Future()
            self._asked.put((request, answer))
            return {"ok": True, "result": answer.result(_IDLE_S)}
        except TimeoutError:
            return {"ok": False, "error": f"the simulation did not answer within {_IDLE_S:g} s"}
        except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError, RecursionError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            return {"ok": False, "error": f"missing {text}" if isinstance(error, KeyError) else text}


def ask(path: Path, command: str, timeout_s: float = 15.0, **values: Any) -> Any:
    """Return the result of a command. Raises NoFleet if no fleet answers or it refuses."""
    try:
        with connect(path, timeout_s) as connection:
            connection.sendall(json.dumps({"command": command, **values}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline(_ANSWER_BYTES_MAX) or b"{}")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise NoFleet(f"no simulated fleet at {path}: {reason}") from None
    if not answer.get("ok"):
        raise NoFleet(answer.get("error", f"the simulated fleet at {path} hung up"))
    return answer["result"]
