"""The health of one shard's links, NICs and hosts: UP, GREY, FLAPPING, DOWN.

In: `LinkEvent` records in the log's order, the links of paths, the log's clock. Out: `LinkHealth` records
to publish, by subject. A host's own carrier speaks first. Then the fewest links that explain the paths
that died (cover.py), once that is no chance (link_death.py): a path that lives clears all that it crosses.
What answers nobody is a NIC, a host or a switch and no link inside; those are waited for longer, since a
starved host looks the same for a while. Shares that get lost are told apart by likelihood (lossy.py).
State: recoverable from the last record of each subject.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from streams.links.bypassed import find_led_around
from streams.links.cover import (
    GUARD_NS,
    Suspicion,
    against_links,
    against_nics,
    against_switch,
    cables_needed,
)
from streams.links.evidence import BUCKETS, NOTHING, Evidence, PathLinks
from streams.links.link_death import (
    FEW_ENDS,
    FEW_PATHS,
    MARGIN,
    NEVER,
    RETRACT_NS,
    STALE_NS,
    Wait,
    silence_ns,
    weigh_link,
)
from streams.links.lossy import Lossy, find_lossy
from streams.runtime.thresholds import Thresholds

__all__ = ["Change", "ShardHealth"]

Record = dict[str, Any]
Change = tuple[str, Record | None]
"""Subject, and its `LinkHealth`; None: the subject is forgotten."""

MS: Final = 1_000_000
S: Final = 1_000_000_000
HOUR_NS: Final = 3600 * S
JUDGE_NS: Final = 5 * MS
"""Events closer together than this are judged together."""
WARM_NS: Final = 1200 * MS
"""After the first event, until every NIC must have told of its living paths once."""
SWITCH_CABLES: Final = 3
"""A switch inside the fabric is one cause for what takes so many of its cables, or all but one of fewer."""
RECENT_NS: Final = S
MUTE_NS: Final = 3 * S
"""After a port's carrier is back, until losses behind it count again."""
TOGETHER_NS: Final = 200 * MS
KNOWN_NS: Final = 60 * S
PATH_KEPT_NS: Final = 600 * S
"""A path is forgotten that nobody told of for so long; one that lives is told of each second."""
LEFT_NS: Final = 25 * MS
"""Least time between two looks for links that all paths left."""
LINK_TIMES: Final = 24
"""A link that stays away is forgotten after so many times as long as a NIC."""
SPEAKS_NS: Final = S
REFRESH_NS: Final = 10 * S
SLOW_NS: Final = S
MAX_FLAPS: Final = 4096
GREY_LOSSES: Final = 5
GREY_PARTS: Final = 3
"""A loss rate is one only where losses fell into so many parts of the window: a burst is none."""

HOST_PARTS: Final = 4
HOST_TIMES: Final = 2
STARVED_TIMES: Final = 8
"""What a host itself may have lost must be in more parts, and that much more, than what only a link can; the
second where it came late within the window, even though what it lost then is left out."""

PORT_DOWN: Final = frozenset({"PORT_ERR", "DEVICE_FATAL"})
PORT_UP: Final = frozenset({"PORT_ACTIVE"})


@dataclass(slots=True)
class _Subject:
    """One cable, NIC or host. Times are ns of log append time, flaps ns of fabric time."""

    name: str
    kind: str
    state: str = "UP"
    before: str = "UP"
    seq: int = 0
    since_ns: int = 0
    evaluated_ns: int = 0
    dead: dict[int, int] = field(default_factory=dict)
    """Element to when it died."""
    reviving: dict[int, int] = field(default_factory=dict)
    """Dead element to its first sign of life since."""
    carrier_down: bool = False
    grey: dict[int, Lossy] = field(default_factory=dict)
    grey_fine_ns: dict[int, int] = field(default_factory=dict)
    """Lossy element to since when it is fine again."""
    others: tuple[str, ...] = ()
    detected_by: str = "PROBES"
    flaps: deque[int] = field(default_factory=deque)
    flaps_total: int = 0
    links: tuple[str, ...] = ()
    counts: tuple[int, int, int] = (0, 0, 0)
    """Paths dead, living, and probers, as last counted."""
    text: str = ""
    told_ns: int = 0
    shown_rate: Lossy | None = None
    reflected: int = -1
    """Offset of the newest evidence that its recovered state holds already."""


class ShardHealth:
    """What the evidence of one shard says of its links, NICs and hosts.

    `thresholds` and `log_offset_ns` (fabric time minus log append time) may be set at any time. `source`
    names the partition that the evidence is read from. `known`: whether a NIC is still in the inventory; one
    that left it in order is not missed.
    """

    def __init__(
        self,
        shard: str,
        thresholds: Thresholds | None = None,
        source: str = "",
        known: Callable[[str], bool] | None = None,
    ) -> None:
        self.shard = shard
        self.thresholds = thresholds or Thresholds()
        self.log_offset_ns = 0
        self.source = source
        self.evidence = Evidence()
        self.subjects: dict[str, _Subject] = {}
        self.now_ns = 0
        self._known = known or (lambda nic: True)
        self._owner: dict[int, str] = {}
        """Dead element to its subject."""
        self._offset = -1
        self._replay_to = -1
        """Offset of the newest evidence that any recovered state holds: up to it only ports speak."""
        self._judge_from_ns = 0
        self._judged_ns = 0
        self._grey_ns = self._left_ns = 0
        self._slow_ns = 0
        self._wait_ns = NEVER
        """When evidence that is there already may become a verdict."""
        self._reviving: list[_Subject] = []
        self._dirty = False
        self._out: list[Change] = []

    # ------------------------------------------------------------------------------------ in and out

    @property
    def due_ns(self) -> int:
        """When `tick` may have something to say that no evidence before it brings, log append time."""
        holds = (
            first_ns + self.thresholds.ns("up_hold_ms")
            for s in self._reviving
            if not s.carrier_down and not self._blocked(s)
            for first_ns in s.reviving.values()
        )
        waits = [self._judged_ns + JUDGE_NS] if self._dirty else []
        return min([self._wait_ns, self._slow_ns + SLOW_NS, *waits, *holds])

    def recover(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the last record of each subject of this shard (`LinkHealth`)."""
        for record in records:
            if record["shard"] != self.shard:
                continue
            s = _Subject(
                record["subject"], record["kind"], record["state"], record["before"], record["seq"],
                record["since_ns"] - self.log_offset_ns, record["evaluated_ns"] - self.log_offset_ns,
            )  # fmt: skip
            s.others, s.detected_by = tuple(record["candidates"]), record["detected_by"]
            s.flaps, s.flaps_total = deque(record["flap_ns"]), record["flaps_total"]
            s.links, s.text = tuple(record["links"]), record["text"]
            s.counts = record["paths_dead"], record["paths_living"], record["probers"]
            s.told_ns = s.evaluated_ns
            if record["evidence_source"] == self.source:
                s.reflected = record["evidence_offset"]
                self._replay_to = max(self._replay_to, s.reflected)
            self.subjects[s.name] = s
            self.now_ns = max(self.now_ns, s.evaluated_ns)
            if s.state == "DOWN":
                s.carrier_down = s.detected_by in ("CARRIER", "VERBS")
                self._mark_recovered(s)
            elif s.state == "GREY":
                for link in s.links:
                    s.grey[self.evidence.element(link, s.since_ns)] = Lossy(
                        0, (), record["loss_rate"] or 0.0, record["loss_rate_low"] or 0.0,
                        record["loss_rate_high"] or 1.0, 0, 0, 0,
                    )  # fmt: skip

    def _mark_recovered(self, s: _Subject) -> None:
        element = self.evidence.element
        if s.kind == "NIC":
            self._mark(s, element(s.name, s.since_ns, nic=True), s.since_ns)
        for link in s.links:
            self._mark(s, element(link, s.since_ns), s.since_ns)
        for other in s.others:
            if "/" in other and ">" not in other and s.kind == "LINK":
                self._mark(s, element(other, s.since_ns, nic=True), s.since_ns)

    def take(
        self, event: Mapping[str, Any], append_ns: int, paths: PathLinks, offset: int = -1
    ) -> list[Change]:
        """Take one `LinkEvent` that the log took at `append_ns`; return what is to be published."""
        if not self._judge_from_ns:
            self._judge_from_ns = append_ns + WARM_NS
            self._slow_ns = append_ns
        self._advance(append_ns - 1)
        self._offset = max(self._offset, offset)
        self.now_ns = max(self.now_ns, append_ns)
        at_ns = self.evidence.take(event, append_ns, paths)
        if at_ns is not None:
            if event["kind"] == "CARRIER" and event["carrier"] is not None:
                self._port(event["nic"], event["carrier"], at_ns, "CARRIER")
            elif event["kind"] == "VERBS" and event["verbs"] in PORT_DOWN | PORT_UP:
                self._port(event["nic"], event["verbs"] in PORT_UP, at_ns, "VERBS")
            self._dirty = True
        if append_ns - self._judged_ns >= JUDGE_NS:
            self._judge(append_ns)
        return self._published()

    def tick(self, now_ns: int) -> list[Change]:
        """Let time pass up to `now_ns` on the log's clock; return what is to be published."""
        self._advance(now_ns)
        return self._published()

    def _advance(self, to_ns: int) -> None:
        """Judge at every moment at which something was due: how often `tick` is called changes nothing."""
        if not self._judged_ns:
            return
        while (due_ns := max(self.due_ns, self._judged_ns + JUDGE_NS)) <= to_ns:
            self._judge(due_ns)

    def _published(self) -> list[Change]:
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------------------------------ judging

    def _judge(self, now_ns: int) -> None:
        self.now_ns = self._judged_ns = now_ns
        self._dirty = False
        if self._replay_to >= 0:
            if self._offset <= self._replay_to:
                return
            self._replay_to = -1
            self.evidence.forget_losses()
        evidence = self.evidence
        suspects = evidence.suspects(now_ns, STALE_NS)
        self._review(now_ns, suspects)
        self._wait_ns = NEVER
        if len(suspects) and now_ns >= self._judge_from_ns:
            self._judge_switches(now_ns, suspects)
            left = self._unexplained(suspects, now_ns)
            if len(left) and self._judge_links(now_ns, left):
                left = self._unexplained(left, now_ns)
            if len(left):
                self._judge_nics(now_ns, left)
        evidence.set_window(self.thresholds.ns("grey_window_s"))
        if now_ns - self._left_ns >= (LEFT_NS if evidence.moved else evidence.bucket_ns):
            self._left_ns, evidence.moved = now_ns, False
            self._judge_left(now_ns)
        if now_ns - self._grey_ns >= evidence.bucket_ns:
            self._grey_ns = now_ns
            self._judge_lossy(now_ns)
        if now_ns - self._slow_ns >= SLOW_NS:
            self._slow_ns = now_ns
            self._pass_time(now_ns)

    def _unexplained(self, paths: NDArray[np.intp], now_ns: int) -> NDArray[np.intp]:
        rows = self.evidence.rows[paths]
        explained = self.evidence.down[rows] | (self.evidence.muted_ns[rows] > now_ns)
        return paths[~explained.any(axis=1)]

    def _judge_links(self, now_ns: int, paths: NDArray[np.intp]) -> bool:
        """Find dead links; return whether there was one."""
        suspicion = against_links(self.evidence, paths)
        found = False
        while (link := suspicion.best(set())) != NOTHING:
            verdict = weigh_link(self.evidence, self.thresholds, suspicion, link, now_ns)
            if isinstance(verdict, Wait):  # a better explanation than any other, and not ripe: wait for it
                self._wait_ns = min(self._wait_ns, verdict.until_ns)
                mine = np.zeros(len(suspicion.paths), np.bool_)
                mine[suspicion.of(link)] = True
            else:
                found = self._link_died(now_ns, suspicion, *verdict) or found
                mine = (suspicion.rows == verdict.link).any(axis=1)
            suspicion = suspicion.without(mine)
        return found

    def _link_died(self, now_ns: int, suspicion: Suspicion, link: int, others: tuple[str, ...]) -> bool:
        name = self.evidence.names[link]
        s = self._subject(cable_id(name), "LINK")
        if self._blocked(s):
            return False
        mine = suspicion.of(link)
        begin_ns = suspicion.begin_ns(link)
        quiet_ms = (suspicion.newest_ns(link) - begin_ns) / MS
        probers = len(set(suspicion.rows[mine, 0].tolist()))
        why = (
            f"nothing crossed it for {quiet_ms:.0f} ms while {_n(len(mine), 'path')} of "
            f"{_n(probers, 'NIC')} lost {_n(suspicion.total(link), 'probe')}"
        )
        self._mark(s, link, begin_ns)
        for other in suspicion.rivals(link, MARGIN):  # the other direction, where both are always crossed
            if not self.evidence.is_nic[other] and cable_id(self.evidence.names[other]) == s.name:
                self._mark(s, other, begin_ns)
        self._died(s, now_ns, begin_ns, "PROBES", others, why)
        return True

    # ------------------------------------------------------------------------------------ inner switches

    def _judge_switches(self, now_ns: int, suspects: NDArray[np.intp]) -> None:
        """Find switches inside the fabric that nothing crosses any more: each is one cause for what takes
        several dead links else, the last of which no path would ever tell from a living one."""
        evidence = self.evidence
        of_nics = (evidence.among(evidence.out) | evidence.among(evidence.into)) & evidence.answers
        crossed = np.unique(evidence.rows[suspects, 2:])
        silent = crossed[evidence.life_ns[crossed] < now_ns - self.thresholds.ns("link_dead_ms")]
        silent = silent[~of_nics[silent]]
        cables: dict[str, set[str]] = {}
        for element in silent.tolist():
            cable = cable_id(evidence.names[element])
            for node in evidence.nodes_of(element):
                cables.setdefault(node, set()).add(cable)
        for node in sorted(node for node, of_node in cables.items() if len(of_node) >= SWITCH_CABLES):
            links = list(evidence.of_node[node])
            if of_nics[links].any():
                continue
            if now_ns - int(evidence.life_ns[links].max()) >= silence_ns(
                evidence, self.thresholds, now_ns, links
            ):
                self._judge_switch(now_ns, node, suspects)

    def _judge_switch(self, now_ns: int, node: str, suspects: NDArray[np.intp]) -> None:
        evidence = self.evidence
        links = self._links_within(node)
        by_cable: dict[str, list[int]] = {}
        for link in links.tolist():
            by_cable.setdefault(cable_id(evidence.names[link]), []).append(link)
        last_ns = int(evidence.life_ns[links].max(initial=0))
        if len(by_cable) < SWITCH_CABLES or now_ns - last_ns < self.thresholds.ns("link_dead_ms"):
            return
        rows, within = evidence.rows[suspects], evidence.among(links)
        crosses = within[rows].any(axis=1)
        suspects, rows = suspects[crosses], rows[crosses]
        losses = against_switch(evidence, suspects, links)
        elsewhere = evidence.down[rows] | (evidence.muted_ns[rows] > now_ns)
        losses[(elsewhere & ~within[rows]).any(axis=1)] = 0
        mine = losses > 0
        losses, rows = losses[mine], rows[mine]
        if losses.sum() < self.thresholds["dead_losses"]:
            return
        crossing = np.array([evidence.among(each)[rows].any(axis=1) for each in by_cable.values()]).T
        needed = min(SWITCH_CABLES, len(by_cable) - 1)
        if not crossing.any(axis=0).all() or cables_needed(losses, crossing, MARGIN) < needed:
            return
        begin_ns = int(np.maximum(evidence.first_lost_ns[suspects[mine]], last_ns + 1).min())
        probers = len(np.unique(rows[:, 0]))
        why = (
            f"nothing crosses {node} any more: {_n(len(rows), 'path')} of {_n(probers, 'NIC')} lost "
            f"{_n(int(losses.sum()), 'probe')}"
        )
        for cable, of_cable in sorted(by_cable.items()):
            s = self._subject(cable, "LINK")
            if not self._blocked(s) and not s.carrier_down:
                for link in of_cable:
                    self._mark(s, link, begin_ns)
                self._died(s, now_ns, begin_ns, "PROBES", (), why)

    def _links_within(self, node: str) -> NDArray[np.intp]:
        """Return the links of a switch that lived until it fell silent; none where all are known to be
        DOWN."""
        evidence = self.evidence
        links = np.array(sorted(evidence.of_node[node]), np.intp)
        links = links[evidence.answers[links]]
        if evidence.down[links].all():
            return links[:0]
        lives_ns = evidence.life_ns[links]
        lately: NDArray[np.intp] = links[lives_ns > lives_ns.max() - RETRACT_NS]
        return lately

    # ------------------------------------------------------------------------------------ left by all

    def _judge_left(self, now_ns: int) -> None:
        """Tell of links inside that all paths were led around."""
        evidence = self.evidence
        if not evidence.left:
            return
        for link, paths in find_led_around(evidence, now_ns, STALE_NS, FEW_PATHS, FEW_ENDS):
            s = self._subject(cable_id(evidence.names[link]), "LINK")
            if self._blocked(s):
                continue
            begin_ns = int(evidence.life_ns[link]) + 1
            self._mark(s, link, begin_ns)
            crossed_it = f"{_n(len(paths), 'path')} of {_n(len(np.unique(evidence.rows[paths, 0])), 'NIC')}"
            why = f"{crossed_it} that crossed it are led around it, and none crosses it"
            self._died(s, now_ns, begin_ns, "PROBES", (), why)

    # ------------------------------------------------------------------------------------ NICs and hosts

    def _judge_nics(self, now_ns: int, paths: NDArray[np.intp]) -> None:
        """Find NICs that answer nobody any more, and what is behind it."""
        lives = self.evidence.life_ns[self.evidence.rows[paths, :2]]
        if now_ns - int(lives.min()) < self.thresholds.ns("nic_dead_ms"):
            return
        suspicion = against_nics(self.evidence, paths)
        due: dict[int, str] = {}
        while (nic := suspicion.best(set())) != NOTHING:
            verdict = self._weigh_nic(now_ns, suspicion, nic)
            if verdict is not None:
                due[nic] = verdict
            mine = np.zeros(len(suspicion.paths), np.bool_)
            mine[suspicion.of(nic)] = True
            suspicion = suspicion.without(mine)
        for nic in self._whole_switches(now_ns, due):
            del due[nic]
        for nic, verdict in due.items():
            if not self.evidence.down[nic]:
                self._nic_died(now_ns, nic, verdict)

    def _weigh_nic(self, now_ns: int, suspicion: Suspicion, nic: int) -> str | None:
        """Return PORT where the NIC's agent is well and its port is not, SILENT where both are away; None:
        wait."""
        evidence, least = self.evidence, self.thresholds["dead_losses"]
        life_ns = int(evidence.life_ns[nic])
        total = suspicion.total(nic)
        if total < least or not evidence.answers[nic]:
            return None
        if now_ns - life_ns > self.thresholds.ns("forget_s") or not self._known(evidence.names[nic]):
            return None
        mine = suspicion.of(nic)
        rows, losses = suspicion.rows[mine], suspicion.losses[mine]
        lost_ns = int(evidence.last_lost_ns[suspicion.paths[mine]].max())
        heard_ns = int(evidence.heard_ns[nic])
        own = int(losses[:, :1][rows[:, :1] == nic].sum())
        # only what its own probes lost since it came late last tells of the port
        well_ns = max(life_ns, int(evidence.excused_ns[nic]), int(evidence.starved_ns[nic]))
        if own >= least and min(lost_ns, heard_ns) - well_ns >= self.thresholds.ns("nic_dead_ms"):
            asked = suspicion.paths[mine][rows[:, 0] == nic]
            since_ns, until_ns = np.full(len(asked), well_ns), evidence.last_lost_ns[asked]
            if int(evidence.losses_within(asked, since_ns, until_ns).sum()) >= least:
                return "PORT"
        away_ns, heard_ns = lost_ns - life_ns, heard_ns - life_ns
        if away_ns < self.thresholds.ns("nic_silent_ms"):
            return None
        asking = {_host(evidence.names[int(e)]) for e in rows[:, 0] if e != nic}
        if own < least and len(asking) < min(2, len(self._askers(nic, now_ns))):
            return None
        return "PORT" if heard_ns > SPEAKS_NS else "SILENT"

    def _askers(self, nic: int, now_ns: int) -> set[str]:
        """Return the hosts that asked a NIC of late."""
        evidence, n = self.evidence, self.evidence.paths
        asked = (evidence.rows[:n, 1] == nic) & (evidence.seen_ns[:n] > now_ns - STALE_NS)
        return {_host(evidence.names[int(e)]) for e in np.unique(evidence.rows[:n, 0][asked])}

    def _whole_switches(self, now_ns: int, due: Mapping[int, str]) -> set[int]:
        """Declare switches all of whose NICs fell silent at once; return those NICs."""
        evidence = self.evidence
        of_switch: dict[str, set[int]] = {}
        for nic in due:
            for switch in self._switch_of(nic):
                of_switch.setdefault(switch, set()).add(nic)
        gone: set[int] = set()
        for switch, nics in sorted(of_switch.items()):
            lives = evidence.life_ns[list(nics)]
            last_ns = int(lives.max())
            if len(nics) < 2 or last_ns - int(lives.min()) > TOGETHER_NS:
                continue
            if len({_host(evidence.names[nic]) for nic in nics}) < 2:
                continue
            links = [e for e in evidence.of_node[switch] if evidence.answers[e] and not evidence.down[e]]
            if any(evidence.life_ns[e] > last_ns for e in links):
                continue
            links = [e for e in links if evidence.life_ns[e] > last_ns - KNOWN_NS]
            began_ns = last_ns + 1
            by_cable: dict[str, list[int]] = {}
            for link in links:
                by_cable.setdefault(cable_id(evidence.names[link]), []).append(link)
            at_link = {link: nic for nic in nics for link in evidence.links_of(nic)}
            for cable, of_cable in sorted(by_cable.items()):
                s = self._subject(cable, "LINK")
                if self._blocked(s):
                    continue
                for link in of_cable:
                    self._mark(s, link, began_ns)
                    if link in at_link:
                        self._mark(s, at_link[link], began_ns)
                why = f"nothing crosses {switch} any more, and its {_n(len(nics), 'NIC')} answer nobody"
                self._died(s, now_ns, began_ns, "PROBES", (), why)
            gone |= nics
        return gone

    def _switch_of(self, nic: int) -> set[str]:
        host = _host(self.evidence.names[nic])
        ends = (self.evidence.nodes_of(link) for link in self.evidence.links_of(nic))
        return {node for pair in ends for node in pair if node != host}

    def _nic_died(self, now_ns: int, nic: int, verdict: str) -> None:
        evidence = self.evidence
        name, life_ns = evidence.names[nic], int(evidence.life_ns[nic])
        links = evidence.links_of(nic)
        cables = sorted({cable_id(evidence.names[link]) for link in links})
        away = f"no probe reaches {name} or comes from it for {(now_ns - life_ns) / MS:.0f} ms"
        nics = [nic]
        others: tuple[str, ...]
        if verdict == "PORT" and cables:
            s = self._subject(cables[0], "LINK")
            others, detected_by, why = (name,), "PROBES", f"{away}, though its agent is well"
        elif verdict == "PORT":
            s = self._subject(name, "NIC")
            others, detected_by, why = (), "PROBES", f"{away}, though its agent is well"
        else:
            host = _host(name)
            nics = self._nics_of(host)
            silent = [
                n for n in nics if now_ns - evidence.life_ns[n] > self.thresholds.ns("nic_silent_ms") / 2
            ]
            if len(silent) == len(nics):
                s, links = self._subject(host, "HOST"), [e for n in nics for e in evidence.links_of(n)]
                cables = sorted({cable_id(evidence.names[link]) for link in links})
                others, detected_by = tuple(cables), "SILENCE"
                why = f"no probe reaches {_n(len(nics), 'NIC')} of it, and nothing is heard of it"
                life_ns = max(int(evidence.life_ns[n]) for n in nics)
            else:
                s, nics = self._subject(name, "NIC"), [nic]
                others, detected_by, why = tuple(cables), "SILENCE", f"{away}, and nothing is heard of it"
        if self._blocked(s):
            return
        for each in (*nics, *links):
            self._mark(s, each, life_ns + 1)
        self._died(s, now_ns, life_ns + 1, detected_by, others, why)

    def _nics_of(self, host: str) -> list[int]:
        evidence = self.evidence
        found = np.flatnonzero(evidence.is_nic & evidence.answers)
        return [int(n) for n in found if _host(evidence.names[n]) == host and self._known(evidence.names[n])]

    def _port(self, nic: str, up: bool, at_ns: int, detected_by: str) -> None:
        """Take what a NIC's own port says."""
        evidence = self.evidence
        me = evidence.index[nic]
        links = evidence.links_of(me)
        name = cable_id(evidence.names[links[0]]) if links else nic
        s = self._subject(name, "LINK" if links else "NIC")
        if self._blocked(s):
            return
        if up:
            if not s.carrier_down:
                return
            s.carrier_down = False
            for element in list(s.dead):
                self._clear(s, element)
            evidence.muted_ns[[me, *links]] = at_ns + MUTE_NS
            self._settle(s, self.now_ns, at_ns, detected_by)
        else:
            s.carrier_down = True
            for element in (me, *links):
                self._mark(s, element, at_ns)
            what = "has no carrier" if detected_by == "CARRIER" else "says that it is down"
            self._died(s, self.now_ns, at_ns, detected_by, (), f"the port {nic} {what}")

    # ------------------------------------------------------------------------------------ back to life

    def _review(self, now_ns: int, suspects: NDArray[np.intp]) -> None:
        """Look for life where death was told."""
        evidence = self.evidence
        muted = evidence.muted_ns > 0
        if muted.any():
            over = (evidence.muted_ns <= now_ns) | (evidence.life_ns > evidence.muted_ns - MUTE_NS)
            evidence.healed_ns[muted & over] = now_ns
            evidence.muted_ns[muted & over] = 0
        for s in [s for s in self.subjects.values() if s.dead]:
            if s.kind == "HOST":
                for nic in self._nics_of(s.name):
                    if nic not in s.dead and not evidence.down[nic] and evidence.life_ns[nic] <= s.since_ns:
                        self._mark(s, nic, s.since_ns)
            if s.carrier_down:
                continue
            last_ns = 0
            for element in list(s.dead):
                alive_ns = self._alive_again(s, element, now_ns, suspects)
                if alive_ns is not None:
                    last_ns = max(last_ns, alive_ns)
                    self._clear(s, element)
                    if s.kind != "LINK":  # one NIC of a host that lives: the rest is judged anew
                        for rest in list(s.dead):
                            self._clear(s, rest)
                        break
            if last_ns:
                self._settle(s, now_ns, last_ns, "PROBES")
        self._reviving = [s for s in self.subjects.values() if s.reviving]

    def _alive_again(self, s: _Subject, element: int, now_ns: int, suspects: NDArray[np.intp]) -> int | None:
        """Return since when a dead element lives; None where it does not, or not for long enough."""
        evidence = self.evidence
        life_ns = int(evidence.life_ns[element])
        if life_ns <= s.dead[element] or self._blocked(s):
            return None
        first_ns = s.reviving.setdefault(element, life_ns)
        if now_ns - first_ns < self.thresholds.ns("up_hold_ms"):
            return None
        if len(suspects):
            rows = evidence.rows[suspects]
            here = (rows == element).any(axis=1) & (evidence.seen_ns[suspects] > now_ns - RECENT_NS)
            after_ns = np.full(len(suspects), first_ns + GUARD_NS)
            lost = evidence.losses_within(suspects, after_ns, evidence.last_lost_ns[suspects])
            if int(lost[here].sum()) >= MARGIN and life_ns <= first_ns + GUARD_NS:
                s.dead[element] = life_ns  # a sign of life, and dead again
                del s.reviving[element]
                return None
            own = np.isin(rows, list(s.dead))
            here &= ~(evidence.down[rows] & ~own).any(axis=1)
            if int(lost[here].sum()) >= MARGIN and now_ns - first_ns < RETRACT_NS:
                return None
        return first_ns

    def _mark(self, s: _Subject, element: int, begin_ns: int) -> None:
        owner = self.subjects.get(self._owner.get(element, ""))
        if owner is not None and owner is not s:
            owner.dead.pop(element, None)
            owner.reviving.pop(element, None)
        s.dead[element] = begin_ns
        s.grey.pop(element, None)
        s.grey_fine_ns.pop(element, None)
        self._owner[element] = s.name
        self.evidence.down[element] = True

    def _clear(self, s: _Subject, element: int) -> None:
        s.dead.pop(element, None)
        s.reviving.pop(element, None)
        if self._owner.get(element) == s.name:
            del self._owner[element]
            self.evidence.down[element] = False
            self.evidence.healed_ns[element] = self.now_ns

    # ------------------------------------------------------------------------------------ partial loss

    def _judge_lossy(self, now_ns: int) -> None:
        evidence = self.evidence
        greys = [s for s in self.subjects.values() if s.grey]
        if not evidence.any_lost and not greys and not len(evidence.unsettled(now_ns)):
            return
        requests, found = self._lossy_within(now_ns, BUCKETS)
        # what began a moment ago stands out where the time before it is left out
        for element, lossy in self._lossy_within(now_ns, BUCKETS // 2)[1].items():
            if element not in found or lossy.low > found[element].low:
                found[element] = lossy
        for lossy in found.values():
            if self._is_grey(lossy, now_ns):
                self._turned_grey(lossy, now_ns)
        for s in greys:
            self._still_grey(s, found, requests, now_ns)

    def _lossy_within(self, now_ns: int, parts: int) -> tuple[NDArray[np.float64], dict[int, Lossy]]:
        """Return [P] requests within so many parts of the window, and the lossy elements."""
        evidence = self.evidence
        lost, answered = evidence.counts(now_ns, parts)
        few = evidence.unsettled(now_ns, parts)
        lost[few] += evidence.pending[few]
        n = evidence.paths
        rows = evidence.rows[:n]
        requests = (lost + answered).astype(float)
        since_ns = np.minimum(now_ns - evidence.seen_ns[:n], evidence.bucket_ns * parts)
        waiting = (evidence.in_row[:n] == 0) & (requests > 0) & (since_ns > 0)
        requests += np.where(waiting, evidence.rate_hz[:n] * since_ns / S, 0.0)
        requests[evidence.down[rows].any(axis=1)] = 0.0
        if now_ns < self._judge_from_ns:
            return requests, {}
        found = find_lossy(rows, lost, requests, ~evidence.is_nic)
        return requests, {lossy.element: lossy for lossy in found}

    def _is_grey(self, lossy: Lossy, now_ns: int) -> bool:
        evidence = self.evidence
        if lossy.low < self.thresholds["grey_loss_percent"] / 100 or lossy.lost < GREY_LOSSES:
            return False
        crossing = evidence.crossing(lossy.element)
        fell: NDArray[np.bool_] = np.asarray((evidence.lost[crossing] > 0).any(axis=0))
        few = np.intersect1d(crossing, evidence.unsettled(now_ns))
        fell[evidence.first_lost_ns[few] // evidence.bucket_ns % len(fell)] = True
        here = [lossy.element, *lossy.alike]
        nics = [e for e in here if evidence.is_nic[e]]
        at_nic = np.isin(evidence.out, here) | np.isin(evidence.into, here)
        nics += np.flatnonzero(at_nic & evidence.is_nic).tolist()
        if not nics:
            return int(fell.sum()) >= GREY_PARTS
        fell &= ~evidence.starved[nics].any(axis=0)  # what a host lost while it came late is no link's
        window_ns = evidence.bucket_ns * BUCKETS
        starved_ns = int(evidence.starved_ns[nics].max())
        times = HOST_TIMES if starved_ns < now_ns - window_ns else STARVED_TIMES
        if fell.sum() < HOST_PARTS or lossy.low < times * self.thresholds["grey_loss_percent"] / 100:
            return False
        well = evidence.excused_ns[nics] < now_ns - window_ns
        well &= evidence.heard_ns[nics] > now_ns - WARM_NS  # who says nothing may be starved and not know it
        return bool(well.all()) and starved_ns < now_ns - evidence.bucket_ns

    def _turned_grey(self, lossy: Lossy, now_ns: int) -> None:
        evidence = self.evidence
        element, name = lossy.element, evidence.names[lossy.element]
        is_nic = bool(evidence.is_nic[element])
        s = self._subject(name if is_nic else cable_id(name), "NIC" if is_nic else "LINK")
        if self._blocked(s) or s.dead:
            return
        known = s.grey.get(element)
        s.grey[element] = lossy
        s.grey_fine_ns.pop(element, None)
        if known is None:
            others = {
                evidence.names[e] if evidence.is_nic[e] else cable_id(evidence.names[e]) for e in lossy.alike
            }
            s.others = tuple(sorted(others - {s.name}))
            begin_ns = int(evidence.first_lost_ns[evidence.crossing(element)].max(initial=now_ns - S))
            self._settle(s, now_ns, min(begin_ns, now_ns), "PROBES")
        elif s.shown_rate is not None and not s.shown_rate.low <= lossy.rate <= s.shown_rate.high:
            self._tell(s, now_ns)

    def _still_grey(
        self, s: _Subject, found: Mapping[int, Lossy], requests: NDArray[np.float64], now_ns: int
    ) -> None:
        half = self.thresholds["grey_loss_percent"] / 200
        for element in list(s.grey):
            lossy = found.get(element)
            if lossy is not None and lossy.rate >= half:
                s.grey_fine_ns.pop(element, None)
                continue
            if not requests[self.evidence.crossing(element)].any():
                continue
            fine_ns = s.grey_fine_ns.setdefault(element, now_ns)
            if now_ns - fine_ns >= self.thresholds.ns("grey_clear_s") and not self._blocked(s):
                del s.grey[element], s.grey_fine_ns[element]
                self._settle(s, now_ns, fine_ns, "PROBES")

    # ------------------------------------------------------------------------------------ what is told

    def _subject(self, name: str, kind: str) -> _Subject:
        found = self.subjects.get(name)
        if found is None:
            found = self.subjects[name] = _Subject(name, kind)
        return found

    def _blocked(self, s: _Subject) -> bool:
        """Return whether what is read now was judged before, by whoever had this shard then."""
        return self._offset <= s.reflected and s.reflected >= 0

    def _died(
        self, s: _Subject, now_ns: int, begin_ns: int, detected_by: str, others: tuple[str, ...], why: str
    ) -> None:
        if s.state == "DOWN":
            if detected_by != "PROBES" and s.detected_by == "PROBES":
                s.detected_by = detected_by
                self._tell(s, now_ns)
            elif set(self._dead_links(s)) != set(s.links):
                self._tell(s, now_ns)
            return
        s.detected_by, s.others = detected_by, others
        flap_ns = begin_ns + self.log_offset_ns
        s.flaps.append(flap_ns)
        s.flaps_total += 1
        while len(s.flaps) > MAX_FLAPS:
            s.flaps.popleft()
        self._forget_flaps(s, now_ns)
        self._change(s, "DOWN", begin_ns, now_ns)
        often = len(s.flaps) > self.thresholds["flaps_max"]
        s.text = f"{self._called(s)} is down since {self._clock(begin_ns)}: {why}" + (
            f"; it flapped {len(s.flaps)} times within the past hour" if often else ""
        )
        self._tell(s, now_ns)

    def _settle(self, s: _Subject, now_ns: int, since_ns: int, detected_by: str) -> None:
        """Set the state that follows from what is known of a subject that did not die now."""
        if s.dead or s.carrier_down:
            self._tell(s, now_ns)
            return
        self._forget_flaps(s, now_ns)
        state = "UP"
        if s.grey:
            state = "GREY"
        elif len(s.flaps) > self.thresholds["flaps_max"]:
            state = "FLAPPING"
        if state == s.state:
            return
        if state != "GREY":
            s.others = ()
        was, was_ns = s.state, s.since_ns
        s.detected_by = detected_by
        self._change(s, state, since_ns, now_ns)
        called = self._called(s)
        if state == "FLAPPING":
            s.text = f"{called} flapped {len(s.flaps)} times within the past hour"
        elif state == "UP" and was == "DOWN":
            s.text = (
                f"{called} is up again since {self._clock(since_ns)}, after {(since_ns - was_ns) / S:.2f} s"
            )
        elif state == "UP" and was == "GREY":
            s.text = f"{called} loses no packets any more since {self._clock(since_ns)}"
        elif state == "UP":
            s.text = f"{called} flapped {_n(len(s.flaps), 'time')} within the past hour, no more than it may"
        self._tell(s, now_ns)

    def _change(self, s: _Subject, state: str, since_ns: int, now_ns: int) -> None:
        s.before, s.state = s.state, state
        s.seq += 1
        s.since_ns, s.evaluated_ns = since_ns, now_ns

    def _forget_flaps(self, s: _Subject, now_ns: int) -> None:
        hour_ago_ns = now_ns + self.log_offset_ns - HOUR_NS
        while s.flaps and s.flaps[0] < hour_ago_ns:
            s.flaps.popleft()

    def _pass_time(self, now_ns: int) -> None:
        """Let flaps grow old, tell again what is not UP, forget what stays away."""
        self.evidence.forget_paths(now_ns - PATH_KEPT_NS)
        forget_ns = self.thresholds.ns("forget_s")
        for s in list(self.subjects.values()):
            if self._blocked(s):
                continue
            if s.kind == "LINK" and (instead := self._instead_of(s)) is not None:
                self._no_more(s, f"there is {cable_id(instead)} now", now_ns)
                continue
            self._forget_flaps(s, now_ns)
            if s.state == "FLAPPING" and len(s.flaps) <= self.thresholds["flaps_max"]:
                self._settle(s, now_ns, now_ns, s.detected_by)
            elif s.state == "UP" and len(s.flaps) > self.thresholds["flaps_max"]:
                self._settle(s, now_ns, s.since_ns, s.detected_by)
            away_ns = now_ns - s.since_ns if s.state == "DOWN" else 0
            if s.kind != "LINK" and away_ns > forget_ns:
                self._forget(s)
            elif away_ns > forget_ns * LINK_TIMES and not s.carrier_down and not self._crossed(s, now_ns):
                self._no_more(s, "no path has led over it since it went down", now_ns)
            elif s.state != "UP" and now_ns - s.told_ns >= REFRESH_NS:
                self._tell(s, now_ns)

    def _instead_of(self, s: _Subject) -> str | None:
        """Return the link that has a port of a cable now, None where the cable is where it was."""
        evidence = self.evidence
        if not evidence.recabled or s.carrier_down:
            return None
        near, far = s.name.split("<>")
        elements = [evidence.index.get(f"{a}>{b}", NOTHING) for a, b in ((near, far), (far, near))]
        found = [evidence.recabled[e] for e in elements if e in evidence.recabled]
        if not found or evidence.life_ns[found].max() <= evidence.life_ns[[e for e in elements if e]].max():
            return None
        return evidence.names[found[0]]

    def _crossed(self, s: _Subject, now_ns: int) -> bool:
        return bool(self.evidence.crossed(now_ns - STALE_NS)[list(s.dead)].any())

    def _no_more(self, s: _Subject, why: str, now_ns: int) -> None:
        """Tell that a cable is no more, and forget it."""
        for element in list(s.dead):
            self._clear(s, element)
        s.grey.clear()
        if s.state != "UP":
            self._change(s, "UP", now_ns, now_ns)
            s.text = f"{self._called(s)} is no more: {why}"
            self._tell(s, now_ns)
        self._forget(s)

    def _forget(self, s: _Subject) -> None:
        """Forget a subject; its dead elements stay dead, so that those who go on asking raise no new one."""
        del self.subjects[s.name]
        self._out.append((s.name, None))

    def _dead_links(self, s: _Subject) -> list[str]:
        names = self.evidence.names
        return sorted(names[e] for e in s.dead if not self.evidence.is_nic[e])

    def _grey_links(self, s: _Subject) -> list[str]:
        """Return the links of a subject that lose, with the other direction where the same paths cross it."""
        evidence = self.evidence
        found = {e for lossy in s.grey.values() for e in (lossy.element, *lossy.alike)} | s.grey.keys()
        names = [evidence.names[e] for e in found if not evidence.is_nic[e] and e != NOTHING]
        return sorted(name for name in names if cable_id(name) == s.name)

    def _count(self, s: _Subject, elements: Iterable[int], now_ns: int) -> None:
        evidence, n = self.evidence, self.evidence.paths
        here = np.isin(evidence.rows[:n], list(elements)).any(axis=1)
        here &= evidence.seen_ns[:n] > now_ns - STALE_NS
        dead = here & (evidence.in_row[:n] > 0)
        if here.any():
            probers = len(np.unique(evidence.rows[:n, 0][here]))
            s.counts = int(dead.sum()), int((here & ~dead).sum()), probers

    def _tell(self, s: _Subject, now_ns: int) -> None:
        """Publish a subject as it is now."""
        loss = None
        if s.dead:
            s.links = tuple(self._dead_links(s))
            self._count(s, s.dead, now_ns)
        elif s.grey:
            worst = max(s.grey, key=lambda e: s.grey[e].rate)
            loss = s.grey[worst]
            s.links = tuple(self._grey_links(s))
            s.shown_rate = loss
            self._count(s, s.grey, now_ns)
            s.text = (
                f"{self._called(s)} loses {loss.rate:.1%} of its packets since {self._clock(s.since_ns)} "
                f"(95%: {loss.low:.1%} to {loss.high:.1%})"
            )
        elif s.links:
            self._count(s, [self.evidence.index[link] for link in s.links], now_ns)
        self._forget_flaps(s, now_ns)
        s.told_ns = now_ns
        self._out.append((s.name, {
            "subject": s.name, "kind": s.kind, "shard": self.shard, "seq": s.seq, "state": s.state,
            "before": s.before, "links": list(s.links), "candidates": list(s.others),
            "since_ns": s.since_ns + self.log_offset_ns, "evaluated_ns": s.evaluated_ns + self.log_offset_ns,
            "loss_rate": None if loss is None else loss.rate,
            "loss_rate_low": None if loss is None else loss.low,
            "loss_rate_high": None if loss is None else loss.high,
            "flaps_hour": len(s.flaps), "flaps_total": s.flaps_total, "flap_ns": list(s.flaps),
            "detected_by": s.detected_by, "paths_dead": s.counts[0], "paths_living": s.counts[1],
            "probers": s.counts[2], "evidence_source": self.source, "evidence_offset": self._offset,
            "text": s.text[:500],
        }))  # fmt: skip

    def _clock(self, at_ns: int) -> str:
        at = datetime.fromtimestamp((at_ns + self.log_offset_ns) / 1e9, UTC)
        return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"

    def _called(self, s: _Subject) -> str:
        """Return a subject as people call it: 'leaf2 to spine3', 'h1/eth1 to leaf1', 'host h1'.

        A cable is called in the direction that loses, where only one does.
        """
        if s.kind != "LINK":
            return f"{s.kind if s.kind == 'NIC' else 'host'} {s.name}"
        names = self._dead_links(s) or self._grey_links(s)
        if len(names) == 1:
            near, far = names[0].split(">")
        else:
            near, far = s.name.split("<>")
            if self._end(far)[1] and not self._end(near)[1]:
                near, far = far, near
        (a, _), (b, _) = self._end(near), self._end(far)
        pair = sorted((near.rpartition(":")[0], far.rpartition(":")[0]))
        if (
            len(self.evidence.alike.get((pair[0], pair[1]), ())) > 1
            and not {a, b} & self.evidence.nics.keys()
        ):
            return f"{near} to {far}"
        return f"{a} to {b}"

    def _end(self, end: str) -> tuple[str, bool]:
        """Return the name of a cable's end, and whether it is a NIC."""
        node, _, port = end.rpartition(":")
        nic = f"{node}/{port}"
        return (nic, True) if nic in self.evidence.index else (node, False)


def _host(nic: str) -> str:
    return nic.partition("/")[0]


def _n(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
