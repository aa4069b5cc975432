# cython: language_level=3, boundscheck=False, wraparound=False
"""The probe engine for Python: probes peers from sockets, and returns `ProbeColumns`.

One `Engine` is one NIC's prober and responder. A thread calls `run`, which releases the GIL. Any other thread
drains the samples, changes the peers or reads the counters meanwhile. engine.c describes the packets.
"""

import os
import socket as _socket
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from native.core.columns import ProbeColumns
from native.core.device_sockets import bind_to_device

from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cdef extern from "sys/socket.h":
    cdef struct sockaddr_storage:
        uint16_t ss_family

cdef extern from "clockmodel.h":
    ctypedef struct ft_clock:
        int64_t offset_ns, step_ns, step_at_ns
    void ft_clock_init(ft_clock *, int64_t, double, double, int64_t, uint64_t, int64_t, int64_t)
    int64_t ft_clock_read(ft_clock *, int64_t)

cdef extern from "siphash.h":
    ctypedef struct ft_key:
        uint64_t k0, k1
    uint64_t ft_siphash(ft_key, const uint8_t *, size_t)
    ft_key ft_key_from(const uint8_t *, size_t)

cdef extern from "hwstamp.h":
    ctypedef struct ft_hwstamp:
        int phc, changed
    int ft_hwstamp_start(int, const char *, ft_hwstamp *)
    void ft_hwstamp_restore(int, const char *, const ft_hwstamp *)
    void ft_link(int, const char *, int64_t *, int *)

cdef extern from "losses.h":
    ctypedef struct ft_class_news:
        uint32_t lost, answered, late
        uint8_t forward, reverse
    ctypedef struct ft_path_news:
        ft_class_news class_ "class"[8]
        uint32_t path_index, lost, answered, late, delayed, loss_streak
        int64_t first_lost_age, last_lost_age, answered_age, arrived_age, timeout

cdef extern from "engine.h":
    int FT_MAX_PATHS, FT_MAX_PEERS, FT_MAX_CLASSES, FT_TRACE_BYTES, FT_MAX_SIZE, FT_TRACE_HITS, FT_PROBERS
    int FT_CE_FORWARD, FT_CE_REVERSE, FT_ECN_BOTH
    ctypedef struct ft_class:
        uint8_t tos
        int priority
    ctypedef struct ft_trace_hit:
        int arrived, path, type, code, mtu, size
        sockaddr_storage target, hop
        uint8_t data[40]
    ctypedef struct ft_prober:
        sockaddr_storage address
        int64_t seen_ns, traced_ns, probed_ns
    ctypedef struct ft_counters:
        uint64_t requests_sent
    ctypedef struct ft_config:
        int max_peers, paths, spare, hardware, device_index, classes
        ft_class class_ "class"[8]
        int64_t spacing_ns, timeout_ns, overdue_ns, cpu_starved_ns, drain_ns, max_age_ns
        int64_t collect_delay_ns, collect_period_ns
        double rate_pps, max_pps, answer_max_pps
        uint64_t run, seed
        uint32_t nic_hash, singles, table_probes, out_samples, reply_ring
        ft_key key
    ctypedef struct ft_schedule:
        int64_t at_ns
        double length_ns
        uint32_t count, probes
        int32_t *path_index
    ctypedef struct ft_output:
        uint32_t count
        uint32_t *lost
        uint32_t *no_t3
        int64_t clock_ns, system_ns
    ctypedef struct ft_trouble:
        int64_t clock_ns, system_ns, interval_ns, late_ns, queue_ns
        uint64_t missed_timers, stuck, receive_drops, capped
    ctypedef struct ft_engine:
        pass
    ft_engine *ft_engine_new(const ft_config *, int, const int *, int)
    void ft_engine_free(ft_engine *)
    int ft_engine_run(ft_engine *, int64_t) nogil
    void ft_engine_stop(ft_engine *)
    void ft_engine_lock(ft_engine *) nogil
    void ft_engine_unlock(ft_engine *)
    void ft_engine_set_peer(ft_engine *, int, const sockaddr_storage *, uint32_t)
    void ft_engine_clear_peer(ft_engine *, int)
    void ft_engine_set_rate(ft_engine *, double)
    void ft_engine_set_schedule(ft_engine *, ft_schedule)
    void ft_engine_shift_schedule(ft_engine *, int64_t)
    void ft_engine_set_flow_probing(ft_engine *, ft_schedule)
    ft_clock *ft_engine_clock(ft_engine *, int)
    int ft_engine_set_path(ft_engine *, int, int)
    int ft_engine_trace_hits(ft_engine *, ft_trace_hit *, int)
    int ft_engine_recent_probers(ft_engine *, ft_prober *, int)
    void ft_engine_trace_packet(ft_engine *, uint8_t *, const sockaddr_storage *, const sockaddr_storage *,
                                uint32_t, uint32_t, uint32_t)
    int ft_engine_size_hits(ft_engine *, ft_trace_hit *, int)
    void ft_engine_size_packet(ft_engine *, uint8_t *, const sockaddr_storage *, const sockaddr_storage *, uint32_t,
                               uint32_t, uint32_t)
    int ft_engine_send(ft_engine *, int, int, const uint8_t *, size_t, const sockaddr_storage *, int)
    int ft_engine_use_first_class(const ft_engine *, int)
    int ft_engine_is_traced(ft_engine *, const uint8_t *, int, const sockaddr_storage *, const sockaddr_storage *)
    ft_output *ft_engine_swap(ft_engine *)
    uint32_t ft_engine_evidence(ft_engine *, ft_trouble *, ft_path_news *, uint32_t)
    int ft_engine_evidence_fd(ft_engine *)
    void ft_engine_clocks(ft_engine *, int64_t *, int64_t *)
    const ft_counters *ft_engine_counters(ft_engine *)
    double ft_engine_throttle(ft_engine *)
    int ft_engine_groups(ft_engine *)
    void ft_engine_scatter(ft_engine *, ft_output *, int64_t *, int64_t *, int64_t *, int64_t *, int64_t *,
                           uint8_t *) nogil
    void ft_engine_inject(ft_engine *, int, const uint8_t *, int, const sockaddr_storage *)
    const char *const *ft_counter_names()
    int ft_counter_count()

__all__ = ["Prober", "Engine", "Evidence", "Link", "Peer", "SizeHit", "Sockets", "TestClock", "TraceHit",
           "ClassEvidence", "PathEvidence", "link_of", "open_socket", "open_sockets", "siphash24"]

cdef int64_t SECOND_NS = 1000000000
cdef int64_t MAX_AT_NS = 4_000_000_000_000_000_000
cdef int SLOT_PROBES = 9
cdef int MAX_PATHS = 1 << 16


@dataclass(frozen=True, slots=True)
class Peer:
    """A NIC to probe: its id, and the address and UDP port of its responder."""

    nic: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class TraceHit:
    """An answer to a trace packet.

    `path`: index of the path socket that sent it, -1 the responder. `hop` is the sender of the ICMP error,
    None if the far end itself confirms the packet. `seq` is the trace packet's; None if the error quotes too
    little of it.
    """

    path: int
    target: tuple
    hop: object
    type: int
    code: int
    seq: object


@dataclass(frozen=True, slots=True)
class SizeHit:
    """An answer to a size probe.

    `arrived`: the far end confirms it; else router `hop` states that it is larger than the `mtu_bytes` of its next
    link. `path`: index of the path socket that sent it. `seq` is the probe's; None if the error quotes too little.
    """

    arrived: bool
    path: int
    target: tuple
    hop: object
    mtu_bytes: int
    seq: object


@dataclass(frozen=True, slots=True)
class Prober:
    """A prober of this NIC: address and port, seconds since its last packet, its last trace and its last
    probe (None: none)."""

    address: str
    port: int
    seen_s: float
    traced_s: object
    probed_s: object = None


@dataclass(frozen=True, slots=True)
class Link:
    """Properties of a network device; None if the device does not report one."""

    speed_bps: int | None
    mtu_bytes: int | None


class ClassEvidence(NamedTuple):
    """Losses and answers of one traffic class of a path within an interval, as in `PathEvidence`.

    `forward_dscp`, `reverse_dscp`: DSCP with which the newest answered request and its reply arrived, where the
    network has changed it; None: as sent, or not known.
    """

    dscp: int
    lost: int
    answered: int
    late: int
    forward_dscp: object = None
    reverse_dscp: object = None


class PathEvidence(NamedTuple):
    """Losses and answers of one peer and path within an interval; ages in ns before its end, -1: none.

    `lost`: declared lost within it. `late`: of the `answered`, those that had been declared lost. `delayed`:
    those for which the network took longer than 4 x its p99. `loss_streak`: declared lost and sent after the
    newest answered one. `classes`: of each class with a probe; empty where one class is probed and keeps its DSCP.
    """

    peer: str
    path: int
    lost: int
    answered: int
    late: int
    delayed: int
    loss_streak: int
    first_lost_age_ns: int
    last_lost_age_ns: int
    answered_age_ns: int
    arrived_age_ns: int
    timeout_ns: int
    classes: tuple = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of `Engine.evidence`: an interval's losses and answers by path, and the agent's own delays.

    `late_ns`: longest that the thread or an answer of it came later than meant, 0 below `cpu_starved_ms`; `queue_ns`: longest
    that a request was seen to wait in the host's own queue; `stuck`: requests that never left the host;
    `receive_drops`: packets that its full sockets lost; `capped`: times that a rate cap held probes or answers back.
    """

    clock_ns: int
    system_ns: int
    interval_ns: int
    late_ns: int
    queue_ns: int
    missed_timers: int
    stuck: int
    receive_drops: int
    capped: int
    paths: list


@dataclass(frozen=True, slots=True)
class Sockets:
    """One responder socket and one socket a path, all bound to one address."""

    responder: object
    paths: tuple

    def close(self):
        """Close all sockets."""
        for sock in (self.responder, *self.paths):
            sock.close()

    @property
    def port(self):
        """The UDP port of the responder."""
        return self.responder.getsockname()[1]

    @property
    def path_ports(self):
        """The source port of each path."""
        return tuple(sock.getsockname()[1] for sock in self.paths)


def open_socket(str address, int port, int buffer_bytes=1 << 20, *, str device=None):
    """Open and bind one UDP socket in the calling thread's network namespace; port 0: any free one.

    Its packets leave by `device`; None: as the kernel routes them.

    Raises OSError, its text naming address and port.
    """
    sock = _socket.socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET,
                          _socket.SOCK_DGRAM | _socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, buffer_bytes)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, buffer_bytes)
        bind_to_device(sock, address, port, device)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"probe socket {address} UDP port {port}: {error.strerror}") from None
    return sock


def open_sockets(str address, int port, int first_path_port, int paths, int buffer_bytes=1 << 20, *, int spare=0,
                 str device=None):
    """Open and bind a NIC's sockets in the calling thread's network namespace; port 0: any free one, which `spare`
    further paths get. Their packets leave by `device`; None: as the kernel routes them.

    Raises OSError, its text naming address and port.
    """
    opened = []
    ports = [port] + [first_path_port and first_path_port + i for i in range(paths)] + [0] * spare
    try:
        for wanted in ports:
            opened.append(open_socket(address, wanted, buffer_bytes, device=device))
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return Sockets(opened[0], tuple(opened[1:]))


def link_of(sock, str device):
    """Return the properties of `device`, of the namespace in which `sock` was opened."""
    cdef int64_t speed
    cdef int mtu
    name = device.encode()
    ft_link(sock.fileno(), name, &speed, &mtu)
    return Link(speed if speed > 0 else None, mtu if mtu > 0 else None)


def siphash24(bytes key, bytes data):
    """Return the SipHash-2-4 of `data` under a key of 16 bytes (32: folded into one), as an integer."""
    _check_key(key)
    return ft_siphash(ft_key_from(key, len(key)), data, len(data))


def _check_key(key):
    if len(key) not in (16, 32):
        raise ValueError(f"fleet key: {len(key)} bytes, expected 16 or 32")


cdef class TestClock:
    """A NIC's clock in tests; deterministic, so that any process can compute the true reading.

    With s the seconds since `epoch_ns` it reads system + offset_ns + drift_ppb * s + x(s), and step_ns more
    from step_at_ns on; x is the integral of a seeded random walk of frequency, whose standard deviation after
    s seconds is wander_ppb_per_sqrt_s * sqrt(s). Times are ns since the Unix epoch.
    """

    __test__ = False
    cdef ft_clock clock
    cdef readonly tuple parameters

    def __init__(self, int64_t offset_ns=0, double drift_ppb=0.0, double wander_ppb_per_sqrt_s=0.0,
                 int64_t epoch_ns=0, seed=0, int64_t step_ns=0, int64_t step_at_ns=0):
        if wander_ppb_per_sqrt_s > 0 and epoch_ns <= 0:
            raise ValueError(f"test clock: epoch_ns {epoch_ns} with wander, expected a time after 1970")
        self.parameters = (offset_ns, drift_ppb, wander_ppb_per_sqrt_s, epoch_ns, seed, step_ns, step_at_ns)
        ft_clock_init(&self.clock, offset_ns, drift_ppb, wander_ppb_per_sqrt_s, epoch_ns,
                      <uint64_t>(seed & 0xFFFFFFFFFFFFFFFF), step_ns, step_at_ns)

    def reading(self, int64_t realtime_ns):
        """Return the clock's reading at this moment of the system clock, ns."""
        return ft_clock_read(&self.clock, realtime_ns)

    def offset_at(self, int64_t realtime_ns):
        """Return the clock minus the system clock at this moment, ns."""
        return ft_clock_read(&self.clock, realtime_ns) - realtime_ns

    def __reduce__(self):
        return (TestClock, self.parameters)


cdef void _fill_address(sockaddr_storage *out, address, int port) except *:
    """Write a socket address. Raises ValueError if `address` is not an IP address."""
    cdef uint8_t *p = <uint8_t *>out
    cdef bytes packed
    memset(out, 0, sizeof(sockaddr_storage))
    if not 0 <= port < 65536:
        raise ValueError(f"port {port}: expected 0 to 65535")
    try:
        packed = _socket.inet_pton(_socket.AF_INET6 if ":" in address else _socket.AF_INET, address)
    except OSError:
        raise ValueError(f"address {address!r}: expected an IPv4 or IPv6 address") from None
    out.ss_family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    p[2] = port >> 8
    p[3] = port & 255
    memcpy(p + (8 if ":" in address else 4), <const uint8_t *>packed, len(packed))


cdef tuple _address_of(const sockaddr_storage *a):
    """Return (address, port), or (None, 0) without an address."""
    cdef const uint8_t *p = <const uint8_t *>a
    port = p[2] << 8 | p[3]
    if a.ss_family == _socket.AF_INET:
        return _socket.inet_ntop(_socket.AF_INET, p[4:8]), port
    if a.ss_family == _socket.AF_INET6:
        return _socket.inet_ntop(_socket.AF_INET6, p[8:24]), port
    return None, 0


cdef uint32_t _hash_of(str nic):
    cdef ft_key zero
    zero.k0 = zero.k1 = 0
    name = nic.encode()
    return <uint32_t>ft_siphash(zero, name, len(name))


cdef _seq_of(ft_trace_hit *hit):
    """Return the sequence number in the bytes of an answer; None if they are too few."""
    return int.from_bytes(bytes(hit.data[4:8]), "big") if hit.size >= 16 else None


cdef class Engine:
    """Prober and responder of one NIC. Rates in packets a second, times in the unit of their names.

    `rate_pps` requests a second go to random peers on random paths, in coded pairs `spacing_ns` apart with
    exponential gaps between pairs (spacing_ns 0: single probes). With each go `singles` single probes, over
    all peers and paths in a fixed cycle. The last `spare` paths are reserved for flow probing, of up to
    `flow_pps` probes. A request is finally lost after `timeout_ms`; `evidence` declares it lost once it is
    overdue, after at least `overdue_ms` (losses.c). `max_pps` caps requests, `answer_max_pps` answers; both
    slow and never stop. The responder's timestamps are collected `collect_delay_ms` after a reply or, with
    `collect_period_ms`, that much after each multiple of the period on the system clock. `classes`: (DSCP, socket priority or None) of each traffic class, which the probes of a
    path take in turn; `ecn`: leave ECN-capable. `device`: use the NIC's own timestamps if it has them.
    `device_index`: interface that requests are to arrive by, to count those of others; 0: any. Raises ValueError for a
    setting out of range, OSError if the kernel refuses.
    """

    cdef ft_engine *engine
    cdef ft_config config
    cdef ft_hwstamp hardware
    cdef object sockets, names, slots, free_slots, resting, phc
    cdef bytes device
    cdef list ports, dscps
    cdef int64_t batch
    cdef readonly str nic
    cdef readonly object run_id
    cdef bint has_clock

    def __cinit__(self):
        self.engine = NULL

    def __init__(self, sockets, *, str nic, bytes key, run=None, double rate_pps=1000.0, double max_pps=100_000.0,
                 double answer_max_pps=200_000.0, int64_t spacing_ns=20_000, int singles=0, int spare=0, double flow_pps=0.0, double timeout_ms=100.0, double overdue_ms=2.0, double cpu_starved_ms=5.0,
                 double collect_delay_ms=20.0, double collect_period_ms=0.0, double drain_ms=5.0, double max_age_s=86_400.0, clock=None,
                 str device=None, seed=None, int max_peers=64, classes=((0, None),), bint ecn=True, int device_index=0):
        cdef int fds[64]
        paths = len(sockets.paths)
        _check_key(key)
        _check("rate_pps", rate_pps, 0.001, 10e6)
        _check("max_pps", max_pps, 1, 10e6)
        _check("answer_max_pps", answer_max_pps, 1, 10e6)
        _check("spacing_ns", spacing_ns, 0, 1_000_000_000)
        _check("singles", singles, 0, 8)
        _check("spare", spare, 0, paths - 1)
        _check("flow_pps", flow_pps, 0, 10e6)
        _check("timeout_ms", timeout_ms, 1, 60_000)
        _check("overdue_ms", overdue_ms, 0.1, 60_000)
        _check("cpu_starved_ms", cpu_starved_ms, 0.1, 60_000)
        _check("drain_ms", drain_ms, 0, 1_000)
        _check("collect_delay_ms", collect_delay_ms, 0, timeout_ms)
        _check("collect_period_ms", collect_period_ms, 0, timeout_ms)
        _check("max_peers", max_peers, 1, FT_MAX_PEERS)
        _check("paths", paths, 1, FT_MAX_PATHS)
        _check("classes", len(classes), 1, FT_MAX_CLASSES)
        if self.engine is not NULL:
            raise RuntimeError("Engine: initialised twice")
        self.sockets = sockets
        self.nic = nic
        self.run_id = run if run is not None else int.from_bytes(os.urandom(8), "big") >> 1
        self.batch = 0
        self.ports = list(sockets.path_ports)
        self.dscps = [dscp for dscp, _ in classes]
        self.config.classes = len(classes)
        for i, (dscp, priority) in enumerate(classes):
            _check("dscp", dscp, 0, 63)
            _check("priority", 0 if priority is None else priority, 0, 15)
            self.config.class_[i].tos = dscp << 2 | (2 if ecn else 0)
            self.config.class_[i].priority = -1 if priority is None else priority
        self.slots = {}
        self.names = [None] * max_peers
        self.free_slots = list(range(max_peers - 1, -1, -1))
        self.resting = []
        self.phc = None
        self.hardware.phc = -1
        self.hardware.changed = 0
        self.config.max_peers = max_peers
        self.config.paths = paths
        self.config.spacing_ns = spacing_ns
        self.config.singles = singles
        self.config.spare = spare
        self.config.timeout_ns = <int64_t>(timeout_ms * 1e6)
        self.config.overdue_ns = <int64_t>(min(overdue_ms, timeout_ms) * 1e6)
        self.config.cpu_starved_ns = <int64_t>(cpu_starved_ms * 1e6)
        self.config.collect_delay_ns = <int64_t>(collect_delay_ms * 1e6)
        self.config.collect_period_ns = <int64_t>(collect_period_ms * 1e6)
        self.config.drain_ns = <int64_t>(drain_ms * 1e6)
        self.config.max_age_ns = <int64_t>(max_age_s * 1e9)
        self.config.rate_pps = rate_pps
        self.config.max_pps = max_pps
        self.config.answer_max_pps = answer_max_pps
        self.config.run = self.run_id
        self.config.seed = (int.from_bytes(os.urandom(8), "big") if seed is None else seed) & 0xFFFFFFFFFFFFFFFF
        self.config.nic_hash = _hash_of(nic)
        self.config.key = ft_key_from(key, len(key))
        busiest = min(rate_pps + flow_pps, max_pps) * 1.25
        self.config.table_probes = <uint32_t>min(busiest * (2.5 * timeout_ms / 1e3 + 0.1) + 512, 4e6)
        self.config.out_samples = <uint32_t>min(busiest * 2 + 4096, 4e6)
        self.config.reply_ring = <uint32_t>min(65536, 1024 + answer_max_pps)
        if device is not None and clock is None:
            self.device = device.encode()
            if ft_hwstamp_start(sockets.responder.fileno(), self.device, &self.hardware):
                try:
                    self.phc = os.open(f"/dev/ptp{self.hardware.phc}", os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    ft_hwstamp_restore(sockets.responder.fileno(), self.device, &self.hardware)
                    self.hardware.phc = -1
                    self.hardware.changed = 0
        self.config.hardware = self.phc is not None
        self.config.device_index = device_index
        for i in range(paths):
            fds[i] = sockets.paths[i].fileno()
        self.engine = ft_engine_new(&self.config, sockets.responder.fileno(), fds,
                                    -1 if self.phc is None else self.phc)
        if self.engine is NULL:
            error = errno
            self._restore()
            raise OSError(error, f"probe engine of {nic}: {os.strerror(error)}")
        self.has_clock = clock is not None
        if clock is not None:
            self._set_clock(clock)

    cdef void _set_clock(self, clock):
        cdef int64_t offset, epoch, step, step_at
        cdef double drift, wander
        offset, drift, wander, epoch, seed, step, step_at = clock.parameters
        ft_clock_init(ft_engine_clock(self.engine, 1), offset, drift, wander, epoch,
                      <uint64_t>(seed & 0xFFFFFFFFFFFFFFFF), step, step_at)

    cdef void _restore(self):
        if self.hardware.changed:
            ft_hwstamp_restore(self.sockets.responder.fileno(), self.device, &self.hardware)
            self.hardware.changed = 0
        if self.phc is not None:
            os.close(self.phc)
            self.phc = None

    def __dealloc__(self):
        ft_engine_free(self.engine)

    def close(self):
        """Restore the NIC's former timestamping and close the sockets. Call it only after `run` has returned."""
        ft_engine_free(self.engine)
        self.engine = NULL
        self._restore()
        self.sockets.close()

    cdef ft_engine *_alive(self) except NULL:
        if self.engine is NULL:
            raise RuntimeError(f"probe engine of {self.nic}: closed")
        return self.engine

    @property
    def phc_index(self):
        """N of the /dev/ptpN that timestamps packets, or None if the kernel's clock does."""
        return self.hardware.phc if self.config.hardware else None

    @property
    def path_ports(self):
        """The source port of each path, without the spare ones."""
        return tuple(self.ports[:self.config.paths - self.config.spare])

    @property
    def all_ports(self):
        """The source port of each path, the spare ones last."""
        return tuple(self.ports)

    @property
    def responder_socket(self):
        """The responder's socket, only to read properties of its device, since the engine receives from it."""
        return self.sockets.responder

    @property
    def responder_port(self):
        """The UDP port of the responder."""
        return self.sockets.port

    @property
    def class_dscps(self):
        """The DSCP of each traffic class, the first one being that of traces."""
        return tuple(self.dscps)

    def send(self, int path, bytes data, tuple target, *, int ttl=0, int traffic_class=0):
        """Send a packet from a path's socket (-1: the responder's); return whether the kernel took it.

        `traffic_class`: index of the class; `ttl` 0: the usual one.
        """
        cdef sockaddr_storage far
        cdef const uint8_t *p = data
        self._alive()
        _check("path", path, -1, self.config.paths - 1)
        _check("traffic_class", traffic_class, 0, self.config.classes - 1)
        _check("ttl", ttl, 0, 255)
        _fill_address(&far, target[0], target[1])
        self._lock()
        error = ft_engine_send(self.engine, path, traffic_class, p, <size_t>len(data), &far, ttl)
        ft_engine_unlock(self.engine)
        return error == 0

    def use_first_class(self, sock):
        """Let all packets of another socket of this NIC leave in the first class. Raises OSError if refused."""
        error = ft_engine_use_first_class(self._alive(), sock.fileno())
        if error:
            raise OSError(error, f"probe engine of {self.nic}: traffic class: {os.strerror(error)}")

    def set_path(self, int path, sock):
        """Probe path number `path` from another bound socket from now on, and close the old socket.

        Probes in flight on the old one are forgotten: neither a sample nor a loss. `sock` becomes the engine's.
        Raises OSError where the kernel refuses it.
        """
        cdef ft_engine *engine = self._alive()
        _check("path", path, 0, self.config.paths - 1)
        port = sock.getsockname()[1]
        self._lock()
        error = ft_engine_set_path(engine, path, sock.fileno())
        ft_engine_unlock(engine)
        if error:
            raise OSError(error, f"probe engine of {self.nic}: path {path}: {os.strerror(error)}")
        paths = list(self.sockets.paths)
        old, paths[path] = paths[path], sock
        self.sockets = Sockets(self.sockets.responder, tuple(paths))
        self.ports[path] = port
        old.close()

    def trace_packet(self, tuple source, tuple target, str nic, uint32_t seq, int ttl):
        """Return the bytes of a trace packet from one (address, port) to another, which `nic` answers."""
        cdef sockaddr_storage near, far
        cdef uint8_t[40] data
        self._alive()
        _fill_address(&near, source[0], source[1])
        _fill_address(&far, target[0], target[1])
        ft_engine_trace_packet(self.engine, data, &near, &far, _hash_of(nic), seq, ttl)
        return bytes(data[:FT_TRACE_BYTES])

    def traced_seq(self, bytes data, tuple sender, tuple own):
        """Return the sequence number of our trace that this packet to `own` answers; None if it answers none."""
        cdef sockaddr_storage near, far
        self._alive()
        _fill_address(&far, sender[0], sender[1])
        _fill_address(&near, own[0], own[1])
        if not ft_engine_is_traced(self.engine, data, <int>min(len(data), 65536), &far, &near):
            return None
        return int.from_bytes(data[4:8], "big")

    def trace_hits(self):
        """Return the answers to traces from the engine's own sockets."""
        cdef ft_trace_hit[64] hits
        cdef int n = 64, i
        self._alive()
        found = []
        while n == 64:
            self._lock()
            n = ft_engine_trace_hits(self.engine, hits, 64)
            ft_engine_unlock(self.engine)
            for i in range(n):
                found.append(TraceHit(
                    hits[i].path, _address_of(&hits[i].target), _address_of(&hits[i].hop)[0], hits[i].type,
                    hits[i].code, _seq_of(&hits[i])))
        return found

    def size_packet(self, tuple source, tuple target, str nic, uint32_t seq, int size):
        """Return `size` bytes of payload from one (address, port) to another, whose arrival `nic` confirms."""
        cdef sockaddr_storage near, far
        cdef uint8_t[40] data
        self._alive()
        _check("size", size, FT_TRACE_BYTES, FT_MAX_SIZE)
        _fill_address(&near, source[0], source[1])
        _fill_address(&far, target[0], target[1])
        ft_engine_size_packet(self.engine, data, &near, &far, _hash_of(nic), seq, size)
        return bytes(data[:FT_TRACE_BYTES]) + bytes(size - FT_TRACE_BYTES)

    def size_hits(self):
        """Return the answers to size probes from the engine's own sockets."""
        cdef ft_trace_hit[64] hits
        cdef int n = 64, i
        self._alive()
        found = []
        while n == 64:
            self._lock()
            n = ft_engine_size_hits(self.engine, hits, 64)
            ft_engine_unlock(self.engine)
            for i in range(n):
                found.append(SizeHit(bool(hits[i].arrived), hits[i].path, _address_of(&hits[i].target),
                                     _address_of(&hits[i].hop)[0], hits[i].mtu, _seq_of(&hits[i])))
        return found

    def probers(self):
        """Return the probers of this NIC within the last 10 s, at most 4,096."""
        self._alive()
        cdef ft_prober *items = <ft_prober *>malloc(FT_PROBERS * sizeof(ft_prober))
        if items is NULL:
            raise MemoryError
        try:
            self._lock()
            n = ft_engine_recent_probers(self.engine, items, FT_PROBERS)
            ft_engine_unlock(self.engine)
            now = time.monotonic_ns()
            found = []
            for i in range(n):
                address, port = _address_of(&items[i].address)
                traced, probed = items[i].traced_ns, items[i].probed_ns
                found.append(Prober(address, port, (now - items[i].seen_ns) * 1e-9,
                                   (now - traced) * 1e-9 if traced else None,
                                   (now - probed) * 1e-9 if probed else None))
            return found
        finally:
            free(items)

    def run(self, seconds=None):
        """Probe and answer for `seconds`, or until `stop`. Raises OSError if waiting fails."""
        cdef int64_t for_ns = -1 if seconds is None else <int64_t>(seconds * 1e9)
        cdef int error
        cdef ft_engine *engine = self._alive()
        with nogil:
            error = ft_engine_run(engine, for_ns)
        if error:
            raise OSError(error, f"probe engine of {self.nic}: {os.strerror(error)}")

    def stop(self):
        """Make `run` return soon, from any thread; if none is active, the next `run` returns at once."""
        ft_engine_stop(self._alive())

    cdef void _lock(self):
        cdef ft_engine *engine = self.engine
        with nogil:
            ft_engine_lock(engine)

    def set_peers(self, peers):
        """Probe these peers from now on. Raises ValueError for more than max_peers, or an invalid address."""
        cdef sockaddr_storage address
        self._alive()
        wanted = {peer.nic: peer for peer in peers}
        if len(wanted) > self.config.max_peers:
            raise ValueError(f"peers: {len(wanted)}, expected at most {self.config.max_peers}")
        for peer in wanted.values():
            _fill_address(&address, peer.address, peer.port)
        for nic in [nic for nic in self.slots if nic not in wanted]:
            slot = self.slots.pop(nic)[0]
            self._lock()
            ft_engine_clear_peer(self.engine, slot)
            ft_engine_unlock(self.engine)
            self.resting.append([slot, 0])
        for nic, peer in wanted.items():
            slot, known = self.slots.get(nic, (None, None))
            if known == peer:
                continue
            if slot is None:
                slot = self._take_slot()
                if slot is None:
                    continue
            self.slots[nic] = (slot, peer)
            self.names[slot] = nic
            _fill_address(&address, peer.address, peer.port)
            self._lock()
            ft_engine_set_peer(self.engine, slot, &address, _hash_of(nic))
            ft_engine_unlock(self.engine)

    def _take_slot(self):
        return self.free_slots.pop() if self.free_slots else None

    @property
    def peers(self):
        """The peers that are probed at present."""
        return [peer for _, peer in self.slots.values()]

    def set_rate(self, double rate_pps):
        """Change the request rate, up to the initial rate, for which the tables were allocated."""
        self._alive()
        _check("rate_pps", rate_pps, 0.001, 10e6)
        self._lock()
        ft_engine_set_rate(self.engine, rate_pps)
        ft_engine_unlock(self.engine)

    def set_schedule(self, int64_t at_ns, double length_ns, int probes_per_slot, paths):
        """Probe by a schedule from now on; without `paths` at random again, with exponential gaps.

        Slot k begins at `at_ns` + k * `length_ns` on the monotonic clock. At any time of its first half its
        `probes_per_slot` probes leave, the first one as a coded pair if there are such. `paths`: (peer,
        source port) of each probe of a round, slot by slot. An unknown one goes to any path. Raises
        ValueError for invalid numbers.
        """
        cdef ft_schedule schedule
        cdef int i
        self._alive()
        memset(&schedule, 0, sizeof(schedule))
        if paths:
            if not 1 <= probes_per_slot <= SLOT_PROBES or len(paths) % probes_per_slot or len(paths) > MAX_PATHS:
                raise ValueError(f"{len(paths)} paths, {probes_per_slot} per slot: expected 1 to {SLOT_PROBES} per slot, "
                                 f"whole slots, {MAX_PATHS} paths in total at most")
            if not 1e3 <= length_ns <= 1e12 or not -MAX_AT_NS < at_ns < MAX_AT_NS:
                raise ValueError(f"slots of {length_ns} ns from {at_ns} ns: expected 1 us to 1000 s")
            schedule.path_index = <int32_t *>malloc(len(paths) * sizeof(int32_t))
            if schedule.path_index is NULL:
                raise MemoryError
            at_port = {port: at for at, port in enumerate(self.ports)}
            for i, (nic, port) in enumerate(paths):
                slot, at = self.slots.get(nic), at_port.get(port)
                schedule.path_index[i] = -1 if slot is None or at is None else slot[0] * self.config.paths + at
            schedule.at_ns, schedule.length_ns, schedule.probes = at_ns, length_ns, probes_per_slot
            schedule.count = <uint32_t>(len(paths) // probes_per_slot)
        self._lock()
        ft_engine_set_schedule(self.engine, schedule)
        ft_engine_unlock(self.engine)

    def set_flow_probing(self, double length_ns, int probes_per_slot, paths):
        """Send single probes to these paths from now on, in addition to everything else; without `paths`
        none.

        A slot takes `length_ns`. At any time of its first half, or earlier with another probe, its
        `probes_per_slot` probes leave. `paths`: (peer, source port) of each probe of a round, slot by slot;
        an unknown one, and None, sends nothing. Raises ValueError for invalid numbers.
        """
        cdef ft_schedule schedule
        cdef int i
        self._alive()
        memset(&schedule, 0, sizeof(schedule))
        if paths:
            if not 1 <= probes_per_slot <= SLOT_PROBES or len(paths) % probes_per_slot or len(paths) > MAX_PATHS:
                raise ValueError(f"{len(paths)} paths, {probes_per_slot} per slot: expected 1 to {SLOT_PROBES} per slot, "
                                 f"whole slots, {MAX_PATHS} paths in total at most")
            if not 1e4 <= length_ns <= 1e12:
                raise ValueError(f"slots of {length_ns} ns: expected 10 us to 1000 s")
            schedule.path_index = <int32_t *>malloc(len(paths) * sizeof(int32_t))
            if schedule.path_index is NULL:
                raise MemoryError
            at_port = {port: at for at, port in enumerate(self.ports)}
            for i, path in enumerate(paths):
                slot, at = (None, None) if path is None else (self.slots.get(path[0]), at_port.get(path[1]))
                schedule.path_index[i] = -1 if slot is None or at is None else slot[0] * self.config.paths + at
            schedule.at_ns, schedule.length_ns, schedule.probes = time.monotonic_ns(), length_ns, probes_per_slot
            schedule.count = <uint32_t>(len(paths) // probes_per_slot)
        self._lock()
        ft_engine_set_flow_probing(self.engine, schedule)
        ft_engine_unlock(self.engine)

    def shift_schedule(self, int64_t at_ns):
        """Set a new begin of the schedule on the monotonic clock, after the clocks have drifted apart."""
        self._alive()
        if not -MAX_AT_NS < at_ns < MAX_AT_NS:
            raise ValueError(f"schedule from {at_ns} ns: out of range")
        self._lock()
        ft_engine_shift_schedule(self.engine, at_ns)
        ft_engine_unlock(self.engine)

    def clock_now(self):
        """Return (ns of the stamping clock, ns of the monotonic clock), read together."""
        cdef int64_t clock, system
        self._alive()
        self._lock()
        before = time.monotonic_ns()
        ft_engine_clocks(self.engine, &clock, &system)
        after = time.monotonic_ns()
        ft_engine_unlock(self.engine)
        return clock, (before + after) // 2

    def step_clock(self, int64_t step_ns):
        """Make the test clock step now. Raises RuntimeError without a test clock."""
        if not self.has_clock:
            raise RuntimeError(f"probe engine of {self.nic}: no test clock to step")
        self._lock()
        ft_engine_clock(self.engine, 1).offset_ns += step_ns
        ft_engine_unlock(self.engine)

    def counters(self):
        """Return the counters since the start, by name, and `throttle`: the share of the rate in use, 0..1."""
        cdef const ft_counters *c
        cdef const char *const *names = ft_counter_names()
        cdef const uint64_t *values
        self._alive()
        self._lock()
        values = <const uint64_t *>ft_engine_counters(self.engine)
        found = {names[i].decode(): values[i] for i in range(ft_counter_count())}
        found["throttle"] = ft_engine_throttle(self.engine)
        ft_engine_unlock(self.engine)
        return found

    def drain(self):
        """Return and clear all samples and losses since the last call, as the next batch; not thread-safe."""
        cdef ft_output *out
        cdef ft_engine *engine = self._alive()
        cdef int groups = ft_engine_groups(engine), g
        cdef int64_t[::1] start = np.empty(groups + 1, np.int64)
        cdef int64_t[::1] sent, forward, turnaround, reverse
        cdef uint8_t[::1] marks
        self._lock()
        out = ft_engine_swap(engine)
        ft_engine_unlock(engine)
        columns = np.empty((4, out.count + 1), np.int64)  # one spare: a memoryview of nothing has no address
        sent, forward, turnaround, reverse = columns
        marked = np.empty(out.count + 1, np.uint8)
        marks = marked
        with nogil:
            ft_engine_scatter(engine, out, &start[0], &sent[0], &forward[0], &turnaround[0], &reverse[0],
                              &marks[0])
        marked = marked[:-1]
        peers, path, spacing, lost, no_t3, starts, dscp, ecn = [], [], [], [], [], [], [], []
        cdef int paths = self.config.paths, classes = self.config.classes, capable
        cdef uint8_t seen = 0
        cdef int64_t i
        for g in range(groups):
            if start[g + 1] == start[g] and not out.lost[g] and not out.no_t3[g]:
                continue
            peers.append(self.names[g // 2 // classes // paths])
            path.append(self.ports[g // 2 // classes % paths])
            dscp.append(self.dscps[g // 2 % classes])
            spacing.append(self.config.spacing_ns if g & 1 else 0)
            lost.append(out.lost[g])
            no_t3.append(out.no_t3[g])
            starts.append(start[g])
            capable = 0
            for i in range(start[g], start[g + 1]):
                seen |= marks[i]
                capable += (marks[i] & FT_ECN_BOTH) != 0
            ecn.append(capable)
        starts.append(out.count)
        batch = self.batch
        self.batch += 1
        self._rested()
        return ProbeColumns(
            nic=self.nic, run=self.run_id, batch=batch, clock_ns=out.clock_ns, system_ns=out.system_ns, peers=peers,
            path=np.array(path, np.int32), spacing_ns=np.array(spacing, np.int32), lost=np.array(lost, np.int32),
            no_t3=np.array(no_t3, np.int32), start=np.array(starts, np.int64), sent=columns[0, :-1],
            forward=columns[1, :-1], turnaround=columns[2, :-1], reverse=columns[3, :-1],
            dscp=np.array(dscp, np.int32), ecn=np.array(ecn, np.int32),
            forward_ce=_samples_with(FT_CE_FORWARD, marked, seen), reverse_ce=_samples_with(FT_CE_REVERSE, marked, seen))

    @property
    def evidence_fd(self):
        """A file descriptor, readable while `evidence` has losses, recovered paths or a late thread to report."""
        return ft_engine_evidence_fd(self._alive())

    def clocks(self):
        """Return the stamping clock and the system clock as they read now, ns."""
        cdef int64_t clock_ns, system_ns
        self._alive()
        self._lock()
        ft_engine_clocks(self.engine, &clock_ns, &system_ns)
        ft_engine_unlock(self.engine)
        return clock_ns, system_ns

    def evidence(self, int max_paths=4096):
        """Return losses and answers since the last call, of at most so many paths: the rest comes with the
        next."""
        cdef ft_trouble trouble
        cdef ft_path_news *news
        cdef uint32_t n, i
        cdef int paths = self.config.paths
        cdef ft_engine *engine = self._alive()
        news = <ft_path_news *>malloc(max(max_paths, 1) * sizeof(ft_path_news))
        if news is NULL:
            raise MemoryError
        try:
            self._lock()
            n = ft_engine_evidence(engine, &trouble, news, max(max_paths, 1))
            ft_engine_unlock(engine)
            found = [
                PathEvidence(self.names[news[i].path_index // paths], self.ports[news[i].path_index % paths], news[i].lost,
                        news[i].answered, news[i].late, news[i].delayed, news[i].loss_streak, news[i].first_lost_age,
                        news[i].last_lost_age, news[i].answered_age, news[i].arrived_age, news[i].timeout,
                        self._classes_of(&news[i]))
                for i in range(n)
            ]
        finally:
            free(news)
        return Evidence(
            clock_ns=trouble.clock_ns, system_ns=trouble.system_ns, interval_ns=trouble.interval_ns,
            late_ns=trouble.late_ns, queue_ns=trouble.queue_ns, missed_timers=trouble.missed_timers,
            stuck=trouble.stuck, receive_drops=trouble.receive_drops, capped=trouble.capped, paths=found)

    cdef tuple _classes_of(self, const ft_path_news *news):
        cdef int c
        if self.config.classes == 1 and not news.class_[0].forward and not news.class_[0].reverse:
            return ()
        return tuple([
            ClassEvidence(self.dscps[c], news.class_[c].lost, news.class_[c].answered, news.class_[c].late,
                          _dscp_of(news.class_[c].forward), _dscp_of(news.class_[c].reverse))
            for c in range(self.config.classes) if news.class_[c].lost or news.class_[c].answered
        ])

    def _rested(self):
        """A slot is reused for another peer only when no packet of the old peer can arrive."""
        now = time.monotonic()
        for entry in self.resting:
            entry[1] = entry[1] or now + 3 * self.config.timeout_ns * 1e-9
        for entry in [entry for entry in self.resting if entry[1] < now]:
            self.resting.remove(entry)
            self.free_slots.append(entry[0])

    def inject(self, int path, bytes data, str address, int port):
        """Parse a packet as if it had arrived on a path (-1 for the responder); for tests."""
        cdef sockaddr_storage sender
        self._alive()
        _fill_address(&sender, address, port)
        self._lock()
        ft_engine_inject(self.engine, path, data, <int>min(len(data), 65536), &sender)
        ft_engine_unlock(self.engine)


cdef _dscp_of(uint8_t changed):
    return changed - 1 if changed else None


def _samples_with(mark, marked, seen):
    """Return the samples with a mark; `seen`: all marks of the batch."""
    return np.flatnonzero(marked & mark) if seen & mark else np.empty(0, np.int64)


def _check(str name, value, minimum, maximum):
    if not minimum <= value <= maximum:
        raise ValueError(f"{name} {value}: expected {minimum} to {maximum}")
