"""Starts processes for flows and jobs within milliseconds, by forking a server that has loaded their code.

The caller gets a Worker, whose standard input and output are pipes. A new interpreter per flow would use 100
ms of CPU time, which disturbs measurements on a small machine: probers starve.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from typing import Final, Literal, TextIO

from schemas.run_module import module_command

Kind = Literal["flow", "job"]

_MODULES: Final[dict[str, str]] = {
    "flow": "fabrictime.testbed.jobs.flow_worker",
    "job": "fabrictime.testbed.jobs.worker",
}
_ANSWER_S: Final = 30.0
"""Longest wait for a worker; on a busy machine the fork server takes long to load."""
_END_S: Final = 2.0
_TOKEN_BYTES: Final = 64
_PR_SET_NAME: Final = 15


class Worker:
    """A process forked by the fork server, with its pipes `stdin` and `stdout`.

    The worker is not a child of the caller, so its exit status is unknown; it reports its result itself.
    """

    def __init__(self, pid: int, pidfd: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.stdin: TextIO = os.fdopen(stdin, "w", encoding="utf-8")
        self.stdout: TextIO = os.fdopen(stdout, encoding="utf-8")
        self._pidfd = pidfd
        self._poll = select.poll()
        self._poll.register(pidfd, select.POLLIN)
        weakref.finalize(self, os.close, pidfd)

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return not self._poll.poll(0)

    def kill(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._signal(signal.SIGKILL)
        self._poll.poll()

    def hang_up(self) -> None:
        """Close the process's standard input, so that the process ends by itself."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def end(self) -> None:
        """Kill the process if it still runs, and close its input; the reader closes `stdout`."""
        self._signal(signal.SIGTERM)
        if not self._poll.poll(_END_S * 1000):
            self.kill()
        self.hang_up()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


class ForkServer:
    """Starts workers, from any thread. The server process starts with `open`, or with the first worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def open(self) -> None:
        """Start the server process, which loads code in the background. Raises OSError if that fails."""
        with self._lock:
            self._ensure()

    def start(self, kind: Kind) -> Worker:
        """Start a worker that waits for its order on stdin, and return it. Raises OSError if that fails."""
        with self._lock, contextlib.ExitStack() as ours:
            self._ensure()
            its_in, our_in = os.pipe()
            ours.callback(os.close, its_in)
            guard = contextlib.ExitStack()
            guard.callback(os.close, our_in)
            with guard:
                our_out, its_out = os.pipe()
                ours.callback(os.close, its_out)
                guard.callback(os.close, our_out)
                pid, pidfd = self._ask(kind, its_in, its_out)
                guard.pop_all()
        return Worker(pid, pidfd, our_in, our_out)

    def close(self) -> None:
        """End the server process. Running workers continue, and a later `start` starts the server again."""
        with self._lock:
            self._close()

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._close()
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_S)
        with server_end:
            self._process = subprocess.Popen(
                module_command("fabrictime.testbed.processes.fork_server", str(server_end.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=[server_end.fileno()],
            )

    def _ask(self, kind: Kind, its_in: int, its_out: int) -> tuple[int, int]:
        """Request a worker of a kind with these descriptors; return (pid, pidfd) of the new worker."""
        assert self._socket is not None  # noqa: S101  # `_ensure` made it
        try:
            socket.send_fds(self._socket, [kind.encode()], [its_in, its_out])
            token, fds, _, _ = socket.recv_fds(self._socket, _TOKEN_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            self._close()
            raise OSError(error.errno, f"the testbed's fork server does not answer: {error}") from error
        if len(fds) != 1:
            if not token:
                self._close()
            why = token.decode(errors="replace") or "it ended"
            raise OSError(0, f"no worker from the testbed's fork server: {why}")
        return int(token), fds[0]

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket = self._process = None


def main() -> int:
    """Fork workers on request until the other end of the socket is closed."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from the terminal: the starter ends this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # this process does not wait for workers
    for module in _MODULES.values():
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    while True:
        kind, fds, _, _ = socket.recv_fds(requests, _TOKEN_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
        if not kind:
            return 0
        try:
            child = os.fork()
            if child == 0:
                requests.close()
                _live(kind.decode(), *fds)
            pidfd = os.pidfd_open(child)
        except OSError as error:
            requests.send(str(error).encode()[:_TOKEN_BYTES])
            continue
        finally:
            for fd in fds:
                os.close(fd)
        try:
            socket.send_fds(requests, [str(child).encode()], [pidfd])
        except BrokenPipeError:
            return 0
        finally:
            os.close(pidfd)


def _live(kind: str, stdin: int, stdout: int) -> None:
    """Run as a worker of the given kind on these descriptors; does not return."""
    code = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, f"testbed {kind}".encode(), 0, 0, 0)
        code = sys.modules[_MODULES[kind]].main()
        sys.stdout.flush()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # a process's last word
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
