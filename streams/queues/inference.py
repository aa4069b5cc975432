"""Infers queues and utilisation of a shard's links from its sources' `PathQueueing`.

The results are `LinkQueues`: for each block of about 10 ms the links with queues, and for each second all
links that probes cross. native/core/queues.c describes the method for depths, and `utilisation.py` the method
for utilisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from native.core.columns import Float64s, Int64s
from native.core.queue_cells import lay_out
from native.core.queues import QueueSolver
from schemas.records import LinkQueues, PathQueueing
from streams.queues.calibration import EVERY, Calibration
from streams.queues.cells import Cells, Delays, WaitingCells, without_own_delay
from streams.queues.link_columns import LinkColumns, LinkState
from streams.queues.marks import marked_shares
from streams.queues.records import QueueRecords, SolvedBlock
from streams.queues.routes import LinkKey, ProbedRoutes
from streams.queues.slot_fold import Fold, next_fold
from streams.queues.utilisation import IdleProbes
from streams.runtime.pipeline_constants import SUB_SLOTS
from streams.runtime.route_table import RouteTable
from streams.runtime.units import NS_PER_S

BLOCK_NS, LONG_BLOCK_NS, MANY_LINKS = 10_000_000, 25_000_000, 1_000
BLOCK_SLOTS: Final = 5
"""A block lasts `BLOCK_NS`. With more than `MANY_LINKS` links it lasts `LONG_BLOCK_NS`, because much of the
work is per block. It has at least `BLOCK_SLOTS` slots: later probes also show a block's last slots."""
GRACE_NS: Final = 150_000_000
"""A source that is this many ns behind the newest one is no longer waited for."""
GONE_NS: Final = 2 * NS_PER_S
UNKNOWN_BPS: Final = 1_000_000_000
"""Assumed rate of a link whose rate is unknown, bit/s."""
SIGMAS: Final = (2.0, 1.2)
"""Standard errors in a bound: for slots with one knot, and with more, whose errors average out."""
LIMIT_SIGMAS: Final = 3.0
"""Standard errors by which a depth may exceed the longest delay of the probes."""
KNOT_PROBES: Final = 0.9
"""Probes over a link per slot that are needed for each knot."""
MAX_KNOTS: Final = 2
BUCKET_SLOTS: Final = BLOCK_SLOTS * SUB_SLOTS
"""Slots of `PathQueueing` in one bucket of waiting cells: as many as in the shortest block."""
MAX_OFFSETS_AHEAD: Final = 10_000
"""Maximum of messages skipped at once. A second record must show a larger gap: one may be wrong."""
MAX_FOLDED_NS: Final = 100_000_000
"""Longest slot into which slots are combined: longer ones save little, and show contention too late."""
SAVE_BLOCKS: Final = 20
"""Number of blocks after which the solver's state is saved, as the start of the next solver."""


def fold_of(probes: float) -> int:
    """Return how many slots to combine into one; `probes`: mean number of probes over a link in a slot."""
    return 1 if probes >= 1 else 2 if probes >= 0.5 else SUB_SLOTS


def knots_of(probes: float) -> int:
    """Return into how many line segments to divide a slot; `probes`: mean number over a link in a slot."""
    return min(MAX_KNOTS, max(1, int(probes / KNOT_PROBES)))


@dataclass(slots=True)
class _Source:
    complete_ns: int = 0
    first_offset: int = -1
    next_offset: int = -1
    unconfirmed_offset: int = -1
    """End of the last record that was too far ahead to accept; the record after it confirms it."""

    def advance(self, record: PathQueueing) -> bool:
        """Note a record of the source; return False to skip it as a repetition or as too far ahead."""
        first, after = record["first_offset"], record["next_offset"]
        if (first, after) != (self.first_offset, self.next_offset):
            if first < self.next_offset:
                return False
            is_far_ahead = 0 <= self.next_offset < after - MAX_OFFSETS_AHEAD
            if is_far_ahead and first != self.unconfirmed_offset:
                self.unconfirmed_offset = after
                return False
            self.first_offset, self.next_offset = first, after
        self.complete_ns = max(self.complete_ns, record["complete_ns"])
        return True


class ShardQueues:
    """Infers the queues of one shard. `rate_of` returns a link's bit/s, 0 if unknown."""

    def __init__(self, shard: str, rate_of: Callable[[str], int]) -> None:
        self.shard = shard
        self.skipped_ns = 0
        """Total length of the blocks that were skipped because inference was late."""
        self._rate_of = rate_of
        self._slot_ns = 0
        self._unconfirmed_slot_ns = 0
        """Slot length of the last record, if it differs from the one in use; else 0."""
        self._sources: dict[str, _Source] = {}
        self._cells = WaitingCells(BUCKET_SLOTS)
        self._next_block = -1
        self._solved_in_ns = 1
        """Length of the blocks that `_next_block` counts, ns."""
        self._pace = Fold()
        self.fold = 1
        """How many slots are combined into one, so that inference keeps up with its probes."""
        self._routes = ProbedRoutes()
        self._built_revision: int | None = None
        """Revision of the routes that `_columns` and `_solver` are built from."""
        self._columns: LinkColumns | None = None
        self._solver: QueueSolver | None = None
        self._calibration = Calibration.none()
        self._limited_to_ns = 0
        """Fabric time at which the last block ended."""
        self._senders: Int64s = np.zeros(0, np.int64)
        """Sender of each route, -1 for round trips."""
        self._bytes_per_ns: Float64s = np.zeros(0)
        """[links] rate of each link, bytes per ns, renewed each second."""
        self._rates_at_s = -1
        self._column_of: Int64s = np.zeros(0, np.int64)
        """[links] column of each link in `_calibration`."""
        self._states: dict[LinkKey, LinkState] = {}
        self._idle_probes = IdleProbes()
        self._records = QueueRecords(shard, rate_of)

    @property
    def next_block_ns(self) -> int:
        """Fabric time at which the next block begins, ns."""
        return self._next_block * self._solved_in_ns

    @property
    def usual_slot_ns(self) -> int:
        """Length of a published slot if no slots are combined, ns."""
        return self._slot_ns * SUB_SLOTS

    @property
    def _unit_ns(self) -> int:
        """Length of the solver's slots, ns: `fold` slots of `PathQueueing` each."""
        return self._slot_ns * self.fold

    @property
    def next_fold(self) -> int:
        """Number of slots that the next blocks will combine into one."""
        return self._pace.slots

    @next_fold.setter
    def next_fold(self, slots: int) -> None:
        if slots != self._pace.slots:
            self._pace = Fold(slots)

    @property
    def unknown_paths(self) -> int:
        """Number of paths without a known route; their rows are skipped."""
        return self._routes.unknown_paths

    def set_flow_rates(self, bps: Mapping[str, float]) -> None:
        """Set the traffic rate of each link, bit/s, as flow reports show it."""
        self._records.flow_bps = bps

    def take(self, record: PathQueueing, paths: RouteTable) -> None:
        """Add a `PathQueueing` record of one of the shard's sources; skip a record that was added before."""
        if not self._follow_slot(record["slot_ns"]):
            return
        source = self._sources.setdefault(record["source"], _Source())
        if not source.advance(record):
            return
        if self._routes.refresh(record, paths):
            self._idle_probes.clear()
            self._cells.clear()
        self._records.synced = self._records.synced and record["synced"]
        route = self._routes.of(record, paths)
        self._count_idle(record, route)
        self._cells.add_record(record, route)

    def _follow_slot(self, slot_ns: int) -> bool:
        """Adopt a changed slot length; return whether a record with this slot length can be used.

        Two consecutive records must show the new length. One alone may be wrong, and short slots are
        expensive.
        """
        if slot_ns == self._slot_ns:
            self._unconfirmed_slot_ns = 0
            return True
        if self._slot_ns and slot_ns != self._unconfirmed_slot_ns:
            self._unconfirmed_slot_ns = slot_ns
            return False
        self._slot_ns, self._unconfirmed_slot_ns = slot_ns, 0
        self._cells.clear()
        self._next_block = -1
        self._built_revision = None
        return True

    def _count_idle(self, record: PathQueueing, route: NDArray[np.int32]) -> None:
        columns = (np.ascontiguousarray(record[name], np.int64) for name in ("singles", "idle", "direction"))
        self._idle_probes.add(record["complete_ns"] // NS_PER_S, len(self._routes.links), route, *columns)

    def _block_ns(self, fold: int) -> int:
        """Return the length of a block if `fold` slots are combined into one, ns.

        The length is a multiple of the block length without combined slots.
        """
        slot = self._slot_ns * SUB_SLOTS
        length_ns = BLOCK_NS if len(self._routes.names) <= MANY_LINKS else LONG_BLOCK_NS
        slots = max(BLOCK_SLOTS, length_ns // slot)
        blocks = -(-BLOCK_SLOTS * fold // slots)
        while blocks * slots % fold:
            blocks += 1
        return blocks * slots * slot

    def _set_block_ns(self) -> None:
        """Adopt the chosen `fold` and the block length that follows from it.

        A new fold waits until a block of its length begins, so that no slot is lost. If the block length
        changes for another reason, continue at the next whole block.
        """
        start_ns, fold = self.next_block_ns, self._pace.slots
        while fold > 1 and fold * self.usual_slot_ns > MAX_FOLDED_NS:
            fold //= 2
        if self._next_block < 0 or start_ns % self._block_ns(fold) == 0:
            self.fold = fold
        block_ns = self._block_ns(self.fold)
        if self._next_block >= 0:
            self._next_block = -(-start_ns // block_ns)
        self._solved_in_ns = block_ns

    def ready(self) -> bool:
        """Return whether the next block can be solved: all active sources published it or time is up."""
        if not self._slot_ns or not self._sources:
            return False
        newest = self._newest_ns
        self._set_block_ns()
        block_ns = self._solved_in_ns
        if self._next_block < 0:
            self._next_block = newest // block_ns if self._cells else -1
            return False
        end = (self._next_block + 1) * block_ns
        return self._complete_ns() >= end or newest - end > GRACE_NS

    @property
    def _newest_ns(self) -> int:
        return max(source.complete_ns for source in self._sources.values())

    def _complete_ns(self) -> int:
        """Return the fabric time up to which all active sources have published, ns."""
        newest = self._newest_ns
        speaking = [s.complete_ns for s in self._sources.values() if newest - s.complete_ns < GONE_NS]
        return min(speaking)

    def skip_late(self, max_late_ns: int) -> int:
        """Skip to the newest complete block if the next one has been complete for longer than `max_late_ns`.

        Return the length of the skipped time, ns. Slow workers must not let old queues pile up.
        """
        late_ns = self._complete_ns() - self.next_block_ns - self._solved_in_ns
        if self._next_block < 0 or late_ns <= max_late_ns:
            return 0
        blocks = late_ns // self._solved_in_ns
        self._next_block += blocks
        self.skipped_ns += blocks * self._solved_in_ns
        return blocks * self._solved_in_ns

    def keep_up(self, spent_ns: int, waited_ns: int = 0) -> None:
        """Decide how many slots to combine from now on, after a block that took `spent_ns`.

        `waited_ns`: age of the newest message that was taken; it shows how long later messages wait.
        """
        end = self.next_block_ns
        backlog_ns = max(0, self._complete_ns() - end) + waited_ns
        self._pace = next_fold(self._pace, end, self._solved_in_ns, backlog_ns, spent_ns)

    def solve(self, solved_ns: int) -> list[LinkQueues]:
        """Solve the `ready` block, which is slow; return its records, and those of a second that it ends."""
        block_ns, slot_ns, fold = self._solved_in_ns, self._unit_ns, self.fold
        newest = self._newest_ns
        if newest - self._next_block * block_ns > 2 * NS_PER_S + block_ns:  # a gap that no source will fill
            self._next_block = (newest - NS_PER_S) // block_ns
        block, self._next_block = self._next_block, self._next_block + 1
        first, slots = block * block_ns // slot_ns, block_ns // slot_ns
        cells, _ = self._cells.take(first * fold, (first + slots) * fold)
        cells = cells.folded(fold)
        self._rebuild()
        if self._solver is None or self._columns is None:
            return []
        columns, names, dscps = self._columns, self._routes.names, self._routes.dscps
        samples = columns.probes_by_link(cells)
        depth_ns, error_ns = self._solve_cells(self._solver, columns, cells, first, slots, samples)
        if self._next_block % SAVE_BLOCKS == 0:
            self._states = columns.states(self._solver, self._routes.keys)
        solved = SolvedBlock(
            block * block_ns,
            (block + 1) * block_ns,
            slot_ns * SUB_SLOTS,
            fold,
            solved_ns,
            depth_ns,
            depth_ns.mean(axis=0)[columns.column] * self._bytes_per_ns,
            depth_ns.max(axis=0)[columns.column] * self._bytes_per_ns,
            error_ns,
            self._bytes_per_ns,
            cells,
            samples,
            marked_shares(cells, columns, (cells.slot - first) // SUB_SLOTS, len(depth_ns)),
        )
        of_block = self._records.of_block(solved, columns, names, dscps)
        return of_block + self._records.of_second(solved, columns, names, dscps, self._idle_probes)

    def _solve_cells(
        self,
        solver: QueueSolver,
        columns: LinkColumns,
        cells: Cells,
        first: int,
        slots: int,
        samples: Int64s,
    ) -> tuple[Float64s, Float64s]:
        """Solve slots [first, first + slots); return depths and the bounds of their errors, ns.

        Depths are [published slots, columns], bounds [columns]. `samples`: [links] number of probes.
        """
        delays = Delays.of(cells, without_own_delay(cells, self._senders, columns.last))
        probes = float(samples.sum()) / (slots * max(1, columns.count))
        fold = fold_of(probes)
        if self.fold > 1:  # as many unknowns and delays as a slot needs
            fold = SUB_SLOTS
            delays = delays.merged(SUB_SLOTS, columns.same)
        knots = knots_of(probes * fold)
        start, observations, back = lay_out(
            delays.slot,
            delays.route,
            delays.at,
            delays.count,
            delays.mean_ns,
            delays.noise_ns,
            first,
            slots,
            fold,
            EVERY,
        )
        is_calibrated = self._calibration.ready
        solved = solver.solve(
            float(self._unit_ns * fold), start, *observations, knots, errors=not is_calibrated
        )
        queue_ns, fine = solved.queue_ns, SUB_SLOTS // fold
        if fine > 1:
            queue_ns = queue_ns.reshape(-1, fine, queue_ns.shape[1]).mean(axis=1)
        calibration, coarse_slot = self._calibration, (delays.slot - first) // SUB_SLOTS
        kind = columns.kind[delays.route]
        limit_ns = self._limit_ns(delays, kind, columns, first, slots)
        if is_calibrated:
            depth_ns, error_ns = calibration.depths(queue_ns, limit_ns)
        else:  # nothing is known yet about the depths' worth
            depth_ns = np.minimum(queue_ns, limit_ns)
            error_ns = SIGMAS[knots > 1] * np.sqrt((solved.sigma_ns**2).mean(axis=0)) + depth_ns.max(axis=0)
        seconds = slots * self._unit_ns / NS_PER_S
        calibration.learn(queue_ns, seconds, kind, delays.count, delays.mean_ns, back, coarse_slot)
        return depth_ns, error_ns

    def _limit_ns(
        self, delays: Delays, kind: NDArray[np.int32], columns: LinkColumns, first: int, slots: int
    ) -> Float64s:
        """Return the largest depths that the probes of slots [first, first + slots) allow, ns.

        The shape is [published slots, columns]. Probes of the following slot count if they have arrived.
        """
        end = first + slots
        after = self._cells.waiting(end * self.fold, (end + SUB_SLOTS) * self.fold).folded(self.fold)
        slot = np.concatenate([delays.slot, after.slot]) - first
        longest_ns = np.concatenate([delays.longest_ns, after.mean_ns])
        noise_ns = np.concatenate([delays.noise_ns, after.noise_ns])
        goes_on = self._limited_to_ns == first * self._unit_ns
        self._limited_to_ns = end * self._unit_ns
        return self._calibration.limit_ns(
            slots // SUB_SLOTS,
            slot // SUB_SLOTS,
            np.concatenate([kind, columns.kind[after.route]]),
            longest_ns + LIMIT_SIGMAS * noise_ns,
            goes_on=goes_on,
        )

    def _rates_bps(self) -> Float64s:
        """Return [links] the rate of each link, bit/s."""
        return np.array([self._rate_of(name) or UNKNOWN_BPS for name in self._routes.names], np.float64)

    def _rebuild(self) -> None:
        """Renew link rates each second; rebuild the solver if links or routes have changed."""
        routes = self._routes
        second, is_built = self.next_block_ns // NS_PER_S, self._built_revision == routes.revision
        if not is_built or second != self._rates_at_s:  # rates may be announced after the routes
            self._rates_at_s = second
            self._bytes_per_ns = self._rates_bps() / 8e9
        if is_built:
            return
        self._built_revision = routes.revision
        if not routes.links:
            self._solver = self._columns = None
            return
        self._senders = np.array(routes.senders, np.int64)
        self._columns = LinkColumns.of(routes.links, len(routes.names))
        rates_bps = 8e9 * self._bytes_per_ns
        self._solver = self._columns.solver(rates_bps)
        self._columns.restore(self._solver, routes.keys, self._states)
        calibration = self._columns.calibration(rates_bps)
        calibration.restore(self._columns.columns_before(self._column_of), self._calibration)
        self._calibration, self._column_of = calibration, self._columns.column
        self._records.set_links(routes.names)
        self._idle_probes.restart()
