"""Tables of renames: what the golden logs call a thing, and what the code calls it now.

The files hold the names of the day when they were recorded. Rename a topic, a field or a symbol in the code,
and add one line here. The keys are always the recorded names, even inside a renamed topic. The tables apply
to recorded inputs and to expected outputs alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

TOPICS: dict[str, str] = {
    "fabric.flaps": "fabric.link-health",
    "fabric.rounds": "fabric.policy-cycles",
    "fabric.turns": "fabric.probe-schedules",
    "fabric.ways": "fabric.flow-routes",
}
"""Recorded topic to topic. Strings such as `fabric.ways/3` inside records follow."""

FIELDS: dict[str, dict[str, str]] = {
    "fabric.config": {
        "held_mode": "paused_mode",
        "most_actions_per_s": "max_actions_per_s",
        "most_moved_share": "max_moved_share",
    },
    "fabric.contention": {"others": "candidates"},
    "fabric.flaps": {"because": "detected_by", "judged_ns": "evaluated_ns", "others": "candidates"},
    "fabric.flows": {"flows.hops": "links"},
    "fabric.inventory": {"turn_ns": "slot_ns", "turn_shots": "slot_probes"},
    "fabric.links": {"paths.held": "delayed", "paths.in_a_row": "loss_streak"},
    "fabric.path-queueing": {"least_ns": "min_ns", "way": "direction"},
    "fabric.paths": {"paths.hops": "links"},
    "fabric.rounds": {
        "first_round": "first_cycle",
        "rounds": "cycles",
        "rounds.held": "suppressed",
        "rounds.held.why": "cause",
    },
    "fabric.ways": {"ways": "routes", "ways.hops": "links", "ways.port": "path"},
}
"""Recorded topic (`*`: all) to recorded path to the field's name. A path names the fields from the record
down, joined by dots; arrays add nothing. `**.name` means a field of that name at any depth."""


ADDED = frozenset(
    {
        "ce",
        "ce_share",
        "ce_slot",
        "classes",
        "detected_by",
        "dscp",
        "ecn",
        "forward_ce",
        "max_packet_bytes",
        "reverse_ce",
    }
)
"""Fields of outputs that the recorded ones lack: they are not compared."""

SIZES = frozenset({"bytes"})
"""Sizes of messages, which grow with their schema."""


def reason_of(text: str) -> dict[str, Any]:
    """Return the `Reason` record for a recorded reason: `SHARD/LINK/OPENED_NS`, `SUBJECT/SEQ` or a name."""
    reason: dict[str, Any] = {"kind": "UNKNOWN", "subject": text, "seq": None, "window_id": None}
    head, _, number = text.rpartition("/")
    if len(number) > 15 and number.isdigit():
        reason |= {"subject": head.partition("/")[2], "window_id": text}
    elif number.isdigit():
        reason |= {"subject": head, "seq": int(number)}
    return reason


def recorded_reason(reason: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded form of a `Reason` record: its kind, and one id for the rest."""
    name = reason["window_id"]
    if name is None:
        name = reason["subject"] if reason["seq"] is None else f"{reason['subject']}/{reason['seq']}"
    return {"kind": reason["kind"], "id": name}


SYMBOLS: dict[str, dict[str, Mapping[str, str] | Callable[[str], Any]]] = {
    "fabric.actions": {"outcome": {"REFLEX": "LOCAL_REPAIR"}},
    "fabric.clock.offsets": {"clocks.event": {"LIAR": "FALSETICKER"}},
    "fabric.config": {
        "thresholds.name": {
            "alert_storm_least_pps": "alert_storm_min_pps",
            "contention_least_kb": "contention_min_kb",
            "contention_most_kb": "contention_max_kb",
            "tell_apart_ms": "disambiguate_ms",
            "up_hold_ms": "up_delay_ms",
        }
    },
    "fabric.rounds": {"rounds.held.reason": reason_of},
}
"""Recorded topic to recorded path to recorded value to value, or a function of the recorded value. It applies
to strings and to the strings of an array: enum symbols, names of thresholds, ids of another form."""

FORMS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "fabric.decisions": {"reason": recorded_reason},
}
"""Recorded topic to recorded path to a function of today's output value that returns its recorded form, where
a field has another type now."""

SPLIT: dict[str, dict[str, str]] = {
    "fabric.clock.fits": {"pairs.offset_ns": "offset_fraction_ns"},
    "fabric.clock.offsets": {
        "clocks.knot_offset_ns": "knot_offset_fraction_ns",
        "clocks.offset_ns": "offset_fraction_ns",
    },
}
"""Recorded topic to recorded path of a float to the field that holds its fraction today; the field itself
holds the whole number. Inputs are split, outputs are compared by their sum."""

PROSE: dict[str, set[str]] = {
    "*": {"**.text", "**.detail", "**.how"},
    "fabric.paths": {"**.contradiction"},
}
"""Free text: the test compares only whether there is any."""

IDS: dict[str, set[str]] = {
    "fabric.alerts": {"alert_id", "grouped"},
    "fabric.contention": {"window_id"},
    "fabric.decisions": {"decision_id", "reason.id"},
}
"""Ids whose form may change: the test compares which of them are equal."""

IGNORED: dict[str, set[str]] = {}
"""Fields that differ from run to run."""
