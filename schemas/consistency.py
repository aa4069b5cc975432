"""Checks of a record's fields against each other, beyond the limits of single fields.

`codec.decode` applies them to every record, so each reader may rely on them: parts are counted right, columns
are equally long, ids agree with the fields that they are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from schemas.checks import BadRecord

__all__ = ["check_consistency"]

Fields = Mapping[str, Any]


def check_consistency(name: str, record: Fields) -> None:
    """Raise BadRecord if the fields of a decoded record contradict each other."""
    if "parts" in record and record["part"] >= max(1, record["parts"]):
        raise _bad(f"{name}.part", record["part"], f"below {record['parts']} parts")
    check = _CHECKS.get(name)
    if check is not None:
        check(record)


def _check_nic(nic: Fields) -> None:
    _expect_equal("Nic.nic", nic["nic"], f"{nic['host']}/{nic['device']}")
    _expect_equal("Nic.clock", nic["clock"].partition("/")[0], nic["host"])


def _check_link_event(event: Fields) -> None:
    _expect_others("LinkEvent.paths.peer", event["nic"], [path["peer"] for path in event["paths"]])


def _check_path_maps(maps: Fields) -> None:
    _expect_others("PathMaps.peer", maps["nic"], [maps["peer"]])


def _check_flow_routes(routes: Fields) -> None:
    _expect_others("FlowRoutes.peer", routes["nic"], [routes["peer"]])


def _check_delays(delays: Fields) -> None:
    _expect_later("PathDelays.window_end_ns", delays["window_start_ns"], delays["window_end_ns"])
    _expect_others("PathDelays.paths.peer", delays["nic"], [path["peer"] for path in delays["paths"]])
    for path in delays["paths"]:
        for leg in ("forward", "reverse"):
            _expect_lengths(
                f"PathDelays.paths.{leg}_bucket", path[f"{leg}_bucket"], path[f"{leg}_bucket_count"]
            )
        for leg in ("forward", "reverse", "rtt"):
            figures = [path[f"{leg}_{which}_ns"] for which in ("min", "p50", "p99")]
            known = [figure for figure in figures if figure is not None]
            if known != sorted(known):
                raise _bad(f"PathDelays.paths.{leg}", known, "minimum, median and p99 in this order")


def _check_fits(fits: Fields) -> None:
    _expect_later("ClockFits.window_end_ns", fits["window_start_ns"], fits["window_end_ns"])


def _check_offsets(offsets: Fields) -> None:
    _expect_later("ClockOffsets.window_end_ns", offsets["window_start_ns"], offsets["window_end_ns"])


def _check_queues(queues: Fields) -> None:
    for link in queues["links"]:
        _expect_lengths(f"LinkQueues.depth_bytes of {link['link']}", link["slot"], link["depth_bytes"])
        if any(slot >= queues["slots"] for slot in link["slot"]):
            raise _bad("LinkQueues.links.slot", max(link["slot"]), f"below {queues['slots']} slots")


def _check_window(window: Fields) -> None:
    expected = f"{window['shard']}/{window['link']}/{window['opened_ns']}"
    _expect_equal("ContentionWindow.window_id", window["window_id"], expected)


def _check_decision(decision: Fields) -> None:
    expected = f"{decision['shard']}/{decision['epoch']}/{decision['seq']}"
    _expect_equal("Decision.decision_id", decision["decision_id"], expected)


def _check_fallbacks(fallbacks: Fields) -> None:
    for flow in fallbacks["flows"]:
        _expect_lengths("Fallbacks.flows.other_links", flow["other_paths"], flow["other_links"])


def _check_cycles(cycles: Fields) -> None:
    for cycle in cycles["cycles"]:
        _expect_lengths("PolicyCycles.cycles.positions", cycles["inputs"], cycle["positions"])


def _check_schedule(schedule: Fields) -> None:
    _expect_lengths("ProbeSchedule.path", schedule["peer"], schedule["path"])
    if any(peer >= len(schedule["peers"]) for peer in schedule["peer"]):
        raise _bad("ProbeSchedule.peer", max(schedule["peer"]), f"below {len(schedule['peers'])} peers")


_CHECKS: Final[dict[str, Callable[[Fields], None]]] = {
    "ClockFits": _check_fits,
    "ClockOffsets": _check_offsets,
    "ContentionWindow": _check_window,
    "Decision": _check_decision,
    "Fallbacks": _check_fallbacks,
    "FlowRoutes": _check_flow_routes,
    "LinkEvent": _check_link_event,
    "LinkQueues": _check_queues,
    "Nic": _check_nic,
    "PathDelays": _check_delays,
    "PathMaps": _check_path_maps,
    "PolicyCycles": _check_cycles,
    "ProbeSchedule": _check_schedule,
}


def _expect_equal(field: str, found: object, expected: object) -> None:
    if found != expected:
        raise _bad(field, repr(found), repr(expected))


def _expect_others(field: str, nic: str, peers: Sequence[str]) -> None:
    if nic in peers:
        raise _bad(field, repr(nic), "another NIC")


def _expect_later(field: str, begin_ns: int, end_ns: int) -> None:
    if end_ns <= begin_ns:
        raise _bad(field, end_ns, f"later than {begin_ns}")


def _expect_lengths(field: str, column: Sequence[Any], other: Sequence[Any]) -> None:
    if len(column) != len(other):
        raise _bad(field, f"{len(other)} elements", f"{len(column)}")


def _bad(field: str, found: object, expected: str) -> BadRecord:
    return BadRecord("OUT_OF_RANGE", f"{field}: {found!s:.120}, expected {expected:.200}")
