"""Detects at once that no broker listens, where librdkafka would wait for its time-out."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from typing import Final

SILENT_S: Final = 2.5
"""Longest wait for an address that neither accepts nor refuses. A lost packet is sent again after 1 s."""


def unreachable(bootstrap: str, silent_s: float = SILENT_S) -> str | None:
    """Return the reason if no address of `host:port,host:port` accepts a connection, else None.

    Also return None if no address has this format. Connections are only opened and closed, so brokers with
    TLS or SASL count as reachable too.
    """
    reasons: list[str] = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for address in bootstrap.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdecimal():
                return None  # the client reports it
            try:
                places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except (OSError, UnicodeError, OverflowError) as error:
                reasons.append(f"{host}: {getattr(error, 'strerror', None) or error}")
                continue
            for family, kind, protocol, _, place in places:
                connection = stack.enter_context(socket.socket(family, kind, protocol))
                connection.setblocking(False)
                code = connection.connect_ex(place)
                if code == 0:
                    return None
                if code == errno.EINPROGRESS:
                    selector.register(connection, selectors.EVENT_WRITE)
                else:
                    reasons.append(os.strerror(code))
        end_s = time.monotonic() + silent_s
        while selector.get_map() and (left_s := end_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
                if code == 0:
                    return None
                reasons.append(os.strerror(code))
                selector.unregister(key.fileobj)
        if selector.get_map():
            reasons.append(f"no answer within {silent_s:g} s")
    return reasons[0].lower() if reasons else None
