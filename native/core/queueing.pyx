"""Computes delays above each path's floor in short slots of fabric time: the input of queue inference.

The input is `ProbeBatches` and the clock models; the output is `QueueingColumns`. A floor is the minimum
delay of the past one to two minutes, corrected for the distance of the minimum of many noisy readings from
their middle.

A clock that is wrong must not spoil floors. A floor keeps the bound of the clocks that places_of_column it, and is dropped once
they are known more than twice as well. If a clock steps, one direction of a pair gains what the other one loses, and
the round trip stays. No queue does that. So a delay below its floor, whose round trip is not, is a clock's: the pair
counts by round trips until one of its clocks has a new model. Floors of few samples still contain queues, and look
alike. So a floor shows a wrong clock only after four more delays that are as low, or two hundred above it. If it was
wrong all the same, a sample comes that has no queue in the other direction, which a step excludes, and the pair is
free.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport fabs, isfinite
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

import numpy as np

from native.core.decode cimport ProbeBatches, ft_batches, ft_message

from native.core.columns import QueueingColumns

__all__ = ["SlotReducer"]

cdef extern from "queueing.h":
    struct ft_clock:
        int is_usable
        int64_t at_ns
        int64_t offset_ns
        double fraction_ns, rate, bound_ns
    struct ft_nic_pair:
        int32_t prober, peer
        double noise_ns
    struct ft_path:
        int32_t pair, path, direction, dscp
        double noise_ns
        int64_t lost
    struct ft_cell:
        int32_t slot, count, marked
        double min_ns, mean_ns
        int64_t at_ns
    struct ft_used_path:
        int32_t row
        int64_t singles, idle, cells
    struct ft_slots:
        int64_t slot_ns
        int64_t floor_ns
        ft_path *paths
        int64_t n_delays, unsynced
        ft_used_path *used
        int64_t n_used
        ft_cell *cells
        int64_t n_cells
    int ft_reserve_delays(ft_slots *s, int64_t delays)
    int ft_add_group(ft_slots *s, const ft_batches *b, int64_t g, int64_t *mark, int32_t pair, double noise_ns,
                     const ft_clock *own, const ft_clock *other, int64_t system_ns)
    int ft_set_floor(ft_slots *s, int32_t pair, int32_t path, int32_t direction, int32_t dscp, double noise_ns,
                     double floor_ns, int64_t at_ns)
    int ft_take_slots(ft_slots *s, int64_t *first)
    double ft_floor_of(const ft_path *path)
    int ft_forget_paths(ft_slots *s, int64_t before_ns)
    void ft_slots_free(ft_slots *s)

cdef double _NOISE_NS = 10.0  # of a pair that no window has fitted yet
cdef object _MAX_OFFSET_NS = 4 * 10**18  # the difference of two fits into 64 bits
cdef object _empty = np.empty
cdef object _i4 = np.dtype(np.int32), _i8 = np.dtype(np.int64), _f8 = np.dtype(np.float64)


cdef ft_clock _clock_of(object model) except *:
    cdef ft_clock clock
    clock.is_usable = 0
    clock.at_ns = clock.offset_ns = 0
    clock.fraction_ns = clock.rate = clock.bound_ns = 0
    if model is not None and -_MAX_OFFSET_NS < model.offset_ns < _MAX_OFFSET_NS:
        clock.at_ns, clock.offset_ns, clock.fraction_ns = model.at_ns, model.offset_ns, model.offset_fraction_ns
        clock.rate = model.drift_ppb * 1e-9
        clock.bound_ns = model.bound_ns
        clock.is_usable = fabs(clock.fraction_ns) < 2 and isfinite(clock.bound_ns) and fabs(clock.rate) < 1
    return clock


cdef void *_data(object array) except NULL:
    """Return the elements of a new array, which the caller keeps alive."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef void *data = view.buf
    PyBuffer_Release(&view)
    return data


cdef class SlotReducer:
    """The floors of many probers' paths, and the samples since the last `take`.

    `slot_ns`: ns in a slot; `floor_ns`: ns after which the minimum starts over (the former one still counts).
    Raises ValueError for invalid numbers.
    """

    cdef ft_slots _slots
    cdef dict _numbers      # NIC -> number
    cdef readonly list nics # names, by number
    cdef list _models       # the model of each NIC whose figures stand in _clocks
    cdef ft_clock *_clocks
    cdef dict _pairs_of     # prober -> {peer: number of the pair}
    cdef ft_nic_pair *_pairs
    cdef int64_t _n_pairs, _pair_capacity, _nic_capacity

    def __init__(self, int64_t slot_ns, int64_t floor_ns=60_000_000_000):
        if slot_ns < 1000 or floor_ns < slot_ns:
            raise ValueError(f"slot_ns {slot_ns}, floor_ns {floor_ns}: expected slots of at least 1,000 ns, and floors "
                             "no shorter")
        self._slots.slot_ns, self._slots.floor_ns = slot_ns, floor_ns

    def __cinit__(self, *args, **kwargs):
        self._numbers, self._pairs_of = {}, {}
        self.nics, self._models = [], []

    def __dealloc__(self):
        ft_slots_free(&self._slots)
        free(self._clocks)
        free(self._pairs)

    @property
    def slot_ns(self):
        """Length of a slot, ns, from the next `take` on."""
        return self._slots.slot_ns

    @slot_ns.setter
    def slot_ns(self, int64_t slot_ns):
        if slot_ns < 1000:
            raise ValueError(f"slot_ns {slot_ns}: expected at least 1,000 ns")
        self._slots.slot_ns = slot_ns

    @property
    def unsynced(self):
        """Number of samples measured by round trip, because no usable clocks were known."""
        return self._slots.unsynced

    @property
    def samples(self):
        """Number of one-way delays since the last `take`, each direction counted separately."""
        return self._slots.n_delays

    cdef int32_t _number(self, str nic) except -1:
        cdef object number = self._numbers.get(nic)
        cdef void *moved
        if number is None:
            number = len(self.nics)
            if number == self._nic_capacity:
                moved = realloc(self._clocks, (2 * number + 64) * sizeof(ft_clock))
                if moved == NULL:
                    raise MemoryError(f"no memory for {number} NICs")
                self._clocks, self._nic_capacity = <ft_clock *>moved, 2 * number + 64
            self._clocks[<int64_t>number] = _clock_of(None)
            self._numbers[nic] = number
            self.nics.append(nic)
            self._models.append(None)
        return number

    cdef int32_t _pair(self, dict pairs, str nic, str peer) except -1:
        """Return the number of a pair; `pairs` has the pairs of the prober."""
        cdef object number = pairs.get(peer)
        cdef void *moved
        if number is not None:
            return number
        if self._n_pairs == self._pair_capacity:
            moved = realloc(self._pairs, (2 * self._n_pairs + 64) * sizeof(ft_nic_pair))
            if moved == NULL:
                raise MemoryError(f"no memory for {self._n_pairs} pairs")
            self._pairs, self._pair_capacity = <ft_nic_pair *>moved, 2 * self._n_pairs + 64
        self._pairs[self._n_pairs].prober = self._number(nic)
        self._pairs[self._n_pairs].peer = self._number(peer)
        self._pairs[self._n_pairs].noise_ns = _NOISE_NS
        pairs[peer] = self._n_pairs
        self._n_pairs += 1
        return self._n_pairs - 1

    cdef dict _peers_of(self, str nic):
        pairs = self._pairs_of.get(nic)
        if pairs is None:
            pairs = self._pairs_of[nic] = {}
        return pairs

    cdef ft_clock *_clock(self, int32_t number, object model) except NULL:
        """Return the figures of a NIC's model, which are read once for each model: models never change."""
        if self._models[number] is not model:
            self._clocks[number] = _clock_of(model)
            self._models[number] = model
        return &self._clocks[number]

    def set_noise(self, str nic not None, str peer not None, double noise_ns):
        """Set the standard deviation of the delays between two NICs by timestamps and clocks, ns. Ignores
        invalid values."""
        if not (0 < noise_ns < 1e9):
            return
        self._pairs[self._pair(self._peers_of(nic), nic, peer)].noise_ns = noise_ns

    def set_floor(self, str nic not None, str peer not None, int path, int direction, double floor_ns, int64_t at_ns,
                  int dscp=0):
        """Set the known floor of a path at a fabric time, when a new owner restores its state."""
        cdef int32_t pair = self._pair(self._peers_of(nic), nic, peer)
        if not ft_set_floor(&self._slots, pair, path, direction, dscp, self._pairs[pair].noise_ns, floor_ns, at_ns):
            raise MemoryError("no memory for a path")

    def forget(self, int64_t before_ns):
        """Drop paths whose floors ended before a fabric time, if there are no samples."""
        if not self._slots.n_delays and not ft_forget_paths(&self._slots, before_ns):
            raise MemoryError("no memory for the remaining paths")

    def extremes(self, ProbeBatches batches not None, int64_t index):
        """Return the largest distance of a message's samples from their flush and their longest round trip, ns; 0
        without samples."""
        cdef ft_message *m = batches.message(index)
        cdef const int64_t *sent = batches.b.column[0] + m.first_sample
        cdef const int64_t *forward = batches.b.column[1] + m.first_sample
        cdef const int64_t *reverse = batches.b.column[3] + m.first_sample
        cdef int64_t i, first = m.clock_ns, last = m.clock_ns, longest = 0
        for i in range(m.samples):
            first, last = min(first, sent[i]), max(last, sent[i])
            longest = max(longest, <int64_t>(<uint64_t>forward[i] + <uint64_t>reverse[i]))
        return max(<uint64_t>last - <uint64_t>m.clock_ns, <uint64_t>m.clock_ns - <uint64_t>first), longest

    def add(self, ProbeBatches batches not None, indices, models):
        """Add the messages with these numbers.

        `models`: NIC to `ClockModel`. If one model of a pair is missing, its round trips are used instead. Samples
        with impossible timestamps (a delay beyond 10 s) are dropped.
        """
        cdef ft_batches *b = &batches.b
        cdef ft_message *m
        cdef int64_t index, g, delays = 0
        cdef int64_t mark[2]
        cdef int32_t number, pair = 0
        cdef ft_clock own
        cdef const ft_clock *other = NULL
        cdef dict pairs
        cdef object peer, last
        cdef str nic
        for index in indices:
            delays += 2 * batches.message(index).samples
        if not ft_reserve_delays(&self._slots, delays):
            raise MemoryError(f"no memory for {delays} delays")
        for index in indices:
            m = batches.message(index)
            if m.is_refused:
                raise ValueError(f"message {index}: refused")
            nic = batches.nics[index]
            own = self._clock(self._number(nic), models.get(nic))[0]
            pairs = self._peers_of(nic)
            mark[0], mark[1] = m.first_mark[0], m.first_mark[1]
            last = None
            for g in range(m.first_group, m.first_group + m.groups):
                peer = batches.peers[g]
                if peer is not last:
                    pair = self._pair(pairs, nic, peer)
                    other = self._clock(self._pairs[pair].peer, models.get(peer))
                    last = peer
                if not ft_add_group(&self._slots, b, g, mark, pair, self._pairs[pair].noise_ns, &own, other,
                                    m.system_ns - m.clock_ns):
                    raise MemoryError("no memory for a path")

    def take(self):
        """Return the `QueueingColumns` of all samples since the last call, and forget them."""
        cdef int64_t first, k
        if not ft_take_slots(&self._slots, &first):
            raise MemoryError(f"no memory for the slots of {self._slots.n_delays} delays")
        cdef int64_t rows = self._slots.n_used, cells = self._slots.n_cells
        cdef ft_used_path *used
        cdef ft_path *path
        cdef ft_cell *cell
        prober, peer, paths, directions, singles, idle, lost, counts = [_empty(rows, _i8) for _ in range(8)]
        floor_ns, noise_ns, dscp = _empty(rows, _f8), _empty(rows, _f8), _empty(rows, _i4)
        slot, count, marked = _empty(cells, _i4), _empty(cells, _i4), _empty(cells, _i4)
        min_ns, mean_ns, at_ns = _empty(cells, _f8), _empty(cells, _f8), _empty(cells, _i8)
        cdef int64_t *prober_ = <int64_t *>_data(prober)
        cdef int64_t *peer_ = <int64_t *>_data(peer)
        cdef int64_t *path_ = <int64_t *>_data(paths)
        cdef int64_t *direction_ = <int64_t *>_data(directions)
        cdef int64_t *singles_ = <int64_t *>_data(singles)
        cdef int64_t *idle_ = <int64_t *>_data(idle)
        cdef int64_t *lost_ = <int64_t *>_data(lost)
        cdef int64_t *cells_ = <int64_t *>_data(counts)
        cdef double *floor_ = <double *>_data(floor_ns)
        cdef double *noise_ = <double *>_data(noise_ns)
        cdef int32_t *dscp_ = <int32_t *>_data(dscp)
        for k in range(rows):
            used = &self._slots.used[k]
            path = &self._slots.paths[used.row]
            prober_[k], peer_[k] = self._pairs[path.pair].prober, self._pairs[path.pair].peer
            path_[k], direction_[k], dscp_[k] = path.path, path.direction, path.dscp
            singles_[k], idle_[k], lost_[k], cells_[k] = used.singles, used.idle, path.lost, used.cells
            floor_[k], noise_[k] = ft_floor_of(path), path.noise_ns
            path.lost = 0
        cdef int32_t *slot_ = <int32_t *>_data(slot)
        cdef int32_t *count_ = <int32_t *>_data(count)
        cdef int32_t *marked_ = <int32_t *>_data(marked)
        cdef double *min_ = <double *>_data(min_ns)
        cdef double *mean_ = <double *>_data(mean_ns)
        cdef int64_t *at_ = <int64_t *>_data(at_ns)
        for k in range(cells):
            cell = &self._slots.cells[k]
            slot_[k], count_[k], marked_[k] = cell.slot, cell.count, cell.marked
            min_[k], mean_[k], at_[k] = cell.min_ns, cell.mean_ns, cell.at_ns
        return QueueingColumns(
            first * self._slots.slot_ns, prober, peer, paths, directions, floor_ns, noise_ns, singles, idle, lost,
            counts, slot, count, min_ns, mean_ns, at_ns, dscp, marked,
        )

    def table(self, prober, peer):
        """Return numbers of NICs as places in a table of their own: (probers, peers, the table's names).

        The table has each NIC once, probers first, in order of first appearance.
        """
        cdef int64_t rows = len(prober), k, n = len(self.nics)
        cdef list names = []
        cdef int64_t *place = <int64_t *>malloc((n + 1) * sizeof(int64_t))
        cdef const int64_t *numbers
        cdef int64_t *places
        if place == NULL:
            raise MemoryError(f"no memory for {n} NICs")
        for k in range(n):
            place[k] = -1
        try:
            columns = []
            for column in (prober, peer):
                numbers = <const int64_t *>_data(column)
                places_of_column = _empty(rows, _i8)
                places = <int64_t *>_data(places_of_column)
                for k in range(rows):
                    if place[numbers[k]] < 0:
                        place[numbers[k]] = len(names)
                        names.append(self.nics[numbers[k]])
                    places[k] = place[numbers[k]]
                columns.append(places_of_column)
        finally:
            free(place)
        return columns[0], columns[1], names
