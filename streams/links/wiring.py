"""How the fabric is wired, against how it should be: NICs off their rail, cables that the topology file has
elsewhere.

In: `PathMaps`, `Nic` records and the topology file. Out: `Finding`s of kind MISWIRED, one a cause; how many
cables a switch has; which NICs are on another leaf than their rail's. Two cables that were swapped are one
cause, however many paths tell of them. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from schemas.ids import cable_id, natural
from schemas.topics import PATHS
from schemas.topology import Topology, nic_end, split_end
from streams.alerts.detection import SINCE, Finding, Proof
from streams.runtime.route_table import split_pair
from streams.runtime.thresholds import Thresholds

__all__ = ["Groups", "Misfit", "Wiring", "address_of", "by_name", "is_address", "misfits_of"]

Record = Mapping[str, Any]

S: Final = 1_000_000_000
NEVER: Final = 2**62
JUDGE_NS: Final = S
"""ns of append time between two looks at what changed."""
MAX_PROOFS: Final = 8
WIRED: Final = (
    re.compile(r"is (?P<end>\S+), which the file wires to (?P<far>\S+), and the hop before is (?P<node>\S+)"),
    re.compile(r"is (?P<node>\S+), and the file wires (?P<end>\S+) to (?P<far>\S+)"),
)
"""How producers/trace/route_names.py says that a cable ends elsewhere than the file has it."""
HOP: Final = re.compile(r"^hop \d+ ")
UNNAMED: Final = "which the file does not name"
LISTED: Final = "the file lists another path"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A NIC on a leaf that is not its rail's, and what says so."""

    nic: str
    rail: int
    leaf: str
    evidence: str


class Groups:
    """Which names stand for one switch: what a path comes in by and what it leaves by are one."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the name that stands for the switch that `name` is of."""
        root = name
        while self._of.get(root, root) != root:
            root = self._of[root]
        while name != root:
            self._of[name], name = root, self._of.get(name, name)
        return root

    def join(self, a: str, b: str) -> None:
        """Note that two names are of one switch."""
        first, second = sorted((self.find(a), self.find(b)), key=by_name)
        self._of[second] = first


def misfits_of(
    leaf_of: Mapping[str, str], nics: Mapping[str, Mapping[str, Any]], topology: Topology | None = None
) -> list[Misfit]:
    """Return the NICs whose leaf is not their rail's: as the file says, or since most NICs of that leaf are
    of one other rail. Where leaves take all rails alike, none is."""
    topology = topology if topology is not None else Topology()
    rails: dict[str, Counter[int]] = defaultdict(Counter)
    leaves: dict[int, Counter[str]] = defaultdict(Counter)
    for nic, leaf in leaf_of.items():
        rail = nics.get(nic, {}).get("rail")
        if rail is not None:
            rails[leaf][rail] += 1
            leaves[rail][leaf] += 1
    found = []
    for nic, leaf in sorted(leaf_of.items(), key=lambda item: natural(item[0])):
        rail = nics.get(nic, {}).get("rail")
        if rail is None:
            continue
        entry = topology.nodes.get(leaf)
        of_leaf = rails[leaf]
        usual, count = of_leaf.most_common(1)[0]
        if entry is not None and entry.rail is not None:
            if entry.rail != rail:
                found.append(Misfit(nic, rail, leaf, f"the file says that {leaf} is rail {entry.rail}'s"))
        elif usual != rail and 2 * count > of_leaf.total():
            others = [name for name in leaves[rail] if name != leaf]
            where = (
                f"; its rail's others are on {', '.join(sorted(others, key=natural)[:4])}" if others else ""
            )
            found.append(
                Misfit(nic, rail, leaf, f"{count} of {of_leaf.total()} NICs there are of rail {usual}{where}")
            )
    return found


def address_of(node: str) -> str | None:
    """Return the address that a node is called by; None where it has a name."""
    for text in (node, node.replace("-", ":")):
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            continue
    return None


def is_address(node: str) -> bool:
    """Return whether a node is called by its address."""
    return address_of(node) is not None


def by_name(name: str) -> tuple[int, Any]:
    """Sort names as people do, and addresses behind them by value: a switch is called by a name of its
    own."""
    address = address_of(name)
    if address is None:
        return 0, natural(name)
    found = ipaddress.ip_address(address)
    return 1, [(found.version, int(found), "")]


@dataclass(slots=True)
class _Pair:
    """What a directed pair's record says."""

    shard: str
    at_ns: int
    hops: frozenset[tuple[str, ...]]
    leaves: frozenset[str]
    """First switches of its requests."""
    joins: frozenset[tuple[str, str]]
    """Two names of one switch: what a path comes in by and what it leaves by."""
    said: frozenset[str]


@dataclass(slots=True)
class _Fact:
    """One thing that is wired otherwise. Facts that share an item are of one cause."""

    key: str
    subject: str
    text: str
    shard: str
    items: frozenset[str]
    nics: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    proof: Proof | None = None


@dataclass(slots=True)
class _Standing:
    """A cause that was told. `quiet_ns`: since when none of its facts holds; None: one does."""

    subject: str
    shard: str
    items: set[str] = field(default_factory=set)
    facts: set[str] = field(default_factory=set)
    quiet_ns: int | None = None
    nics: tuple[str, ...] = ()


class Wiring:
    """All that is known of the fabric's cables. `topology` may be set at any time; what it says counts from
    the next record on."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.topology = topology if topology is not None else Topology()
        self._pairs: dict[str, _Pair] = {}
        self._cables: Counter[str] = Counter()
        self._at_node: dict[str, set[str]] = defaultdict(set)
        self._leaves: dict[str, Counter[str]] = defaultdict(Counter)
        self._joins: Counter[tuple[str, str]] = Counter()
        self._said: dict[str, set[str]] = defaultdict(set)
        """What the file says otherwise, to the pairs whose traces say so."""
        self._nics: dict[str, Record] = {}
        self._since: dict[str, int] = {}
        """Fact to when it was seen first."""
        self._facts: dict[str, _Fact] = {}
        self._standing: list[_Standing] = []
        self._dirty = False
        self._judged_ns = -JUDGE_NS

    def cables_at(self, node: str) -> int:
        """Return how many cables a node has, by the paths that are known."""
        return len(self._at_node.get(node, ()))

    def restore(self, shard: str, subject: str, names: Iterable[str], at_ns: int) -> None:
        """Take over a cause that was told; `at_ns`: append time up to which it surely stood."""
        names = tuple(names)
        self._standing.append(
            _Standing(
                subject, shard, {subject, *names}, quiet_ns=at_ns, nics=tuple(n for n in names if "/" in n)
            )
        )

    # ------------------------------------------------------------------------------------ in

    def take_nic(self, key: str, record: Record | None, append_ns: int) -> None:
        """Take one message of the inventory; None: the NIC is gone."""
        known = self._nics.get(key)
        if record is None:
            self._nics.pop(key, None)
        else:
            self._nics[record["nic"]] = {name: record[name] for name in ("rail", "shard")}
        if self._nics.get(key) != known:
            self._touch(append_ns)

    def take_paths(self, key: str, record: Record | None, append_ns: int) -> None:
        """Take one `PathMaps`; None: nobody traces the pair any more."""
        new = None if record is None else self._pair_of(record, append_ns)
        old = self._pairs.pop(key, None)
        if old is not None:
            self._count(key, old, -1)
        if new is not None:
            self._pairs[key] = new
            self._count(key, new, 1)
        if (
            old is None
            or new is None
            or (old.leaves, old.joins, old.said) != (new.leaves, new.joins, new.said)
        ):
            self._touch(append_ns)

    def _touch(self, append_ns: int) -> None:
        if not self._dirty:
            self._dirty = True
            self._judged_ns = max(self._judged_ns, append_ns - append_ns % JUDGE_NS)

    def _pair_of(self, record: Record, append_ns: int) -> _Pair:
        hops, leaves, joins, said = set(), set(), set(), set()
        own = nic_end(record["nic"])
        for path in record["paths"]:
            links = tuple(path["links"])
            hops.add(links)
            for part in (path["contradiction"] or "").split("; "):
                if part and (UNNAMED in part or LISTED in part or _wired(part) is not None):
                    said.add(HOP.sub("", part))
            if not links:
                continue
            ends = [tuple(split_end(end) for end in link.split(">")) for link in links]
            if ends[0][0] == own:
                leaves.add(ends[0][1].node)
            if path["complete"]:
                joins |= {(a[1].node, b[0].node) for a, b in pairwise(ends) if a[1].node != b[0].node}
        return _Pair(
            record["shard"], append_ns, frozenset(hops), frozenset(leaves), frozenset(joins), frozenset(said)
        )

    def _count(self, key: str, pair: _Pair, by: int) -> None:
        for hops in pair.hops:
            for link in hops:
                cable = cable_id(link)
                before = self._cables[cable]
                self._cables[cable] += by
                if not before or not self._cables[cable]:
                    for end in cable.split("<>"):
                        at = self._at_node[end.rpartition(":")[0]]
                        (at.add if by > 0 else at.discard)(cable)
        nic = split_pair(key)[0]
        for leaf in pair.leaves:
            self._leaves[nic][leaf] += by
        for join in pair.joins:
            self._joins[join] += by
        for said in pair.said:
            (self._said[said].add if by > 0 else self._said[said].discard)(key)

    # ------------------------------------------------------------------------------------ out

    def due_ns(self, thresholds: Thresholds) -> int:
        """Return when `judge` has something to do, ns of append time."""
        hold_ns, clear_ns = thresholds.ns("alert_miswired_s"), thresholds.ns("alert_clear_s")
        told = {fact for standing in self._standing for fact in standing.facts}
        ripe = min((at_ns for key, at_ns in self._since.items() if key not in told), default=NEVER)
        quiet = min((s.quiet_ns for s in self._standing if s.quiet_ns is not None), default=NEVER)
        looks = self._judged_ns + JUDGE_NS if self._dirty else NEVER
        return min(looks, ripe + hold_ns, quiet + clear_ns)

    def judge(self, now_ns: int, thresholds: Thresholds) -> list[tuple[str, Finding]]:
        """Return (shard, news) as of `now_ns`, ns of append time."""
        if self._dirty and now_ns >= self._judged_ns + JUDGE_NS:
            self._dirty, self._judged_ns = False, now_ns
            self._facts = {fact.key: fact for fact in (*self._misfits(), *self._contradictions())}
            self._since = {key: self._since.get(key, now_ns) for key in sorted(self._facts)}
            for standing in self._standing:
                if standing.facts & self._facts.keys():
                    standing.quiet_ns = None
                elif standing.quiet_ns is None:
                    standing.quiet_ns = now_ns
        hold_ns, clear_ns = thresholds.ns("alert_miswired_s"), thresholds.ns("alert_clear_s")
        found = self._raised({k for k, at_ns in self._since.items() if now_ns - at_ns >= hold_ns}, now_ns)
        for standing in list(self._standing):
            if standing.quiet_ns is not None and now_ns - standing.quiet_ns >= clear_ns:
                self._standing.remove(standing)
                found.append((standing.shard, Finding(
                    "MISWIRED", standing.subject, now_ns, standing.quiet_ns,
                    "traces contradict it no more", over=True,
                )))  # fmt: skip
        return found

    def _raised(self, ripe: set[str], now_ns: int) -> list[tuple[str, Finding]]:
        """Tell of facts that have stood for long enough: those of a cause together."""
        told = {fact for standing in self._standing for fact in standing.facts}
        news: dict[str, _Standing] = {}
        for key in sorted(ripe - told):
            if key in told:
                continue
            fact = self._facts[key]
            of = next((s for s in self._standing if s.items & fact.items and s.shard == fact.shard), None)
            cause = self._same_cause(key, told)
            told |= cause
            if of is None:
                subject = min((self._facts[each].subject for each in cause), key=natural)
                of = _Standing(subject, fact.shard)
                self._standing.append(of)
            of.facts |= cause
            of.items |= {item for each in cause for item in self._facts[each].items}
            of.quiet_ns = None
            news[of.subject] = of
        return [(of.shard, self._finding(of, now_ns)) for of in news.values()]

    def _same_cause(self, key: str, told: set[str]) -> set[str]:
        """Return a fact and all of its cause that were not told of yet, also what has not stood for long."""
        cause, items, shard = {key}, set(self._facts[key].items), self._facts[key].shard
        while more := {
            other for other, fact in self._facts.items()
            if other not in cause and other not in told and fact.shard == shard and fact.items & items
        }:  # fmt: skip
            cause |= more
            items |= {item for other in more for item in self._facts[other].items}
        return cause

    def _finding(self, of: _Standing, now_ns: int) -> Finding:
        facts = [self._facts[key] for key in sorted(of.facts) if key in self._facts]
        nics = tuple(dict.fromkeys(sorted((n for fact in facts for n in fact.nics), key=natural)))
        of.nics = tuple(dict.fromkeys((*of.nics, *nics)))
        texts = list(dict.fromkeys(fact.text for fact in facts))
        more = f"; and {len(texts) - 2} more" if len(texts) > 2 else ""
        swapped = f"{nics[0]} and {nics[1]} look swapped: " if len(nics) == 2 and len(texts) >= 2 else ""
        return Finding(
            "MISWIRED", of.subject, now_ns, min(self._since[fact.key] for fact in facts),
            f"wired otherwise than it should be since {SINCE}: {swapped}{'; '.join(texts[:2])}{more}",
            nics=of.nics, links=tuple(dict.fromkeys(link for fact in facts for link in fact.links)),
            grouped=tuple(sorted({f.subject for f in facts} - {of.subject}, key=natural)),
            proofs=tuple(fact.proof for fact in facts if fact.proof is not None)[:MAX_PROOFS],
        )  # fmt: skip

    def _misfits(self) -> list[_Fact]:
        """NICs on another leaf than their rail's."""
        if all(nic["rail"] is None for nic in self._nics.values()):
            return []
        groups = Groups()
        for join in sorted(join for join, count in self._joins.items() if count > 0):
            groups.join(*join)
        leaf_of = {}
        for nic, leaves in self._leaves.items():
            seen = [(-count, leaf) for leaf, count in leaves.items() if count > 0]
            if seen and nic in self._nics:
                leaf_of[nic] = groups.find(min(seen)[1])
        found = misfits_of(leaf_of, self._nics, self.topology)
        home = self._homes(leaf_of)
        facts = []
        for misfit in found:
            shard = self._nics[misfit.nic]["shard"]
            pairs = [
                (pair.at_ns, key) for key, pair in self._pairs.items() if split_pair(key)[0] == misfit.nic
            ]
            text = f"{misfit.nic} of rail {misfit.rail} is on {misfit.leaf}: {misfit.evidence}"
            items = {misfit.nic, _end_item(misfit.nic)}
            if misfit.rail in home:
                items.add(_between(misfit.leaf, home[misfit.rail]))
            facts.append(_Fact(
                f"rail {misfit.nic} {misfit.leaf}", misfit.nic, text, shard, frozenset(items), (misfit.nic,),
                (), Proof(PATHS.name, min(pairs)[1], min(pairs)[0], text) if pairs else None,
            ))  # fmt: skip
        return facts

    def _homes(self, leaf_of: Mapping[str, str]) -> dict[int, str]:
        """Return rail to the leaf that most of its NICs are on."""
        leaves: dict[int, Counter[str]] = defaultdict(Counter)
        for nic, leaf in leaf_of.items():
            rail = self._nics[nic]["rail"]
            if rail is not None:
                leaves[rail][leaf] += 1
        return {rail: min((-count, leaf) for leaf, count in each.items())[1] for rail, each in leaves.items()}

    def _contradictions(self) -> list[_Fact]:
        """What the topology file says otherwise."""
        facts = []
        for said, keys in sorted(self._said.items()):
            if not keys:
                continue
            at_ns, key = min((self._pairs[key].at_ns, key) for key in keys)
            shard, wired = self._pairs[key].shard, _wired(said)
            nics: tuple[str, ...] = ()
            links: tuple[str, ...] = ()
            if wired is not None:
                end, far, node = wired
                items = {end, far, _between(far.rpartition(":")[0], node)}
                host, _, device = end.rpartition(":")
                nics = (f"{host}/{device}",) if f"{host}/{device}" in self._nics else ()
                links = ("<>".join(sorted((end, far))),)
                subject = nics[0] if nics else links[0]
                text = f"the file wires {end} to {far}, and traces have {node} there"
            else:
                nics, subject = (split_pair(key)[0],), split_pair(key)[0]
                items = {UNNAMED if UNNAMED in said else LISTED}
                text = f"{said} ({key})"
            items |= {subject, *nics}
            proof = Proof(PATHS.name, key, at_ns, f"{text}: {len(keys)} pairs say so")
            facts.append(_Fact(f"file {said}", subject, text, shard, frozenset(items), nics, links, proof))
        return facts


def _wired(said: str) -> tuple[str, str, str] | None:
    """Return of a contradiction (an end, the end that the file wires it to, the node that is there)."""
    for pattern in WIRED:
        found = pattern.search(said)
        if found is not None:
            return found["end"], found["far"], found["node"]
    return None


def _end_item(nic: str) -> str:
    end = nic_end(nic)
    return f"{end.node}:{end.port}"


def _between(a: str, b: str) -> str:
    return " and ".join(sorted((a, b)))
