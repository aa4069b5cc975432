"""Holds rules of alerts: constants that are not live thresholds, each with unit and reason."""

from __future__ import annotations

from typing import Final

from streams.runtime.units import NS_PER_S

NEVER_NS: Final = 2**62
"""A time later than any time of a log."""

# --------------------------------------------------------------------------------------------- grouping

TOGETHER_NS: Final = 2 * NS_PER_S
"""Time before an alert was raised within which states that began then belong to it."""
BEHIND_NS: Final = 10 * NS_PER_S
"""Time after a cable's death within which a queue at one of the cable's switches follows from that death."""
EARLY_NS: Final = NS_PER_S
"""The same time before the death: different evidence dates the two."""

# --------------------------------------------------------------------------------------------- clearing

MAX_CLEAR_NS: Final = 600 * NS_PER_S
"""Longest hold-down of a cable that flaps."""
MAX_FLAP_DOUBLINGS: Final = 20
"""Largest number of flaps that double the hold-down; more would exceed `MAX_CLEAR_NS` in any case."""
MAX_CLEARED: Final = 4096
"""Number of cleared alerts that are kept regardless of age."""
CLEARED_KEPT_NS: Final = 7200 * NS_PER_S
"""Age above which cleared alerts beyond that number are dropped: nothing reads further back."""

JOB_SILENT_NS: Final = 60 * NS_PER_S
"""Time after a job's last diagnosis after which its alert is cleared: a running job has one every 5 s."""

# --------------------------------------------------------------------------------------------- simulation

SLOW_NS: Final = 10 * NS_PER_S
"""Time for which a simulated fleet may be slow before its alert: services that start take seconds."""
PACE_CHANGE: Final = 0.1
"""Change of the pace from which on the alert is published again."""

# --------------------------------------------------------------------------------------------- records

MAX_EVIDENCE: Final = 32
"""Largest number of evidence references in an alert."""
MAX_NAMES: Final = 4096
"""Largest number of links, NICs, jobs or subjects in an alert, each."""
MAX_TEXT: Final = 500
"""Largest number of characters of a text."""

# --------------------------------------------------------------------------------------------- inputs

LOOKBACK_NS: Final = 3600 * NS_PER_S
"""Time before its start that a new owner reads: longer than any alert waits to be raised or cleared."""
LOOKBACK_MARGIN_S: Final = 5.0
"""Time that is read in addition to the thresholds: windows are published later than they are measured."""
