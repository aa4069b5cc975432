"""Holds the clock stage, which solves the clocks of each shard from `ClockFits`, with one writer per shard.

A new owner continues from the last published `ClockOffsets` and the fits just before them. Then it reads the
fits of the windows that have not been solved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from schemas.kafka.message import Message
from schemas.kafka.start import tail
from schemas.records import ClockFits, ClockOffsets
from schemas.topics import CLOCK_FITS, CLOCK_OFFSETS, INVENTORY, PROBES
from schemas.unexpected import DATA_ERRORS
from schemas.validation import validate_offsets
from streams.clock.solver import ShardClocks, SolveParameters
from streams.clock.validation import validate_fits
from streams.clock.window_barrier import CompleteWindow, WindowBarrier
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.operator import (
    NEVER_NS,
    Input,
    Moment,
    Operator,
    Output,
    Owner,
    Past,
    Restore,
    Stage,
    Work,
    records_of,
)
from streams.runtime.units import NS_PER_MS

log = logging.getLogger(__name__)

TAIL_RECORDS: Final = 200
"""Number of newest `ClockOffsets` of each partition from which a new owner recovers its shards."""
TAIL_WINDOWS: Final = 8
"""Number of windows up to the last solved one from whose fits a new owner learns the pairs' floors."""


@dataclass(slots=True)
class _Shard:
    clocks: ShardClocks
    barrier: WindowBarrier


class ClockOperator(Operator):
    """Computes the offsets and rates of the clocks in the shards of one partition."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._registry, self._settings = owner.registry, owner.settings.solve
        self._window_ns = owner.settings.window_ms * NS_PER_MS
        self._sources = [f"{PROBES.name}/{number}" for number in range(owner.partition_count)]
        self._past: list[ClockOffsets] = []
        self._past_fits: list[ClockFits] = []
        self._shards: dict[str, _Shard] = {}

    def restore(self, past: Past, tables: FabricTables) -> None:
        """Keep the newest published offsets and fits until each shard's first message, which uses them."""
        self._past = records_of(
            past,
            CLOCK_OFFSETS,
            self._registry,
            lambda record, append_ns: validate_offsets(record, append_ns, self._window_ns)[0],
        )
        self._past_fits = records_of(
            past,
            CLOCK_FITS,
            self._registry,
            lambda record, append_ns: validate_fits(record, append_ns, self._window_ns)[0],
        )

    def _shard(self, name: str, tables: FabricTables) -> _Shard:
        shard = self._shards.get(name)
        if shard is None:
            parameters = SolveParameters(**self._settings.model_dump(exclude={"grace_ms"}))
            clocks = ShardClocks(name, parameters)
            clocks.recover(self._past)
            _learn_floors(clocks, self._past_fits, self._window_ns, tables)
            read = {
                source["source"]: source["first_offset"]
                for record in self._past
                if record["shard"] == name and record["window"] == clocks.last_window
                for source in record["source_ranges"]
            }
            grace_ns = self._settings.grace_ms * NS_PER_MS
            barrier = WindowBarrier(self._sources, grace_ns, clocks.last_window, read)
            shard = self._shards[name] = _Shard(clocks, barrier)
        return shard

    def take_one(self, message: Message, tables: FabricTables) -> None:
        """Add the clock fits of a message to the windows that wait for all sources of their shard."""
        if message.value is None:
            return
        decoded = message.decoded(CLOCK_FITS, self._registry)
        fits, left_out = validate_fits(decoded, message.append_ns, self._window_ns)
        source, window = fits["source"], fits["window"]
        if left_out:
            log.warning("clock: %s of window %d: ignored %d implausible elements", source, window, left_out)
        shard = self._shard(fits["shard"], tables)
        if not shard.barrier.add(fits, message.offset, message.log_ns, message.offset):
            log.info("clock: %s of window %d arrived after its solve", source, window)

    def due_ns(self) -> int:
        """Return the log time at which the next window can be solved, ns; `NEVER_NS` if none waits."""
        due_ns = (shard.barrier.due_ns() for shard in self._shards.values())
        return min((at_ns for at_ns in due_ns if at_ns is not None), default=NEVER_NS)

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output] | Work:
        """Return work that solves the complete windows and publishes their `ClockOffsets`."""
        solves: list[Callable[[], list[ClockOffsets]]] = []
        for shard in self._shards.values():
            for window in shard.barrier.ready(moment.log_ns):
                if window.missing:
                    log.info("clock: window %d without %s", window.window, ", ".join(window.missing))
                solves.append(partial(self._solve, shard.clocks, window, moment, *_clocks_of(tables)))
        if not solves:
            return ()
        return lambda: [
            Output(CLOCK_OFFSETS, f"{record['shard']}/{record['part']}", record)
            for solve in solves
            for record in solve()
        ]

    def _solve(
        self,
        clocks: ShardClocks,
        window: CompleteWindow,
        moment: Moment,
        clock_of: dict[str, str],
        errors_ns: dict[str, int],
    ) -> list[ClockOffsets]:
        try:
            return clocks.solve(
                window.window, self._window_ns, window.fits, clock_of, moment.log_ns, errors_ns
            )
        except DATA_ERRORS as error:
            self.failed.append((clocks.shard, error))
            return []

    def needed_from(self) -> int:
        """Return the offset of the first fits of the windows that have not been solved."""
        tokens = (shard.barrier.first_token() for shard in self._shards.values())
        return min((token for token in tokens if token is not None), default=NEVER_NS)


def _clocks_of(tables: FabricTables) -> tuple[dict[str, str], dict[str, int]]:
    return tables.inventory.clock_of(), tables.inventory.stamp_errors_ns()


def _learn_floors(
    clocks: ShardClocks, past_fits: Iterable[ClockFits], window_ns: int, tables: FabricTables
) -> None:
    """Learn the delay floors of pairs from the fits of windows that were solved before a restart."""
    windows: dict[int, list[ClockFits]] = {}
    for fits in past_fits:
        if fits["shard"] == clocks.shard and fits["window"] <= clocks.last_window:
            windows.setdefault(fits["window"], []).append(fits)
    clock_of = tables.inventory.clock_of()
    for window in sorted(windows)[-TAIL_WINDOWS:]:
        clocks.learn_floors(window, window_ns, windows[window], clock_of)


class ClockStage(Stage):
    """Publishes `ClockOffsets` of each shard from its `ClockFits`, with one writer per shard."""

    name = "clock"
    owner = CLOCK_FITS
    inputs = (Input(CLOCK_FITS),)
    outputs = (CLOCK_OFFSETS,)
    tables = (INVENTORY,)

    def restores(self, tables: FabricTables, partition_count: int) -> Sequence[Restore]:
        """Return the topics that a new owner reads first: the newest offsets, and the fits before them."""
        fits = TAIL_WINDOWS * partition_count
        return Restore(CLOCK_OFFSETS, tail(TAIL_RECORDS)), Restore(CLOCK_FITS, tail(fits))

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> ClockOperator:
        """Return the operator that solves the shards of one partition."""
        return ClockOperator(owner)
