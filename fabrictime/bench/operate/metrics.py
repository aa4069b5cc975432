"""Measures the metrics of a real `up` and of a host's agent: format, number, and alert rules.

promtool checks the format of the scraped text, the rules, and that each alert is raised by its data.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench.operate._up import OPENMETRICS, Up, agent_arguments
from fabrictime.metrics.rules import promtool_tests, rules_file
from fabrictime.metrics.sizing import AGENT_SERVICES, FleetSize, series_of
from schemas.metrics.table import METRICS

FLEET: Final = "sim:8"
NICS: Final = 8


def measure(progress: Progress, quick: bool) -> dict[str, Value]:
    """Scrape a control plane with a simulated fleet and the agent of one host; return the figures."""
    with tempfile.TemporaryDirectory(prefix="ft-metrics-") as folder:
        root = Path(folder)
        progress("starting a control plane")
        with Up(root / "control", "--fleet", FLEET) as control:
            progress("starting the agent of a host")
            agent_folder = root / "agent"
            arguments = agent_arguments(agent_folder, control.addresses["log"], 2 if quick else NICS)
            with Up(agent_folder, *arguments) as agent:
                texts = {"control plane": control.scrape(OPENMETRICS), "agent": agent.scrape(OPENMETRICS)}
                plain = [control.scrape(), agent.scrape()]
        counts = {name: _series(text) for name, text in texts.items()}
        progress(f"series scraped: {counts}")
        bounds = {
            "agent": series_of(AGENT_SERVICES),
            "control plane": FleetSize(1, NICS, 0, embedded=True).series()["of the control plane"],
        }
        undeclared = [metric.name for metric in METRICS if not metric.help or not metric.unit]
        note = {name: f"{counts[name]} scraped; the table allows {bounds[name]}" for name in counts}
        return {
            "metrics_without_help_or_unit": float(sum(map(_incomplete, texts.values())) + len(undeclared)),
            "promtool_errors": _promtool_errors(root, plain, progress),
            "series_per_host_agent": Figure(max(counts["agent"], bounds["agent"]), "series", note["agent"]),
            "series_control_plane": Figure(
                max(counts["control plane"], bounds["control plane"]), "series", note["control plane"]
            ),
        }


def _families(text: str) -> list[Metric]:
    parse: Callable[[str], Iterable[Metric]] = text_string_to_metric_families
    return list(parse(text))


def _series(text: str) -> int:
    return sum(len(family.samples) for family in _families(text))


def _incomplete(text: str) -> int:
    """Return the number of metrics without help text, or without a unit in the table."""
    units = {metric.name.removesuffix("_total"): metric.unit for metric in METRICS}
    return len([f for f in _families(text) if not f.documentation or not units.get(f.name)])


def _promtool_errors(folder: Path, texts: list[str], progress: Progress) -> Value:
    """Return the number of promtool checks that fail."""
    program = shutil.which("promtool")
    if program is None:
        return Missing("promtool is not installed (Debian: apt-get install prometheus)")
    (folder / "rules.yml").write_text(rules_file(), encoding="utf-8")
    (folder / "rules-test.yml").write_text(promtool_tests(), encoding="utf-8")
    runs: list[tuple[tuple[str, ...], str]] = [
        (("check", "rules", "rules.yml"), ""),
        (("test", "rules", "rules-test.yml"), ""),
    ]
    runs += [(("check", "metrics"), text) for text in texts]
    errors = 0
    for arguments, text in runs:
        done = subprocess.run(
            [program, *arguments], cwd=folder, input=text, capture_output=True, text=True, check=False
        )
        if done.returncode:
            errors += 1
            progress(f"promtool {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return float(errors)
