"""Validates the times of `LinkQueues` records, which their schema does not restrict."""

from __future__ import annotations

from schemas import codec
from schemas.records import LinkQueues
from streams.contention.rules import MAX_CLOCK_DIFFERENCE_NS, MAX_WINDOW_NS


def validate_queues(record: LinkQueues, appended_ns: int) -> LinkQueues:
    """Return `record` unchanged. Raise BadRecord if its times do not fit an append at `appended_ns`."""
    start_ns, slot_ns, slots = record["window_start_ns"], record["slot_ns"], record["slots"]
    if abs(start_ns - appended_ns) > MAX_CLOCK_DIFFERENCE_NS:
        raise codec.BadRecord(
            "OUT_OF_RANGE",
            f"LinkQueues.window_start_ns: {start_ns}, expected within an hour of {appended_ns}",
        )
    if not 0 < slot_ns * slots <= MAX_WINDOW_NS:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"LinkQueues: {slots} slots of {slot_ns} ns, expected a window of up to 60 s"
        )
    if not 0 <= record["part"] < record["parts"]:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"LinkQueues.part: {record['part']}, expected below {record['parts']} parts"
        )
    for link in record["links"]:
        if len(link["ce"]) != len(link["ce_slot"]):
            raise codec.BadRecord(
                "OUT_OF_RANGE",
                f"LinkQueues.ce: {link['link']} has {len(link['ce'])} shares for "
                f"{len(link['ce_slot'])} slots",
            )
        depths, numbers = len(link["depth_bytes"]), len(link["slot"])
        if depths != numbers:
            raise codec.BadRecord(
                "OUT_OF_RANGE",
                f"LinkQueues.depth_bytes: {link['link']} has {depths} depths for {numbers} slots",
            )
    return record
