"""Parses the reports of RAS services: text, and JSON since NCCL 2.28.7. Pure.

The parsers accept any bytes and use the parts that they know. They insert the comma that NCCL 2.28.9 omits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from producers.collectives.ras.parse_text import parse_text
from producers.collectives.ras.report import (
    COUNT_MAX,
    RANK_MAX,
    Communicator,
    RankReport,
    RasReport,
    function_of,
    hash_text,
    merged_counts,
    printable,
)
from schemas.records import RankCondition

MAX_BYTES: Final = 16 << 20
"""Maximum size of a report that is read."""
_C = RankCondition
_MISSING_COMMA: Final = re.compile(r'(["\d\]}el])(\s*\n\s*)("[^"\n]{1,80}"\s*:)')
_HASH: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16})")
_WELL: Final = ("ncclSuccess", "ncclInProgress", 7)


def parse_report(data: bytes) -> RasReport:
    """Parse a JSON or text report; return an empty report if the data contain none."""
    text = data[:MAX_BYTES].decode("utf-8", "replace")
    return _parse_json(_loaded(text)) if text.lstrip().startswith("{") else parse_text(text)


def _loaded(text: str) -> Mapping[str, Any]:
    for attempt in (text, _MISSING_COMMA.sub(r"\1,\2\3", text)):
        try:
            content = json.loads(attempt)
        except (ValueError, RecursionError):
            continue
        return content if isinstance(content, dict) else {}
    return {}


def _parse_json(content: Mapping[str, Any]) -> RasReport:
    service = content.get("ras")
    seconds = service.get("collection_time_sec") if isinstance(service, dict) else 0
    report = RasReport(version=printable(content.get("nccl_version", ""), 40))
    report.collection_s = float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < 1e4 else 0.0
    for entry in _dicts(content.get("communicators")):
        match = _HASH.fullmatch(str(entry.get("hash", "")))
        if match is not None:
            report.communicators.append(_communicator(hash_text(match[1]), entry))
    return report


def _communicator(name: str, entry: Mapping[str, Any]) -> Communicator:
    ranks, missing = _dicts(entry.get("ranks")), _dicts(entry.get("missing_ranks"))
    communicator = Communicator(name)
    for rank in ranks:
        _add_rank(communicator, rank, is_missing=False)
    for rank in missing:
        _add_rank(communicator, rank, is_missing=True)
    communicator.size = _whole(entry.get("size"), RANK_MAX) or len(communicator.ranks)
    communicator.missing = min(len(missing), communicator.size)
    return communicator


def _add_rank(communicator: Communicator, entry: Mapping[str, Any], *, is_missing: bool) -> None:
    number = _whole(entry.get("rank"), RANK_MAX)
    if number is None:
        return
    status = entry.get("status")
    status = {**entry, **(status if isinstance(status, dict) else {})}
    launched = entry.get("collective_counts")
    counts = merged_counts(
        (function_of(str(name)), whole)
        for name, count in (launched.items() if isinstance(launched, dict) else ())
        if (whole := _whole(count, COUNT_MAX)) is not None
    )
    state, reason = _condition(status, is_missing)
    host = printable(entry.get("host", ""), 128)
    gpu = _whole(entry.get("nvml_dev", entry.get("cuda_dev")), 1023)
    communicator.add(
        RankReport(
            number,
            "" if host == "unknown" else host,
            _whole(entry.get("pid"), COUNT_MAX) or 0,
            None if gpu is None else str(gpu),
            state,
            counts,
            reason,
        )
    )


def _condition(status: Mapping[str, Any], is_missing: bool) -> tuple[RankCondition, str]:
    """Return a rank's condition, and the reason for it; the reason is empty if the rank runs."""
    error, init = status.get("async_error"), status.get("init_state")
    is_wrong = bool(error) and error not in _WELL
    states = (
        (status.get("considered_dead") is True, _C.DEAD, "considered dead"),
        (status.get("unresponsive") is True, _C.UNRESPONSIVE, "unresponsive"),
        (is_missing, _C.MISSING, "missing"),
        (bool(status.get("abort_flag")), _C.ABORTED, "aborted"),
        (is_wrong, _C.ERROR, f"error {printable(error, 40)}"),
        (bool(init) and init not in _WELL, _C.ERROR, f"initialisation error {printable(init, 40)}"),
    )
    return next(((state, reason) for applies, state, reason in states if applies), (_C.RUNNING, ""))


def _dicts(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _whole(value: Any, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value <= limit else None
