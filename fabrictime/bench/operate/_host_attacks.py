"""Attacks from the same host and from the network: sockets of another user, probes under another key,
services that would listen beyond loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fabrictime.bench.operate._page_attacks import Attempt
from fabrictime.history.settings import HistorySettings
from fabrictime.log.settings import LogSettings
from fabrictime.web.settings import WebSettings
from native.core.probe import Engine, open_sockets
from schemas.control_socket import ControlServer, exchange
from schemas.ipc import check_owner, connect, listen

KEY, WRONG_KEY = bytes(range(16)), bytes(16)
WAIT_S: Final = 20.0
_STRANGER: Final = """
import os, socket, sys
path, kind, text = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX, getattr(socket, kind)); s.settimeout(5)
s.connect(path); s.send(text.encode() + b"\\n")
print(len(s.recv(4096)) if kind == "SOCK_STREAM" else 0)
"""


def attack(folder: Path) -> Iterator[Attempt]:
    """Yield each attempt on sockets, on the probe responder and by unsafe settings."""
    yield from _sockets(folder)
    yield from _probes()
    for host in ("0.0.0.0", "::", "10.0.0.1", "192.0.2.7"):  # noqa: S104  # refused is what is measured
        for name, make in _LISTENERS.items():
            try:
                make(folder, host)
            except ValidationError:
                yield "settings", f"{name} on {host}", False
            else:
                yield "settings", f"{name} on {host}", True


_LISTENERS: Final[dict[str, Callable[[Path, str], Any]]] = {
    "log": lambda folder, host: LogSettings(directory=folder, host=host),
    "history": lambda folder, host: HistorySettings(directory=folder, host=host),
    "page": lambda folder, host: WebSettings(host=host),
}


def _sockets(folder: Path) -> Iterator[Attempt]:
    """Yield another user's attempts on sockets, with the files' modes and, if these deny it, without."""
    if os.geteuid() != 0:
        return  # only root can start a program of another user
    commands: list[Any] = []
    open_folder = folder / "control"
    open_folder.mkdir()

    def act(request: Any) -> list[int]:
        commands.append(request)
        return [1]

    server = ControlServer(open_folder / "sim.sock", "bench", {"act": act})
    plugins = listen(open_folder / "plugin.sock", blocking=True)
    admitted_users: list[int] = []
    threading.Thread(target=_serve, args=(plugins, admitted_users), daemon=True).start()
    run = folder / "data" / "run"
    targets = {
        "control socket": (open_folder / "sim.sock", "SOCK_STREAM", '{"command": "act"}'),
        "plugin socket": (open_folder / "plugin.sock", "SOCK_STREAM", "hello"),
        "flow endpoints": (run / "control.sock", "SOCK_STREAM", "FLOW sock:9 50000 MOVE h1"),
        "path status": (run / "path-status.sock", "SOCK_DGRAM", "report"),
    }
    try:
        answers = list(exchange(connect(open_folder / "sim.sock", WAIT_S), "act", {}))
        if not commands or not answers[0]["ok"]:
            raise RuntimeError("control socket: not served to its owner")
        for name, (path, kind, text) in targets.items():
            served = len(commands) + len(admitted_users)
            yield name, "mode of the file", _stranger(path, kind, text)
            _open_to_all(path, folder)
            for number in range(4):
                is_answered = _stranger(path, kind, text)
                # A datagram is dropped, and a stream is closed, once the peer's user is known.
                is_taken = is_answered or len(commands) + len(admitted_users) > served
                yield name, f"peer {number}", is_taken
    finally:
        plugins.close()
        server.close()


def _serve(listener: socket.socket, admitted_users: list[int]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                check_owner(connection)
            except PermissionError:
                continue
            admitted_users.append(1)


def _open_to_all(path: Path, top: Path) -> None:
    """Let all users reach a socket, as a wrong umask or administrator would."""
    path.chmod(0o666)
    for part in path.parents:
        if part == top.parent:
            return
        part.chmod(0o711)


def _stranger(path: Path, kind: str, text: str) -> bool:
    """Return whether a program of another user gets an answer from a socket."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _STRANGER, str(path), kind, text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0 and done.stdout.strip() not in ("", "0")


def _probes() -> Iterator[Attempt]:
    """Yield the attempts to get a responder's answer by a wrong key, an altered packet or another NIC."""
    ours, others = (open_sockets("127.0.0.1", 0, 0, 1) for _ in range(2))
    engine, stranger = Engine(ours, nic="a/lo", key=KEY), Engine(others, nic="x/lo", key=WRONG_KEY)
    running = threading.Thread(target=engine.run, daemon=True)
    running.start()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
            prober.bind(("127.0.0.1", 0))
            prober.settimeout(0.05)
            own, target = prober.getsockname(), ("127.0.0.1", ours.port)
            good = engine.trace_packet(own, target, "a/lo", 1, 3)
            packets = [
                *((f"wrong key {n}", stranger.trace_packet(own, target, "a/lo", n, 3)) for n in range(10)),
                *((f"altered byte {n}", _altered(good, n)) for n in range(len(good))),
                ("another NIC", engine.trace_packet(own, target, "b/lo", 1, 3)),
                ("another sender", engine.trace_packet(("127.0.0.9", own[1]), target, "a/lo", 1, 3)),
                ("cut off", good[:-1]),
                ("too long", good + b"x"),
            ]
            for name, packet in packets:
                yield "probe responder", name, _is_answered(prober, packet, target)
            end_s = time.monotonic() + WAIT_S
            while not _is_answered(prober, good, target):
                if time.monotonic() > end_s:
                    raise RuntimeError("probe responder: no answer to a genuine packet")
    finally:
        engine.stop()
        running.join(10)
        engine.close()
        stranger.close()


def _altered(packet: bytes, position: int) -> bytes:
    return packet[:position] + bytes([packet[position] ^ 0x80]) + packet[position + 1 :]


def _is_answered(prober: socket.socket, packet: bytes, target: tuple[str, int]) -> bool:
    prober.sendto(packet, target)
    try:
        return bool(prober.recv(4096))
    except TimeoutError:
        return False
