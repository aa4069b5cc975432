"""Reads the tables of nccl-tests and rccl-tests, line by line. Does no I/O.

Source of the format: NVIDIA/nccl-tests, src/common.cu and src/util.cu; ROCm/rccl-tests. The columns before
`time` differ between tests and versions, so a row is read from its end: two blocks of time, algbw, busbw and
#wrong.
"""

from __future__ import annotations

import re
from typing import Final

from fabrictime.postmortem.observations import Observations, Table, TableRow

MAX_TABLES: Final = 10_000
_DEVICE: Final = re.compile(
    r"#\s+Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,6})\s+)?Pid\s+\d+ on\s+(\S{1,200}) device\s+\d+"
)
_NUMBER: Final = r"(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|nan)"
_BLOCK: Final = rf"({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+(\d+|N/A|\d+\.?\d*e[+-]\d+)"
_ROW: Final = re.compile(rf"^\s*(?:\S*[:>]\s*)?(\d{{1,15}})\s+\d{{1,15}}\s.*?\s{_BLOCK}(?:\s+{_BLOCK})?\s*$")
_TEST: Final = re.compile(r"(?:Collective test starting:\s+|nccl-tests/build/|rccl-tests/build/)(\w+_perf)")
_HCA: Final = re.compile(r"NCCL_IB_HCA(?: set by environment to |=)[=^]?([A-Za-z][\w.:,-]*[\w])")
_FAILED: Final = re.compile(r"Test (?:NCCL|CUDA|HIP|RCCL) failure.*|Test failure .*", re.IGNORECASE)


class NcclTests:
    """The reader of one file: the table of nccl-tests that it is reading."""

    def __init__(self, out: Observations, name: str) -> None:
        self._out = out
        self._name = name
        self._table = Table(name)

    def take_setting(self, line: str) -> None:
        """Record the NIC of a run if its NCCL_IB_HCA names exactly one."""
        match = _HCA.search(line)
        if match is not None:
            names = [name.partition(":")[0] for name in match[1].split(",")]
            self._table.device = names[0] if len(names) == 1 else ""

    def take(self, line: str) -> bool:
        """Process a line; return whether it belongs to a table."""
        if "# " in line or "#\t" in line:
            return self._take_comment(line)
        if "failure" in line and (match := _FAILED.search(line)) is not None:
            self._table.failures.append(match[0][:200])
            return True
        is_row = line[:80].strip()[:1].isdigit() or ":" in line[:40]
        match = _ROW.match(line) if is_row else None
        if match is not None:
            self._take_row(match)
        return match is not None

    def _take_row(self, match: re.Match[str]) -> None:
        rates = [float(cell) for cell in (match[4], match[8]) if cell is not None]
        errors = sum(int(cell) for cell in (match[5], match[9]) if cell and cell.isdigit())
        self._table.rows.append(TableRow(int(match[1]), max(rates), errors))

    def _take_comment(self, line: str) -> bool:
        test, device = _TEST.search(line), _DEVICE.search(line)
        if test is not None:
            if "starting" in line:
                self._end_rows()
            self._table.test = test[1].removesuffix("_perf")
        elif device is not None:
            self._end_rows()
            self._table.ranks = max(self._table.ranks, int(device[1]) + 1)
            if device[3] not in self._table.hosts:
                self._table.hosts.append(device[3])
        elif "Out of bounds values" in line:
            self._take_errors(line)
        elif "Avg bus bandwidth" in line:
            self._table.is_finished = True
        else:
            return "busbw" in line or "nThread" in line
        return True

    def _end_rows(self) -> None:
        """Begin a new table if the present table has rows."""
        if self._table.rows:
            self.finish()

    def _take_errors(self, line: str) -> None:
        wrong = re.search(r"values\s*:\s*(\d{1,15})", line)
        has_errors = any(row.errors for row in self._table.rows)
        if wrong is not None and int(wrong[1]) and not has_errors:
            self._table.rows.append(TableRow(0, 0.0, int(wrong[1])))

    def finish(self) -> None:
        """Store the present table, if it has rows or failures, and begin a new one."""
        table = self._table
        if (table.rows or table.failures) and len(self._out.tables) < MAX_TABLES:
            self._out.tables.append(table)
            self._out.expect(table.ranks)
            self._out.ranks.update(range(min(table.ranks, 100_000)))
        self._table = Table(self._name, test=table.test, device=table.device)
