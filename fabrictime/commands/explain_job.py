"""Explains the speed of a job: verdict, evidence, time by rank, flows; and how two runs differ.

The command reads `fabric.diagnoses`, and neither the raw operations nor history. It prints text or JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from fabrictime.commands import job_records
from fabrictime.state import job_story
from fabrictime.state.job_story import SHOWN_FLOWS, SPLITS, Run
from fabrictime.state.labels import arrow
from fabrictime.state.units import bps_text, counted, delay_text, percent_text, seconds_text
from schemas import codec
from schemas.kafka.reader import back, since
from schemas.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["COLOURS", "between", "draw", "draw_comparison", "read", "show"]

S: Final = 1_000_000_000
SHOWN_RANKS: Final = 12
SHOWN_SPANS: Final = 8
SHOWN_EVIDENCE: Final = 12
BAR: Final = 40
"""Characters of a rank's bar."""
LETTERS: Final = "clgpnf"
"""One letter for each part of the time, so that bars are read without colours."""
_PART_COLOURS: Final = ("green", "cyan", "yellow", "magenta", "red", "blue")
COLOURS: Final = {"HEALTHY": "green", "UNKNOWN": "yellow"}
"""Colours of verdicts; the others are red."""
STALE_NS: Final = 15 * S
"""A job without a record for this long has ended, or is not measured any more."""


def read(
    cluster: KafkaSettings | str, job: str, since_s: float, registry: codec.Registry | None = None
) -> Run | None:
    """Return the recent records of a job; None if it published none. Raises ValueError."""
    return job_records.run_of(cluster, job, back(since_s), registry)


def between(
    cluster: KafkaSettings | str,
    job: str,
    runs: Sequence[str],
    since_s: float,
    registry: codec.Registry | None = None,
) -> tuple[Run, Run]:
    """Return two runs. Each is the name of a job, or an interval of `job` as FROM..TO.

    Raises ValueError if one of them has no records.
    """
    found = [_run(cluster, job, text, since_s, registry) for text in runs]
    return found[0], found[1]


def _run(
    cluster: KafkaSettings | str, job: str, text: str, since_s: float, registry: codec.Registry | None
) -> Run:
    begin, dots, end = text.partition("..")
    run = None
    if dots:
        from fabrictime.commands.replay_reader import parse_time

        now_s = time.time()
        from_ns, to_ns = parse_time(begin, now_s), parse_time(end, now_s)
        if from_ns >= to_ns:
            raise ValueError(f"--between {text}: expected FROM..TO with FROM before TO")
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
        raise ValueError(f"--between {text}: no diagnosis of that run is in the log")
    return run


def show(found: Mapping[str, Any], drawn: Sequence[RenderableType], *, as_json: bool) -> None:
    """Print an explanation or a comparison."""
    if as_json:
        print(json.dumps(found, allow_nan=False))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    for each in drawn:
        console.print(each, highlight=False)


# ---------------------------------------------------------------------------------------------- one job


def draw(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return the explanation of `job_story.explain` for rich."""
    from rich.text import Text

    record = found["diagnosis"]
    colour = COLOURS.get(record["verdict"], "red")
    parts: list[RenderableType] = [
        Text(_about(record), "bold"),
        Text(f"{_verdict(record)}: {record['text']}", colour),
    ]
    if found["age_ns"] > STALE_NS:
        ago = seconds_text(found["age_ns"] / S)
        parts.append(Text(f"its last record is {ago} old: it has ended, or is not measured", "yellow"))
    if record["remedy"]:
        parts.append(Text(f"remedy: {record['remedy']}"))
    parts += _evidence(record["evidence"])
    parts += _ranks(record)
    parts += _slowest(record["flows"])
    parts += _others(record)
    parts += _history(found["verdicts"])
    return parts


def _about(record: Mapping[str, Any]) -> str:
    seen, total = record["ranks_seen"], record["ranks_total"]
    ranks = f"{seen:,} of {counted(total, 'rank')}" if total else counted(seen, "rank")
    pieces = [f"{ranks} on {counted(record['hosts'], 'host')}"]
    if record["iteration_ns"] is not None:
        good = record["expected_iteration_ns"]
        pieces.append(
            f"an iteration takes {delay_text(record['iteration_ns'])}"
            + (f", in good time {delay_text(good)}" if good is not None else "")
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
    return f"{number:,.6g}"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=title != titles[-1])
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _evidence(evidence: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    from rich.text import Text

    if not evidence:
        return []
    rows = [
        (
            each["subject"],
            each["quantity"],
            _figure(each["quantity"], each["number"]),
            _figure(each["quantity"], each["expected"]),
            each["topic"].removeprefix("fabric."),
            each["text"],
        )
        for each in evidence[:SHOWN_EVIDENCE]
    ]
    table = _table(("subject", "quantity", "found", "expected", "topic", "evidence"), rows)
    return [Text("\nevidence", "bold"), table]


def _bar(each: Mapping[str, Any], longest_ns: int) -> Any:
    from rich.text import Text

    bar = Text()
    for (name, _), letter, colour in zip(SPLITS, LETTERS, _PART_COLOURS, strict=True):
        bar.append(letter * round(BAR * each[name] / longest_ns), colour)
    return bar


def _ranks(record: Mapping[str, Any]) -> list[RenderableType]:
    """Return the ranks that the verdict names, then those that arrive last most often, with their bars."""
    from rich.table import Table
    from rich.text import Text

    splits = record["time_splits"]
    if not splits:
        return []
    named = set(record["ranks"])
    chosen = sorted(
        splits, key=lambda each: (each["rank"] not in named, -each["last_arrivals"], each["rank"])
    )
    longest_ns = max(1, *(sum(each[name] for name, _ in SPLITS) for each in splits))
    table = Table(box=None, pad_edge=False)
    for title in ("rank", "NIC", "last", "time"):
        table.add_column(title, no_wrap=True)
    for each in chosen[:SHOWN_RANKS]:
        mark = "*" if each["rank"] in named else ""
        place = each["nic"] or each["host"]
        table.add_row(
            f"{each['rank']}{mark}", Text(place), f"{each['last_arrivals']:,}", _bar(each, longest_ns)
        )
    legend = ", ".join(
        f"{letter} {title} {percent_text(share)}"
        for letter, (title, share) in zip(LETTERS, _shares(record), strict=True)
    )
    length = delay_text(record["end_ns"] - record["begin_ns"])
    parts: list[RenderableType] = [Text(f"\ntime of the ranks in {length}: {legend}", "bold"), table]
    if len(splits) > SHOWN_RANKS:
        rest_ns = median(each["network_late_ns"] for each in chosen[SHOWN_RANKS:])
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
    slowest = sorted(flows, key=lambda each: (-(each["delay_ns"] or 0), -(each["data_ns"] or 0)))
    rows = [
        (
            f"{each['nic']} → {each['peer']}",
            delay_text(each["delay_ns"]),
            delay_text(each["data_ns"]),
            bps_text(each["rate_bps"]),
            ", ".join(map(arrow, each["links"][1:-1] or each["links"])),
        )
        for each in slowest[:SHOWN_FLOWS]
    ]
    table = _table(("pair", "probes", "data", "rate", "over"), rows)
    known = [each["delay_ns"] for each in flows if each["delay_ns"] is not None]
    usual = f", {delay_text(median(known))} in the median" if known else ""
    return [Text(f"\nslowest of {counted(len(flows), 'pair')} of NICs{usual}", "bold"), table]


def _others(record: Mapping[str, Any]) -> list[RenderableType]:
    from rich.text import Text

    lines = [
        f"also possible: {each['verdict']} ({percent_text(each['confidence'])}): {each['text']}"
        for each in record["alternatives"]
    ]
    lines += [f"missing: {each}" for each in record["missing"]]
    return [Text(line, "dim") for line in ("", *lines)] if lines else []


def _history(verdicts: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    from rich.text import Text

    if len(verdicts) < 2:
        return []
    rows = [
        (
            _clock(each["begin_ns"]),
            seconds_text((each["end_ns"] - each["begin_ns"]) / S),
            each["verdict"],
            each["text"],
        )
        for each in reversed(verdicts[-SHOWN_SPANS:])
    ]
    return [Text("\nverdicts, the newest first", "bold"), _table(("from", "for", "verdict", "text"), rows)]


# --------------------------------------------------------------------------------------------- two runs


def draw_comparison(found: Mapping[str, Any]) -> list[RenderableType]:
    """Return the comparison of `job_story.compare` for rich."""
    from rich.text import Text

    runs = found["runs"]
    rows = [
        (
            f"{number}",
            each["job"],
            _clock(each["begin_ns"]),
            seconds_text((each["end_ns"] - each["begin_ns"]) / S),
            _figure("bus_bps", each["bus_bps"]),
            delay_text(each["iteration_ns"]),
            each["verdict"],
            each["text"],
        )
        for number, each in enumerate(runs, 1)
    ]
    parts: list[RenderableType] = [
        Text(found["text"], "bold"),
        _table(("run", "job", "from", "for", "bus bandwidth", "iteration", "verdict", "text"), rows),
    ]
    parts += [
        Text(f"{each['part']}: {percent_text(each['slower'])} of the time, {percent_text(each['faster'])}")
        for each in found["shifts"]
    ]
    slower = runs[found["slower"] - 1]
    if slower["remedy"]:
        parts.append(Text(f"remedy: {slower['remedy']}"))
    parts += _evidence(slower["evidence"])
    parts += [Text(f"missing: {each}", "dim") for each in slower["missing"]]
    return parts
