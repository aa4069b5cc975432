"""Breaks a part of a running testbed by name, and restores it exactly.

A fault is a line such as `grey 20% leaf1>spine2 for 10s`. The truth recorder keeps the log of faults.

    down TARGET        carrier lost: the port left of `>` is taken down, as in `down spine2>leaf1`
    blackhole TARGET   everything sent into the link is lost; carrier and routes stay
    grey P% TARGET     that share of packets is lost, drawn by `seed N` (0 by default)
    mtu BYTES TARGET   packets above this size, with their IP header, are lost and no router reports it
    remark A B TARGET  packets of DSCP A get DSCP B at the target

`dscp N` after the target of `blackhole` or `grey` limits the fault to the queue of that class.
TARGET is a directed link by its nodes or its full id (`leaf1>spine2`, `leaf1:swp3>spine2:swp1`), both
directions (`leaf1<>spine2`), a NIC or host (`h1/eth1`, `h1`: its cable, for `down` its own port), or a whole
switch.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fabrictime.testbed.fabric import classes, nft
from fabrictime.testbed.fabric.fabric import Fabric, FabricError
from fabrictime.testbed.fabric.topology import Port

FaultKind = Literal["down", "blackhole", "grey", "mtu", "remark"]

_log = logging.getLogger(__name__)
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_MAX_S = 7 * 86_400.0
MIN_MTU_BYTES, MAX_MTU_BYTES = 128, 65_535
MAX_DSCP = 63


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """A fault to inject. `share` is the part of packets that are lost, 0 to 1, among those above `max_bytes`.

    If `for_s` is None, the fault lasts until it is cleared. `dscp` is the only class that it affects, or None
    for all classes. `to_dscp` is the DSCP that affected packets get.
    """

    kind: FaultKind
    target: str
    share: float = 1.0
    seed: int = 0
    for_s: float | None = None
    max_bytes: int = 0
    dscp: int | None = None
    to_dscp: int = 0

    def __str__(self) -> str:
        text: list[str] = [self.kind]
        if self.kind == "grey":
            text.append(f"{self.share * 100:g}%")
        if self.kind == "mtu":
            text.append(str(self.max_bytes))
        if self.kind == "remark":
            text += [str(self.dscp), str(self.to_dscp)]
        text.append(self.target)
        if self.kind != "remark" and self.dscp is not None:
            text.append(f"dscp {self.dscp}")
        if self.kind == "grey" and self.seed:
            text.append(f"seed {self.seed}")
        if self.for_s is not None:
            text.append(f"for {self.for_s:g}s")
        return " ".join(text)


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """An entry in the log of faults; `links` are the ids of the directed links that lose packets.

    Times are CLOCK_REALTIME. The fault was certainly in force from `start_end_ns` to `clear_begin_ns`, and
    certainly not before `start_begin_ns` or after `clear_end_ns`. `clear_*` is None while in force.
    """

    fault: int
    spec: FaultSpec
    links: tuple[str, ...]
    start_begin_ns: int
    start_end_ns: int
    clear_begin_ns: int | None = None
    clear_end_ns: int | None = None


def parse_duration(text: str) -> float:
    """Return a duration such as `500ms`, `10s`, `2m` or `1h` in seconds. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text.strip())
    if match is None:
        raise ValueError(f"duration {text!r}: expected a number and ms, s, m or h, as in 10s")
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if not 0 < seconds <= _DURATION_MAX_S:
        raise ValueError(f"duration {text!r}: expected above 0 and at most 7 days")
    return seconds


def parse_fault(text: str) -> FaultSpec:
    """Return the fault that a line describes. Raises ValueError with the expected syntax."""
    parts = text.split()
    for_s = None
    if len(parts) > 2 and parts[-2] == "for":
        for_s = parse_duration(parts[-1])
        parts = parts[:-2]
    seed = 0
    if len(parts) > 2 and parts[-2] == "seed":
        if not re.fullmatch(r"\d{1,18}", parts[-1]):
            raise ValueError(f"fault {text!r}: expected a whole number after seed")
        seed = int(parts[-1])
        parts = parts[:-2]
    dscp = None
    if len(parts) > 3 and parts[-2] == "dscp" and parts[0] in ("blackhole", "grey"):
        dscp = _dscp(text, parts[-1])
        parts = parts[:-2]
    match parts:
        case ["down" | "blackhole" as kind, target]:
            return FaultSpec(kind, target, 1.0, seed, for_s, dscp=dscp)
        case ["remark", before, after, target]:
            change = _dscp(text, before), _dscp(text, after)
            return FaultSpec("remark", target, 1.0, seed, for_s, dscp=change[0], to_dscp=change[1])
        case ["grey", share_text, target]:
            match = re.fullmatch(r"(\d+(?:\.\d+)?)%", share_text)
            share = float(match[1]) / 100 if match else 0.0
            if not 1 / nft.SLOTS <= share < 1:
                raise ValueError(
                    f"fault {text!r}: expected a loss of 0.03% to 99.9%, as in grey 20% leaf1>spine2"
                )
            return FaultSpec("grey", target, share, seed, for_s, dscp=dscp)
        case ["mtu", size_text, target]:
            if (
                not re.fullmatch(r"\d{1,5}", size_text)
                or not MIN_MTU_BYTES <= int(size_text) <= MAX_MTU_BYTES
            ):
                raise ValueError(
                    f"fault {text!r}: expected {MIN_MTU_BYTES} to {MAX_MTU_BYTES} bytes, as in mtu 1400 "
                    "leaf1>spine2"
                )
            return FaultSpec("mtu", target, 1.0, seed, for_s, int(size_text))
    raise ValueError(
        f"fault {text!r}: expected `down TARGET`, `blackhole TARGET`, `grey P% TARGET`, "
        "`mtu BYTES TARGET` or `remark A B TARGET`, then `dscp N`, `seed N` and `for 10s` where wanted"
    )


def _dscp(text: str, number: str) -> int:
    if not re.fullmatch(r"\d{1,2}", number) or int(number) > MAX_DSCP:
        raise ValueError(
            f"fault {text!r}: expected a DSCP of 0 to {MAX_DSCP}, as in blackhole leaf1>spine2 dscp 26"
        )
    return int(number)


@dataclass(slots=True)
class _Active:
    event: FaultEvent
    heal: list[Callable[[], None]]
    timer: threading.Timer | None = None


class Faults:
    """The faults of one testbed. All methods may be called from any thread."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._active: dict[int, _Active] = {}
        self._past: list[FaultEvent] = []
        self._down: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count(1)
        fabric.on_close(self._stop)

    def add(self, fault: FaultSpec | str) -> FaultEvent:
        """Inject a fault now and return its log entry.

        Raises ValueError for an invalid line or target, FabricError if the kernel refuses.
        """
        spec = parse_fault(fault) if isinstance(fault, str) else fault
        with self._fabric.lock:
            links = self.resolve(spec)
            number = next(self._numbers)
            heal: list[Callable[[], None]] = []
            begin = time.time_ns()
            try:
                self._break(spec, links, number, heal)
            except BaseException:
                _undo(heal)
                raise
            lossy = self._lossy(spec, links)
            active = _Active(FaultEvent(number, spec, lossy, begin, time.time_ns()), heal)
            self._active[number] = active
            if spec.for_s is not None:
                active.timer = threading.Timer(spec.for_s, self._expire, (number,))
                active.timer.daemon = True
                active.timer.start()
            _log.info("fault %d: %s", number, spec)
            return active.event

    def clear(self, fault: int | str | None = None) -> list[FaultEvent]:
        """Clear one fault, by its number or its line, or all faults; return their log entries."""
        with self._fabric.lock:
            healed = []
            for number in self._choose(fault):
                active = self._active.pop(number)
                if active.timer is not None:
                    active.timer.cancel()
                begin = time.time_ns()
                _undo(active.heal)
                event = active.event
                done = FaultEvent(
                    event.fault,
                    event.spec,
                    event.links,
                    event.start_begin_ns,
                    event.start_end_ns,
                    begin,
                    time.time_ns(),
                )
                self._past.append(done)
                healed.append(done)
                _log.info("fault %d cleared: %s", number, event.spec)
            return healed

    def active(self) -> list[FaultEvent]:
        """Return the faults in force, oldest first."""
        with self._fabric.lock:
            return [active.event for active in self._active.values()]

    def log(self) -> list[FaultEvent]:
        """Return the log entries of all faults, past and in force, in the order of their numbers."""
        with self._fabric.lock:
            return sorted([*self._past, *self.active()], key=lambda event: event.fault)

    def resolve(self, spec: FaultSpec) -> list[str]:
        """Return the ids of the directed links of a fault's target. Raises ValueError if there are none."""
        target, links = spec.target, self._fabric.links
        if target in links:
            return [target]
        both = "<>" in target
        near, arrow, far = target.partition("<>" if both else ">")

        def named(sender: Port, receiver: Port) -> bool:
            if not arrow:
                return _names(sender, target) or (spec.kind != "down" and _names(receiver, target))
            onward = _names(sender, near) and _names(receiver, far)
            return onward or (both and _names(sender, far) and _names(receiver, near))

        named_links = [link for link, ends in links.items() if named(*ends)]
        if not named_links:
            example = next(iter(links.values()))
            raise ValueError(
                f"target {target!r}: expected a link such as {example[0].node}>{example[1].node}, "
                "a NIC or a switch of this fabric"
            )
        return named_links

    def _break(self, spec: FaultSpec, links: list[str], number: int, heal: list[Callable[[], None]]) -> None:
        fabric = self._fabric
        if spec.kind == "down":
            ports = {(port.node, port.name): port for port in (fabric.links[link][0] for link in links)}
            for port in ports.values():
                self._take_down(port, heal)
            return
        for at, link in enumerate(links):
            receiver = fabric.links[link][1]
            table = f"fault{number}-{at}"
            try:
                fabric.open_in(receiver.node, _rule_of(spec, table, receiver.name))
            except OSError as error:
                raise FabricError(f"fault {spec}: {error}") from error
            heal.append(partial(self._remove, table, receiver))

    def _take_down(self, port: Port, heal: list[Callable[[], None]]) -> None:
        """Take a port down, or count one more fault on it; after the last fault it is brought up again."""
        key = (port.node, port.name)
        if key not in self._down:
            self._fabric.set_port(port, up=False)
        self._down[key] = self._down.get(key, 0) + 1

        def undo() -> None:
            self._down[key] -= 1
            if not self._down[key]:
                del self._down[key]
                self._fabric.set_port(port, up=True, down=self._down)

        heal.append(undo)

    def _remove(self, table: str, port: Port) -> None:
        try:
            self._fabric.open_in(port.node, lambda: nft.remove_drop(table))
        except OSError as error:
            raise FabricError(f"fault {table} on {port}: {error}") from error

    def _lossy(self, spec: FaultSpec, links: list[str]) -> tuple[str, ...]:
        """Return the links that lose or change packets; a cable that is down loses both directions."""
        if spec.kind != "down":
            return tuple(links)
        ends = {self._fabric.links[link] for link in links}
        return tuple(link for link, (a, b) in self._fabric.links.items() if (a, b) in ends or (b, a) in ends)

    def _choose(self, fault: int | str | None) -> list[int]:
        if fault is None:
            return list(self._active)
        if isinstance(fault, str) and fault.isdecimal():
            fault = int(fault)
        numbers = [
            number
            for number, active in self._active.items()
            if number == fault
            or (isinstance(fault, str) and str(active.event.spec) == str(parse_fault(fault)))
        ]
        if not numbers:
            raise ValueError(
                f"fault {fault!r}: expected one in force ({', '.join(map(str, self._active)) or 'none is'})"
            )
        return numbers

    def _expire(self, number: int) -> None:
        with self._fabric.lock:
            if number in self._active:
                try:
                    self.clear(number)
                except FabricError:
                    _log.exception("fault %d could not be cleared", number)

    def _stop(self) -> None:
        """Forget all faults in force; they end with the namespaces."""
        with self._fabric.lock:
            for active in self._active.values():
                if active.timer is not None:
                    active.timer.cancel()
            self._active.clear()
            self._down.clear()


def _rule_of(spec: FaultSpec, table: str, device: str) -> Callable[[], None]:
    """Return a function that applies the fault to packets that enter `device`."""
    if spec.kind == "mtu":
        return partial(nft.add_size_drop, table, device, spec.max_bytes)
    if spec.kind == "remark" and spec.dscp is not None:
        return partial(nft.add_change, table, device, classes.dscp_change(spec.dscp, spec.to_dscp))
    only = () if spec.dscp is None else classes.of_dscp(spec.dscp)
    return partial(nft.add_drop, table, device, spec.share, spec.seed, only)


def _undo(heal: list[Callable[[], None]]) -> None:
    """Undo all steps in reverse order, even if a step raises; then raise the first error."""
    first: FabricError | None = None
    for undo in reversed(heal):
        try:
            undo()
        except FabricError as error:
            first = first or error
    if first is not None:
        raise first


def _names(port: Port, text: str) -> bool:
    """Return whether `text` names this port or its node: `leaf1`, `leaf1:swp3`, `h1/eth1`."""
    return text in (port.node, f"{port.node}:{port.name}", f"{port.node}/{port.name}")
