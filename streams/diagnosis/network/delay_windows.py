"""Keeps windows of probe delays and losses by NIC, peer and path, in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from schemas.records import ClockSync, PathDelays

WINDOWS_KEPT: Final = 120
"""Largest number of windows kept per NIC."""


class PairDelay(NamedTuple):
    """Delays of probes from one NIC to another by one path, in one window."""

    path: int
    begin_ns: int
    end_ns: int
    samples: int
    lost: int
    p50_ns: float | None
    p99_ns: float | None
    rtt_min_ns: float | None
    rtt_p50_ns: float | None
    bound_ns: float
    dscp: int = 0
    """Traffic class of the probes."""
    marked: int = 0
    """Number of requests that a queue marked with CE."""
    rtt_p99_ns: float | None = None


class _Window(NamedTuple):
    begin_ns: int
    end_ns: int
    peers: dict[str, list[PairDelay]]
    lost: int
    """Number of requests without a reply, over all paths."""


@dataclass(slots=True)
class _Nic:
    """Windows of one prober NIC, by window number and part."""

    windows: dict[tuple[int, int], _Window] = field(default_factory=dict)


class DelayWindows:
    """The windows of all probers. `nics`: whether a NIC's windows are kept; None keeps all."""

    def __init__(self, nics: Callable[[str], bool] | None = None) -> None:
        self._wants = nics
        self._nics: dict[str, _Nic] = defaultdict(_Nic)
        self._inside: tuple[tuple[int, int], dict[str, list[dict[str, list[PairDelay]]]]] = ((0, 0), {})
        """The interval of the last query, and each NIC's windows in that interval, in order."""

    def take(self, record: PathDelays) -> None:
        """Add a window of a prober NIC."""
        nic = record["nic"]
        if self._wants is not None and not self._wants(nic):
            return
        trusted = record["state"] != ClockSync.UNSYNCED
        begin_ns, end_ns = record["window_start_ns"], record["window_end_ns"]
        delays_by_peer: dict[str, list[PairDelay]] = {}
        lost = 0
        for path in record["paths"]:
            lost += path["lost"]
            delays_by_peer.setdefault(path["peer"], []).append(
                PairDelay(
                    path["path"],
                    begin_ns,
                    end_ns,
                    path["count"],
                    path["lost"],
                    path["forward_p50_ns"] if trusted else None,
                    path["forward_p99_ns"] if trusted else None,
                    path["rtt_min_ns"],
                    path["rtt_p50_ns"],
                    path["bound_ns"] or 0.0,
                    path["dscp"],
                    path["forward_ce"],
                    path["rtt_p99_ns"],
                )
            )
        self._inside[1].pop(nic, None)
        windows = self._nics[nic].windows
        windows[record["window"], record["part"]] = _Window(begin_ns, end_ns, delays_by_peer, lost)
        while len(windows) > WINDOWS_KEPT:
            del windows[min(windows)]

    def forget(self, oldest_ns: int) -> None:
        """Drop the windows that ended before `oldest_ns`."""
        self._inside = ((0, 0), {})
        for nic, nic_windows in list(self._nics.items()):
            for key in [k for k, window in nic_windows.windows.items() if window.end_ns < oldest_ns]:
                del nic_windows.windows[key]
            if not nic_windows.windows:
                del self._nics[nic]

    def between(self, nic: str, peer: str, begin_ns: int, end_ns: int) -> list[PairDelay]:
        """Return the probe delays from one NIC to another in windows that overlap an interval."""
        if self._inside[0] != (begin_ns, end_ns):
            self._inside = ((begin_ns, end_ns), {})
        windows = self._inside[1].get(nic)
        if windows is None:
            windows = self._inside[1][nic] = [w.peers for w in self._of(nic, begin_ns, end_ns)]
        return [delay for peers in windows for delay in peers.get(peer, ())]

    def lost(self, nics: Collection[str], begin_ns: int, end_ns: int) -> int:
        """Return the number of requests lost by the given NICs, to any peer, in an interval."""
        return sum(window.lost for nic in nics for window in self._of(nic, begin_ns, end_ns))

    def newest_ns(self, nics: Collection[str]) -> int | None:
        """Return the end, ns, of the newest window of the given NICs; None if there is none."""
        windows_of_nics = [self._nics[nic].windows.values() for nic in nics if nic in self._nics]
        return max((window.end_ns for windows in windows_of_nics for window in windows), default=None)

    def of_nics(
        self, nics: Collection[str], begin_ns: int, end_ns: int
    ) -> Iterator[tuple[str, str, PairDelay]]:
        """Yield (NIC, peer, delays) for the given NICs' windows that overlap an interval."""
        for nic in nics:
            for window in self._of(nic, begin_ns, end_ns):
                for peer, paths in window.peers.items():
                    for delay in paths:
                        yield nic, peer, delay

    def _of(self, nic: str, begin_ns: int, end_ns: int) -> list[_Window]:
        """Return the windows of a NIC that overlap an interval, sorted by number and part."""
        nic_windows = self._nics.get(nic)
        if nic_windows is None:
            return []
        overlapping = {
            k: w for k, w in nic_windows.windows.items() if w.end_ns > begin_ns and w.begin_ns < end_ns
        }
        return [overlapping[key] for key in sorted(overlapping)]


class Probes(NamedTuple):
    """Delays of probes between the NICs of a pair, over all paths, ns."""

    p50_ns: float | None
    min_ns: float | None
    """Least median of a path: the delay without a queue."""
    worst_ns: float | None
    lost_share: float
    one_way: bool
    """Whether the delays are one-way delays; otherwise they are half of round trips."""


def probes_of(windows: Callable[[str, str], list[PairDelay]], pair: tuple[str, str]) -> Probes | None:
    """Return the delays of probes between two NICs over their windows; None without probes."""
    forward = windows(*pair)
    values = _by_path(forward, one_way=True)
    one_way = bool(values)
    if not values:
        values = _by_path(forward + windows(*reversed(pair)), one_way=False)
    sent = sum(delay.samples + delay.lost for delay in forward)
    lost = sum(delay.lost for delay in forward) / sent if sent else 0.0
    if not values:
        return Probes(None, None, None, lost, one_way) if sent else None
    medians = [median(delays) for delays in values.values()]
    smallest = min(min(delays) for delays in values.values())
    return Probes(median(medians), smallest, max(medians), lost, one_way)


def _by_path(delays: list[PairDelay], *, one_way: bool) -> dict[int, list[float]]:
    by_path: dict[int, list[float]] = {}
    for delay in delays:
        value = delay.p50_ns if one_way else delay.rtt_p50_ns
        if value is not None:
            by_path.setdefault(delay.path, []).append(value if one_way else value / 2)
    return by_path
