"""Draws a leaf-spine fabric whose queues, clocks and probes are known exactly.

Every link is one shared queue with cross traffic of its own: batches of packets, sources that turn on and
off, incasts and standing queues. Probes read these queues and get four timestamps. Nothing here is shared
with an estimator or with the simulated fleet, so that no assumption of theirs is measured against itself.
"""

from fabrictime.bench._truth.clocks import Clocks
from fabrictime.bench._truth.fabric import LeafSpine
from fabrictime.bench._truth.probing import Probes, Stamps, probe
from fabrictime.bench._truth.queues import LinkQueueing, Slots
from fabrictime.bench._truth.traffic import Standing, Traffic

__all__ = [
    "Clocks",
    "LeafSpine",
    "LinkQueueing",
    "Probes",
    "Slots",
    "Stamps",
    "Standing",
    "Traffic",
    "probe",
]
