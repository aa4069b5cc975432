"""Evaluates latency SLOs: p99 limits between groups of NICs, and since when they are violated.

The error bound of the clocks is subtracted from one-way delays. Without synced clocks, half a round trip is
used for SLOs that cover both directions; other SLOs are not evaluated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from native.core import bucket_edges_ns
from native.core.window import BUCKETS
from schemas.records import AlertState, LatencyRule, PathDelay, PathDelays
from schemas.units import delay_text
from streams.runtime.tables import Member

EVERYONE: Final = "*"
WAIT_WINDOWS: Final = 2
"""Number of windows after which a window is evaluated, because its records come from many NICs."""
MIN_SAMPLES: Final = 20
"""Number of samples that a pair needs; a window with fewer is combined with later ones."""
GONE_NS: Final = 60_000_000_000
"""Time without a measurement after which a violation is cleared."""
MAX_PAIRS: Final = 8


def check_rule(rule: LatencyRule) -> None:
    """Raise ValueError with a one-line message if a rule of `ActuatorConfig.latency_rules` is invalid."""
    name = rule["name"]
    if not name or len(name) > 128 or not name.isprintable():
        raise ValueError(f"latency rule {name!r}: expected a name of 1 to 128 printable characters")
    if not (math.isfinite(rule["p99_us"]) and 0 < rule["p99_us"] <= 1e7):
        raise ValueError(f"latency rule {name}: p99_us {rule['p99_us']}, expected above 0, at most 10 s")
    if not (math.isfinite(rule["for_s"]) and 1 <= rule["for_s"] <= 86_400):
        raise ValueError(f"latency rule {name}: for_s {rule['for_s']}, expected 1 to 86400")
    for end, group in (("from_group", rule["from_group"]), ("to_group", rule["to_group"])):
        kind, colon, name = group.partition(":")
        if not group or (colon and (kind not in ("rack", "rail") or not name)):
            raise ValueError(
                f"latency rule {name}: {end} {group!r}, expected a host, a NIC, rack:NAME, rail:N or *"
            )


def groups_of(member: Member) -> frozenset[str]:
    """Return the groups that a NIC belongs to."""
    groups = {EVERYONE, member.nic, member.host}
    if member.rack is not None:
        groups.add(f"rack:{member.rack}")
    if member.rail is not None:
        groups.add(f"rail:{member.rail}")
    return frozenset(groups)


@dataclass(frozen=True, slots=True)
class Change:
    """An SLO that is violated (RAISED) or met again (CLEARED)."""

    name: str
    subject: str
    state: AlertState
    at_ns: int
    """End of the deciding window, ns of fabric time."""
    since_ns: int
    """Start of the first window above (or, if CLEARED, below) the limit, ns of fabric time."""
    p99_ns: float
    """Worst p99 in the last window: of all pairs together and of each violating pair."""
    text: str
    pairs: tuple[tuple[str, str], ...] = ()
    """The violating pairs (from NIC, to NIC), the worst first."""

    @property
    def nics(self) -> tuple[str, ...]:
        """The NICs of the violating pairs."""
        return tuple(dict.fromkeys(nic for pair in self.pairs for nic in pair))


Pair = tuple[str, str]
"""From NIC, to NIC."""


class _Rule(NamedTuple):
    name: str
    from_group: str
    to_group: str
    p99_ns: float
    for_ns: int

    @property
    def both_directions(self) -> bool:
        """Whether the SLO covers both directions between its NICs."""
        return self.from_group == self.to_group

    @property
    def subject(self) -> str:
        return f"{self.from_group}>{self.to_group}"


@dataclass(slots=True)
class _Delays:
    """Delays of one pair in one direction: samples by histogram bucket, and the largest clock error bound."""

    buckets: Counter[int] = field(default_factory=Counter)
    bound_ns: float = 0.0
    begin_ns: int = 0

    def add(self, other: _Delays) -> None:
        self.buckets.update(other.buckets)
        self.bound_ns = max(self.bound_ns, other.bound_ns)

    def p99_ns(self) -> float:
        """Return the 99th percentile of the delay minus the error bound of the clocks, ns, at least 0."""
        return max(0.0, _quantile(self.buckets, 0.99) - self.bound_ns)


@dataclass(slots=True)
class _Watched:
    """Evaluation state of one rule, or of one pair of NICs under a rule."""

    above_ns: int | None = None
    """Start of the first window of the current violation; None without a violation."""
    below_ns: int | None = None
    seen_ns: int = 0
    p99_ns: float = 0.0
    waiting: _Delays | None = None

    def update(self, p99_ns: float, above: bool, start_ns: int, end_ns: int) -> None:
        if above:
            self.above_ns = start_ns if self.above_ns is None else self.above_ns
            self.below_ns = None
        else:
            self.below_ns = start_ns if self.below_ns is None else self.below_ns
            self.above_ns = None
        self.seen_ns, self.p99_ns = end_ns, p99_ns

    def broken(self, for_ns: int) -> bool:
        return self.above_ns is not None and self.seen_ns - self.above_ns >= for_ns


@dataclass(slots=True)
class _State:
    rule: _Rule
    all: _Watched = field(default_factory=_Watched)
    pairs: dict[Pair, _Watched] = field(default_factory=dict)
    raised_ns: int | None = None
    """Start of the published violation; None if the rule is not violated."""
    met_since_ns: int | None = None
    """Start of the first window from which on no pair violates the SLO."""
    unsure: bool = False
    """Whether the last window could not be evaluated, because no clock was synced."""


@dataclass(slots=True)
class _Window:
    start_ns: int
    end_ns: int
    directed: dict[Pair, _Delays] = field(default_factory=dict)
    """One-way delays, by directed pair."""
    half_rtts_ns: dict[Pair, float] = field(default_factory=dict)
    """Half the 99th percentile of the round trip, for pairs without synced clocks."""


class LatencyRules:
    """All rules of one shard. `groups` returns the groups of a NIC, see `groups_of`."""

    def __init__(self, groups: Callable[[str], frozenset[str]]) -> None:
        self._groups = groups
        self._states: dict[str, _State] = {}
        self._restored: dict[str, int] = {}
        self._windows: dict[int, _Window] = {}
        self._evaluated = -1
        self._end_ns = 0
        self.late = 0
        """Number of records of windows that had already been evaluated."""

    def restore(self, name: str, since_ns: int) -> None:
        """Restore a published violation that began at `since_ns`; call this before `set_rules`."""
        self._restored[name] = since_ns

    def set_rules(self, rules: Iterable[LatencyRule]) -> list[Change]:
        """Set the active rules, and clear violations of removed or changed rules; return the changes.

        Invalid rules are ignored, see `check_rule`. A restored violation of an unknown rule is cleared too.
        """
        rules_by_name = {}
        for rule in rules:
            try:
                check_rule(rule)
            except ValueError:
                continue
            rules_by_name[rule["name"]] = _Rule(
                rule["name"],
                rule["from_group"],
                rule["to_group"],
                1e3 * rule["p99_us"],
                round(1e9 * rule["for_s"]),
            )
        changes = []
        for name, state in list(self._states.items()):
            if rules_by_name.get(name) != state.rule:
                del self._states[name]
                if state.raised_ns is not None:
                    changes.append(self._cleared(state, self._end_ns, "the rule was taken back"))
        for name, new_rule in rules_by_name.items():
            if name not in self._states:
                self._states[name] = _State(new_rule, raised_ns=self._restored.pop(name, None))
        for name, since_ns in sorted(self._restored.items()):
            orphan = _State(_Rule(name, EVERYONE, EVERYONE, 0.0, 0), raised_ns=since_ns)
            changes.append(self._cleared(orphan, max(self._end_ns, since_ns), "the rule was taken back"))
        self._restored.clear()
        return changes

    def wants(self, nic: str) -> bool:
        """Return whether any rule covers a prober's delays."""
        if not self._states:
            return False
        groups = self._groups(nic)
        return any(s.rule.from_group in groups or s.rule.to_group in groups for s in self._states.values())

    def take(self, record: PathDelays) -> list[Change]:
        """Process one `PathDelays` of the shard; return the SLOs that became violated or met again."""
        number = record["window"]
        if number <= self._evaluated:
            self.late += 1
            return []
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = _Window(record["window_start_ns"], record["window_end_ns"])
        nic = record["nic"]
        for path in record["paths"]:
            _gather(window, nic, path)
        newest = max(self._windows)
        changes = []
        for due in sorted(window for window in self._windows if window <= newest - WAIT_WINDOWS):
            changes += self._evaluate(self._windows.pop(due))
            self._evaluated = due
        return changes

    def _evaluate(self, window: _Window) -> list[Change]:
        self._end_ns = max(self._end_ns, window.end_ns)
        groups = {nic: self._groups(nic) for pair in (*window.directed, *window.half_rtts_ns) for nic in pair}
        changes = []
        for name in sorted(self._states):
            change = self._evaluate_rule(self._states[name], window, groups)
            if change is not None:
                changes.append(change)
        return changes

    def _evaluate_rule(
        self, state: _State, window: _Window, groups: Mapping[str, frozenset[str]]
    ) -> Change | None:
        rule = state.rule

        def promised(pair: Pair) -> bool:
            return rule.from_group in groups[pair[0]] and rule.to_group in groups[pair[1]]

        together = _Delays()
        for pair, delays in sorted(window.directed.items()):
            if promised(pair):
                together.add(delays)
                self._evaluate_pair(state, pair, delays, window)
        half_rtts_ns = {pair: half for pair, half in sorted(window.half_rtts_ns.items()) if promised(pair)}
        state.unsure = bool(half_rtts_ns) and not together.buckets
        if rule.both_directions:
            for pair, half_ns in half_rtts_ns.items():
                watched = state.pairs.setdefault(pair, _Watched())
                watched.update(half_ns, half_ns > rule.p99_ns, window.start_ns, window.end_ns)
        if together.buckets:
            p99_ns = together.p99_ns()
            state.all.update(p99_ns, p99_ns > rule.p99_ns, window.start_ns, window.end_ns)
        return self._change(state, window)

    def _evaluate_pair(self, state: _State, pair: Pair, delays: _Delays, window: _Window) -> None:
        """Evaluate one pair in a window, together with earlier windows if it has few samples."""
        watched = state.pairs.setdefault(pair, _Watched())
        gathered, begin_ns = delays, window.start_ns
        if watched.waiting is not None:
            gathered, begin_ns = _Delays(), watched.waiting.begin_ns
            gathered.add(watched.waiting)
            gathered.add(delays)
        if gathered.buckets.total() < MIN_SAMPLES:
            watched.waiting = _Delays(Counter(gathered.buckets), gathered.bound_ns, begin_ns)
            return
        watched.waiting = None
        p99_ns = gathered.p99_ns()
        watched.update(p99_ns, p99_ns > state.rule.p99_ns, begin_ns, window.end_ns)

    def _change(self, state: _State, window: _Window) -> Change | None:
        """Return a change if a violation has lasted, or has been absent, for long enough; else None."""
        rule = state.rule
        stale_ns = window.end_ns - max(GONE_NS, 2 * rule.for_ns)
        self._drop_stale(state, stale_ns)
        if state.raised_ns is None:
            violating = [pair for pair, watched in state.pairs.items() if watched.broken(rule.for_ns)]
            if not violating and not state.all.broken(rule.for_ns):
                return None
            violating.sort(key=lambda pair: (-state.pairs[pair].p99_ns, pair))
            return self._raised(state, violating, window.end_ns)
        if state.all.seen_ns < stale_ns and not state.pairs:
            state.all = _Watched()
            return self._cleared(state, window.end_ns, "not measured any more")
        return self._met(state, window)

    def _drop_stale(self, state: _State, stale_ns: int) -> None:
        for pair, watched in list(state.pairs.items()):
            if watched.seen_ns < stale_ns and watched.waiting is None:
                del state.pairs[pair]

    def _met(self, state: _State, window: _Window) -> Change | None:
        """Return the change that clears a violation if all pairs met the SLO for long enough; else None."""
        rule = state.rule
        everything = (state.all, *state.pairs.values())
        above = any(watched.above_ns is not None for watched in everything)
        below = any(watched.below_ns is not None for watched in everything)
        if above or not below:
            state.met_since_ns = None
            return None
        state.met_since_ns = window.start_ns if state.met_since_ns is None else state.met_since_ns
        if window.end_ns - state.met_since_ns < rule.for_ns:
            return None
        reason = f"below {delay_text(rule.p99_ns)} for {rule.for_ns / 1e9:g} s"
        return self._cleared(state, window.end_ns, reason)

    def _raised(self, state: _State, broken: Sequence[Pair], at_ns: int) -> Change:
        rule = state.rule
        starts = [state.pairs[pair].above_ns for pair in broken]
        if state.all.broken(rule.for_ns):
            starts.append(state.all.above_ns)
        since_ns = min(start for start in starts if start is not None)
        worst_ns = max([state.pairs[pair].p99_ns for pair in broken] + [state.all.p99_ns])
        state.raised_ns, state.met_since_ns = since_ns, None
        text = f"p99 above {delay_text(rule.p99_ns)} for {(at_ns - since_ns) / 1e9:.0f} s {_between(rule)}"
        if broken:
            worst = state.pairs[broken[0]].p99_ns
            more = f", {len(broken)} pairs" if len(broken) > 1 else ""
            text += f": {broken[0][0]} to {broken[0][1]} {delay_text(worst)}{more}"
        else:
            text += f": {delay_text(state.all.p99_ns)} over all pairs"
        if state.unsure:
            text += ", by half the round trip: clocks are UNSYNCED"
        pairs = tuple(broken[:MAX_PAIRS])
        return Change(rule.name, rule.subject, AlertState.RAISED, at_ns, since_ns, worst_ns, text, pairs)

    def _cleared(self, state: _State, at_ns: int, why: str) -> Change:
        rule = state.rule
        since_ns = at_ns if state.met_since_ns is None else state.met_since_ns
        state.raised_ns = state.met_since_ns = None
        text = f"p99 {_between(rule)}: {why}"
        return Change(rule.name, rule.subject, AlertState.CLEARED, at_ns, since_ns, state.all.p99_ns, text)

    def unsure(self) -> list[str]:
        """Return the names of rules that cannot be evaluated now because none of their clocks is synced."""
        return sorted(
            name for name, state in self._states.items() if state.unsure and not state.rule.both_directions
        )


def _gather(window: _Window, nic: str, path: PathDelay) -> None:
    """Add the delays of one path of a prober to a window, for both directions."""
    peer = path["peer"]
    if path["bound_ns"] is None:
        if path["rtt_p99_ns"] is not None and path["count"] >= MIN_SAMPLES:
            half_ns = path["rtt_p99_ns"] / 2
            for pair in ((nic, peer), (peer, nic)):
                window.half_rtts_ns[pair] = max(half_ns, window.half_rtts_ns.get(pair, 0.0))
        return
    forward = (nic, peer), path["forward_bucket"], path["forward_bucket_count"]
    reverse = (peer, nic), path["reverse_bucket"], path["reverse_bucket_count"]
    for pair, buckets, counts in (forward, reverse):
        delays = window.directed.setdefault(pair, _Delays())
        for bucket, count in zip(buckets, counts, strict=False):
            if 0 <= bucket < BUCKETS and count > 0:
                delays.buckets[bucket] += count
        delays.bound_ns = max(delays.bound_ns, path["bound_ns"])


def _quantile(buckets: Mapping[int, int], share: float) -> float:
    """Return the delay, ns, that `share` of the samples do not exceed, interpolated within buckets."""
    left = share * sum(buckets.values())
    for bucket in sorted(buckets):
        count = buckets[bucket]
        if count and left <= count:
            low_ns, high_ns = bucket_edges_ns(bucket)
            return low_ns + (min(high_ns, 2 * max(low_ns, 1.0)) - low_ns) * left / count
        left -= count
    return 0.0


def _between(rule: _Rule) -> str:
    """Return the groups of a rule as text, for example 'between rack 3 and rack 7'."""
    if rule.from_group == rule.to_group:
        return "between all NICs" if rule.from_group == EVERYONE else f"within {_named(rule.from_group)}"
    return f"between {_named(rule.from_group)} and {_named(rule.to_group)}"


def _named(group: str) -> str:
    if group == EVERYONE:
        return "any NIC"
    kind, colon, name = group.partition(":")
    return group if not colon else name if name.startswith(kind) else f"{kind} {name}"
