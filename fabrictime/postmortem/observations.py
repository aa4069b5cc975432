"""Typed records of the facts that readers extract from a job's files. No reader draws conclusions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_RANK: Final = 1_000_000
"""Largest rank that is believed; a larger number in a file is not a rank."""
LOCAL: Final = ("P2P", "SHM", "NVLS")
"""Transports within a host: between GPUs over NVLink or PCIe, host memory, multicast of NVLink switches."""
COLLNET: Final = "COLLNET"
"""Transport of reductions within the switches (SHARP)."""


class Group(NamedTuple):
    """A process group or communicator. `ranks` is empty if its members are unknown."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()

    def text(self) -> str:
        """Return the name as texts show it, such as `group 0 (default_pg)`."""
        return f"group {self.name} ({self.description})" if self.description else f"group {self.name}"


class Call(NamedTuple):
    """A collective operation in a Flight Recorder dump. Times are from the host's clock, ns; 0 if unknown."""

    rank: int
    group: Group
    seq: int
    function: str
    elements: int
    out_elements: int
    dtype: str
    state: str
    order: int
    created_ns: int
    started_ns: int
    ended_ns: int
    duration_ns: int

    @property
    def is_complete(self) -> bool:
        """Return whether the operation ended."""
        return self.state == "completed"


class Message(NamedTuple):
    """A send or receive in a Flight Recorder dump. Ranks are positions in the group."""

    rank: int
    group: Group
    seq: int
    is_send: bool
    source: int
    target: int
    is_complete: bool
    order: int
    created_ns: int
    started_ns: int
    ended_ns: int
    duration_ns: int


class Status(NamedTuple):
    """The numbers of a rank's last enqueued, started and completed collectives in a group; -1 if unknown."""

    enqueued: int
    started: int
    completed: int


class Span(NamedTuple):
    """A timed operation from a profiler (Kineto, NCCL Inspector, Chakra) or from a dump.

    `bytes`, `begin_ns` and `stamp_ns` are 0 if unknown. `stamp_ns` is a time close to the operation's end, by
    the host's clock. `pair` is empty for a collective, else sender and receiver as positions in the group.
    """

    source: str
    rank: int
    group: Group
    group_size: int
    seq: int
    function: str
    bytes: int
    begin_ns: int
    duration_ns: int
    stamp_ns: int = 0
    pair: tuple[int, ...] = ()


class Failure(NamedTuple):
    """The end of a process. Unknown `rank` and `host` are None and empty.

    `weight`, the confidence that this end is a cause, is 1 for killed or crashed, 0.5 for an exception, 0 for
    a consequence of another failure.
    """

    rank: int | None
    host: str
    pid: str
    text: str
    time_s: float
    weight: float
    place: str


class Timeout(NamedTuple):
    """A watchdog's line about a late operation. Unknown numbers are -1. `place`: position in the group."""

    rank: int
    group: str
    seq: int
    function: str
    elements: int
    last_enqueued: int
    last_completed: int
    place: int = -1


class NetError(NamedTuple):
    """An error of a NIC or a connection that NCCL logged."""

    host: str
    device: str
    peer: str
    text: str
    is_local: bool


class TableRow(NamedTuple):
    """The results for one message size in a table of nccl-tests."""

    bytes: int
    bus_gbs: float
    errors: int


@dataclass(slots=True)
class Table:
    """The result table of a run of nccl-tests or rccl-tests."""

    name: str
    test: str = ""
    hosts: list[str] = field(default_factory=list)
    device: str = ""
    """The only NIC that NCCL_IB_HCA allowed; empty if unknown."""
    ranks: int = 0
    rows: list[TableRow] = field(default_factory=list)
    is_finished: bool = False
    failures: list[str] = field(default_factory=list)


class Step(NamedTuple):
    """A job or step in Slurm's accounting."""

    name: str
    state: str
    exit_code: int
    signal: int
    hosts: tuple[str, ...]
    max_rss_host: str
    max_rss_rank: int | None


@dataclass(slots=True)
class HostNetwork:
    """The network devices of a host, as NCCL logged them."""

    network: str = ""
    rdma_devices: dict[int, str] = field(default_factory=dict)
    """Index to device, such as mlx5_0, of the line NET/IB : Using."""
    addresses: set[str] = field(default_factory=set)
    no_gdr_devices: set[str] = field(default_factory=set)
    reason: str = ""
    """The line that explains the choice of network, such as `NET/IB : No device found`."""


class Channel(NamedTuple):
    """The use of a NIC by a rank: transport such as IB or Socket, index of the device, GPUDirect or not.

    A connection within a host has the transport P2P, SHM or NVLS, and the device -1. SHARP, the reduction
    within switches, has the transport COLLNET. `communicator` is empty if unknown.
    """

    rank: int
    host: str
    transport: str
    device: int
    is_gdr: bool
    communicator: str = ""


@dataclass(slots=True)
class Observations:
    """All facts read from the files of one folder."""

    calls: dict[int, list[Call]] = field(default_factory=dict)
    """Rank to its collectives; a rank with a dump is present even without collectives."""
    messages: list[Message] = field(default_factory=list)
    statuses: dict[int, dict[Group, Status]] = field(default_factory=dict)
    """Rank to the last collectives of its groups, as its dump states them."""
    groups: dict[Group, None] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    """Rank to host."""
    processes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Host and process id to rank."""
    ranks: set[int] = field(default_factory=set)
    """Ranks that left something of their own."""
    expected: int = 0
    failures: list[Failure] = field(default_factory=list)
    timeouts: list[Timeout] = field(default_factory=list)
    networks: dict[str, HostNetwork] = field(default_factory=dict)
    channels: dict[Channel, int] = field(default_factory=dict)
    """Connections between hosts, and the number of lines about each."""
    other_channels: dict[Channel, int] = field(default_factory=dict)
    """Connections within hosts, and by SHARP."""
    init_started: set[int] = field(default_factory=set)
    init_completed: set[int] = field(default_factory=set)
    net_errors: list[NetError] = field(default_factory=list)
    closed_peers: list[tuple[str, str]] = field(default_factory=list)
    """Host and the peer that closed a connection to it."""
    tables: list[Table] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    torn_ranks: dict[int, str] = field(default_factory=dict)
    """Rank to the reason why its dump could not be read."""
    notes: list[str] = field(default_factory=list)
    """Lines about data that was cut or left out."""

    def network_of(self, host: str) -> HostNetwork:
        """Return the network record of a host, created if it does not exist yet."""
        return self.networks.setdefault(host, HostNetwork())

    def hosts_by_address(self) -> dict[str, str]:
        """Return the host by address, from NCCL's logs."""
        return {address: host for host, network in self.networks.items() for address in network.addresses}

    def only_rank_on(self, host: str) -> int | None:
        """Return the rank on a host if exactly one is known, else None."""
        ranks = [rank for rank, place in self.hosts.items() if place == host]
        return ranks[0] if len(ranks) == 1 else None

    def expect(self, ranks: int) -> None:
        """Record that the job has at least `ranks` ranks."""
        if 0 < ranks <= MAX_RANK:
            self.expected = max(self.expected, ranks)

    def place(self, rank: int, host: str) -> None:
        """Record that a rank left some file or line, and its host if that is known."""
        if 0 <= rank <= MAX_RANK:
            self.ranks.add(rank)
            if host:
                self.hosts[rank] = host

    def host_of(self, rank: int) -> str:
        """Return the host of a rank; empty if unknown."""
        return self.hosts.get(rank, "")
