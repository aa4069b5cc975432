"""Checks a host's installation: prints a line per check, and a line of advice per fault."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from fabrictime.install.file_checks import file_outcomes, fleet_of, settings_outcomes
from fabrictime.install.host_checks import host_outcomes
from fabrictime.install.outcome import Level, Outcome
from fabrictime.install.service_checks import history_outcomes, kafka_outcomes
from fabrictime.runtime.config import Config
from producers.audit.host.live import LiveHost
from schemas.input_error import InputError

AREAS: Final = ("files", "agent", "host", "nics", "clock", "kafka", "history")
STYLES: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "red", Level.SKIPPED: "dim"}


def outcomes(config: Config) -> Iterator[Outcome]:
    """Yield the outcomes of all checks. If the settings are unusable, only the settings are checked."""
    settings = list(settings_outcomes(config))
    yield from settings
    if any(outcome.level is Level.FAILED for outcome in settings):
        return
    nics, fleet = fleet_of(config)
    yield fleet
    yield from file_outcomes(config)
    netns = next((nic.netns for nic in nics), None)
    host = LiveHost(netns=netns, nics=tuple(nic.device for nic in nics), settings=config.audit)
    yield from host_outcomes(host, nics, config.probes, config.flows)
    yield from kafka_outcomes(config)
    yield from history_outcomes(config)


def main(config: Config, areas: Sequence[str], *, everything: bool, as_json: bool) -> int:
    """Run the checks and return the exit code: 1 if a check failed. Raises ValueError for an unknown area."""
    for area in areas:
        if area not in AREAS:
            raise InputError(f"--only {area}: expected one of {', '.join(AREAS)}")
    results = [outcome for outcome in outcomes(config) if not areas or outcome.area in areas]
    results.sort(key=lambda outcome: AREAS.index(outcome.area))
    code = int(any(outcome.level is Level.FAILED for outcome in results))
    if as_json:
        checks = [outcome._asdict() for outcome in results]
        print(json.dumps({"host": socket.gethostname(), "exit_code": code, "checks": checks}))
    else:
        _show(results, everything=everything)
    return code


def _show(results: Sequence[Outcome], *, everything: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for area, group in groupby(results, key=lambda outcome: outcome.area):
        of_area = list(group)
        console.print(Text.assemble((area, "bold"), "  ", _counts(of_area)))
        for outcome in of_area:
            if not everything and outcome.level in (Level.OK, Level.SKIPPED):
                continue
            label = (f"  {outcome.level} ", STYLES[outcome.level])
            console.print(Text.assemble(label, f"{outcome.check}: {outcome.text}"))
            if outcome.fix:
                console.print(Text(f"    fix: {outcome.fix}", "italic"))
    console.print(_verdict(results), style="bold", markup=False)


def _counts(results: Sequence[Outcome]) -> str:
    counts = {level: sum(outcome.level is level for outcome in results) for level in Level}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


def _verdict(results: Sequence[Outcome]) -> str:
    failed = sum(outcome.level is Level.FAILED for outcome in results)
    warnings = sum(outcome.level is Level.WARNING for outcome in results)
    return f"checks failed: {failed}, warnings: {warnings}"
