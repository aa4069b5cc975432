"""Explains lost time by links: DEAD_LINK, GREY_LINK, FLAPPING_LINK."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from schemas.ids import host_of, reverse_link
from schemas.records import (
    Decision,
    DiagnosisEvidence,
    FlowAction,
    HealthKind,
    LinkHealth,
    LinkState,
    Verdict,
)
from schemas.topics import COLLECTIVES, DECISIONS, DELAYS, FLOWS, LINK_HEALTH
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.network.losses import LossyLink, lossy_links
from streams.diagnosis.network.moved_flows import LinksLeft
from streams.diagnosis.network.traffic import NicPair, keys_of, nics_of
from streams.diagnosis.network.view import OPEN_NS, Episode
from streams.diagnosis.symptoms import Symptom
from streams.runtime.units import NS_PER_S

FLAPS: Final = 3
"""Number of outages within one fault, or of flaps within an hour, that make a link flapping instead of
dead."""
RETURNS: Final = 2
"""Number of outages after which losses in the same fault count as another outage; a single one may leave a
dirty connector."""
FAULT_GAP_NS: Final = 5 * NS_PER_S
"""Longest time between two states of one link that belong to one fault."""
LEFT_STATES: Final = (LinkState.DOWN, LinkState.FLAPPING)
"""States in which routing moves flows."""
LEFT_BEFORE_NS: Final = 5 * NS_PER_S
"""Time before its fault within which flows that left a link count: routing may act before the fault is
known."""
HEAVY_LOSS: Final = 0.005
"""Share of lost packets that stalls a transport: if one of 200 packets is lost, go-back-N repeats a window
for it."""
MIN_RESENT, RESENT_TIMES = 8.0, 4.0
"""Mean number of packets sent again per pair that shows losses, and its least multiple of that elsewhere."""
_VERDICTS: Final = {
    LinkState.DOWN: Verdict.DEAD_LINK,
    LinkState.GREY: Verdict.GREY_LINK,
    LinkState.FLAPPING: Verdict.FLAPPING_LINK,
}
_ESTIMATES: Final = {LinkState.DOWN: 0.6, LinkState.GREY: 0.6, LinkState.FLAPPING: 0.5}
"""Assumed share of the time of moving data that a fault costs if the job's baseline is not known."""
SET_MTU: Final = "set the MTU of all NICs on both ends of {}, and drain it until then"
_REMEDIES: Final = {
    Verdict.DEAD_LINK: "replace the cable or port of {}; flows are to be moved off it until then",
    Verdict.GREY_LINK: "clean or replace the optics of {}, and drain it until then",
    Verdict.FLAPPING_LINK: "drain {}, and replace its cable or optics",
}


def faulty_links(case: Case) -> Iterator[Candidate]:
    """Explain lost time by faulty links that the job's flows cross during the fault."""
    traffic = case.traffic
    subjects = {*traffic.links, *traffic.possible, *traffic.nics, *map(host_of, traffic.nics)}
    moved = _moved_off(case)
    links_left = case.job.moved.links_left(traffic.flows, traffic.routes)
    subjects |= {*moved, *links_left}
    by_subject: dict[str, list[Episode]] = defaultdict(list)
    for episode in case.network.episodes(subjects, case.begin_ns, case.end_ns):
        if episode.record["kind"] != HealthKind.HOST:
            by_subject[episode.record["subject"]].append(episode)
    for subject, episodes in sorted(by_subject.items()):
        fault = _fault_of(case, subject, episodes)
        if fault is not None:
            users = _users_of(case, fault, links_left)
            if users.pairs or subject in moved:
                yield _faulty_link(case, fault, users, moved.get(subject, []))


def links_with_losses(case: Case) -> Iterator[Candidate]:
    """Explain lost time by links and NICs that lose probes of the job, if the links service names none."""
    if not case.is_slow and case.stuck is None:
        return
    for lossy in lossy_links(case.network, case.traffic.nics, case.end_ns):
        pairs, certain = case.traffic.crossing(lossy.links)
        if lossy.nic:
            pairs, certain = [pair for pair in case.traffic.pairs.values() if lossy.nic in pair.key], True
            if not _send_again(case, pairs):
                continue
        if pairs and not case.network.episodes([lossy.cable, lossy.nic], case.begin_ns, case.end_ns):
            yield _link_with_losses(case, lossy, pairs, certain)


def _link_with_losses(case: Case, lossy: LossyLink, pairs: list[NicPair], certain: bool) -> Candidate:
    estimate = _ESTIMATES[LinkState.GREY] * case.network_share * min(1.0, lossy.rate / HEAVY_LOSS)
    since_ns = case.job.causes.began(Verdict.GREY_LINK, lossy.cable, lossy.since_ns)
    others = f" or {' or '.join(lossy.candidates[:3])}" if lossy.candidates else ""
    probes = f"{lossy.lost} of {lossy.requests} probes over it are lost, {lossy.elsewhere:.1%} elsewhere"
    text = (
        f"{lossy.cable}{others} loses {lossy.rate:.1%} of its packets; {pairs[0].name} "
        f"{'crosses' if certain else 'may cross'} it: {probes}"
    )
    return Candidate(
        Verdict.GREY_LINK,
        case.network_loss(since_ns, OPEN_NS, estimate),
        lossy.cable,
        text,
        _REMEDIES[Verdict.GREY_LINK].format(lossy.cable),
        blames_network=True,
        subjects=[lossy.cable, *lossy.links, *lossy.candidates][:64],
        links=list(lossy.links),
        nics=nics_of(pairs)[:64],
        evidence=[
            observation(DELAYS.name, lossy.cable, "loss_rate", lossy.rate, lossy.elsewhere, probes, since_ns),
            _network_share(case),
            *_retransmits(pairs),
        ],
        since_ns=since_ns,
        pairs=keys_of(pairs),
        symptoms={Symptom.CROSSED: certain, Symptom.AMBIGUOUS: bool(lossy.candidates)},
    )


def _send_again(case: Case, pairs: list[NicPair]) -> bool:
    """Return whether flows of these pairs send packets again far more often than the job's other flows."""
    others = [pair for key, pair in case.traffic.pairs.items() if key not in keys_of(pairs)]
    here, elsewhere = (
        sum(case.network.resent.of(pair.key, case.end_ns) for pair in some) / max(1, len(some))
        for some in (pairs, others)
    )
    return here >= max(MIN_RESENT, RESENT_TIMES * elsewhere)


def _network_share(case: Case) -> DiagnosisEvidence:
    share = case.network_share
    text = f"{share:.0%} of the time moves data"
    return observation(COLLECTIVES.name, case.job.job, "network_share", share, None, text)


def _retransmits(pairs: list[NicPair]) -> Iterator[DiagnosisEvidence]:
    resent = sum((flow["retransmits"] or 0) for pair in pairs for flow in pair.flows)
    if resent:
        yield observation(FLOWS.name, pairs[0].name, "retransmits", resent, 0, f"{resent} packets sent again")


def _moved_off(case: Case) -> dict[str, list[Decision]]:
    """Return, by subject, the decisions that moved flows of the job off that subject."""
    by_subject: dict[str, list[Decision]] = defaultdict(list)
    for decision in case.network.decisions(case.begin_ns - int(case.rules.coincide_s * 1e9), case.end_ns):
        if decision["action"] == FlowAction.REROUTE and decision["flow_id"] in case.traffic.flows:
            by_subject[decision["reason"]["subject"]].append(decision)
    return by_subject


class _Fault(NamedTuple):
    """A fault of a link, and the time for which it lasts."""

    verdict: Verdict
    subject: str
    worst: Episode
    begin_ns: int
    end_ns: int
    outages: int


class _Users(NamedTuple):
    """The pairs of a job that cross a faulty link, or whose flows left it."""

    pairs: list[NicPair]
    keys: set[tuple[str, str]]
    """These pairs, and those that share links with the flows that left."""
    certain: bool
    left: bool


def _faulty_link(case: Case, fault: _Fault, users: _Users, moved: list[Decision]) -> Candidate:
    record, subject = fault.worst.record, fault.subject
    stops = bool(users.pairs) and not users.left and _stops(case, fault.worst)
    is_over = users.left and not moved and not _follows(case, fault.verdict, subject)
    estimate = 0.0 if is_over else _estimate(case, record)
    sets_mtu = record["max_packet_bytes"] is not None and fault.verdict == Verdict.GREY_LINK
    return Candidate(
        fault.verdict,
        1.0 if stops else case.network_loss(fault.begin_ns, fault.end_ns, estimate),
        subject,
        _fault_text(fault, users),
        (SET_MTU if sets_mtu else _REMEDIES[fault.verdict]).format(subject),
        blames_network=True,
        decisive=stops,
        subjects=[subject, *record["links"]][:64],
        links=list(record["links"]),
        nics=nics_of(users.pairs)[:64],
        evidence=list(_fault_evidence(case, fault, users.pairs, moved)),
        since_ns=fault.begin_ns,
        pairs=users.keys,
        symptoms={
            Symptom.DECLARED: True,
            Symptom.CROSSED: users.certain and bool(users.pairs),
            Symptom.LINK_LEFT: users.left,
            Symptom.FLOWS_MOVED: bool(moved),
        },
    )


def _fault_of(case: Case, subject: str, episodes: list[Episode]) -> _Fault | None:
    """Return the fault that episodes of a link belong to; None if their state is no fault."""
    worst = max(episodes, key=lambda episode: (episode.record["state"] == LinkState.DOWN, -episode.begin_ns))
    begin_ns = min(episode.begin_ns for episode in episodes)
    lasting = [*episodes, *case.network.leading_to(subject, begin_ns - 1, FAULT_GAP_NS)]
    outages = _outages(lasting)
    is_flapping = any(episode.record["state"] == LinkState.FLAPPING for episode in episodes)
    is_flapping = is_flapping or outages >= FLAPS or worst.record["flaps_hour"] > FLAPS
    verdict = Verdict.FLAPPING_LINK if is_flapping else _VERDICTS.get(worst.record["state"])
    if verdict is None:
        return None
    begin_ns = case.job.causes.began(verdict, subject, min(episode.begin_ns for episode in lasting))
    return _Fault(verdict, subject, worst, begin_ns, max(episode.end_ns for episode in episodes), outages)


def _users_of(case: Case, fault: _Fault, links_left: LinksLeft) -> _Users:
    record, links = fault.worst.record, fault.worst.record["links"]
    pairs, certain = _crossing(case, fault.subject, links, record["kind"] == HealthKind.NIC)
    left: list[str] = []
    if record["state"] in LEFT_STATES:
        left = _left(case, _directed(fault.subject, links), fault.begin_ns, links_left)
    keys = keys_of(pairs) | _beside(case, left)
    return _Users(pairs or _pairs_of(case, left), keys, certain, not pairs and bool(left))


def _fault_text(fault: _Fault, users: _Users) -> str:
    record, pairs = fault.worst.record, users.pairs
    is_counted = fault.verdict == Verdict.FLAPPING_LINK and fault.outages
    text = f"{fault.subject} " + (
        f"went down {fault.outages} times" if is_counted else f"is {record['state']}"
    )
    if record["loss_rate"] is not None:
        text += f", loses {record['loss_rate']:.2%}"
    if record["max_packet_bytes"] is not None:
        text += f", drops packets above {record['max_packet_bytes']:,} bytes"
    crosses = "crossed" if users.left else "crosses" if users.certain else "may cross"
    text += f"; {pairs[0].name if pairs else 'the job'} {crosses} it"
    text += f", {len(pairs) - 1} more pairs too" if len(pairs) > 1 else ""
    return text + ("; their flows take other links now" if users.left else "")


def _fault_evidence(
    case: Case, fault: _Fault, pairs: list[NicPair], moved: list[Decision]
) -> Iterator[DiagnosisEvidence]:
    record, largest = fault.worst.record, fault.worst.record["max_packet_bytes"]
    quantity, number = (
        ("loss_rate", record["loss_rate"]) if largest is None else ("max_packet_bytes", largest)
    )
    expected = 0 if largest is None else None
    text, since_ns = record["text"], record["since_ns"]
    yield observation(LINK_HEALTH.name, fault.subject, quantity, number, expected, text, since_ns)
    yield _network_share(case)
    yield from _retransmits(pairs)
    for move in moved[:2]:
        yield observation(DECISIONS.name, move["flow_id"], "moved", None, None, move["text"], move["at_ns"])


def _estimate(case: Case, record: LinkHealth) -> float:
    """Return the assumed share of the job's time that a fault on a crossed link costs, if not measured."""
    estimate = _ESTIMATES.get(record["state"], 0.5) * case.network_share
    if record["loss_rate"] is not None and record["max_packet_bytes"] is None:
        estimate *= min(1.0, record["loss_rate"] / HEAVY_LOSS)
    return estimate


def _follows(case: Case, verdict: Verdict, subject: str) -> bool:
    """Return whether this was the previous verdict, and the job may still be slow.

    After a restart, the baseline of moving data is unknown, so an excess cannot be measured.
    """
    last = case.job.last
    is_last = last is not None and (last.verdict, last.subject) == (verdict, subject)
    return is_last and (case.is_slow or case.ratio is None)


def _left(case: Case, links: list[str], begin_ns: int, links_left: LinksLeft) -> list[str]:
    """Return the flows that left a link after its fault began, or just before it was detected.

    Routing stops using both directions of a link. A flow that still crosses one direction has not left the
    link.
    """
    both = {*links, *_reversed(links)}
    flows = {
        flow
        for link in both
        for flow, last_ns in links_left.get(link, {}).items()
        if last_ns >= begin_ns - LEFT_BEFORE_NS and both.isdisjoint(case.traffic.routes.get(flow, ()))
    }
    return sorted(flows)


def _pairs_of(case: Case, flows: list[str]) -> list[NicPair]:
    pair_keys = {(case.traffic.flows[name]["nic"], case.traffic.flows[name]["peer"]) for name in flows}
    return [case.traffic.pairs[key] for key in sorted(pair_keys) if key in case.traffic.pairs]


def _beside(case: Case, flows: list[str]) -> set[tuple[str, str]]:
    """Return the pairs of these flows, and the pairs that now share links between switches with them."""
    links = {link for name in flows for link in case.traffic.routes.get(name, ())[1:-1]}
    keys = {key for link in links for key in case.traffic.links.get(link, ())}
    return keys | keys_of(_pairs_of(case, flows))


def _outages(episodes: list[Episode]) -> int:
    """Return how often a link went down within one fault.

    A link that came up twice and then loses packets counts as down once more. An outage that routing
    bypasses, or that ends before it is declared, appears only as a loss rate.
    """
    downs = returns = 0
    up_ns = None
    for episode in sorted(episodes, key=lambda episode: episode.begin_ns):
        is_down = episode.record["state"] == LinkState.DOWN
        downs += is_down
        returns += not is_down and downs >= RETURNS and up_ns is not None and episode.begin_ns > up_ns
        up_ns = episode.end_ns
    return downs + returns


def _stops(case: Case, episode: Episode) -> bool:
    """Return whether an ongoing fault holds up an operation that all ranks began.

    A dead link holds it up at once. A link that loses packets is the cause once the operation stalls: a
    transport that restarts at each lost packet hardly progresses.
    """
    stuck = case.stuck
    if stuck is None or episode.end_ns < stuck.since_ns or (stuck.missing and not stuck.is_circle):
        return False
    loss_rate = episode.record["loss_rate"]
    heavy = episode.record["state"] == LinkState.FLAPPING or (loss_rate or 0.0) >= HEAVY_LOSS
    heavy = heavy or episode.record["max_packet_bytes"] is not None
    return episode.record["state"] == LinkState.DOWN or (stuck.stalls and heavy)


def _crossing(case: Case, subject: str, links: list[str], is_nic: bool) -> tuple[list[NicPair], bool]:
    """Return the pairs that cross a faulty link in the faulty direction, and whether they certainly do."""
    if is_nic:
        pairs = [p for p in case.traffic.pairs.values() if subject in p.key]
        return pairs, True
    directed = _directed(subject, links)
    pairs, certain = case.traffic.crossing(directed)
    if pairs:
        return pairs, certain
    return case.traffic.crossing(_reversed(directed))


def _directed(subject: str, links: list[str]) -> list[str]:
    """Return the faulty directions of a link; both directions if `links` names none."""
    if links or "<>" not in subject:
        return list(links)
    near, far = subject.split("<>", 1)
    return [f"{near}>{far}", f"{far}>{near}"]


def _reversed(links: list[str]) -> list[str]:
    return [reverse_link(link) for link in links if link.count(">") == 1]
