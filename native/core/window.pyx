"""Collects one prober's samples of one window, and computes pair fits and path delays.

`ProbeBatches` are used as decoded (their columns are borrowed, not copied). With the clock models they give
`PairFits` and `PathDelayColumns`. fit.c and reduce.c have the formulas.
"""

from libc.math cimport isfinite
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t

import numpy as np

from native.core.decode cimport ProbeBatches, ft_batches, ft_message

from native.core.columns import PairFits, PathDelayColumns
from native.core.decode import batches_of

__all__ = ["BUCKETS", "NicWindow", "bucket_edges_ns", "bucket_of"]

cdef extern from "window.h":
    enum:
        FT_BUCKETS
        FT_CORNERS
    struct ft_piece:
        const int64_t *sent
        const int64_t *forward
        const int64_t *turnaround
        const int64_t *reverse
        int64_t n
        int32_t spacing_ns
    struct ft_chain:
        int64_t samples
    struct ft_row:
        int32_t peer, path, dscp
        int64_t lost, no_t3, ecn
        int64_t ce[2]
        ft_chain chain
    struct ft_window:
        ft_row *rows
        int64_t n_rows
        ft_chain *peers
        int64_t n_peers
        int64_t samples
    struct ft_pair_fit:
        int64_t at_ns
        int64_t offset_ns
        double offset_fraction_ns, drift_ppb, sigma_ns, drift_sigma_ppb, rtt_min_ns, margin_ns, noise_ns
        int64_t samples, accepted
        int forward_corners, reverse_corners
        int64_t forward_after_ns[8]
        int64_t reverse_after_ns[8]
        double forward_delay_ns[8]
        double reverse_delay_ns[8]
    struct ft_line:
        int known
        int64_t at_ns
        int64_t offset_ns
        double offset_fraction_ns, drift_ppb, bound_ns
    struct ft_delays:
        double forward[3]
        double reverse[3]
        double rtt[3]
        double bound_ns
        uint32_t forward_bucket[256]
        uint32_t reverse_bucket[256]
    int ft_window_add(ft_window *w, int32_t peer, int32_t path, int32_t dscp, ft_piece piece, const int64_t *counts)
    void ft_window_free(ft_window *w)
    int ft_fit(ft_window *w, const ft_chain *chain, ft_pair_fit *fit) nogil
    int ft_reduce(ft_window *w, const ft_row *row, const ft_line *prober, const ft_line *peer, ft_delays *out) nogil
    int ft_bucket(double ns)

BUCKETS = FT_BUCKETS

cdef object _empty = np.empty
cdef object _i4 = np.dtype(np.int32)
cdef object _i8 = np.dtype(np.int64)
cdef object _f8 = np.dtype(np.float64)


def bucket_of(double ns):
    """Return the histogram bucket of a delay: 4 * floor(log2 ns) + its next two bits; 0 below 1 ns, 255 at most."""
    return ft_bucket(ns)


def bucket_edges_ns(int bucket):
    """Return (low, high) of a bucket in ns: low inclusive, high exclusive. Raises ValueError outside 0..255."""
    if bucket < 0 or bucket >= FT_BUCKETS:
        raise ValueError(f"bucket {bucket}: expected 0 to {FT_BUCKETS - 1}")
    return (0.0 if bucket == 0 else _edge(bucket), _edge(bucket + 1))


cdef double _edge(int bucket):
    return (4 + bucket % 4) * 2.0 ** (bucket // 4 - 2)


cdef object _MAX_OFFSET_NS = 4 * 10**18  # the difference of two fits into 64 bits


cdef ft_line _line(object clock) except *:
    """Return a ClockLine for C; without one, or with figures that are none, `known` is 0."""
    cdef ft_line line
    line.known = 0
    line.at_ns = line.offset_ns = 0
    line.offset_fraction_ns = line.drift_ppb = line.bound_ns = 0
    if clock is not None and -_MAX_OFFSET_NS < clock.offset_ns < _MAX_OFFSET_NS:
        line.at_ns = clock.at_ns
        line.offset_ns = clock.offset_ns
        line.offset_fraction_ns = clock.offset_fraction_ns
        line.drift_ppb = clock.drift_ppb
        line.bound_ns = clock.bound_ns
        line.known = (abs(line.offset_fraction_ns) < 2 and isfinite(line.drift_ppb) and isfinite(line.bound_ns)
                      and line.bound_ns >= 0 and abs(line.drift_ppb) < 1e9)
    return line


cdef class NicWindow:
    """All samples of one prober in one window.

    `fit` and `delays` give up the interpreter lock: while one of them runs, another thread's call on the same
    window is refused with RuntimeError.
    """

    cdef ft_window _window
    cdef readonly str nic
    cdef list _kept
    cdef list _peers
    cdef dict _numbers
    cdef bint _busy

    cdef int _claim(self) except -1:
        if self._busy:
            raise RuntimeError(f"window of {self.nic}: in use by another thread, expected one at a time")
        self._busy = True
        return 0

    def __init__(self, str nic not None):
        self.nic = nic

    def __cinit__(self, *args, **kwargs):
        self._kept = []
        self._peers = []
        self._numbers = {}

    def __dealloc__(self):
        ft_window_free(&self._window)

    @property
    def samples(self):
        """Number of samples added."""
        return self._window.samples

    def add(self, columns):
        """Add a copy of one batch of this prober, `ProbeColumns`. Raises ValueError as `add_message` does, and
        where the columns do not fit each other; nothing of the batch is added then."""
        if columns.nic != self.nic:
            raise ValueError(f"batch of {columns.nic!r}: expected one of {self.nic!r}")
        self.add_message(batches_of([columns]), 0)

    def add_message(self, ProbeBatches batches not None, int64_t index):
        """Add a message of this prober.

        Raises ValueError where the message is another prober's or was refused; nothing of it is added then.
        """
        cdef ft_message *m = batches.message(index)
        cdef ft_batches *b = &batches.b
        cdef int64_t counts[5]
        cdef int64_t mark[2]
        cdef int64_t g, i, first
        cdef int direction
        cdef ft_piece piece
        cdef object last = None, peer, number
        cdef int32_t peer_number = 0
        if self._busy:
            self._claim()
        if m.is_refused or batches.nics[index] != self.nic:
            raise ValueError(f"batch of {batches.nics[index]!r}: expected one of {self.nic!r}")
        if not self._kept or self._kept[-1] is not batches:
            self._kept.append(batches)
        mark[0], mark[1] = m.first_mark[0], m.first_mark[1]
        for g in range(m.first_group, m.first_group + m.groups):
            peer = batches.peers[g]
            if peer is not last:
                number = self._numbers.get(peer)
                if number is None:
                    number = len(self._peers)
                    self._numbers[peer] = number
                    self._peers.append(peer)
                peer_number = number
                last = peer
            i = b.start[g]
            piece.sent, piece.forward = b.column[0] + i, b.column[1] + i
            piece.turnaround, piece.reverse = b.column[2] + i, b.column[3] + i
            piece.n = b.start[g + 1] - i
            piece.spacing_ns = b.spacing_ns[g]
            counts[0], counts[1], counts[2] = b.lost[g], b.no_t3[g], b.ecn[g]
            for direction in range(2):
                first = mark[direction]
                while mark[direction] < b.marks[direction] and b.marked[direction][mark[direction]] < b.start[g + 1]:
                    mark[direction] += 1
                counts[3 + direction] = mark[direction] - first
            if not ft_window_add(&self._window, peer_number, b.path[g], b.dscp[g], piece, counts):
                raise MemoryError(f"no memory for group {g - m.first_group} of {m.groups}")

    def fit(self):
        """Return the `PairFits` of the window: a row a peer with at least one accepted sample."""
        self._claim()
        try:
            return self._fit()
        finally:
            self._busy = False

    cdef _fit(self):
        cdef int64_t n = self._window.n_peers, i, k = 0, c, k_forward = 0, k_reverse = 0
        cdef ft_pair_fit fit
        cdef int done
        whole = _empty((4, n), _i8)
        real = _empty((7, n), _f8)
        start = np.zeros((2, n + 1), _i8)
        after = _empty((2, FT_CORNERS * n), _i8)
        delay = _empty((2, FT_CORNERS * n), _f8)
        cdef int64_t[:, ::1] whole_ = whole
        cdef double[:, ::1] real_ = real
        cdef int64_t[:, ::1] start_ = start
        cdef int64_t[:, ::1] after_ = after
        cdef double[:, ::1] delay_ = delay
        cdef list peers = []
        for i in range(n):
            with nogil:
                done = ft_fit(&self._window, &self._window.peers[i], &fit)
            if done < 0:
                raise MemoryError(f"no memory for {self._window.peers[i].samples} samples")
            if done and fit.accepted > 0:
                peers.append(self._peers[i])
                whole_[0, k] = fit.at_ns
                whole_[1, k] = fit.samples
                whole_[2, k] = fit.accepted
                whole_[3, k] = fit.offset_ns
                real_[0, k] = fit.offset_fraction_ns
                real_[1, k] = fit.drift_ppb
                real_[2, k] = fit.sigma_ns
                real_[3, k] = fit.drift_sigma_ppb
                real_[4, k] = fit.rtt_min_ns
                real_[5, k] = fit.margin_ns
                real_[6, k] = fit.noise_ns
                for c in range(fit.forward_corners):
                    after_[0, k_forward] = fit.forward_after_ns[c]
                    delay_[0, k_forward] = fit.forward_delay_ns[c]
                    k_forward += 1
                for c in range(fit.reverse_corners):
                    after_[1, k_reverse] = fit.reverse_after_ns[c]
                    delay_[1, k_reverse] = fit.reverse_delay_ns[c]
                    k_reverse += 1
                k += 1
                start_[0, k] = k_forward
                start_[1, k] = k_reverse
        return PairFits(peers, whole[0, :k], whole[3, :k], real[0, :k], real[1, :k], real[2, :k], real[3, :k],
                        real[4, :k], real[5, :k], real[6, :k], whole[1, :k], whole[2, :k],
                        start[0, :k + 1], after[0, :k_forward].copy(), delay[0, :k_forward].copy(),
                        start[1, :k + 1], after[1, :k_reverse].copy(), delay[1, :k_reverse].copy())

    def delays(self, prober, peers):
        """Return the `PathDelayColumns` of the window: a row a (peer, path, class) with a request in it.

        `prober` is the prober's ClockLine or None, `peers` maps a peer's name to its ClockLine. Without both
        lines a row's one-way figures are NaN and its histograms empty; round trips need no clock. Times of
        one-way figures are fabric time; a round trip that stamps make negative counts as 0.
        """
        self._claim()
        try:
            return self._delays(prober, peers)
        finally:
            self._busy = False

    cdef _delays(self, prober, peers):
        cdef int64_t n = self._window.n_rows, r, b, k_forward = 0, k_reverse = 0
        cdef int done
        cdef const ft_row *row
        cdef ft_delays out
        cdef ft_line own = _line(prober), other
        cdef list lines = [peers.get(name) for name in self._peers]
        cdef list names = []
        path = _empty(n, _i4)
        whole = _empty((6, n), _i8)
        dscp = _empty(n, _i4)
        real = _empty((10, n), _f8)
        start = np.zeros((2, n + 1), _i8)
        buckets = _empty((4, 64 * n + FT_BUCKETS), _i4)
        cdef int32_t[::1] path_ = path
        cdef int32_t[::1] dscp_ = dscp
        cdef int64_t[:, ::1] whole_ = whole
        cdef double[:, ::1] real_ = real
        cdef int64_t[:, ::1] start_ = start
        cdef int32_t[:, ::1] buckets_ = buckets
        for r in range(n):
            row = &self._window.rows[r]
            other = _line(lines[row.peer])
            with nogil:
                done = ft_reduce(&self._window, row, &own, &other, &out)
            if not done:
                raise MemoryError(f"no memory for {row.chain.samples} samples")
            names.append(self._peers[row.peer])
            path_[r] = row.path
            whole_[0, r] = row.chain.samples
            # a record's counts are ints
            whole_[1, r] = min(row.lost, <int64_t>INT32_MAX)
            whole_[2, r] = min(row.no_t3, <int64_t>INT32_MAX)
            dscp_[r] = row.dscp
            whole_[3, r] = min(row.ecn, <int64_t>INT32_MAX)
            whole_[4, r] = min(row.ce[0], <int64_t>INT32_MAX)
            whole_[5, r] = min(row.ce[1], <int64_t>INT32_MAX)
            for b in range(3):
                real_[b, r] = out.forward[b]
                real_[3 + b, r] = out.reverse[b]
                real_[6 + b, r] = out.rtt[b]
            real_[9, r] = out.bound_ns
            if max(k_forward, k_reverse) + FT_BUCKETS > buckets_.shape[1]:
                buckets = np.concatenate([buckets, _empty((4, buckets_.shape[1]), _i4)], axis=1)
                buckets_ = buckets
            for b in range(FT_BUCKETS):
                if out.forward_bucket[b]:
                    buckets_[0, k_forward] = b
                    buckets_[1, k_forward] = out.forward_bucket[b]
                    k_forward += 1
                if out.reverse_bucket[b]:
                    buckets_[2, k_reverse] = b
                    buckets_[3, k_reverse] = out.reverse_bucket[b]
                    k_reverse += 1
            start_[0, r + 1] = k_forward
            start_[1, r + 1] = k_reverse
        return PathDelayColumns(
            names, path, whole[0], whole[1], whole[2], real[0], real[1], real[2], real[3], real[4], real[5],
            real[6], real[7], real[8], real[9],
            start[0], buckets[0, :k_forward].copy(), buckets[1, :k_forward].copy(),
            start[1], buckets[2, :k_reverse].copy(), buckets[3, :k_reverse].copy(),
            dscp, whole[3], whole[4], whole[5],
        )

