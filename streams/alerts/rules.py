"""Rules of alerts: constants that are not live thresholds, each with unit and reason."""

from __future__ import annotations

from typing import Final

from streams.runtime.units import NS_PER_S

NEVER_NS: Final = 2**62
"""A time that does not come."""

# --------------------------------------------------------------------------------------------- grouping

TOGETHER_NS: Final = 2 * NS_PER_S
"""An alert covers what began up to this long before it was raised."""
BEHIND_NS: Final = 10 * NS_PER_S
"""A queue that forms within this time after a cable's death, at a switch of the cable, follows from it."""
EARLY_NS: Final = NS_PER_S
"""The same before the death: the two are dated by different evidence."""

# --------------------------------------------------------------------------------------------- clearing

MAX_CLEAR_NS: Final = 600 * NS_PER_S
"""Longest hold-down of a cable that flaps."""
MAX_FLAP_DOUBLINGS: Final = 20
"""Each flap doubles the hold-down; more doublings exceed `MAX_CLEAR_NS` in any case."""
MAX_CLEARED: Final = 4096
"""Cleared alerts kept regardless of age."""
CLEARED_KEPT_NS: Final = 7200 * NS_PER_S
"""Above that number, older ones are dropped: nothing reads further back."""

JOB_SILENT_NS: Final = 60 * NS_PER_S
"""An alert about a job is cleared this long after its last diagnosis: a running job has one every 5 s."""

# --------------------------------------------------------------------------------------------- simulation

SLOW_NS: Final = 10 * NS_PER_S
"""A simulated fleet may be slow for this long before its alert: services that start take seconds."""
PACE_CHANGE: Final = 0.1
"""Change of the pace with which the alert is published again."""

# --------------------------------------------------------------------------------------------- records

MAX_EVIDENCE: Final = 32
"""Evidence references of an alert."""
MAX_NAMES: Final = 4096
"""Links, NICs, jobs or subjects of an alert."""
MAX_TEXT: Final = 500
"""Characters of a text."""

# --------------------------------------------------------------------------------------------- inputs

LOOKBACK_NS: Final = 3600 * NS_PER_S
"""A new owner reads this far back: longer than any alert waits to be raised or cleared."""
LOOKBACK_MARGIN_S: Final = 5.0
"""Extra time read beyond the thresholds: windows are published later than they are measured."""
