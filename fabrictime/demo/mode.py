"""Sets the mode of the tour, ACT with pacing allowed or OBSERVE, and restores the former settings.

The functions that build records do no I/O. `tour_mode` publishes to `fabric.config` without waiting: the
actuators follow within a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Final

from fabrictime.commands.config import live_config
from fabrictime.commands.config.live_config import LiveRecords
from schemas import codec
from schemas.kafka.settings import KafkaSettings
from schemas.limits import EVERYONE, Limits
from schemas.records import ActuatorConfig, FlowAction

PACING: Final = frozenset({FlowAction.PACE, FlowAction.UNPACE})
"""Actions that a fleet only takes if it is allowed to; the tour allows them while it runs."""


def tour_records(records: Mapping[str, ActuatorConfig], *, acting: bool, now_ns: int) -> list[ActuatorConfig]:
    """Return the records that set the mode of the tour; none if the mode is already set."""
    if not acting:
        return live_config.paused(records, revert=False, now_ns=now_ns)
    record = records.get(EVERYONE)
    limits = Limits.of(records, EVERYONE)
    allowed = sorted(limits.allowed | PACING)
    if limits.act and set(allowed) == limits.allowed:
        return []
    return [live_config.changed(record, EVERYONE, ["mode=ACT", f"allowed_actions={','.join(allowed)}"])]


def restored(
    before: Mapping[str, ActuatorConfig],
    during: Mapping[str, ActuatorConfig],
    now: Mapping[str, ActuatorConfig],
) -> list[ActuatorConfig]:
    """Return the records that undo the changes of the tour.

    A setting that a user changed during the tour, for example by `fabrictime pause`, is not restored.
    """
    records = []
    for host, tour in during.items():
        current = now.get(host)
        if current is None:
            continue
        old = before.get(host, live_config.PLAIN)
        new = live_config.successor(current, host)
        if (current["mode"], current["paused_mode"]) == (tour["mode"], tour["paused_mode"]):
            new["mode"], new["paused_mode"] = old["mode"], old["paused_mode"]
        if current["allowed_actions"] == tour["allowed_actions"]:
            new["allowed_actions"] = list(old["allowed_actions"])
        if live_config.differences(new, current) or new["paused_mode"] != current["paused_mode"]:
            records.append(new)
    return records


@contextlib.contextmanager
def tour_mode(
    cluster: KafkaSettings, registry: codec.Registry | None, *, acting: bool, now_ns: int
) -> Iterator[None]:
    """Set the mode of the tour for the block, and restore the former settings after it. Raises ValueError."""
    live = LiveRecords(cluster, registry)
    before = dict(live.records)
    during = {record["host"]: record for record in tour_records(before, acting=acting, now_ns=now_ns)}
    if during:
        live.publish(*during.values())
    try:
        yield
    finally:
        if during:
            present = LiveRecords(cluster, registry)
            undone = restored(before, during, present.records)
            if undone:
                present.publish(*undone)
