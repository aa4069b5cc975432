"""Rules of the link-health detectors: constants that are not live thresholds, each with unit and reason.

Live thresholds are in streams/runtime/thresholds.py.
"""

from __future__ import annotations

from typing import Final

from streams.runtime.units import NS_PER_MS, NS_PER_S

NEVER_NS: Final = 2**62
"""Stands for a time that never comes."""

# --------------------------------------------------------------------------------------------- schedule

EVALUATION_GAP_NS: Final = 5 * NS_PER_MS
"""Events closer together than this are evaluated together."""
WARM_UP_NS: Final = 1200 * NS_PER_MS
"""Time from the first event until every NIC has reported its living paths, as it does each second."""
SLOW_TASKS_NS: Final = NS_PER_S
"""Period of flap ageing, refreshes and forgetting."""
REFRESH_NS: Final = 10 * NS_PER_S
"""A subject that is not UP is published again after this time."""

# --------------------------------------------------------------------------------------------- evidence

WINDOW_PARTS: Final = 16
"""Number of parts of the sliding window in which losses are counted."""
MAX_CLASSES: Final = 8
"""Most traffic classes of a shard whose losses are counted separately; a prober has as many."""
LAG_KEPT_NS: Final = 10 * NS_PER_S
"""Age at which the minimum lag between a NIC's clock and the log is replaced."""
LAG_JUMP_NS: Final = 2 * NS_PER_S
"""A message with this much more lag than the minimum: the NIC's clock was stepped, so the filter restarts."""
QUIET_NS: Final = 30 * NS_PER_MS
"""After a silence this long, a NIC's answers may still be in flight when probers have declared them lost."""
LATE_GAPS: Final = 3
"""A prober that has not reported for this many of its usual intervals has a report in flight: of random
intervals, one in 20 is longer."""
RUN_SETTLED: Final = 3
"""A run of this many losses while a NIC at the path's end was silent to all peers is no loss rate."""
LEARNING_NS: Final = 2 * NS_PER_S
"""After a prober's start its time-outs still adapt, so its losses do not count towards loss rates. Those of
routes with gaps count from `WARM_UP_NS` later: answers by complete routes must come first."""
FEW_IN_STREAK: Final = 2
"""A streak this short may be part of a loss rate."""
DELAYED_KEPT_NS: Final = 3 * NS_PER_S
"""Decay time of the count of delayed answers; also the age at which a NIC no longer counts as reporting."""
CPU_STARVED_NS: Final = 20 * NS_PER_MS
"""An agent this late may have answered too late for its answers to count."""
CONGESTED_TIMES: Final = 2
"""A path's time-out follows the 99th percentile of its round trips. Above this multiple of the lowest
time-out, losses may come from full queues."""
PATH_KEPT_NS: Final = 600 * NS_PER_S
"""A path without reports for this long is forgotten; a living path is reported each second."""
STALE_NS: Final = 5 * NS_PER_S
"""Losses reported longer ago than this are no evidence of a present fault."""

# --------------------------------------------------------------------------------------------- dead links

GUARD_NS: Final = 5 * NS_PER_MS
"""Time for answers that waited at a NIC to arrive after it lives again, before losses to it count."""
MAX_PATH_LOSSES: Final = 6
"""Losses of one path that count: many paths cross a link, and more losses of one add nothing."""
FALSE_RUN_LOG: Final = 18.4
"""Negative logarithm of the accepted probability, 1e-8, that a lossy, living link causes a run of losses."""
LOSS_MARGIN: Final = 3
"""A link must explain at least this many losses more than its rivals."""
FEW_SHARE: Final = 0.2
"""Share of a link's paths that must be dead for fewer than `FEW_PATHS` dead paths to suffice."""
FEW_PATHS: Final = 4
"""With fewer dead paths than this, the decision on a link waits for evidence from more paths."""
FEW_ENDS: Final = 3
"""The same for the number of NICs at either end of the dead paths."""
DELAYED_LINK_NS: Final = 3 * NS_PER_S
"""For this long after a delayed answer, packets on the link may wait tens of ms: use `link_late_dead_ms`."""
DELAYED_PER_NIC: Final = 2
"""With this many delayed answers per NIC, `link_late_dead_ms` applies to every link."""
HALF: Final = 0.5
"""Share of a link's paths that must be dead for it to be a plausible cause."""
EXPECTED_SHARE: Final = 0.4
"""Of the paths that would have lost a probe if the link were dead, this share must have lost one."""
RETRACT_NS: Final = 1500 * NS_PER_MS
"""Time after which a DOWN link is no longer blamed if some paths over it live and others stay dead."""
MIXED_LOSSES: Final = 2
"""This many losses followed by an answer show a loss rate, not a death."""

# --------------------------------------------------------------------------------------------- NICs and
# switches

REPORTS_AFTER_NS: Final = NS_PER_S
"""An agent that reports this long after its NIC's last answer is healthy: its port is at fault."""
AGENT_SILENT_NS: Final = 300 * NS_PER_MS
"""A NIC without an answer for this long, while its host answers, has a silent agent: the paths to it are no
evidence about links."""
HOST_ANSWER_KEPT_NS: Final = 3 * NS_PER_S
"""A host that answered within this time is alive: each peer of a silent agent probes the host each second."""
KNOWN_NS: Final = 60 * NS_PER_S
"""A dead switch takes down the links that had answers within this time before it died."""

# --------------------------------------------------------------------------------------------- bypassed links

BYPASS_GAP_NS: Final = 25 * NS_PER_MS
"""Minimum time between two searches for bypassed links."""
DEPARTED_KEPT_NS: Final = 60 * NS_PER_S
"""Paths that left a link longer ago than this are no evidence that it is bypassed."""
FIRST_LINKS_NS: Final = 15 * NS_PER_S
"""Links first seen this soon after the first event do not count as new: at first, all links are."""
NEW_LINK_NS: Final = 60 * NS_PER_S
"""A link first seen this soon before paths changed to it may be an old link with a new name."""
MAX_CHANCE: Final = 0.01
"""An empty cable counts as bypassed if fewer cables than this are expected to be empty by chance."""

# --------------------------------------------------------------------------------------------- lossy links

MIN_GREY_LOSSES: Final = 5
"""Fewer losses are no loss rate."""
MIN_GREY_PARTS: Final = 3
"""Losses must fall into this many parts of the window: a burst is no loss rate."""
MIN_HOST_PARTS: Final = 4
"""Losses must fall into this many parts if the host itself may have lost the packets."""
HOST_TIMES: Final = 2
"""Multiple of the loss threshold that the loss rate must reach if the host may have lost the packets."""
CPU_STARVED_TIMES: Final = 8
"""The same multiple if the host was short of CPU within the window. Losses then are left out anyway."""

PAUSE_NS: Final = 250 * NS_PER_MS
"""Shortest time without losses over a link that counts as a pause."""
TIME_JUMP_NS: Final = 100 * NS_PER_MS
"""The log's clock ran ahead of a NIC's by this much from one event to the next: it was stepped, or the
fabric is simulated slower than real time. Time without losses across such a jump is no pause."""
PAUSE_LOSSES: Final = 12.0
"""Losses to be expected within a pause, by the link's loss rate: the chance of none is exp(-12). So a lossy
link with such a pause was up, and went down again."""

# --------------------------------------------------------------------------------------------- hidden links

UNEXPLAINED_GAP_NS: Final = 250 * NS_PER_MS
"""Minimum time between two searches for losses that no known link explains."""
BLIND_AFTER_NS: Final = 15 * NS_PER_S
"""Time from the first event until all paths have been traced, repeatedly."""
BLIND_SHARE: Final = 0.5
"""Share of paths with incomplete routes from which tracing counts as blind; it ends below half of this."""
BLIND_PATHS: Final = 4
"""With fewer paths than this, tracing is not evaluated."""

# --------------------------------------------------------------------------------------------- life cycle

RECENT_NS: Final = NS_PER_S
"""Losses reported within this time speak against a revival."""
SUPPRESS_NS: Final = 3 * NS_PER_S
"""Time after a port's carrier returns during which losses behind it do not count."""
FLAP_WINDOW_NS: Final = 3600 * NS_PER_S
"""Flaps within this time are counted."""
MAX_FLAPS: Final = 4096
"""Most flaps kept per subject."""
LINK_FORGET_TIMES: Final = 24
"""A link that stays DOWN is forgotten after this multiple of `forget_s`, the time after which a NIC is."""
MAX_TEXT: Final = 500
"""Longest text of a record, characters."""
