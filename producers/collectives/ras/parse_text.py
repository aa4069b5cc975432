"""Parses the text reports of RAS services, as NCCL 2.24 and later write them. Pure.

A text report names only the ranks that are outliers. Groups of ranks have a line with their number and
their count of operations. A dead or silent process is listed apart from the communicators, so its ranks are
found by host and process id.
"""

from __future__ import annotations

import re
from typing import Final

from producers.collectives.ras.report import (
    COUNT_MAX,
    RANK_MAX,
    Communicator,
    RankReport,
    RasReport,
    function_of,
    hash_text,
    printable,
)
from schemas.records import CollectiveFunction, RankCondition

_C = RankCondition
_HOST: Final = r"([!-.0-=?-~]{1,100})"
_VERSION: Final = re.compile(r"(?:NCCL|RCCL) version ([!-~]{1,40})")
_COLLECTED: Final = re.compile(r"\(?(\d{1,4}\.\d{1,6})s\)?\s*$")
_SECTION: Final = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT|Errors|Warnings)\s*$")
_ROW: Final = re.compile(
    r"\s*(\d{1,6})\s+(\d{1,6})\s+\d+\s+\d+(?:-\d+)?\s+(\d{1,8})\s+\d+\s+([A-Z]+)\s+\S+\s*$"
)
_GROUP: Final = re.compile(r"#(\d{1,6})-\d+ \((?:0x)?([0-9a-fA-F]{1,16})\)\s+([A-Z]{1,40})")
_PROCESS: Final = re.compile(r"Process (\d{1,10}) on node " + _HOST)
_FUNCTION: Final = re.compile(r"different (\w{1,40}) operation counts")
_LAUNCHED: Final = re.compile(r"launched up to operation (\d{1,18})")
_NONE_LAUNCHED: Final = "not launched any operations"
_GROUPED: Final = re.compile(r"\s*(\d{1,8}) ranks? ha(?:s|ve) (?:not )?launched")
_STATUS: Final = re.compile(r"ha(?:s|ve) status ([A-Z]{1,20})")
_ERROR: Final = re.compile(r"reported (.{1,80}?)(?: -- .*|:)?\s*$")
_LISTED: Final = re.compile(r"The missing ranks?: ([\d, -]{1,2000})")
_RANK: Final = re.compile(r"\s*Rank (\d{1,8})\b")
_GPU: Final = re.compile(r"\bGPU (\d{1,3})")
_NVML: Final = re.compile(r"\(NVML (\d{1,3})\)")
_MANAGER: Final = re.compile(r"managed by process (\d{1,10})\b")
_NODE: Final = re.compile(r" on node " + _HOST + r"\s*$")
_LINE_MAX: Final = 512
_CONDITIONS: Final = {
    "MISMATCH": _C.RUNNING,
    "INCOMPLETE": _C.MISSING,
    "DEAD": _C.DEAD,
    "ABORT": _C.ABORTED,
    "ERROR": _C.ERROR,
}
"""States of the ranks below the heading of a communicator."""
_MAX_LISTED: Final = 4096


class _Reader:
    """Parses one text report line by line."""

    def __init__(self) -> None:
        self.report = RasReport()
        self._sizes: dict[str, int] = {}
        self._by_id: dict[str, Communicator] = {}
        self._processes: dict[tuple[str, int], RankCondition] = {}
        """Processes that are dead or do not answer."""
        self._section = ""
        self._current: Communicator | None = None
        self._heading = self._status = self._error = ""
        self._function = CollectiveFunction.UNKNOWN
        self._count: int | None = None

    def read(self, line: str) -> None:
        """Parse the next line of the report and store its content."""
        section, group = _SECTION.match(line), _GROUP.search(line)
        row = _ROW.match(line)
        if section is not None:
            self._section, self._current = section[1], None
        elif group is not None:
            self._begin(group)
        elif self._current is not None:
            self._inside(self._current, line)
        elif row is not None:
            self._sizes[row[1]] = min(int(row[3]), RANK_MAX)
            self._add_row(row)
        else:
            self._outside(line)

    def _begin(self, group: re.Match[str]) -> None:
        name = hash_text(group[2])
        communicator = self._by_id.get(name)
        if communicator is None:
            communicator = self._by_id[name] = Communicator(name, self._sizes.get(group[1], 0))
        self._current, self._heading = communicator, group[3]
        self._status = self._error = ""
        self._function, self._count = CollectiveFunction.UNKNOWN, None

    def _add_row(self, row: re.Match[str]) -> None:
        """Add a row of the summary: a group of ranks, without the names of their communicators."""
        if len(self.report.communicators) < _MAX_LISTED:
            self.report.communicators.append(Communicator(f"#{row[1]}", self._sizes[row[1]]))

    def _outside(self, line: str) -> None:
        process, version, seconds = _PROCESS.search(line), _VERSION.match(line), _COLLECTED.search(line)
        if process is not None:
            state = _C.DEAD if self._section == "DEAD" else _C.UNRESPONSIVE
            self._processes[process[2], int(process[1])] = state
        elif version is not None:
            self.report.version = version[1]
        elif seconds is not None:
            self.report.collection_s = max(self.report.collection_s, float(seconds[1]))

    def _inside(self, communicator: Communicator, line: str) -> None:
        """Parse a line below a communicator's heading: a function, an operation count or ranks."""
        function, listed = _FUNCTION.search(line), _LISTED.search(line)
        if function is not None:
            self._function, self._count, self._status = function_of(function[1]), None, ""
        elif listed is not None:
            for number in _numbers(listed[1]):
                self._add(communicator, number, "")
        else:
            self._note(line)
            if self._count is not None:
                communicator.lead(self._function, self._count)
                grouped = _GROUPED.match(line)
                if grouped is not None:
                    communicator.groups[self._function, self._count] = int(grouped[1])
            rank = _RANK.match(line)
            if rank is not None and int(rank[1]) <= RANK_MAX:
                self._add(communicator, int(rank[1]), line)

    def _note(self, line: str) -> None:
        """Store the count, status or error in a line; it also applies to the ranks listed below the line."""
        launched, status, error = _LAUNCHED.search(line), _STATUS.search(line), _ERROR.search(line)
        if launched is not None:
            self._count = min(int(launched[1]), COUNT_MAX)
        elif _NONE_LAUNCHED in line:
            self._count = 0
        elif status is not None:
            self._status, self._count = status[1], None
        elif error is not None:
            self._error = error[1]

    def _add(self, communicator: Communicator, number: int, line: str) -> None:
        """Add rank `number` below the present heading; `line` may name its process."""
        state = _CONDITIONS.get(self._heading, _C.UNKNOWN)
        is_counted = state is _C.RUNNING and self._count is not None
        counts = {self._function: self._count or 0} if is_counted else {}
        state = _CONDITIONS.get(self._status, state)
        reason = f"status {self._status}" if self._status else self._error or self._heading.lower()
        gpu = _first(_NVML, line) or _first(_GPU, line) or None
        host, process = _first(_NODE, line), int(_first(_MANAGER, line) or 0)
        rank = RankReport(number, host, process, gpu, state, counts, printable(reason, 80))
        listed = next((one for one in communicator.ranks if _is_listed(one, rank)), None)
        if listed is not None:
            communicator.ranks.remove(listed)
        communicator.add(rank)
        communicator.missing += state is _C.MISSING and listed is None

    def finish(self) -> RasReport:
        """Return the report; each rank has the state of its process."""
        for communicator in self._by_id.values():
            communicator.ranks = [self._joined(rank) for rank in communicator.ranks[:_MAX_LISTED]]
            communicator.missing = min(communicator.missing, communicator.size or communicator.missing)
        self.report.communicators[:0] = self._by_id.values()
        return self.report

    def _joined(self, rank: RankReport) -> RankReport:
        """Return a missing rank with its process's state, or the only process's state if none is named."""
        if rank.state is not _C.MISSING or not self._processes:
            return rank
        place = (rank.host, rank.process)
        if not rank.process and len(self._processes) == 1:
            place = next(iter(self._processes))
        state = self._processes.get(place, rank.state)
        return rank._replace(host=place[0], process=place[1], state=state, reason=state.lower())


def _first(pattern: re.Pattern[str], line: str) -> str:
    """Return group 1 of a pattern's first match in a line; empty if there is no match."""
    match = pattern.search(line)
    return match[1] if match is not None else ""


def _is_listed(listed: RankReport, rank: RankReport) -> bool:
    """Return whether `listed` has the number of `rank` without a process, which `rank` adds."""
    return listed.rank == rank.rank and listed.state is rank.state is _C.MISSING and not listed.process


def parse_text(text: str) -> RasReport:
    """Parse a text report; return an empty report if the text contains none."""
    reader = _Reader()
    for line in text.splitlines():
        reader.read(line[:_LINE_MAX])
    return reader.finish()


def _numbers(text: str) -> list[int]:
    """Return all numbers in a list with ranges such as `3, 8-10`."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            end = min(int(last or first), RANK_MAX, int(first) + _MAX_LISTED)
            numbers += range(int(first), end + 1)
    return numbers[:_MAX_LISTED]
