"""Checks whether this host has the configured addresses of its NICs, and reports missing addresses.

A NIC has no address while it is off the bus, before its link is up, or until DHCP has answered. Its prober
then waits for the address, and the probers of other NICs continue.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Final

from native.core.device_sockets import bind_to_device
from producers.netns import in_netns
from producers.settings import NicSettings
from schemas.ids import nic_id
from schemas.stop_request import StopRequest

_log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""Interval of the checks. Each check costs a socket, and a thread if the NIC has its own namespace."""
_MISSING: Final = frozenset({errno.EADDRNOTAVAIL, errno.ENODEV})

Notify = Callable[[str], None]
"""Sends a line to the service manager."""


def address_problem(nic: NicSettings) -> str | None:
    """Return one line that explains why a NIC's address is not usable; None if the host has it.

    Raises OSError if the network namespace cannot be entered or the kernel refuses a socket.
    """
    family = socket.AF_INET6 if ":" in nic.address else socket.AF_INET

    def bind() -> None:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            names = {name for _, name in socket.if_nameindex()}
            bind_to_device(sock, nic.address, 0, nic.device if nic.device in names else None)

    try:
        in_netns(nic.netns, bind)
    except OSError as error:
        if error.errno not in _MISSING:
            raise
        where = "" if nic.netns is None else f", network namespace {nic.netns}"
        return f"{nic_id(nic.host, nic.device)}: address {nic.address} is not on this host{where}"
    return None


class AddressWatch:
    """Reports missing and returning addresses of NICs to the log and the service manager (`X_FAULT`)."""

    def __init__(self, nics: Iterable[NicSettings], notify: Notify) -> None:
        self._nics = list(nics)
        self._notify = notify
        self.problems: dict[str, str] = {}
        """Problem of each NIC that has one, as last checked."""
        self._reported: dict[str, str] = {}
        """Problems that the NICs' probers have found, by NIC."""

    def report(self, name: str, problem: str | None) -> None:
        """Store another problem of the NIC `name`, or None if it ended; the next check reports it."""
        if problem is None:
            self._reported.pop(name, None)
        else:
            self._reported[name] = f"{name}: {problem}"

    def check(self) -> dict[str, str]:
        """Check all addresses and report changes; return, by NIC, one line of text for each problem.

        A missing address hides other problems of its NIC, which are reported once the NIC has its address.
        """
        problems = dict(self._reported)
        for nic in self._nics:
            name = nic_id(nic.host, nic.device)
            try:
                problem = address_problem(nic)
            except OSError as error:
                problem = f"{name}: address {nic.address}: {error}"
            if problem is not None:
                problems[name] = problem
        if problems != self.problems:
            for changed in sorted(problems.keys() - self.problems.keys()):
                _log.warning("%s; checked again every %.0f s", problems[changed], CHECK_S)
            for changed in sorted(self.problems.keys() - problems.keys()):
                _log.info("%s: the problem is over: %s", changed, self.problems[changed])
            self.problems = problems
            self._notify(f"X_FAULT={'; '.join(problems[name] for name in sorted(problems))}")
        return problems


def wait_for_address(
    watch: AddressWatch, notify: Notify, stop: StopRequest, on_missing: Callable[[], None] = lambda: None
) -> bool:
    """Wait until the addresses are on this host; return False if a stop was requested before that.

    `on_missing` is called after each failed check. The service manager receives READY, so that the start of
    other services does not wait for this NIC.
    """
    is_ready = False
    while not stop.is_set():
        if not watch.check():
            return True
        if not is_ready:
            is_ready = True
            notify("READY=1")
        on_missing()
        stop.wait(CHECK_S)
    return False
