"""Flow probing on a fabric of real packets: each chosen port takes a live flow's route, at the set rate."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from fabrictime.testbed.control import Testbed
from fabrictime.testbed.settings import FabricSettings

pytestmark = pytest.mark.fabric

PORT, PATHS, SPARE = 9319, 2, 3
GAP_MS = 10.0


def test_each_live_flows_route_is_probed_and_a_port_is_added_where_none_takes_it(inside, probers, tmp_path):
    def body() -> Any:
        from fabrictime.testbed.fabric.topology import topology_file
        from native.core.probe import open_socket
        from producers.probe.flow_prober import FlowProber
        from producers.probe.schedule import ScheduleFollower, slot_of
        from producers.settings import ProbeSettings
        from producers.trace.probe_routes import ProbeRouteTracer
        from producers.trace.route_tracer import TracedNic
        from streams.runtime.route_table import RouteTable

        with Testbed(FabricSettings(hosts=4, leaves=2, spines=4)) as testbed:
            fabric, truth = testbed.fabric, testbed.truth
            file = tmp_path / "names.json"
            file.write_text(topology_file(fabric.plan).model_dump_json())
            names = [nic.nic for nic in fabric.nics()]
            hosts = {nic.nic: nic.host for nic in fabric.nics()}
            nic = fabric.nics()[0]
            others = [name for name in names if name != nic.nic]
            fleet = probers(fabric, {nic.nic: others}, rate_pps=100.0, paths=PATHS + SPARE, spare=SPARE)
            settings = ProbeSettings(
                key_file="unused",
                paths=PATHS,
                retrace_s=600,
                rate_pps=100,
                singles=0,
                flow_gap_ms=GAP_MS,
                flow_paths=SPARE,
                flow_pps=2000,
                path_candidates=48,
                topology_file=file,
            )

            def opener(of: Any) -> Any:
                return lambda ports: fabric.open_in(
                    of.host, lambda: [open_socket(of.address, port) for port in ports]
                )

            book = RouteTable()
            watches = {
                each.nic: ProbeRouteTracer(
                    fleet.engines[each.nic],
                    settings,
                    TracedNic(
                        each.nic,
                        "fabric",
                        each.address,
                        lambda topic, key, value: book.take(key.encode(), value),
                    ),
                    open_candidates=opener(each) if each is nic else None,
                )
                for each in fabric.nics()
            }
            engine, watch = fleet.engines[nic.nic], watches[nic.nic]
            prober_of_flows = FlowProber(
                engine, settings, watch, ScheduleFollower(engine, nic.nic, slot_of(settings)), nic.nic
            )

            def meet() -> None:
                records = {
                    each.nic: {
                        "nic": each.nic,
                        "addresses": [each.address],
                        "first_hop": watches[each.nic].first_hop,
                        "path_ports": list(fleet.engines[each.nic].path_ports),
                    }
                    for each in fabric.nics()
                }
                for each in watches.values():
                    each.set_fleet(records)

            # to two peers, by each spine: more ways than the paths' two ports can go
            flows: dict[tuple[str, tuple[str, ...]], int] = {}
            far = [name for name in others if len(truth.likely_path_of(nic.nic, name, 40_000, 5201)) == 4]
            for peer in far:
                for port in range(40_000, 40_100):
                    flows.setdefault((peer, tuple(truth.likely_path_of(nic.nic, peer, port, 5201))), port)

            def report(live: dict[Any, int]) -> dict[str, Any]:
                return {
                    "whole": True,
                    "flows": [
                        {
                            "flow_id": f"f{port}{peer}",
                            "state": "OPEN",
                            "nic": nic.nic,
                            "peer": peer,
                            "source_port": port,
                            "links": list(links),
                            "rate_bps": 1e6,
                        }
                        for (peer, links), port in live.items()
                    ],
                }

            meet()
            batches: list[Any] = []

            def run(until: Any, live: dict[Any, int], limit_s: float = 25.0) -> None:
                began_s, reported_s = time.monotonic(), 0.0
                while not until():
                    now_s = time.monotonic()
                    assert now_s - began_s < limit_s, (prober_of_flows.targets, watch.known_routes())
                    if now_s > reported_s + 0.2:
                        reported_s = now_s
                        prober_of_flows.on_report(nic.host, report(live), 0)
                    prober_of_flows.refresh(now_s)
                    for name, each in watches.items():
                        batch = fleet.engines[name].drain()
                        if each is watch:
                            batches.append(batch)
                        each.tick(now_s)
                    if any(each.announcement_changed for each in watches.values()):
                        for each in watches.values():
                            each.announcement_changed = False
                        meet()
                    time.sleep(0.01)

            run(lambda: len(prober_of_flows.targets.rates_pps()) == len(flows), flows)
            flow_targets = prober_of_flows.targets
            went = {
                (peer, tuple(truth.likely_path_of(nic.nic, peer, port, PORT))): port
                for peer, port in flow_targets.rates_pps()
            }
            mark, began_s = len(batches), time.monotonic()

            def answered() -> bool:
                """Whether all were looked at for a while, and their far ends tell how they answer."""
                return time.monotonic() - began_s > 3 and all(
                    list(book.reverse(nic.nic, peer, port)) == truth.likely_path_of(peer, nic.nic, PORT, port)
                    for peer, port in flow_targets.rates_pps()
                )

            run(answered, flows)
            looked: Counter[tuple[str, int]] = Counter()
            for batch in batches[mark:]:
                for at, (peer, port) in enumerate(zip(batch.peers, batch.path.tolist(), strict=True)):
                    looked[peer, port] += int(batch.start[at + 1] - batch.start[at])
            spare = set(engine.all_ports) - set(engine.path_ports)
            run(lambda: not prober_of_flows.targets.probes, {})
            flow_probes = engine.counters()["flow_probes"]
            sent = engine.counters()["requests_sent"]
            run(lambda: engine.counters()["requests_sent"] > sent + 30, {})
            dropped = engine.counters()["flow_probes"] == flow_probes
            for each in watches.values():
                each.close()
            fleet.close()
            return (
                set(flows),
                went,
                looked,
                spare,
                len(hosts),
                flow_targets.rate_pps,
                flow_targets.pps,
                dropped,
            )

    wanted, went, looked, spare, hosts, rate_pps, pps, dropped = inside(body)
    assert hosts == 4
    assert len(wanted) == 8, "two peers, four spines"
    assert went.keys() == wanted, "each flow's own way, by a port of its own"
    assert set(went.values()) & spare, "two ports go two of four spines"
    assert rate_pps == 100
    assert pps <= 800
    assert all(looked[peer, port] > 30 for (peer, _), port in went.items()), looked
    assert dropped, "when the flows end"
