"""Measures dead links on the testbed with real packets, for each kind of switch answers to traces.

Production agents run on every NIC of 4 hosts, 3 leaves and 2 spines: prober, tracer and link reporter. Their
records go to the detector of link health in this process, without a broker. The links die one by one, alone:
everything sent into a dead link is lost. The testbed's recorder knows the true links of every path.

links.py defines when a link is found and a name is false. Blind forms run a second time with a topology file.
A form's time to its alert ends with the record that raises `UNEXPLAINED_LOSS`.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, get_args

from fabrictime.bench import Figure, Progress, Value
from fabrictime.bench._fabric import CannotRun, require_namespaces
from fabrictime.bench.networks.links import Outcome
from fabrictime.bench.networks.names import CableNames
from fabrictime.testbed.control import Testbed
from fabrictime.testbed.fabric.fabric import FabricError
from fabrictime.testbed.processes.child import run_inside
from fabrictime.testbed.settings import AnswerForm, FabricSettings
from schemas.ids import cable_id, end_parts, natural, nic_id

if TYPE_CHECKING:
    from producers.settings import NicSettings, ProbeSettings
    from schemas.records import LinkEvent, LinkHealth, Nic
    from streams.links.health.shard_health import Change

FORMS: Final[tuple[AnswerForm, ...]] = get_args(AnswerForm)
BLIND: Final[tuple[AnswerForm, ...]] = ("silent", "silent_spines", "tunnel", "flat")
QUICK: Final[tuple[AnswerForm, ...]] = ("loopback", "anycast", "silent_spines")
QUICK_LINKS: Final = 2
HOSTS, LEAVES, SPINES = 4, 3, 2
RATE_PPS: Final = 400.0
RETRACE_S: Final = 5.0
POLL_S: Final = 0.004
FLUSH_S: Final = 0.1
SETTLED_S: Final = 3.0
"""Tracing is complete once no route has changed for this time."""
LEARN_LIMIT_S: Final = 30.0
LEARN_S: Final[dict[AnswerForm, float]] = {"rate_limited": 60.0}
"""Time to learn routes when answers are rate-limited; about two thirds of the paths are known after it."""
OBSERVED_S: Final = 8.0
FOUND_S: Final = 1.0
"""A link that was found is observed this much longer: for false verdicts beside it, and until the search for
losses has run again with more evidence."""
HEALED_S: Final = 1.5
"""How long all must be UP before the next link fails."""
HEAL_LIMIT_S: Final = 20.0
FORM_TIMEOUT_S: Final = 600.0
ADDRESS_PORT: Final = "ip"
"""Port name of an end of which only the address is known."""


class FormOutcome:
    """The results for one kind of switch answers: an outcome for each failed link, and invented names."""

    def __init__(self) -> None:
        self.deaths: dict[str, Outcome] = {}
        self.invented: list[str] = []
        self.complete_share = 0.0
        """Share of the paths whose links are all known."""
        self.alerts_s: list[float] = []
        """Time from the failure to the record of unexplained losses, per link whose failure caused one."""
        self.leaves: set[frozenset[str]] = set()
        """NICs at each leaf, as the agents group them."""
        self.is_blind = False
        """True if blind tracing was reported."""

    @property
    def missed(self) -> list[str]:
        """Names of the failed links that no verdict named."""
        return [link for link, death in self.deaths.items() if not death.named]

    @property
    def false(self) -> list[str]:
        """Invented names, and working links that a verdict named."""
        return [*self.invented, *(name for death in self.deaths.values() for name in death.false)]


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Let every link fail in turn, for each kind of answers; with `quick` two links of three kinds."""
    require_namespaces()
    outcomes: dict[str, FormOutcome] = {}
    absent: list[str] = []
    for form in QUICK if quick else FORMS:
        for with_file in (False, True) if form in BLIND and not quick else (False,):
            key = f"{form}{' with a file' if with_file else ''}"
            work = partial(measure_form, form, with_file=with_file, max_links=QUICK_LINKS if quick else None)
            try:
                outcomes[key] = run_inside(work, FORM_TIMEOUT_S)
            except FabricError as error:
                progress(f"{key}: {error}")
                absent.append(key)
                continue
            progress(f"{key}: {_line(outcomes[key])}")
    return figures_of(outcomes, absent)


def figures_of(outcomes: dict[str, FormOutcome], absent: Sequence[str] = ()) -> dict[str, Value]:
    """Return the figures over all kinds of answers; `absent` has the kinds that this kernel cannot build."""
    if not outcomes:
        raise CannotRun(f"no form could be built, tried {', '.join(absent)}")
    deaths = [death for outcome in outcomes.values() for death in outcome.deaths.values()]
    missed = [f"{key} {link}" for key, outcome in outcomes.items() for link in outcome.missed]
    false = [f"{key}: {name}" for key, outcome in outcomes.items() for name in outcome.false]
    sizes = sorted(death.cables for death in deaths if death.named)
    alerts_s = [took_s for key, outcome in outcomes.items() if key in BLIND for took_s in outcome.alerts_s]
    note = f"{len(deaths)} deaths in {len(outcomes)} forms; missed: {', '.join(missed) or 'none'}"
    if absent:
        note += f"; this kernel lacks parts of {', '.join(absent)}"
    return {
        "dead_link_named_or_in_set": Figure(sum(death.named for death in deaths) / len(deaths), note=note),
        "false_links": Figure(float(len(false)), note="; ".join(false[:3])),
        "dead_link_set_size_p50": Figure(
            float(sizes[len(sizes) // 2]) if sizes else 0.0, note=f"largest {max(sizes, default=0)}"
        ),
        "unexplained_loss_alert_s": Figure(
            max(alerts_s, default=float("nan")), note=f"the slowest of {len(alerts_s)} without a file"
        ),
    }


def measure_form(
    form: AnswerForm,
    *,
    with_file: bool = False,
    max_links: int | None = None,
    learn_s: float | None = None,
) -> FormOutcome:
    """Build a fabric with one kind of answers, inside namespaces; let all or `max_links` links fail."""
    settings = FabricSettings(hosts=HOSTS, leaves=LEAVES, spines=SPINES, answers=form)
    outcome = FormOutcome()
    with TemporaryDirectory() as folder, Testbed(settings) as testbed:
        agents = Agents(testbed, Path(folder), with_file)
        try:
            agents.learn(LEARN_S.get(form) if learn_s is None else learn_s)
            outcome.complete_share = agents.note_names()
            outcome.leaves = agents.leaves()
            links = sorted(testbed.fabric.links, key=natural)
            count = len(links) if max_links is None else max_links
            for link in links[len(links) // (count + 1) :: -(-len(links) // count)] if count else ():
                agents.heal()
                outcome.deaths[link] = _kill(testbed, agents, link, outcome.alerts_s)
            agents.note_names()
            outcome.is_blind = agents.is_blind
            if form != "tunnel":
                outcome.invented = list(agents.names.merged())
        finally:
            agents.close()
    return outcome


def _kill(testbed: Testbed, agents: Agents, link: str, alerts_s: list[float]) -> Outcome:
    """Let one directed link fail; return the verdicts."""
    from schemas.records import HealthKind, LinkState

    outcome, cable, alert_s = Outcome(), cable_id(link), None
    fault = testbed.faults.add(f"blackhole {link}")
    began_s = time.monotonic()
    try:
        for subject, record in agents.run(OBSERVED_S, lambda: outcome.named):
            if record is None or record["state"] == LinkState.UP:
                continue
            took_s = time.monotonic() - began_s
            if record["kind"] == HealthKind.PATHS:
                alert_s = took_s if alert_s is None else alert_s
                stated = agents.names.cables_beside(record["candidates"])
            else:
                stated = agents.names.cables_of([subject, *record["candidates"]])
            if cable in stated:
                outcome.named, outcome.cables = True, len(stated)
                outcome.took_s = outcome.took_s if outcome.took_s is not None else took_s
            elif record["state"] == LinkState.DOWN:
                outcome.false.append(subject)
    finally:
        testbed.faults.clear(fault.fault)
    if alert_s is not None:
        alerts_s.append(alert_s)
    return outcome


def _line(outcome: FormOutcome) -> str:
    named = sum(death.named for death in outcome.deaths.values())
    sizes = [death.cables for death in outcome.deaths.values() if death.named]
    alert = f", slowest alert {max(outcome.alerts_s):.1f} s" if outcome.alerts_s else ""
    false = len(outcome.invented) + sum(len(death.false) for death in outcome.deaths.values())
    return (
        f"{named} of {len(outcome.deaths)} dead links named or in a set of at most {max(sizes, default=0)}, "
        f"{false} false, {100 * outcome.complete_share:.0f} % of paths known{alert}"
    )


class Agents:
    """The agents of all NICs of a testbed, and the detector of link health that takes their records."""

    def __init__(self, testbed: Testbed, folder: Path, with_file: bool) -> None:
        from fabrictime.runtime.fleet import fabric_nics
        from fabrictime.testbed.fabric.topology import topology_file
        from producers.inventory.nics import PeerTable
        from producers.settings import ProbeSettings
        from schemas.topology import Topology
        from streams.links.health.shard_health import ShardHealth
        from streams.runtime.route_table import RouteTable

        self._truth, plan = testbed.truth, testbed.fabric.plan
        self._layer_2 = testbed.fabric.settings.answers == "flat"
        cables = {cable_id(link) for link in testbed.fabric.links}
        self.names = CableNames(cables, _places(testbed))
        for name, link in _pairs_of_addresses(testbed).items():
            self.names.note([name], [link])
        self.book = RouteTable()
        self.health = ShardHealth("fabric")
        self._table = PeerTable(3600)
        self.is_blind = False
        """True if blind tracing was reported."""
        self._not_up: set[str] = set()
        self._changes: list[Change] = []
        self._routes_changed_s = time.monotonic()
        key_file, file = folder / "key", folder / "topology.json"
        key_file.write_bytes(os.urandom(16))
        key_file.chmod(0o600)
        if with_file:
            description = topology_file(plan)
            file.write_text(description.model_dump_json())
            self.health.topology = Topology(description)
        settings = ProbeSettings(
            key_file=key_file,
            topology_file=file if with_file else None,
            rate_pps=RATE_PPS,
            retrace_s=RETRACE_S,
            paths=4,
            flow_pps=0,
            size_pps=0,
            hardware_stamps=False,
        )
        self._agents: list[_Agent] = []
        for nic in fabric_nics(testbed.fabric):
            self._agents.append(_Agent(settings, nic, self._put_route, self._put_event))
        self._announce()
        for agent in self._agents:
            agent.transport.start()
            agent.transport.update_peers(self._table)

    def learn(self, for_s: float | None) -> None:
        """Run for `for_s` or, if None, until traces find no new links."""
        begin_s = time.monotonic()
        while (now_s := time.monotonic()) < begin_s + (for_s or LEARN_LIMIT_S):
            if for_s is None and now_s >= self._routes_changed_s + SETTLED_S:
                return
            self._step()

    def heal(self) -> None:
        """Run until everything is UP."""
        end_s, since_s = time.monotonic() + HEAL_LIMIT_S, time.monotonic()
        while time.monotonic() < min(end_s, since_s + HEALED_S):
            self._step()
            if self._not_up:
                since_s = time.monotonic()

    def run(self, for_s: float, is_found: Callable[[], bool]) -> Iterator[Change]:
        """Advance time by `for_s`, or until shortly after `is_found()`; yield the changes."""
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            yield from self._step()
            if is_found():
                end_s, is_found = time.monotonic() + FOUND_S, lambda: False

    def note_names(self) -> float:
        """Compare the names on all complete paths with the true links; return the share of complete paths."""
        complete, count = 0, 0
        for agent in self._agents:
            port_to = agent.transport.port
            for peer in agent.transport.engine.peers:
                for port in agent.transport.engine.path_ports:
                    here = agent.transport.name
                    for links, ends in (
                        (self.book.forward(here, peer.nic, port), (here, peer.nic, port, port_to)),
                        (self.book.reverse(here, peer.nic, port), (peer.nic, here, port_to, port)),
                    ):
                        count += 1
                        if links:
                            complete += 1
                            true = self._truth.likely_path_of(*ends)
                            self.names.note(links, true, layer_2=self._layer_2)
        return complete / max(1, count)

    def leaves(self) -> set[frozenset[str]]:
        """Return the NICs of each leaf, grouped by the names that agents give switches."""
        from streams.runtime.switch_names import Groups, SwitchNames, leaf_name, names_of

        names, groups, first_hops = SwitchNames(), Groups(), {}
        for nic, peer in self.book.pairs():
            for route in self.book.paths(nic, peer).values():
                names = names.union(names_of(nic, peer, route.links, route.complete))
                if route.links:
                    first_hops[nic] = end_parts(route.links[0].partition(">")[2]).node
        groups.add(*names)
        nics_by_leaf: dict[str, set[str]] = defaultdict(set)
        for nic, node in first_hops.items():
            nics_by_leaf[groups.find(leaf_name(node, nic))].add(nic)
        return {frozenset(nics) for nics in nics_by_leaf.values()}

    def close(self) -> None:
        """Stop the agents."""
        for agent in self._agents:
            agent.close()

    def _step(self) -> list[Change]:
        time.sleep(POLL_S)
        now_s = time.monotonic()
        for agent in self._agents:
            agent.step(now_s)
        if any(agent.has_news for agent in self._agents):
            self._announce()
        self._changes += self.health.evaluate(time.time_ns())
        changes, self._changes = self._changes, []
        for subject, record in changes:
            self._note_state(subject, record)
        return changes

    def _note_state(self, subject: str, record: LinkHealth | None) -> None:
        from schemas.records import HealthKind, LinkState

        if record is None or record["state"] == LinkState.UP:
            self._not_up.discard(subject)
        elif record["kind"] == HealthKind.TRACES:
            self.is_blind = True
        else:
            self._not_up.add(subject)

    def _announce(self) -> None:
        for agent in self._agents:
            self._table.update(agent.transport.name, agent.record(), time.time_ns() // 1_000_000)
        for agent in self._agents:
            alive = self._table.alive("fabric")
            agent.tracer.set_fleet(alive, self._table.fleet_nics)

    def _put_route(self, topic: str, key: str, value: bytes | None) -> None:
        version = self.book.version
        self.book.take(key.encode(), value, append_ns=time.time_ns())
        if self.book.version != version:
            self._routes_changed_s = time.monotonic()

    def _put_event(self, event: LinkEvent) -> None:
        self._changes += self.health.ingest(event, time.time_ns(), self.book)


class _Agent:
    """The prober, tracer and link reporter of one NIC, driven by `step`."""

    def __init__(
        self,
        settings: ProbeSettings,
        nic: NicSettings,
        put_route: Callable[[str, str, bytes | None], None],
        put_event: Callable[[LinkEvent], None],
    ) -> None:
        from producers.ports.link_reporter import LinkReporter
        from producers.probe.udp import UdpTransport
        from producers.trace.probe_routes import ProbeRouteTracer
        from producers.trace.route_tracer import TracedNic

        self.transport = UdpTransport(settings, nic)
        engine = self.transport.engine
        self.tracer = ProbeRouteTracer(
            engine,
            settings,
            TracedNic(self.transport.name, nic.shard, nic.address, put_route),
            self.transport.open_candidates,
        )
        self._wake, self._waker = os.pipe()
        self._reporter = LinkReporter(
            engine, settings, nic, put_event, self._wake, egress=self.transport.network.device
        )
        self._flush_at_s = self._trace_at_s = 0.0

    @property
    def has_news(self) -> bool:
        """Whether the announcement has changed since the last `record`."""
        return self.tracer.announcement_changed

    def record(self) -> Nic:
        """Return the announcement of the NIC."""
        self.tracer.announcement_changed = False
        self.transport.first_hop = self.tracer.first_hop
        return self.transport.record()

    def step(self, now_s: float) -> None:
        """Do all work that is due at `now_s`."""
        self._reporter.wait(0)
        self._reporter.publish()
        if now_s >= self._flush_at_s:
            self._flush_at_s = now_s + FLUSH_S
            self.tracer.observe(self.transport.engine.drain(), now_s)
        if now_s >= self._trace_at_s:
            self._trace_at_s = now_s + self.tracer.tick(now_s)

    def close(self) -> None:
        """Close all parts."""
        self._reporter.close()
        self.tracer.close()
        self.transport.close()
        os.close(self._wake)
        os.close(self._waker)


def _pairs_of_addresses(testbed: Testbed) -> dict[str, str]:
    """Return link names by the address of their port, for addresses of only one port."""
    links = testbed.fabric.links
    count = Counter(near.address for near, _ in links.values())
    return {
        f"{near.address}:{ADDRESS_PORT}>{far.address}:{ADDRESS_PORT}": link
        for link, (near, far) in links.items()
        if count[near.address] == count[far.address] == 1
    }


def _places(testbed: Testbed) -> dict[str, set[str]]:
    """Return the cables of each switch, keyed by its names, its addresses, and its NICs."""
    plan = testbed.fabric.plan
    nodes_at: dict[str, set[str]] = defaultdict(set)
    for node in plan.nodes.values():
        for port in node.ports:
            nodes_at[port.address].add(node.name)
    cables_by_name: dict[str, set[str]] = defaultdict(set)
    for node in plan.nodes.values():
        if node.kind == "host":
            continue
        at = {
            cable_id(link)
            for link, ends in testbed.fabric.links.items()
            if node.name in (ends[0].node, ends[1].node)
        }
        names = {node.name}
        for port in node.ports:
            far = plan.far[node.name, port.name]
            if len(nodes_at[port.address]) == 1:
                names.add(port.address)
            if plan.nodes[far.node].kind == "host":
                names |= {nic_id(far.node, far.name), f"{port.address}@{far.node}.{far.name}"}
        for name in names:
            cables_by_name[name] |= at
    return cables_by_name
