"""Validation of `LinkEvent` records beyond their schema."""

from __future__ import annotations

from schemas import codec
from schemas.records import LinkEvent
from schemas.validation import MAX_NS

__all__ = ["validate_link_event"]


def validate_link_event(event: LinkEvent) -> LinkEvent:
    """Return a `LinkEvent` unchanged. Raise BadRecord if its times or NICs are impossible."""
    _expect(abs(event["clock_ns"]) <= MAX_NS, "clock_ns", event["clock_ns"], f"at most {MAX_NS} either way")
    nic = event["nic"]
    _expect("/" in nic and ">" not in nic, "nic", nic, "host/device")
    for path in event["paths"]:
        peer = path["peer"]
        _expect("/" in peer and ">" not in peer and peer != nic, "paths.peer", peer, "another NIC")
        ages = {
            "first_lost_age_ns": path["first_lost_age_ns"],
            "last_lost_age_ns": path["last_lost_age_ns"],
            "answered_age_ns": path["answered_age_ns"],
            "arrived_age_ns": path["arrived_age_ns"],
        }
        for name, age_ns in ages.items():
            _expect(-1 <= age_ns <= MAX_NS, f"paths.{name}", age_ns, f"-1 to {MAX_NS}")
        _expect(path["timeout_ns"] <= MAX_NS, "paths.timeout_ns", path["timeout_ns"], f"at most {MAX_NS}")
    return event


def _expect(right: bool, field: str, value: object, expected: str) -> None:
    if not right:
        raise codec.BadRecord("OUT_OF_RANGE", f"LinkEvent.{field}: {value!r}, expected {expected}")
