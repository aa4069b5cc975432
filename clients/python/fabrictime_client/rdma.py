"""Moves and paces queue pairs that a Python program made with pyverbs.

The program registers queue pairs in RTS, and the actuator's commands arrive on its control socket. A move
uses the first method that works: a live change of the source port (mlx5), a drained send queue with a new
address vector (SQD), or the program's standby. pyverbs holds the interpreter lock in every call, so run this
in a separate process. Programs in other languages load libfabrictime-qp.so, which has the same functions.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from fabrictime_client.control import ControlConnection

__all__ = ["QueuePairError", "QueuePairs", "flow_label_of", "source_port_of"]

Standby = Callable[[int], int]
"""Replaces a queue pair by one on the given source port; returns the port now in force. Raises OSError."""

_FIRST_PORT = 0xC000
_DRAIN_S = 3.0
_KICK_S = 1.0
_EINVAL = 22


class QueuePairError(ValueError):
    """A device or its driver refused a change. The message is one line."""


def source_port_of(flow_label: int, own_number: int = 0, other_number: int = 0) -> int:
    """Return the UDP source port of a queue pair's RoCE v2 packets.

    Without a flow label, kernel and drivers derive the port from the two queue pair numbers.
    """
    if not flow_label:
        product = own_number * other_number
        product ^= product >> 20
        flow_label = (product ^ product >> 40) & 0xFFFFF
    return _FIRST_PORT | (flow_label & 0x3FFF) ^ (flow_label >> 14 & 0x3F)


def flow_label_of(source_port: int) -> int:
    """Return a nonzero flow label that gives a source port. Raises QueuePairError for a port below 49152."""
    if not _FIRST_PORT <= source_port <= 0xFFFF:
        raise QueuePairError(f"source port {source_port}: a flow label gives 49152 to 65535")
    return source_port & 0x3FFF or 0x4001


@dataclass
class _Pair:
    qp: Any
    device: str
    standby: Standby | None
    source_port: int
    kick_until: float = 0.0
    """Monotonic time until which Soft-RoCE may need new work requests to continue after a move."""


class QueuePairs:
    """The queue pairs that the program has registered. Call `serve` often.

    Without a control socket, only `move` and `pace` have an effect. Raises ImportError without pyverbs.
    """

    def __init__(self, control: str | os.PathLike[str] | None = None) -> None:
        self._enums, self._mlx5 = _enums(), _mlx5()  # imported now, not while a path is dead
        self._epoll = select.epoll()
        self._control = ControlConnection("" if control is None else os.fspath(control), self._epoll)
        self._pairs: dict[str, _Pair] = {}
        self._last_count = 0

    def __enter__(self) -> QueuePairs:
        return self

    def __exit__(self, *error: object) -> None:
        for key in list(self._pairs):
            self.remove(key)
        self._control.close()
        self._epoll.close()

    def add(self, qp: Any, device: str, standby: Standby | None = None) -> str:
        """Accept a queue pair in RTS and return its key, `qp:<device>:<qpn>:<create count>`."""
        attr = self._query(qp)
        self._last_count = max(self._last_count + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
        key = f"qp:{device}:{qp.qp_num}:{self._last_count}"
        self._pairs[key] = _Pair(qp, device, standby, self._source_port(qp, device, attr))
        self._announce(key)
        return key

    def remove(self, key: str) -> None:
        """Release a queue pair; call this before it is destroyed. Raises KeyError."""
        del self._pairs[key]
        self._control.retire(key)

    def path_of(self, key: str) -> int | None:
        """Return a queue pair's source port; None if the queue pair is not registered."""
        pair = self._pairs.get(key)
        return None if pair is None else pair.source_port

    def move(self, key: str, source_port: int) -> tuple[int, str]:
        """Move a queue pair to another source port. Return the resulting source port, and the method used.

        Raises QueuePairError with the error of each method if none worked.
        """
        pair, refused = self._pair(key), []
        for name, method in (
            ("UDP_SPORT", self._by_port),
            ("SQD", self._by_draining),
            ("STANDBY", self._by_standby),
        ):
            try:
                pair.source_port = method(pair, source_port)
            except (OSError, QueuePairError) as error:
                refused.append(f"{name}: {error}")
            else:
                self._announce(key)
                return pair.source_port, name
        raise QueuePairError("; ".join(refused))

    def pace(self, key: str, rate_bps: int) -> tuple[int, str]:
        """Limit a queue pair's rate, bit/s (0: no limit); return the actual limit, and the method used.

        Raises QueuePairError if the device cannot pace.
        """
        pair = self._pair(key)
        attr = _queue_pair_attr()
        attr.rate_limit = -(-rate_bps // 1000)
        self._modify(pair.qp, attr, self._enums.IBV_QP_RATE_LIMIT, "RATE_LIMIT: ")
        return int(attr.rate_limit) * 1000, "RATE_LIMIT"

    def serve(self, timeout_s: float) -> None:
        """Announce changes and execute commands for at most `timeout_s`.

        Failures of the actuator's connection raise no exception; the connection is reopened.
        """
        for pair in self._pairs.values():
            if time.monotonic() < pair.kick_until:
                _kick(pair, self._enums)
        self._answer_commands()
        if self._epoll.poll(timeout_s):
            self._answer_commands()

    def _announce(self, key: str) -> None:
        self._control.announce(key, self._pairs[key].source_port, ("MOVE",))

    def _answer_commands(self) -> None:
        for command in self._control.commands():
            execute = self.move if command.verb == "MOVE" else self.pace
            try:
                in_force, how = execute(command.key, command.value)
            except QueuePairError as error:
                self._control.failed(command.number, str(error))
            else:
                self._control.done(command.number, in_force, how)

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
            raise QueuePairError("for RC only")
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
        """Return a queue pair from SQD to RTS.

        Newer kernels refuse until the new path acknowledges sent packets.
        """
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

    def _modify(self, qp: Any, attr: Any, mask: int, prefix: str) -> None:
        with _refusals(prefix):
            qp.modify(attr, mask)

    def _query(self, qp: Any) -> Any:
        e = self._enums
        with _refusals("query: "):
            return qp.query(e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_DEST_QPN)[0]

    def _source_port(self, qp: Any, device: str, attr: Any) -> int:
        """Return the source port; 0 for packets other than RoCE v2, which have none."""
        path = attr.ah_attr
        port = Path(f"/sys/class/infiniband/{device}/ports/{path.port_num}")
        try:
            kind = (port / f"gid_attrs/types/{path.sgid_index}").read_text(encoding="ascii").strip()
        except OSError:
            return 0
        return source_port_of(path.flow_label, qp.qp_num, attr.dest_qp_num) if kind == "RoCE v2" else 0


def _enums() -> Any:
    try:
        import pyverbs.enums as enums
    except ImportError:
        import pyverbs.libibverbs_enums as enums
    return enums


def _mlx5() -> Any:
    """Return the class that moves a queue pair live; None if pyverbs was built without mlx5."""
    try:
        from pyverbs.providers.mlx5.mlx5dv import Mlx5QP
    except ImportError:
        return None
    return Mlx5QP


def _queue_pair_attr() -> Any:
    from pyverbs.qp import QPAttr

    return QPAttr()


@contextlib.contextmanager
def _refusals(prefix: str) -> Iterator[None]:
    """Convert exceptions of pyverbs to QueuePairError, with `prefix` in the message."""
    from pyverbs.pyverbs_error import PyverbsError

    try:
        yield
    except PyverbsError as error:
        number = getattr(error, "error_code", 0)
        text = f"{os.strerror(number)} (errno {number})" if number else " ".join(str(error).split())
        raise QueuePairError(f"{prefix}{text}") from error


def _kick(pair: _Pair, enums: Any) -> None:
    """Post an empty work request, which Soft-RoCE refuses, so that its send queue continues.

    Soft-RoCE devices have a parent in sysfs; others do not.
    """
    if not Path(f"/sys/class/infiniband/{pair.device}/parent").exists():
        return
    from pyverbs.wr import SendWR

    with contextlib.suppress(QueuePairError), _refusals(""):
        pair.qp.post_send(SendWR(num_sge=0, sg=[], opcode=enums.IBV_WR_ATOMIC_CMP_AND_SWP))
