"""Computes the content of one host's clock page from clock offsets and cross-timestamps.

It uses no file, Kafka client or clock of its own, so a recorded day can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from actuators.clock.page import ALWAYS_NS, ClockRow, Content
from actuators.clock.timescale import (
    SIGMAS,
    CrossTimestamp,
    CrossTimestamps,
    RawClockModel,
    SlewedModel,
    on_raw_clock,
    slew,
    wander_growth,
)
from schemas.log_time import WindowOrder
from schemas.records import ClockEvent, ClockOffsets, ClockState, ClockSync, Nic

SYSTEM: Final = "system"
UNKNOWN_DRIFT_SIGMA_PPB: Final = 15.0
"""Uncertainty of the drift that is used if the record gives none. It adds 50 ns/s to a bound, as fast as the
clock stage grows its bounds."""
SETTLE_NS: Final = 10_000_000_000
"""Wait after a clock step while fabric time is unknown: later records are certainly newer."""
REOPEN_AFTER_NS: Final = 3_000_000_000
"""Time without a write to the page after which readers look for a new file."""
MAX_RAW_SHARE: Final = 1e-3
"""Largest difference of rate between the raw clock and CLOCK_BOOTTIME that an oscillator may have."""
MAX_RAW_NS: Final = 1_000_000
"""The same for short times: readings are late on a busy machine, by less than this within their bracket."""
SWITCH_RATIO: Final = 0.5
"""Another clock becomes the source if the ratio of its bound to the present source's bound is below this."""


@dataclass(frozen=True, slots=True)
class PageParameters:
    """Parameters of a clock page; see `actuators.settings.ActuatorSettings`."""

    wander_ppb_per_sqrt_s: float = 3.0
    holdover_after_s: float = 10.0
    expires_s: float = 60.0
    slew_s: float = 0.5
    slew_max_ppm: float = 50.0
    step_us: float = 100.0


@dataclass(slots=True)
class _Published:
    """The newest published record of one clock."""

    record: ClockState
    window: int
    domain: str
    start_ns: int
    arrived_raw_ns: int
    since_ns: int = ALWAYS_NS


@dataclass(slots=True)
class _Target:
    """A candidate model for the page: a clock's published model, converted to the raw clock."""

    model: RawClockModel
    source: str
    window: int
    domain: str
    in_holdover: bool
    """True if the clock stage itself extrapolated the model."""


@dataclass(slots=True)
class _LocalClock:
    """The local cross-timestamps of one clock of the host."""

    cross_timestamps: CrossTimestamps = field(default_factory=CrossTimestamps)
    changed_raw_ns: int | None = None
    """Raw time and reading of the clock at its last step or rate change."""
    changed_clock_ns: int = ALWAYS_NS


class HostClock:
    """One host's clocks. `take_*` and `add_cross_timestamp` take inputs; `content` returns the next page."""

    def __init__(
        self, host: str, parameters: PageParameters | None = None, last: Content | None = None
    ) -> None:
        """Begin without inputs. `last`: earlier page content of this boot; fabric time continues from it."""
        self.host = host
        self.parameters = parameters or PageParameters()
        self.steps = 0 if last is None else last.steps
        self.slewed = None if last is None or not last.slewed.model.raw_at_ns else last.slewed
        """The model that readers have, as of the last call of `written`."""
        self._target: _Target | None = None
        self._measured_raw_ns = 0
        self._target_model: RawClockModel | None = None
        self._pending: tuple[SlewedModel | None, RawClockModel | None, int] = (self.slewed, None, self.steps)
        self._published: dict[str, _Published] = {}
        self._order = WindowOrder()
        self._local: dict[str, _LocalClock] = {}
        self._nics: dict[str, tuple[str, str]] = {}
        self._boot: CrossTimestamp | None = None
        """Last reading of CLOCK_BOOTTIME, which also counts time in suspend."""
        self._lost_raw_ns: int | None = None
        """Raw time at which fabric time was lost, because the raw clock had stood still."""
        if last is not None and self.slewed is not None and last.state != ClockSync.UNSYNCED:
            # Start from the model without its remaining slew, which becomes part of the bound.
            model = last.slewed.model
            remaining_ns = last.slewed.remaining_ns(model.raw_at_ns)
            model = replace(
                model,
                fabric_at_ns=model.fabric_at_ns - round(remaining_ns),
                bound_ns=model.bound_ns + abs(remaining_ns),
            )
            self._target = _Target(model, last.source, last.window, last.domain, in_holdover=True)
            self._target_model = model
            self._measured_raw_ns = last.expires_raw_ns - round(self.parameters.expires_s * 1e9)

    @property
    def shards(self) -> set[str]:
        """The shards of this host's NICs in the inventory."""
        return {shard for _, shard in self._nics.values()}

    @property
    def clocks(self) -> list[str]:
        """The host's clocks with a published model or a NIC that they timestamp, without the host's name."""
        return sorted({*self._published, *(clock for clock, _ in self._nics.values())})

    def take_nic(self, nic: str, record: Nic | None) -> None:
        """Process the inventory record of a NIC; None if the NIC was removed."""
        host, _, device = nic.partition("/")
        if host != self.host:
            return
        if record is None:
            self._nics.pop(device, None)
            return
        owner, _, clock = str(record["clock"]).partition("/")
        if owner == self.host and clock:
            self._nics[device] = (clock, record["shard"])

    def take_offsets(self, record: ClockOffsets, raw_ns: int) -> int:
        """Process the `ClockOffsets` of a window that arrived at `raw_ns`, validated by `validate_offsets`.

        Return the number of this host's clocks that the record newly describes.
        """
        count = 0
        if self._order.steps_back(record):
            self._order_windows_from(record["window"])
        half_ns = (record["window_end_ns"] - record["window_start_ns"]) // 2
        for clock in record["clocks"]:
            host, _, name = clock["clock"].partition("/")
            if host != self.host or not name:
                continue
            published = self._published.get(name)
            if published is not None and record["window"] <= published.window:
                continue
            since_ns = ALWAYS_NS if published is None else published.since_ns
            if clock["event"] in (ClockEvent.STEP, ClockEvent.NEW):
                since_ns = clock["at_ns"] - half_ns
            self._published[name] = _Published(
                clock,
                record["window"],
                record["domain"],
                record["window_start_ns"],
                raw_ns,
                since_ns,
            )
            count += 1
        return count

    def _order_windows_from(self, window: int) -> None:
        """Accept windows from `window` on, in place of later ones, because log time stepped back."""
        for published in self._published.values():
            if published.window > window:
                published.window = window - 1

    def add_cross_timestamp(self, name: str, cross_timestamp: Any) -> None:
        """Add a cross-timestamp between clock `name` and the raw clock."""
        local = self._local.setdefault(name, _LocalClock())
        if local.cross_timestamps.add(cross_timestamp):
            local.changed_raw_ns, local.changed_clock_ns = cross_timestamp.raw_ns, cross_timestamp.clock_ns

    def take_boot_time(self, reading: CrossTimestamp) -> bool:
        """Compare the raw clock with CLOCK_BOOTTIME; return whether it stood still since the last reading.

        The raw clock stops while the machine is suspended. Each model based on it is then wrong by the length
        of the suspension, so fabric time is unknown until it is measured again.
        """
        before, self._boot = self._boot, reading
        if before is None:
            return False
        raw_ns, boot_ns = reading.raw_ns - before.raw_ns, reading.clock_ns - before.clock_ns
        allowed_ns = MAX_RAW_NS + before.half_ns + reading.half_ns + MAX_RAW_SHARE * abs(boot_ns)
        if abs(boot_ns - raw_ns) <= allowed_ns:
            return False
        self._lost_raw_ns = reading.raw_ns
        self._target = self._target_model = self.slewed = None
        self.steps += 1
        for local in self._local.values():
            local.cross_timestamps = CrossTimestamps()
        return True

    def content(self, raw_ns: int) -> Content:
        """Return the content of the page that is valid from `raw_ns` on."""
        self._choose(raw_ns)
        p = self.parameters
        state = self._state(raw_ns)
        common: dict[str, Any] = {
            "written_raw_ns": raw_ns,
            "reopen_raw_ns": raw_ns + REOPEN_AFTER_NS,
            "holdover_ms": round(p.holdover_after_s * 1000),
            "expires_ms": round(p.expires_s * 1000),
            "nics": {device: clock for device, (clock, _) in self._nics.items() if device != clock},
        }
        target = self._target
        if target is None or state == ClockSync.UNSYNCED:
            self._target = self._target_model = None
            self._pending = (self.slewed, None, self.steps)
            return Content(
                slewed=self.slewed or SlewedModel(RawClockModel(0, 0, 0.0, 0.0, 0.0, 0.0)),
                steps=self.steps,
                clocks=self._rows(raw_ns, ClockSync.UNSYNCED),
                **common,
            )
        slewed, steps = self.slewed, self.steps
        if slewed is None or self._target_model is not target.model:
            slewed, stepped_ns = slew(
                self.slewed, target.model, raw_ns, p.slew_s, p.slew_max_ppm, p.step_us * 1000
            )
            steps += stepped_ns != 0
        self._pending = (slewed, target.model, steps)
        return Content(
            state,
            slewed,
            self._measured_raw_ns + round(p.holdover_after_s * 1e9),
            self._measured_raw_ns + round(p.expires_s * 1e9),
            steps=steps,
            window=target.window,
            domain=target.domain,
            source=target.source,
            clocks=self._rows(raw_ns, state),
            **common,
        )

    def written(self) -> None:
        """Record that the last `content` was written, so that the next model starts from this content."""
        self.slewed, self._target_model, self.steps = self._pending

    def has_new_model(self, raw_ns: int) -> bool:
        """Return True if the next content has a new model, which must be written at its start time."""
        self._choose(raw_ns)
        return self._target is not None and self._target_model is not self._target.model

    def _state(self, raw_ns: int) -> ClockSync:
        target = self._target
        age_s = (raw_ns - self._measured_raw_ns) / 1e9
        if target is None or age_s > self.parameters.expires_s:
            return ClockSync.UNSYNCED
        published = self._published.get(target.source)
        if published is not None and published.record["event"] == ClockEvent.FALSETICKER:
            return ClockSync.UNSYNCED
        now_state = ClockSync.HOLDOVER if published is None else published.record["state"]
        late = age_s > self.parameters.holdover_after_s
        return (
            ClockSync.HOLDOVER
            if target.in_holdover or late or now_state != ClockSync.SYNCED
            else ClockSync.SYNCED
        )

    def _choose(self, raw_ns: int) -> None:
        """Make the page follow the newest model of the host's best clock."""
        targets = {name: self._on_raw(name, published, raw_ns) for name, published in self._published.items()}
        usable = {name: target for name, target in targets.items() if target is not None}
        if not usable:
            return
        present = self._target
        has_time = present is not None and self._state(raw_ns) != ClockSync.UNSYNCED
        synced = {name: target for name, target in usable.items() if not target.in_holdover}
        if has_time and not synced:
            return  # our own model is as old as theirs, and does not change
        best = self._best(synced or usable, raw_ns)
        if has_time and present is not None and best.window < present.window:
            return
        if present is None or best.model != present.model:
            self._target = best
            self._measured_raw_ns = best.model.raw_at_ns

    def _best(self, candidates: Mapping[str, _Target], raw_ns: int) -> _Target:
        """Return the model with the lowest bound; keep the present clock unless another is clearly better."""
        best = min(candidates.values(), key=lambda target: target.model.bound_at(raw_ns))
        present = None if self._target is None else candidates.get(self._target.source)
        if present is not None and best.model.bound_at(raw_ns) > SWITCH_RATIO * present.model.bound_at(
            raw_ns
        ):
            return present
        return best

    def _on_raw(self, name: str, published: _Published, raw_ns: int) -> _Target | None:
        """Return a clock's published model relative to the raw clock; None if cross-timestamps are few."""
        local, clock = self._local.get(name), published.record
        if self._lost_raw_ns is not None and published.arrived_raw_ns - self._lost_raw_ns < SETTLE_NS:
            return None  # the record may be of the time before the raw clock stood still
        if local is None or clock["state"] == ClockSync.UNSYNCED or clock["event"] == ClockEvent.FALSETICKER:
            return None
        present = self._target
        if present is not None and present.source == name and present.window == published.window:
            return present  # once on the raw clock, later steps of that clock do not matter
        if local.changed_raw_ns is not None and not self._after_change(local.changed_raw_ns, published):
            return None
        relation = local.cross_timestamps.at_clock(clock["at_ns"])
        if relation is None or raw_ns - relation.raw_ns > self.parameters.expires_s * 1e9:
            return None
        sigma_ppb = clock["drift_sigma_ppb"] or UNKNOWN_DRIFT_SIGMA_PPB
        model = on_raw_clock(
            relation,
            clock["at_ns"],
            clock["offset_ns"],
            clock["drift_ppb"],
            clock["bound_ns"],
            sigma_ppb,
            self.parameters.wander_ppb_per_sqrt_s,
        )
        return _Target(model, name, published.window, published.domain, clock["state"] != ClockSync.SYNCED)

    def _after_change(self, changed_raw_ns: int, published: _Published) -> bool:
        """Return True if a published window lies wholly after a clock step; else its at_ns is ambiguous."""
        if self.slewed is not None:
            changed_fabric_ns = self.slewed.fabric_ns(changed_raw_ns)[0]
            return published.start_ns > changed_fabric_ns
        return published.arrived_raw_ns - changed_raw_ns > SETTLE_NS

    def _rows(self, raw_ns: int, state: ClockSync) -> dict[str, ClockRow]:
        """Return, by clock, its page row: from its record, or from the page's model and cross-timestamps."""
        rows = {}
        for name in sorted({*self.clocks, *self._local}):
            published = self._published.get(name)
            local = self._local.get(name)
            direct = None if published is None else self._direct(published, raw_ns)
            changed = local is not None and self._changed_since(local, published)
            if local is not None and (
                direct is None or direct.state == ClockSync.UNSYNCED or changed or name == SYSTEM
            ):
                rows[name] = self._derived(local, state) or _no_row(direct, changed)
            elif direct is not None:
                rows[name] = direct
            else:
                rows[name] = _NO_ROW
        return rows

    def _changed_since(self, local: _LocalClock, published: _Published | None) -> bool:
        return (
            local.changed_raw_ns is not None
            and published is not None
            and not self._after_change(local.changed_raw_ns, published)
        )

    def _direct(self, published: _Published, raw_ns: int) -> ClockRow:
        clock, p = published.record, self.parameters
        growth_ppb, wander_ppb_per_s = wander_growth(p.wander_ppb_per_sqrt_s)
        sigma_ppb = clock["drift_sigma_ppb"] or UNKNOWN_DRIFT_SIGMA_PPB
        age_s = (raw_ns - published.arrived_raw_ns) / 1e9
        state = clock["state"]
        target = self._target
        elsewhere = (
            target is not None and published.window == target.window and published.domain != target.domain
        )
        if clock["event"] == ClockEvent.FALSETICKER or age_s > p.expires_s or elsewhere:
            state = ClockSync.UNSYNCED
        elif state == ClockSync.SYNCED and age_s > p.holdover_after_s:
            state = ClockSync.HOLDOVER
        return ClockRow(
            state,
            clock["at_ns"],
            clock["offset_ns"],
            clock["drift_ppb"],
            clock["bound_ns"],
            growth_ppb + SIGMAS * sigma_ppb,
            wander_ppb_per_s,
            published.since_ns,
            clock["offset_fraction_ns"],
        )

    def _derived(self, local: _LocalClock, state: ClockSync) -> ClockRow | None:
        """Return a clock's row computed via the raw clock; the row is correct even just after a step."""
        relation = local.cross_timestamps.newest()
        if relation is None or self._target is None or state == ClockSync.UNSYNCED:
            return None
        model = self._target.model
        time_ns, rest = model.fabric_ns(relation.raw_ns)
        here = model.rebased_to(relation.raw_ns)
        rate = (1 + model.rate_ppb * 1e-9) / (1 + relation.rate_ppb * 1e-9)
        return ClockRow(
            state,
            relation.clock_ns,
            time_ns - relation.clock_ns + round(rest),
            (rate - 1) * 1e9,
            here.bound_ns + relation.error_ns,
            here.growth_ppb + SIGMAS * relation.rate_sigma_ppb,
            here.wander_ppb_per_s,
            local.changed_clock_ns,
            rest - round(rest),
        )


_NO_ROW: Final = ClockRow(ClockSync.UNSYNCED, 0, 0, 0.0, 0.0, 0.0, 0.0)


def _no_row(direct: ClockRow | None, changed: bool) -> ClockRow:
    """Return the row of a clock without a usable cross-timestamp.

    The row comes from the clock's record; it is empty if the clock has changed since the record.
    """
    return _NO_ROW if direct is None or changed else direct
