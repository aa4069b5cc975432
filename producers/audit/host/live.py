"""Reads a real host: files below a root, commands, and the network of a namespace."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from producers.audit.host.base import (
    NVML,
    OVERLAP,
    STREAM,
    TRAFFIC,
    TRAINING,
    VOLUME,
    Missing,
    Unreadable,
    as_unreadable,
)
from producers.audit.host.live_network import LiveNetwork
from producers.audit.load.traffic_plan import TrafficRound
from producers.audit.settings import CheckSettings
from producers.netns import in_netns
from schemas.run_module import module_command, script_command

MAX_BYTES: Final = 8 << 20
"""Larger files and outputs are errors: reading a part could hide faults, and checks need kilobytes only."""
CHUNK_BYTES: Final = 1 << 16
"""Size of one read: files in /proc/sys refuse large reads."""
COMMAND_S: Final = 5.0
"""Time that a command may take."""
OWN_COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    NVML: module_command("producers.audit.gpu.nvml"),
    STREAM: module_command("producers.audit.load.stream"),
    VOLUME: module_command("producers.audit.storage.volume"),
    TRAFFIC: module_command("producers.audit.load.traffic"),
}
"""Fabrictime's own commands, separate processes so that a driver that hangs does not hang the agent."""
TORCH_COMMANDS: Final[Mapping[str, str]] = {
    name: str(Path(__file__).parents[1] / "load" / f"{name}.py") for name in (TRAINING, OVERLAP)
}
"""Fabrictime's own scripts that need only torch; they run in the interpreter that the settings name."""
LIMITS_S: Final[Mapping[str, float]] = {NVML: 30.0, "ipmitool": 30.0, "smartctl": 15.0, "dpkg-query": 15.0}
"""Limits of slow commands, s: without persistence mode NVML has to start each GPU."""
FAILURE_BITS: Final[Mapping[str, int]] = {"smartctl": 0b011, "dcgmi": 0}
"""Bits of an exit code that mean that the command failed; the other bits describe the drive or GPU."""
KILLED_S: Final = 1.0
"""Time that a killed process has to end."""
FRESH_S: Final = 10.0
"""Checks of one run share a command's output up to this age."""
SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/mft/bin"
PRODUCT_DATA: Final = "/vpd"
"""End of the path of a card's vital product data."""
NETWORK_FILES: Final = ("/proc/net", "/proc/sys/net/")
"""Files whose content depends on the network namespace of the reading thread."""
INTERFACE_FILES: Final = ("/sys/class/net", "/sys/class/infiniband/")

T = TypeVar("T")
_stuck: dict[tuple[str | None, str], subprocess.Popen[bytes]] = {}
"""Processes that survived a kill because a driver or server blocks them, by (namespace, command)."""


class _Output:
    """Output or error of a command, shared by several checks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ended_s = float("-inf")
        self.text = ""
        self.error: Unreadable | None = None


class LiveHost(LiveNetwork):
    """This host, or another host's files below `root`, with the network of the namespace at `netns`.

    With `netns`, commands run in the namespace, and /proc/net and /proc/sys/net are the namespace's. The
    namespace's interfaces are missing in sysfs, which shows those of the namespace that mounted it.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        netns: str | None = None,
        nics: tuple[str, ...] = (),
        settings: CheckSettings | None = None,
        find_round: Callable[[], TrafficRound] | None = None,
    ) -> None:
        """`nics`: interfaces of the NICs that the agent measures; `find_round`: returns the traffic round."""
        super().__init__(netns, nics)
        self.settings = settings or CheckSettings()
        self._root, self._find_round = root, find_round
        self._lock = threading.Lock()
        self._outputs: dict[tuple[str, ...], _Output] = {}
        self._product_data: dict[str, bytes] = {}

    def _at(self, path: str) -> Path:
        """Return where to open a file. With `netns`, raises Missing for an interface's file in sysfs."""
        if self.netns is not None and path.startswith(INTERFACE_FILES):
            raise Missing(f"{path}: sysfs shows no other network namespace")
        if path == "/proc/net" or path.startswith("/proc/net/"):
            path = "/proc/thread-self/net" + path.removeprefix("/proc/net")
        return self._root / path.lstrip("/")

    def _open(self, path: str, work: Callable[[Path], T]) -> T:
        """Return `work(path)`, called in the namespace if the file depends on it. Raises OSError, Missing."""
        at = self._at(path)
        return in_netns(self.netns if path.startswith(NETWORK_FILES) else None, lambda: work(at))

    def read(self, path: str) -> str:
        """Return a file's text, stripped. Raises Missing, Unreadable."""
        return self.read_bytes(path).decode("utf-8", "replace").strip("\n\x00 ")

    def read_bytes(self, path: str) -> bytes:
        """Return a file's content. Raises Missing, Unreadable.

        A card takes long to state its vital product data, which do not change while it is there.
        """
        if path in self._product_data:
            return self._product_data[path]
        try:
            content = self._open(path, _content)
        except OSError as error:
            raise as_unreadable(path, error) from error
        if path.endswith(PRODUCT_DATA):
            self._product_data[path] = content
        return content

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory. Raises Missing, Unreadable."""
        try:
            return sorted(self._open(path, os.listdir))
        except OSError as error:
            raise as_unreadable(path, error) from error

    def space(self, path: str) -> tuple[int, int, int, int]:
        """Return a file system's size and free bytes, inodes and free inodes. Raises Missing, Unreadable."""
        try:
            statistics = os.statvfs(self._at(path))
        except OSError as error:
            raise as_unreadable(path, error) from error
        return (
            statistics.f_blocks * statistics.f_frsize,
            statistics.f_bavail * statistics.f_frsize,
            statistics.f_files,
            statistics.f_favail,
        )

    def now_s(self) -> float:
        """Return the system clock's time, seconds since the Unix epoch."""
        return time.time()

    def pause(self, wanted_s: float) -> float:
        """Wait about `wanted_s` between two readings of a counter; return the seconds that passed."""
        since_s = time.monotonic()
        time.sleep(wanted_s)
        return time.monotonic() - since_s

    def traffic_round(self) -> TrafficRound:
        """Return the round of traffic that this run is part of. Raises Missing if it is part of none."""
        if self._find_round is None:
            raise Missing("only `fabrictime audit traffic` sends load between hosts")
        return self._find_round()

    def clock_status(self) -> int:
        """Return the status bits of the system clock, as adjtimex(2) returns them. Raises Unreadable."""
        timex = (ctypes.c_long * 64)()  # struct timex: modes, offset, freq, maxerror, esterror, status
        if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
            raise Unreadable(f"adjtimex: {os.strerror(ctypes.get_errno())}")
        return int(
            ctypes.cast(ctypes.byref(timex, 5 * ctypes.sizeof(ctypes.c_long)), ctypes.POINTER(ctypes.c_int))[
                0
            ]
        )

    def target(self, path: str) -> str:
        """Return the path that a symbolic link leads to. Raises Missing, Unreadable."""
        try:
            target_path = self._at(path).resolve(strict=True)
        except OSError as error:
            raise as_unreadable(path, error) from error
        return "/" + str(target_path.relative_to(self._root.resolve()))

    def run(self, *command: str) -> str:
        """Run a command and return its output. Raises Missing, and Unreadable if it fails or takes too long.

        While the command runs, the output's lock makes other checks wait for it.
        """
        with self._lock:
            output = self._outputs.setdefault(command, _Output())
        with output.lock:
            if time.monotonic() - output.ended_s > FRESH_S:
                output.text, output.error = "", None
                try:
                    output.text = self.load(LIMITS_S.get(command[0], COMMAND_S), *command)
                except Unreadable as error:
                    output.error = error
                output.ended_s = time.monotonic()
            if output.error is not None:
                raise type(output.error)(str(output.error))
            return output.text

    def load(self, limit_s: float, *command: str) -> str:
        """Return the output of a new run of a command, which may take `limit_s`. Raises Missing, Unreadable.

        Leading arguments `NAME=VALUE` set its environment.
        """
        arguments, text = list(command), " ".join(command)
        stuck = _stuck.get((self.netns, text))
        if stuck is not None and stuck.poll() is None:
            raise Unreadable(f"{text}: no end within {limit_s:g} s; process {stuck.pid} still hangs")
        env = {"PATH": SEARCH_PATH, "LC_ALL": "C"}
        if arguments[0] in OWN_COMMANDS:
            env = dict(os.environ)
            arguments[:1] = OWN_COMMANDS[arguments[0]]
        elif arguments[0] in TORCH_COMMANDS:
            env = dict(os.environ)
            python = self.settings.torch_python or None
            arguments[:1] = script_command(TORCH_COMMANDS[arguments[0]], python=python)
        while "=" in arguments[0]:
            name, _, value = arguments.pop(0).partition("=")
            env[name] = value
        try:
            child = in_netns(self.netns, lambda: _start(arguments, env))
        except FileNotFoundError as error:
            raise Missing(f"{arguments[0]}: not installed") from error
        except OSError as error:
            raise as_unreadable(arguments[0], error) from error
        _stuck.pop((self.netns, text), None)
        try:
            return _output(child, text, limit_s)
        finally:
            if child.poll() is None:
                _stuck[self.netns, text] = child


def _output(child: subprocess.Popen[bytes], command: str, limit_s: float) -> str:
    """Return the output of `child`, and kill it at its limit. A child that a driver blocks is left running.

    Raises Unreadable if the command fails, takes too long or prints too much.
    """
    try:
        printed, complaint = _printed(child, time.monotonic() + limit_s)
    except TimeoutError:
        raise Unreadable(f"{command}: no end within {limit_s:g} s") from None
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(KILLED_S)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
    if len(printed) > MAX_BYTES:
        raise Unreadable(f"{command}: prints more than {MAX_BYTES >> 20} MiB")
    if child.returncode & FAILURE_BITS.get(command.partition(" ")[0].rpartition("/")[2], -1):
        errors = complaint.decode("utf-8", "replace").strip().splitlines()
        text = f"{command}: exit code {child.returncode}"
        raise Unreadable(f"{text}, {errors[-1]}" if errors else text)
    return printed.decode("utf-8", "replace")


def _printed(child: subprocess.Popen[bytes], until_s: float) -> tuple[bytearray, bytearray]:
    """Return stdout and stderr of `child` when it has ended or has printed too much. Raises TimeoutError."""
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, text in ((child.stdout, output), (child.stderr, errors)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, text)
        while selector.get_map() and len(output) <= MAX_BYTES:
            if time.monotonic() >= until_s:
                raise TimeoutError
            for key, _ in selector.select(until_s - time.monotonic()):
                if chunk := os.read(key.fd, CHUNK_BYTES):
                    key.data.extend(chunk)
                else:
                    selector.unregister(key.fileobj)
            del errors[:-CHUNK_BYTES]
    if len(output) <= MAX_BYTES:
        try:
            child.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
    return output, errors


def _start(arguments: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=env,
        start_new_session=True,  # a load that takes too long ends with all of its processes
    )


def _content(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        content = file.read(CHUNK_BYTES) or b""
        while more := file.read(CHUNK_BYTES):
            content += more
            if len(content) > MAX_BYTES:
                raise Unreadable(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    return content
