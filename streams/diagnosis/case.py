"""Holds a case: one job in one interval, with all measures that explanations use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import numpy as np

from schemas.records import ContentionWindow, Verdict
from streams.diagnosis.job.arrivals import Floats
from streams.diagnosis.job.columns import IS_MESSAGE, Op
from streams.diagnosis.job.ranks import Rank, Ranks, ranks_of
from streams.diagnosis.job.ras_history import RasWait
from streams.diagnosis.job.view import Columns, Interval, JobView
from streams.diagnosis.job.work import Work, work_of
from streams.diagnosis.network.delay_windows import Probes, probes_of
from streams.diagnosis.network.traffic import NicPair, Traffic, traffic_of
from streams.diagnosis.network.view import NetworkView
from streams.diagnosis.rules import DiagnosisRules
from streams.runtime.units import NS_PER_S

MIN_OPERATIONS: Final = 20
"""Smallest mean number of operations of a rank in an interval that give a rate."""
MIN_SINCE_NS: Final = 2 * NS_PER_S
"""Shortest time over which a loss is measured: some iterations, so that a single long one has little
weight."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """A pair that is slower than comparable pairs, or than its baseline; see `outliers.find_outliers`."""

    pair: NicPair
    value_ns: float
    like_ns: float
    compared_with: str
    """What the pair was compared with: `others` or `before`."""

    @property
    def times(self) -> float:
        """Factor by which the pair is slower than comparable pairs or its baseline."""
        return self.value_ns / max(self.like_ns, 1.0)

    @property
    def lost(self) -> float:
        """Share of the pair's time that its slowness cost, 0 to 1."""
        return max(0.0, 1 - 1 / max(self.times, 1.0))


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """The job's load on a link between leaf and spine; see `link_loads.link_loads`."""

    switch: str
    """The leaf switch at one end of the link."""
    link: str
    is_down: bool
    """Whether the link leads from a spine to the leaf; otherwise it is an uplink."""
    pairs: float
    """Number of NIC pairs that cross the link; of a pair with several flows, only their share counts."""
    times: float
    """The link's traffic divided by the mean of comparable links."""
    used: int
    """Number of comparable links that flows of the job cross."""
    available: int
    flows: int
    """Number of the job's flows that cross spines."""

    @property
    def place(self) -> str:
        """Name of the group of comparable links, as text."""
        return f"links from spines to {self.switch}" if self.is_down else f"uplinks of {self.switch}"


@dataclass(slots=True)
class Stuck:
    """The operation for which all other operations wait; see `stuck.find_stuck`."""

    communicator: int
    seq: int
    function: str
    since_ns: int
    """Time at which the last of the ranks that began the operation did so."""
    began: list[Rank]
    missing: list[Rank]
    """Ranks that did not begin the operation."""
    absent: list[int]
    """Ranks of the communicator whose process is not known."""
    hangs: bool
    """Whether the operation has run for so long that it must hang."""
    stalls: bool
    """Whether the operation has run for so long that something is wrong."""
    usual_ns: float
    """Usual time that such an operation moves data while the job is fast, ns; 0 if unknown."""
    is_circle: bool = False
    is_collective: bool = True
    """Whether it is a collective; otherwise a message."""
    waiting: set[int] = field(default_factory=set)
    """Numbers of all ranks that wait in an operation."""


@dataclass(slots=True)
class Lateness:
    """Share of the job's time that the lateness of each rank cost all ranks; arrays by rank position."""

    total: Floats
    launch: Floats
    """Part of it between a rank's call and the begin of its operation."""
    own: Floats
    """Part of it that the rank spent outside of operations."""
    unknown: Floats
    """Part of it with unknown cause: no earlier operation of the rank is published."""
    count: Floats
    """Number of operations in which the rank was certainly the last."""
    late_ns: Floats
    """Mean lateness of the rank in these operations, ns."""


@dataclass
class Case:
    """A job and its measures in one interval of fabric time."""

    job: JobView
    network: NetworkView
    begin_ns: int
    end_ns: int
    rules: DiagnosisRules
    ranks: Ranks
    columns: Columns
    work: Work
    traffic: Traffic
    members: list[Rank]
    """Ranks sorted by number, as in arrays with one element per rank."""
    stuck: Stuck | None = None
    ras: RasWait | None = None
    """Communicators that make no progress by the reports of RAS services."""
    outliers: list[Outlier] = field(default_factory=list)
    """Pairs that are slower than comparable ones, the slowest first."""
    loads: list[LinkLoad] = field(default_factory=list)
    """Links between leaf and spines; first the one whose traffic is highest in relation to comparable
    links."""
    causes: list[tuple[Verdict, str, int]] = field(default_factory=list)
    """Verdict, subject and begin of each cause of lost time; an unknown begin is the interval's begin."""
    probes_known: dict[tuple[str, str], Probes | None] = field(default_factory=dict)

    # ------------------------------------------------------------------------------------------ the job

    @property
    def length_ns(self) -> float:
        """Length of the interval, ns."""
        return float(self.end_ns - self.begin_ns)

    @property
    def iteration_ns(self) -> float | None:
        """Mean length of the job's iterations, ns; None if no iterations were found."""
        return None if self.work.iterations is None else self.work.iterations.length_ns

    @cached_property
    def expected_iteration_ns(self) -> float | None:
        """Baseline length of the job's iterations, ns: their length while the job is fast."""
        return self.job.baselines.value(("iteration", *self.work.iteration_key))

    @cached_property
    def ratio(self) -> float | None:
        """Length of the job's iterations, else its time per operation, divided by the baseline; else None."""
        actual, baseline = self.iteration_ns, self.expected_iteration_ns
        if actual is None or baseline is None:
            actual, baseline = self.work.pace_ns, self.job.baselines.value(("pace", self.ranks.total))
        return actual / baseline if actual is not None and baseline else None

    @cached_property
    def operation_ns(self) -> float | None:
        """Mean time of the ranks per operation, ns; None after too few operations."""
        times = self.work.times
        count, observed_ns = float(times.operations.sum()), float(times.observed[times.operations > 0].sum())
        return observed_ns / count if count >= MIN_OPERATIONS * len(self.members) and observed_ns else None

    @cached_property
    def own_ns(self) -> Floats | None:
        """Mean time of each rank outside of operations, ns per operation;

        None if unknown or without messages.
        """
        times, has_messages = self.work.times, IS_MESSAGE[self.work.rows[:, Op.FUNCTION]].any()
        is_known = has_messages and bool((times.operations >= MIN_OPERATIONS).all())
        return times.compute / times.operations if is_known else None

    @property
    def coarse_ratio(self) -> float | None:
        """`ratio`, else the time per operation divided by its baseline; None if both are unknown."""
        baseline_ns = self.job.baselines.value(("operation", self.ranks.total))
        has_none = self.ratio is None and self.operation_ns is not None and baseline_ns
        return (self.operation_ns or 0.0) / (baseline_ns or 1.0) if has_none else self.ratio

    @property
    def loss_share(self) -> float:
        """Share of the job's time, 0 to 1, lost in comparison with its baseline; 0 without a baseline."""
        return 1 - 1 / max(self.coarse_ratio or 1.0, 1.0)

    @property
    def is_slow(self) -> bool:
        """Whether the job is slower than its baseline."""
        return (self.coarse_ratio or 0.0) >= self.rules.slow_ratio

    def share_of(self, sums: Floats) -> float:
        """Return the mean share of the ranks' observed time that `sums` take; 0 if no time was observed."""
        observed = self.work.times.observed
        has_time = observed > 0
        return float((sums[has_time] / observed[has_time]).clip(0, 1).mean()) if has_time.any() else 0.0

    @cached_property
    def network_share(self) -> float:
        """Share of the job's time, 0 to 1, in which it moved data."""
        return self._share_of_rows(self.work.critical)

    @cached_property
    def wait_share(self) -> float:
        """Share of the job's time, 0 to 1, in which ranks waited for other ranks."""
        return self.share_of(self.work.times.peer_late)

    @cached_property
    def operation_bytes(self) -> float | None:
        """Mean bytes of an operation; None if no operation with bytes is known."""
        count = float(self.work.times.operations.sum())
        total = float(self.work.times.bytes.sum())
        return total / count if count and total else None

    @cached_property
    def bytes_ratio(self) -> float:
        """Mean bytes of an operation divided by the baseline; 1 if either is unknown."""
        baseline = self.job.baselines.value(("bytes", self.ranks.total))
        return self.operation_bytes / baseline if baseline and self.operation_bytes else 1.0

    # ------------------------------------------------------------------------------------------ excess

    @cached_property
    def expected_network(self) -> Floats:
        """Baseline time of moving data, ns, one element per kind of operation; NaN if unknown."""
        baseline = [self.job.baselines.value(("network", *kind)) for kind in self.work.kinds]
        return np.array([np.nan if ns is None else ns for ns in baseline], np.float64)

    @cached_property
    def excess_rows(self) -> Floats:
        """Time by which moving data took longer than its baseline, by row, ns; NaN if unknown.

        The excess of the whole operation, which includes the slowest rank's own time, counts if all its ranks
        are seen and their waiting is measured. Otherwise the greater of the whole operation's and the rank's
        excess counts. The greater one also counts if the baseline of whole operations is the younger one:
        earlier operations were too short for the clocks.
        """
        work = self.work
        if not len(work.kinds):
            return np.empty(0)
        baseline = [self.job.baselines.value(("moving", *kind)) for kind in work.kinds]
        expected = np.array([np.nan if ns is None else ns for ns in baseline], np.float64)
        own = np.maximum(work.critical - self.expected_network[work.kind], 0.0)
        operation_excess = np.maximum(work.moving.time - work.moving.error - expected[work.kind], 0.0)
        younger = [
            self.job.baselines.is_younger(("moving", *kind), ("network", *kind)) for kind in work.kinds
        ]
        is_sure = ~np.isnan(operation_excess) & ~np.array(younger, bool)[work.kind]
        is_sure &= work.rows[:, Op.NETWORK_LATE] >= 0
        return np.where(is_sure, operation_excess, np.fmax(own, operation_excess))

    @cached_property
    def network_excess(self) -> float | None:
        """Share of the job's time by which moving data took longer than its baseline; None if unknown."""
        if not len(self.excess_rows) or np.isnan(self.excess_rows).all():
            return None
        return self._share_of_rows(self.excess_rows)

    def _share_of_rows(self, values: Floats) -> float:
        """Return the mean share of the ranks' observed time that `values`, ns by row, take."""
        count = len(self.members)
        sums = np.bincount(self.work.rank, np.nan_to_num(values) * self.work.weight, count)[:count]
        return self.share_of(sums.astype(np.float64))

    def excess_within(self, begin_ns: int, end_ns: int) -> float:
        """Return the share, 0 to 1, of the excess that lies in operations which ran between two times."""
        total = self.network_excess
        if not total:
            return 0.0
        begin, end = float(begin_ns - self.begin_ns), float(end_ns - self.begin_ns)
        inside = (self.work.begin < end) & (self.work.end > begin)
        return self._share_of_rows(np.where(inside, self.excess_rows, 0.0)) / total

    @cached_property
    def lateness(self) -> Lateness:
        """Share of the job's time lost to late arrivals, by rank; see `Lateness`."""
        work, count = self.work, len(self.members)
        arrivals, groups = work.arrivals, work.groups
        lateness = Lateness(*(np.zeros(count) for _ in range(6)))
        clear = np.flatnonzero(arrivals.group_clear)
        if not len(clear):
            return lateness
        group = groups.group
        row_of_last = work.grouped[arrivals.group_last]
        owner = work.rank[row_of_last]
        observed = max(float(work.times.observed.sum()), 1.0)
        rows = work.grouped
        lost = np.nan_to_num(np.fmin(work.wait, work.arrival_wait)[rows]) * work.weight[rows] / observed
        by_group = np.bincount(group, lost, len(groups.starts)).astype(np.float64)
        by_group[~arrivals.group_clear] = 0.0
        launch = by_group * np.nan_to_num(arrivals.group_launch_share)
        rest = by_group - launch
        has_share = ~np.isnan(arrivals.group_own_share)
        own = np.where(has_share, np.minimum(by_group * np.nan_to_num(arrivals.group_own_share), rest), 0.0)
        unknown = np.where(has_share, 0.0, rest)

        def by_rank(values: Floats) -> Floats:
            return np.bincount(owner, values, count)[:count].astype(np.float64)

        counts = by_rank(arrivals.group_clear.astype(np.float64))
        late = by_rank(np.where(arrivals.group_clear, arrivals.group_late_ns, 0.0))
        return Lateness(
            by_rank(by_group),
            by_rank(launch),
            by_rank(own),
            by_rank(unknown),
            counts,
            late / np.maximum(counts, 1.0),
        )

    # ------------------------------------------------------------------------------------------ network

    @cached_property
    def windows(self) -> list[ContentionWindow]:
        """Contention windows of the interval that name the job, or lie on a link that the job crosses."""
        links = self.traffic.links.keys() | self.traffic.possible.keys()
        window_by_id = {
            window["window_id"]: window
            for window in (
                *self.network.contention(links, self.begin_ns, self.end_ns),
                *self.network.contention_of(self.job.job, self.begin_ns, self.end_ns),
            )
        }
        return [window_by_id[name] for name in sorted(window_by_id)]

    def pair_loss(self, slow: Outlier) -> float:
        """Return the share of the job's time that a slow pair costs.

        The share is the excess over the job's baseline, else the part of moving data that the slowest pair
        determines. For messages, it is the sum of their excess, at most the share that the job loses.
        """
        if slow.pair.source == "operation":
            excess_ns = slow.pair.count * (slow.value_ns - slow.like_ns)
            return min(self.loss_share, excess_ns / self.length_ns)
        if slow.compared_with == "before" and self.network_excess is not None:
            return self.network_excess
        estimate = self.network_share * slow.lost
        if self.network_excess is None or not self.has_clean_baseline(self.begin_ns):
            return estimate
        return estimate if self.was_slow(slow) else self.network_excess

    def was_slow(self, slow: Outlier) -> bool:
        """Return whether a pair's baseline is at least 0.7 times its present time: it was always slow."""
        baseline_ns = slow.pair.baseline_ns(self.job.baselines)
        return baseline_ns is not None and baseline_ns >= 0.7 * (slow.pair.data_ns or 0.0)

    def probes(self, pair: NicPair) -> Probes | None:
        """Return the delays of probes between a pair's NICs; None if no probes were sent."""
        if pair.key not in self.probes_known:
            windows = partial(self.network.delays, begin_ns=self.begin_ns, end_ns=self.end_ns)
            self.probes_known[pair.key] = probes_of(windows, pair.key)
        return self.probes_known[pair.key]

    def gpu_wait_of(self, nic: str) -> float | None:
        """Return the share of operations' time for which a NIC's ranks wait for their GPU; None if unknown.

        The share includes flushing. A share below one hundredth counts as 0.
        """
        places = [at for at, rank in enumerate(self.members) if nic in rank.nics]
        rows = np.isin(self.work.rank, places)
        has_times = rows & (self.work.rows[:, Op.GPU_LATE] >= 0) & (self.work.rows[:, Op.FLUSH] >= 0)
        if not has_times.any():
            return None
        times = self.work.times
        busy = float(times.busy[places].sum())
        waits = float((times.gpu_late + times.flush)[places].sum())
        return waits / busy if waits >= 0.01 * busy else 0.0

    def numbers_at(self, nic: str) -> list[int]:
        """Return the numbers of the ranks that use a NIC, sorted."""
        return sorted(rank.number for rank in self.members if nic in rank.nics)

    def began(self, verdict: Verdict, subject: str, since_ns: int | None) -> int | None:
        """Return the begin, ns, of a cause with evidence since `since_ns`, else None."""
        return None if since_ns is None else self.job.causes.began(verdict, subject, since_ns)

    def has_clean_baseline(self, begin_ns: int) -> bool:
        """Return whether the job's baseline was learned before `begin_ns`, when a fault began."""
        return sum(interval.end_ns <= begin_ns for interval in self.job.history) >= 3

    def network_loss(self, begin_ns: int | None, end_ns: int, estimate: float) -> float:
        """Return the share of the job's time that a network fault between two times explains.

        The share is the part of the excess over the job's baseline that coincides with the fault; all of the
        excess if the fault's begin is unknown (None). If the fault is as old as the job's records, no
        baseline exists, and `estimate` is returned.
        """
        excess = self.network_excess
        if begin_ns is None:
            clean = self.has_clean_baseline(self.begin_ns)
            return excess if clean and excess is not None else max(estimate, excess or 0.0)
        if self.was_fast_during(begin_ns):
            return 0.0
        if excess is None or not self.has_clean_baseline(begin_ns):
            return max(estimate, excess or 0.0)
        slack_ns = int(self.rules.coincide_s * NS_PER_S)
        inside = self.excess_within(begin_ns - NS_PER_S, min(end_ns, self.end_ns) + slack_ns)
        return excess * inside * (0.0 if self.was_slow_before(begin_ns) else 1.0)

    def share_since(self, loss: float, since_ns: int | None) -> float:
        """Return a loss as a share of the time since its cause began, or of `MIN_SINCE_NS` if that is longer.

        A new fault costs only a small share of the whole interval, like a mild fault that lasts.
        """
        if since_ns is None or not self.has_clean_baseline(since_ns):
            return loss
        begin_ns = max(since_ns - NS_PER_S, self.begin_ns)
        return loss * self.length_ns / max(self.end_ns - begin_ns, min(MIN_SINCE_NS, self.length_ns))

    @cached_property
    def usual_pairs(self) -> float | None:
        """Largest number of the job's pairs on one link while the job was fast; None if not known.

        Pairs are counted at an interval's end. If the count changes within a fast interval, the smallest
        count is taken.
        """
        history = list(self.job.history)
        fewest_pairs: list[float] = []
        for at, interval in enumerate(history):
            if interval.pairs is None or not is_fast(interval):
                continue
            fewest = interval.pairs
            while at and history[at - 1].end_ns > interval.begin_ns:
                at -= 1
                fewest = min(fewest, history[at].pairs or fewest)
            fewest_pairs.append(fewest)
        return max(fewest_pairs, default=None)

    def was_fast_during(self, begin_ns: int) -> bool:
        """Return whether the job was fast during a fault that had begun long before.

        The job was fast if it met a baseline from before the fault; a baseline from during the fault proves
        nothing.
        """
        old = [
            interval for interval in self._before(self.begin_ns) if interval.begin_ns > begin_ns + NS_PER_S
        ]
        fast = [interval for interval in old if is_fast(interval)]
        is_old = begin_ns < self.begin_ns - int(self.rules.coincide_s * NS_PER_S)
        return is_old and len(fast) >= 3 and self.has_clean_baseline(begin_ns)

    def was_slow_before(self, begin_ns: int) -> bool:
        """Return whether the job lost about as much time just before a fault began, also to the network."""
        recent = [interval for interval in self._before(begin_ns) if interval.network_excess is not None][-2:]
        excess, loss = 0.7 * (self.network_excess or 0.0), 0.7 * self.loss_share
        return len(recent) == 2 and all(
            (interval.network_excess or 0.0) >= excess and interval.loss_share >= loss for interval in recent
        )

    def _before(self, at_ns: int) -> list[Interval]:
        return [interval for interval in self.job.history if interval.end_ns <= at_ns]


def is_fast(interval: Interval) -> bool:
    """Return whether the job was as fast in an interval as its baseline, within 5 %."""
    ratio_ok = interval.ratio is not None and interval.ratio < 1.05
    return ratio_ok and (interval.network_excess is None or interval.network_excess < 0.03)


def case_of(job: JobView, network: NetworkView, begin_ns: int, end_ns: int, rules: DiagnosisRules) -> Case:
    """Return the case of a job: its measures between `begin_ns` and `end_ns`, fabric time."""
    ranks = ranks_of(job, begin_ns, end_ns)
    columns = job.columns(begin_ns, end_ns)
    work = work_of(job, ranks, columns, begin_ns, end_ns)
    traffic = traffic_of(ranks, work, columns.transfers, columns.queue_pairs, job.job, network)
    return Case(job, network, begin_ns, end_ns, rules, ranks, columns, work, traffic, list(ranks))
