"""Table of the links and NICs of one shard: one array column per property.

An element is a directed link or a NIC. Its index never changes. Columns hold one entry per element: for
instance the time of its newest answer, whether it is dead, and when its agent was short of CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.ids import end_parts
from streams.links.rules import NEVER_NS, WINDOW_PARTS
from streams.runtime.loss_rates import NOTHING, Bools, Int32s, Int64s

FIRST_CAPACITY: Final = 64
COLUMNS: Final = (
    "last_answer_ns",
    "has_answered",
    "is_nic",
    "revived_ns",
    "exempt_ns",
    "nic_event_ns",
    "covered_ns",
    "report_gap_ns",
    "host_answer_ns",
    "nic_of",
    "down",
    "suppressed_ns",
    "recovered_ns",
    "cpu_starved_ns",
    "cpu_starved",
    "_cpu_starved_next",
    "first_seen_ns",
    "delayed_ns",
    "last_loss_ns",
    "resumed_ns",
    "pause_ns",
)


class ElementTable:
    """Properties of all elements, one array [E] each. Times are ns of log append time."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        """Element of each link or NIC, by name."""
        self.names: list[str] = [""]
        self.ends: list[tuple[str, str]] = [("", "")]
        """The two nodes at which each link begins and ends, by element."""
        self.parallel_cables: dict[tuple[str, str], set[tuple[str, str]]] = {}
        """Port pairs of all cables between two nodes; the nodes of a key are sorted."""
        self.links_at: dict[str, set[int]] = {}
        """Links that begin or end at each node."""

        size = FIRST_CAPACITY
        self.last_answer_ns: Int64s = np.full(size, 0, np.int64)
        """[E] time of the newest answer over a link or from a NIC; before the first one, `first_seen_ns`."""
        self.has_answered: Bools = np.zeros(size, np.bool_)
        """[E] whether any answer was ever seen."""
        self.first_seen_ns: Int64s = np.full(size, 0, np.int64)
        self.is_nic: Bools = np.zeros(size, np.bool_)
        self.revived_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: time of the newest answer that came after `QUIET_NS` without answers."""
        self.exempt_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: end of the newest trouble of the agent for which its losses do not count."""
        self.cpu_starved_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: newest time at which the agent reported a delay of `CPU_STARVED_NS` or more."""
        self.cpu_starved: Bools = np.zeros((size, WINDOW_PARTS), np.bool_)
        """[E, part] NICs: whether the agent was so late in this part of the window, or next to it."""
        self._cpu_starved_next: Bools = np.zeros(size, np.bool_)
        """[E] the same for the part of the window that begins next."""
        self.nic_event_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: time of the newest event that the NIC's agent sent."""
        self.covered_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: time up to which the NIC's prober has reported the results of all its paths."""
        self.report_gap_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: time between these reports, smoothed."""
        self.host_answer_ns: Int64s = np.zeros(size, np.int64)
        """[E] NICs: newest answer of the host's kernel, which peers probe while the agent is silent."""
        self.delayed_ns: Int64s = np.zeros(size, np.int64)
        """[E] newest answer that the network delayed for longer than the loss time-out."""
        self.last_loss_ns: Int64s = np.zeros(size, np.int64)
        """[E] newest send time of a lost request over the element."""
        self.resumed_ns: Int64s = np.zeros(size, np.int64)
        """[E] send time of the first lost request after the newest pause of `PAUSE_NS` without losses."""
        self.pause_ns: Int64s = np.zeros(size, np.int64)
        """[E] length of the pause before `resumed_ns`."""
        self.nic_of: Int32s = np.zeros(size, np.int32)
        """[E] links: the NIC at which the link begins or ends; NOTHING for a link between switches."""
        self.own_links: dict[int, dict[int, None]] = {}
        """Links between each NIC and its switches: a bond has several cables."""
        self.recabled: dict[int, int] = {}
        """For a link that paths left: the link that now uses one of its ports."""
        self.down: Bools = np.zeros(size, np.bool_)
        """[E] whether the element is known to be dead, which explains losses behind it."""
        self.suppressed_ns: Int64s = np.zeros(size, np.int64)
        """[E] time until which losses behind the element do not count, because its port has just come up."""
        self.recovered_ns: Int64s = np.zeros(size, np.int64)
        """[E] end of its last outage: losses that began before it are explained."""
        self.last_answer_ns[NOTHING] = NEVER_NS

    def element(self, name: str, now_ns: int, *, nic: bool = False) -> int:
        """Return the index of a link or NIC; add the element if it is new."""
        element = self.index.get(name)
        if element is not None:
            return element
        new_element = self.index[name] = len(self.names)
        self.names.append(name)
        near, _, far = name.partition(">")
        self.ends.append(("", "") if nic else (end_parts(near)[0], end_parts(far)[0]))
        if new_element >= len(self.last_answer_ns):
            for column in COLUMNS:
                setattr(self, column, grown(getattr(self, column), 0))
        self.last_answer_ns[new_element] = self.first_seen_ns[new_element] = now_ns
        self.is_nic[new_element] = nic
        if not nic:
            (first, first_port), (second, second_port) = sorted((end_parts(near), end_parts(far)))
            self.parallel_cables.setdefault((first, second), set()).add((first_port, second_port))
            for node in (first, second):
                self.links_at.setdefault(node, set()).add(new_element)
        return new_element

    def nodes_of(self, link: int) -> tuple[str, str]:
        """Return the node at which a link begins, and the node at which it ends."""
        return self.ends[link]

    def links_of(self, nic: int) -> list[int]:
        """Return the known links between a NIC and its switch, or the switches of its bond."""
        return [link for link in self.own_links.get(nic, ()) if link not in self.recabled]

    def attach(self, link: int, nic: int) -> None:
        """Note that a link begins or ends at a NIC."""
        self.nic_of[link] = nic
        self.own_links.setdefault(nic, {})[link] = None

    def among(self, elements: Sequence[int] | NDArray[Any]) -> Bools:
        """Return a mask [E] that is True at each element in `elements`."""
        is_among = np.zeros(len(self.last_answer_ns), np.bool_)
        is_among[elements] = True
        return is_among

    def reporting_nics(self, since_ns: int) -> int:
        """Return the number of NICs with an event after `since_ns`; a live NIC sends an event each second."""
        return int(np.count_nonzero(self.nic_event_ns > since_ns))


def grown(array: NDArray[Any], fill: int) -> NDArray[Any]:
    """Return a copy of a column at twice its size; `fill` is the value of the new entries."""
    return np.concatenate([array, np.full_like(array, fill)])
