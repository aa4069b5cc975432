"""Plans the probe slots of all NICs together, so that every link is probed at even intervals.

The input names the paths of each NIC and the links that each path crosses, out and back. The output is the path that
each NIC probes in each slot. probe_schedule.c has the method.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

import numpy as np

__all__ = ["plan_schedule"]

cdef extern from "probe_schedule.h":
    struct ft_schedule_plan_input:
        int32_t nics
        int32_t links
        int32_t slots
        int32_t probes_per_slot
        const int64_t *path_start
        const int64_t *link_start
        const int32_t *link
        const double *phase
        uint64_t seed
        int32_t *path

    int ft_schedule_plan(ft_schedule_plan_input *t) nogil


cdef object _starts(str name, object value, int64_t last):
    start = np.ascontiguousarray(value, np.int64)
    if start.ndim != 1 or not len(start) or start[0] != 0 or np.any(np.diff(start) < 0):
        raise ValueError(f"{name}: expected ascending numbers from 0")
    if last >= 0 and start[-1] != last:
        raise ValueError(f"{name}: ends at {start[-1]}, expected {last}")
    return start


def plan_schedule(path_start, link_start, path_link, int links, phase, *, int slots, int probes_per_slot=1, uint64_t seed=0):
    """Return the number of the path among the NIC's own, as an array [NICs, slots, probes_per_slot].

    `path_start`: [NICs + 1] first path of each NIC, one path at least each. `link_start`: [paths + 1] first link of
    each path in `path_link`. `phase`: [NICs] start of a NIC's first slot, 0 to 1 slot. A NIC probes one path twice in
    a slot only if it has no other. Raises ValueError for invalid input.
    """
    crossed = np.ascontiguousarray(path_link, np.int32)
    link_at = _starts("link_start", link_start, len(crossed))
    path_at = _starts("path_start", path_start, len(link_at) - 1)
    phases = np.ascontiguousarray(phase, np.float64)
    cdef int64_t nics = len(path_at) - 1
    if len(phases) != nics or (nics and not (phases.min() >= 0 and phases.max() <= 1)):
        raise ValueError(f"phase: expected {nics} numbers from 0 to 1")
    if nics and np.diff(path_at).min() < 1:
        raise ValueError(f"path_start: NIC {int(np.argmin(np.diff(path_at)))} has no path, expected at least one")
    if len(crossed) and (crossed.min() < 0 or crossed.max() >= links):
        raise ValueError(f"path_link: {crossed.min()} to {crossed.max()}, expected 0 to {links - 1}")
    if slots < 1 or probes_per_slot < 1 or links < 0 or nics * slots * probes_per_slot > 1 << 30:
        raise ValueError(f"{slots} slots of {probes_per_slot} probes, {links} links: expected at least 1 of each, "
                         "2^30 probes in total at most")
    path = np.zeros((nics, slots, probes_per_slot), np.int32)
    if not nics:
        return path
    cdef const int64_t[::1] path_ = path_at, link_start_ = link_at
    cdef const int32_t[::1] link_ = np.append(crossed, np.int32(0))
    cdef const double[::1] phase_ = phases
    cdef int32_t[:, :, ::1] out_ = path
    cdef ft_schedule_plan_input t
    cdef int done
    t.nics, t.links, t.slots, t.probes_per_slot, t.seed = <int32_t>nics, links, slots, probes_per_slot, seed
    t.path_start, t.link_start, t.link, t.phase = &path_[0], &link_start_[0], &link_[0], &phase_[0]
    t.path = &out_[0, 0, 0]
    with nogil:
        done = ft_schedule_plan(&t)
    if not done:
        raise MemoryError(f"no memory for the schedule of {nics} NICs")
    return path
