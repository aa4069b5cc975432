"""Computes delays above each path's floor in short slots of fabric time: the input of queue inference.

The input is decoded batches and the clock models; the output is `QueueingColumns`. A floor is the minimum
delay of the past one to two minutes, corrected for the distance of the minimum of many noisy readings from
their middle.

A clock that is wrong must not spoil floors. A floor keeps the bound of the clocks that made it, and is dropped once
they are known more than twice as well. If a clock steps, one direction of a pair gains what the other one loses, and
the round trip stays. No queue does that. So a delay below its floor, whose round trip is not, is a clock's: the pair
counts by round trips until one of its clocks has a new model. Floors of few samples still contain queues, and look
alike. So a floor shows a wrong clock only after four more delays that are as low, or two hundred above it. If it was
wrong all the same, a sample comes that has no queue in the other direction, which a step excludes, and the pair is
free.
"""

from libc.math cimport INFINITY, fabs, floor, isfinite, sqrt
from libc.stdint cimport INT64_MIN, int8_t, int32_t, int64_t

import numpy as np

from native.core.columns import QueueingColumns

__all__ = ["SlotReducer"]

cdef double _LOW = 2.5  # standard deviations that the least of some hundred readings lies below their middle
cdef double _IDLE = 3.0
cdef double _STEP_SIGMAS = 5.0  # standard errors below the floor at which a delay shows a wrong clock
cdef double _STEP_NS = 1000.0   # and beyond those: noise is not known from the first sample on
cdef int _STEADY = 200           # delays not below a floor after which it shows a wrong clock
cdef int _AS_LOW = 50            # so many of them is one worth that is as low as the floor
cdef double _BETTER = 0.5       # share of a floor's bound at which the floor is dropped
cdef object _MAX_OFFSET_NS = 4 * 10**18  # the difference of two fits into 64 bits
cdef int _FORWARD = 1, _REVERSE = 2, _ROUND = 3
cdef object _i8 = np.int64, _i4 = np.int32, _f8 = np.float64


cdef struct _Line:
    int known
    int64_t at, offset  # the offset is offset + fraction
    double fraction, rate, bound


cdef _Line _line(object clock) except *:
    cdef _Line line
    line.known = 0
    line.at = line.offset = 0
    line.fraction = line.rate = line.bound = 0
    if clock is not None and -_MAX_OFFSET_NS < clock.offset_ns < _MAX_OFFSET_NS:
        line.at, line.offset, line.fraction = clock.at_ns, clock.offset_ns, clock.offset_fraction_ns
        line.rate = clock.drift_ppb * 1e-9
        line.bound = clock.bound_ns
        line.known = fabs(line.fraction) < 2 and isfinite(line.bound) and fabs(line.rate) < 1
    return line


cdef object _dense(object marked, int64_t samples):
    """Return [samples] 1 for each of the indices `marked`."""
    ce = np.zeros(samples, np.int8)
    ce[marked] = 1
    return ce


cdef class SlotReducer:
    """The floors of many probers' paths, and the samples since the last `take`.

    `slot_ns`: ns in a slot; `floor_ns`: ns after which the minimum starts over (the former one still counts).
    Raises ValueError for invalid numbers.
    """

    cdef public int64_t slot_ns
    cdef int64_t _floor_ns
    cdef dict _rows, _noise
    cdef list _names
    cdef int64_t _n_rows, _n
    cdef double[:, ::1] _floor     # [rows][2] least delay of this stretch and of the one before
    cdef double[:, ::1] _bound     # [rows][2] bound of the clocks that made these floors, ns
    cdef int64_t[::1] _suspect     # [rows] of a forward row: the models under which a clock was found wrong
    cdef int64_t[::1] _stretch     # [rows]
    cdef int64_t[::1] _steady      # [rows] delays above the floor, at most _STEADY
    cdef double[::1] _row_noise
    cdef int64_t[:, ::1] _counters    # [rows][3] singles, idle, lost since the last take
    cdef int32_t[::1] _row         # samples
    cdef int64_t[::1] _at
    cdef double[::1] _delay
    cdef int8_t[::1] _single
    cdef int8_t[::1] _ce           # [samples] whether a queue marked it
    cdef readonly int64_t unsynced

    def __init__(self, int64_t slot_ns, int64_t floor_ns=60_000_000_000):
        if slot_ns < 1000 or floor_ns < slot_ns:
            raise ValueError(f"slot_ns {slot_ns}, floor_ns {floor_ns}: expected slots of at least 1,000 ns, and floors "
                             "no shorter")
        self.slot_ns, self._floor_ns = slot_ns, floor_ns
        self._rows, self._noise, self._names = {}, {}, []
        self._n_rows = self._n = 0
        self._capacity_rows(64)
        self._capacity(4096)

    cdef void _capacity_rows(self, int64_t rows) except *:
        floor, stretch = np.full((rows, 2), np.inf), np.zeros(rows, _i8)
        noise, counters = np.full(rows, 10.0), np.zeros((rows, 3), _i8)
        bound, suspect, steady = np.zeros((rows, 2)), np.zeros(rows, _i8), np.zeros(rows, _i8)
        if self._n_rows:
            n = self._n_rows
            floor[:n], stretch[:n] = self._floor[:n], self._stretch[:n]
            noise[:n], counters[:n] = self._row_noise[:n], self._counters[:n]
            bound[:n], suspect[:n] = self._bound[:n], self._suspect[:n]
            steady[:n] = self._steady[:n]
        self._floor, self._stretch, self._row_noise, self._counters = floor, stretch, noise, counters
        self._bound, self._suspect, self._steady = bound, suspect, steady

    cdef void _capacity(self, int64_t samples) except *:
        row, at, delay, single = np.empty(samples, _i4), np.empty(samples, _i8), np.empty(samples), np.empty(
            samples, np.int8)
        ce = np.empty(samples, np.int8)
        if self._n:
            n = self._n
            row[:n], at[:n], delay[:n], single[:n] = self._row[:n], self._at[:n], self._delay[:n], self._single[:n]
            ce[:n] = self._ce[:n]
        self._row, self._at, self._delay, self._single, self._ce = row, at, delay, single, ce

    cdef int64_t _row_of(self, str nic, str peer, int path, int direction, int dscp) except -1:
        key = (nic, peer, path, direction, dscp)
        found = self._rows.get(key)
        if found is None:
            if self._n_rows == self._counters.shape[0]:
                self._capacity_rows(2 * self._n_rows)
            found = self._rows[key] = self._n_rows
            self._names.append(key)
            self._row_noise[self._n_rows] = self._noise.get((nic, peer), 10.0)
            self._n_rows += 1
        return found

    def set_noise(self, str nic not None, str peer not None, double noise_ns):
        """Set the standard deviation of the delays between two NICs by timestamps and clocks, ns. Ignores
        invalid values."""
        if not (0 < noise_ns < 1e9):
            return
        self._noise[nic, peer] = noise_ns

    def set_floor(self, str nic not None, str peer not None, int path, int direction, double floor_ns, int64_t at_ns,
                  int dscp=0):
        """Set a path's floor as known at a fabric time: the memory of a new owner."""
        cdef int64_t row = self._row_of(nic, peer, path, direction, dscp)
        if isfinite(floor_ns) and floor_ns < self._floor[row, 0]:
            self._floor[row, 0] = floor_ns - _LOW * self._row_noise[row]
            self._stretch[row], self._steady[row] = at_ns // self._floor_ns, _STEADY

    def forget(self, before_ns):
        """Drop paths whose floors ended before a fabric time and that hold no samples."""
        if self._n:
            return
        keep = [row for row in range(self._n_rows) if (self._stretch[row] + 2) * self._floor_ns >= before_ns]
        if len(keep) == self._n_rows:
            return
        names = [self._names[row] for row in keep]
        floor, stretch = np.asarray(self._floor)[keep], np.asarray(self._stretch)[keep]
        noise, bound = np.asarray(self._row_noise)[keep], np.asarray(self._bound)[keep]
        steady = np.asarray(self._steady)[keep]
        self._names, self._rows = names, {name: row for row, name in enumerate(names)}
        self._n_rows = 0
        self._capacity_rows(max(64, len(keep)))
        self._n_rows = len(keep)
        for row in range(self._n_rows):
            self._floor[row, 0], self._floor[row, 1] = floor[row, 0], floor[row, 1]
            self._bound[row, 0], self._bound[row, 1] = bound[row, 0], bound[row, 1]
            self._stretch[row], self._row_noise[row], self._steady[row] = stretch[row], noise[row], steady[row]

    cdef inline void _put(self, int64_t row, int64_t at, double delay, double bound, int single, int ce) noexcept:
        cdef int64_t stretch = at // self._floor_ns
        cdef double near, low
        cdef int k
        if stretch > self._stretch[row]:
            self._floor[row, 1] = self._floor[row, 0] if stretch == self._stretch[row] + 1 else INFINITY
            self._bound[row, 1] = self._bound[row, 0]
            self._floor[row, 0] = INFINITY
            self._stretch[row] = stretch
        for k in range(2):
            if self._bound[row, k] > self._row_noise[row] and bound < _BETTER * self._bound[row, k]:
                self._floor[row, k], self._bound[row, k] = INFINITY, bound
        near = _STEP_SIGMAS * self._row_noise[row] + bound
        low = min(self._floor[row, 0], self._floor[row, 1])
        if delay < low - near:
            self._steady[row] = 0
        elif delay <= low + near:
            self._steady[row] = min(_STEADY, self._steady[row] + _AS_LOW)
        elif self._steady[row] < _STEADY:
            self._steady[row] += 1
        if delay < self._floor[row, 0]:
            self._floor[row, 0], self._bound[row, 0] = delay, bound
        self._row[self._n], self._at[self._n] = <int32_t>row, at
        self._delay[self._n], self._single[self._n] = delay, <int8_t>single
        self._ce[self._n] = <int8_t>ce
        self._n += 1

    cdef inline int _clock_is_wrong(self, int64_t row, int64_t back, double there, double home, double bound) noexcept:
        cdef double forward = min(self._floor[row, 0], self._floor[row, 1])
        cdef double reverse = min(self._floor[back, 0], self._floor[back, 1])
        cdef double margin = _STEP_NS + _STEP_SIGMAS * self._row_noise[row] + bound
        if not (isfinite(forward) and isfinite(reverse)):
            return 0
        cdef int falls = (there < forward - margin and self._steady[row] == _STEADY) or (
            home < reverse - margin and self._steady[back] == _STEADY)
        return falls and there + home > forward + reverse - margin

    cdef inline int _floors_are_met(self, int64_t row, int64_t back, double there, double home, double bound) noexcept:
        cdef double margin = _STEP_NS + _STEP_SIGMAS * self._row_noise[row] + bound
        return there <= min(self._floor[row, 0], self._floor[row, 1]) + margin and (
            home <= min(self._floor[back, 0], self._floor[back, 1]) + margin)

    def add(self, columns, prober, peers):
        """Add a batch (`ProbeColumns`).

        `prober`: its `ClockModel` or None; `peers`: name to `ClockModel`. If one model of a pair is missing,
        its round trips are used instead. Samples with impossible timestamps (a delay beyond 10 s) are
        dropped.
        """
        cdef _Line own = _line(prober), other
        cdef const int64_t[::1] sent = columns.sent, forward = columns.forward
        cdef const int64_t[::1] turnaround = columns.turnaround, reverse = columns.reverse
        cdef const int64_t[::1] start = columns.start
        cdef const int32_t[::1] path = columns.path, spacing = columns.spacing_ns, lost = columns.lost
        cdef int64_t groups = path.shape[0], g, i, row, back, at, t2, t3, t4, whole
        cdef double there, home, rest, max_delay = 1e10, noise, bound
        cdef int64_t models, whole_trip
        cdef int single, dscp
        cdef const int32_t[::1] classes = columns.dscp if len(columns.dscp) else np.zeros(len(columns.path), _i4)
        cdef int8_t[::1] out_ce = _dense(columns.forward_ce, len(columns.sent))
        cdef int8_t[::1] back_ce = _dense(columns.reverse_ce, len(columns.sent))
        cdef str nic = columns.nic
        cdef list names = columns.peers
        cdef int64_t system = columns.system_ns - columns.clock_ns
        while self._n + 2 * sent.shape[0] > self._at.shape[0]:
            self._capacity(2 * self._at.shape[0])
        for g in range(groups):
            other = _line(peers.get(names[g]))
            dscp = classes[g]
            if not (own.known and other.known):
                row = self._row_of(nic, names[g], path[g], _ROUND, dscp)
                self._counters[row, 2] += lost[g]
                self._row_noise[row] = self._noise.get((nic, names[g]), 10.0) * sqrt(2.0)
                for i in range(start[g], start[g + 1]):
                    at = sent[i] + (own.offset if own.known else system)
                    there = <double>forward[i] + <double>reverse[i]
                    if 0 <= there < max_delay:
                        self._put(row, at, there, 0, spacing[g] == 0 or (i - start[g]) % 2 == 0, out_ce[i] | back_ce[i])
                self.unsynced += start[g + 1] - start[g]
                continue
            row = self._row_of(nic, names[g], path[g], _FORWARD, dscp)
            back = self._row_of(nic, names[g], path[g], _REVERSE, dscp)
            self._counters[row, 2] += lost[g]
            noise = self._noise.get((nic, names[g]), 10.0)
            self._row_noise[row] = self._row_noise[back] = noise
            whole = other.offset - own.offset
            rest = other.fraction - own.fraction
            bound = own.bound + other.bound
            models = 1 + (own.at ^ (other.at << 1))
            whole_trip = -1
            for i in range(start[g], start[g + 1]):
                t2 = sent[i] + forward[i]
                t3 = t2 + turnaround[i]
                t4 = t3 + reverse[i]
                there = <double>(forward[i] + whole) + (rest + other.rate * <double>(t2 - other.at)
                                                        - own.rate * <double>(sent[i] - own.at))
                home = <double>(reverse[i] - whole) - (rest + other.rate * <double>(t3 - other.at)
                                                       - own.rate * <double>(t4 - own.at))
                if not (-max_delay < there < max_delay and -max_delay < home < max_delay):
                    continue
                single = spacing[g] == 0 or (i - start[g]) % 2 == 0
                at = sent[i] + own.offset + <int64_t>floor(own.fraction + own.rate * <double>(sent[i] - own.at) + 0.5)
                if self._suspect[row] == models:
                    if self._floors_are_met(row, back, there, home, bound):
                        self._suspect[row] = 0
                elif self._clock_is_wrong(row, back, there, home, bound):
                    self._suspect[row] = models
                if self._suspect[row] == models:
                    if whole_trip < 0:
                        whole_trip = self._row_of(nic, names[g], path[g], _ROUND, dscp)
                        self._row_noise[whole_trip] = noise * sqrt(2.0)
                    self._put(whole_trip, at, there + home, 0, single, out_ce[i] | back_ce[i])
                    self.unsynced += 1
                    continue
                self._put(row, at, there, bound, single, out_ce[i])
                self._put(back, at + <int64_t>there + turnaround[i], home, bound, single, back_ce[i])

    @property
    def samples(self):
        """Samples since the last `take`, each way by itself."""
        return self._n

    def take(self):
        """Return the `QueueingColumns` of all samples since the last call, and forget them."""
        cdef int64_t i, r
        n = self._n
        row, at = np.array(self._row[:n]), np.array(self._at[:n])
        delay, single = np.array(self._delay[:n]), np.array(self._single[:n])
        marked = np.array(self._ce[:n])
        self._n = 0
        lowest = np.asarray(self._floor[:self._n_rows]).min(axis=1) if self._n_rows else np.zeros(0)
        noise = np.array(self._row_noise[:self._n_rows])
        floor = lowest + _LOW * noise
        lost = np.array(self._counters[:self._n_rows, 2])
        self._counters[:self._n_rows] = 0
        used = np.flatnonzero((np.bincount(row, minlength=self._n_rows) > 0) | (lost > 0)) if self._n_rows else (
            np.zeros(0, _i8))
        number = np.zeros(self._n_rows, _i8)
        number[used] = np.arange(len(used))
        above = delay - floor[row]
        idle = (above < _IDLE * noise[row]) & (single > 0)
        mine = number[row]
        singles = np.bincount(mine, weights=single, minlength=len(used)).astype(_i8)
        idles = np.bincount(mine, weights=idle, minlength=len(used)).astype(_i8)
        slot = at // self.slot_ns
        within = (at - slot * self.slot_ns).astype(_f8)
        first = int(slot.min()) if n else 0
        slot -= first
        span = int(slot.max()) + 1 if n else 1
        key = mine * span + slot
        cells, cell = np.unique(key, return_inverse=True)
        count = np.bincount(cell, minlength=len(cells))
        mean = np.bincount(cell, weights=above, minlength=len(cells)) / np.maximum(count, 1)
        mean_at = (np.bincount(cell, weights=within, minlength=len(cells)) / np.maximum(count, 1)).astype(_i8)
        ce = np.bincount(cell, weights=marked, minlength=len(cells))
        low = np.full(len(cells), np.inf)
        np.minimum.at(low, cell, above)
        start = np.searchsorted(cells // span, np.arange(len(used) + 1))
        names = self._names
        return QueueingColumns(
            first * self.slot_ns, [names[r][:4] for r in used], floor[used], noise[used], singles, idles, lost[used],
            start.astype(_i8), (cells % span).astype(_i4), count.astype(_i4), low, mean, mean_at,
            np.array([names[r][4] for r in used], _i4), ce.astype(_i4),
        )
