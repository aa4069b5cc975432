"""Rules of the diagnosis of jobs: thresholds and bounds, each with unit and reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streams.runtime.units import NS_PER_S, NS_PER_US

# --------------------------------------------------------------------------------------------- memory

KEEP_NS: Final = 60 * NS_PER_S
"""Append time for which a view keeps records: a few intervals and a slow start."""
MAX_OPERATIONS: Final = 400_000
"""Single operations that a job's view keeps: 60 MB."""
MAX_SUMMARIES: Final = 400_000
"""Summaries that a job's view keeps."""
MAX_RECORDS: Final = 100_000
"""Records of a job, and decisions, alerts and audit results, that a view keeps."""
MAX_BASELINES: Final = 8_192
"""Kinds of operations, and queue pairs, with a baseline of their own in one job."""
BASELINE_INTERVALS: Final = 5
"""Intervals in sequence, the median of which counts as sustained."""
BASELINE_MIN: Final = 3
"""Intervals after which a first baseline exists."""

# --------------------------------------------------------------------------------------------- times

LATE_NS: Final = 60 * NS_PER_S
"""A record appended this long after its interval does not describe the present."""
CAUSE_GAP_NS: Final = 10 * NS_PER_S
"""Pause in the evidence for a cause up to which it is the same cause."""
CLOCK_FLOOR_NS: Final = 5 * NS_PER_US
"""Arrival orders closer than this show nothing: calls themselves take as long."""
NEVER_NS: Final = -(2**62)
"""The end of an operation that still runs."""

# --------------------------------------------------------------------------------------------- iterations

MAX_PERIOD: Final = 512
"""Operations of the longest iteration that is searched for."""
PERIOD_MATCH: Final = 0.95
"""Share of operations that must repeat their kind after a period."""
GAP_TIMES: Final = 5.0
"""A pause this many times the median pause between operations of one kind separates iterations."""


@dataclass(frozen=True, slots=True)
class DiagnosisRules:
    """Thresholds of the verdicts. Shares are of the job's time unless named otherwise."""

    min_loss_share: float = 0.05
    """A cause that costs less is not named: two runs of one job differ by as much."""
    slow_ratio: float = 1.15
    """Time over that of the job's good time from which on a job is slow."""
    min_confidence: float = 0.5
    """Below it an explanation is an alternative, never the verdict."""
    hang_s: float = 5.0
    """An operation that runs this long, and 20 times its usual time, hangs."""
    stall_s: float = 2.0
    """An operation that runs this long, and 20 times its usual time, stalls: the job is not HEALTHY."""
    hang_times: float = 20.0
    """Times its usual duration."""
    coincide_s: float = 10.0
    """A fault that began this long before the interval, while the job was fast, is not its cause."""
    last_share: float = 0.5
    """Share of the time lost to late arrivals that one host must cause to be a straggler."""
    min_arrivals: int = 3
    """Operations with a clear last rank before a rank is a straggler."""
    launch_share: float = 0.2
    """Share of its operations' time that a rank spends between call and begin."""
    flush_share: float = 0.4
    """Share of an operation spent flushing from which on PCIe limits it (as RCCL's ACCL profiler)."""
    gpu_share: float = 0.2
    """Share of an operation spent waiting for the GPU (as RCCL's ACCL profiler: 20%)."""
    network_share: float = 0.4
    """Share of an operation spent in the network from which on it is bound by it (ACCL: 40%)."""
    flow_times: float = 3.0
    """A pair's delay over the median of its like from which on it is an outlier."""
    flow_excess_us: float = 20.0
    """us above the median of its like: less is noise of hosts."""
    flow_spreads: float = 6.0
    """Spreads (MAD) above the median of its like."""
    marked_share: float = 0.05
    """Share of a path's probes that arrive marked CE from which on a queue on it is congested."""
    min_marked: int = 20
    """Probes of a path and class below which the share of marked ones shows nothing."""
    queue_share: float = 0.2
    """Share of the interval in which a link must have had a queue."""
    other_share: float = 0.1
    """Share of a link's traffic that others must send to be named."""
    mismatch_times: float = 5.0
    """In-band delay over out-of-band delay and serialisation that no queue explains."""
    mismatch_excess_us: float = 50.0
    """us of that excess."""
    paced_share: float = 0.85
    """Share of its rate limit from which on a flow is limited by it."""
    pause_per_s: float = 100.0
    """Pause frames per second from which on a NIC pauses the fabric."""
    uneven_times: float = 1.5
    """Traffic of the fullest uplink over the mean from which on flows are uneven."""
    seen_share: float = 0.5
    """Share of the ranks that must report before a verdict is given."""
