"""Talking to a running simulated fleet: an owner-only Unix socket, one JSON line each way.

In: requests such as `{"command": "fault", "line": "grey 20% leaf1>spine2"}`. Out: `{"ok": true, "result":
...}` or `{"ok": false, "error": "one line"}`. The simulation's own thread answers, between two of its ticks.
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
from typing import Any

from producers.local_socket import check_owner, connect, listen

__all__ = ["ControlServer", "NoFleet", "ask", "socket_path"]

_LINE_BYTES_MAX = 65_536
_ANSWER_BYTES_MAX = 64 << 20
_IDLE_S = 10.0

_log = logging.getLogger(__name__)

Request = dict[str, Any]
Commands = Mapping[str, Callable[[Request], Any]]


class NoFleet(RuntimeError):
    """No simulated fleet answers, or it refuses; `str()` is one line."""


def socket_path(data_directory: Path) -> Path:
    """Return where the simulated fleet of a data directory listens."""
    return data_directory / "run" / "sim.sock"


class ControlServer:
    """Takes requests in a thread of its own; `serve` runs them in the caller's."""

    def __init__(self, path: Path, commands: Commands) -> None:
        """Raises OSError where the socket cannot be made."""
        self._path, self._commands = path, commands
        self._asked: queue.SimpleQueue[tuple[Request, Future[Any]]] = queue.SimpleQueue()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket = listen(path)
        self._thread = threading.Thread(target=self._accept, name="sim control", daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Answer what was asked since the last call."""
        while True:
            try:
                request, answer = self._asked.get_nowait()
            except queue.Empty:
                return
            try:
                answer.set_result(self._commands[request["command"]](request))
            except (ValueError, TypeError, KeyError) as error:
                answer.set_exception(error)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._thread.join(2 * _IDLE_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            try:
                with connection:
                    check_owner(connection)
                    connection.settimeout(_IDLE_S)
                    with connection.makefile("rb") as lines:
                        line = lines.readline(_LINE_BYTES_MAX)
                    connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")
            except OSError as error:
                _log.info("sim control: a client left: %s", error)

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict) or request.get("command") not in self._commands:
                raise ValueError(f"request {line[:80]!r}: expected a command of {', '.join(self._commands)}")
            answer: Future[Any] = Future()
            self._asked.put((request, answer))
            return {"ok": True, "result": answer.result(_IDLE_S)}
        except TimeoutError:
            return {"ok": False, "error": f"the simulation did not get to it within {_IDLE_S:g} s"}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            return {"ok": False, "error": f"missing {text}" if isinstance(error, KeyError) else text}


def ask(path: Path, command: str, timeout_s: float = 15.0, **values: Any) -> Any:
    """Return the result of a command. Raises NoFleet where none answers or it refuses."""
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
