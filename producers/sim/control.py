"""The control socket of a running simulated fleet, whose own thread executes requests between two ticks."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from schemas import control_socket
from schemas.control_socket import Request, exchange
from schemas.ipc import connect

__all__ = ["ControlServer", "NoFleet", "Request", "ask", "socket_path"]

_ANSWER_S: Final = 10.0

Command = Callable[[Request], Any]


class NoFleet(RuntimeError):
    """No simulated fleet answers, or it refuses the request. The exception's text is one line."""


def socket_path(data_directory: Path) -> Path:
    """Return the path of the control socket of a data directory's simulated fleet."""
    return data_directory / "run" / "sim.sock"


class ControlServer(control_socket.ControlServer):
    """Receives requests in threads of its own; `serve` executes them in the caller's thread."""

    def __init__(self, path: Path, commands: Mapping[str, Command]) -> None:
        """Listen at `path` for the given commands. Raises OSError if the socket cannot be created."""
        self._asked: queue.SimpleQueue[tuple[Command, Request, Future[Any]]] = queue.SimpleQueue()
        super().__init__(
            path, "sim", {name: partial(self._ask, command) for name, command in commands.items()}
        )

    def serve(self) -> None:
        """Execute the requests received since the last call; later requests wait for the next call."""
        for _ in range(self._asked.qsize()):
            command, request, answer = self._asked.get_nowait()
            try:
                answer.set_result(command(request))
            except control_socket.REFUSALS as error:
                answer.set_exception(error)

    def _ask(self, command: Command, request: Request) -> Iterator[Any]:
        answer: Future[Any] = Future()
        self._asked.put((command, request, answer))
        try:
            yield answer.result(_ANSWER_S)
        except TimeoutError:
            raise ValueError(f"the simulation did not answer within {_ANSWER_S:g} s") from None


def ask(path: Path, command: str, timeout_s: float = 15.0, **values: Any) -> Any:
    """Send a command to a fleet and return its result. Raises NoFleet if no fleet answers or it refuses."""
    try:
        with contextlib.closing(exchange(connect(path, timeout_s), command, values)) as answers:
            answer = next(answers, {})
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise NoFleet(f"no simulated fleet at {path}: {reason}") from None
    if not answer.get("ok"):
        raise NoFleet(answer.get("error", f"the simulated fleet at {path} hung up"))
    return answer["result"]
