"""Rules for lines of the kernel log, and the events that lines form.

The rules are tables in `kernel_lines/`, apart from code. Each row has a `pattern`, the line's meaning
(`text`) and the `source` of the line. Rows may have:

- `check`: the check that fails by such a line; without it the line is harmless;
- `drivers`: drivers that print the line (`*`: any); the pattern is searched in the text after the prefix;
- `after`: the line counts only after a line of the same device with this pattern, if the log begins at boot;
- `ends`: pattern of a later line of the same device after which the fault is over;
- `ends_all`: pattern of a later line of any device after which the fault is over;
- `events`, `hours`: the fault counts from so many events within this time on;
- `window_s`: lines within this time are one event.

Patterns of rows with `drivers` ignore case. Groups fill `{name}` in `text`; `subject` names the device.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from producers.audit.base import Finding, failed, passed
from producers.audit.logs.lines import Line, slot_of
from schemas.settings_file import read_tables

FOLDER: Final = Path(__file__).with_name("kernel_lines")
EVENT_S: Final = 60.0
"""Lines of one fault of one device within this time are one event: drivers print up to dozens for a fault."""
REPEATS: Final = (3, 1.0)
"""(Count, hours): so many events of one device are a fault, although each is over (NVSentinel)."""
HOUR_S: Final = 3600.0
OTHER_PATTERNS: Final = ("after", "ends", "ends_all")
"""Fields of a row that are patterns as well."""
BOOT_S: Final = 60.0
"""A log whose first line is later has lost its beginning."""
ANY: Final = ("*",)
"""Drivers of a rule for the lines of all drivers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of a table of lines. `check` is empty for harmless lines."""

    pattern: re.Pattern[str]
    text: str
    source: str
    check: str = ""
    drivers: tuple[str, ...] = ()
    after: re.Pattern[str] | None = None
    ends: re.Pattern[str] | None = None
    events: int = 1
    hours: float = 0.0
    window_s: float = EVENT_S
    ends_all: re.Pattern[str] | None = None
    """Pattern of a later line of any device after which the fault is over."""
    is_fault: bool = True

    def match(self, line: Line) -> re.Match[str] | None:
        """Return the match of the pattern in the line, or None."""
        if not self.drivers:
            return self.pattern.search(line.line)
        is_ours = line.driver in self.drivers or self.drivers == ANY
        return self.pattern.search(line.text) if is_ours else None


class Found(NamedTuple):
    """Meaning of a line: its rule, the device that it concerns, and the meaning in words."""

    rule: Rule
    subject: str
    text: str


Find = Callable[[Line], Found | None]


def _rule(row: Mapping[str, Any]) -> Rule:
    drivers = tuple(row.get("drivers", ()))
    patterns = {"pattern": re.compile(row["pattern"], re.IGNORECASE if drivers else 0)}
    patterns |= {key: re.compile(row[key], re.IGNORECASE) for key in OTHER_PATTERNS if key in row}
    return Rule(**{**row, **patterns, "drivers": drivers})


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rules of all tables. Raises BadFile, ValueError, TypeError for a row that is wrong."""
    return tuple(
        _rule(row) for path in sorted(FOLDER.glob("*.toml")) for row in read_tables(path).get("line", ())
    )


@cache
def rules(check: str) -> tuple[Rule, ...]:
    """Return the rules of a check; the rules of harmless lines if `check` is empty."""
    return tuple(rule for rule in all_rules() if rule.check == check)


class Matcher:
    """Finds the first rule that fits a line; it tries the rules of the line's driver first."""

    def __init__(self, ordered: Sequence[Rule]) -> None:
        self._by_driver: dict[str, list[Rule]] = defaultdict(list)
        self._general = [rule for rule in ordered if not rule.drivers]
        for rule in ordered:
            for driver in rule.drivers:
                self._by_driver[driver].append(rule)
        self._any = re.compile("|".join(f"(?:{_unnamed(rule.pattern)})" for rule in self._general) or r"(?!)")

    def find(self, line: Line) -> Found | None:
        """Return the line's meaning by the first rule that fits, or None."""
        for driver in (line.driver, *ANY):
            for rule in self._by_driver.get(driver, ()):
                if match := rule.match(line):
                    return _found(rule, match, line.subject)
        if self._any.search(line.line):
            for rule in self._general:
                if match := rule.match(line):
                    return _found(rule, match, "")
        return None


def _found(rule: Rule, match: re.Match[str], subject: str) -> Found:
    groups = match.groupdict("")
    return Found(rule, groups.get("subject", subject), rule.text.format_map(groups))


def _unnamed(pattern: re.Pattern[str]) -> str:
    """Return the text of a pattern with its groups unnamed: a name must not occur twice in a pattern."""
    return re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern)


@dataclass(slots=True)
class Event:
    """Lines of one fault of one device within its window. `over`: the line that ended it, or empty."""

    rule: Rule
    subject: str
    text: str
    device: str
    first_s: float
    lines: int = 0
    over: str = ""


def events_of(lines: Iterable[Line], find: Find) -> list[Event]:
    """Return the events that the lines form, in the order of their first lines."""
    events, last, earlier = list[Event](), dict[tuple[str, str], Event](), list[Line]()
    for line in lines:
        _end(last.values(), line)
        found = find(line)
        earlier.append(line)
        if found is None or not _counts(found.rule, line, earlier):
            continue
        event = last.get((found.subject, found.text))
        if event is None or event.over or line.at_s - event.first_s > found.rule.window_s:
            event = Event(*found, line.device, line.at_s)
            events.append(event)
            last[found.subject, found.text] = event
        event.lines += 1
    return events


def _counts(rule: Rule, line: Line, earlier: Sequence[Line]) -> bool:
    """Return whether a line counts under its rule's `after`."""
    if rule.after is None or earlier[0].at_s > BOOT_S:
        return True
    slot, after = slot_of(line.device), rule.after
    return any(slot_of(before.device) == slot and after.search(before.text) for before in earlier)


def _end(open_events: Iterable[Event], line: Line) -> None:
    """Mark the events that a line ends: by their rule, or as their device is found again."""
    for event in open_events:
        rule = event.rule
        if event.over:
            continue
        if rule.ends_all and rule.ends_all.search(line.line):
            event.over = line.line
        elif not _is_same(event, line):
            continue
        elif line.finds_device:
            event.over = "the device was found again"
        elif rule.ends and rule.ends.search(line.text):
            event.over = line.text


def _is_same(event: Event, line: Line) -> bool:
    """Return whether a line concerns an event's device: its interface, its address, or else its driver."""
    if line.subject == event.subject:
        return True
    if not event.device:
        return line.driver == event.subject
    return bool(line.device) and slot_of(line.device) == slot_of(event.device)


def findings(events: Sequence[Event], now_s: float) -> Iterator[Finding]:
    """Yield a finding per device and fault; a finding fails if its fault lasts or repeats."""
    groups: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in events:
        groups[event.subject, event.text].append(event)
    for (subject, text), same in sorted(groups.items()):
        rule, last = same[0].rule, same[-1]
        counted = text if len(same) == same[0].lines == 1 else f"{text}, {counts(same)}"
        since_s = now_s - rule.hours * HOUR_S if rule.hours else 0.0
        recent = sum(event.first_s >= since_s for event in same)
        if not rule.is_fault:
            yield passed(counted, subject)
        elif recent < rule.events:
            yield passed(f"{counted}, expected fewer than {rule.events} in {rule.hours:g} h", subject)
        elif last.over and not repeats(same, now_s):
            yield passed(f"{counted}; over: {last.over}", subject)
        else:
            yield failed(counted, subject)


def repeats(same: Sequence[Event], now_s: float) -> bool:
    """Return whether events came often enough within the last hour to be a fault, although they are over."""
    count, hours = REPEATS
    return sum(event.first_s >= now_s - hours * HOUR_S for event in same) >= count


def counts(same: Sequence[Event]) -> str:
    """Return how many events, of how many lines."""
    lines, number = sum(event.lines for event in same), len(same)
    text = "1 event" if number == 1 else f"{number} events"
    return text if lines == number else f"{text} of {lines} lines"
