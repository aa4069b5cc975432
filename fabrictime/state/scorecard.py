"""Evaluates a run of `up --for`: services work, probes flow, clocks are SYNCED, history answers.

The result is one JSON-ready dict; its `passed` decides the exit code. On the testbed fabric, offsets are also
compared with the true offsets.
"""

from __future__ import annotations

import json
import statistics
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fabrictime.state.live_figures import RECENT_S, ClockView, NicView, View

PARTS: Final = ("services", "probes", "clocks", "history")
"""Parts of the verdict that must all be well."""
ROWS_WITHIN_S: Final = 10
_HTTP_TIMEOUT_S: Final = 10.0

Reading = Callable[[int], int]
"""A function that returns a clock's reading at a time of the machine's clock, both in ns."""


def true_ns(reading: Reading, clock_ns: int) -> int:
    """Return the machine's time, ns, when a test clock read `clock_ns`. Rates differ by at most 1000 ppm."""
    moment = clock_ns
    for _ in range(4):
        moment += clock_ns - reading(moment)
    return moment


def errors_ns(clocks: Mapping[str, ClockView], readings: Mapping[str, Reading]) -> dict[str, float]:
    """Return, by clock, the error of the published offset at its `at_ns`, ns.

    Fabric time may differ from the machine's clock by a constant, so the median of all errors is subtracted.
    """
    raw = {
        name: float(clock.at_ns - true_ns(readings[name], clock.at_ns) + clock.offset_ns)
        for name, clock in clocks.items()
        if name in readings
    }
    middle = statistics.median(raw.values()) if raw else 0.0
    return {name: error - middle for name, error in raw.items()}


def evaluate(
    view: View,
    nics: Iterable[str],
    now_s: float,
    *,
    readings: Mapping[str, Reading] | None,
    history: Mapping[str, Any] | None,
    web: Mapping[str, Any] | None,
    faults: Mapping[str, str],
) -> dict[str, Any]:
    """Return the scorecard of the run: one entry per check, and whether all `passed`.

    `readings` are the testbed's test clocks by NIC; None if the true time is not known. `history` and `web`
    are None on an agent, which has neither. `faults` holds the reason for each service that does not work.
    """
    with view.lock:
        nic_names = list(nics) or sorted(view.nics)  # no probers of this run: any prober counts
        views = [view.nics[name] for name in nic_names if name in view.nics]
        probes = _probes(views, len(nic_names), now_s, view.rejected)
        clock_of = {name: view.clock_of.get(name, name) for name in nic_names}
        names = set(clock_of.values())
        clocks = {name: clock for name, clock in view.clocks.items() if name in names}
    synced = _synced(clocks, now_s)
    card: dict[str, Any] = {
        "services": {"faults": dict(faults), "ok": not faults},
        "probes": probes,
        "clocks": {
            "synced": len(synced),
            "clocks": len(names),
            "worst_bound_ns": max((clock.bound_ns for clock in synced.values()), default=None),
            "ok": len(synced) == len(names) > 0,
        },
    }
    if history is not None:
        card["history"] = dict(history)
    if readings is not None:
        card["truth"] = _truth(
            synced, {clock_of[name]: readings[name] for name in readings if name in clock_of}
        )
    if web is not None:
        card["web"] = dict(web)
    card["passed"] = all(card[part]["ok"] for part in PARTS if part in card)
    return card


def _probes(views: Sequence[NicView], nics: int, now_s: float, rejected: int) -> dict[str, Any]:
    samples, lost = sum(nic.samples for nic in views), sum(nic.lost for nic in views)
    probing = sum(nic.samples > 0 and now_s - nic.heard_s < RECENT_S for nic in views)
    return {
        "samples": samples,
        "lost": lost,
        "loss_share": lost / max(1, samples + lost),
        "lost_batches": sum(nic.lost_batches for nic in views),
        "rejected_messages": rejected,
        "nics_probing": probing,
        "nics": nics,
        "ok": probing == nics > 0,
    }


def _synced(clocks: Mapping[str, ClockView], now_s: float) -> dict[str, ClockView]:
    fresh = {name: clock for name, clock in clocks.items() if now_s - clock.heard_s < RECENT_S}
    return {name: clock for name, clock in fresh.items() if clock.state == "SYNCED"}


def _truth(synced: Mapping[str, ClockView], readings: Mapping[str, Reading]) -> dict[str, Any]:
    """Return the errors of the SYNCED clocks against their test clocks in the testbed."""
    errors = errors_ns(synced, readings)
    return {
        "within_bound": sum(abs(error) <= synced[name].bound_ns for name, error in errors.items()),
        "clocks": len(errors),
        "worst_error_ns": max(map(abs, errors.values()), default=None),
    }


def ask_history(url: str, user: str, password_file: Path | None) -> dict[str, Any]:
    """Return the number of path-delay rows of the last seconds in the history, with `ok` or `error`."""
    since = f"now64(9) - INTERVAL {ROWS_WITHIN_S} SECOND"
    sql = f"SELECT count() FROM fabrictime.delays WHERE window_start > {since}"
    try:
        headers = {"X-ClickHouse-User": user}
        if password_file is not None:
            headers["X-ClickHouse-Key"] = password_file.read_text(encoding="utf-8").strip()
        rows = int(_get(url, headers, sql.encode()))
    except (OSError, ValueError) as error:
        return {"rows_last_10_s": 0, "ok": False, "error": str(error)}
    return {"rows_last_10_s": rows, "ok": rows > 0}


def ask_web(url: str) -> dict[str, Any]:
    """Fetch the page. The result has `ok`, and `error` if the request failed."""
    try:
        page = _get(url, {})
    except (OSError, ValueError) as error:
        return {"url": url, "ok": False, "error": str(error)}
    return {"url": url, "ok": "fabrictime" in page}


def _get(url: str, headers: Mapping[str, str], body: bytes | None = None) -> str:
    request = urllib.request.Request(url, data=body, headers=dict(headers))  # noqa: S310 - checked as http
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_S) as answer:  # noqa: S310
            return str(answer.read(1 << 20).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        detail = error.read(300).decode("utf-8", "replace").splitlines()
        raise ValueError(f"{url}: HTTP {error.code} {detail[0] if detail else ''}".strip()) from None


def lines(card: Mapping[str, Any]) -> list[str]:
    """Return the scorecard as lines of text."""
    probes, clocks = card["probes"], card["clocks"]
    bound = clocks["worst_bound_ns"]
    checks = [
        (
            probes["ok"],
            f"probes   {probes['samples']:,} samples, {probes['lost']:,} lost "
            f"({probes['loss_share']:.3%}), {probes['nics_probing']} of {probes['nics']} NICs probing",
        ),
        (
            clocks["ok"],
            f"clocks   {clocks['synced']} of {clocks['clocks']} SYNCED"
            + ("" if bound is None else f", worst bound {bound:,.0f} ns"),
        ),
    ]
    if "history" in card:
        history = card["history"]
        text = f"history  {history['rows_last_10_s']:,} rows of the last {ROWS_WITHIN_S} s"
        checks.append((history["ok"], text + (f" ({history['error']})" if "error" in history else "")))
    if "truth" in card:
        truth = card["truth"]
        worst = truth["worst_error_ns"]
        text = f"truth    {truth['within_bound']} of {truth['clocks']} offsets within their bound"
        text += "" if worst is None else f", worst error {worst:,.0f} ns"
        checks.append((truth["within_bound"] == truth["clocks"], text))
    if "web" in card:
        error = card["web"].get("error")
        checks.append((card["web"]["ok"], f"web      {card['web']['url']}{f' ({error})' if error else ''}"))
    checks += [(False, f"service  {name}: {fault}") for name, fault in card["services"]["faults"].items()]
    return [f"{'ok  ' if ok else 'FAIL'}  {text}" for ok, text in checks]


def dumped(card: Mapping[str, Any]) -> str:
    """Return the scorecard as one line of JSON."""
    return json.dumps(card, allow_nan=False)
