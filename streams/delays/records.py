"""Converts closed windows to records: `ClockFits` per shard and `PathDelays` per NIC.

Records have at most `MAX_ELEMENTS` elements per part; path delays are encoded to Avro directly. All values
except `lag_messages` follow from the messages alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, cast

from native.core import ClockLine, PairFits, encode_path_delays
from native.core import NicWindow as WindowSamples
from schemas.records import ClockFits, ClockSync, NicWindow, PairFit
from schemas.topics import MAX_ELEMENTS
from streams.delays.counters import JumpLimit
from streams.delays.source_partition import ClosedWindow, NicSamples
from streams.runtime.tables import Member

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

STATES: Final = tuple(ClockSync)
"""Symbols of `ClockSync` in the order in which they are encoded."""


class _Counts(TypedDict):
    """Fields of `ClockFits` with a window's numbers of messages, batches and samples."""

    lag_messages: int
    messages: int
    bytes: int
    samples: int
    late: int
    rejected: int


NO_COUNTS: Final[_Counts] = {
    "lag_messages": -1,
    "messages": 0,
    "bytes": 0,
    "samples": 0,
    "late": 0,
    "rejected": 0,
}
"""The counts in all parts of a window except the first."""


@dataclass(slots=True)
class Fitted:
    """A closed window with the fits of its pairs, as one `PairFits` per prober."""

    window: ClosedWindow
    fits: dict[str, PairFits]


def fit_window(window: ClosedWindow) -> Fitted:
    """Fit all pairs of a closed window. The fit is slow, but shares no state, so it may run in a thread."""
    return Fitted(window, {name: nic.samples.fit() for name, nic in sorted(window.nics.items())})


def clock_fits(
    fitted: Fitted,
    members: Mapping[str, Member],
    shards: Sequence[str],
    window_ns: int,
    limit: JumpLimit,
    lag_messages: int = -1,
) -> list[ClockFits]:
    """Return the window's `ClockFits`, in parts: at least one for each of `shards`.

    `members` contains every prober of the window, `shards` every shard that may wait for this source. Only
    part 0 of a shard has counts, so that their sum over parts is right. Rejected messages without a NIC count
    in the first shard.
    """
    by_shard: dict[str, list[str]] = {shard: [] for shard in shards}
    for nic in fitted.fits:
        by_shard.setdefault(members[nic].shard, []).append(nic)
    records: list[ClockFits] = []
    for index, (shard, nics) in enumerate(by_shard.items()):
        entries = [_nic_window(fitted.window.nics[nic], members[nic].clock, limit) for nic in nics]
        pairs = [pair for nic in nics for pair in cast("list[PairFit]", fitted.fits[nic].records(nic))]
        counts = _window_counts(fitted.window, lag_messages, entries, first_shard=index == 0)
        parts = max(1, -(-len(entries) // MAX_ELEMENTS), -(-len(pairs) // MAX_ELEMENTS))
        for part in range(parts):
            cut = slice(part * MAX_ELEMENTS, (part + 1) * MAX_ELEMENTS)
            records.append(
                {
                    "shard": shard,
                    "source": fitted.window.source,
                    "window": fitted.window.cut.window,
                    "window_start_ns": fitted.window.cut.window * window_ns,
                    "window_end_ns": (fitted.window.cut.window + 1) * window_ns,
                    "part": part,
                    "parts": parts,
                    "first_offset": fitted.window.cut.first_offset,
                    "next_offset": fitted.window.cut.next_offset,
                    **(counts if part == 0 else NO_COUNTS),
                    "nics": entries[cut],
                    "pairs": pairs[cut],
                }
            )
    return records


def _window_counts(
    window: ClosedWindow, lag_messages: int, entries: Sequence[NicWindow], *, first_shard: bool
) -> _Counts:
    """Return the counts for part 0 of a shard; count messages only if `first_shard`."""
    return {
        "lag_messages": lag_messages,
        "messages": window.cut.messages if first_shard else 0,
        "bytes": window.bytes if first_shard else 0,
        "samples": sum(entry["samples"] for entry in entries),
        "late": window.cut.late if first_shard else 0,
        "rejected": window.rejected if first_shard else 0,
    }


def _nic_window(nic: NicSamples, clock: str, limit: JumpLimit) -> NicWindow:
    counters = nic.counters
    state = counters.state
    assert state is not None  # noqa: S101  an entry is made with its first batch
    return {
        "nic": counters.nic,
        "clock": clock,
        "run": state.run,
        "batches": counters.batches,
        "samples": nic.samples.samples,
        "lost": counters.lost,
        "lost_batches": min(counters.lost_batches, MAX_INT),
        "restarts": counters.restarts,
        "clock_jump_ns": max(-MAX_LONG, min(counters.clock_jump_ns(limit), MAX_LONG)),
        "clock_ns": state.clock_ns,
        "system_ns": state.system_ns,
        "append_ns": counters.append_ns,
        "last_batch": state.batch,
    }


def path_delays(
    samples: WindowSamples,
    member: Member,
    window: int,
    window_ns: int,
    models: Mapping[str, ClockLine],
    state: ClockSync,
    log_offset_ns: int,
) -> list[bytes]:
    """Return one NIC's `PathDelays` of a window as Avro bodies, in parts; empty if the NIC sent nothing.

    `models`: newest clock models by NIC; `state`: state of the prober's own clock; `log_offset_ns`: fabric
    time minus log append time. May run in a thread.
    """
    columns = samples.delays(None if state == ClockSync.UNSYNCED else models.get(member.nic), models)
    rows = len(columns.peers)
    parts = -(-rows // MAX_ELEMENTS)
    start_ns = window * window_ns + log_offset_ns
    return [
        encode_path_delays(
            member.nic,
            member.shard,
            window,
            part,
            parts,
            start_ns,
            start_ns + window_ns,
            STATES.index(state),
            columns,
            part * MAX_ELEMENTS,
            min((part + 1) * MAX_ELEMENTS, rows),
        )
        for part in range(parts)
    ]
