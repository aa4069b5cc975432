"""Lists the jobs that published collectives, each with its present verdict, from `fabric.diagnoses`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fabrictime.commands.jobs.explain_job import COLOURS, STALE_NS
from fabrictime.commands.jobs.records import newest_of_jobs
from fabrictime.commands.screen import table_of, terminal
from fabrictime.state.simulated_time_reader import fabric_now_ns
from schemas import codec
from schemas.kafka.settings import KafkaSettings
from schemas.units import bps_text, delay_text, seconds_text

S: Final = 1_000_000_000
FIELDS: Final = (
    "job",
    "tenant",
    "verdict",
    "since_ns",
    "end_ns",
    "confidence",
    "blames_network",
    "loss_share",
    "text",
    "remedy",
    "ranks_seen",
    "ranks_total",
    "hosts",
    "bus_bps",
    "expected_bus_bps",
    "iteration_ns",
    "expected_iteration_ns",
)
"""Fields of a diagnosis that the JSON output contains."""


def rows_of(
    newest: Mapping[str, Mapping[str, Any]], now_ns: int, *, everything: bool
) -> list[dict[str, Any]]:
    """Return a row for each running job, or with `everything` for each job.

    Running jobs come first, and among them the unhealthy jobs.
    """
    rows = [
        {name: head[name] for name in FIELDS} | {"runs": now_ns - head["end_ns"] <= STALE_NS}
        for head in newest.values()
    ]
    rows.sort(key=lambda row: (not row["runs"], row["verdict"] in COLOURS, -row["loss_share"], row["job"]))
    return [row for row in rows if everything or row["runs"]]


def wrong(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each running job whose verdict is not HEALTHY."""
    return [
        f"job {row['job']}: {row['verdict']}: {row['text']}"
        for row in rows
        if row["runs"] and row["verdict"] != "HEALTHY"
    ]


def main(
    cluster: KafkaSettings | str,
    since_s: float,
    *,
    everything: bool,
    as_json: bool,
    registry: codec.Registry | None = None,
) -> list[str]:
    """Print the jobs; return the lines of `wrong`. Raises ValueError if the log cannot be read."""
    newest = newest_of_jobs(cluster, since_s, registry)
    now_ns = fabric_now_ns(cluster, registry)
    rows = rows_of(newest, now_ns, everything=everything)
    if as_json:
        print(json.dumps(rows, allow_nan=False))
    elif not rows:
        ended = f"; {len(newest):,} ended, --all lists them" if newest else ""
        print(f"no job published collectives within {seconds_text(since_s)}{ended}")
    else:
        _print(rows)
    return wrong(rows)


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.text import Text

    titles = ("job", "verdict", "for", "ranks", "bus bandwidth", "iteration", "explanation")
    cells = [
        (
            row["job"],
            Text(row["verdict"] if row["runs"] else "ended", COLOURS.get(row["verdict"], "red")),
            seconds_text((row["end_ns"] - row["since_ns"]) / S),
            f"{row['ranks_seen']:,} / {row['ranks_total'] or '?'}",
            "-" if row["bus_bps"] is None else bps_text(row["bus_bps"]),
            delay_text(row["iteration_ns"]),
            row["text"],
        )
        for row in rows
    ]
    terminal(160).print(table_of(titles, cells, wrapped=("explanation",)))
