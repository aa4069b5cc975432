"""Reads logs of `NCCL_DEBUG=INFO` and WARN of NCCL 2.18 to 2.30 and of RCCL, line by line. Does no I/O.

One reader serves all logs of a job, because processes log facts before their rank. Source of the lines:
NVIDIA/nccl, src/debug.cc, src/init.cc, src/transport/net.cc and net_ib, tags v2.18.3 to v2.30.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from fabrictime.postmortem.observations import (
    COLLNET,
    LOCAL,
    MAX_RANK,
    Channel,
    NetError,
    Observations,
)

MAX_CHANNELS: Final = 2_000_000
"""Largest number of distinct channel lines that are counted."""
_LINE: Final = re.compile(
    r"(?<![\w.-])([A-Za-z0-9][\w.-]{0,200}):(\d{1,10}):(\d{1,10}) (?:\[(\d{1,4})\]"
    r" )?[^\[\]]{0,120}?NCCL (INFO|WARN) (.*)"
)
_INIT: Final = re.compile(
    r"comm \w+ rank (\d{1,8}) n[rR]anks (\d{1,8}) .*?(?:commId (\w+) )?- ?Init (START|COMPLETE)"
)
_ADDRESS: Final = re.compile(r"(?:\[\d+\])?([\w.-]+):(\[?[0-9A-Fa-f:.]+\]?%?\w*)<\d+>")
_DEVICE: Final = re.compile(r"\[(\d{1,4})\]\s*(?:=\s*)?\{?(?:\[\d{1,4}\]\s*)?([A-Za-z][\w.+-]*):\d{1,4}/")
_VIA: Final = re.compile(
    r"(\d{1,8})(?:\[\w+\])? -> (\d{1,8})(?:\[\w+\])? \[(send|receive)\] via NET/(.{1,40}?)/(\d{1,4})"
    r"(?:\(\d+\))?(/GDRDMA|/)?"
)
_LOCAL: Final = re.compile(r"(\d{1,8})\[\w+\] -> \d{1,8}\[\w+\] via (P2P|SHM)/")
_COLLNET: Final = re.compile(r" : (\d{1,8}) \[(?:send|receive)\] via COLLNET/.{1,40}?/(\d{1,4})(/GDRDMA)?")
_GDR: Final = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA (\d{1,4}) ?:? ?'?([\w.-]*)'?")
_COMPLETION: Final = re.compile(
    r"Got completion from peer (\S+?)(?:<\d+>)? with (?:error|status)[ =]?(\S+?),? .*?(?:hca (\S+))?$"
)
_ASYNC: Final = re.compile(
    r"NET/IB ?: (?:([\w.-]+):\d+ )?(?:Got )?[\w-]*?\s*async.*?event.*?: ?(.*)", re.IGNORECASE
)
_BAD_EVENT: Final = re.compile(r"port error|catastrophic|fatal|access violation", re.IGNORECASE)
_CLOSED: Final = re.compile(
    r"(?:Connection closed by remote peer|[Cc]onnect(?:ion)? to|remote process exited.*? peer) "
    r"(\[?[\w.:-]+?\]?)<\d+>(?: (?:failed|returned|timed out).*)?"
)
_REASONS: Final = (
    "No device found",
    "NCCL_IB_DISABLE set by environment to 1",
    "Failed to initialize NET plugin IB",
    "NCCL_NET set by environment to Socket",
    "NCCL_NET_GDR_LEVEL set by environment",
)


class _Process(NamedTuple):
    host: str
    pid: str
    device: str


class _Init(NamedTuple):
    rank: int
    ranks: int
    is_complete: bool
    communicator: str


class _Connection(NamedTuple):
    """A log line about a connection, of the communicator whose start the process logged last."""

    process: _Process
    rank: int
    transport: str
    device: int
    is_gdr: bool
    communicator: str


class NcclLog:
    """Parses NCCL log lines of a job into `Observations`; `take` accepts one line at a time."""

    def __init__(self, out: Observations) -> None:
        self._out = out
        self._inits: dict[_Process, list[_Init]] = {}
        self._communicators: dict[_Process, str] = {}
        self._channels: dict[_Connection, int] = {}
        self._readers: tuple[tuple[str, Callable[[_Process, str], None]], ...] = (
            ("Init ", self._take_init),
            ("Using", self._take_network),
            (" via ", self._take_channel),
            ("NVLS comm ", self._take_nvls),
            ("GPU Direct RDMA", self._take_gdr),
            ("Got completion", self._take_completion),
            ("async", self._take_async),
            ("<", self._take_closed),
        )

    def take(self, line: str) -> bool:
        """Add the facts of a line; return whether it is a line of NCCL."""
        if "NCCL " not in line:
            return False
        match = _LINE.search(line)
        if match is None:
            return False
        process = _Process(match[1], match[2], match[4] or "")
        text = match[6]
        for part, reader in self._readers:
            if part in text:
                reader(process, text)
        for reason in _REASONS:
            if reason in text:
                self._out.network_of(process.host).reason = text.strip()[:120]
        return True

    def finish(self) -> None:
        """Add the facts that need the whole log: ranks of processes and their channels."""
        world = max((init.ranks for inits in self._inits.values() for init in inits), default=0)
        self._out.expect(world)
        ranks: dict[_Process, int] = {}
        for process, inits in self._inits.items():
            of_world = [init for init in inits if init.ranks == world and init.rank < world]
            if not of_world:
                continue
            rank = ranks[process] = of_world[0].rank
            self._out.place(rank, process.host)
            self._out.processes[process.host, process.pid] = rank
            self._out.init_started.add(rank)
            if any(init.is_complete for init in of_world):
                self._out.init_completed.add(rank)
        for (process, stated, transport, device, is_gdr, communicator), lines in self._channels.items():
            rank = ranks.get(process, stated)
            channel = Channel(rank, process.host, transport, device, is_gdr, communicator)
            is_net = channel.transport not in LOCAL and channel.transport != COLLNET
            channels = self._out.channels if is_net else self._out.other_channels
            channels[channel] = channels.get(channel, 0) + lines

    def _take_init(self, process: _Process, text: str) -> None:
        match = _INIT.search(text)
        if match is not None and int(match[1]) <= MAX_RANK and int(match[2]) <= MAX_RANK:
            init = _Init(int(match[1]), int(match[2]), match[4] == "COMPLETE", match[3] or "")
            inits = self._inits.setdefault(process, [])
            self._communicators[process] = init.communicator
            if len(inits) < 10_000:
                inits.append(init)

    def _take_network(self, process: _Process, text: str) -> None:
        network = self._out.network_of(process.host)
        if text.startswith("Using network "):
            network.network = text.removeprefix("Using network ").strip()[:40]
            return
        if "NET/IB" in text and len(network.rdma_devices) < 1024:
            network.rdma_devices.update({int(index): name for index, name in _DEVICE.findall(text)})
        for _, address in _ADDRESS.findall(text):
            if len(network.addresses) < 1024:
                network.addresses.add(address.strip("[]").partition("%")[0])

    def _take_channel(self, process: _Process, text: str) -> None:
        if match := _VIA.search(text):
            rank = int(match[1] if match[3] == "send" else match[2])
            self._add_channel(process, rank, match[4].strip(), int(match[5]), is_gdr=match[6] == "/GDRDMA")
        elif match := _LOCAL.search(text):
            self._add_channel(process, int(match[1]), match[2])
        elif match := _COLLNET.search(text):
            self._add_channel(process, int(match[1]), COLLNET, int(match[2]), is_gdr=bool(match[3]))

    def _take_nvls(self, process: _Process, text: str) -> None:
        inits = self._inits.get(process)
        if inits and text.startswith("NVLS comm "):
            self._add_channel(process, inits[-1].rank, "NVLS")

    def _add_channel(
        self, process: _Process, rank: int, transport: str, device: int = -1, *, is_gdr: bool = False
    ) -> None:
        if len(self._channels) < MAX_CHANNELS:
            communicator = self._communicators.get(process, "")
            key = _Connection(process, rank, transport, device, is_gdr, communicator)
            self._channels[key] = self._channels.get(key, 0) + 1

    def _take_gdr(self, process: _Process, text: str) -> None:
        match = _GDR.search(text)
        if match is not None and match[1] == "Disabled":
            self._out.network_of(process.host).no_gdr_devices.add(match[3] or match[2])

    def _take_completion(self, process: _Process, text: str) -> None:
        match = _COMPLETION.search(text)
        if match is not None:
            label = f"completion error, status {match[2][:40]}, from peer {match[1][:60]}"
            self._add_error(NetError(process.host, match[3] or "", match[1].strip("[]"), label, False))

    def _take_async(self, process: _Process, text: str) -> None:
        match = _ASYNC.search(text)
        if match is not None and _BAD_EVENT.search(text):
            label = f"asynchronous event: {match[2].strip()[:80]}"
            self._add_error(NetError(process.host, match[1] or "", "", label, True))

    def _take_closed(self, process: _Process, text: str) -> None:
        match = _CLOSED.search(text)
        is_failure = match is not None and ("closed" in text or "failed" in text or "timed out" in text)
        if match is not None and is_failure and len(self._out.closed_peers) < 100_000:
            self._out.closed_peers.append((process.host, match[1].strip("[]")))

    def _add_error(self, error: NetError) -> None:
        if len(self._out.net_errors) < 100_000:
            self._out.net_errors.append(error)
