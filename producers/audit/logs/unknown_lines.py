"""Lists warnings and errors of the kernel log that no list of known lines explains.

Numbers are masked, so that lines which differ only in an address or a counter form one finding. Known lines
are in the tables of `kernel_lines/`; settings add patterns. Lines that other checks evaluate are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, failed, passed
from producers.audit.gpu.xids import XidFinder, find_sxid
from producers.audit.host.base import Host
from producers.audit.logs.lines import Line, read_lines
from producers.audit.logs.nic_log import LINK
from producers.audit.logs.rules import Matcher, all_rules
from schemas.audit_remedy import remedy

LOG: Final = ("dmesg", "--kernel", "--notime", "--level=emerg,alert,crit,err,warn")
MAX_KINDS: Final = 256
"""Largest number of kinds of lines that are counted separately; all further kinds share one count."""
MAX_LISTED: Final = 32
MAX_LINE: Final = 240
"""Only this many characters of a line are compared and shown."""
_MASKS: Final = (
    (re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\b"), "PCI"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,16}\b"), "#"),
    (re.compile(r"\d+(?:\.\d+)*"), "#"),
)
CHECKS: Final = Checks()


class Unknown(NamedTuple):
    """A kind of line: its masked text, its first line as an example, and the number of lines."""

    masked: str
    example: str
    lines: int


@cache
def _known() -> Matcher:
    return Matcher(all_rules())


def is_known(line: Line) -> bool:
    """Return whether a line is harmless, or one that another check evaluates."""
    return bool(_known().find(line) or XidFinder().find(line) or find_sxid(line) or LINK.match(line.text))


def masked(line: str) -> str:
    """Return a line with its numbers and addresses masked."""
    for pattern, text in _MASKS:
        line = pattern.sub(text, line)
    return line


def unknown_lines(log: str, patterns: Sequence[re.Pattern[str]] = ()) -> tuple[list[Unknown], int]:
    """Return the kinds of unknown lines, most frequent first, and the number of lines beyond MAX_KINDS.

    `patterns`: lines that the settings call harmless.
    """
    examples: dict[str, tuple[str, int]] = {}
    beyond = 0
    for line in read_lines(log):
        text = line.line.strip()[:MAX_LINE]
        if not text or is_known(line) or any(pattern.search(text) for pattern in patterns):
            continue
        kind = masked(text)
        if kind in examples:
            examples[kind] = examples[kind][0], examples[kind][1] + 1
        elif len(examples) < MAX_KINDS:
            examples[kind] = text, 1
        else:
            beyond += 1
    kinds = [Unknown(kind, example, lines) for kind, (example, lines) in examples.items()]
    return sorted(kinds, key=lambda kind: (-kind.lines, kind.masked)), beyond


@CHECKS.warning("kernel-log.unknown", "Warnings and errors of the kernel are known", 93)
@remedy.monitor("Find the cause of the line; add a harmless one to audit.known_lines")
def _unknown(host: Host) -> Iterator[Finding]:
    log = host.run(*LOG)
    kinds, beyond = unknown_lines(log, [re.compile(pattern) for pattern in host.settings.known_lines])
    for kind in kinds[:MAX_LISTED]:
        yield failed(f"{kind.example}, {kind.lines} lines" if kind.lines > 1 else kind.example)
    beyond += sum(kind.lines for kind in kinds[MAX_LISTED:])
    if beyond:
        yield failed(f"{beyond} lines of {max(0, len(kinds) - MAX_LISTED)} or more further kinds")
    if not kinds:
        yield passed(f"{len(log.splitlines())} warnings and errors since boot, all of them known")
