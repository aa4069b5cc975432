"""Queue pairs that a program in Python made with pyverbs and hands over, to be moved on the actuator's order.

In: pyverbs queue pairs in RTS; orders on the actuator's Unix socket. Out: FLOW and GONE lines, each order
carried out and answered, by the first of these that works: live source port (mlx5), send queue drained and a
new address vector (SQD), the program's standby. pyverbs holds the interpreter in every call: give it a
process of its own. Programs in other languages load libfabrictime-qp.so, which does the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["QueuePairError", "QueuePairs", "flow_label_of", "source_port_of"]

Standby = Callable[[int], int]
"""Takes over from a queue pair, on the source port given; returns the one now in force. Raises OSError."""

_FIRST_PORT: Final = 0xC000
_DRAIN_S: Final = 3.0
_RETRY_S: Final = 0.5
_KICK_S: Final = 1.0
_EINVAL: Final = 22
_BACKLOG_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 4096


class QueuePairError(ValueError):
    """What a device or its driver refused, one line."""


def source_port_of(flow_label: int, own_number: int = 0, other_number: int = 0) -> int:
    """Return the UDP source port of RoCE v2 packets. Without a flow label, kernel and drivers make one of the
    two queue pair numbers."""
    if not flow_label:
        product = own_number * other_number
        product ^= product >> 20
        flow_label = (product ^ product >> 40) & 0xFFFFF
    return _FIRST_PORT | (flow_label & 0x3FFF) ^ (flow_label >> 14 & 0x3F)


def flow_label_of(source_port: int) -> int:
    """Return a flow label, never 0, that gives a source port. Raises QueuePairError below 49152."""
    if not _FIRST_PORT <= source_port <= 0xFFFF:
        raise QueuePairError(f"source port {source_port}: a flow label gives 49152 to 65535")
    return source_port & 0x3FFF or 0x4001


@dataclass(slots=True)
class _Pair:
    qp: Any
    device: str
    standby: Standby | None
    source_port: int
    told: bool = False
    kick_until: float = 0.0
    """Soft-RoCE may need to be told of work again for a while after it was moved; of the monotonic clock."""


class QueuePairs:
    """The queue pairs that were handed over. `serve` is to be called often; without a socket path, `move` and
    `pace` alone do anything. Raises ImportError where pyverbs is not installed."""

    def __init__(self, control: str | os.PathLike[str] | None = None) -> None:
        self._enums, self._mlx5 = _enums(), _mlx5()  # now, not while a path is dead
        self._control = None if control is None else Path(control)
        self._connection: socket.socket | None = None
        self._retry_at = 0.0
        self._in = self._out = b""
        self._pairs: dict[str, _Pair] = {}
        self._last_count = 0

    def __enter__(self) -> QueuePairs:
        return self

    def __exit__(self, *error: object) -> None:
        for key in list(self._pairs):
            self.remove(key)
        self._hang_up()

    def add(self, qp: Any, device: str, standby: Standby | None = None) -> str:
        """Take a queue pair in RTS and return its key, `qp:<device>:<qpn>:<create count>`."""
        attr = self._query(qp)
        self._last_count = max(self._last_count + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
        key = f"qp:{device}:{qp.qp_num}:{self._last_count}"
        self._pairs[key] = _Pair(qp, device, standby, self._source_port(qp, device, attr))
        return key

    def remove(self, key: str) -> None:
        """Let go of a queue pair, before it is destroyed. Raises KeyError."""
        if self._pairs.pop(key).told:
            self._say(f"GONE {key}")
            self._flush()

    def path_of(self, key: str) -> int | None:
        """Return a queue pair's source port, None where it was not handed over."""
        pair = self._pairs.get(key)
        return None if pair is None else pair.source_port

    def move(self, key: str, source_port: int) -> tuple[int, str]:
        """Let a queue pair go on from another source port. Returns the one in force, and by what means.

        Raises QueuePairError where nothing worked: what each means said.
        """
        pair, refused = self._pair(key), []
        for word, means in (
            ("UDP_SPORT", self._by_port),
            ("SQD", self._by_draining),
            ("STANDBY", self._by_standby),
        ):
            try:
                pair.source_port = means(pair, source_port)
            except (OSError, QueuePairError) as error:
                refused.append(f"{word}: {error}")
            else:
                pair.told = False
                return pair.source_port, word
        raise QueuePairError("; ".join(refused))

    def pace(self, key: str, rate_bps: int) -> tuple[int, str]:
        """Limit a queue pair to so many bit/s, 0: no longer. Raises QueuePairError if its device cannot."""
        pair = self._pair(key)
        attr = _queue_pair_attr()
        attr.rate_limit = -(-rate_bps // 1000)
        self._modify(pair.qp, attr, self._enums.IBV_QP_RATE_LIMIT, "RATE_LIMIT: ")
        return int(attr.rate_limit) * 1000, "RATE_LIMIT"

    def serve(self, timeout_s: float) -> None:
        """Tell what is new, carry out what is ordered, for at most so long. Never raises for the actuator's
        sake: one that is not there is looked for again."""
        self._connect()
        for pair in self._pairs.values():
            if time.monotonic() < pair.kick_until:
                _kick(pair, self._enums)
        for key, pair in self._pairs.items():
            if self._connection is not None and not pair.told:
                self._say(f"FLOW {key} {pair.source_port} MOVE")
                pair.told = True
        self._flush()
        if self._connection is None:
            time.sleep(timeout_s)
            return
        if select.select([self._connection], [], [], timeout_s)[0]:
            for line in self._read():
                self._say(self._answer(line))
            self._flush()

    def _answer(self, line: str) -> str:
        word, number, key, value = [*line.split(" "), "", "", "", ""][:4]
        if not number.isdecimal():
            return "FAILED 0 no id: expected MOVE or PACE, id, key, value"
        try:
            if word not in ("MOVE", "PACE"):
                raise QueuePairError("unknown order: expected MOVE or PACE")
            if not value.isdecimal():
                raise QueuePairError(f"{value or 'nothing'}: expected a whole number")
            in_force, how = (self.move if word == "MOVE" else self.pace)(key, int(value))
        except QueuePairError as error:
            return f"FAILED {number} {error}"
        return f"DONE {number} {in_force} {how}"

    def _pair(self, key: str) -> _Pair:
        pair = self._pairs.get(key)
        if pair is None:
            raise QueuePairError("no such queue pair")
        return pair

    def _by_port(self, pair: _Pair, source_port: int) -> int:
        if self._mlx5 is None:
            raise QueuePairError("no mlx5 in this pyverbs")
        with _refusals(""):
            self._mlx5.modify_udp_sport(pair.qp, source_port)
        return source_port

    def _by_draining(self, pair: _Pair, source_port: int) -> int:
        e, label = self._enums, flow_label_of(source_port)
        if pair.qp.qp_type != e.IBV_QPT_RC:
            raise QueuePairError("for RC alone")
        path = self._query(pair.qp).ah_attr
        path.flow_label = label
        self._state(pair.qp, e.IBV_QPS_SQD)
        attr = _queue_pair_attr()
        attr.ah_attr = path
        try:
            self._modify(pair.qp, attr, e.IBV_QP_AV, "address vector: ")
        finally:
            self._leave_draining(pair)
        return source_port

    def _leave_draining(self, pair: _Pair) -> None:
        """Back to RTS: newer kernels refuse that until what was sent is acknowledged, over the new path."""
        end = time.monotonic() + _DRAIN_S
        while True:
            try:
                self._state(pair.qp, self._enums.IBV_QPS_RTS)
                break
            except QueuePairError as error:
                if f"(errno {_EINVAL})" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.001)
        _kick(pair, self._enums)
        pair.kick_until = time.monotonic() + _KICK_S

    def _by_standby(self, pair: _Pair, source_port: int) -> int:
        if pair.standby is None:
            raise QueuePairError("none")
        return pair.standby(source_port)

    def _state(self, qp: Any, state: int) -> None:
        attr = _queue_pair_attr()
        attr.qp_state = state
        self._modify(qp, attr, self._enums.IBV_QP_STATE, "")

    def _modify(self, qp: Any, attr: Any, mask: int, what: str) -> None:
        with _refusals(what):
            qp.modify(attr, mask)

    def _query(self, qp: Any) -> Any:
        e = self._enums
        with _refusals("query: "):
            return qp.query(e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_DEST_QPN)[0]

    def _source_port(self, qp: Any, device: str, attr: Any) -> int:
        """Return 0 where its packets have none: anything but RoCE v2."""
        path = attr.ah_attr
        port = Path(f"/sys/class/infiniband/{device}/ports/{path.port_num}")
        try:
            kind = (port / f"gid_attrs/types/{path.sgid_index}").read_text(encoding="ascii").strip()
        except OSError:
            return 0
        return source_port_of(path.flow_label, qp.qp_num, attr.dest_qp_num) if kind == "RoCE v2" else 0

    def _connect(self) -> None:
        if self._connection is not None or self._control is None or time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + _RETRY_S
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            folder = os.open(self._control.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:  # an address holds 107 bytes, a path may be longer
                connection.connect(f"/proc/self/fd/{folder}/{self._control.name}")
            finally:
                os.close(folder)
        except OSError:
            connection.close()
            return
        connection.setblocking(False)
        self._connection = connection
        for pair in self._pairs.values():
            pair.told = False

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._in, self._out = None, b"", b""

    def _say(self, line: str) -> None:
        if self._connection is not None:
            self._out += line.encode("ascii", "replace") + b"\n"

    def _flush(self) -> None:
        if self._connection is None or not self._out:
            return
        try:
            self._out = self._out[self._connection.send(self._out) :]
        except BlockingIOError:
            if len(self._out) > _BACKLOG_BYTES:
                self._hang_up()
        except OSError:
            self._hang_up()

    def _read(self) -> Iterator[str]:
        assert self._connection is not None  # noqa: S101  # the caller looked
        try:
            data = self._connection.recv(_LINE_BYTES)
        except OSError:
            data = b""
        *lines, self._in = (self._in + data).split(b"\n")
        if not data or len(self._in) > _LINE_BYTES:
            self._hang_up()
        yield from (line.decode("ascii", "replace") for line in lines)


def _enums() -> Any:
    try:
        import pyverbs.enums as enums
    except ImportError:
        import pyverbs.libibverbs_enums as enums
    return enums


def _mlx5() -> Any:
    """Return what moves a queue pair live, None where pyverbs was built without."""
    try:
        from pyverbs.providers.mlx5.mlx5dv import Mlx5QP
    except ImportError:
        return None
    return Mlx5QP


def _queue_pair_attr() -> Any:
    from pyverbs.qp import QPAttr

    return QPAttr()


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Turn pyverbs' errors into ours."""
    from pyverbs.pyverbs_error import PyverbsError

    try:
        yield
    except PyverbsError as error:
        number = getattr(error, "error_code", 0)
        said = f"{os.strerror(number)} (errno {number})" if number else " ".join(str(error).split())
        raise QueuePairError(f"{what}{said}") from error


def _kick(pair: _Pair, enums: Any) -> None:
    """Let Soft-RoCE go on: it does when told of work, even of a request that is refused for having no bytes.
    Its devices have a parent in sysfs, others do not."""
    if not Path(f"/sys/class/infiniband/{pair.device}/parent").exists():
        return
    from pyverbs.wr import SendWR

    with contextlib.suppress(QueuePairError), _refusals(""):
        pair.qp.post_send(SendWR(num_sge=0, sg=[], opcode=enums.IBV_WR_ATOMIC_CMP_AND_SWP))
