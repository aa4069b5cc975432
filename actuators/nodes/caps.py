"""The rules of a group of nodes, and the limits on drains: share, rack, rail, hour, circuit breaker. Pure.

The circuit breaker opens once too many drains fall within a window. Its state follows from the repairs in the
log and from the time at which a person reset it, so no restart closes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

NS_PER_S: Final = 1_000_000_000
HOUR_NS: Final = 3600 * NS_PER_S
RETURN: Final = ": waits until one returns"
"""End of a wait for the repair of a node, whose time is unknown."""


def until(at_ns: int) -> str:
    """Format the end of a wait as text, rounded up to a second."""
    return f"until {datetime.fromtimestamp(-(-at_ns // NS_PER_S), UTC):%H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Limits of node actions in a group of nodes; `group` is empty for all nodes."""

    max_out_share: float = 0.1
    """Largest share of nodes that may be out of service at once."""
    min_in: int = 1
    """Smallest number of nodes that must stay in service."""
    failed_runs: int = 1
    """Number of consecutive runs in which a check must fail before a drain."""
    clean_runs: int = 1
    """Number of consecutive runs after the drain in which its checks must pass before a resume."""
    group: str = ""
    observe: bool = False
    checks: tuple[str, ...] = ("*",)
    """Patterns of the checks whose failure drains."""
    max_jobs: int | None = None
    """Largest number of running jobs on a node that is drained; None: any number."""
    max_per_rack: int = 2
    max_per_rail: int = 2
    max_per_hour: int = 10
    network_wait_ns: int = 0
    """Time for which a failure that may be one of the network waits for the results of other hosts."""
    is_rack_unit: bool = False
    """True if all nodes of a rack are drained and resumed together."""

    def drains_for(self, check: str) -> bool:
        """Return whether the failure of a check is a reason to drain."""
        return any(fnmatchcase(check, pattern) for pattern in self.checks)


@dataclass(frozen=True, slots=True)
class Breaker:
    """The circuit breaker that stops the drains in all groups of nodes."""

    max_drains: int = 8
    window_ns: int = 600 * NS_PER_S
    reset_ns: int = 0
    """Drains before this time do not count."""

    def opened_ns(self, drains_ns: Iterable[int]) -> int | None:
        """Return the time of the drain that opened the breaker, ns; None if the breaker is closed."""
        times_ns = sorted(at_ns for at_ns in drains_ns if at_ns >= self.reset_ns)
        for first_ns, last_ns in zip(times_ns, times_ns[self.max_drains - 1 :], strict=False):
            if last_ns - first_ns <= self.window_ns:
                return last_ns
        return None


@dataclass(frozen=True, slots=True)
class Opening:
    """A past drain of a unit. `is_open`: the drain still lasts."""

    at_ns: int
    group: str
    rails: frozenset[int]
    is_open: bool


@dataclass(frozen=True, slots=True)
class Unit:
    """The nodes that are drained together: one node, or a rack."""

    name: str
    nodes: tuple[str, ...]
    rack: str | None
    is_out: bool
    rules: NodeRules


class Caps:
    """Counts the drains and the units out of service, and names the limit that forbids one more drain."""

    def __init__(
        self, units: Iterable[Unit], openings: Sequence[Opening], breaker: Breaker, now_ns: int
    ) -> None:
        self._breaker, self._now_ns = breaker, now_ns
        self._total: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._racks: Counter[str] = Counter()
        self._rails = Counter(rail for opening in openings if opening.is_open for rail in opening.rails)
        self._hour: defaultdict[str, list[int]] = defaultdict(list)
        for one in openings:
            if one.at_ns > now_ns - HOUR_NS:
                self._hour[one.group].append(one.at_ns)
        self._drains_ns = [opening.at_ns for opening in openings]
        for unit in units:
            self._total[unit.rules.group] += 1
            if unit.is_out:
                self._count_out(unit)

    def _count_out(self, unit: Unit) -> None:
        self._out[unit.rules.group] += 1
        if unit.rack is not None and not unit.rules.is_rack_unit:
            self._racks[unit.rack] += 1

    def add(self, unit: Unit, rails: Iterable[int]) -> None:
        """Count a drain of a unit, for a fault on these rails."""
        self._count_out(unit)
        self._rails.update(rails)
        self._hour[unit.rules.group].append(self._now_ns)
        self._drains_ns.append(self._now_ns)

    def obstacle(self, unit: Unit, rails: Iterable[int]) -> str:
        """Return the limit that forbids the drain of a unit; empty if no limit does."""
        limits = (self._stopped(), self._share(unit), self._per_hour(unit), self._places(unit, rails))
        return next((text for text in limits if text), "")

    def _stopped(self) -> str:
        if self._breaker.opened_ns(self._drains_ns) is None:
            return ""
        return (
            f"circuit breaker: {self._breaker.max_drains} drains within "
            f"{self._breaker.window_ns / NS_PER_S:g} s (breaker_drains) stop all until "
            "`fabrictime audit repairs --reset`"
        )

    def _share(self, unit: Unit) -> str:
        rules, group = unit.rules, unit.rules.group
        total, out = self._total[group], self._out[group]
        allowed, kind = int(rules.max_out_share * total + 1e-9), "racks" if rules.is_rack_unit else "nodes"
        if out + 1 > allowed:
            return (
                f"circuit breaker: {out} of {total} {kind} are out, "
                f"at most {allowed} may be (max_out_share {rules.max_out_share:g}){RETURN}"
            )
        if total - out - 1 < rules.min_in:
            return (
                f"{total - out} of {total} {kind} are in, at least {rules.min_in} must stay (min_in){RETURN}"
            )
        return ""

    def _per_hour(self, unit: Unit) -> str:
        drains_ns, limit = sorted(self._hour[unit.rules.group]), unit.rules.max_per_hour
        if len(drains_ns) < limit:
            return ""
        end = until(drains_ns[-limit] + HOUR_NS)
        return f"{len(drains_ns)} drains within an hour (max_per_hour): waits {end}"

    def _places(self, unit: Unit, rails: Iterable[int]) -> str:
        rack, rules = unit.rack, unit.rules
        if rack is not None and not rules.is_rack_unit and self._racks[rack] >= rules.max_per_rack:
            return f"{self._racks[rack]} nodes of rack {rack} are out (max_per_rack){RETURN}"
        for rail in sorted(rails):
            if self._rails[rail] >= rules.max_per_rail:
                return f"{self._rails[rail]} drains for NICs of rail {rail} (max_per_rail){RETURN}"
        return ""
