"""Queues of links, slot by slot, from delays of the paths that cross them.

In: routes (the links of each path), then per call observations (route, probes, mean delay above the floor) by
slot. Out: `QueueSlots`. The method stands in queues.c.
"""

from libc.stdint cimport int32_t, int64_t

import numpy as np

from native.core.columns import QueueSlots

__all__ = ["QueueSolver"]

cdef extern from "queues.h":
    struct ft_queues:
        int64_t links
        int64_t routes
        const int64_t *route_start
        const int32_t *route_link
        const double *packet_ns
        double *last_ns
        double *mean_ns
        int64_t seen

    struct ft_queue_slots:
        int64_t slots
        int64_t observations
        const int64_t *slot_start
        const int32_t *route
        const double *at
        const double *count
        const double *delay_ns
        const double *noise_ns
        double slot_ns
        int rounds
        int sweeps
        int merge
        int knots
        double *queue_ns
        double *sigma_ns
        int64_t sweeps_done

    int ft_queues_solve(ft_queues *q, ft_queue_slots *s) nogil
    void ft_queues_free(ft_queues *q)


cdef class QueueSolver:
    """The queues of one set of links, carried from call to call.

    `packet_ns`: [links] ns that a full packet takes on each. `route_start`: [routes + 1], `route_link`: the links of
    each route in the order of their crossing, each at most once. `merge`: slots that the first estimate takes together.
    `rounds`, `sweeps`: how often weights are renewed, and passes between, at most. Raises ValueError where shapes
    or numbers do not fit.
    """

    cdef ft_queues _q
    cdef readonly int64_t links
    cdef readonly int64_t routes
    cdef readonly int64_t sweeps_done
    cdef int _rounds, _sweeps, _merge, _busy
    cdef const int64_t[::1] _start
    cdef const int32_t[::1] _link
    cdef const double[::1] _packet
    cdef double[::1] _last, _mean

    def __init__(self, packet_ns, route_start, route_link, *, int merge=4, int rounds=3, int sweeps=12):
        self._packet = np.array(packet_ns, np.float64, ndmin=1)
        self.links = self._packet.shape[0]
        self._rounds, self._sweeps, self._merge = rounds, sweeps, merge
        if rounds < 1 or sweeps < 1 or merge < 1:
            raise ValueError(f"rounds {rounds}, sweeps {sweeps}, merge {merge}: "
                             "expected at least 1 of each")
        cdef int64_t i
        for i in range(self.links):
            if not (0 < self._packet[i] < 1e12):
                raise ValueError(f"packet_ns of link {i}: {self._packet[i]}, expected above 0 and below 1e12")
        self._last = np.zeros(self.links + 1)
        self._mean = np.zeros(self.links + 1)
        self.set_routes(route_start, route_link)

    def __dealloc__(self):
        ft_queues_free(&self._q)

    def set_routes(self, route_start, route_link):
        """Use other routes over the same links; the links' state is kept."""
        start = np.array(route_start, np.int64, ndmin=1)
        link = np.array(route_link, np.int32, ndmin=1)
        routes = len(start) - 1
        if routes < 0 or start[0] != 0 or start[-1] != len(link) or np.any(np.diff(start) < 0):
            raise ValueError(f"route_start: expected ascending numbers from 0 to the {len(link)} of route_link")
        if len(link) and (link.min() < 0 or link.max() >= self.links):
            raise ValueError(f"route_link: {link.min()} to {link.max()}, expected 0 to {self.links - 1}")
        of = np.repeat(np.arange(routes), np.diff(start))
        if len(np.unique(of * max(self.links, 1) + link)) != len(link):
            raise ValueError("route_link: a link stands twice in one route")
        self._start = start
        self._link = np.append(link, np.int32(0))
        self.routes = routes

    def state(self):
        """Return ([links] queue at the end of the last call, [links] usual queue), both in ns: for `restore`."""
        return np.array(self._last[:self.links]), np.array(self._mean[:self.links])

    def restore(self, last_ns, mean_ns):
        """Continue from a `state`, for example of a solver of other links. Raises ValueError for other
        shapes."""
        last, mean = np.append(np.asarray(last_ns, np.float64), 0), np.append(np.asarray(mean_ns, np.float64), 0)
        if len(last) != self.links + 1 or len(mean) != self.links + 1:
            raise ValueError(f"last_ns, mean_ns: {len(last) - 1}, {len(mean) - 1} elements, expected {self.links}")
        self._last, self._mean = last, mean
        self._q.seen = 1

    def solve(self, double slot_ns, slot_start, route, at, count, delay_ns, noise_ns, int knots=2, bint errors=True):
        """Return the `QueueSlots` of the next slots in time.

        `slot_ns`: ns in a slot. `slot_start`: [slots + 1] first observation of each slot. `route`, `at` (mean time of
        the probes within the slot, 0 to 1), `count` (probes, above 0), `delay_ns` (mean above the floor), `noise_ns`
        (of one probe, above 0): [observations]. `knots`: straight lines that each slot is cut into. Without `errors`,
        `sigma_ns` has no slots.
        """
        cdef const int64_t[::1] start_ = np.ascontiguousarray(slot_start, np.int64)
        cdef const int32_t[::1] route_ = np.ascontiguousarray(route, np.int32)
        cdef const double[::1] at_ = np.ascontiguousarray(at, np.float64)
        cdef const double[::1] count_ = np.ascontiguousarray(count, np.float64)
        cdef const double[::1] delay_ = np.ascontiguousarray(delay_ns, np.float64)
        cdef const double[::1] noise_ = np.ascontiguousarray(noise_ns, np.float64)
        cdef int64_t n = route_.shape[0], slots = start_.shape[0] - 1, i
        cdef int done
        cdef ft_queue_slots s
        if not (at_.shape[0] == count_.shape[0] == delay_.shape[0] == noise_.shape[0] == n):
            raise ValueError(f"at, count, delay_ns, noise_ns: {at_.shape[0]}, {count_.shape[0]}, {delay_.shape[0]}, "
                             f"{noise_.shape[0]} elements, expected {n} as in route")
        if not 0 < slot_ns < 1e15:
            raise ValueError(f"slot_ns: {slot_ns}, expected above 0 and below 1e15")
        if not 1 <= knots <= 64:
            raise ValueError(f"knots: {knots}, expected 1 to 64")
        if slots < 0 or start_[0] != 0 or start_[slots] != n:
            raise ValueError(f"slot_start: expected ascending numbers from 0 to {n}")
        for i in range(slots):
            if start_[i + 1] < start_[i]:
                raise ValueError(f"slot_start: {start_[i + 1]} after {start_[i]}, expected ascending numbers")
        for i in range(n):
            if not (0 <= route_[i] < self.routes):
                raise ValueError(f"observation {i}: route {route_[i]}, expected 0 to {self.routes - 1}")
            if not (0 <= at_[i] <= 1):
                raise ValueError(f"observation {i}: at {at_[i]}, expected 0 to 1")
            if not (0 < count_[i] < 1e9 and -1e12 < delay_[i] < 1e12 and 0 < noise_[i] < 1e12):
                raise ValueError(f"observation {i}: count {count_[i]}, delay_ns {delay_[i]}, noise_ns {noise_[i]}, "
                                 "expected finite numbers, count and noise above 0")
        queue, sigma = np.empty((slots, self.links)), np.zeros((slots if errors else 0, self.links))
        if slots == 0 or self.links == 0:
            return QueueSlots(queue, sigma)
        if self._busy:
            raise RuntimeError("QueueSolver: in use by another thread")
        cdef double[:, ::1] queue_ = queue, sigma_ = sigma
        self._q.links, self._q.routes = self.links, self.routes
        self._q.route_start, self._q.route_link = &self._start[0], &self._link[0]
        self._q.packet_ns, self._q.last_ns = &self._packet[0], &self._last[0]
        self._q.mean_ns = &self._mean[0]
        s.slots, s.observations = slots, n
        s.slot_start = &start_[0]
        s.route = &route_[0] if n else NULL
        s.at = &at_[0] if n else NULL
        s.count = &count_[0] if n else NULL
        s.delay_ns = &delay_[0] if n else NULL
        s.noise_ns = &noise_[0] if n else NULL
        s.rounds, s.sweeps, s.merge, s.slot_ns = self._rounds, self._sweeps, self._merge, slot_ns
        s.knots = knots
        s.queue_ns, s.sigma_ns = &queue_[0, 0], &sigma_[0, 0] if errors else NULL
        self._busy = 1
        with nogil:
            done = ft_queues_solve(&self._q, &s)
        self._busy = 0
        self.sweeps_done = s.sweeps_done
        if not done:
            raise MemoryError(f"no memory for {slots} slots of {n} observations")
        return QueueSlots(queue, sigma)
