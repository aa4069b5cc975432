"""Chooses the addresses and ports at which the services of an `up` listen."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from fabrictime.metrics.settings import DEFAULT_PORT
from fabrictime.runtime import status
from fabrictime.runtime.config import Config
from schemas.input_error import InputError


def with_ports(config: Config) -> Config:
    """Return the settings with free ports for 0. Raises ValueError with the owner of a port in use."""
    config = config.replaced({"log": {"host": log_host(config.log.host)}})
    services = [("web", config.web.host, config.web.port)] if config.up.web else []
    if config.up.log_url is None:
        services.append(("log", config.log.host, config.log.port))
    if config.up.history_url is None:
        services.append(("history", config.history.host, config.history.port))
    changes: dict[str, dict[str, Any]] = {"metrics": {"port": _metrics_port(config)}}
    for name, host, port in services:
        changes[name] = {"port": _free_port(name, host, port)}
    return config.replaced({**changes, "up": {"data_directory": str(config.up.data_directory.absolute())}})


def _metrics_port(config: Config) -> int | None:
    """Return the metrics endpoint's port: the configured port, else the default one or any free one."""
    metrics = config.metrics
    if not metrics.enabled:
        return metrics.port
    if metrics.port is not None:
        return _free_port("metrics", metrics.host, metrics.port)
    try:
        return _free_port("metrics", metrics.host, DEFAULT_PORT)
    except ValueError:  # another `up` of this machine has it
        return _free_port("metrics", metrics.host, 0)


def log_host(host: str) -> str:
    """Return the loopback address at which Kafka's clients on this host find the log.

    librdkafka resolves addresses with AI_ADDRCONFIG, which hides 127.0.0.1 on a host whose other addresses
    are all IPv6, such as a host that has lost its DHCP lease.
    """
    for address in (host, "::1"):
        with contextlib.suppress(OSError):
            socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            return address
    return host


def _free_port(name: str, host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(f"{name}.port {port}: in use by {status.port_holder(host, port)}") from None
            raise InputError(f"{name}.port {port} on {host}: {error.strerror}") from None
        free_port: int = probe.getsockname()[1]
        return free_port
