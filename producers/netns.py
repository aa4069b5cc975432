"""Runs a function in another network namespace, on a helper thread.

setns changes one thread, which cannot return, so the thread ends after its work. A socket stays in the
namespace in which it was opened.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def in_netns(path: str | None, work: Callable[[], T]) -> T:
    """Call `work` in the network namespace at `path`, or in this thread if `path` is None; return its result.

    Raises OSError with the namespace's name if it cannot be entered, and any error that `work` raises.
    """
    if path is None:
        return work()
    results: list[T] = []
    errors: list[BaseException] = []

    def enter_and_work() -> None:
        try:
            _enter(path)
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # handed to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=enter_and_work, name=f"netns {path}", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"network namespace {path}: {os.strerror(code)}")
    finally:
        os.close(fd)
