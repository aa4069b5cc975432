"""Code that the guest's scripts share: programs with the library loaded, the fabric's paths, and the checks.

A run of the checks prints one JSON object each: its name, whether it held, figures, else what went wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fabric
from actuator import Actuator, until

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY = "/repo/native/qp/libfabrictime-qp.so"
CHECKS: list[Callable[[], dict[str, Any]]] = []


def check(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CHECKS.append(function)
    return function


class Program:
    """A program, mostly with the library loaded; its lines come by `read`."""

    def __init__(
        self, command: list[str], actuator: Actuator | None, library: bool, environment: dict[str, str]
    ) -> None:
        more = {"PYTHONPATH": f"{HERE}:/repo:/repo/clients/python"} | (
            {"LD_PRELOAD": LIBRARY} if library else {}
        )
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment | more | ({} if actuator is None else actuator.environment()),
        )
        self.text: list[str] = []
        self._read = 0
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.text.append(line)

    def read(self, verb: str) -> list[str]:
        """The fields of the next line that begins with `verb`."""
        while True:
            ended = not self._reader.is_alive()
            while self._read < len(self.text):
                self._read += 1
                if self.text[self._read - 1].startswith(verb + " "):
                    return self.text[self._read - 1].split()[1:]
            if ended:
                raise RuntimeError(f"ended before it said {verb}: {''.join(self.text)}")
            time.sleep(0.001)

    def release(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self, limit_s: float = 60.0) -> int:
        self._process.wait(limit_s)
        self._reader.join(limit_s)
        return self._process.returncode

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()


@contextmanager
def program(
    command: list[str], actuator: Actuator | None, library: bool = True, **environment: str
) -> Iterator[Program]:
    started = Program(command, actuator, library, environment)
    try:
        yield started
    except BaseException:
        started.kill()
        sys.stderr.write("".join(started.text))
        raise
    finally:
        started.kill()


def script(name: str, *arguments: object) -> list[str]:
    return [sys.executable, f"{HERE}/{name}.py", *map(str, arguments)]


def actuator() -> Actuator:
    return Actuator(tempfile.mkdtemp())


def flow_of(of: Actuator, device: str = "rxe_a0") -> str:
    """Wait until the actuator knows the queue pair on a device; return its key."""

    def found() -> list[str]:
        return [key for key in list(of.flows) if key.startswith(f"qp:{device}:")]

    until(found, f"FLOW of {device}")
    (key,) = found()
    return key


def counts() -> dict[str, int]:
    return {spine: fabric.rx_packets(spine, "leafa") for spine in fabric.SPINES}


def path_map(ports: Iterable[int]) -> dict[int, str]:
    """Return the spine of each source port: routers hash the kernel's own UDP as they hash RoCE."""
    found = {}
    for port in ports:
        before = counts()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.bind((fabric.NICS["a0"][0], port))
            for _ in range(4):
                sending.sendto(b"?", (fabric.NICS["b0"][0], 4791))

            def passed(before: dict[str, int] = before) -> list[str]:
                return [spine for spine, now in counts().items() if now - before[spine] >= 4]

            until(passed, f"packets of port {port}")
            (found[port],) = passed()
    return found


def busiest(for_s: float = 0.3) -> str:
    before = counts()
    time.sleep(for_s)
    return max(counts().items(), key=lambda item: item[1] - before[item[0]])[0]


PATHS: dict[int, str] = {}


def port_of(spine: str) -> int:
    return next(port for port, found in PATHS.items() if found == spine)


def other_than(*spines: str) -> str:
    return next(spine for spine in fabric.SPINES if spine not in spines)


def listening(port: str) -> None:
    """Wait until a TCP port is listened at."""
    wanted = f":{int(port):04X} "
    until(
        lambda: any(
            wanted in line and " 0A " in line
            for name in ("tcp", "tcp6")
            for line in Path("/proc/net", name).read_text().splitlines()
        ),
        f"listener at {port}",
    )


def main(limit_s: int = 60) -> int:
    """Run the checks, each within a limit."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"check: no end within {limit_s} s")

    signal.signal(signal.SIGALRM, late)
    fabric.build()
    PATHS.update(path_map(range(50_000, 50_024)))
    print(json.dumps({"check": "fabric", "ok": True, "found": {"paths": PATHS}}), flush=True)
    for function in CHECKS:
        result: dict[str, Any] = {"check": function.__name__, "ok": True}
        began = time.monotonic()
        signal.alarm(limit_s)
        try:
            result["found"] = function()
        except Exception:
            result |= {"ok": False, "error": traceback.format_exc()}
        signal.alarm(0)
        result["took_s"] = round(time.monotonic() - began, 1)
        print(json.dumps(result), flush=True)
        for spine in fabric.SPINES:
            with suppress(RuntimeError):
                fabric.blackhole(spine, "leafa", False)
    return 0
