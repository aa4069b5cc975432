"""Sorts the input of one window by clock, and holds each connected part of the window's mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.ids import host_of
from schemas.log_time import STEP_NS
from schemas.records import ClockFits, NicWindow
from streams.clock.pairs import Bools, Int64s, Pairs

MAX_FROM_READING_NS: Final = 60e9
"""Largest error of a guessed reading at the window's middle, ns: a message may be that late."""
DUPLICATE_RESTARTS: Final = 3
"""Restarts of one prober within a window from which on two agents share its name: a start takes longer."""


@dataclass(slots=True)
class WindowInput:
    """A window's input, sorted by clock. Node i of the mesh is the clock `names[i]`."""

    names: list[str]
    nics: list[NicWindow]
    node_of_nic: dict[str, int]
    jumped: set[int]
    """Nodes of clocks that jumped, or to which two agents of one name report."""
    flush: dict[int, NicWindow] = field(default_factory=dict)
    """Last flush of any NIC of each node."""
    nics_of_node: dict[int, list[NicWindow]] = field(default_factory=dict)


@dataclass(slots=True)
class Part:
    """A connected part of a window's mesh, with the values that place it in fabric time."""

    names: list[str]
    members: NDArray[np.intp]
    middle_ns: int
    window_s: float
    domain: str
    leading: str
    """The domain whose timeline continues in this part."""
    continuing: set[int]
    """Positions in `names` of the clocks from which the timeline continues."""
    gauge_base_ns: int = 0
    """Whole ns of the gauge; `gauge_ns` is the small rest."""
    gauge_ns: float = 0.0
    gauge_rate: float = 0.0
    """Rate of the gauge, logarithmic as `Mesh.rate_log_ppb`."""
    slew_change_ppb: float = 0.0
    trusted: bool = True
    """True if fabric time's own rate is known."""


def gather(fits: Sequence[ClockFits], clock_of: Mapping[str, str]) -> WindowInput:
    """Sort the fits of one window by clock. `clock_of` maps each NIC in the inventory to its clock."""
    nics: dict[str, NicWindow] = {nic["nic"]: nic for record in fits for nic in record["nics"]}
    clock = _clocks(fits, nics, clock_of)
    names = sorted(set(clock.values()))
    index = {name: i for i, name in enumerate(names)}
    node_of_nic = {nic: index[name] for nic, name in clock.items()}
    inputs = WindowInput(names, [nics[name] for name in sorted(nics)], node_of_nic, set())
    for nic in inputs.nics:
        node = node_of_nic[nic["nic"]]
        inputs.nics_of_node.setdefault(node, []).append(nic)
        if nic["clock_jump_ns"] or nic["restarts"] >= DUPLICATE_RESTARTS:
            inputs.jumped.add(node)
        if node not in inputs.flush or nic["append_ns"] > inputs.flush[node]["append_ns"]:
            inputs.flush[node] = nic
    return inputs


def _clocks(
    fits: Sequence[ClockFits], nics: Mapping[str, NicWindow], clock_of: Mapping[str, str]
) -> dict[str, str]:
    """Return, by NIC, its clock: from `clock_of`, else as the NIC announced it, else a clock of its own."""
    announced = {name: nic["clock"] for name, nic in nics.items()}
    ends = {nic for record in fits for pair in record["pairs"] for nic in (pair["prober"], pair["peer"])}
    return {nic: clock_of.get(nic) or announced.get(nic) or nic for nic in set(nics) | ends}


def guess_readings(inputs: WindowInput, middle_log_ns: int) -> tuple[Int64s, Bools]:
    """Return a guess of each clock's reading, ns, at the window's middle from its last flush, and a mask.

    The mask is True for each clock that has a flush.
    """
    readings = np.zeros(len(inputs.names), np.int64)
    has_reading = np.zeros(len(inputs.names), np.bool_)
    for node, flush in inputs.flush.items():
        readings[node] = flush["clock_ns"] + middle_log_ns - flush["append_ns"]
        has_reading[node] = True
    return readings, has_reading


def correct_readings(readings: Int64s, has_reading: Bools, pairs: Pairs, expected: Mapping[int, int]) -> None:
    """Replace a guessed reading by the one expected from the clock's track if the window contradicts it.

    `expected`: reading of each synchronised node from its track. If a guess differs from the expected reading
    by seconds, the clock stepped or its flush was absurd. The instants of the clock's own pairs are near the
    guess in the first case, and near the expected reading in the second.
    """
    for node, expected_ns in expected.items():
        guess_ns = int(readings[node])
        if has_reading[node] and abs(guess_ns - expected_ns) <= STEP_NS:
            continue
        own = pairs.at_ns[pairs.prober == node]
        at_ns = int(np.sort(own)[len(own) // 2]) if len(own) else expected_ns
        if not has_reading[node] or abs(at_ns - guess_ns) > abs(at_ns - expected_ns):
            readings[node], has_reading[node] = expected_ns, True


def usable_pairs(pairs: Pairs, inputs: WindowInput, readings: Int64s, has_reading: Bools) -> Pairs:
    """Return the possible pairs of clocks that did not jump in the window.

    A possible pair's instant is near the reading of its prober, and its offset is near the difference between
    the readings of both ends.
    """
    a, b = pairs.prober, pairs.peer
    away_ns = np.abs(pairs.at_ns.astype(np.float64) - readings[a])
    between_ns = np.abs(pairs.offset_ns.astype(np.float64) - (readings[b].astype(np.float64) - readings[a]))
    keep = has_reading[a] & (away_ns <= MAX_FROM_READING_NS)
    keep &= ~has_reading[b] | (between_ns <= MAX_FROM_READING_NS)
    if inputs.jumped:
        bad = np.fromiter(inputs.jumped, np.int32)
        keep &= ~(np.isin(a, bad) | np.isin(b, bad))
    return pairs if keep.all() else pairs.where(keep)


def flushes_by_host(inputs: WindowInput, members: NDArray[np.intp]) -> dict[str, list[tuple[int, NicWindow]]]:
    """Return, by host, (node, last flush) of each NIC in this part whose clock did not jump."""
    hosts: dict[str, list[tuple[int, NicWindow]]] = {}
    for node in members.tolist():
        if node not in inputs.jumped:
            for nic in inputs.nics_of_node.get(node, ()):
                hosts.setdefault(host_of(nic["nic"]), []).append((node, nic))
    return hosts
