"""Converts outputs of support bundles to the form of the commands that checks run. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

Convert = Callable[[str, Sequence[str]], str]
"""Returns the output in the form of a command (its arguments), of another output (text)."""
_LEVEL: Final = re.compile(r"^\w+ *: *\w+ *: ")
_SECONDS: Final = re.compile(r"^\[ *(\d+\.\d+)\] ?")
_DATE: Final = re.compile(r"^\[?\w{3} (\w{3} +\d+ \d\d:\d\d:\d\d \d{4})\] ")
_ISO: Final = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(?:Z|[+-]\d\d:?\d\d)? ")
_SYSLOG: Final = re.compile(r"^(\w{3} +\d+ \d\d:\d\d:\d\d) ")
_KERNEL: Final = re.compile(r"^\S+ kernel: ")
_SYSLOG_YEAR: Final = 2000
"""Lines of syslog have no year; a leap year reads all days. Only differences of times matter."""


def kernel_log(text: str, command: Sequence[str]) -> str:
    """Return a kernel log as `dmesg` prints it, with seconds; of dates, the seconds since the first line.

    The log may be dmesg's with seconds, dates (-T), ISO times or levels (-x), or a journal. Lines of other
    programs in a journal are left out.
    """
    lines, first = [], None
    for line in text.splitlines():
        at, rest, is_journal = _stamp(_LEVEL.sub("", line))
        kernel = _KERNEL.match(rest)
        if is_journal and not kernel:
            continue
        rest = rest[kernel.end() :] if kernel else rest
        seconds = _SECONDS.match(rest)
        if seconds:
            at, rest = float(seconds[1]), rest[seconds.end() :]
        elif isinstance(at, datetime):
            first = first or at
            at = (at - first).total_seconds()
        lines.append(rest if at is None else f"[{at:12.6f}] {rest}")
    return "\n".join(lines) + "\n"


def _stamp(line: str) -> tuple[float | datetime | None, str, bool]:
    """Return a line's time, the text after it, and whether a journal or syslog wrote the line."""
    if match := _SECONDS.match(line):
        rest = line[match.end() :]
        return float(match[1]), rest, _KERNEL.match(rest) is not None
    if match := _DATE.match(line):
        return _date(match[1], "%b %d %H:%M:%S %Y"), line[match.end() :], False
    if match := _ISO.match(line):
        at = _date(match[1], "%Y-%m-%dT%H:%M:%S")
        at = at and at.replace(microsecond=int((match[2] or "0")[:6].ljust(6, "0")))
        rest = line[match.end() :]
        return at, rest, _KERNEL.match(rest) is not None
    if match := _SYSLOG.match(line):
        return _date(f"{_SYSLOG_YEAR} {match[1]}", "%Y %b %d %H:%M:%S"), line[match.end() :], True
    return None, line, False


def _date(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:  # such as a month in another language
        return None


def same(text: str, command: Sequence[str]) -> str:
    """Return the output unchanged."""
    return text


def memory_devices(text: str, command: Sequence[str]) -> str:
    """Return the memory devices of a full output of dmidecode."""
    blocks = text.split("\n\n")
    return "\n\n".join(block for block in blocks if "\nMemory Device\n" in f"\n{block}\n")


def units(text: str, command: Sequence[str]) -> str:
    """Return the blocks of `systemctl show` for the units that the command names."""
    blocks = {
        line: block for block in text.split("\n\n") for line in block.splitlines() if line.startswith("Id=")
    }
    named = [f"Id={name}" for name in command if name.endswith(".service")]
    absent = "LoadState=not-found\nActiveState=inactive\nNRestarts=0"
    return "\n\n".join(blocks.get(line, f"{line}\n{absent}") for line in named) + "\n"


def unit_list(text: str, command: Sequence[str]) -> str:
    """Return the rows of `systemctl list-units` without head, marks and legend."""
    rows = [line.lstrip(" ●*\u00d7").rstrip() for line in text.splitlines()]
    is_services = "--type=service" in command
    states = ("loaded", "not-found", "masked", "error", "bad-setting", "merged")
    return "".join(
        f"{row}\n"
        for row in rows
        if row.split()[1:2] and row.split()[1] in states and (".service " in row or not is_services)
    )


def packages(text: str, command: Sequence[str]) -> str:
    """Return the packages of `dpkg -l` as name, version and state in columns with tabs."""
    rows = [line.split() for line in text.splitlines()]
    return "".join(
        f"{row[1].partition(':')[0]}\t{row[2]}\t{row[0]} \n"
        for row in rows
        if len(row) > 3 and len(row[0]) in (2, 3) and row[0].isalpha() and row[0].islower()
    )


FORMS: Final[Mapping[str, Convert]] = {
    convert.__name__.replace("_", "-"): convert
    for convert in (kernel_log, same, memory_devices, units, unit_list, packages)
}


def sysctl_files(text: str) -> dict[str, str]:
    """Return the files below /proc/sys in the output of `sysctl -a`, which prints dots as slashes."""
    files: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition(" = ")
        if equals:
            path = "/".join(part.replace("/", ".") for part in name.strip().split("."))
            files[f"/proc/sys/{path}"] = (
                f"{files[f'/proc/sys/{path}']}\n{value}" if f"/proc/sys/{path}" in files else value
            )
    return files


_RULE: Final = re.compile(r"^_{20,}$", re.MULTILINE)
_PATH: Final = re.compile(r"^/\S*/")
"""Folder of a command at the head of a section, such as /usr/bin/lspci -nn."""
_FILE: Final = re.compile(r"^\*\*\* (/\S+?)(?:/\./(\S+))?( does not exist)?$")


class Section:
    """A part of an nvidia-bug-report log: a file, or the output of a command."""

    def __init__(self, text: str) -> None:
        head, _, rest = text.lstrip("\n").partition("\n")
        match = _FILE.match(head.strip())
        self.path = f"{match[1]}/{match[2]}" if match and match[2] else match[1] if match else ""
        self.is_absent = bool(match and match[3])
        lines = rest.split("\n")
        while match and lines and lines[0].startswith("*** ls:"):
            del lines[0]
        self.content = "\n".join(lines).strip("\n") + "\n"
        self.command = "" if match else _PATH.sub("", head.strip().rstrip(":"))


def sections(log: str) -> list[Section]:
    """Return the parts of an nvidia-bug-report log."""
    return [Section(part) for part in _RULE.split(log) if part.strip()]
