"""Runs the worker process that uses verbs: the UD queue pairs of one device, driven by `prober.py`.

It reads JSON lines from standard input: first the request to open the device, then peers whenever they
change. It ends when the input ends. It writes JSON lines to standard output: the opened device, then batches.
pyverbs holds the interpreter lock in every call, so it gets a process of its own. The process usually runs
the distribution's interpreter, which lacks our installed packages.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if __name__ == "__main__":  # started by its path, with `-I`: our packages are not on the path
    sys.path.append(str(Path(__file__).resolve().parents[3]))

from producers.probe.rdma.gids import UdPath, choose_gid, choose_port, plan_paths, read_ports, target_lid
from producers.probe.rdma.packets import (
    BYTES,
    GRH_BYTES,
    Address,
    is_mapped,
    q_key,
    source_gid,
    traffic_class_of,
)
from producers.probe.rdma.prober import OutgoingPacket, PathSamples, UdPeer, UdProber, UdProberSettings
from producers.probe.rdma.timestamps import CrossTimestamp, TickClock, cross_timestamp

if TYPE_CHECKING:
    from producers.probe.rdma.worker_process import Batch, Message, OpenRequest, Ready

_RECEIVES: Final = 256
_SENDS: Final = 256
_SLOT_BYTES: Final = 128
_POLL: Final = 64
_HANDLES: Final = 4096
_HANDLE_RETRY_NS: Final = 5_000_000_000
_HANDLE_RETRIES: Final = 6
_HARDWARE_WAIT_S: Final = 0.001
_IDLE_S: Final = 1.0
_BACKLOG_BYTES: Final = 8 << 20
_FLUSH_AFTER_NS: Final = 33_000_000
"""Time from a round time of the system clock to a flush. By then, earlier requests are answered."""


class DeviceError(ValueError):
    """Raised if a device, its driver or pyverbs refuses an operation. The exception's text is one line."""


class _Lines:
    """Reads JSON lines from standard input and writes JSON lines to standard output, without blocking."""

    def __init__(self) -> None:
        self._in, self._out = b"", bytearray()
        self.ended = False
        self.dropped = 0
        os.set_blocking(0, False)
        os.set_blocking(1, False)

    def read(self) -> list[Any]:
        while not self.ended:
            try:
                data = os.read(0, 1 << 16)
            except BlockingIOError:
                break
            self._in += data
            self.ended = not data
        *lines, self._in = self._in.split(b"\n")
        return [json.loads(line) for line in lines if line]

    def write(self, message: Message, droppable: bool = False) -> None:
        if droppable and len(self._out) > _BACKLOG_BYTES:
            self.dropped += 1
            return
        self._out += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._out:
                del self._out[: os.write(1, self._out)]

    @property
    def waiting(self) -> bool:
        return bool(self._out)


class _Device:
    """An open device: queue pairs that are ready to send and receive, memory, completions with timestamps."""

    def __init__(self, request: OpenRequest) -> None:
        name, paths = request["device"], request["paths"]
        self._traffic_class = request["traffic_class"]
        self.port = choose_port(name, read_ports(name, Path(request["sysfs"])), request["port"])
        self.gid = choose_gid(self.port, request["address"])
        self._e, self._v = _pyverbs()
        self._key = q_key(bytes.fromhex(request["key"]))
        with _refusals("open"):
            self.context = self._v.Context(name=name)
            attr = self.context.query_device()
            self._pd = self._v.PD(self.context)
        self.vendor = int(attr.vendor_id)
        self.refused: list[str] = []
        self.clock: TickClock | None = None
        self.descriptor: int | None = None
        """Descriptor that becomes readable after a completion; None if completions must be polled."""
        self._cq: Any = None
        depth = paths * (_RECEIVES + _SENDS)
        if request["hardware"]:
            self._open_stamped(depth)
        if self.clock is None:
            self._open_plain(depth)
        with _refusals("queue pairs"):
            self._open_pairs(paths, request["first_path_port"])
        self._handles: OrderedDict[tuple[bytes, int, int, int], Any] = OrderedDict()
        self._hopeless: dict[tuple[bytes, int, int, int], tuple[int, int]] = {}
        """Time of the next attempt, ns, and number of refusals of each address handle that was refused."""
        self._tokens: list[object] = [None] * _SENDS
        self._free = list(range(_SENDS))

    def now(self) -> CrossTimestamp:
        """Return simultaneous readings of the system clock and of the clock that timestamps packets."""
        clock = self.clock
        if clock is None:
            now = time.time_ns()
            return CrossTimestamp(now, now, 0)
        return cross_timestamp(lambda: clock.read(self._ticks()), time.time_ns)

    def wait_armed(self) -> None:
        """Request that the next completion makes the completion channel readable."""
        if self.descriptor is not None:
            self._cq.req_notify()

    def woken(self) -> None:
        """Acknowledge the event that ended a wait for completions."""
        self._channel.get_cq_event(self._cq)
        self._cq.ack_events(1)

    def send(self, prober: UdProber, out: OutgoingPacket) -> None:
        """Send a packet of the prober, or report to the prober that it could not be sent."""
        handle = self._handle(out)
        if handle is None or not self._free:
            prober.on_unsent(out)
            return
        slot = self._free.pop()
        data = prober.pack(out, time.time_ns())
        self._memory.write(data, len(data), self._send_at + slot * _SLOT_BYTES)
        work = self._send_work[slot]
        work.set_wr_ud(handle, out.to.number, self._key)
        try:
            self._pairs[out.path].post_send(work)
        except Exception:  # noqa: BLE001  # pyverbs has errors of its own; counted, and told by `on_unsent`
            self._free.append(slot)
            prober.on_unsent(out)
            return
        self._tokens[slot] = out.token

    def completions(self, prober: UdProber) -> Iterator[tuple[int, bytes, Address, int, int]]:
        """Yield (path, payload, source, timestamp in ns, traffic class) of received packets.

        Raises DeviceError.
        """
        for number, status, size, source, lid, stamp in self._polled():
            if status:
                message = "receive" if number >> 32 else "send"
                raise DeviceError(f"{self.port.device}: {message} ended with {_status(self._e, status)}")
            if not number >> 32:
                self._free.append(number)
                token, self._tokens[number] = self._tokens[number], None
                if token is not None:
                    prober.on_timestamp(token, stamp)
                continue
            slot = number & 0xFFFF_FFFF
            data = self._memory.read(min(size, _SLOT_BYTES), slot * _SLOT_BYTES)
            self._pairs[slot // _RECEIVES].post_recv(self._receive_work[slot])
            mapped = is_mapped(self.gid.value)
            gid = source_gid(data[:GRH_BYTES], mapped)
            if gid is None or size < GRH_BYTES:
                prober.counters["malformed"] += 1
                continue
            yield (
                slot // _RECEIVES,
                data[GRH_BYTES:size],
                Address(gid, lid if self.port.infiniband else 0, source),
                stamp,
                traffic_class_of(data, mapped),
            )

    def own(self) -> list[tuple[UdPath, Address]]:
        """Return our paths, each with the address of the queue pair that sends on it."""
        return [(path, Address(self.gid.value, self.port.lid, path.number)) for path in self.paths]

    def _open_stamped(self, depth: int) -> None:
        e, v = self._e, self._v
        flags = (
            e.IBV_WC_EX_WITH_BYTE_LEN
            | e.IBV_WC_EX_WITH_SRC_QP
            | e.IBV_WC_EX_WITH_SLID
            | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        )
        try:
            with _refusals("completion stamps"):
                self._cq = v.CQEX(self.context, v.CqInitAttrEx(cqe=depth, wc_flags=flags))
            with _refusals("NIC clock"):
                attr = self.context.query_device_ex()
                self.clock = TickClock(
                    attr.completion_timestamp_mask, attr.hca_core_clock, self._ticks(), time.time_ns()
                )
        except ValueError as error:
            self.refused.append(str(error))
            self.clock = self._cq = None

    def _ticks(self) -> int:
        seconds, ticks = self.context.query_rt_values_ex()
        return int(seconds) * 1_000_000_000 + int(ticks)

    def _open_plain(self, depth: int) -> None:
        before = _descriptors()
        with _refusals("completion queue"):
            self._channel = self._v.CompChannel(self.context)
            # pyverbs does not expose the channel's descriptor: it is the new one
            (self.descriptor,) = _descriptors() - before
            self._cq = self._v.CQ(self.context, depth, None, self._channel, 0)

    def _open_pairs(self, count: int, first_port: int) -> None:
        self._choose_pairs(count, first_port)
        self._prepare_work()
        for index, pair in enumerate(self._pairs):
            for slot in range(index * _RECEIVES, (index + 1) * _RECEIVES):
                pair.post_recv(self._receive_work[slot])
        self.wait_armed()

    def _choose_pairs(self, count: int, first_port: int) -> None:
        """Open queue pairs until `count` pairs have distinct source ports, and close the other pairs."""
        pairs: list[Any] = []
        self.paths: list[UdPath] = []
        spare = count  # two queue pair numbers of Soft-RoCE may give the same source port
        while len(self.paths) < count and spare >= 0:
            pairs.append(self._pair())
            numbers = [pair.qp_num for pair in pairs]
            self.paths = plan_paths(self.gid.kind, self.vendor, numbers, first_port, self.port.path_bits)
            spare -= len(self.paths) < len(pairs)
        own_numbers = {path.number for path in self.paths}
        for pair in pairs:
            if pair.qp_num not in own_numbers:
                pair.close()
        self._pairs = [pair for pair in pairs if pair.qp_num in own_numbers]

    def _prepare_work(self) -> None:
        """Register the packet memory with the device, and prepare a work request for each packet slot."""
        e, v = self._e, self._v
        slots = len(self._pairs) * _RECEIVES
        self._send_at = slots * _SLOT_BYTES
        self._memory = v.MR(self._pd, (slots + _SENDS) * _SLOT_BYTES, e.IBV_ACCESS_LOCAL_WRITE)
        base, key = self._memory.buf, self._memory.lkey
        self._receive_work = [
            v.RecvWR(wr_id=1 << 32 | slot, num_sge=1, sg=[v.SGE(base + slot * _SLOT_BYTES, _SLOT_BYTES, key)])
            for slot in range(slots)
        ]
        self._send_work = [
            v.SendWR(
                wr_id=slot,
                num_sge=1,
                sg=[v.SGE(base + self._send_at + slot * _SLOT_BYTES, BYTES, key)],
                opcode=e.IBV_WR_SEND,
                send_flags=e.IBV_SEND_SIGNALED,
            )
            for slot in range(_SENDS)
        ]

    def _pair(self) -> Any:
        e, v = self._e, self._v
        cap = v.QPCap(max_send_wr=_SENDS, max_recv_wr=_RECEIVES, max_send_sge=1, max_recv_sge=1)
        pair = v.QP(self._pd, v.QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self._cq, rcq=self._cq, cap=cap))
        attr = v.QPAttr(qp_state=e.IBV_QPS_INIT, port_num=self.port.number)
        attr.pkey_index, attr.qkey = 0, self._key
        pair.modify(attr, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_QKEY)
        pair.modify(v.QPAttr(qp_state=e.IBV_QPS_RTR), e.IBV_QP_STATE)
        attr = v.QPAttr(qp_state=e.IBV_QPS_RTS)
        attr.sq_psn = 0
        pair.modify(attr, e.IBV_QP_STATE | e.IBV_QP_SQ_PSN)
        return pair

    def _handle(self, out: OutgoingPacket) -> Any:
        """Return the address handle for a packet; None if it cannot be created.

        A refused handle is tried again after growing pauses, because resolving an absent peer blocks the
        worker for a second.
        """
        path = self.paths[out.path]
        lid = target_lid(out.to.lid, out.path_bits, out.path)
        name = (out.to.gid, lid, path.flow_label, path.path_bits)
        handle = self._handles.get(name)
        if handle is not None:
            self._handles.move_to_end(name)
            return handle
        now = time.monotonic_ns()
        again_ns, refused = self._hopeless.get(name, (0, 0))
        if again_ns > now:
            return None
        route = self._v.GlobalRoute(
            dgid=self._v.GID(_gid_text(out.to.gid)),
            sgid_index=self.gid.place,
            flow_label=path.flow_label,
            hop_limit=64,
            traffic_class=self._traffic_class,
        )
        attr = self._v.AHAttr(
            gr=route, is_global=1, port_num=self.port.number, dlid=lid, src_path_bits=path.path_bits
        )
        try:
            with _refusals(f"address handle of {_gid_text(out.to.gid)}"):
                handle = self._handles[name] = self._v.AH(self._pd, attr=attr)
        except DeviceError as error:
            if not refused:
                print(f"{self.port.device}: {error}", file=sys.stderr, flush=True)
            wait_ns = _HANDLE_RETRY_NS << min(refused, _HANDLE_RETRIES)
            self._hopeless[name] = (time.monotonic_ns() + wait_ns, refused + 1)
            return None
        self._hopeless.pop(name, None)
        if len(self._handles) > _HANDLES:
            self._handles.popitem(last=False)[1].close()
        return handle

    def _polled(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield, per completion, (request, status, bytes, sender's queue pair, sender's LID, timestamp)."""
        if self.clock is None:
            while True:
                count, completions = self._cq.poll(_POLL)
                stamp = time.time_ns()
                for wc in completions:
                    yield wc.wr_id, wc.status, wc.byte_len, wc.src_qp, wc.slid, stamp
                if count < _POLL:
                    return
        cq, clock = self._cq, self.clock
        if cq.start_poll(None):
            return
        rows = []
        for _ in range(_POLL):
            stamp = clock.stamp(cq.read_timestamp())
            rows.append((cq.wr_id, cq.status, cq.read_byte_len(), cq.read_src_qp(), cq.read_slid(), stamp))
            if cq.poll_next():
                break
        cq.end_poll()
        yield from rows


def main() -> int:
    """Probe and answer until standard input ends. Return exit code 2 if the device cannot be used, else 0."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_IGN
        )  # the signal is meant for the parent, which then closes our input
    lines = _Lines()
    request: list[Any] = []
    while not request:
        select.select([0], [], [])
        request = lines.read()
        if lines.ended:
            return 0
    first, *rest = request
    try:
        device = _Device(first)
    except (DeviceError, ValueError, OSError) as error:
        lines.write({"error": str(error)})
        return 2
    settings = UdProberSettings(
        rate_pps=first["rate_pps"],
        timeout_ns=first["timeout_ns"],
        answer_max_pps=first["answer_max_pps"],
        max_age_ns=first["max_age_ns"],
        hardware=device.clock is not None,
    )
    prober = UdProber(
        first["nic"],
        first["run"],
        bytes.fromhex(first["key"]),
        device.own(),
        settings,
        first["seed"],
        time.monotonic_ns(),
    )
    lines.write({"ready": _ready(device)})
    for message in rest:
        prober.set_peers(_peers(message), time.monotonic_ns())
    try:
        _serve(device, prober, lines, first["flush_ns"])
    except DeviceError as error:
        lines.write({"error": str(error)})
        return 1
    return 0


def _serve(device: _Device, prober: UdProber, lines: _Lines, flush_ns: int) -> None:
    batch, flush_at_ns = 0, _next_flush(time.time_ns(), flush_ns)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    if device.descriptor is not None:
        poll.register(device.descriptor, select.POLLIN)
    try:
        while not lines.ended:
            woken = [fd for fd, _ in poll.poll(_wait_ms(device, prober, flush_at_ns))]
            _step(device, prober, device.descriptor in woken)
            if 0 in woken:
                for message in lines.read():
                    prober.set_peers(_peers(message), time.monotonic_ns())
            if time.time_ns() >= flush_at_ns:
                lines.write({"batch": _batch(device, prober, batch)}, droppable=True)
                batch, flush_at_ns = batch + 1, _next_flush(time.time_ns(), flush_ns)
            elif lines.waiting:
                lines.flush()
    finally:
        lines.write({"batch": _batch(device, prober, batch)}, droppable=True)


def _step(device: _Device, prober: UdProber, woken: bool) -> None:
    """Process the packets that have arrived before sending due packets, so that no answer counts as lost."""
    if woken:
        device.woken()
        device.wait_armed()  # before polling, so that a later completion wakes again
    for path, data, source, stamp, arrived in device.completions(prober):
        answer = prober.receive(path, data, source, stamp, time.monotonic_ns(), time.time_ns(), arrived)
        if answer is not None:
            device.send(prober, answer)
    for out in prober.poll(time.monotonic_ns(), time.time_ns()):
        device.send(prober, out)


def _wait_ms(device: _Device, prober: UdProber, flush_at_ns: int) -> float:
    left_s = (flush_at_ns - time.time_ns()) / 1e9
    due_ns = prober.next_ns()
    if due_ns is not None:
        left_s = min(left_s, (due_ns - time.monotonic_ns()) / 1e9)
    if device.descriptor is None:
        left_s = min(left_s, _HARDWARE_WAIT_S)
    return max(0.0, min(left_s, _IDLE_S)) * 1e3


def _next_flush(system_ns: int, every_ns: int) -> int:
    return (system_ns - _FLUSH_AFTER_NS) // every_ns * every_ns + every_ns + _FLUSH_AFTER_NS


def _batch(device: _Device, prober: UdProber, number: int) -> Batch:
    now = device.now()
    return {
        "number": number,
        "clock_ns": now.clock_ns,
        "system_ns": now.system_ns,
        "bound_ns": now.bound_ns,
        "counters": prober.counters,
        "stamp_error_ns": _stamp_error(device, prober),
        "groups": [
            [peer, path, *(getattr(samples, name) for name in PathSamples.__slots__)]
            for (peer, path), samples in prober.drain().items()
        ],
    }


def _stamp_error(device: _Device, prober: UdProber) -> int:
    """Return the error of timestamps, ns: a tick of the NIC's clock, else `UdProber.stamp_error_ns`."""
    return prober.stamp_error_ns if device.clock is None else device.clock.tick_ns


def _ready(device: _Device) -> Ready:
    port, clock = device.port, device.clock
    return {
        "device": port.device,
        "port": port.number,
        "gid": device.gid.value.hex(),
        "kind": device.gid.kind,
        "lid": port.lid,
        "path_bits": port.path_bits,
        "speed_bps": port.speed_bps,
        "numbers": [path.number for path in device.paths],
        "paths": [path.value for path in device.paths],
        "sure": all(path.sure for path in device.paths),
        "hardware": clock is not None,
        "tick_ns": 0 if clock is None else clock.tick_ns,
        "refused": device.refused,
    }


def _peers(line: Mapping[str, Any]) -> list[UdPeer]:
    return [
        UdPeer(nic, bytes.fromhex(gid), lid, path_bits, tuple(numbers))
        for nic, gid, lid, path_bits, numbers in line["peers"]
    ]


def _gid_text(gid: bytes) -> str:
    return ":".join(gid[i : i + 2].hex() for i in range(0, 16, 2))


def _descriptors() -> set[int]:
    """Return the numbers of this process's open file descriptors."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(name))
            descriptors.add(int(name))
    return descriptors


def _status(enums: Any, status: int) -> str:
    names = [name for name in dir(enums) if name.startswith("IBV_WC_") and name.endswith(("_ERR", "_ERROR"))]
    return next((name for name in names if getattr(enums, name) == status), f"status {status}")


def _pyverbs() -> tuple[Any, Any]:
    """Import pyverbs; return its enums and the classes in use. Raises DeviceError if it is not installed."""
    from types import SimpleNamespace

    try:
        try:
            import pyverbs.enums as enums
        except ImportError:
            import pyverbs.libibverbs_enums as enums
        from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
        from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
        from pyverbs.wr import SGE, RecvWR, SendWR
    except ImportError as error:
        raise DeviceError(f"pyverbs: {error}") from None
    return enums, SimpleNamespace(
        AH=AH,
        GID=GID,
        AHAttr=AHAttr,
        GlobalRoute=GlobalRoute,
        CQ=CQ,
        CQEX=CQEX,
        CompChannel=CompChannel,
        CqInitAttrEx=CqInitAttrEx,
        Context=Context,
        MR=MR,
        PD=PD,
        QP=QP,
        QPAttr=QPAttr,
        QPCap=QPCap,
        QPInitAttr=QPInitAttr,
        SGE=SGE,
        RecvWR=RecvWR,
        SendWR=SendWR,
    )


@contextlib.contextmanager
def _refusals(message: str) -> Iterator[None]:
    """Convert pyverbs' exceptions in this context to DeviceError, with a text that begins with `message`."""
    from pyverbs.pyverbs_error import PyverbsError

    try:
        yield
    except PyverbsError as error:
        number = getattr(error, "error_code", 0)
        text = f"{os.strerror(number)} (errno {number})" if number else " ".join(str(error).split())
        raise DeviceError(f"{message}: {text}") from error


if __name__ == "__main__":
    sys.exit(main())
