"""Reads the reports of NCCL's RAS service, JSON or text, which contain states of ranks. Pure.

The parsers accept any bytes, and use the parts that they recognise. NCCL 2.28.9 omits a comma in its JSON; it
is inserted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from schemas.records import RankCondition, RankState

MAX_BYTES: Final = 16 << 20
"""Maximum size of a report that is read."""
MAX_STATES: Final = 256
"""Maximum number of rank states that are published per report."""

_C = RankCondition
_MISSING_COMMA: Final = re.compile(r'(["\d\]}el])(\s*\n\s*)("[^"\n]{1,80}"\s*:)')
_RANK_MAX: Final = 16_777_215
_COUNT_MAX: Final = 2**62
_HASH: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")
_GROUP: Final = re.compile(r"#\d+-\d+ \((?:0x)?([0-9a-fA-F]{1,16})\)\s+([A-Z ]{1,40})")
_LAUNCHED: Final = re.compile(r"launched up to operation (\d{1,18})")
_RANK: Final = re.compile(
    r"Rank (\d{1,8})(?: --| with| managed)?(.{0,200}?)(?: on node ([!-.0-=?-~]{1,100}))?\s*$"
)
_STATE_OF_GROUP: Final = {
    "MISMATCH": _C.RUNNING,
    "INCOMPLETE": _C.MISSING,
    "TIMEOUT": _C.UNRESPONSIVE,
    "DEAD": _C.DEAD,
    "ABORT": _C.ABORTED,
    "ERROR": _C.ERROR,
}


def parse_ras(data: bytes) -> list[RankState]:
    """Return the states of the ranks in a report; empty if the data is not a report."""
    text = data[:MAX_BYTES].decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        return list(_of_json(_loaded(text)))
    return list(_of_text(text))


def worth_reporting(states: list[RankState]) -> list[RankState]:
    """Return the states of ranks that do not run, or that launched fewer operations than another rank."""
    highest: dict[str, int] = {}
    for state in states:
        name = state["communicator"]
        highest[name] = max(state["operations"], highest.get(name, -1))
    reported = [
        state
        for state in states
        if state["state"] is not _C.RUNNING or -1 < state["operations"] < highest[state["communicator"]]
    ]
    return reported[:MAX_STATES]


def _loaded(text: str) -> Mapping[str, Any]:
    for attempt in (text, _MISSING_COMMA.sub(r"\1,\2\3", text)):
        try:
            content = json.loads(attempt)
        except (ValueError, RecursionError):
            continue
        return content if isinstance(content, dict) else {}
    return {}


def _of_json(report: Mapping[str, Any]) -> Iterator[RankState]:
    for communicator in _dicts(report.get("communicators")):
        match = _HASH.fullmatch(str(communicator.get("hash", "")))
        if match is None:
            continue
        name = match[1].lower().zfill(16)
        for rank in _dicts(communicator.get("ranks")):
            yield from _rank(name, rank, is_missing=False)
        for rank in _dicts(communicator.get("missing_ranks")):
            yield from _rank(name, rank, is_missing=True)


def _rank(communicator: str, entry: Mapping[str, Any], is_missing: bool) -> Iterator[RankState]:
    number = _whole(entry.get("rank"), _RANK_MAX)
    if number is None:
        return
    status = entry.get("status")
    status = {**entry, **(status if isinstance(status, dict) else {})}
    counts = entry.get("collective_counts")
    launched = [_whole(count, _COUNT_MAX) for count in counts.values()] if isinstance(counts, dict) else []
    state, reason = _condition(status, is_missing)
    pid = _whole(entry.get("pid"), _COUNT_MAX)
    yield {
        "communicator": communicator,
        "rank": number,
        "host": _printable(entry.get("host", ""), 128),
        "state": state,
        "operations": min(sum(count for count in launched if count), _COUNT_MAX) if launched else -1,
        "text": reason if pid is None else f"{reason}, process {pid}".removeprefix(", "),
    }


def _condition(status: Mapping[str, Any], is_missing: bool) -> tuple[RankCondition, str]:
    """Return a rank's state and the reason for it. The reason is empty if the rank runs."""
    error = status.get("async_error")
    is_wrong = bool(error) and error not in ("ncclSuccess", "ncclInProgress", 7)
    states = (
        (status.get("considered_dead") is True, _C.DEAD, "considered dead"),
        (status.get("unresponsive") is True, _C.UNRESPONSIVE, "unresponsive"),
        (is_missing, _C.MISSING, "missing"),
        (bool(status.get("abort_flag")), _C.ABORTED, "aborted"),
        (is_wrong, _C.ERROR, f"error {_printable(error, 40)}"),
    )
    return next(((state, reason) for applies, state, reason in states if applies), (_C.RUNNING, ""))


def _of_text(text: str) -> Iterator[RankState]:
    """Yield the ranks in the warnings and errors of a text report, with the communicator named above them."""
    communicator, state, launched, reason = "", _C.UNKNOWN, -1, ""
    for line in text.splitlines():
        group = _GROUP.search(line)
        if group is not None:
            communicator, reason = group[1].lower().zfill(16), group[2].strip()
            state = _STATE_OF_GROUP.get(reason.split(" ")[0], _C.UNKNOWN)
            launched = -1
            continue
        count = _LAUNCHED.search(line)
        if count is not None:
            launched = int(count[1])
        rank = _RANK.search(line.strip())
        if rank is None or not communicator or int(rank[1]) > _RANK_MAX:
            continue
        yield {
            "communicator": communicator,
            "rank": int(rank[1]),
            "host": rank[3] or "",
            "state": state,
            "operations": launched if state is _C.RUNNING else -1,
            "text": _printable(f"{reason}: {rank[2].strip()}", 200),
        }


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _whole(value: Any, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value <= limit else None


def _printable(value: Any, limit: int) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in str(value)[:limit])
