# cython: boundscheck=False, wraparound=False, cdivision=True
"""Loops over the rows and cells of `PathQueueing` on their way to the solver of queues.

A row is one path in one direction, a cell its probes in one slot.
"""

from libc.math cimport fabs
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memmove

import numpy as np

__all__ = ["CellStore", "add_idle", "busy_shares", "check_columns", "count_links", "find_routes", "lay_out",
           "own_delays"]

cdef enum:
    MIN_CELLS = 64  # of a bucket


cdef struct _Cell:
    int64_t slot
    double at, count, mean_ns, noise_ns, ce
    int32_t route


cdef struct _Bucket:
    int64_t number, cells, capacity
    _Cell *cell


cdef int _check_routes(const int32_t[::1] route, int64_t routes) except -1:
    cdef int64_t i
    for i in range(route.shape[0]):
        if not 0 <= route[i] < routes:
            raise ValueError(f"cell {i}: route {route[i]}, expected 0 to {routes - 1}")
    return 0


cdef inline int64_t _floor_divided(int64_t value, int64_t by) noexcept nogil:
    return value // by if value >= 0 else -((by - 1 - value) // by)


cdef class CellStore:
    """Cells in buckets of `bucket_slots` slots, each in the order in which they were added.

    Cells are taken by slots, at a cost that does not depend on how many others there are. Raises ValueError for
    columns of different lengths.
    """

    cdef int64_t _slots, _buckets, _capacity
    cdef _Bucket *_bucket  # ascending by number

    def __init__(self, int64_t bucket_slots):
        if bucket_slots < 1:
            raise ValueError(f"bucket_slots {bucket_slots}: expected at least 1")
        self._slots = bucket_slots

    def __dealloc__(self):
        self._clear()
        free(self._bucket)

    def __bool__(self):
        return self._buckets > 0

    cdef void _clear(self) noexcept nogil:
        cdef int64_t b
        for b in range(self._buckets):
            free(self._bucket[b].cell)
        self._buckets = 0

    def clear(self):
        """Drop all cells."""
        self._clear()

    cdef _Bucket *_bucket_of(self, int64_t slot) except NULL nogil:
        """Return the bucket of a slot with space for one more cell."""
        cdef int64_t number = _floor_divided(slot, self._slots), b = self._buckets, capacity
        cdef _Bucket *bucket
        cdef _Bucket *buckets
        cdef _Cell *cells
        while b and self._bucket[b - 1].number > number:
            b -= 1
        if not b or self._bucket[b - 1].number < number:
            if self._buckets == self._capacity:
                capacity = 2 * self._capacity + 8
                buckets = <_Bucket *>realloc(self._bucket, capacity * sizeof(_Bucket))
                if buckets == NULL:
                    with gil:
                        raise MemoryError(f"no memory for {capacity} buckets of cells")
                self._bucket, self._capacity = buckets, capacity
            memmove(&self._bucket[b + 1], &self._bucket[b], (self._buckets - b) * sizeof(_Bucket))
            self._bucket[b] = _Bucket(number, 0, 0, NULL)
            self._buckets += 1
            b += 1
        bucket = &self._bucket[b - 1]
        if bucket.cells == bucket.capacity:
            capacity = 2 * bucket.capacity + MIN_CELLS
            cells = <_Cell *>realloc(bucket.cell, capacity * sizeof(_Cell))
            if cells == NULL:
                with gil:
                    raise MemoryError(f"no memory for {capacity} cells")
            bucket.cell, bucket.capacity = cells, capacity
        return bucket

    cdef int _add(self, const _Cell *cell) except -1 nogil:
        cdef _Bucket *bucket = self._bucket_of(cell.slot)
        bucket.cell[bucket.cells] = cell[0]
        bucket.cells += 1
        return 0

    def add(self, const int64_t[::1] slot, const int32_t[::1] route, const double[::1] at, const double[::1] count,
            const double[::1] mean_ns, const double[::1] noise_ns, const double[::1] ce):
        """Add cells by columns."""
        cdef int64_t cells = slot.shape[0], i
        cdef _Cell cell
        if not (route.shape[0] == at.shape[0] == count.shape[0] == mean_ns.shape[0] == noise_ns.shape[0]
                == ce.shape[0] == cells):
            raise ValueError("cells: expected columns of one length")
        with nogil:
            for i in range(cells):
                cell = _Cell(slot[i], at[i], count[i], mean_ns[i], noise_ns[i], ce[i], route[i])
                self._add(&cell)

    def add_rows(self, int64_t first_slot, double slot_ns, double min_noise_ns, const int32_t[::1] route,
                 const int64_t[::1] cells, const float[::1] noise_ns, const int64_t[::1] slot,
                 const int64_t[::1] count, const float[::1] mean_ns, const int64_t[::1] at_ns, const int64_t[::1] ce):
        """Add the cells of rows with a route; `route` is -1 for the others.

        `cells`: elements of the columns behind it that belong to each row. `at_ns` may be empty: the middle of the
        slot; `ce` too: no marks.
        """
        cdef int64_t rows = route.shape[0], all_cells = slot.shape[0], row, i = 0, end = 0
        cdef bint timed = at_ns.shape[0] > 0, marked = ce.shape[0] > 0
        cdef _Cell cell
        if not (cells.shape[0] == noise_ns.shape[0] == rows and count.shape[0] == mean_ns.shape[0] == all_cells):
            raise ValueError("rows: expected columns of one length")
        if (timed and at_ns.shape[0] != all_cells) or (marked and ce.shape[0] != all_cells):
            raise ValueError(f"at_ns, ce: {at_ns.shape[0]}, {ce.shape[0]} elements, expected {all_cells} or none")
        with nogil:
            for row in range(rows):
                end += cells[row]
                if cells[row] < 0 or end > all_cells:
                    with gil:
                        raise ValueError(f"cells of row {row}: {cells[row]}, expected {all_cells} together")
                if route[row] < 0:
                    i = end
                cell.route = route[row]
                cell.noise_ns = noise_ns[row] if noise_ns[row] > min_noise_ns else min_noise_ns
                while i < end:
                    cell.slot = first_slot + slot[i]
                    cell.at = at_ns[i] / slot_ns if timed else 0.5
                    cell.count, cell.mean_ns, cell.ce = count[i], mean_ns[i], ce[i] if marked else 0
                    self._add(&cell)
                    i += 1

    cdef tuple _columns(self, int64_t bucket, int64_t end_bucket, int64_t begin, int64_t end):
        """Return the columns of the cells of slots [begin, end) in buckets [bucket, end_bucket)."""
        cdef int64_t b, i, n = 0
        cdef _Cell *cell
        for b in range(bucket, end_bucket):
            for i in range(self._bucket[b].cells):
                n += begin <= self._bucket[b].cell[i].slot < end
        columns = (np.empty(n, np.int64), np.empty(n, np.int32), np.empty(n), np.empty(n), np.empty(n), np.empty(n),
                   np.empty(n))
        cdef int64_t[::1] slot = columns[0]
        cdef int32_t[::1] route = columns[1]
        cdef double[::1] at = columns[2], count = columns[3], mean_ns = columns[4], noise_ns = columns[5]
        cdef double[::1] ce = columns[6]
        n = 0
        for b in range(bucket, end_bucket):
            for i in range(self._bucket[b].cells):
                cell = &self._bucket[b].cell[i]
                if begin <= cell.slot < end:
                    slot[n], route[n], at[n], count[n] = cell.slot, cell.route, cell.at, cell.count
                    mean_ns[n], noise_ns[n], ce[n] = cell.mean_ns, cell.noise_ns, cell.ce
                    n += 1
        return columns

    def waiting(self, int64_t begin, int64_t end):
        """Return the columns of the cells of slots [begin, end), in the order of `add`."""
        cdef int64_t first = 0, last
        while first < self._buckets and (self._bucket[first].number + 1) * self._slots <= begin:
            first += 1
        last = first
        while last < self._buckets and self._bucket[last].number * self._slots < end:
            last += 1
        return self._columns(first, last, begin, end)

    def take(self, int64_t begin, int64_t end):
        """Remove the cells before slot `end`; return the columns of those of [begin, end), and the number of
        earlier ones."""
        cdef int64_t last = 0, b, i, n, late = 0, removed = 0
        cdef _Bucket *bucket
        while last < self._buckets and self._bucket[last].number * self._slots < end:
            last += 1
        columns = self._columns(0, last, begin, end)
        for b in range(last):
            bucket = &self._bucket[b]
            n = 0
            for i in range(bucket.cells):
                late += bucket.cell[i].slot < begin
                if bucket.cell[i].slot >= end:
                    bucket.cell[n] = bucket.cell[i]
                    n += 1
            bucket.cells = n
            if n == 0:
                free(bucket.cell)
                removed = b + 1  # only the last one may have any left
        memmove(self._bucket, &self._bucket[removed], (self._buckets - removed) * sizeof(_Bucket))
        self._buckets -= removed
        return columns, late


def own_delays(const int32_t[::1] route, const double[::1] mean_ns, const double[::1] noise_ns,
               const int64_t[::1] senders, const int64_t[::1] last_links, int64_t min_receivers, double sigmas):
    """Return [cells] delay without the sender's own.

    `senders` and `last_links` are by route; the sender is -1 for a round trip. A sender's own delay is the least of
    its cells, if these have at least `min_receivers` last links, and if it is above `sigmas` of a cell's noise.
    """
    cdef int64_t cells = route.shape[0], nics = 0, i, j, sender
    _check_routes(route, senders.shape[0])
    for i in range(senders.shape[0]):
        nics = max(nics, senders[i] + 1)
    delay, own = np.array(mean_ns), np.full(nics, np.inf)
    receivers, seen = np.zeros(nics, np.int64), np.empty((nics, min_receivers), np.int64)
    cdef double[::1] delay_ = delay, own_ = own
    cdef int64_t[::1] receivers_ = receivers
    cdef int64_t[:, ::1] seen_ = seen
    with nogil:
        for i in range(cells):
            sender = senders[route[i]]
            if sender < 0:
                continue
            own_[sender] = mean_ns[i] if mean_ns[i] < own_[sender] else own_[sender]
            j = 0
            while j < receivers_[sender] and seen_[sender, j] != last_links[route[i]]:
                j += 1
            if j == receivers_[sender] and j < min_receivers:
                seen_[sender, j] = last_links[route[i]]
                receivers_[sender] += 1
        for i in range(cells):
            sender = senders[route[i]]
            if sender >= 0 and receivers_[sender] == min_receivers and own_[sender] > sigmas * noise_ns[i]:
                delay_[i] -= own_[sender]
    return delay


def find_routes(const int64_t[::1] keys, const int32_t[::1] route_at, const int64_t[::1] ids,
                const int64_t[::1] nic, const int64_t[::1] peer, const int64_t[::1] path,
                const int64_t[::1] direction, const int64_t[::1] dscp):
    """Return ([rows] key of each path, [rows] its route, -1 if it is in no `keys`, whether all are in).

    `keys`: ascending, with the route of each in `route_at`. `ids`: numbers of the NICs that `nic` and `peer` are
    indices of. `dscp` may be empty: 0. Raises ValueError for columns of different lengths and for other indices.
    """
    cdef int64_t rows = nic.shape[0], row, low, high, middle, key
    cdef bint classed = dscp.shape[0] > 0, complete = True
    if not (peer.shape[0] == path.shape[0] == direction.shape[0] == rows) or (classed and dscp.shape[0] != rows):
        raise ValueError("rows: expected columns of one length")
    key_of_row, route_of_row = np.empty(rows, np.int64), np.full(rows, -1, np.int32)
    cdef int64_t[::1] key_ = key_of_row
    cdef int32_t[::1] route_ = route_of_row
    for row in range(rows):
        if not (0 <= nic[row] < ids.shape[0] and 0 <= peer[row] < ids.shape[0]):
            raise ValueError(f"row {row}: NICs {nic[row]}, {peer[row]}, expected 0 to {ids.shape[0] - 1}")
        key = ids[nic[row]] << 48 | ids[peer[row]] << 33 | path[row] << 2 | direction[row]
        key |= dscp[row] << 26 if classed else 0
        key_[row] = key
        low, high = 0, keys.shape[0]
        while low < high:
            middle = (low + high) // 2
            if keys[middle] < key:
                low = middle + 1
            else:
                high = middle
        if low < keys.shape[0] and keys[low] == key:
            route_[row] = route_at[low]
        else:
            complete = False
    return key_of_row, route_of_row, complete


def add_idle(const int32_t[::1] route, const int64_t[::1] direction, const int64_t[::1] singles,
             const int64_t[::1] idle, int64_t round_trip, int64_t[::1] all_singles, int64_t[::1] all_idle):
    """Add the single and idle probes of rows with a route to its sums, except those of round trips."""
    cdef int64_t row
    if not (direction.shape[0] == singles.shape[0] == idle.shape[0] == route.shape[0]):
        raise ValueError("rows: expected columns of one length")
    for row in range(route.shape[0]):
        if 0 <= route[row] < all_singles.shape[0] and singles[row] > 0 and direction[row] != round_trip:
            all_singles[route[row]] += singles[row]
            all_idle[route[row]] += idle[row]


cdef struct _Timed:
    double when
    int64_t cell


cdef int _later(const void *a, const void *b) noexcept nogil:
    cdef const _Timed *one = <const _Timed *>a
    cdef const _Timed *other = <const _Timed *>b
    if one.when != other.when:
        return 1 if one.when > other.when else -1
    return 1 if one.cell > other.cell else -1


cdef void _sort(_Timed *timed, int64_t n) noexcept nogil:
    """Sort a slot's cells by time, equal ones in their order: there are few."""
    cdef int64_t i, j
    cdef _Timed own
    if n > MIN_CELLS:
        qsort(timed, n, sizeof(_Timed), _later)
        return
    for i in range(1, n):
        own = timed[i]
        j = i
        while j and timed[j - 1].when > own.when:
            timed[j] = timed[j - 1]
            j -= 1
        timed[j] = own


def lay_out(const int64_t[::1] slot, const int32_t[::1] route, const double[::1] at, const double[::1] count,
            const double[::1] mean_ns, const double[::1] noise_ns, int64_t first, int64_t slots, int64_t fold,
            int64_t every):
    """Return ([slots / fold + 1] first cell of each slot of so many, route, at, count, mean_ns, noise_ns of the cells
    in the order of their times, [cells] whether a cell is kept back).

    `slot`: `first` to `first` + `slots`. One cell in `every` is kept back, a fixed choice, and is in no slot.
    """
    cdef int64_t cells = slot.shape[0], rows = slots // fold, i, n, t, row
    cdef double inverse = 1.0 / fold
    if not (route.shape[0] == at.shape[0] == count.shape[0] == mean_ns.shape[0] == noise_ns.shape[0] == cells):
        raise ValueError("cells: expected columns of one length")
    back, start = np.zeros(cells, np.bool_), np.zeros(rows + 1, np.int64)
    cdef unsigned char[::1] back_ = back.view(np.uint8)
    cdef int64_t[::1] start_ = start, next_ = np.zeros(rows + 1, np.int64)
    for i in range(cells):
        if not first <= slot[i] < first + rows * fold:
            raise ValueError(f"cell {i}: slot {slot[i]}, expected {first} to {first + rows * fold - 1}")
        back_[i] = (slot[i] * 7_919 + <int64_t>route[i] * 104_729) % every == 0
        if not back_[i]:
            start_[(slot[i] - first) // fold + 1] += 1
    for row in range(rows):
        start_[row + 1] += start_[row]
        next_[row] = start_[row]
    n = start_[rows]
    buffer = np.empty(n * sizeof(_Timed) + 1, np.uint8)
    cdef unsigned char[::1] buffer_ = buffer
    cdef _Timed *timed = <_Timed *>&buffer_[0]
    for i in range(cells):
        if not back_[i]:
            row = (slot[i] - first) // fold
            timed[next_[row]] = _Timed((slot[i] - first + at[i]) * inverse - row, i)
            next_[row] += 1
    columns = (np.empty(n, np.int32), np.empty(n), np.empty(n), np.empty(n), np.empty(n))
    cdef int32_t[::1] route_ = columns[0]
    cdef double[::1] at_ = columns[1], count_ = columns[2], mean_ = columns[3], noise_ = columns[4]
    for row in range(rows):
        _sort(&timed[start_[row]], start_[row + 1] - start_[row])
    for t in range(n):
        i = timed[t].cell
        route_[t], at_[t], count_[t], mean_[t], noise_[t] = route[i], timed[t].when, count[i], mean_ns[i], noise_ns[i]
    return start, columns, back


def count_links(const int64_t[::1] route_start, const int64_t[::1] route_link, const int32_t[::1] route,
                const double[::1] count, int64_t links):
    """Return [links] sum of the counts of the cells whose routes cross each link."""
    cdef int64_t i, j
    _check_routes(route, route_start.shape[0] - 1)
    crossed = np.zeros(links, np.int64)
    cdef int64_t[::1] crossed_ = crossed
    for i in range(route.shape[0]):
        for j in range(route_start[route[i]], route_start[route[i] + 1]):
            crossed_[route_link[j]] += <int64_t>count[i]
    return crossed


def busy_shares(const int64_t[::1] route_start, const int32_t[::1] route_link, const double[::1] probes,
                const double[::1] delayed, double[::1] share, double max_share, int iterations):
    """Renew the share of time that each link is busy so many times; return ([routes] share of time that all of its
    links are idle, [links] probes that crossed each).

    streams/queues/utilisation.py has the derivation.
    """
    cdef int64_t routes = probes.shape[0], links = share.shape[0], r, j, l
    cdef int number
    cdef double idle, blame
    free_, seen, sums = np.empty(routes), np.zeros(links), np.empty(links)
    cdef double[::1] free_share = free_, crossed = seen, sum_ = sums
    with nogil:
        for r in range(routes):
            for j in range(route_start[r], route_start[r + 1]):
                crossed[route_link[j]] += probes[r]
        for number in range(iterations + 1):
            for l in range(links):
                sum_[l] = 0
            for r in range(routes):
                idle = 1
                for j in range(route_start[r], route_start[r + 1]):
                    idle *= 1 - share[route_link[j]]
                free_share[r] = idle
                if delayed[r] > 0:
                    blame = delayed[r] / (1 - idle if 1 - idle > 1e-9 else 1e-9)
                    for j in range(route_start[r], route_start[r + 1]):
                        sum_[route_link[j]] += blame
            if number == iterations:
                break
            for l in range(links):
                share[l] *= sum_[l] / (crossed[l] if crossed[l] > 1e-9 else 1e-9)
                share[l] = share[l] if share[l] < max_share else max_share
    return free_, seen


def check_columns(const float[::1] mean_ns, const int64_t[::1] cells, const int64_t[::1] nic,
                  const int64_t[::1] peer, const int64_t[::1] direction, const int64_t[::1] slot,
                  const int64_t[::1] count, const int64_t[::1] at_ns, const int64_t[::1] ce):
    """Return the sum of `cells`, the largest `nic` and `peer`, the least and largest `direction`, the least `count`,
    the largest `slot`, `at_ns` and size of a `mean_ns`, and whether all `ce` are at most the `count` of their cell.

    Of empty columns: 0. `ce` has as many elements as `count`, or none.
    """
    cdef int64_t i, total = 0, max_nic = 0, max_peer = 0, low = 3, high = 1, min_count = 1, max_slot = 0, max_at = 0
    cdef double max_mean_ns = 0
    cdef bint fits = True
    for i in range(cells.shape[0]):
        total += cells[i]
    for i in range(nic.shape[0]):
        max_nic = max(max_nic, nic[i])
        max_peer = max(max_peer, peer[i])
        low, high = min(low, direction[i]), max(high, direction[i])
    for i in range(slot.shape[0]):
        max_slot, min_count = max(max_slot, slot[i]), min(min_count, count[i])
        max_mean_ns = max(max_mean_ns, fabs(mean_ns[i]))
    for i in range(at_ns.shape[0]):
        max_at = max(max_at, at_ns[i])
    for i in range(ce.shape[0]):
        fits = fits and ce[i] <= count[i]
    return total, max_nic, max_peer, low, high, min_count, max_slot, max_at, max_mean_ns, fits
