"""Paces flows that no owner paces, by the kernel's HTB at their host's own NIC; owners go first.

In: the NICs where this is allowed, the flows as their host reports them, commands. Out: one class and one
filter a flow that is paced (kernel_flows.py), under a root of our own, which is there only while a flow is
paced; answers, HTB as the means. What a former process left is taken up or removed once its time to settle is
over. A NIC whose root somebody else has set is left as it is, and the answer says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute, NetlinkError

from actuators.applier import Answer, Effector, key_of
from actuators.htb import PROTOCOLS, KernelFlows, Match, Share

__all__ = ["KernelPaces"]

_log = logging.getLogger(__name__)

_CLONE_NEWNET: Final = 0x4000_0000
_WORK_S: Final = 5.0
"""A kernel that takes longer than this for one change is given up."""
_FLOWS_MOST: Final = 100_000

Record = dict[str, Any]


class KernelPaces:
    """The effector of one host: its owners', and the kernel for what no owner paces.

    `nics`: device to bit/s of its link; `netns`: where they are, None: here.
    """

    def __init__(self, host: str, owners: Effector, nics: Mapping[str, int], netns: Path | None) -> None:
        self.host, self._owners, self._rates = host, owners, dict(nics)
        self._flows: dict[str, tuple[str, Match]] = {}
        """Key to device and what its packets show."""
        self._paces: dict[str, int] = {}
        self._theirs: set[str] = set()
        """Flows that their owners were told to pace: those never are the kernel's."""
        self._applied: dict[str, dict[str, tuple[int, Match]] | None] = {}
        """Device to what the kernel was last told; None: not known."""
        self._kernels: dict[str, KernelFlows] = {}
        self._ip: IPRoute | None = None
        # pyroute2 keeps a socket a thread, and a thread cannot leave a namespace: so one for all of it
        self._thread = ThreadPoolExecutor(1, f"htb {host}", _enter, (netns,))

    def take_flows(self, record: Record) -> list[str]:
        """Take a `FlowReports` of this host; return the keys of flows that came new or changed ports."""
        fresh, here = [], set()
        for flow in record["flows"]:
            key = key_of(flow["flow_id"])
            device = flow["nic"].partition("/")[2]
            if flow["state"] == "CLOSED" or device not in self._rates or flow["protocol"] not in PROTOCOLS:
                self._forget(key)
                continue
            here.add(key)
            match = Match(flow["protocol"], flow["source_address"], flow["source_port"],
                          flow["peer_address"], flow["peer_port"])  # fmt: skip
            if self._flows.get(key) != (device, match) and len(self._flows) < _FLOWS_MOST:
                self._flows[key] = (device, match)
                fresh.append(key)
        if record["whole"]:
            for key in [key for key in self._flows if key not in here]:
                self._forget(key)
        if any(key in self._paces for key in fresh):
            self._tell("flows changed")
        return fresh

    def resume(self, paces: Mapping[str, int]) -> None:
        """Have in force what is held of flows that no owner paces, and nothing else: what a former process
        left besides is removed. The kernel's refusal is logged."""
        self._paces = {
            key: rate for key, rate in paces.items() if "PACE" not in self._owners.can(key)
        } | self._paces  # fmt: skip
        for device in self._rates:
            self._applied[device] = None
        self._tell("settling")

    def close(self) -> None:
        """Remove all of ours, and end."""
        self._paces.clear()
        self._tell("ending")
        with contextlib.suppress(BrokenExecutor):
            self._thread.submit(self._close).result(_WORK_S)
        self._thread.shutdown()

    # --- the effector ---

    def path_of(self, key: str) -> int | None:
        """Return a flow's source port, as its owner says, else as it was reported."""
        path = self._owners.path_of(key)
        if path is None and key in self._flows and key not in self._theirs:
            return self._flows[key][1].source_port
        return path

    def can(self, key: str) -> frozenset[str]:
        """Return what may be done to a flow."""
        verbs = self._owners.can(key)
        return verbs | {"PACE"} if key in self._flows and key not in self._theirs else verbs

    def order(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        """Let its owner do it, else the kernel."""
        if verb == "PACE" and "PACE" in self._owners.can(key):
            self._theirs.add(key)
            if self._paces.pop(key, None) is not None:
                self._tell("an owner came")
        if verb != "PACE" or key in self._theirs or key not in self._flows:
            self._owners.order(key, verb, value, answer)
            return
        before = self._paces.get(key)
        if value:
            self._paces[key] = value
        else:
            self._paces.pop(key, None)
        wrong = self._apply(self._flows[key][0])
        if wrong:
            if before is None:
                self._paces.pop(key, None)
            else:
                self._paces[key] = before
        answer(Answer(wrong=wrong) if wrong else Answer(value, "HTB"))

    # --- inside ---

    def _forget(self, key: str) -> None:
        self._theirs.discard(key)
        if self._flows.pop(key, None) is not None and self._paces.pop(key, None) is not None:
            self._tell("a flow ended")

    def _tell(self, when: str) -> None:
        """Bring every NIC up to date, and log what does not work."""
        for device in self._rates:
            wrong = self._apply(device)
            if wrong:
                _log.warning("%s, %s: %s", self.host, when, wrong)

    def _apply(self, device: str) -> str:
        """Let the kernel pace what is to be paced at a NIC; return why it does not, or empty."""
        wanted = {
            key: (rate, self._flows[key][1]) for key, rate in self._paces.items()
            if key in self._flows and self._flows[key][0] == device
        }  # fmt: skip
        if wanted == self._applied.get(device, {}):
            return ""
        try:
            self._thread.submit(self._work, device, wanted).result(_WORK_S)
        except (ValueError, OSError, NetlinkError, TimeoutError, BrokenExecutor) as error:
            self._applied[device] = None
            return " ".join(str(error).split()) or type(error).__name__
        self._applied[device] = wanted
        return ""

    def _work(self, device: str, wanted: Mapping[str, tuple[int, Match]]) -> None:
        """Runs in the thread that is where the NICs are."""
        kernel = self._kernels.get(device)
        if kernel is None:
            self._ip = self._ip or IPRoute()
            kernel = self._kernels[device] = KernelFlows(self._ip, device, self._rates[device])
        kernel.apply(
            _shares(((key, rate) for key, (rate, _) in wanted.items()), self._rates[device]),
            {match: key for key, (_, match) in wanted.items()},
        )

    def _close(self) -> None:
        if self._ip is not None:
            self._ip.close()


def _shares(paces: Iterable[tuple[str, int]], line_bps: int) -> dict[str, Share]:
    """Return a class for each flow: at most its pace, and as much for sure, scaled down where all paces are
    more than the link."""
    held = {key: min(rate, line_bps) for key, rate in paces}
    scale = min(1.0, line_bps / max(1, sum(held.values())))
    return {key: Share(int(scale * rate), rate) for key, rate in held.items()}


def _enter(netns: Path | None) -> None:
    """Go into a network namespace, for good."""
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
