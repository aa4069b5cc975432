"""One host's clocks: from the solver's records and this host's own crossings to the content of its page.

In: `ClockOffsets` and `Nic` records, crossings of the host's clocks with the raw clock, the raw clock's
reading. Out: `Content`. Knows no file, no log and no clock of its own, so it can be run again over a day.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from actuators.clock_page import ALWAYS_NS, HOLDOVER, SYNCED, UNSYNCED, ClockRow, Content
from actuators.timescale import SIGMAS, Crossings, Joined, RawLine, carried, join, wander_growth

__all__ = ["HostClock", "PageParameters"]

Record = dict[str, Any]

SYSTEM: Final = "system"
UNKNOWN_DRIFT_SIGMA_PPB: Final = 15.0
"""Where the record does not say: 50 ns/s in a bound, as the streams grow it."""
SETTLE_NS: Final = 10_000_000_000
"""After a step of a clock that fabric time was not known by: ns until its records are surely newer."""
LATE_NS: Final = 3_000_000_000
"""A page not written for so long is looked for anew by its readers."""
BETTER: Final = 0.5
"""Another clock of the host takes over as the source where its bound is below this share of the present's."""


@dataclass(frozen=True, slots=True)
class PageParameters:
    """How fabric time is carried on, see `actuators.settings.ActuatorSettings`."""

    wander_ppb_per_sqrt_s: float = 3.0
    holdover_after_s: float = 10.0
    expires_s: float = 60.0
    join_s: float = 0.5
    join_max_ppm: float = 50.0
    step_us: float = 100.0


@dataclass(slots=True)
class _Published:
    """The newest that the solver said of one clock."""

    record: Mapping[str, Any]
    window: int
    domain: str
    start_ns: int
    half_window_ns: int
    arrived_raw_ns: int
    since_ns: int = ALWAYS_NS


@dataclass(slots=True)
class _Target:
    """The line that the page follows, on the raw clock."""

    line: RawLine
    source: str
    window: int
    domain: str
    held: bool
    """Whether the solver itself carried it on."""


@dataclass(slots=True)
class _Own:
    """One clock of the host as read here."""

    crossings: Crossings = field(default_factory=Crossings)
    bent_raw_ns: int | None = None
    """When it last stepped or changed its rate, and what it read then."""
    bent_clock_ns: int = ALWAYS_NS


class HostClock:
    """The clocks of one host. Feed it with `take_*` and `cross`, ask it for `content` before each write."""

    def __init__(
        self, host: str, parameters: PageParameters | None = None, last: Content | None = None
    ) -> None:
        """`last`: what the page said before, of the same boot; fabric time goes on from there."""
        self.host = host
        self.parameters = parameters or PageParameters()
        self.steps = 0 if last is None else last.steps
        self.joined = None if last is None or not last.joined.line.raw_at_ns else last.joined
        """What readers have, as far as `written` was called."""
        self._target: _Target | None = None
        self._measured_raw_ns = 0
        self._joined_to: RawLine | None = None
        self._pending: tuple[Joined | None, RawLine | None, int] = (self.joined, None, self.steps)
        self._published: dict[str, _Published] = {}
        self._own: dict[str, _Own] = {}
        self._nics: dict[str, tuple[str, str]] = {}
        if last is not None and self.joined is not None and last.state != UNSYNCED:
            # Its line's own place, without the slew that is left: that is in the bound from now on.
            line = last.joined.line
            left_ns = last.joined.left_ns(line.raw_at_ns)
            line = replace(
                line, fabric_at_ns=line.fabric_at_ns - round(left_ns), bound_ns=line.bound_ns + abs(left_ns)
            )
            self._target = _Target(line, last.source, last.window, last.domain, held=True)
            self._joined_to = line
            self._measured_raw_ns = last.expires_raw_ns - round(self.parameters.expires_s * 1e9)

    @property
    def shards(self) -> set[str]:
        """The shards of this host's NICs, as far as the inventory said."""
        return {shard for _, shard in self._nics.values()}

    @property
    def clocks(self) -> list[str]:
        """The clocks of this host that were ever published or stamp a NIC of it, without the host's name."""
        return sorted({*self._published, *(clock for clock, _ in self._nics.values())})

    def take_nic(self, nic: str, record: Mapping[str, Any] | None) -> None:
        """Take what the inventory says of a NIC; None: it was removed."""
        host, _, device = nic.partition("/")
        if host != self.host:
            return
        if record is None:
            self._nics.pop(device, None)
            return
        owner, _, clock = str(record["clock"]).partition("/")
        if owner == self.host and clock:
            self._nics[device] = (clock, record["shard"])

    def take_offsets(self, record: Mapping[str, Any], raw_ns: int) -> int:
        """Take a window's `ClockOffsets`, checked by `sound_offsets`, at a reading of the raw clock.

        Return how many of its clocks are this host's and new.
        """
        taken = 0
        half_ns = (record["window_end_ns"] - record["window_start_ns"]) // 2
        for clock in record["clocks"]:
            host, _, name = clock["clock"].partition("/")
            if host != self.host or not name:
                continue
            known = self._published.get(name)
            if known is not None and record["window"] <= known.window:
                continue
            since_ns = ALWAYS_NS if known is None else known.since_ns
            if clock.get("event", "NONE") in ("STEP", "NEW"):
                since_ns = clock["at_ns"] - half_ns
            self._published[name] = _Published(
                clock,
                record["window"],
                record["domain"],
                record["window_start_ns"],
                half_ns,
                raw_ns,
                since_ns,
            )
            taken += 1
        return taken

    def cross(self, name: str, crossing: Any) -> None:
        """Take a crossing of clock `name` with the raw clock."""
        own = self._own.setdefault(name, _Own())
        if own.crossings.add(crossing):
            own.bent_raw_ns, own.bent_clock_ns = crossing.raw_ns, crossing.clock_ns

    def content(self, raw_ns: int) -> Content:
        """Return what the page is to say from a reading of the raw clock on."""
        self._choose(raw_ns)
        p = self.parameters
        state = self._state(raw_ns)
        common: dict[str, Any] = {
            "written_raw_ns": raw_ns, "look_again_raw_ns": raw_ns + LATE_NS,
            "holdover_ms": round(p.holdover_after_s * 1000), "expires_ms": round(p.expires_s * 1000),
            "nics": {device: clock for device, (clock, _) in self._nics.items() if device != clock},
        }  # fmt: skip
        target = self._target
        if target is None or state == UNSYNCED:
            self._target = self._joined_to = None
            self._pending = (self.joined, None, self.steps)
            return Content(
                joined=self.joined or Joined(RawLine(0, 0, 0.0, 0.0, 0.0, 0.0)), steps=self.steps,
                clocks=self._rows(raw_ns, UNSYNCED), **common,
            )  # fmt: skip
        joined, steps = self.joined, self.steps
        if joined is None or self._joined_to is not target.line:
            joined, stepped_ns = join(
                self.joined, target.line, raw_ns, p.join_s, p.join_max_ppm, p.step_us * 1000
            )
            steps += stepped_ns != 0
        self._pending = (joined, target.line, steps)
        return Content(
            state, joined, self._measured_raw_ns + round(p.holdover_after_s * 1e9),
            self._measured_raw_ns + round(p.expires_s * 1e9), steps=steps, window=target.window,
            domain=target.domain, source=target.source, clocks=self._rows(raw_ns, state), **common,
        )  # fmt: skip

    def written(self) -> None:
        """Note that readers have the last `content`: the next line is joined to it."""
        self.joined, self._joined_to, self.steps = self._pending

    def joins(self, raw_ns: int) -> bool:
        """Return whether the next content would begin a new line: then the moment of its writing matters."""
        self._choose(raw_ns)
        return self._target is not None and self._joined_to is not self._target.line

    def _state(self, raw_ns: int) -> str:
        target = self._target
        age_s = (raw_ns - self._measured_raw_ns) / 1e9
        if target is None or age_s > self.parameters.expires_s:
            return UNSYNCED
        published = self._published.get(target.source)
        if published is not None and published.record.get("event") == "FALSETICKER":
            return UNSYNCED
        now_state = HOLDOVER if published is None else published.record["state"]
        late = age_s > self.parameters.holdover_after_s
        return HOLDOVER if target.held or late or now_state != SYNCED else SYNCED

    def _choose(self, raw_ns: int) -> None:
        """Follow the newest line of the best clock of the host."""
        found: dict[str, _Target] = {}
        for name, published in self._published.items():
            target = self._on_raw(name, published, raw_ns)
            if target is not None:
                found[name] = target
        if not found:
            return
        present = self._target
        synced = {name: target for name, target in found.items() if not target.held}
        if not synced and present is not None and self._state(raw_ns) != UNSYNCED:
            return  # our own line is as old as theirs, and stands still
        candidates = synced or found
        best = min(candidates, key=lambda name: candidates[name].line.bound_at(raw_ns))
        if present is not None and present.source in candidates:
            kept, other = candidates[present.source], candidates[best]
            if other.line.bound_at(raw_ns) > BETTER * kept.line.bound_at(raw_ns):
                best = present.source
        chosen = candidates[best]
        if (
            present is not None
            and self._state(raw_ns) != UNSYNCED
            and (chosen.window < present.window or chosen.line == present.line)
        ):
            return
        if present is None or chosen.line != present.line:
            self._target = chosen
            self._measured_raw_ns = chosen.line.raw_at_ns

    def _on_raw(self, name: str, published: _Published, raw_ns: int) -> _Target | None:
        """Return a clock's published line on the raw clock; None where its crossings do not tell."""
        own, clock = self._own.get(name), published.record
        if own is None or clock["state"] == UNSYNCED or clock.get("event") == "FALSETICKER":
            return None
        present = self._target
        if present is not None and present.source == name and present.window == published.window:
            return present  # once on the raw clock it stays there, whatever that clock does after
        if own.bent_raw_ns is not None and not self._after_bend(own.bent_raw_ns, published):
            return None
        relation = own.crossings.at_clock(clock["at_ns"])
        if relation is None or raw_ns - relation.raw_ns > self.parameters.expires_s * 1e9:
            return None
        sigma_ppb = clock.get("drift_sigma_ppb") or UNKNOWN_DRIFT_SIGMA_PPB
        line = carried(
            relation, clock["at_ns"], clock["offset_ns"], clock["drift_ppb"], clock["bound_ns"], sigma_ppb,
            self.parameters.wander_ppb_per_sqrt_s,
        )  # fmt: skip
        return _Target(line, name, published.window, published.domain, clock["state"] != SYNCED)

    def _after_bend(self, bent_raw_ns: int, published: _Published) -> bool:
        """Return whether a window is wholly after a clock stepped: else its at_ns may mean another moment."""
        if self.joined is not None:
            bent_fabric_ns = self.joined.fabric_ns(bent_raw_ns)[0]
            return published.start_ns > bent_fabric_ns
        return published.arrived_raw_ns - bent_raw_ns > SETTLE_NS

    def _rows(self, raw_ns: int, state: str) -> dict[str, ClockRow]:
        """Return each clock of the host: as the solver says, or from the page's line and our own reading."""
        rows = {}
        for name in sorted({*self.clocks, *self._own}):
            published = self._published.get(name)
            own = self._own.get(name)
            direct = None if published is None else self._direct(published, raw_ns)
            bent = own is not None and self._bent_since(own, published)
            if own is not None and (direct is None or direct.state == UNSYNCED or bent or name == SYSTEM):
                rows[name] = self._derived(own, state) or _no_row(direct, bent)
            elif direct is not None:
                rows[name] = direct
            else:
                rows[name] = _NO_ROW
        return rows

    def _bent_since(self, own: _Own, published: _Published | None) -> bool:
        return (
            own.bent_raw_ns is not None
            and published is not None
            and not self._after_bend(own.bent_raw_ns, published)
        )

    def _direct(self, published: _Published, raw_ns: int) -> ClockRow:
        clock, p = published.record, self.parameters
        growth_ppb, wander_ppb_per_s = wander_growth(p.wander_ppb_per_sqrt_s)
        sigma_ppb = clock.get("drift_sigma_ppb") or UNKNOWN_DRIFT_SIGMA_PPB
        age_s = (raw_ns - published.arrived_raw_ns) / 1e9
        state = clock["state"]
        target = self._target
        elsewhere = (
            target is not None and published.window == target.window and published.domain != target.domain
        )
        if clock.get("event") == "FALSETICKER" or age_s > p.expires_s or elsewhere:
            state = UNSYNCED
        elif state == SYNCED and age_s > p.holdover_after_s:
            state = HOLDOVER
        return ClockRow(
            state, clock["at_ns"], clock["offset_ns"], clock["drift_ppb"],
            clock["bound_ns"] + math.ulp(clock["offset_ns"]), growth_ppb + SIGMAS * sigma_ppb,
            wander_ppb_per_s, published.since_ns,
        )  # fmt: skip

    def _derived(self, own: _Own, state: str) -> ClockRow | None:
        """Return a clock's row by way of the raw clock: right also just after a step or a change of rate."""
        relation = own.crossings.newest()
        if relation is None or self._target is None or state == UNSYNCED:
            return None
        line = self._target.line
        whole, rest = line.fabric_ns(relation.raw_ns)
        here = line.moved_to(relation.raw_ns)
        rate = (1 + line.rate_ppb * 1e-9) / (1 + relation.rate_ppb * 1e-9)
        return ClockRow(
            state, relation.clock_ns, (whole - relation.clock_ns) + rest, (rate - 1) * 1e9,
            here.bound_ns + relation.error_ns, here.growth_ppb + SIGMAS * relation.rate_sigma_ppb,
            here.wander_ppb_per_s, own.bent_clock_ns,
        )  # fmt: skip


_NO_ROW: Final = ClockRow(UNSYNCED, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


def _no_row(direct: ClockRow | None, bent: bool) -> ClockRow:
    """Return what stands for a clock that the raw clock does not give: the solver's word, unless it bent."""
    return _NO_ROW if direct is None or bent else direct
