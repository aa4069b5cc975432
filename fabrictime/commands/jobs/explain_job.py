"""Explains the speed of a job: verdict, evidence, time by rank, flows; and the differences between two runs.

The command reads `fabric.diagnoses`, and neither the raw operations nor history. It prints text or JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands.jobs import records as job_records
from fabrictime.commands.screen import table_of, terminal
from fabrictime.state import job_story
from fabrictime.state.job_story import SHOWN_FLOWS, SPLITS, Run
from fabrictime.state.labels import arrow
from schemas import codec
from schemas.input_error import InputError
from schemas.kafka.reader import back, since
from schemas.kafka.settings import KafkaSettings
from schemas.units import bps_text, counted, delay_text, number_text, percent_text, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

S: Final = 1_000_000_000
SHOWN_RANKS: Final = 12
SHOWN_SPANS: Final = 8
SHOWN_EVIDENCE: Final = 12
BAR: Final = 40
"""Width of a rank's bar in characters."""
LETTERS: Final = "clgpnf"
"""One letter for each part of the time, so that bars are read without colours."""
_PART_COLOURS: Final = ("green", "cyan", "yellow", "magenta", "red", "blue")
COLOURS: Final = {"HEALTHY": "green", "UNKNOWN": "yellow"}
"""Colours of verdicts; all other verdicts are red."""
STALE_NS: Final = 15 * S
"""Time without a record after which a job has ended or is no longer measured, ns."""


def read(
    cluster: KafkaSettings | str, job: str, since_s: float, registry: codec.Registry | None = None
) -> Run | None:
    """Return the recent records of a job; None if it has none.

    Raises ValueError if the log cannot be read.
    """
    return job_records.run_of(cluster, job, back(since_s), registry)


def between(
    cluster: KafkaSettings | str,
    job: str,
    runs: Sequence[str],
    since_s: float,
    registry: codec.Registry | None = None,
) -> tuple[Run, Run]:
    """Return two runs. Each of `runs` names a job, or is an interval FROM..TO of `job`. Raises ValueError."""
    both = [_run(cluster, job, text, since_s, registry) for text in runs]
    return both[0], both[1]


def _run(
    cluster: KafkaSettings | str, job: str, text: str, since_s: float, registry: codec.Registry | None
) -> Run:
    begin, dots, end = text.partition("..")
    run = None
    if dots:
        from fabrictime.commands.replay.reader import parse_time

        now_s = time.time()
        from_ns, to_ns = parse_time(begin, now_s), parse_time(end, now_s)
        if from_ns >= to_ns:
            raise InputError(f"--between {text}: expected FROM..TO with FROM before TO")
        run = job_records.run_of(
            cluster,
            job,
            since(from_ns),
            registry,
            lambda head: head["end_ns"] > from_ns and head["begin_ns"] < to_ns,
        )
    else:
        run = job_records.run_of(cluster, text, back(since_s), registry)
    if run is None:
        raise InputError(f"--between {text}: no diagnosis of that run is in the log")
    return run


def show(explanation: Mapping[str, Any], drawn: Sequence[RenderableType], *, as_json: bool) -> None:
    """Print an explanation or a comparison: `drawn` by rich, or `explanation` as JSON."""
    if as_json:
        print(json.dumps(explanation, allow_nan=False))
        return
    console = terminal(160)
    for part in drawn:
        console.print(part)


# ---------------------------------------------------------------------------------------------- one job


def draw(explanation: Mapping[str, Any]) -> list[RenderableType]:
    """Return the explanation that `job_story.explain` returns, as rich renderables."""
    from rich.text import Text

    record = explanation["diagnosis"]
    colour = COLOURS.get(record["verdict"], "red")
    parts: list[RenderableType] = [
        Text(_about(record), "bold"),
        Text(f"{_verdict(record)}: {record['text']}", colour),
    ]
    if explanation["age_ns"] > STALE_NS:
        ago = seconds_text(explanation["age_ns"] / S)
        parts.append(Text(f"its last record is {ago} old: it has ended, or is not measured", "yellow"))
    if record["remedy"]:
        parts.append(Text(f"remedy: {record['remedy']}"))
    parts += _evidence(record["evidence"])
    parts += _ranks(record)
    parts += _slowest(record["flows"])
    parts += _others(record)
    parts += _history(explanation["verdicts"])
    return parts


def _about(record: Mapping[str, Any]) -> str:
    rank_count, total = record["ranks_seen"], record["ranks_total"]
    ranks = f"{rank_count:,} of {counted(total, 'rank')}" if total else counted(rank_count, "rank")
    pieces = [f"{ranks} on {counted(record['hosts'], 'host')}"]
    if record["iteration_ns"] is not None:
        good = record["expected_iteration_ns"]
        pieces.append(
            f"an iteration takes {delay_text(record['iteration_ns'])}"
            + (f", baseline {delay_text(good)}" if good is not None else "")
        )
    if record["bus_bps"] is not None:
        good = record["expected_bus_bps"]
        pieces.append(bps_text(record["bus_bps"]) + (f" of {bps_text(good)}" if good is not None else ""))
    tenant = f" of tenant {record['tenant']}" if record["tenant"] else ""
    return f"{record['job']}{tenant}: " + "; ".join(pieces)


def _verdict(record: Mapping[str, Any]) -> str:
    active = seconds_text((record["end_ns"] - record["since_ns"]) / S)
    text = f"{record['verdict']} since {_clock(record['since_ns'])} ({active})"
    text += f", confidence {percent_text(record['confidence'])}"
    if record["loss_share"]:
        text += f", costs {percent_text(record['loss_share'])} of the time"
    if record["verdict"] not in COLOURS:
        text += ", the network is the cause" if record["blames_network"] else ", not the network's fault"
    return text


def _clock(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / S, UTC):%H:%M:%S} UTC"


def _figure(quantity: str, number: float | None) -> str:
    if number is None:
        return "-"
    if quantity.endswith("_ns"):
        return delay_text(number)
    if quantity.endswith("_bps"):
        return bps_text(number)
    if quantity.endswith("_share"):
        return percent_text(number)
    return number_text(number, 6)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    return table_of(titles, rows, wrapped=titles[-1:])


def _evidence(evidence: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    from rich.text import Text

    if not evidence:
        return []
    rows = [
        (
            item["subject"],
            item["quantity"],
            _figure(item["quantity"], item["number"]),
            _figure(item["quantity"], item["expected"]),
            item["topic"].removeprefix("fabric."),
            item["text"],
        )
        for item in evidence[:SHOWN_EVIDENCE]
    ]
    table = _table(("subject", "quantity", "found", "expected", "topic", "evidence"), rows)
    return [Text("\nevidence", "bold"), table]


def _bar(split: Mapping[str, Any], longest_ns: int) -> Any:
    from rich.text import Text

    bar = Text()
    for (name, _), letter, colour in zip(SPLITS, LETTERS, _PART_COLOURS, strict=True):
        bar.append(letter * round(BAR * split[name] / longest_ns), colour)
    return bar


def _ranks(record: Mapping[str, Any]) -> list[RenderableType]:
    """Return a table of ranks with bars: first the ranks that the verdict names, then late ranks."""
    from rich.text import Text

    splits = record["time_splits"]
    if not splits:
        return []
    named = set(record["ranks"])
    ordered = sorted(
        splits, key=lambda split: (split["rank"] not in named, -split["last_arrivals"], split["rank"])
    )
    longest_ns = max(1, *(sum(split[name] for name, _ in SPLITS) for split in splits))
    rows = [
        (
            f"{row['rank']}{'*' if row['rank'] in named else ''}",
            row["nic"] or row["host"],
            f"{row['last_arrivals']:,}",
            _bar(row, longest_ns),
        )
        for row in ordered[:SHOWN_RANKS]
    ]
    table = table_of(("rank", "NIC", "last", "time"), rows)
    legend = ", ".join(
        f"{letter} {title} {percent_text(share)}"
        for letter, (title, share) in zip(LETTERS, _shares(record), strict=True)
    )
    length = delay_text(record["end_ns"] - record["begin_ns"])
    parts: list[RenderableType] = [Text(f"\ntime of the ranks in {length}: {legend}", "bold"), table]
    if len(splits) > SHOWN_RANKS:
        rest_ns = median(split["network_late_ns"] for split in ordered[SHOWN_RANKS:])
        rest = counted(len(splits) - SHOWN_RANKS, "more rank")
        parts.append(Text(f"and {rest}, network {delay_text(rest_ns)} in the median", "dim"))
    return parts


def _shares(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    shares = job_story.shares(record)
    return [(title, shares.get(name, 0.0)) for name, title in SPLITS]


def _slowest(flows: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    from rich.text import Text

    if not flows:
        return []
    slowest = sorted(flows, key=lambda flow: (-(flow["delay_ns"] or 0), -(flow["data_ns"] or 0)))
    rows = [
        (
            f"{flow['nic']} → {flow['peer']}",
            delay_text(flow["delay_ns"]),
            delay_text(flow["data_ns"]),
            bps_text(flow["rate_bps"]),
            ", ".join(map(arrow, flow["links"][1:-1] or flow["links"])),
        )
        for flow in slowest[:SHOWN_FLOWS]
    ]
    table = _table(("pair", "probes", "data", "rate", "over"), rows)
    delays_ns = [flow["delay_ns"] for flow in flows if flow["delay_ns"] is not None]
    median_text = f", {delay_text(median(delays_ns))} in the median" if delays_ns else ""
    return [Text(f"\nslowest of {counted(len(flows), 'pair')} of NICs{median_text}", "bold"), table]


def _others(record: Mapping[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    lines = [
        f"also possible: {alternative['verdict']} ({percent_text(alternative['confidence'])}): "
        f"{alternative['text']}"
        for alternative in record["alternatives"]
    ]
    lines += [f"missing: {name}" for name in record["missing"]]
    return [Text(line, "dim") for line in ("", *lines)] if lines else []


def _history(verdicts: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    from rich.text import Text

    if len(verdicts) < 2:
        return []
    rows = [
        (
            _clock(span["begin_ns"]),
            seconds_text((span["end_ns"] - span["begin_ns"]) / S),
            span["verdict"],
            span["text"],
        )
        for span in reversed(verdicts[-SHOWN_SPANS:])
    ]
    return [Text("\nverdicts, the newest first", "bold"), _table(("from", "for", "verdict", "text"), rows)]


# --------------------------------------------------------------------------------------------- two runs


def draw_comparison(comparison: Mapping[str, Any]) -> list[RenderableType]:
    """Return the comparison that `job_story.compare` returns, as rich renderables."""
    from rich.text import Text

    runs = comparison["runs"]
    rows = [
        (
            f"{number}",
            run["job"],
            _clock(run["begin_ns"]),
            seconds_text((run["end_ns"] - run["begin_ns"]) / S),
            _figure("bus_bps", run["bus_bps"]),
            delay_text(run["iteration_ns"]),
            run["verdict"],
            run["text"],
        )
        for number, run in enumerate(runs, 1)
    ]
    parts: list[RenderableType] = [
        Text(comparison["text"], "bold"),
        _table(("run", "job", "from", "for", "bus bandwidth", "iteration", "verdict", "text"), rows),
    ]
    parts += [
        Text(f"{shift['part']}: {percent_text(shift['slower'])} of the time, {percent_text(shift['faster'])}")
        for shift in comparison["shifts"]
    ]
    slower = runs[comparison["slower"] - 1]
    if slower["remedy"]:
        parts.append(Text(f"remedy: {slower['remedy']}"))
    parts += _evidence(slower["evidence"])
    parts += [Text(f"missing: {name}", "dim") for name in slower["missing"]]
    return parts
