"""The history service: engine and HTTP endpoint in one process, from its start until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from typing import Final

import psutil
from aiohttp import web

from fabrictime.history.engine import DirectoryInUse, Engine, EngineError
from fabrictime.history.http import Endpoint
from fabrictime.history.settings import HistorySettings
from fabrictime.history.tokens import ensure_token
from schemas.service_notifier import ServiceNotifier

LOG: Final = logging.getLogger(__name__)
STATUS_EVERY_S: Final = 2.0
DRAIN_S: Final = 10.0


def main(settings: HistorySettings) -> int:
    """Serve until SIGTERM or SIGINT. Return 0, or 1 with one line on stderr if the service cannot start."""
    try:
        write_token = ensure_token(settings.write_token_path)
        read_token = ensure_token(settings.read_token_path)
        with Engine(settings) as engine:
            asyncio.run(_serve(engine, settings, write_token, read_token))
    except (DirectoryInUse, ValueError, EngineError, OSError, _PortInUse) as error:
        print(f"fabrictime history: {error}", file=sys.stderr, flush=True)
        return 1
    LOG.info("history stopped")
    return 0


class _PortInUse(Exception):
    """Another process listens on the port; the message names the process."""


async def _serve(engine: Engine, settings: HistorySettings, write_token: str, read_token: str) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    endpoint = Endpoint(engine, settings, write_token, read_token)
    runner = web.AppRunner(
        endpoint.application(), access_log=None, auto_decompress=False, shutdown_timeout=DRAIN_S
    )
    await runner.setup()
    notifier = ServiceNotifier()
    try:
        listener = _listen(settings.host, settings.port)
        await web.SockSite(runner, listener).start()
        port = listener.getsockname()[1]
        engine.note_owner(f"process {os.getpid()} (fabrictime history on {settings.host}:{port})")
        LOG.info("history listens on http://%s:%d, data in %s", settings.host, port, settings.directory)
        notifier.notify(f"STATUS=http://{settings.host}:{port}")
        notifier.notify("READY=1")
        inserted, since = 0, loop.time()
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), STATUS_EVERY_S)
            except TimeoutError:
                now = loop.time()
                rate = (endpoint.inserted_rows - inserted) / (now - since)
                inserted, since = endpoint.inserted_rows, now
                notifier.notify(f"STATUS=http://{settings.host}:{port} {rate:.0f} rows/s in")
        notifier.notify("STOPPING=1")
    finally:
        await runner.cleanup()
        await asyncio.to_thread(endpoint.close)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _PortInUse(f"port {host}:{port}: held by {_holder(port)}") from error
        raise
    listener.setblocking(False)
    return listener


def _holder(port: int) -> str:
    """Return a description of the process that listens on a port, if this user may see it."""
    for process in psutil.process_iter(["pid", "name"]):
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                return f"process {process.info['pid']} ({process.info['name']})"
    return "another process"
