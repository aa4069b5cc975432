"""A round of turns for a fleet's probes, so that every link is looked at in even steps.

In: the ways (peer and path) of each NIC and the links that each crosses, out and back. Out: which way each NIC takes
in each turn. The method stands in turns.c.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

import numpy as np

__all__ = ["plan_turns"]

cdef extern from "turns.h":
    struct ft_turns:
        int32_t nics
        int32_t links
        int32_t turns
        int32_t shots
        const int64_t *way_start
        const int64_t *hop_start
        const int32_t *hop
        const double *phase
        uint64_t seed
        int32_t *way

    int ft_turns_plan(ft_turns *t) nogil


cdef object _starts(str name, object value, int64_t last):
    start = np.ascontiguousarray(value, np.int64)
    if start.ndim != 1 or not len(start) or start[0] != 0 or np.any(np.diff(start) < 0):
        raise ValueError(f"{name}: expected ascending numbers from 0")
    if last >= 0 and start[-1] != last:
        raise ValueError(f"{name}: ends at {start[-1]}, expected {last}")
    return start


def plan_turns(way_start, hop_start, hop_link, int links, phase, *, int turns, int shots=1, uint64_t seed=0):
    """Return [NICs, turns, shots] the number of the way among the NIC's own.

    `way_start`: [NICs + 1] first way of each NIC, each with one at least. `hop_start`: [ways + 1] first hop of each
    way in `hop_link`. `phase`: [NICs] when a NIC's turns begin, 0 to 1 turn. `shots`: ways that share a turn, the
    same one twice only where a NIC has no other. Raises ValueError for anything else.
    """
    hops = np.ascontiguousarray(hop_link, np.int32)
    hop_at = _starts("hop_start", hop_start, len(hops))
    way_at = _starts("way_start", way_start, len(hop_at) - 1)
    phases = np.ascontiguousarray(phase, np.float64)
    cdef int64_t nics = len(way_at) - 1
    if len(phases) != nics or (nics and not (phases.min() >= 0 and phases.max() <= 1)):
        raise ValueError(f"phase: expected {nics} numbers from 0 to 1")
    if nics and np.diff(way_at).min() < 1:
        raise ValueError(f"way_start: NIC {int(np.argmin(np.diff(way_at)))} has no way, expected one at least")
    if len(hops) and (hops.min() < 0 or hops.max() >= links):
        raise ValueError(f"hop_link: {hops.min()} to {hops.max()}, expected 0 to {links - 1}")
    if turns < 1 or shots < 1 or links < 0 or nics * turns * shots > 1 << 30:
        raise ValueError(f"{turns} turns of {shots} shots, {links} links: expected at least 1 of each, "
                         "2^30 shots in all at most")
    way = np.zeros((nics, turns, shots), np.int32)
    if not nics:
        return way
    cdef const int64_t[::1] way_ = way_at, hop_start_ = hop_at
    cdef const int32_t[::1] hop_ = np.append(hops, np.int32(0))
    cdef const double[::1] phase_ = phases
    cdef int32_t[:, :, ::1] out_ = way
    cdef ft_turns t
    cdef int done
    t.nics, t.links, t.turns, t.shots, t.seed = <int32_t>nics, links, turns, shots, seed
    t.way_start, t.hop_start, t.hop, t.phase = &way_[0], &hop_start_[0], &hop_[0], &phase_[0]
    t.way = &out_[0, 0, 0]
    with nogil:
        done = ft_turns_plan(&t)
    if not done:
        raise MemoryError(f"no memory for the turns of {nics} NICs")
    return way
