"""Formats the verdict about a folder as JSON and as a short text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fabrictime.postmortem import communicators
from fabrictime.postmortem.base import Explanation
from fabrictime.postmortem.folder import FORMATS, Reading, read_folder
from fabrictime.postmortem.network import NetworkReport
from fabrictime.postmortem.network import as_json as network_json
from fabrictime.postmortem.network import lines as network_lines
from fabrictime.postmortem.transport import nics_of_ranks
from fabrictime.postmortem.verdict import MAX_NAMED, Verdict, decide
from schemas.input_error import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_RANKS: Final = 16
_SHOWN_FILES: Final = 8


def explain_folder(folder: Path) -> tuple[Reading, Verdict]:
    """Read a folder; return (its facts, the verdict). Raises ValueError if no file has a known format."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no folder")
    reading = read_folder(folder)
    if not reading.formats:
        files = f"{len(reading.unread)} files" if reading.unread else "no files"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in reading.unread[:3])
        raise InputError(
            f"{folder}: {files}{f' ({reasons})' if reasons else ''}, expected one of {', '.join(FORMATS)}"
        )
    return reading, decide(reading.observations)


def as_json(
    folder: Path, reading: Reading, verdict: Verdict, network: NetworkReport | None = None
) -> dict[str, Any]:
    """Return the verdict as `explain --folder DIR --json` prints it."""
    return {
        "folder": str(folder),
        "formats": dict(sorted(reading.formats.items())),
        "unread": [{"file": name, "reason": reason} for name, reason in reading.unread],
        "ranks": {
            "expected": verdict.expected,
            "seen": verdict.seen,
            "missing": list(verdict.missing_ranks[:10_000]),
        },
        "verdict": verdict.best.verdict,
        "confidence": round(min(1.0, max(0.0, verdict.best.confidence)), 3),
        "culprits": _culprits(verdict.best),
        "text": verdict.best.text,
        "evidence": list(verdict.best.evidence),
        "also_possible": [
            {
                "verdict": other.verdict,
                "culprits": _culprits(other),
                "confidence": round(other.confidence, 3),
                "text": other.text,
            }
            for other in verdict.others
        ],
        "missing": list(verdict.missing),
        "transports": communicators.as_json(reading.observations),
        **({"network": network_json(network)} if network is not None else {}),
    }


def _culprits(explanation: Explanation) -> list[str]:
    if explanation.verdict in ("HEALTHY", "UNKNOWN"):
        return []
    return list(explanation.culprits[:MAX_NAMED])


def draw(reading: Reading, verdict: Verdict, network: NetworkReport | None = None) -> list[RenderableType]:
    """Return the verdict as rich renderables: sentence, culprits, table of ranks, missing data."""
    from rich.text import Text

    best = verdict.best
    files = ", ".join(f"{number} {form}" for form, number in sorted(reading.formats.items()))
    expected = f" of {verdict.expected}" if verdict.expected is not None else ""
    colour = "green" if best.verdict == "HEALTHY" else "yellow" if best.verdict == "UNKNOWN" else "red"
    parts: list[RenderableType] = [
        Text(f"{verdict.seen}{expected} ranks; files: {files}", "bold"),
        Text(f"{best.verdict}, confidence {best.confidence:.0%}: {best.text}", colour),
    ]
    culprits = _culprits(best)
    if culprits:
        parts.append(Text(f"culprits: {', '.join(culprits[:SHOWN_RANKS])}"))
    parts += [Text(f"  {line}", "dim") for line in best.evidence]
    parts += _table(reading, verdict)
    parts += [
        Text(f"also possible: {other.verdict} ({other.confidence:.0%}): {other.text}", "dim")
        for other in verdict.others
    ]
    parts += [Text(line, "dim") for line in communicators.lines(reading.observations)]
    parts += [Text(line) for line in network_lines(network)] if network is not None else []
    parts += [Text(f"missing: {line}", "dim") for line in verdict.missing]
    parts += [Text(f"not read: {name}: {reason}", "dim") for name, reason in reading.unread[:_SHOWN_FILES]]
    if len(reading.unread) > _SHOWN_FILES:
        parts.append(Text(f"not read: {len(reading.unread) - _SHOWN_FILES} more files", "dim"))
    return parts


def _table(reading: Reading, verdict: Verdict) -> list[RenderableType]:
    """Return a table of the ranks among the culprits and of missing ranks, as a list."""
    from rich.table import Table

    out = reading.observations
    culprits = [int(name[5:]) for name in verdict.best.culprits if name.startswith("rank ")]
    if not culprits:
        return []
    nics = nics_of_ranks(out)
    table = Table(box=None, pad_edge=False)
    for title in ("rank", "host", "NICs", "last collective", "files"):
        table.add_column(title)
    absent = [rank for rank in verdict.missing_ranks if rank not in culprits]
    for rank in (culprits + absent)[:SHOWN_RANKS]:
        names = sorted(name.partition("/")[2] for name in nics.get(rank, ()))
        files = "yes" if rank in out.ranks else "none"
        host = out.host_of(rank) or "-"
        table.add_row(str(rank), host, ", ".join(names) or "-", _last_collective(rank, reading), files)
    return [table]


def _last_collective(rank: int, reading: Reading) -> str:
    calls = reading.observations.calls.get(rank)
    if not calls:
        return "-"
    last = max(calls, key=lambda call: call.order)
    return f"{last.function} {last.seq} of {last.group.text()}, {last.state}"
