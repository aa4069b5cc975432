"""What the library in a program talks to, for tests: listens as the actuator and the flow reporter do, keeps
what it hears, and gives orders."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Listener:
    """Takes lines at an owner-only socket; `receive` is called with each and its connection."""

    def __init__(self, path: str, receive: Callable[[str, socket.socket], None]) -> None:
        self.path, self._take = path, receive
        self._socket = socket.socket(socket.AF_UNIX)
        os.umask(0o077)
        self._socket.bind(path)
        self._socket.listen()
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def write(self, line: str, connection: socket.socket | None = None) -> None:
        (connection or self.connections[-1]).sendall(line.encode() + b"\n")

    def hang_up(self) -> None:
        while self.connections:
            self.connections.pop().shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.connections.append(connection)
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with connection.makefile("r", encoding="ascii") as lines:
            for line in lines:
                self._take(line.rstrip("\n"), connection)


@dataclass
class Actuator:
    """Orders by the control socket; what flows say of themselves, by key."""

    folder: str
    flows: dict[str, tuple[int, str]] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    sent_bytes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._control = Listener(f"{self.folder}/control", self._line)
        self._flows = Listener(f"{self.folder}/flows", self._report)
        self._id = 0
        self._owners: dict[str, socket.socket] = {}

    def environment(self) -> dict[str, str]:
        return {"FABRICTIME_CONTROL": self._control.path, "FABRICTIME_FLOWS": self._flows.path}

    def order(self, verb: str, key: str, value: int) -> str:
        """Give an order; return the answer, without its id."""
        self._id += 1
        self._control.write(f"{verb} {self._id} {key} {value}", self._owners.get(key))
        until(lambda: self._id in self.answers, f"answer to {verb}")
        return self.answers[self._id]

    def refused(self, verb: str, key: str, value: int) -> str:
        """Give an order that does not exist; return the error that answers it."""
        self._id += 1
        known = len(self.errors)
        self._control.write(f"{verb} {self._id} {key} {value}")
        until(lambda: len(self.errors) > known, f"error for {verb}")
        return self.errors[-1]

    def hang_up(self) -> None:
        """End the actuator's connections, as one that is started anew."""
        self._control.hang_up()

    def _line(self, line: str, connection: socket.socket) -> None:
        self.heard.append(line)
        verb, _, rest = line.partition(" ")
        if verb == "FLOW":
            key, port, verbs = rest.split(" ")
            self._owners[key] = connection
            self.flows[key] = (int(port), verbs)
        elif verb == "GONE":
            self.flows.pop(rest, None)
            self.gone.append(rest)
        elif verb == "ERROR":
            self.errors.append(rest)
        else:
            number, _, text = rest.partition(" ")
            self.answers[int(number)] = f"{verb} {text}"

    def _report(self, line: str, connection: socket.socket) -> None:
        text = json.loads(line)
        self.reports[text["flow"]] = text
        if "sent_bytes" in text:
            self.sent_bytes[text["flow"]] = text["sent_bytes"]


def until(done: Callable[[], Any], message: str, limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{message}: not within {limit_s:.0f} s")
        time.sleep(0.001)
