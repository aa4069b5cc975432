"""A pyverbs that speaks UDP on loopback: the calls of the real one that the prober's process makes, no more.

A queue pair is a socket and its number the port; what goes before a payload is there as a NIC puts it. With
FAKE_STAMPS set, completions carry ticks of a counter of 32 bits that wraps within a second of the start.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

TICKS = int(os.environ.get("FAKE_STAMPS", "0"))
START_NS = time.monotonic_ns()
MASK = (1 << 32) - 1


class PyverbsError(Exception):
    def __init__(self, text: str, error_code: int = 0) -> None:
        super().__init__(text)
        self.error_code = error_code


def ticks() -> int:
    return (MASK - 10**9 + time.monotonic_ns() - START_NS) & MASK


class Context:
    def __init__(self, name: str) -> None:
        self.name = name

    def query_device(self) -> Any:
        return SimpleNamespace(vendor_id=0x02C9)

    def query_device_ex(self) -> Any:
        return SimpleNamespace(completion_timestamp_mask=MASK, hca_core_clock=10**6)

    def query_rt_values_ex(self) -> tuple[int, int]:
        return 0, ticks()


class PD:
    def __init__(self, context: Context) -> None:
        self.memory = bytearray()


class MR:
    buf = 0
    lkey = 1

    def __init__(self, pd: PD, size: int, access: int) -> None:
        self._memory = pd.memory
        self._memory += bytes(size)

    def read(self, length: int, offset: int) -> bytes:
        return bytes(self._memory[offset : offset + length])

    def write(self, data: bytes, length: int, offset: int = 0) -> None:
        self._memory[offset : offset + length] = data


class CompChannel:
    def __init__(self, context: Context) -> None:
        self.poll = select.epoll()

    def get_cq_event(self, cq: CQ) -> None:
        assert self.poll.poll(0)


class CQ:
    def __init__(self, context: Context, cqe: int, _: None, channel: CompChannel | None, vector: int) -> None:
        self.channel, self.done, self.pairs = channel, deque[Any](), list[QP]()

    def req_notify(self) -> None:
        pass

    def ack_events(self, count: int) -> None:
        pass

    def add(self, pair: QP) -> None:
        self.pairs.append(pair)
        if self.channel is not None:
            self.channel.poll.register(pair.socket, select.EPOLLIN)

    def poll(self, limit: int = 1) -> tuple[int, list[Any]]:
        for pair in self.pairs:
            pair.receive()
        found = [self.done.popleft() for _ in range(min(limit, len(self.done)))]
        return len(found), found


class CQEX(CQ):
    def __init__(self, context: Context, attr: Any) -> None:
        if not TICKS:
            raise PyverbsError("Failed to create extended CQ", 95)
        super().__init__(context, 0, None, None, 0)

    def start_poll(self, attr: None) -> int:
        return self.poll_next()

    def poll_next(self) -> int:
        count, found = self.poll(1)
        if count:
            self.wr_id, self.status, self._now = found[0].wr_id, found[0].status, found[0]
        return 0 if count else 2

    def end_poll(self) -> None:
        pass

    def read_timestamp(self) -> int:
        return int(self._now.ticks)

    def read_byte_len(self) -> int:
        return int(self._now.byte_len)

    def read_src_qp(self) -> int:
        return int(self._now.src_qp)

    def read_slid(self) -> int:
        return 0


def CqInitAttrEx(cqe: int, wc_flags: int) -> None:
    return None


class QP:
    def __init__(self, pd: PD, init: Any) -> None:
        self._memory, self._cq, self._slots = pd.memory, init.scq, deque[Any]()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind((os.environ["FAKE_ADDRESS"], 0))
        self.qp_num = self.socket.getsockname()[1]
        self._cq.add(self)

    def modify(self, attr: Any, mask: int) -> None:
        self.qkey = getattr(attr, "qkey", 0) or getattr(self, "qkey", 0)

    def post_recv(self, work: Any) -> None:
        self._slots.append(work)

    def post_send(self, work: Any) -> None:
        at, size, _ = work.sg[0].parts
        ah, number, qkey = work.ud
        assert qkey == self.qkey
        packet = struct.pack(">I", qkey) + bytes(self._memory[at : at + size])
        now = ticks()
        self.socket.sendto(packet, (socket.inet_ntoa(ah[12:]), number))
        self._complete(work.wr_id, size, 0, now)

    def receive(self) -> None:
        while self._slots:
            try:
                packet, (address, port) = self.socket.recvfrom(4096)
            except BlockingIOError:
                return
            if struct.unpack(">I", packet[:4])[0] != self.qkey:
                continue
            header = bytes(20) + b"\x45" + bytes(11) + socket.inet_aton(address) + bytes(4)
            work = self._slots.popleft()
            at, size, _ = work.sg[0].parts
            data = header + packet[4:]
            assert len(data) <= size
            self._memory[at : at + len(data)] = data
            self._complete(work.wr_id, len(data), port, ticks())

    def _complete(self, wr_id: int, size: int, source: int, now: int) -> None:
        self._cq.done.append(
            SimpleNamespace(wr_id=wr_id, status=0, byte_len=size, src_qp=source, slid=0, ticks=now)
        )


class SGE:
    def __init__(self, *parts: int) -> None:
        self.parts = parts


class Work:
    def __init__(self, wr_id: int, num_sge: int, sg: list[SGE], **more: int) -> None:
        self.wr_id, self.sg = wr_id, sg

    def set_wr_ud(self, ah: bytes, number: int, qkey: int) -> None:
        self.ud = (ah, number, qkey)


RecvWR = SendWR = Work


def GID(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def GlobalRoute(dgid: bytes, **more: int) -> bytes:
    return dgid


def AHAttr(gr: bytes, **more: int) -> bytes:
    return gr


def AH(pd: PD, attr: bytes) -> bytes:
    return attr


def QPAttr(**given: int) -> Any:
    return SimpleNamespace(**given)


QPCap = QPInitAttr = QPAttr


def __getattr__(name: str) -> int:
    if name.startswith("IBV_"):
        return 1
    raise AttributeError(name)
