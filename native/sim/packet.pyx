"""Python interface of the packet simulation: flows, probes and the exact state of every queue.

Results are the probes' times, and each queue's depth and utilisation by slot. See packet.c for the method.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memset

import numpy as np

from native.sim.columns import Dcqcn, FlowColumns, LinkTruth, ProbeTruth

__all__ = ["PacketSim"]

cdef extern from "packet.h":
    enum:
        FT_POISSON
        FT_BURSTY
        FT_MESSAGE

    struct ft_queue:
        int64_t delay_ps
        int64_t buffer_ps
        uint64_t byte_fx
        int64_t mark_from_ps
        int64_t mark_full_ps
        double mark_share
        double loss

    struct ft_control:
        double rate

    struct ft_rules:
        double g
        double additive
        double hyper
        double min_rate
        int64_t notify_every_ps
        int64_t decay_ps
        int64_t rise_ps
        int64_t rise_bytes
        int32_t fast_steps

    struct ft_flow:
        int32_t path
        uint8_t kind
        uint16_t packet_bytes
        int32_t control
        double rate
        double burst
        double pause_ps
        int64_t stop_ps
        int64_t left
        int64_t size
        int64_t sent_bytes
        int64_t delivered_bytes
        int64_t dropped_bytes
        int64_t dropped
        int64_t marked
        int64_t start_ps
        int64_t done_ps

    struct ft_prober:
        int32_t forward
        int32_t reverse
        uint16_t bytes
        int64_t spacing_ps
        int64_t stop_ps
        int64_t jitter_ps
        double gap_ps

    struct ft_probe:
        int64_t sent_ps
        int64_t wait_ps
        int64_t forward_ps
        int64_t turnaround_ps
        int64_t reverse_ps
        int32_t prober
        int32_t fate

    struct ft_sim:
        int32_t links
        int64_t slot_ps
        int64_t now_ps
        int64_t events
        ft_queue *queue
        int64_t n_hops
        ft_flow *flow
        int64_t n_flows
        ft_control *control
        int64_t n_probers
        ft_probe *probe
        int64_t n_probes
        int64_t first_probe
        int64_t first_slot
        float *depth
        float *deepest
        float *busy
        int64_t *bytes
        int32_t *drops

    int ft_sim_open(ft_sim *sim, int32_t links, int64_t slot_ps, uint64_t seed)
    void ft_sim_close(ft_sim *sim)
    int ft_sim_add_path(ft_sim *sim, const int32_t *links, int64_t n, int reached, int32_t *first)
    int ft_sim_add_flow(ft_sim *sim, ft_flow flow, int64_t start_ps, const ft_rules *rules)
    int ft_sim_add_prober(ft_sim *sim, ft_prober prober, int64_t start_ps)
    void ft_sim_set_path(ft_sim *sim, int64_t flow, int32_t first)
    int ft_sim_run(ft_sim *sim, int64_t until_ps, int64_t events) nogil
    void ft_sim_settle(ft_sim *sim)
    int64_t ft_sim_in_flight(const ft_sim *sim, int probes)
    int64_t ft_sim_decided(const ft_sim *sim)
    void ft_sim_forget_probes(ft_sim *sim, int64_t n)
    void ft_sim_forget_slots(ft_sim *sim, int64_t n)

cdef int64_t NEVER = 0x7fffffffffffffff
cdef object LATEST_NS = 9_000_000_000_000_000  # limit of picoseconds in 63 bits, less a margin: 104 days
EVENTS = 1 << 22  # between two checks for signals
MAX_CELLS = 1 << 33


cdef class PacketSim:
    """Links [L] as FIFO queues with finite buffers, store and forward; see packet.c for the model.

    `rate_bps`, `delay_ns` (from the last bit's departure to its arrival in the next queue), `buffer_bytes`:
    [L] or scalars; `links`: L if all are scalars (1). `slot_ns`: length of a slot of the exact sums. `ecn`:
    (from_bytes, full_bytes, share): packets that find more than from_bytes are marked with a probability that
    rises to `share` at full_bytes; above that all are marked. `seed` determines all random draws. Raises
    ValueError for an argument out of range.

    `paths` of the methods below are `(start, link)` or `(start, link, reached)`: the links of path i are
    [start[i], start[i + 1]) of `link`. If `reached[i]` is False, packets are lost behind the last of them.
    Every other argument is [N], one per path, or a scalar. Without a start time, flows start now. Methods
    raise ValueError and then leave the simulation unchanged.
    """

    cdef ft_sim sim
    cdef bint running, spoilt
    cdef list _nic, _peer, _path

    def __cinit__(self, rate_bps, delay_ns, buffer_bytes, slot_ns=1_000_000, seed=1, *, links=None, ecn=None):
        n = links
        for value in (rate_bps, delay_ns, buffer_bytes):
            if np.ndim(value):
                n = len(value) if n is None else n
        n = 1 if n is None else int(n)
        if not 1 <= n <= 1 << 24:
            raise ValueError(f"{n} links: expected 1 to 2^24")
        rate = _column("rate_bps", rate_bps, n, 1e5, 1e13, np.float64)
        delay = _column("delay_ns", delay_ns, n, 0, 1e9, np.float64)
        buffer = _column("buffer_bytes", buffer_bytes, n, 1, 1e12, np.float64)
        if not 1 <= slot_ns <= LATEST_NS:
            raise ValueError(f"slot_ns {slot_ns}: expected 1 to {LATEST_NS}")
        mark = None
        if ecn is not None:
            mark = [float(part) for part in ecn]
            if len(mark) != 3 or not 0 <= mark[0] < mark[1] <= 1e12 or not 0 <= mark[2] <= 1:
                raise ValueError(f"ecn {ecn}: expected (from_bytes, full_bytes above it, share of 0 to 1)")
        byte_ps = 8e12 / rate
        _buffer_fits(np.argmax(buffer * byte_ps), (buffer * byte_ps).max())
        if not ft_sim_open(&self.sim, n, int(slot_ns) * 1000, int(seed) & 0xffffffffffffffff):
            raise MemoryError(f"no memory for {n} links")
        self._nic, self._peer, self._path = [], [], []
        cdef ft_queue *q
        cdef int32_t i
        for i in range(n):
            q = &self.sim.queue[i]
            q.byte_fx = round(byte_ps[i] * 65536)
            q.delay_ps = round(delay[i] * 1000)
            q.buffer_ps = round(buffer[i] * q.byte_fx / 65536)
            if mark is not None:
                q.mark_from_ps = round(min(mark[0] * byte_ps[i], 4e18))
                q.mark_full_ps = round(min(mark[1] * byte_ps[i], 4.1e18))
                q.mark_share = mark[2]

    def __dealloc__(self):
        ft_sim_close(&self.sim)

    @property
    def links(self):
        """Number of links."""
        return self.sim.links

    @property
    def now_ns(self):
        """Present time, ns since the start."""
        return self.sim.now_ps / 1000

    @property
    def events(self):
        """Events so far: hops of packets and packets of sources."""
        return self.sim.events

    def add_poisson(self, paths, rate_bps, packet_bytes=1000, start_ns=None, stop_ns=None):
        """Add flows with exponential gaps and the mean rate `rate_bps`. Return their numbers."""
        return self._add(paths, FT_POISSON, rate_bps, packet_bytes, start_ns, stop_ns)

    def add_bursty(self, paths, rate_bps, peak_bps, burst_bytes, packet_bytes=1000, start_ns=None, stop_ns=None):
        """Add flows of bursts and return their numbers.

        Burst sizes are geometric with mean `burst_bytes`, sent evenly at `peak_bps`. Pauses are exponential,
        with the mean that gives the mean rate `rate_bps`.
        """
        return self._add(paths, FT_BURSTY, rate_bps, packet_bytes, start_ns, stop_ns, peak_bps, burst_bytes)

    def add_messages(self, paths, size_bytes, rate_bps, at_ns=None, packet_bytes=1000, control=None):
        """Add messages of `size_bytes` (0: endless) that begin at `at_ns`, sent evenly at `rate_bps`.
        Return their numbers.

        `control`: a `Dcqcn` for flows that slow down when packets are marked; `rate_bps` is their maximum.
        Dropped packets are sent again. Many messages at one time to one receiver are an incast.
        """
        return self._add(paths, FT_MESSAGE, rate_bps, packet_bytes, at_ns, None, size_bytes=size_bytes,
                         control=control)

    def _add(self, paths, int kind, rate_bps, packet_bytes, start_ns, stop_ns, peak_bps=None, burst_bytes=None,
             size_bytes=0, control=None):
        self._idle()
        n = _count(paths)
        rate = _column("rate_bps", rate_bps, n, 1.0, 1e13, np.float64)
        size = _column("packet_bytes", packet_bytes, n, 1, 65535, np.int64)
        start = self._times("start_ns" if kind != FT_MESSAGE else "at_ns", start_ns, n)
        stop = np.full(n, NEVER) if stop_ns is None else self._times("stop_ns", stop_ns, n)
        bytes_ = _column("size_bytes", size_bytes, n, 0, 1 << 60, np.int64)
        peak, burst, pause = rate, np.ones(n), np.zeros(n)
        if kind == FT_BURSTY:
            peak = _column("peak_bps", peak_bps, n, 1.0, 1e13, np.float64)
            burst = _column("burst_bytes", burst_bytes, n, 1, 1e15, np.float64) / size
            if (burst < 1).any():
                raise ValueError(f"burst_bytes {(burst * size)[burst < 1][0]:g}: expected at least packet_bytes")
            if (peak <= rate).any():
                raise ValueError(f"peak_bps {peak[peak <= rate][0]:g}: expected above rate_bps")
            pause = burst * size * 8e12 * (1 / rate - 1 / peak)
        cdef ft_rules rules
        cdef const ft_rules *use = NULL
        if control is not None:
            _rules(control, &rules)
            use = &rules
        if self.sim.n_flows + n > 0x7fffffff:
            raise ValueError(f"{self.sim.n_flows + n} flows: expected at most 2^31 - 1")
        cdef const int32_t[::1] at = self._paths(paths)
        cdef const double[::1] rate_ = peak, burst_ = burst, pause_ = pause
        cdef const int64_t[::1] size_ = size, start_ = start, stop_ = stop, left_ = bytes_
        cdef ft_flow flow
        cdef int64_t i, first = self.sim.n_flows
        for i in range(n):
            memset(&flow, 0, sizeof(ft_flow))
            flow.path, flow.kind, flow.packet_bytes = at[i], kind, size_[i]
            flow.rate, flow.burst, flow.pause_ps, flow.stop_ps = rate_[i], burst_[i], pause_[i], stop_[i]
            flow.size = -1
            if kind == FT_MESSAGE:
                flow.left = flow.size = left_[i] if left_[i] else -1
            if not ft_sim_add_flow(&self.sim, flow, start_[i], use):
                self._spoil()
        return range(first, first + n)

    def add_probes(self, forward, reverse, nic, peer, path, rate_pps, packet_bytes=82, spacing_ns=0, start_ns=None,
                   stop_ns=None, jitter_ns=None):
        """Add streams of probes, one for each (nic, peer, path): three integers that only label the
        results.

        Requests use the paths `forward` with exponential gaps, `rate_pps` on average. The peer answers at
        once over `reverse`. Both have `packet_bytes` on the wire. `spacing_ns` above 0 gives coded pairs: the
        second follows after this time, and the gap begins there. Streams of one rate together equal a NIC
        that draws peer and path of each probe. With `jitter_ns` the streams use slots whose length follows
        from the rate, the first at `start_ns`; a probe leaves within the first `jitter_ns` of its slot.
        Return their numbers.
        """
        self._idle()
        n = _count(forward)
        if _count(reverse) != n:
            raise ValueError(f"reverse: {_count(reverse)} paths, expected {n} as in forward")
        labels = [_column(name, value, n, -1 << 31, (1 << 31) - 1, np.int64).astype(np.int32)
                  for name, value in (("nic", nic), ("peer", peer), ("path", path))]
        rate = _column("rate_pps", rate_pps, n, 1e-6, 1e9, np.float64)
        size = _column("packet_bytes", packet_bytes, n, 1, 65535, np.int64)
        spacing = self._times("spacing_ns", spacing_ns, n, since=False)
        jitter = np.full(n, -1) if jitter_ns is None else self._times("jitter_ns", jitter_ns, n, since=False)
        gap = np.where(spacing > 0, 2e12 / rate - np.where(jitter < 0, spacing, 0), 1e12 / rate)
        if (gap <= 0).any():
            raise ValueError(f"spacing_ns {spacing[gap <= 0][0] // 1000}: expected below two probes' time at rate_pps")
        start = self._times("start_ns", start_ns, n)
        stop = np.full(n, NEVER) if stop_ns is None else self._times("stop_ns", stop_ns, n)
        late = jitter + spacing >= gap
        if ((jitter >= 0) & late).any():
            raise ValueError(f"jitter_ns {jitter[late][0] // 1000}: expected below the length of a slot")
        if self.sim.n_probers + n > 0x3fffffff:
            raise ValueError(f"{self.sim.n_probers + n} streams: expected at most 2^30 - 1")
        cdef const int32_t[::1] there = self._paths(forward), back = self._paths(reverse)
        cdef const double[::1] gap_ = gap
        cdef const int64_t[::1] size_ = size, spacing_ = spacing, start_ = start, stop_ = stop
        cdef const int64_t[::1] jitter_ = jitter
        cdef ft_prober prober
        cdef int64_t i, first = self.sim.n_probers
        for i in range(n):
            memset(&prober, 0, sizeof(ft_prober))
            prober.forward, prober.reverse, prober.bytes = there[i], back[i], size_[i]
            prober.spacing_ps, prober.stop_ps, prober.gap_ps = spacing_[i], stop_[i], gap_[i]
            prober.jitter_ps = jitter_[i]
            if not ft_sim_add_prober(&self.sim, prober, start_[i]):
                self._spoil()
        for kept, label in zip((self._nic, self._peer, self._path), labels, strict=True):
            kept.append(label)
        return range(first, first + n)

    def move(self, flows, paths):
        """Move flows to other paths from their next packet on; packets in flight stay on their path."""
        self._idle()
        numbers = self._numbers(flows)
        if _count(paths) != len(numbers):
            raise ValueError(f"paths: {_count(paths)}, expected {len(numbers)} as in flows")
        for number, at in zip(numbers.tolist(), self._paths(paths).tolist(), strict=True):
            ft_sim_set_path(&self.sim, number, at)

    def set_rate(self, flows, rate_bps):
        """Set the mean rate of Poisson flows, or the pace of messages (the maximum with control), from the
        next packet on.
        """
        self._idle()
        numbers = self._numbers(flows)
        rate = _column("rate_bps", rate_bps, len(numbers), 1.0, 1e13, np.float64)
        for number in numbers.tolist():
            if self.sim.flow[<int64_t>number].kind == FT_BURSTY:
                raise ValueError(f"flow {number}: bursty, expected Poisson or message")
        for number, value in zip(numbers.tolist(), rate.tolist(), strict=True):
            self.sim.flow[<int64_t>number].rate = value

    def set_loss(self, links, share):
        """Set the share of packets that the wires of `links` lose from now on; 1: a silent blackhole."""
        self._idle()
        numbers = np.atleast_1d(np.asarray(links, np.int64))
        _within("link", numbers, self.sim.links)
        loss = _column("share", share, len(numbers), 0, 1, np.float64)
        for number, value in zip(numbers.tolist(), loss.tolist(), strict=True):
            self.sim.queue[<int64_t>number].loss = value

    def set_link_rate(self, links, rate_bps):
        """Change the rate of `links` from now on: a slower link, or a receiver that pauses its leaf.

        Accepted packets leave as scheduled before, and the exact sums count them in bytes of the new rate.
        """
        self._idle()
        numbers = np.atleast_1d(np.asarray(links, np.int64))
        _within("link", numbers, self.sim.links)
        rate = _column("rate_bps", rate_bps, len(numbers), 1e5, 1e13, np.float64)
        ft_sim_settle(&self.sim)
        fixed = np.round(8e12 / rate * 65536).astype(np.int64).tolist()
        cdef ft_queue *q
        for number, byte_fx in zip(numbers.tolist(), fixed, strict=True):
            q = &self.sim.queue[<int64_t>number]
            _buffer_fits(number, q.buffer_ps * (byte_fx / q.byte_fx))
        for number, byte_fx in zip(numbers.tolist(), fixed, strict=True):
            q = &self.sim.queue[<int64_t>number]
            scale = byte_fx / q.byte_fx
            q.byte_fx = byte_fx
            q.buffer_ps = round(q.buffer_ps * scale)
            if q.mark_from_ps != NEVER:
                q.mark_from_ps = round(min(q.mark_from_ps * scale, 4e18))
                q.mark_full_ps = round(min(q.mark_full_ps * scale, 4.1e18))

    def run(self, until_ns):
        """Run until `until_ns` since the start, with the GIL released. Raises ValueError for a time in the
        past.
        """
        self._idle()
        if not self.sim.now_ps <= until_ns * 1000 <= LATEST_NS * 1000:
            raise ValueError(f"until_ns {until_ns}: expected {self.now_ns:.0f} (now) to {LATEST_NS}")
        slots = until_ns * 1000 // self.sim.slot_ps - self.sim.first_slot
        if slots * self.sim.links > MAX_CELLS:
            raise ValueError(f"until_ns {until_ns}: {slots:.0f} slots of {self.sim.links} links, expected at most "
                             f"{MAX_CELLS} of both (truth() takes those that are over)")
        cdef int64_t until = int(until_ns * 1000), maximum = EVENTS
        cdef int done = 0
        self.running = True
        try:
            while done == 0:
                with nogil:
                    done = ft_sim_run(&self.sim, until, maximum)
                PyErr_CheckSignals()
                if self.sim.first_probe + self.sim.n_probes > 0x7fffffff - maximum:
                    raise OverflowError("more than 2^31 probes: expected fewer in one simulation")
        finally:
            self.running = False
        if done < 0:
            self._spoil()

    def probes(self):
        """Return the `ProbeTruth` of probes with a known result, each once.

        A probe in flight delays the results of those sent after it.
        """
        self._idle()
        cdef int64_t n = ft_sim_decided(&self.sim), i
        prober = np.empty(n, np.int32)
        times = np.empty((5, n))
        cdef int32_t[::1] prober_ = prober
        cdef double[:, ::1] times_ = times
        cdef const ft_probe *p
        cdef double nan = float("nan")
        for i in range(n):
            p = &self.sim.probe[i]
            prober_[i] = p.prober
            times_[0, i] = p.sent_ps * 1e-3
            times_[1, i] = p.wait_ps * 1e-3
            times_[2, i] = p.forward_ps * 1e-3 if p.forward_ps >= 0 else nan
            times_[3, i] = p.turnaround_ps * 1e-3 if p.turnaround_ps >= 0 else nan
            times_[4, i] = p.reverse_ps * 1e-3 if p.reverse_ps >= 0 else nan
        ft_sim_forget_probes(&self.sim, n)
        for kept in (self._nic, self._peer, self._path):
            kept[:] = [np.concatenate(kept)] if kept else [np.empty(0, np.int32)]
        return ProbeTruth(prober, self._nic[0][prober], self._peer[0][prober], self._path[0][prober], *times)

    def truth(self):
        """Return the `LinkTruth` of the slots that ended since the last call, each once."""
        self._idle()
        ft_sim_settle(&self.sim)
        cdef int64_t first = self.sim.first_slot, slots = self.sim.now_ps // self.sim.slot_ps - first
        shape = slots, self.sim.links
        if slots == 0:
            return LinkTruth(first, self.sim.slot_ps // 1000, *(np.empty(shape, kind) for kind in (
                np.float32, np.float32, np.float32, np.int64, np.int32)))
        cdef Py_ssize_t cells = slots * self.sim.links
        given = LinkTruth(
            first, self.sim.slot_ps // 1000,
            np.array(<float[:cells]>self.sim.depth).reshape(shape),
            np.array(<float[:cells]>self.sim.deepest).reshape(shape),
            np.array(<float[:cells]>self.sim.busy).reshape(shape),
            np.array(<int64_t[:cells]>self.sim.bytes).reshape(shape),
            np.array(<int32_t[:cells]>self.sim.drops).reshape(shape),
        )
        ft_sim_forget_slots(&self.sim, slots)
        return given

    def flows(self):
        """Return the present `FlowColumns` of all flows."""
        self._idle()
        cdef int64_t n = self.sim.n_flows, i
        whole = np.empty((5, n), np.int64)
        real = np.empty((3, n))
        cdef int64_t[:, ::1] whole_ = whole
        cdef double[:, ::1] real_ = real
        cdef const ft_flow *flow
        for i in range(n):
            flow = &self.sim.flow[i]
            whole_[0, i], whole_[1, i] = flow.sent_bytes, flow.delivered_bytes
            whole_[2, i], whole_[3, i], whole_[4, i] = flow.dropped_bytes, flow.dropped, flow.marked
            real_[0, i] = flow.rate
            if flow.control >= 0 and self.sim.control[flow.control].rate < flow.rate:
                real_[0, i] = self.sim.control[flow.control].rate
            real_[1, i] = flow.start_ps * 1e-3
            real_[2, i] = flow.done_ps * 1e-3 if flow.done_ps >= 0 else float("nan")
        return FlowColumns(*whole, *real)

    def in_flight_bytes(self):
        """Return (flows' bytes, probes' bytes) that are in queues or on wires."""
        self._idle()
        return ft_sim_in_flight(&self.sim, 0), ft_sim_in_flight(&self.sim, 1)

    def _idle(self):
        if self.running:
            raise RuntimeError("the simulation runs in another thread: expected one caller at a time")
        if self.spoilt:
            raise RuntimeError("the simulation ran out of memory before: expected a new one")

    def _spoil(self):
        self.spoilt = True
        raise MemoryError(f"no memory for {self.sim.n_flows} flows, {self.sim.n_probes} probes on {self.sim.links} "
                          "links: the simulation cannot go on")

    def _numbers(self, flows):
        numbers = np.atleast_1d(np.asarray(flows, np.int64))
        _within("flow", numbers, self.sim.n_flows)
        return numbers

    def _times(self, name, value, n, since=True):
        """Convert times from ns to picoseconds. None means now, and no time may be before it."""
        if value is None:
            return np.full(n, self.sim.now_ps)
        minimum = self.sim.now_ps / 1000 if since else 0
        return np.round(_column(name, value, n, minimum, LATEST_NS, np.float64) * 1000).astype(np.int64)

    def _paths(self, paths):
        """Check paths, then copy them; return the begin of each."""
        start = np.ascontiguousarray(paths[0], np.int64)
        link = np.ascontiguousarray(paths[1], np.int32)
        n = len(start) - 1
        reached = np.ascontiguousarray(paths[2] if len(paths) > 2 else np.ones(n), np.uint8)
        if start[0] != 0 or start[n] != len(link) or (np.diff(start) < 0).any():
            raise ValueError(f"paths: starts must rise from 0 to {len(link)}, the number of links given")
        if reached.shape != (n,):
            raise ValueError(f"paths: reached has shape {reached.shape}, expected ({n},)")
        _within("link", link, self.sim.links)
        empty = (np.diff(start) == 0) & (reached != 0)
        if empty.any():
            raise ValueError(f"path {np.flatnonzero(empty)[0]}: no link, expected at least one")
        if self.sim.n_hops + len(link) + n > 0x7fffffff:
            raise ValueError(f"{self.sim.n_hops + len(link)} hops of all paths: expected at most 2^31 - 1")
        at = np.empty(n, np.int32)
        cdef int64_t[::1] start_ = start
        cdef int32_t[::1] link_ = np.concatenate([link, np.zeros(1, np.int32)])
        cdef uint8_t[::1] reached_ = reached
        cdef int32_t[::1] at_ = at
        cdef int64_t i
        for i in range(n):
            if not ft_sim_add_path(&self.sim, &link_[start_[i]], start_[i + 1] - start_[i], reached_[i], &at_[i]):
                self._spoil()
        return at


def _buffer_fits(link, full_ps):
    if full_ps > 1e15:
        raise ValueError(f"link {link}: a full buffer takes {full_ps * 1e-12:g} s to send, expected at most 1,000 s")


cdef int _rules(control, ft_rules *rules) except -1:
    for name, minimum, maximum in (("g", 0, 1), ("notice_ns", 0, 1e12), ("decay_ns", 1, 1e12), ("rise_ns", 1, 1e12),
                              ("rise_bytes", 1, 1e18), ("fast_steps", 0, 1e6), ("additive_bps", 0, 1e13),
                              ("hyper_bps", 0, 1e13), ("min_bps", 1, 1e13)):
        if not minimum <= getattr(control, name) <= maximum:
            raise ValueError(f"control: {name} {getattr(control, name)}, expected {minimum:g} to {maximum:g}")
    memset(rules, 0, sizeof(ft_rules))
    rules.g, rules.additive, rules.hyper = control.g, control.additive_bps, control.hyper_bps
    rules.min_rate, rules.fast_steps = control.min_bps, control.fast_steps
    rules.notify_every_ps, rules.decay_ps = control.notice_ns * 1000, control.decay_ns * 1000
    rules.rise_ps, rules.rise_bytes = control.rise_ns * 1000, control.rise_bytes
    return 0


def _count(paths):
    """Return the number of paths."""
    if not isinstance(paths, tuple) or not 2 <= len(paths) <= 3:
        raise ValueError("paths: expected (start, link) or (start, link, reached)")
    if np.ndim(paths[0]) != 1 or len(paths[0]) < 1 or np.ndim(paths[1]) != 1:
        raise ValueError("paths: start and link must be one-dimensional, start with at least one element")
    return len(paths[0]) - 1


def _within(field, numbers, n):
    if len(numbers) and not (0 <= numbers.min() and numbers.max() < n):
        wrong = numbers[(numbers < 0) | (numbers >= n)][0]
        raise ValueError(f"{field} {wrong}: expected 0 to {n - 1}")


def _column(name, value, n, minimum, maximum, kind):
    """Return `value` as [n] of `kind`, checked to be within [minimum, maximum]."""
    column = np.asarray(value, np.float64)
    if column.ndim > 1 or (column.ndim == 1 and len(column) != n):
        raise ValueError(f"{name}: shape {column.shape}, expected ({n},) or a scalar")
    wrong = ~((column >= minimum) & (column <= maximum))
    if wrong.any():
        raise ValueError(f"{name} {column[wrong][0] if column.ndim else column:g}: expected {minimum:g} to {maximum:g}")
    taken = np.asarray(value).astype(kind)
    if kind is np.int64 and (taken != column).any():
        raise ValueError(f"{name} {column[taken != column][0] if column.ndim else column:g}: expected a whole number")
    return np.ascontiguousarray(np.broadcast_to(taken, (n,)))
