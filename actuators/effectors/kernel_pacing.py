"""Paces flows by the kernel's HTB at their host's NIC, if no endpoint can pace them.

Each paced flow gets one class and one filter (htb.py), under a root qdisc that exists only while a flow is
paced. After a restart, kernel state of a former process is adopted or removed once endpoints have had time
to return. A NIC with a foreign root qdisc stays untouched, and a PACE command fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pyroute2 import IPRoute, NetlinkError

from actuators.effectors.base import Answer, Effector
from actuators.effectors.htb import PROTOCOLS, HtbQdisc, Match, Share
from actuators.flows.state import key_of
from schemas.ids import device_of
from schemas.records import FlowReports, FlowState

_log = logging.getLogger(__name__)

_CLONE_NEWNET: Final = 0x4000_0000
_WORK_S: Final = 5.0
"""Time limit for one change by the kernel, s."""
_MAX_FLOWS: Final = 100_000


class KernelPacing:
    """The effector of one host: uses its endpoints, or the kernel for flows that no endpoint can pace.

    `nics`: link rate, bit/s, by device; `netns`: the devices' network namespace, None for the present one.
    """

    def __init__(self, host: str, endpoints: Effector, nics: Mapping[str, int], netns: Path | None) -> None:
        self.host, self._endpoints, self._link_bps = host, endpoints, dict(nics)
        self._flows: dict[str, tuple[str, Match]] = {}
        """Maps flow key to device and packet match."""
        self._rates_bps: dict[str, int] = {}
        self._endpoint_paced: set[str] = set()
        """Flows that their endpoints pace; the kernel never paces these."""
        self._applied: dict[str, dict[str, tuple[int, Match]] | None] = {}
        """Maps device to the state that was last applied; None if unknown."""
        self._qdiscs: dict[str, HtbQdisc] = {}
        self._ip: IPRoute | None = None
        # pyroute2 keeps one socket per thread, and a thread cannot leave its namespace: so one thread does it
        # all.
        self._thread = ThreadPoolExecutor(1, f"htb {host}", _enter, (netns,))

    def take_flows(self, record: FlowReports) -> list[str]:
        """Process a host's `FlowReports`. Return the keys of flows that are new or have changed ports."""
        fresh, here = [], set()
        for flow in record["flows"]:
            key = key_of(flow["flow_id"])
            device = device_of(flow["nic"])
            if (
                flow["state"] == FlowState.CLOSED
                or device not in self._link_bps
                or flow["protocol"] not in PROTOCOLS
            ):
                self._remove(key)
                continue
            here.add(key)
            match = Match(
                flow["protocol"],
                flow["source_address"],
                flow["source_port"],
                flow["peer_address"],
                flow["peer_port"],
            )
            if self._flows.get(key) != (device, match) and len(self._flows) < _MAX_FLOWS:
                self._flows[key] = (device, match)
                fresh.append(key)
        if record["whole"]:
            for key in [key for key in self._flows if key not in here]:
                self._remove(key)
        if any(key in self._rates_bps for key in fresh):
            self._apply_all("flows changed")
        return fresh

    def restore(self, rates: Mapping[str, int]) -> None:
        """Pace exactly the flows in `rates`, bit/s, that no endpoint paces; end all other pacing.

        Errors of the kernel are logged.
        """
        self._rates_bps = {
            key: rate for key, rate in rates.items() if "PACE" not in self._endpoints.can(key)
        } | self._rates_bps
        for device in self._link_bps:
            self._applied[device] = None
        self._apply_all("settling")

    def close(self) -> None:
        """Remove all classes and filters, and end the kernel pacing thread."""
        self._rates_bps.clear()
        self._apply_all("ending")
        with contextlib.suppress(BrokenExecutor):
            self._thread.submit(self._close).result(_WORK_S)
        self._thread.shutdown()

    # --- the effector ---

    def path_of(self, key: str) -> int | None:
        """Return a flow's source port, from its endpoint or else from the flow report; None if unknown."""
        path = self._endpoints.path_of(key)
        if path is None and key in self._flows and key not in self._endpoint_paced:
            return self._flows[key][1].source_port
        return path

    def can(self, key: str) -> frozenset[str]:
        """Return the commands that the endpoint or the kernel can carry out on a flow."""
        verbs = self._endpoints.can(key)
        return verbs | {"PACE"} if key in self._flows and key not in self._endpoint_paced else verbs

    def execute(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Pass a command to the flow's endpoint, or pace the flow by the kernel."""
        if verb == "PACE" and "PACE" in self._endpoints.can(key):
            self._endpoint_paced.add(key)
            if self._rates_bps.pop(key, None) is not None:
                self._apply_all("an endpoint connected")
        if verb != "PACE" or key in self._endpoint_paced or key not in self._flows:
            self._endpoints.execute(key, verb, value, answer)
            return
        before = self._rates_bps.get(key)
        if value:
            self._rates_bps[key] = value
        else:
            self._rates_bps.pop(key, None)
        error = self._apply(self._flows[key][0])
        if error:
            if before is None:
                self._rates_bps.pop(key, None)
            else:
                self._rates_bps[key] = before
        answer(Answer(error=error) if error else Answer(value, "HTB"))

    # --- internals ---

    def _remove(self, key: str) -> None:
        self._endpoint_paced.discard(key)
        if self._flows.pop(key, None) is not None and self._rates_bps.pop(key, None) is not None:
            self._apply_all("a flow ended")

    def _apply_all(self, when: str) -> None:
        """Update the pacing at every NIC, and log errors. `when`: text on the occasion, for the log."""
        for device in self._link_bps:
            error = self._apply(device)
            if error:
                _log.warning("%s, %s: %s", self.host, when, error)

    def _apply(self, device: str) -> str:
        """Update the pacing of one NIC. Return the error, or an empty string."""
        classes = {
            key: (rate, self._flows[key][1])
            for key, rate in self._rates_bps.items()
            if key in self._flows and self._flows[key][0] == device
        }
        if classes == self._applied.get(device, {}):
            return ""
        try:
            self._thread.submit(self._apply_in_thread, device, classes).result(_WORK_S)
        except (ValueError, OSError, NetlinkError, TimeoutError, BrokenExecutor) as error:
            self._applied[device] = None
            return " ".join(str(error).split()) or type(error).__name__
        self._applied[device] = classes
        return ""

    def _apply_in_thread(self, device: str, classes: Mapping[str, tuple[int, Match]]) -> None:
        """Apply the classes of one NIC, in the thread that is in its namespace."""
        kernel = self._qdiscs.get(device)
        if kernel is None:
            self._ip = self._ip or IPRoute()
            kernel = self._qdiscs[device] = HtbQdisc(self._ip, device, self._link_bps[device])
        kernel.apply(
            _shares(((key, rate) for key, (rate, _) in classes.items()), self._link_bps[device]),
            {match: key for key, (_, match) in classes.items()},
        )

    def _close(self) -> None:
        if self._ip is not None:
            self._ip.close()


def _shares(rates: Iterable[tuple[str, int]], line_bps: int) -> dict[str, Share]:
    """Return a class for each flow: its rate as ceiling, and as guarantee if the link can carry all rates."""
    capped = {key: min(rate, line_bps) for key, rate in rates}
    scale = min(1.0, line_bps / max(1, sum(capped.values())))
    return {key: Share(int(scale * rate), rate) for key, rate in capped.items()}


def _enter(netns: Path | None) -> None:
    """Move this thread to a network namespace for the rest of its life; None: stay."""
    if netns is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"namespace {netns}: {os.strerror(code)}")
    finally:
        os.close(descriptor)
