"""The conditions under which the ranks of a simulated job work, as set by the faults in force. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from producers.sim.fault_grammar import FaultSpec
from producers.sim.faults import Target

WINDOW_BYTES: Final = 1 << 20
"""Maximum bytes of a connection in flight: eight chunks of 128 KiB. They limit its rate at a long delay."""


@dataclass(slots=True)
class JobConditions:
    """Conditions of one job. Dictionaries are keyed by rank; a rank without an entry works normally."""

    compute_ns: dict[int, float] = field(default_factory=dict)
    """Computation time added to each iteration."""
    launch_ns: dict[int, float] = field(default_factory=dict)
    """Time added between the call and the start of the communication kernel."""
    pcie_share: dict[int, float] = field(default_factory=dict)
    """Rate at which a NIC accesses its GPU's memory, as a share of its line rate."""
    hung: frozenset[int] = frozenset()
    killed: frozenset[int] = frozenset()
    mismatched: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()
    """Ranks that use the next NIC of their host instead of their own."""
    unreported: frozenset[int] = frozenset()
    unsynced: frozenset[int] = frozenset()
    class_ns: float = 0.0
    """Delay of data that is in another traffic class than the probes; 0 if it is in the same class."""
    paced_share: float | None = None
    """Share of the line rate to which PACE decisions limit the flows; None without a limit."""
    single: bool = False
    """True if there is only one connection between two NICs, whatever the settings."""

    @property
    def stops(self) -> bool:
        """True if the job stops, so that its next operation never begins."""
        return bool(self.hung or self.killed or self.mismatched)

    @property
    def added_ns(self) -> float:
        """Time by which the slowest rank delays an operation, ns."""
        ranks = self.compute_ns.keys() | self.launch_ns.keys()
        return max((self.compute_ns.get(r, 0.0) + self.launch_ns.get(r, 0.0) for r in ranks), default=0.0)

    def gap_ns(self, compute_ns: float) -> float:
        """Return the time between two iterations, ns; infinite if the next iteration never begins."""
        return math.inf if self.stops else compute_ns + self.added_ns

    def line_bps(self, line_bps: float) -> float:
        """Return a connection's maximum rate, bit/s: one window of data per delay of its traffic class."""
        return line_bps if not self.class_ns else min(line_bps, WINDOW_BYTES * 8e9 / self.class_ns)


def conditions_of(job: str, faults: Iterable[tuple[FaultSpec, Target]]) -> JobConditions:
    """Return the conditions of a job under these faults. Faults of other jobs are ignored."""
    conditions = JobConditions()
    ranks: dict[str, list[int]] = {}
    for spec, target in faults:
        if target.job != job:
            continue
        if spec.kind == "straggler":
            conditions.compute_ns[target.rank] = (
                conditions.compute_ns.get(target.rank, 0.0) + spec.delay_s * 1e9
            )
        elif spec.kind == "launch-skew":
            conditions.launch_ns[target.rank] = (
                conditions.launch_ns.get(target.rank, 0.0) + spec.delay_s * 1e9
            )
        elif spec.kind == "slow-pcie":
            conditions.pcie_share[target.rank] = min(conditions.pcie_share.get(target.rank, 1.0), spec.share)
        elif spec.kind == "wrong-class":
            conditions.class_ns = max(conditions.class_ns, spec.delay_s * 1e9)
        elif spec.kind == "paced":
            conditions.paced_share = min(conditions.paced_share or 1.0, spec.share)
        elif spec.kind == "few-queue-pairs":
            conditions.single = True
        else:
            ranks.setdefault(spec.kind, []).append(target.rank)
    for kind, name in _SETS.items():
        setattr(conditions, name, frozenset(ranks.get(kind, ())))
    return conditions


_SETS: Final = {
    "hang": "hung",
    "killed": "killed",
    "mismatch": "mismatched",
    "wrong-rail": "moved",
    "unreported": "unreported",
    "unsynced": "unsynced",
}
"""For each kind of fault, the field that holds its ranks."""


def moved_nics(nics: Sequence[int], moved: Iterable[int], per_host: int) -> list[int]:
    """Return the NICs by rank. The ranks in `moved` use the next NIC of their host."""
    nic_by_rank = list(nics)
    for rank in moved:
        host, device = divmod(nics[rank], per_host)
        nic_by_rank[rank] = host * per_host + (device + 1) % per_host
    return nic_by_rank
