"""Computes the optimum of a job on a leaf-spine fabric, and an assignment of spines that reaches it. No I/O.

Inputs are the NIC of each rank, the links' rates and the traffic of each phase. The results are an upper
bound of the goodput and a spine for every connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fabrictime.testbed.jobs.plan import JobPlan

MTU_BYTES: Final = 1500
_IN_MTU_BYTES: Final = 52
"""Bytes of the IP and TCP headers, with timestamps, in a full packet."""
_HEADER_BYTES: Final = 14 + _IN_MTU_BYTES

Flow = tuple[str, str, int]
"""A flow: sending host, receiving host, payload bytes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A leaf-spine fabric: the leaf of each host, the spines, links' rates (0: no limit), and the MTU."""

    leaf_of: dict[str, str]
    spines: int
    host_rate_bps: int
    fabric_rate_bps: int
    mtu_bytes: int = MTU_BYTES


def wire_bytes(payload: int, mtu_bytes: int = MTU_BYTES) -> int:
    """Return the bytes that TBF counts for `payload` bytes on one TCP connection, with headers."""
    return payload + -(-payload // (mtu_bytes - _IN_MTU_BYTES)) * _HEADER_BYTES


# **The bound.** Let an iteration of a job put a_i bytes on the wire out of NIC i and b_i into it, and A_l,
# B_l out of and into leaf l from and to other leaves. NIC links have rate r, links between leaf and spine
# rate c, and there are m spines. For any paths and any order, an iteration takes at least T = max(max_i a_i /
# r, max_i b_i / r, max_l A_l / (m c), max_l B_l / (m c)), because those bytes must cross those links.
# Concurrent jobs share the links: their iterations per second x_j obey sum_j x_j load_j(link) <= rate(link)
# and are max-min fair (all grow together; a job at a full link stops growing). Goodput is x_j times the bytes
# of an iteration. A full packet of 1448 bytes of payload counts as 1514: TBF counts the Ethernet header, not
# the 24 bytes of preamble, checksum and gap. Acknowledgements count on request: 66 bytes each for so many
# packets, on the same NICs in the other direction.
def best_goodputs_bps(
    shape: Shape, jobs: Sequence[Sequence[Flow]], packets_per_ack: int | None = None
) -> list[float]:
    """Return the best goodput (payload of all ranks, bit/s) of each of several jobs that run at once.

    A job is given as the flows of one iteration. Raises ValueError if no link limits a job.
    """
    loads = [_load(shape, flows, packets_per_ack) for flows in jobs]
    left_bps = {link: float(_rate(shape, link)) for load in loads for link in load if _rate(shape, link)}
    speed = [0.0] * len(jobs)  # iterations a second
    growing = set(range(len(jobs)))
    while growing:
        # All growing jobs take equal shares of the rest, in units of their own optimum.
        alone = {j: _alone(shape, loads[j]) for j in growing}
        step, full = _fill(shape, left_bps, loads, alone)
        for j, rate in alone.items():
            speed[j] += step * rate
        growing = {j for j in growing if not full & loads[j].keys()}
    return [rate * 8 * sum(size for _, _, size in flows) for rate, flows in zip(speed, jobs, strict=True)]


def _fill(
    shape: Shape,
    left_bps: dict[tuple[str, str], float],
    loads: Sequence[Mapping[tuple[str, str], float]],
    speed: Mapping[int, float],
) -> tuple[float, set[tuple[str, str]]]:
    """Increase the speed of all jobs by the largest step that the links allow; return (step, full links).

    `speed` has each job's iterations per second per unit of the step. The step reduces `left_bps`.
    """
    used = {link: sum(rate * loads[j].get(link, 0) for j, rate in speed.items()) for link in left_bps}
    step = min(left_bps[link] / bits for link, bits in used.items() if bits > 0)
    for link, bits in used.items():
        left_bps[link] -= step * bits
    return step, {link for link, left in left_bps.items() if left <= 1e-9 * _rate(shape, link)}


def _alone(shape: Shape, load: Mapping[tuple[str, str], float]) -> float:
    """Return the iterations per second of a job that runs alone on the fabric."""
    limited = {link: bits for link, bits in load.items() if _rate(shape, link)}
    if not limited:
        raise ValueError("a job that no link limits: expected a rate of hosts or of the fabric")
    return min(_rate(shape, link) / bits for link, bits in limited.items())


# **It is reached** if the phases of an iteration have equal loads and each phase can be spread. Take one
# phase's connections between leaves as edges of a bipartite multigraph, from sending to receiving leaves. By
# Koenig's theorem the edges of such a graph of degree D have a colouring with D colours in which no two
# adjacent edges share one; with m colours (de Werra, 1971) each colour gets d / m of a vertex's d edges,
# rounded down or up. Colours are spines: with connections of equal size no link between leaf and spine
# carries more than its share, rounded up to a whole connection. If D is a multiple of m, that is the bound
# itself: on 8 hosts, 2 leaves and 4 spines, a phase of 4 connections per pair sends 16 out of each leaf, 4
# over each spine, as much as 4 NICs send. The algorithm splits every vertex into vertices of degree m at most
# (its edges in order, m each) and colours that graph with m colours, edge by edge, exchanging two colours
# along a path where needed. Each part has every colour at most once, so the vertex has it at most ceil(d / m)
# times.
def spread(shape: Shape, flows: Sequence[tuple[str, str]]) -> list[int | None]:
    """Return the spine (from 0) of each (sending host, receiving host) of one phase; None within a leaf.

    No link gets more than its share of the flows, rounded up.
    """
    far = [at for at, (source, peer) in enumerate(flows) if shape.leaf_of[source] != shape.leaf_of[peer]]
    count_by_end: dict[tuple[str, str], int] = {}
    ends: list[tuple[tuple[str, str, int], tuple[str, str, int]]] = []
    for at in far:
        pieces = []
        for side, host in zip(("out", "in"), flows[at], strict=True):
            vertex = side, shape.leaf_of[host]
            count_by_end[vertex] = count_by_end.get(vertex, -1) + 1
            pieces.append((*vertex, count_by_end[vertex] // shape.spines))
        ends.append((pieces[0], pieces[1]))
    colours = _colour(ends, shape.spines)
    spine_of_flow: list[int | None] = [None] * len(flows)
    for at, colour in zip(far, colours, strict=True):
        spine_of_flow[at] = colour
    return spine_of_flow


def link_loads(
    shape: Shape, flows: Sequence[tuple[str, str]], spines: Sequence[int | None]
) -> dict[tuple[str, str, int], int]:
    """Return the number of flows over each link between leaf and spine, by ("out" or "in", leaf, spine)."""
    flows_of_link: dict[tuple[str, str, int], int] = {}
    for (source, peer), spine in zip(flows, spines, strict=True):
        if spine is not None:
            for side, host in (("out", source), ("in", peer)):
                link = side, shape.leaf_of[host], spine
                flows_of_link[link] = flows_of_link.get(link, 0) + 1
    return flows_of_link


def shape_of(
    leaf_of: dict[str, str],
    spines: int,
    host_rate_bps: int,
    fabric_rate_bps: int,
    mtu_bytes: int = MTU_BYTES,
) -> Shape:
    """Return the `Shape` of a fabric with these values. Raises ValueError if there is no spine or host."""
    if spines < 1 or not leaf_of:
        raise ValueError(f"{len(leaf_of)} hosts, {spines} spines: expected one of each at least")
    return Shape(dict(leaf_of), spines, host_rate_bps, fabric_rate_bps, mtu_bytes)


def choose_ports(
    shape: Shape,
    plan: JobPlan,
    hosts: Sequence[str],
    spine_of: Callable[[str, str, int], int | None],
    candidates: Iterable[int],
) -> list[int]:
    """Return a source port for each connection of the plan, so that each phase is spread as `spread` assigns.

    `hosts[rank]` is a rank's host, and `spine_of(source, peer, port)` the spine that the port selects.
    Connections of one pair get different ports. Raises ValueError if no candidate selects a needed spine.
    """
    ports: dict[int, int] = {}
    candidate_ports = list(candidates)
    used: set[tuple[str, str, int]] = set()
    for phase in range(len(plan.parts[0])):
        streams = [stream for rank in plan.parts for stream, _ in rank[phase]]
        pairs = [(hosts[plan.ends[s][0]], hosts[plan.ends[s][1]]) for s in streams]
        for stream, (source, peer), spine in zip(streams, pairs, spread(shape, pairs), strict=True):
            if stream in ports:
                continue
            for port in candidate_ports:
                if (source, peer, port) not in used and (
                    spine is None or spine_of(source, peer, port) == spine
                ):
                    used.add((source, peer, port))
                    ports[stream] = port
                    break
            else:
                raise ValueError(
                    f"{source} to {peer}: no candidate of {len(candidate_ports)} leads over spine {spine}"
                )
    return [ports.get(route.stream, 0) for route in plan.routes]


def _load(shape: Shape, flows: Sequence[Flow], packets_per_ack: int | None) -> dict[tuple[str, str], float]:
    """Return the bits per iteration over each NIC, and over all spine links of each leaf together."""
    load: dict[tuple[str, str], float] = {}

    def put(source: str, peer: str, size: float) -> None:
        links = [("nic out", source), ("nic in", peer)]
        if shape.leaf_of[source] != shape.leaf_of[peer]:
            links += [("leaf out", shape.leaf_of[source]), ("leaf in", shape.leaf_of[peer])]
        for link in links:
            load[link] = load.get(link, 0.0) + size * 8

    for source, peer, payload in flows:
        put(source, peer, wire_bytes(payload, shape.mtu_bytes))
        if packets_per_ack is not None:
            packets = payload / (shape.mtu_bytes - _IN_MTU_BYTES)
            put(peer, source, packets / packets_per_ack * _HEADER_BYTES)
    return load


def _rate(shape: Shape, link: tuple[str, str]) -> int:
    return shape.host_rate_bps if link[0].startswith("nic") else shape.spines * shape.fabric_rate_bps


def _colour(edges: Sequence[tuple[tuple[str, str, int], tuple[str, str, int]]], colours: int) -> list[int]:
    """Colour the edges of a bipartite graph so that edges with a common vertex differ; return the colours.

    No vertex may have more edges than there are colours.
    """
    at: dict[tuple[str, str, int], dict[int, int]] = {}  # vertex -> colour -> edge
    colour_of = [-1] * len(edges)

    def free(vertex: tuple[str, str, int]) -> int:
        used_colours = at.setdefault(vertex, {})
        return next(colour for colour in range(colours) if colour not in used_colours)

    for number, (one, other) in enumerate(edges):
        a, b = free(one), free(other)
        if a != b:
            # b may be taken at `one`: exchange a and b along the path that begins there. It cannot end at
            # `other`, since the graph is bipartite and a is taken there or the path would arrive by b.
            path = []
            vertex, want = one, b
            while (edge := at.get(vertex, {}).get(want)) is not None:
                path.append(edge)
                vertex = edges[edge][0] if edges[edge][1] == vertex else edges[edge][1]
                want = a if want == b else b
            for edge in path:
                for end in edges[edge]:
                    if at[end].get(colour_of[edge]) == edge:
                        del at[end][colour_of[edge]]
            for edge in path:
                colour_of[edge] = a if colour_of[edge] == b else b
                for end in edges[edge]:
                    at[end][colour_of[edge]] = edge
        colour_of[number] = b
        at.setdefault(one, {})[b] = number
        at.setdefault(other, {})[b] = number
    return colour_of
