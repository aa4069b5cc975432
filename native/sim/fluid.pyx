"""Python interface of the fluid simulation of a fleet: flows, queues and probes. See fluid.c for the
model.

Inputs are plain arrays of a fabric (as `producers.sim.topology.Fleet` holds them), flows, jobs and link
states. Results are Avro bodies of `ProbeBatch` and `LinkEvent`, and sums over links and flows. Times are ns
since the start.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t

import numpy as np

__all__ = ["Fluid", "packet_waits"]

cdef extern from "fluid.h":
    ctypedef struct fl_sim
    ctypedef struct fl_settings:
        int64_t start_ns, step_ns
        double packet_bytes, probe_bytes, max_load, mark_begin, mark_full, max_mark, gain, increase_share
        double timer_ns, min_rate_share, idle_ns, flowlet_ns, slow_sender_bytes
        int lossless
        double rate_pps
        int64_t spacing_ns
        double min_response_ns, max_response_ns, timeout_ns, min_early_timeout_ns, min_report_gap_ns, repeat_report_ns, max_report_gap_ns
        double noise_ns, quantum_ns
        uint64_t seed
    ctypedef struct fl_event:
        int32_t nic
        int64_t row, rows
        double at, interval_ns
    ctypedef struct fl_row:
        int32_t group, lost, answered, late, loss_streak
        double first_lost, last_lost, answered_sent, arrived, timeout_ns
    ctypedef struct fl_iteration:
        int32_t job
        int64_t iteration
        double begin, end
        int64_t times, entries
    fl_sim *fl_new(const fl_settings *, int32_t nics, int32_t links, const int64_t *rate_bps, const int64_t *delay_ns,
                   const int64_t *buffer_bytes, const int8_t *kind)
    void fl_free(fl_sim *)
    int fl_set_clock(fl_sim *, int32_t nic, int64_t offset_ns, double drift_ppb, double wander, int64_t epoch_ns,
                     uint64_t seed, int64_t step_ns, int64_t step_at_ns)
    int fl_set_names(fl_sim *, int32_t nic, const char *text, int64_t size)
    int fl_set_groups(fl_sim *, int64_t groups, const int32_t *nic, const int32_t *peer, const int32_t *path)
    int fl_set_legs(fl_sim *, const int64_t *start, const int32_t *link, const uint8_t *reached,
                    const int64_t *back_start, const int32_t *back_link, const uint8_t *back_reached)
    int64_t fl_add_flow(fl_sim *, int32_t src, double line_bps)
    int fl_set_flow_path(fl_sim *, int64_t flow, const int32_t *link, int64_t hops, int reached)
    void fl_set_flow_limits(fl_sim *, int64_t flow, double demand_bps, double limit_bps)
    int fl_flow_send(fl_sim *, int64_t flow, double bytes)
    int64_t fl_add_job(fl_sim *, int64_t phases, const int64_t *phase_start, const int64_t *flow, const double *bytes,
                       double gap_ns, double begin_ns, int32_t members, const int32_t *sender, const int32_t *to)
    int fl_set_flow_routes(fl_sim *, int64_t flow, int64_t routes, const int32_t *link)
    void fl_stop_job(fl_sim *, int64_t job)
    void fl_set_job_gap(fl_sim *, int64_t job, double gap_ns)
    int fl_trace_job(fl_sim *, int64_t job)
    const double *fl_job_times(const fl_sim *, int64_t job, int64_t *entries, int64_t *iteration, double *begin)
    void fl_set_flow_line(fl_sim *, int64_t flow, double line_bps)
    const double *fl_iteration_times(const fl_sim *)
    void fl_flow_cuts(const fl_sim *, int64_t *cuts)
    void fl_set_link(fl_sim *, int32_t link, int up, double loss, double share, double base_load)
    void fl_set_nic(fl_sim *, int32_t nic, int dead, double rate_pps)
    int fl_set_schedule(fl_sim *, int32_t nic, double at_ns, double slot_ns, int64_t slots, const int32_t *group)
    int fl_advance(fl_sim *, double until_ns) nogil
    double fl_now(const fl_sim *)
    const uint8_t *fl_flush(fl_sim *, int32_t nic, int64_t run, int64_t batch, int64_t *size, int64_t *samples)
    int64_t fl_read_clock(fl_sim *, int32_t nic, double at)
    int64_t fl_events(const fl_sim *, const fl_event **events, const fl_row **rows)
    const uint8_t *fl_event_body(fl_sim *, int64_t event, const uint8_t *shard, int64_t shard_size, int64_t run,
                                 int64_t number, int kind, int64_t *size)
    void fl_clear_events(fl_sim *)
    int64_t fl_iterations(const fl_sim *, const fl_iteration **found)
    void fl_clear_iterations(fl_sim *)
    void fl_link_sums(fl_sim *, double *depth, double *packet, double *busy, double *bytes, double *dropped,
                      double *now)
    void fl_link_max(fl_sim *, double *deepest)
    int64_t fl_steps(const fl_sim *)
    int64_t fl_flows(const fl_sim *)
    int64_t fl_working(const fl_sim *)
    int64_t fl_listed(const fl_sim *)
    void fl_flow_sums(fl_sim *, double *sevens, uint8_t *active)
    void fl_flow_sums_of(fl_sim *, int64_t flow, double *seven, uint8_t *active)
    double fl_flow_backlog(const fl_sim *, int64_t flow)
    void fl_totals(const fl_sim *, int64_t *sent, int64_t *answered, int64_t *lost, int64_t *in_flight)
    void fl_packet_waits(uint64_t seed, double load, double service_ns, double spacing_ns, int64_t n, double *out)


def packet_waits(load, service_ns, spacing_ns, count, seed=1):
    """Return [count] waits (ns) that probes `spacing_ns` apart find in the packet-scale queue alone."""
    if not 0 < load < 1 or count < 1:
        raise ValueError(f"load {load}, count {count}: expected a load within 0 and 1, and at least 1")
    out = np.empty(count, np.float64)
    cdef double[::1] view = out
    fl_packet_waits(seed, load, service_ns, spacing_ns, count, &view[0])
    return out


cdef class Fluid:
    """A fabric in operation. All arrays are over NICs, directed links, probe groups or flows, by index."""

    cdef fl_sim *_sim
    cdef fl_settings _s
    cdef readonly int nics, links
    cdef int64_t _groups
    cdef object _tier

    def __cinit__(
        self, *, rate_bps, delay_ns, buffer_bytes, kind, int nics, int64_t start_ns=0, int64_t step_ns=100_000,
        double packet_bytes=4170, double probe_bytes=128, double max_load=0.95, double mark_begin=0.1,
        double mark_full=0.4, double max_mark=0.01, double gain=1 / 256, double increase_share=0.001,
        double timer_ns=55_000, double min_rate_share=0.001, double idle_ns=1_000_000, double flowlet_ns=0, double slow_sender_bytes=256_000,
        bint lossless=True, double rate_pps=300, int64_t spacing_ns=20_000, response_ns=(5_000, 15_000), double timeout_ns=100_000_000,
        double min_early_timeout_ns=2_000_000, double min_report_gap_ns=5_000_000,
        double repeat_report_ns=100_000_000, double max_report_gap_ns=1_000_000_000,
        double noise_ns=0, double quantum_ns=1, uint64_t seed=1,
    ):
        """Raises ValueError for inconsistent parameters, MemoryError."""
        cdef const int64_t[::1] rates = np.ascontiguousarray(rate_bps, np.int64)
        cdef const int64_t[::1] delays = np.ascontiguousarray(delay_ns, np.int64)
        cdef const int64_t[::1] buffers = np.ascontiguousarray(buffer_bytes, np.int64)
        cdef const int8_t[::1] kinds = np.ascontiguousarray(kind, np.int8)
        if not (rates.shape[0] == delays.shape[0] == buffers.shape[0] == kinds.shape[0] > 0) or nics < 2:
            raise ValueError(f"links {rates.shape[0]}, {delays.shape[0]}, {buffers.shape[0]}, {kinds.shape[0]}, "
                             f"NICs {nics}: expected equal numbers and at least 2 NICs")
        if np.min(rate_bps) <= 0 or np.min(buffer_bytes) <= 0 or np.min(kind) < 0 or np.max(kind) > 5:
            raise ValueError("rate_bps, buffer_bytes, kind: expected above 0, above 0, 0 to 5")
        if not 1_000 <= step_ns <= 100_000_000:
            raise ValueError(f"step_ns {step_ns}: expected 1,000 to 100,000,000")
        if not 0 <= mark_begin < mark_full <= 1 or not 0 < max_load < 1 or spacing_ns < 0 or quantum_ns < 0:
            raise ValueError(f"mark_begin {mark_begin}, mark_full {mark_full}, max_load {max_load}, "
                             f"spacing_ns {spacing_ns}, quantum_ns {quantum_ns}: expected rising shares, not below 0")
        self._s = fl_settings(
            start_ns, step_ns, packet_bytes, probe_bytes, max_load, mark_begin, mark_full, max_mark, gain,
            increase_share, timer_ns, min_rate_share, idle_ns, flowlet_ns, slow_sender_bytes, lossless, rate_pps, spacing_ns, response_ns[0],
            response_ns[1], timeout_ns, min_early_timeout_ns, min_report_gap_ns, repeat_report_ns, max_report_gap_ns, noise_ns, quantum_ns, seed)
        self.nics, self.links = nics, rates.shape[0]
        self._tier = np.array([0, 5, 1, 4, 2, 3])[np.asarray(kind, np.int64)]
        self._sim = fl_new(&self._s, nics, self.links, &rates[0], &delays[0], &buffers[0], &kinds[0])
        if self._sim == NULL:
            raise MemoryError(f"no memory for {self.links} links")

    def __dealloc__(self):
        fl_free(self._sim)

    cdef int _nic(self, object nic) except -1:
        if not 0 <= nic < self.nics:
            raise ValueError(f"NIC {nic}: expected 0 to {self.nics - 1}")
        return nic

    cdef int64_t _flow(self, object flow) except -1:
        if not 0 <= flow < fl_flows(self._sim):
            raise ValueError(f"flow {flow}: expected 0 to {fl_flows(self._sim) - 1}")
        return flow

    def set_nic_name(self, nic, str name):
        """Set the name that a NIC has in its batches."""
        text = name.encode()
        if fl_set_names(self._sim, self._nic(nic), text, len(text)):
            raise MemoryError(name)

    def set_clock(self, nic, *, offset_ns=0, drift_ppb=0.0, wander_ppb_per_sqrt_s=0.0, epoch_ns=0, seed=0, step_ns=0,
                  step_at_ns=0):
        """Give a NIC the clock of `native.core.TestClock` with the same parameters."""
        fl_set_clock(self._sim, self._nic(nic), offset_ns, drift_ppb, wander_ppb_per_sqrt_s, epoch_ns, seed, step_ns,
                     step_at_ns)

    def set_groups(self, nic, peer, path):
        """Set the probe groups: prober, peer and path, [groups] each, NICs in ascending order. `set_legs`
        must follow.
        """
        cdef const int32_t[::1] own = np.ascontiguousarray(nic, np.int32)
        cdef const int32_t[::1] other = np.ascontiguousarray(peer, np.int32)
        cdef const int32_t[::1] value = np.ascontiguousarray(path, np.int32)
        if not own.shape[0] == other.shape[0] == value.shape[0] > 0:
            raise ValueError(f"groups: {own.shape[0]}, {other.shape[0]}, {value.shape[0]} elements, expected equal")
        if np.any(np.diff(nic) < 0) or min(np.min(nic), np.min(peer)) < 0 or max(np.max(nic), np.max(peer)) >= self.nics:
            raise ValueError(f"groups: expected NICs 0 to {self.nics - 1} in ascending order")
        self._groups = own.shape[0]
        if fl_set_groups(self._sim, self._groups, &own[0], &other[0], &value[0]):
            raise MemoryError(f"no memory for {self._groups} groups")

    def set_legs(self, start, link, reached, back_start, back_link, back_reached):
        """Set the links of every group's requests and answers, as in `Paths`: start [groups + 1], link, reached."""
        legs = []
        for part, links, ends in ((start, link, reached), (back_start, back_link, back_reached)):
            part, links = np.ascontiguousarray(part, np.int64), np.append(np.asarray(links, np.int32), np.int32(0))
            ends = np.ascontiguousarray(ends, np.uint8)
            if len(part) != self._groups + 1 or len(ends) != self._groups or part[-1] != len(links) - 1:
                raise ValueError(f"legs: {len(part)} starts, expected {self._groups + 1} and links to their end")
            if np.min(links) < 0 or np.max(links) >= self.links or (np.diff(part) < 0).any():
                raise ValueError(f"legs: expected links 0 to {self.links - 1}")
            legs += [part, links, ends]
        cdef const int64_t[::1] s0 = legs[0], s1 = legs[3]
        cdef const int32_t[::1] l0 = legs[1], l1 = legs[4]
        cdef const uint8_t[::1] r0 = legs[2], r1 = legs[5]
        if fl_set_legs(self._sim, &s0[0], &l0[0], &r0[0], &s1[0], &l1[0], &r1[0]):
            raise MemoryError("no memory for paths")

    def add_flow(self, nic, double line_bps):
        """Add an idle flow from a NIC with a limit of `line_bps`, and return the flow's number."""
        cdef int64_t flow = fl_add_flow(self._sim, self._nic(nic), line_bps)
        if flow < 0:
            raise MemoryError("no memory for a flow")
        return flow

    def set_flow_path(self, flow, links, reached=True):
        """Set a flow's links. If they do not reach its end, all its bytes are lost."""
        whole = np.append(np.asarray(links, np.int32), np.int32(0))
        if not (0 if not reached else 1) < len(whole) <= 7 or np.min(whole) < 0 or np.max(whole) >= self.links:
            raise ValueError(f"flow {flow}: {list(links)}: expected 1 to 6 links, 0 to {self.links - 1}")
        cdef const int32_t[::1] route = whole
        fl_set_flow_path(self._sim, self._flow(flow), &route[0], route.shape[0] - 1, reached)

    def set_flow_routes(self, flow, routes):
        """Let switches draw one of these routes, each a sequence of links, for every flowlet of a flow."""
        table = np.full((len(routes), 6), -1, np.int32)
        for row, links in zip(table, routes):
            links = np.asarray(links, np.int32)
            if not 0 < len(links) <= 6 or np.min(links) < 0 or np.max(links) >= self.links:
                raise ValueError(f"flow {flow}: {list(links)}: expected 1 to 6 links, 0 to {self.links - 1}")
            row[self._tier[links]] = links
        cdef const int32_t[::1] each = np.append(table.reshape(-1), np.int32(-1)).astype(np.int32)
        if fl_set_flow_routes(self._sim, self._flow(flow), len(routes), &each[0]):
            raise MemoryError("no memory for routes")

    def set_flow_limits(self, flow, demand_bps=None, limit_bps=None):
        """Limit a flow to its program's demand and to its assigned rate; None means no limit."""
        fl_set_flow_limits(self._sim, self._flow(flow), -1.0 if demand_bps is None else demand_bps,
                           -1.0 if limit_bps is None else limit_bps)

    def send(self, flow, data_bytes=None):
        """Let a flow send `data_bytes` from now on; None is unlimited, 0 stops the flow."""
        fl_flow_send(self._sim, self._flow(flow), -1.0 if data_bytes is None else data_bytes)

    def add_job(self, phases, double gap_ns=0, double begin_ns=0, ends=None):
        """Add a job and return its number.

        `phases`: (flows, bytes of each). A phase begins when the one before is done, and all repeat `gap_ns`
        after the last. `ends`: (sender, receiver) of each flow of each phase, numbered from 0. Then a flow
        begins once both its ends have finished the phases before.
        """
        starts = np.concatenate([[0], np.cumsum([len(flows) for flows, _ in phases])])
        if not len(phases) or (np.diff(starts) < 1).any():
            raise ValueError("job: expected at least one phase, and a flow in each")
        cdef const int64_t[::1] start = np.ascontiguousarray(starts, np.int64)
        cdef const int64_t[::1] flow = np.concatenate([np.asarray(flows, np.int64) for flows, _ in phases])
        cdef const double[::1] data = np.concatenate(
            [np.broadcast_to(np.asarray(size, np.float64), len(flows)) for flows, size in phases])
        for each in flow:
            self._flow(each)
        if np.min(data) < 1:
            raise ValueError("job: expected at least 1 byte of each flow")
        pairs = np.zeros((1, 2), np.int32) if ends is None else np.concatenate(
            [np.asarray(each, np.int32).reshape(-1, 2) for each in ends])
        if ends is not None and (len(pairs) != starts[-1] or np.min(pairs) < 0):
            raise ValueError(f"job: {len(pairs)} ends, expected {starts[-1]}, from 0 on")
        cdef int32_t members = 0 if ends is None else np.max(pairs) + 1
        cdef const int32_t[::1] sender = np.ascontiguousarray(pairs[:, 0]), to = np.ascontiguousarray(pairs[:, 1])
        cdef int64_t job = fl_add_job(self._sim, len(phases), &start[0], &flow[0], &data[0], gap_ns, begin_ns, members,
                                      &sender[0], &to[0])
        if job < 0:
            raise MemoryError("no memory for a job")
        return job

    def stop_job(self, job):
        """End a job, whose flows then stop sending."""
        fl_stop_job(self._sim, job)

    def set_job_gap(self, job, double gap_ns):
        """Set the time between two iterations, also of a job that waits now; infinite: the next never begins."""
        fl_set_job_gap(self._sim, job, gap_ns)

    def trace_job(self, job):
        """Keep the begin and end of every flow's part of a job's phases, for `job_times` and `iteration_times`."""
        if fl_trace_job(self._sim, job):
            raise MemoryError("no memory for a job's times")

    def job_times(self, job):
        """Return (number, begin, [2, entries] begins and ends) of a traced job's present iteration.

        Entries are the flows of the phases in order. Times are ns since the start, -1: not yet; the begin is
        below 0 while the job waits.
        """
        cdef int64_t entries, number
        cdef double begin
        cdef const double *times = fl_job_times(self._sim, job, &entries, &number, &begin)
        if times == NULL:
            raise ValueError(f"job {job}: expected a traced one")
        return number, begin, np.array(<const double[:2, :entries]>times)

    def set_flow_line(self, flow, double line_bps):
        """Set the highest rate of a flow's sender, without a limit of its program or by a decision."""
        if not line_bps > 0:
            raise ValueError(f"flow {flow}: {line_bps} bit/s, expected above 0")
        fl_set_flow_line(self._sim, self._flow(flow), line_bps)

    def flow_cuts(self):
        """Return [flows] how often congestion has cut each flow's rate."""
        cdef int64_t n = fl_flows(self._sim)
        out = np.zeros(n + 1, np.int64)
        cdef int64_t[::1] v = out
        fl_flow_cuts(self._sim, &v[0])
        return out[:n]

    def set_link(self, link, *, up=True, double loss=0, double share=1, double base_load=0):
        """Set the state of a link: whether it is up, its loss, its share of its rate, and its base load."""
        if not 0 <= link < self.links:
            raise ValueError(f"link {link}: expected 0 to {self.links - 1}")
        if not 0 <= loss <= 1 or not 0 <= share <= 1 or not 0 <= base_load < 1:
            raise ValueError(f"link {link}: loss {loss}, share {share}, base_load {base_load}: expected 0 to 1")
        fl_set_link(self._sim, link, up, loss, share, base_load)

    def set_nic(self, nic, *, dead=False, silent=False, rate_pps=None):
        """Kill a NIC (it passes nothing), with its agent if `silent`; or change its probe rate."""
        fl_set_nic(self._sim, self._nic(nic), 2 if silent else 1 if dead else 0,
                   self._s.rate_pps if rate_pps is None else rate_pps)

    def set_schedule(self, nic, double at_ns, double slot_ns, route):
        """Give a NIC a probe schedule.

        Slot k begins at `at_ns` + k * `slot_ns` of the simulation. Its pair leaves in the first half of the
        slot, to group `route[k % len(route)]` of the NIC, -1: any. Without groups, or after a rate change,
        the NIC probes at random again.
        """
        cdef const int32_t[::1] slots = np.append(np.asarray(route, np.int32), np.int32(-1))
        if not 1e3 <= slot_ns <= 1e12 or not -1e19 < at_ns < 1e19:
            raise ValueError(f"slots of {slot_ns} ns from {at_ns}: expected 1 us to 1000 s")
        if fl_set_schedule(self._sim, self._nic(nic), at_ns, slot_ns, slots.shape[0] - 1, &slots[0]):
            raise MemoryError(f"no memory for {slots.shape[0]} slots")

    def advance(self, double until_ns):
        """Run whole steps up to `until_ns`."""
        cdef int failed
        with nogil:
            failed = fl_advance(self._sim, until_ns)
        if failed:
            raise MemoryError("no memory for the simulation")

    @property
    def now_ns(self):
        """ns since the start."""
        return fl_now(self._sim)

    @property
    def steps(self):
        """Steps done."""
        return fl_steps(self._sim)

    @property
    def working(self):
        """The flows and links that are computed in each step."""
        return fl_working(self._sim), fl_listed(self._sim)

    @property
    def flows(self):
        """Number of flows."""
        return fl_flows(self._sim)

    def clock_ns(self, nic, double at_ns):
        """Return the reading of a NIC's clock at a time since the start."""
        return fl_read_clock(self._sim, self._nic(nic), at_ns)

    def flush(self, nic, int64_t run, int64_t batch):
        """Return (Avro body of the NIC's `ProbeBatch` since its last flush, samples in it)."""
        cdef int64_t size, samples
        cdef const uint8_t *body = fl_flush(self._sim, self._nic(nic), run, batch, &size, &samples)
        if body == NULL:
            raise MemoryError("no memory for a batch")
        return PyBytes_FromStringAndSize(<const char *>body, size), samples

    def evidence(self, str shard, runs, numbers, int kind):
        """Return the evidence reports since the last call, oldest first.

        Each is (NIC, ns since the start, losses in it, Avro body of a `LinkEvent` with enum index `kind`).
        `runs` and `numbers` hold a value per NIC; `numbers` are incremented.
        """
        cdef const fl_event *events
        cdef const fl_row *rows
        cdef int64_t n = fl_events(self._sim, &events, &rows), i, k, size, lost
        cdef const uint8_t *body
        text = shard.encode()
        found = []
        for i in range(n):
            lost = 0
            for k in range(events[i].row, events[i].row + events[i].rows):
                lost += rows[k].lost
            nic = events[i].nic
            body = fl_event_body(self._sim, i, <const uint8_t *><const char *>text, len(text), runs[nic], numbers[nic],
                                 kind, &size)
            if body == NULL:
                raise MemoryError("no memory for evidence")
            numbers[nic] += 1
            found.append((nic, events[i].at, lost, PyBytes_FromStringAndSize(<const char *>body, size)))
        fl_clear_events(self._sim)
        return found

    def iterations(self):
        """Return the job iterations that ended since the last call, oldest first: (job, number, begin, end,
        times). `times` of a traced job are [2, entries], as by `job_times`; else None.
        """
        cdef const fl_iteration *found
        cdef int64_t n = fl_iterations(self._sim, &found), i
        cdef const double *times = fl_iteration_times(self._sim)
        ended = []
        for i in range(n):
            entries = None
            if found[i].entries:
                entries = np.array(<const double[:2, :found[i].entries]>(times + found[i].times))
            ended.append((found[i].job, found[i].iteration, found[i].begin, found[i].end, entries))
        fl_clear_iterations(self._sim)
        return ended

    def link_sums(self):
        """Return [6, links] sums since the start: byte-steps of the fluid queue, byte-steps of the mean
        packet-scale queue, busy steps, bytes carried, bytes dropped; and the present fluid queue (bytes).
        """
        out = np.empty((6, self.links))
        cdef double[:, ::1] v = out
        fl_link_sums(self._sim, &v[0, 0], &v[1, 0], &v[2, 0], &v[3, 0], &v[4, 0], &v[5, 0])
        return out

    def link_max(self):
        """Return [links] the deepest fluid queue (bytes) since the last call."""
        out = np.empty(self.links)
        cdef double[::1] v = out
        fl_link_max(self._sim, &v[0])
        return out

    def flow_sums(self):
        """Return ([flows, 7], active [flows]).

        The columns are bytes sent, bytes sent again, steps with data, steps limited by the sender, steps
        limited by a slow receiver (sums since the start), the present rate limit (bit/s), and bytes left (-1:
        endless).
        """
        cdef int64_t n = fl_flows(self._sim)
        out, active = np.zeros((n + 1, 7)), np.zeros(n + 1, np.uint8)
        cdef double[:, ::1] v = out
        cdef uint8_t[::1] a = active
        fl_flow_sums(self._sim, &v[0, 0], &a[0])
        return out[:n], active[:n].astype(bool)

    def flow_sums_of(self, flow):
        """Return [7] the same for one flow."""
        cdef double[::1] v = np.empty(7)
        cdef uint8_t active
        fl_flow_sums_of(self._sim, self._flow(flow), &v[0], &active)
        return np.asarray(v)

    def flow_backlog(self, flow):
        """Return the flow's bytes in queues."""
        return fl_flow_backlog(self._sim, self._flow(flow))

    def totals(self):
        """Return (requests sent, answered, lost, in flight)."""
        cdef int64_t sent, answered, lost, in_flight
        fl_totals(self._sim, &sent, &answered, &lost, &in_flight)
        return sent, answered, lost, in_flight
