"""Compares the fabric's wiring with its plan: NICs off their rail, and cables against the topology file.

`Wiring` ingests `PathMaps` and `Nic` records. It returns detections of kind MISWIRED, one per cause: two
swapped cables are one cause, however many paths show them. It also counts the cables of each switch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from schemas.ids import cable_ends, cable_id, end_id, end_parts, natural
from schemas.records import AlertKind, Nic, PathMaps
from schemas.topics import PATHS
from schemas.topology import LAYER_2, Topology, nic_end, split_end
from streams.alerts.rules import NEVER_NS
from streams.runtime.cable_votes import CableVotes
from streams.runtime.detection import SINCE, Detection, EvidenceRef
from streams.runtime.route_table import split_pair
from streams.runtime.switch_names import Groups, SwitchNames, leaf_name, names_of
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_S

EVALUATION_GAP_NS: Final = NS_PER_S
"""Minimum append time between two evaluations of changed records."""
MAX_EVIDENCE: Final = 8
WIRED: Final = (
    re.compile(r"is (?P<end>.+), which the file wires to (?P<far>.+), and the hop before is (?P<node>.+)"),
    re.compile(r"is (?P<node>.+), and the file wires (?P<end>.+) to (?P<far>.+)"),
)
"""Forms in which producers/trace/route_names.py reports that a cable contradicts the file."""
HOP: Final = re.compile(r"^hop \d+ ")
UNNAMED: Final = "which the file does not name"
LISTED: Final = "the file lists another path"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A NIC on the leaf of another rail, with the evidence."""

    nic: str
    rail: int
    leaf: str
    evidence: str


def _majority_evidence(leaf: str, rail: int, rails: Counter[int], leaves: Collection[str]) -> str:
    """Return a text that most NICs of a leaf belong to another rail; empty without such a majority.

    `rails`: number of the leaf's NICs by rail; `leaves`: all leaves with NICs of `rail`.
    """
    main_rail, count = rails.most_common(1)[0]
    total = rails.total()
    if main_rail == rail or 2 * count <= total:
        return ""
    others = sorted((name for name in leaves if name != leaf), key=natural)
    where = f"; the others of its rail are on {', '.join(others[:4])}" if others else ""
    return f"{count} of {total} NICs there are of rail {main_rail}{where}"


def misfits_of(
    leaf_of: Mapping[str, str], rail_of: Mapping[str, int | None], topology: Topology | None = None
) -> list[Misfit]:
    """Return the NICs on a leaf of another rail.

    A leaf's rail comes from the topology file, else from the majority of the leaf's NICs. If all leaves serve
    all rails alike, no NIC is returned.
    """
    topology = topology if topology is not None else Topology()
    rails: dict[str, Counter[int]] = defaultdict(Counter)
    leaves: dict[int, Counter[str]] = defaultdict(Counter)
    for nic, leaf in leaf_of.items():
        rail = rail_of.get(nic)
        if rail is not None:
            rails[leaf][rail] += 1
            leaves[rail][leaf] += 1
    misfits = []
    for nic, leaf in sorted(leaf_of.items(), key=lambda item: natural(item[0])):
        rail = rail_of.get(nic)
        if rail is None:
            continue
        entry = topology.nodes.get(leaf)
        if entry is not None and entry.rail is not None:
            evidence = f"the file has {leaf} in rail {entry.rail}" if entry.rail != rail else ""
        else:
            evidence = _majority_evidence(leaf, rail, rails[leaf], leaves[rail])
        if evidence:
            misfits.append(Misfit(nic, rail, leaf, evidence))
    return misfits


class _Nic(NamedTuple):
    """The rail and shard of a NIC, by the inventory."""

    rail: int | None
    shard: str


@dataclass(slots=True)
class _Pair:
    """Content of the `PathMaps` record of a directed pair of NICs."""

    shard: str
    at_ns: int
    routes: frozenset[tuple[str, ...]]
    leaves: frozenset[str]
    """First switches on the routes of the pair's requests."""
    names: SwitchNames
    contradictions: frozenset[str]


@dataclass(slots=True)
class _Fact:
    """A contradiction of the plan. Facts that have an item in common have one cause."""

    key: str
    subject: str
    text: str
    shard: str
    items: frozenset[str]
    nics: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    evidence: EvidenceRef | None = None


@dataclass(slots=True)
class _Active:
    """An active detection. `quiet_ns`: time since which none of its facts holds; None while a fact holds."""

    subject: str
    shard: str
    items: set[str] = field(default_factory=set)
    facts: set[str] = field(default_factory=set)
    quiet_ns: int | None = None
    nics: tuple[str, ...] = ()


class Wiring:
    """Detects wrong cabling. A change of `topology` or `thresholds` applies from the next record on."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.topology = topology if topology is not None else Topology()
        self.thresholds = Thresholds()
        self._pairs: dict[str, _Pair] = {}
        self._votes = CableVotes()
        self._at_node: dict[str, set[str]] = defaultdict(set)
        self._leaves: dict[str, Counter[str]] = defaultdict(Counter)
        self._joins: Counter[tuple[str, str]] = Counter()
        self._leaf_names: Counter[tuple[str, str]] = Counter()
        self._anycast: Counter[str] = Counter()
        self._contradicting: dict[str, set[str]] = defaultdict(set)
        """Maps contradiction of the topology file to the pairs whose traces show it."""
        self._nics: dict[str, _Nic] = {}
        self._since: dict[str, int] = {}
        """Maps fact to the time at which it was first seen."""
        self._facts: dict[str, _Fact] = {}
        self._active: list[_Active] = []
        self._dirty = False
        self._evaluated_ns = -EVALUATION_GAP_NS

    def cables_at(self, node: str) -> int:
        """Return the number of a node's cables on the known paths; doubted cables do not count."""
        return len(self._at_node.get(node, set()) - self._votes.doubted)

    def recover(self, shard: str, subject: str, names: Iterable[str], at_ns: int) -> None:
        """Restore an active alert; `at_ns`: append time at which it was certainly active."""
        names = tuple(names)
        nics = tuple(name for name in names if "/" in name)
        self._active.append(_Active(subject, shard, {subject, *names}, quiet_ns=at_ns, nics=nics))

    # --------------------------------------------------------------------------------------- records

    def ingest_nic(self, key: str, record: Nic | None, append_ns: int) -> None:
        """Take one message of the inventory; `record` is None if the NIC was removed."""
        previous = self._nics.get(key)
        if record is None:
            self._nics.pop(key, None)
        else:
            self._nics[record["nic"]] = _Nic(record["rail"], record["shard"])
        if self._nics.get(key) != previous:
            self._touch(append_ns)

    def ingest_paths(self, key: str, record: PathMaps | None, append_ns: int) -> None:
        """Take the `PathMaps` of a pair; `record` is None if the pair is no longer traced."""
        new = None if record is None else self._pair_of(record, append_ns)
        old = self._pairs.pop(key, None)
        if old is not None:
            self._count(key, old, -1)
        if new is not None:
            self._pairs[key] = new
            self._count(key, new, 1)
        if old is not None or new is not None:
            self._count_cables(split_pair(key)[0], _cables_of(old), _cables_of(new))
        if old is None or new is None or _findings(old) != _findings(new):
            self._touch(append_ns)

    def _touch(self, append_ns: int) -> None:
        if not self._dirty:
            self._dirty = True
            self._evaluated_ns = max(self._evaluated_ns, append_ns - append_ns % EVALUATION_GAP_NS)

    def _pair_of(self, record: PathMaps, append_ns: int) -> _Pair:
        routes, leaves, names = set(), set(), SwitchNames()
        own = nic_end(record["nic"])
        for path in record["paths"]:
            links = tuple(path["links"])
            routes.add(links)
            if not links:
                continue
            near, far = (split_end(end) for end in links[0].split(">"))
            if near == own and far.node != LAYER_2:
                leaves.add(far.node)
            names = names.union(names_of(record["nic"], record["peer"], links, path["complete"]))
        return _Pair(
            record["shard"],
            append_ns,
            frozenset(routes),
            frozenset(leaves),
            names,
            frozenset(_contradictions_of(record)),
        )

    def _count(self, key: str, pair: _Pair, by: int) -> None:
        """Add a pair's content to the counts (`by` = 1), or remove it (`by` = -1)."""
        nic = split_pair(key)[0]
        for leaf in pair.leaves:
            self._leaves[nic][leaf] += by
        for join in pair.names.joins:
            self._joins[join] += by
        for names in pair.names.leaves:
            self._leaf_names[names] += by
        for address in pair.names.anycast:
            self._anycast[address] += by
        for contradiction in pair.contradictions:
            pairs = self._contradicting[contradiction]
            (pairs.add if by > 0 else pairs.discard)(key)

    def _count_cables(self, nic: str, before: set[str], now: set[str]) -> None:
        """Replace the cables `before` that a NIC's record showed with the cables `now`."""
        self._votes.replace(nic, before, now)
        for cable in before ^ now:
            for end in cable_ends(cable):
                at = self._at_node[end_parts(end).node]
                (at.add if self._votes.nics_of(cable) else at.discard)(cable)

    # --------------------------------------------------------------------------------------- evaluation

    @property
    def due_ns(self) -> int:
        """Append time at which `evaluate` next has a fact to report or to end, ns."""
        hold_ns, clear_ns = self.thresholds.ns("alert_miswired_s"), self.thresholds.ns("alert_clear_s")
        reported = {fact for active in self._active for fact in active.facts}
        ripe = min((at_ns for key, at_ns in self._since.items() if key not in reported), default=NEVER_NS)
        quiet = min((a.quiet_ns for a in self._active if a.quiet_ns is not None), default=NEVER_NS)
        changed = self._evaluated_ns + EVALUATION_GAP_NS if self._dirty else NEVER_NS
        return min(changed, ripe + hold_ns, quiet + clear_ns)

    def evaluate(self, now_ns: int) -> list[tuple[str, Detection]]:
        """Return (shard, detection) for each cause that is new or over at append time `now_ns`."""
        if self._dirty and now_ns >= self._evaluated_ns + EVALUATION_GAP_NS:
            self._dirty, self._evaluated_ns = False, now_ns
            self._find_facts(now_ns)
        hold_ns, clear_ns = self.thresholds.ns("alert_miswired_s"), self.thresholds.ns("alert_clear_s")
        news = self._raise({k for k, at_ns in self._since.items() if now_ns - at_ns >= hold_ns}, now_ns)
        for active in list(self._active):
            if active.quiet_ns is not None and now_ns - active.quiet_ns >= clear_ns:
                self._active.remove(active)
                text = "traces contradict it no more"
                over = Detection(AlertKind.MISWIRED, active.subject, now_ns, active.quiet_ns, text, over=True)
                news.append((active.shard, over))
        return news

    def _find_facts(self, now_ns: int) -> None:
        self._facts = {fact.key: fact for fact in (*self._misfits(), *self._contradictions())}
        self._since = {key: self._since.get(key, now_ns) for key in sorted(self._facts)}
        for active in self._active:
            if active.facts & self._facts.keys():
                active.quiet_ns = None
            elif active.quiet_ns is None:
                active.quiet_ns = now_ns

    def _raise(self, ripe: set[str], now_ns: int) -> list[tuple[str, Detection]]:
        """Return detections for facts that have held for long enough (`ripe`), one per cause."""
        reported = {fact for active in self._active for fact in active.facts}
        news: dict[str, _Active] = {}
        for key in sorted(ripe - reported):
            if key in reported:
                continue
            fact = self._facts[key]
            of = next((a for a in self._active if a.items & fact.items and a.shard == fact.shard), None)
            cause = self._same_cause(key, reported)
            reported |= cause
            if of is None:
                subject = min((self._facts[key].subject for key in cause), key=natural)
                of = _Active(subject, fact.shard)
                self._active.append(of)
            of.facts |= cause
            of.items |= {item for key in cause for item in self._facts[key].items}
            of.quiet_ns = None
            news[of.subject] = of
        return [(of.shard, self._detection(of, now_ns)) for of in news.values()]

    def _same_cause(self, key: str, reported: set[str]) -> set[str]:
        """Return a fact and all unreported facts of its cause, including facts that are too recent."""
        cause, items, shard = {key}, set(self._facts[key].items), self._facts[key].shard
        while more := {
            other
            for other, fact in self._facts.items()
            if other not in cause and other not in reported and fact.shard == shard and fact.items & items
        }:
            cause |= more
            items |= {item for other in more for item in self._facts[other].items}
        return cause

    def _detection(self, of: _Active, now_ns: int) -> Detection:
        facts = [self._facts[key] for key in sorted(of.facts) if key in self._facts]
        nics = tuple(dict.fromkeys(sorted((n for fact in facts for n in fact.nics), key=natural)))
        of.nics = tuple(dict.fromkeys((*of.nics, *nics)))
        texts = list(dict.fromkeys(fact.text for fact in facts))
        more = f"; and {len(texts) - 2} more" if len(texts) > 2 else ""
        swapped = f"{nics[0]} and {nics[1]} look swapped: " if len(nics) == 2 and len(texts) >= 2 else ""
        return Detection(
            kind=AlertKind.MISWIRED,
            subject=of.subject,
            at_ns=now_ns,
            since_ns=min(self._since[fact.key] for fact in facts),
            text=f"wired differently from the plan since {SINCE}: {swapped}{'; '.join(texts[:2])}{more}",
            nics=of.nics,
            links=tuple(dict.fromkeys(link for fact in facts for link in fact.links)),
            grouped=tuple(sorted({f.subject for f in facts} - {of.subject}, key=natural)),
            evidence=tuple(f.evidence for f in facts if f.evidence is not None)[:MAX_EVIDENCE],
        )

    def _misfits(self) -> list[_Fact]:
        """Return one fact for each NIC on the leaf of another rail."""
        if all(nic.rail is None for nic in self._nics.values()):
            return []
        leaf_of = self._leaf_of()
        rail_of = {name: nic.rail for name, nic in self._nics.items()}
        misfits = misfits_of(leaf_of, rail_of, self.topology)
        home = self._homes(leaf_of)
        facts = []
        for misfit in misfits:
            shard = self._nics[misfit.nic].shard
            pairs = [
                (pair.at_ns, key) for key, pair in self._pairs.items() if split_pair(key)[0] == misfit.nic
            ]
            text = f"{misfit.nic} of rail {misfit.rail} is on {misfit.leaf}: {misfit.evidence}"
            items = {misfit.nic, _end_item(misfit.nic)}
            if misfit.rail in home:
                items.add(_between(misfit.leaf, home[misfit.rail]))
            evidence = EvidenceRef(PATHS.name, min(pairs)[1], min(pairs)[0], text) if pairs else None
            facts.append(
                _Fact(
                    key=f"rail {misfit.nic} {misfit.leaf}",
                    subject=misfit.nic,
                    text=text,
                    shard=shard,
                    items=frozenset(items),
                    nics=(misfit.nic,),
                    evidence=evidence,
                )
            )
        return facts

    def _leaf_of(self) -> dict[str, str]:
        """Return, by NIC, its leaf: the first switch of most of its paths."""
        groups = Groups()
        groups.add(+self._joins, +self._leaf_names, +self._anycast)
        leaf_of = {}
        for nic, leaves in self._leaves.items():
            ranked_leaves = [(-count, leaf) for leaf, count in leaves.items() if count > 0]
            if ranked_leaves and nic in self._nics:
                leaf_of[nic] = groups.find(leaf_name(min(ranked_leaves)[1], nic))
        return leaf_of

    def _homes(self, leaf_of: Mapping[str, str]) -> dict[int, str]:
        """Return, by rail, the leaf with most of the rail's NICs."""
        leaves: dict[int, Counter[str]] = defaultdict(Counter)
        for nic, leaf in leaf_of.items():
            rail = self._nics[nic].rail
            if rail is not None:
                leaves[rail][leaf] += 1
        return {
            rail: min((-count, leaf) for leaf, count in counts.items())[1] for rail, counts in leaves.items()
        }

    def _contradictions(self) -> list[_Fact]:
        """Return one fact for each contradiction of the topology file."""
        return [self._contradiction(text, keys) for text, keys in sorted(self._contradicting.items()) if keys]

    def _contradiction(self, reported: str, keys: set[str]) -> _Fact:
        at_ns, key = min((self._pairs[key].at_ns, key) for key in keys)
        wired = parse_contradiction(reported)
        nics: tuple[str, ...] = ()
        links: tuple[str, ...] = ()
        if wired is not None:
            end, far, node = wired
            items = {end, far, _between(end_parts(far).node, node)}
            host, device = end_parts(end)
            nics = (f"{host}/{device}",) if f"{host}/{device}" in self._nics else ()
            links = ("<>".join(sorted((end, far))),)
            subject = nics[0] if nics else links[0]
            text = f"the file wires {end} to {far}, and traces have {node} there"
        else:
            nics, subject = (split_pair(key)[0],), split_pair(key)[0]
            items = {UNNAMED if UNNAMED in reported else LISTED}
            text = f"{reported} ({key})"
        items |= {subject, *nics}
        evidence = EvidenceRef(PATHS.name, key, at_ns, f"{text}: {len(keys)} pairs show it")
        shard = self._pairs[key].shard
        return _Fact(f"file {reported}", subject, text, shard, frozenset(items), nics, links, evidence)


def _cables_of(pair: _Pair | None) -> set[str]:
    return set() if pair is None else {cable_id(link) for route in pair.routes for link in route}


def _contradictions_of(record: PathMaps) -> Iterator[str]:
    """Yield the contradictions of the topology file that a record reports, without the number of the link."""
    for path in record["paths"]:
        for part in (path["contradiction"] or "").split("; "):
            if part and (UNNAMED in part or LISTED in part or parse_contradiction(part) is not None):
                yield HOP.sub("", part)


def _findings(pair: _Pair) -> tuple[frozenset[Any], ...]:
    """Return the part of a pair's content on which facts depend."""
    return pair.leaves, *pair.names, pair.contradictions


def parse_contradiction(reported: str) -> tuple[str, str, str] | None:
    """Return (end, planned far end, actual far node) from the text of a contradiction; None if not parsed."""
    for pattern in WIRED:
        match = pattern.search(reported)
        if match is not None:
            return match["end"], match["far"], match["node"]
    return None


def _end_item(nic: str) -> str:
    return end_id(*nic_end(nic))


def _between(a: str, b: str) -> str:
    return " and ".join(sorted((a, b)))
