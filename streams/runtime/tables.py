"""The tables that every worker keeps in memory: the interface, the inventory and the newest clocks.

A `GlobalTable` (the term of Kafka Streams) holds a whole compacted topic. A runner fills it;
this module has no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from native.core import ClockLine
from schemas import codec
from schemas.ids import host_of
from schemas.kafka.message import Message
from schemas.log_time import WindowOrder
from schemas.records import ClockOffsets, ClockSync, Nic
from schemas.simulation_pace import SimulatedTime
from schemas.topics import CLOCK_OFFSETS, INVENTORY, Topic
from schemas.validation import MAX_NS, validate_offsets
from streams.runtime.units import NS_PER_S

log = logging.getLogger(__name__)


FRESH_NS: Final = 10 * NS_PER_S
"""Time since its last window after which a synced clock counts as being in holdover."""


MAX_UNSOLVED_NS: Final = 30 * NS_PER_S
"""Time without a window after which the shard's worker counts as gone, and a simulation waits no longer."""


class GlobalTable:
    """A table that a runner fills from one topic."""

    topic: ClassVar[Topic[Any]]

    def take(
        self,
        key: bytes | None,
        value: bytes | None,
        registry: codec.Registry | None = None,
        append_ns: int = MAX_NS,
    ) -> None:
        """Apply one message with its append time. Raises BadRecord if the message is invalid."""
        self.take_message(Message(append_ns, self.topic.name, 0, 0, key, value), registry)

    def take_message(
        self, message: Message, registry: codec.Registry | None = None, append_ns: int | None = None
    ) -> None:
        """Apply a message. `append_ns`: append time to use in place of the log's. Raises BadRecord."""
        if message.value is not None:
            record = message.decoded(self.topic, registry)
            self.apply(record, message.append_ns if append_ns is None else append_ns)
        elif message.key_bytes is not None:
            self.remove(message.key)

    def apply(self, record: Any, append_ns: int) -> None:
        """Apply a record without changing it: other objects hold it too. Raises BadRecord if invalid."""
        raise NotImplementedError

    def remove(self, key: str) -> None:
        """Remove the values that earlier messages of a key set."""


@dataclass(frozen=True, slots=True)
class Member:
    """A NIC in the inventory, with its shard and clock."""

    nic: str
    host: str
    shard: str
    clock: str
    rail: int | None = None
    rack: str | None = None


class Inventory(GlobalTable):
    """Maps NIC to `Member`; filled from `Nic` records."""

    topic = INVENTORY

    def __init__(self, default_shard: str) -> None:
        self.default_shard = default_shard
        self.members: dict[str, Member] = {}
        self.speeds_bps: dict[str, int] = {}
        self.probe_slots: dict[str, tuple[int, int]] = {}
        """Maps NIC to its probe slot's length (ns) and its probes per slot, if it accepts schedules."""
        self.version = 0
        """Grows when a member or its probe slots change."""
        self.simulated = SimulatedTime()
        self._stamp_error_ns: dict[str, int] = {}

    def apply(self, record: Nic, append_ns: int) -> None:
        """Add or replace the NIC of a record."""
        nic, name = record, record["nic"]
        self.simulated.take(name, nic, append_ns)
        member = Member(name, nic["host"], nic["shard"], nic["clock"], nic["rail"], nic["rack"])
        if self.members.get(name) != member:
            self.members[name] = member
            self.version += 1
        if nic["speed_bps"]:
            self.speeds_bps[name] = nic["speed_bps"]
        else:
            self.speeds_bps.pop(name, None)
        self._stamp_error_ns[name] = nic["stamp_error_ns"]
        accepts_schedules = nic["slot_ns"] and nic["slot_probes"] and nic["probe_port"]
        self._set_probe_slots(name, (nic["slot_ns"], nic["slot_probes"]) if accepts_schedules else None)

    def _set_probe_slots(self, nic: str, slots: tuple[int, int] | None) -> None:
        if self.probe_slots.get(nic) == slots:
            return
        self.version += 1
        if slots is None:
            del self.probe_slots[nic]
        else:
            self.probe_slots[nic] = slots

    def remove(self, key: str) -> None:
        """Remove a NIC from the inventory."""
        self.simulated.take(key, None, MAX_NS)
        if self.members.pop(key, None) is None:
            return
        self._stamp_error_ns.pop(key, None)
        self.speeds_bps.pop(key, None)
        self.probe_slots.pop(key, None)
        self.version += 1

    def member(self, nic: str) -> Member:
        """Return the `Member` of a NIC; an unknown NIC gets the default shard and a clock of its own."""
        member = self.members.get(nic)
        return member if member is not None else Member(nic, host_of(nic), self.default_shard, nic)

    def shards(self) -> list[str]:
        """Return the name of every shard, the default shard first."""
        others = {member.shard for member in self.members.values()} - {self.default_shard}
        return [self.default_shard, *sorted(others)] if self.default_in_use() else sorted(others)

    def default_in_use(self) -> bool:
        """Return whether the default shard has NICs, or the inventory is empty."""
        return not self.members or any(m.shard == self.default_shard for m in self.members.values())

    def clock_of(self) -> dict[str, str]:
        """Return, by NIC, the name of its clock."""
        return {name: member.clock for name, member in self.members.items()}

    def stamp_errors_ns(self) -> dict[str, int]:
        """Return, by clock, the smallest timestamp error that one of its NICs announces, ns."""
        errors_ns: dict[str, int] = {}
        for name, member in self.members.items():
            error_ns = self._stamp_error_ns.get(name, 0)
            errors_ns[member.clock] = min(error_ns, errors_ns.get(member.clock, error_ns))
        return {clock: error_ns for clock, error_ns in errors_ns.items() if error_ns}


@dataclass(slots=True)
class _Clock:
    model: ClockLine
    state: ClockSync
    window: int
    end_log_ns: int
    shard: str


@dataclass(slots=True)
class _Window:
    number: int = -1
    parts: dict[int, ClockOffsets] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all parts of the window have arrived."""
        return bool(self.parts) and len(self.parts) == next(iter(self.parts.values()))["parts"]


class ClockTable(GlobalTable):
    """Maps clock to its newest model, and shard to its newest records; filled from `ClockOffsets`."""

    topic = CLOCK_OFFSETS

    def __init__(self, inventory: Inventory, holdover_s: float, window_ns: int = NS_PER_S) -> None:
        self.log_offset_ns = 0
        """Fabric time minus the log's clock, ns."""
        self._solved_log_ns: int | None = None
        """End of the newest window by the log's clock."""
        self.version = 0
        """Grows with each record."""
        self._window_ns = window_ns
        self._newest_window = -1
        self._order = WindowOrder()
        self._inventory = inventory
        self._holdover_ns = round(holdover_s * 1e9)
        self._clocks: dict[str, _Clock] = {}
        self._shards: dict[str, _Window] = {}
        self._previous: dict[str, _Window] = {}
        self._models: dict[str, ClockLine] = {}
        self._models_version: tuple[int, int] = (-1, -1)

    def apply(self, record: ClockOffsets, append_ns: int) -> None:
        """Apply a record with its append time. Raises BadRecord for values that no solver publishes."""
        record, left_out = validate_offsets(record, append_ns, self._window_ns)
        if left_out:
            log.warning(
                "%s: window %d: ignored %d implausible clocks", self.topic.name, record["window"], left_out
            )
        if self._order.steps_back(record):
            self._forget_later(record)
        self._add_part(record)
        if record["window"] >= self._newest_window:
            self._newest_window = record["window"]
            self.log_offset_ns = record["log_offset_ns"]
            self._solved_log_ns = record["window_end_ns"] - record["log_offset_ns"]
        self._set_models(record)
        self.version += 1

    def _forget_later(self, record: ClockOffsets) -> None:
        """Drop the shard's windows later than this record's: log time stepped back."""
        shard, number = record["shard"], record["window"]
        self._newest_window = min(self._newest_window, number)
        if self._shards.get(shard, _Window()).number > number:
            del self._shards[shard]
            self._previous.pop(shard, None)
        end_log_ns = record["window_end_ns"] - record["log_offset_ns"]
        for clock in self._clocks.values():
            if clock.shard == shard and clock.window > number:
                clock.window, clock.end_log_ns = number - 1, end_log_ns

    def _add_part(self, record: ClockOffsets) -> None:
        shard, number = record["shard"], record["window"]
        window = self._shards.setdefault(shard, _Window())
        if number > window.number:
            if window.complete:
                self._previous[shard] = window
            window = self._shards[shard] = _Window(number)
        if number == window.number:
            window.parts[record["part"]] = record

    def _set_models(self, record: ClockOffsets) -> None:
        end_log_ns = record["window_end_ns"] - record["log_offset_ns"]
        for clock in record["clocks"]:
            model_before = self._clocks.get(clock["clock"])
            if model_before is None or model_before.window <= record["window"]:
                model = ClockLine(
                    clock["at_ns"],
                    clock["offset_ns"],
                    clock["drift_ppb"],
                    clock["bound_ns"],
                    clock["offset_fraction_ns"],
                )
                self._clocks[clock["clock"]] = _Clock(
                    model, clock["state"], record["window"], end_log_ns, record["shard"]
                )

    def lost_ns(self, shard: str, log_ns: int) -> int:
        """Return how far a simulated shard's time fell behind the log's clock since the newest window, ns.

        `log_offset_ns` was measured in that window, so the present fabric time is earlier by the result.
        """
        if self._solved_log_ns is None:
            return 0
        elapsed_ns = min(log_ns - self._solved_log_ns, MAX_UNSOLVED_NS)
        return self._inventory.simulated.lost_ns(shard, elapsed_ns)

    def newest(self, shard: str) -> list[ClockOffsets]:
        """Return all parts of the shard's newest complete window; empty if no window is complete."""
        for window in (self._shards.get(shard), self._previous.get(shard)):
            if window is not None and window.complete:
                return [window.parts[part] for part in sorted(window.parts)]
        return []

    def state_of(self, nic: str, log_now_ns: int) -> ClockSync:
        """Return whether a NIC's clock is SYNCED, in HOLDOVER or UNSYNCED at a log time."""
        model = self._clocks.get(self._inventory.member(nic).clock)
        if model is None or model.state == ClockSync.UNSYNCED:
            return ClockSync.UNSYNCED
        age_ns = log_now_ns - model.end_log_ns
        if age_ns > self._holdover_ns:
            return ClockSync.UNSYNCED
        return (
            ClockSync.SYNCED if model.state == ClockSync.SYNCED and age_ns < FRESH_NS else ClockSync.HOLDOVER
        )

    def models(self) -> Mapping[str, ClockLine]:
        """Return the clock model of each NIC, and of each clock by its own name, for every usable clock."""
        version = (self.version, self._inventory.version)
        if self._models_version != version:
            newest = max((clock.end_log_ns for clock in self._clocks.values()), default=0)
            usable = {
                name: clock.model
                for name, clock in self._clocks.items()
                if clock.state != ClockSync.UNSYNCED and newest - clock.end_log_ns <= self._holdover_ns
            }
            models = dict(usable)
            for nic, member in self._inventory.members.items():
                if member.clock in usable:
                    models[nic] = usable[member.clock]
            self._models, self._models_version = models, version
        return self._models
