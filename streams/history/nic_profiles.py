"""Reduces a process's record to one row per NIC: the delay of its queue pairs' data, and its counters.

Rows for single queue pairs would be thousands a second; a row per NIC shows when and where data was slow. The
log keeps the values of single queue pairs for a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from schemas.records import CollectiveBatch, NicCounter, QueuePairDelay

COUNTERS: Final = tuple(name for name in NicCounter.__annotations__ if name != "nic")


def nic_profiles(record: CollectiveBatch) -> list[dict[str, Any]]:
    """Return one row of delays and counters for each NIC of the record, sorted by NIC name."""
    pairs: dict[str, list[QueuePairDelay]] = {}
    for queue_pair in record["queue_pairs"]:
        pairs.setdefault(queue_pair["nic"], []).append(queue_pair)
    counters = {nic_counters["nic"]: nic_counters for nic_counters in record["counters"]}
    return [
        {"nic": nic, **_delays(pairs.get(nic, ())), **_increments(counters.get(nic))}
        for nic in sorted({*pairs, *counters})
    ]


def _delays(pairs: Sequence[QueuePairDelay]) -> dict[str, Any]:
    """Return the mean delay of all data chunks of a NIC, and the tail delays of its slowest queue pair."""
    chunks = sum(pair["count"] for pair in pairs)
    total_ns = sum(pair["count"] * pair["mean_ns"] for pair in pairs)
    return {
        "queue_pairs": len(pairs),
        "chunks": chunks,
        "bytes": sum(pair["bytes"] for pair in pairs),
        "posted": sum(pair["posted"] for pair in pairs),
        "mean_ns": total_ns // chunks if chunks else None,
        "p99_ns": max(pair["p99_ns"] for pair in pairs) if chunks else None,
        "max_ns": max(pair["max_ns"] for pair in pairs) if chunks else None,
    }


def _increments(counter: NicCounter | None) -> dict[str, int | None]:
    return {name: None if counter is None else counter[name] for name in COUNTERS}  # type: ignore[literal-required]
