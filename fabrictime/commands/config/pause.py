"""Pauses and resumes all actions, and waits until every actuator confirms.

`fabric.config` gets mode OBSERVE for all hosts. Actuators report their mode on `fabric.actuators`. Actuators
without a confirmation in time are listed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fabrictime.commands.config import live_config
from fabrictime.commands.config.live_config import LiveRecords
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.reader import LogUnavailable, TopicMissing, TopicReader, back
from schemas.limits import Limits
from schemas.records import ActMode, ActuatorConfig, ActuatorState, HostState
from schemas.topics import ACTUATORS

HEARD_S: Final = 30.0
"""Age of an actuator's newest report above which the command does not wait for it, s."""
WAIT_S: Final = 5.0
_CONNECT_S: Final = 5.0


@dataclass(slots=True)
class Heard:
    """The newest states of actuators, from their records in any order. Does no I/O."""

    hosts: dict[str, dict[str, HostState]] = field(default_factory=dict)
    """Actuator to host to the newest row about that host."""
    _at: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, record: ActuatorState) -> None:
        """Process an `ActuatorState` record; ignore it if a newer one of the actuator was processed."""
        name, at = record["actuator"], (record["at_ns"], record["run"])
        if at < self._at.get(name, at):
            return
        if at != self._at.get(name) and record["part"] == 0:
            self.hosts[name] = {}
        self._at[name] = at
        if record["ending"]:
            self.hosts.pop(name, None)
            return
        self.hosts.setdefault(name, {}).update({row["host"]: row for row in record["hosts"]})

    def missing(self, records: Mapping[str, ActuatorConfig], act: bool, reverted: bool) -> list[str]:
        """Return the actuators that have not confirmed these records of `fabric.config`.

        To confirm, all hosts of an actuator must have the records' version, and no host may be in mode ACT.
        With `act`, each host must instead have the mode that the records give. With `reverted`, no host may
        still be undoing actions.
        """
        unconfirmed = []
        for name, rows in sorted(self.hosts.items()):
            for host, row in rows.items():
                limits = Limits.of(records, host)
                late = row["config_version"] < limits.version
                wrong = (row["mode"] == ActMode.ACT) != limits.act if act else row["mode"] == ActMode.ACT
                if late or wrong or (reverted and row["reverting"]):
                    unconfirmed.append(name)
                    break
        return unconfirmed


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a pause or resume: actuators, hosts, missing confirmations, time taken."""

    actuators: int
    hosts: int
    missing: list[str]
    took_ms: float
    """Time from the order to the last confirmation."""
    in_force: int
    """Number of actions that are still in force: moves stay, leases end by themselves."""


def pause(
    live: LiveRecords, *, revert: bool, wait_s: float = WAIT_S, registry: codec.Registry | None = None
) -> Stopped:
    """Stop all actions and await confirmations. `revert`: also undo actions in force. Raises ValueError."""
    records = live_config.paused(live.records, revert=revert, now_ns=time.time_ns())
    return _order(live, records, revert, wait_s, registry, act=False)


def resume(live: LiveRecords, wait_s: float = WAIT_S, registry: codec.Registry | None = None) -> Stopped:
    """Restore the modes before the pause and await confirmations. Raises ValueError without a pause."""
    return _order(live, live_config.resumed(live.records), False, wait_s, registry, act=True)


def _order(
    live: LiveRecords,
    records: list[ActuatorConfig],
    revert: bool,
    wait_s: float,
    registry: codec.Registry | None,
    *,
    act: bool,
) -> Stopped:
    import threading

    heard = Heard()
    failed: list[ValueError] = []

    def send() -> None:
        try:
            live.publish(*records)
        except ValueError as error:
            failed.append(error)

    reader = TopicReader(live.cluster, {ACTUATORS: back(HEARD_S)})
    try:
        # The order goes out at once: finding the actuators meanwhile may take longer.
        began_s = time.monotonic()
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        unavailable: LogUnavailable | None = None
        try:
            reader.connect(_CONNECT_S)
        except TopicMissing:
            pass  # no actuator has ever reported
        except LogUnavailable as error:
            unavailable = error
        sending.join()
        if failed:
            raise failed[0]
        if unavailable is not None:
            raise InputError(f"{unavailable}; the order is given") from None
        caught_up = not reader.behind
        missing: list[str] = []
        while True:
            behind = len(reader.behind)
            for message in reader.poll(0.02) if reader.assigned else ():
                if message.value is not None:
                    _take(heard, message.value, registry)
            caught_up = caught_up or len(reader.behind) < behind
            missing = heard.missing(live.records, act, revert)
            took_s = time.monotonic() - began_s
            if (caught_up and not missing) or took_s > wait_s:
                break
            if not reader.assigned:
                time.sleep(0.02)
    finally:
        reader.close()
    rows = [row for host_rows in heard.hosts.values() for row in host_rows.values()]
    return Stopped(len(heard.hosts), len(rows), missing, took_s * 1e3, sum(row["in_force"] for row in rows))


def _take(heard: Heard, value: bytes, registry: codec.Registry | None) -> None:
    try:
        heard.take(codec.decode(value, ACTUATORS.type, registry))
    except codec.BadRecord:  # an unreadable record confirms nothing
        return
