"""Reads Slurm's accounting: the output of `sacct -P`, `sacct --parsable` and `sacct --json`. No I/O.

Source of the format: SchedMD/slurm, doc/man/man1/sacct.1 and src/plugins/data_parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fabrictime.imports.base import BadImport, expanded
from fabrictime.postmortem.observations import Observations, Step
from fabrictime.postmortem.readers.values import count, text, whole

MAX_STEPS: Final = 100_000
_NAMES: Final = ("jobid", "state", "exitcode")


class SlurmTable:
    """The reader of one file, with the columns of the sacct table that it is reading."""

    def __init__(self, out: Observations) -> None:
        self._out = out
        self._columns: list[str] = []

    def take(self, line: str) -> bool:
        """Add the step in a line; return whether the line belongs to a table of sacct."""
        if "|" not in line:
            return False
        cells = [cell.strip() for cell in line.rstrip("\r\n").split("|")]
        lower = [cell.lower() for cell in cells]
        if "jobid" in lower and "state" in lower:
            self._columns = lower
            return True
        if not self._columns or len(cells) not in (len(self._columns), len(self._columns) - 1):
            return False
        row = dict(zip(self._columns, cells, strict=False))
        if not re.match(r"\d", row.get("jobid", "")):
            return False
        code, signal = _exit_code(row)
        task = whole(row.get("maxrsstask"), 10_000_000)
        self._add(row["jobid"], row.get("state", ""), code, signal, row.get("nodelist", ""), row, task)
        return True

    def _add(
        self,
        name: str,
        state: str,
        code: int,
        signal: int,
        nodes: str,
        row: Mapping[str, str],
        task: int | None,
    ) -> None:
        if len(self._out.steps) < MAX_STEPS:
            host = row.get("maxrssnode", "")
            self._out.steps.append(
                Step(name[:80], state[:80], code, signal, tuple(_hosts(nodes)), host, task)
            )


def _exit_code(row: Mapping[str, str]) -> tuple[int, int]:
    """Return (exit code, signal) of a row, from DerivedExitCode if ExitCode is 0."""
    for name in ("exitcode", "derivedexitcode"):
        match = re.fullmatch(r"(\d{1,5}):(\d{1,3})", row.get(name, ""))
        if match is not None and (match[1] != "0" or match[2] != "0"):
            return int(match[1]), int(match[2])
    return 0, 0


def _hosts(nodes: str) -> Iterator[str]:
    if not nodes or nodes.lower().startswith(("none", "unknown")):
        return
    try:
        yield from list(expanded(nodes[:20_000]))
    except BadImport:
        yield nodes[:200]


def read_slurm_json(data: bytes, out: Observations) -> None:
    """Add the jobs and steps in the output of `sacct --json`. Raises ValueError for other data."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("JSON: damaged, expected that of sacct --json") from None
    jobs = content.get("jobs") if isinstance(content, dict) else None
    if not isinstance(jobs, list):
        raise ValueError("JSON: expected a list 'jobs', as of sacct --json")
    for job in jobs[:MAX_STEPS]:
        if isinstance(job, dict):
            _add_json(job, text(job.get("job_id")), out)
            steps = job.get("steps")
            for step in steps[:MAX_STEPS] if isinstance(steps, list) else ():
                if isinstance(step, dict):
                    _add_json(step, _step_name(step), out)


def _step_name(step: Mapping[str, Any]) -> str:
    inner = step.get("step")
    stated = inner.get("id", "") if isinstance(inner, dict) else ""
    if isinstance(stated, dict):
        return f"{text(stated.get('job_id'))}.{text(stated.get('step_id'))}"
    return text(stated)


def _add_json(entry: Mapping[str, Any], name: str, out: Observations) -> None:
    state = entry.get("state")
    if isinstance(state, dict):
        state = state.get("current")
    states = state if isinstance(state, list) else [state]
    code, signal = _json_code(entry.get("exit_code"))
    if not code and not signal:
        code, signal = _json_code(entry.get("derived_exit_code"))
    nodes = entry.get("nodes")
    if isinstance(nodes, dict):
        listed = nodes.get("list")
        nodes = ",".join(map(text, listed)) if isinstance(listed, list) else text(nodes.get("range"))
    host, task = _json_memory(entry.get("tres"))
    stated = ",".join(filter(None, map(text, states)))
    if len(out.steps) < MAX_STEPS:
        out.steps.append(Step(name[:80], stated, code, signal, tuple(_hosts(text(nodes))), host, task))


def _json_number(value: Any) -> int:
    return count(value.get("number") if isinstance(value, dict) else value, 10_000_000)


def _json_code(value: Any) -> tuple[int, int]:
    if not isinstance(value, dict):
        return _json_number(value), 0
    signal = value.get("signal")
    number = signal.get("id", signal.get("signal_id")) if isinstance(signal, dict) else signal
    return _json_number(value.get("return_code")), _json_number(number)


def _json_memory(tres: Any) -> tuple[str, int | None]:
    """Return (host, task) of the largest memory use in a step."""
    requested = tres.get("requested") if isinstance(tres, dict) else None
    largest = requested.get("max") if isinstance(requested, dict) else None
    for entry in largest[:100] if isinstance(largest, list) else ():
        if isinstance(entry, dict) and entry.get("type") == "mem":
            return text(entry.get("node")), whole(entry.get("task"), 10_000_000)
    return "", None
