"""Forwards a TCP port of this machine's loopback into a network namespace's loopback."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Final

from producers.netns import in_netns

_CHUNK: Final = 1 << 16
_WAKE_S: Final = 0.2


@contextlib.contextmanager
def relay(netns: str, port: int) -> Iterator[None]:
    """Accept connections to 127.0.0.1:`port` in the namespace, and forward each to the same port outside."""
    listener = in_netns(netns, lambda: socket.create_server(("127.0.0.1", port)))
    ending = threading.Event()
    thread = threading.Thread(target=_accept, args=(listener, port, ending), name="relay", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(5)
        listener.close()


def _accept(listener: socket.socket, port: int, ending: threading.Event) -> None:
    listener.settimeout(_WAKE_S)
    threads = []
    while not ending.is_set():
        with contextlib.suppress(TimeoutError):
            inner, _ = listener.accept()
            threads.append(threading.Thread(target=_join, args=(inner, port, ending), daemon=True))
            threads[-1].start()
    for thread in threads:
        thread.join(5)


def _join(inner: socket.socket, port: int, ending: threading.Event) -> None:
    with inner, selectors.DefaultSelector() as selector:
        try:
            outer = socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            return
        with outer:
            selector.register(inner, selectors.EVENT_READ, outer)
            selector.register(outer, selectors.EVENT_READ, inner)
            inner.settimeout(5)
            with contextlib.suppress(OSError):
                _copy(selector, ending)


def _copy(selector: selectors.BaseSelector, ending: threading.Event) -> None:
    """Copy in both directions until one side closes. Raises OSError."""
    while not ending.is_set():
        for key, _ in selector.select(_WAKE_S):
            source = key.fileobj
            if not isinstance(source, socket.socket):
                raise TypeError("relay: expected a socket")
            data = source.recv(_CHUNK)
            if not data:
                return
            key.data.sendall(data)
