"""Runs a function inside namespaces of its own, while the calling process stays outside.

A forked child enters the namespaces, runs the function and ends. Tests and benchmarks need it, as their
process may have threads. The child lacks the caller's threads, so the function must not wait for a thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import TypeVar

from fabrictime.testbed.processes.userns import enter

T = TypeVar("T")


class ChildFailed(RuntimeError):
    """The work failed in the child, and its error cannot be raised here; `str()` contains the traceback."""


def run_inside(work: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Run `work` after `enter` in a forked child and return its result, which must pickle.

    An error of `work` is raised here with the child's traceback as a note. Raises ChildFailed if the error
    does not pickle or the child died, TimeoutError after `timeout_s`, after which the child is killed.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # forking beside threads: see the module's word on it
        child = os.fork()
    if child == 0:
        # Garbage of the caller must not be collected here: the destructor of a Kafka client joins threads
        # that exist in the caller alone, and the process would die of it.
        gc.freeze()
        os.close(reading)
        _run(work, writing)
    os.close(writing)
    try:
        data = _receive(reading, time.monotonic() + timeout_s)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if not data:
        raise ChildFailed(f"the child ended without a word, wait status {status}")
    kind, value, text = pickle.loads(data)  # noqa: S301  # from our own child
    if kind == "returned":
        result: T = value
        return result
    if isinstance(value, BaseException):
        value.add_note(text)
        raise value
    raise ChildFailed(text)


def _run(work: Callable[[], T], writing: int) -> None:
    """Run `work` in the child, send its result to the parent, and exit; does not return."""
    code = 1
    try:
        try:
            enter()
            message = pickle.dumps(("returned", work(), ""))
        except BaseException as error:  # noqa: BLE001  # carried to the parent
            text = traceback.format_exc()
            try:
                message = pickle.dumps(("raised", error, text))
                pickle.loads(message)  # noqa: S301  # some exceptions pickle but do not come back
            except Exception:  # noqa: BLE001  # whatever it holds does not travel
                message = pickle.dumps(("raised", None, text))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(message)
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    finally:
        os._exit(code)


def _receive(reading: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            raise TimeoutError("the work inside the namespaces took too long")
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
