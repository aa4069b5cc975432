"""Selects the ids that log lines carry, so that a decision, its action and its alert can be joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FIELDS: Final = ("decision_id", "alert_id", "subject")
"""Names of the fields. `subject`: the cable, NIC, host or link of an alert and a decision's reason."""


def log_fields(record: Mapping[str, Any] | None) -> dict[str, str]:
    """Return `decision_id`, `alert_id` and `subject`, as far as a record has these fields."""
    if record is None:
        return {}
    fields = {name: record[name] for name in FIELDS if isinstance(record.get(name), str)}
    reason = record.get("reason")
    if isinstance(reason, Mapping) and isinstance(reason.get("subject"), str):
        fields["subject"] = reason["subject"]
    return fields
