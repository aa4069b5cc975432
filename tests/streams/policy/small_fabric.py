"""A small fabric for policy alone: reported flows, traced routes and two leaves."""

from __future__ import annotations

import functools
from collections import defaultdict

from schemas import codec
from schemas.ids import cable_id
from schemas.topics import CONFIG, DECISIONS, FALLBACKS
from streams.policy.policy import Policy
from streams.runtime.flow_routes import FlowRoute
from streams.runtime.flow_table import LiveFlow
from tests.streams.policy.records import health, window

MS = 1_000_000
S = 1_000 * MS
T = 1_800_000_000 * S
RATE = 10**9
SPINES = 4


@functools.cache
def links_of(nic: str, peer: str, spine: int) -> tuple[str, ...]:
    """Return the links of a path. NICs h1 to h4 are on leaf1, the others on leaf2."""
    a, b = int(nic[1:].split("/")[0]), int(peer[1:].split("/")[0])
    up, down = (1 if n <= 4 else 2 for n in (a, b))
    ends = (f"h{a}:eth1>leaf{up}:p{a}", f"leaf{down}:p{b}>h{b}:eth1")
    if up == down:
        return ends
    return (
        ends[0],
        f"leaf{up}:u{spine}>spine{spine}:p{up}",
        f"spine{spine}:p{down}>leaf{down}:u{spine}",
        ends[1],
    )


FABRIC = sorted(
    {
        link
        for a, b in ((1, 5), (5, 1))
        for s in range(SPINES)
        for link in links_of(f"h{a}/eth1", f"h{b}/eth1", s)[1:3]
    }
)


class World:
    """Reported flows, traced routes and a policy. `obey`: decisions are applied and reported."""

    def __init__(self, count=8, *, routes=True, hops=True, obey=True, job=None, **config):
        self.paths, self.ends, self.rate_bps, self.job, self.rtt_ns = {}, {}, {}, {}, {}
        for n in range(count):
            a, b = 1 + n % 4, 5 + n // 4 % 4
            self.open(*(a, b) if n % 2 else (b, a), f"{n}:1", 100 + n, job)
        self.known, self.hops, self.obey = routes, hops, obey
        self.shift, self.routes = 0, {}
        self.now_ns, self.seq, self.update = T, defaultdict(int), 0
        self.states, self.decisions, self.fallbacks = {}, [], {}
        self.policy = Policy("s0", 1, self, self, lambda link: RATE)
        if config:
            self.configure(**config)

    def open(self, source, peer, number, path, job=None):
        name = f"h{source}/b/qp:eth1:{number}"
        self.paths[name], self.ends[name] = path, (f"h{source}/eth1", f"h{peer}/eth1")
        self.rate_bps[name], self.job[name], self.rtt_ns[name] = 1e8, job, 10_000

    def configure(self, host="*", version=1, **config):
        record = {"host": host, "version": version, "at_ns": 0, "by": "t", "mode": "ACT", **config}
        self.policy.take_config({host: codec.decode(codec.encode(CONFIG.record, record), CONFIG.record)})

    def open_flows(self):
        return [
            LiveFlow(
                name,
                *self.ends[name],
                self.job[name],
                None,
                self.rate_bps[name],
                False,
                False,
                links_of(*self.ends[name], path % SPINES) if self.hops else (),
                path,
                self.rtt_ns[name],
                can=("MOVE",),
            )
            for name, path in sorted(self.paths.items())
        ]

    def of(self, flow):
        if not self.known:
            return {}
        ports = frozenset((*range(100, 108), flow.path))
        key = (flow.nic, flow.peer, self.shift, ports)
        return self.routes.setdefault(
            key,
            {
                path: FlowRoute(links_of(flow.nic, flow.peer, (path + self.shift) % SPINES))
                for path in sorted(ports)
            },
        )

    def health(self, link, state, kind="LINK", **more):
        subject = cable_id(link) if kind == "LINK" else link
        self.seq[subject] += 1
        if kind == "LINK":
            self.states[">".join(reversed(link.split(">")))] = "UP"  # a record covers the whole cable
        self.states[link] = state
        fields = {"subject": subject, "kind": kind, "shard": "s0", "links": [link] if kind == "LINK" else []}
        loss = 0.2 if state == "GREY" else 0.0
        record = health(link, state, self.seq[subject], self.now_ns, loss, **{**fields, **more})
        self.policy.take_health(subject, record)

    def window(self, link, state="OPENED", kind="COLLISION", opened_ns=T):
        self.update += 1
        record = window(link, state, kind, self.update, opened_ns, self.now_ns, shard="s0")
        self.policy.take_contention(record)

    def decide(self, after_ns=10 * MS):
        self.now_ns += after_ns
        found = self.policy.decide(self.now_ns)
        for outgoing in (*found.decisions, *found.fallbacks):
            codec.encode(outgoing.topic.record, outgoing.record)
            if outgoing.topic is FALLBACKS:
                self.fallbacks[outgoing.key] = outgoing.record
                continue
            assert outgoing.topic is DECISIONS
            assert outgoing.key == outgoing.record["host"] == outgoing.record["flow_id"].split("/")[0]
            self.decisions.append(outgoing.record)
            if self.obey:
                self.paths[outgoing.record["flow_id"]] = outgoing.record["to_path"]
        self.suppressed = found.suppressed
        return [outgoing.record for outgoing in found.decisions]

    def crossing(self, link):
        return {
            name for name, path in self.paths.items() if link in links_of(*self.ends[name], path % SPINES)
        }
