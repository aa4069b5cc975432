"""A fabric of the testbed as its control socket lists it, and flows on it, for the tests of the tour."""

from __future__ import annotations

from typing import Any

from tests.records import make_part


def shown(
    hosts: int = 8, leaves: int = 4, spines: int = 4, *, rate_bps: int = 50_000_000, parallel: int = 1
) -> dict[str, Any]:
    """Return the answer of the control socket to `show`: host h1 and h2 on leaf1, and so on."""
    per_leaf = -(-hosts // leaves)
    nics, links = [], []
    for number in range(hosts):
        host, leaf = f"h{number + 1}", f"leaf{number // per_leaf + 1}"
        port = f"swp{number % per_leaf + 1}"
        nics.append({"nic": f"{host}/eth1", "host": host, "leaf": leaf, "leaf_port": port})
        links += [f"{host}:eth1>{leaf}:{port}", f"{leaf}:{port}>{host}:eth1"]
    for leaf_number in range(1, leaves + 1):
        for spine in range(1, spines + 1):
            one, two = f"leaf{leaf_number}:swp{per_leaf + spine}", f"spine{spine}:swp{leaf_number}"
            links += [f"{one}>{two}", f"{two}>{one}"]
    settings = {
        "spines": spines,
        "host_rate_bps": rate_bps,
        "fabric_rate_bps": rate_bps,
        "links_per_leaf_spine": parallel,
    }
    return {"nics": nics, "links": links, "settings": settings, "faults": []}


def flow(name: str, job: str | None, *links: str, **more: Any) -> Any:
    """Return a flow of a job over some links."""
    return make_part("FlowReports", "Flow", flow_id=name, state="OPEN", job=job, links=list(links), **more)
