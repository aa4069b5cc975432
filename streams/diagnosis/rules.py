"""Holds rules of the diagnosis of jobs: thresholds and bounds, each with unit and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams.runtime.units import NS_PER_S, NS_PER_US

# --------------------------------------------------------------------------------------------- memory

KEEP_NS: Final = 60 * NS_PER_S
"""Append time for which a view keeps records: long enough for a few intervals and a slow start."""
MAX_OPERATIONS: Final = 400_000
"""Largest number of single operations that a job's view keeps: 60 MB."""
MAX_SUMMARIES: Final = 400_000
"""Largest number of summaries that a job's view keeps."""
MAX_RECORDS: Final = 100_000
"""Largest number of a job's records, and of decisions, alerts and audit results each, that a view keeps."""
MAX_BASELINES: Final = 8_192
"""Largest number of kinds of operations and of queue pairs in one job that have their own baseline."""
BASELINE_INTERVALS: Final = 5
"""Number of consecutive intervals whose median counts as sustained."""
BASELINE_MIN: Final = 3
"""Number of intervals after which a first baseline exists."""

# --------------------------------------------------------------------------------------------- times

LATE_NS: Final = 60 * NS_PER_S
"""Delay of a record's append time after its interval from which on it no longer describes the present."""
CAUSE_GAP_NS: Final = 10 * NS_PER_S
"""Longest pause in the evidence for a cause across which it is still the same cause."""
CLOCK_FLOOR_NS: Final = 5 * NS_PER_US
"""Differences of arrival below which an order proves nothing: the calls themselves take as long."""
NEVER_NS: Final = -(2**62)
"""The end of an operation that still runs."""

# --------------------------------------------------------------------------------------------- iterations

MAX_PERIOD: Final = 512
"""Longest iteration that is searched for, in operations."""
PERIOD_MATCH: Final = 0.95
"""Share of operations that must repeat their kind after a period."""
GAP_TIMES: Final = 5.0
"""Multiple of the median pause between operations of one kind above which a pause separates iterations."""


@dataclass(frozen=True, slots=True)
class DiagnosisRules:
    """Thresholds of the verdicts. Shares are of the job's time unless named otherwise."""

    min_loss_share: float = 0.05
    """Smallest loss share for which a cause is named: two runs of one job differ by as much."""
    slow_ratio: float = 1.15
    """Ratio of a job's time to its baseline from which on it is slow."""
    min_confidence: float = 0.5
    """Confidence below which an explanation is only an alternative, never the verdict."""
    hang_s: float = 10.0
    """Time after which a running operation hangs with evidence that its ranks do not pause, if it is also
    `hang_times` its usual time, and `hang_pauses` times the job's longest pause so far."""
    pause_s: float = 180.0
    """The same time without evidence: checkpoints, evaluations and compilations take up to two minutes."""
    hang_pauses: float = 1.5
    """Multiple of the job's longest earlier stall from which on an operation stalls or hangs."""
    stall_s: float = 2.0
    """Time after which a running operation stalls, if it is also `hang_times` its usual time; the job is not
    HEALTHY."""
    hang_times: float = 20.0
    """Multiple of an operation's usual duration, see `hang_s` and `stall_s`."""
    coincide_s: float = 10.0
    """A fault that began this long before the interval is not its cause if the job was fast meanwhile."""
    last_share: float = 0.5
    """Share of the time lost to late arrivals from which on the host that causes it is a straggler."""
    min_arrivals: int = 3
    """Number of operations in which a rank must clearly be the last to be a straggler."""
    launch_share: float = 0.2
    """Share of its operations' time between call and begin from which on a rank launches late."""
    flush_share: float = 0.4
    """Share of an operation spent flushing from which on PCIe limits it (as RCCL's ACCL profiler)."""
    gpu_share: float = 0.2
    """Share of an operation spent waiting for the GPU (as RCCL's ACCL profiler: 20%)."""
    network_share: float = 0.4
    """Share of an operation spent in the network from which on the network limits it (ACCL: 40%)."""
    flow_times: float = 3.0
    """Ratio of a pair's delay to the median of comparable pairs from which on it is an outlier."""
    flow_excess_us: float = 20.0
    """Excess over the median of comparable pairs that an outlier must have, us: less is noise of hosts."""
    flow_spreads: float = 6.0
    """Number of spreads (MAD) above the median of comparable pairs that an outlier must have."""
    marked_share: float = 0.05
    """Share of a path's probes that arrive marked CE from which on a queue on it is congested."""
    min_marked: int = 20
    """Number of probes of a path and class below which the share of marked ones proves nothing."""
    queue_share: float = 0.2
    """Share of the interval in which a link must have had a queue."""
    other_share: float = 0.1
    """Share of a link's traffic from which on its other senders are named."""
    mismatch_times: float = 5.0
    """Ratio of in-band delay to out-of-band delay plus serialisation that no queue explains."""
    mismatch_excess_us: float = 50.0
    """Excess of the in-band delay that a mismatch must also have, us."""
    paced_share: float = 0.85
    """Share of its rate limit from which on that limit restricts a flow."""
    pause_per_s: float = 100.0
    """Pause frames per second from which on a NIC counts as pausing the fabric."""
    uneven_times: float = 1.5
    """Ratio of the fullest uplink's traffic to the mean from which on flows are uneven."""
    seen_share: float = 0.5
    """Share of the ranks that must report before a verdict is given."""
