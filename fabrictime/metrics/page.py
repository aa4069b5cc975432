"""Writes the generated tables of `docs/metrics.md`."""

from __future__ import annotations

from fabrictime.metrics.rules import ALERTS
from schemas.metrics.base import Detail, Metric
from schemas.metrics.table import PARTS

HEAD = "| metric | type | unit | labels | meaning | from |\n|---|---|---|---|---|---|\n"
ALERTS_HEAD = "| alert | condition | for | severity | first step |\n|---|---|---|---|---|\n"
MAX_VALUES = 6
"""Largest number of values of a label that the page lists."""


def metrics_tables() -> str:
    """Return the Markdown tables of all metrics, one for each part of the program."""
    parts = []
    for part, metrics in PARTS.items():
        parts.append(f"\n### {part}\n\n{HEAD}" + "".join(_row(metric) for metric in metrics))
    return "".join(parts) + "\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{name}`{_values(values)}" for name, values in metric.labels)
    meaning = metric.help
    if metric.detail is not Detail.ALWAYS:
        meaning += f" Needs `metrics.{metric.detail}`."
    writers = ", ".join(metric.writers) or "every process"
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {meaning} | {writers} |\n"


def _values(values: tuple[str, ...]) -> str:
    if not any(values):
        return ""
    return f": {', '.join(values)}" if len(values) <= MAX_VALUES else f" ({len(values)} values)"


def alerts_table() -> str:
    """Return the Markdown table of the alert rules."""
    rows = []
    for alert in ALERTS:
        condition = alert.expr.replace("|", "\\|")
        rows.append(
            f"| {alert.name} | `{condition}` | {alert.minutes} min | {alert.severity} | {alert.action} |\n"
        )
    return ALERTS_HEAD + "".join(rows)
