"""Measures how soon and how correctly the live page names each fault of the testbed.

`fabrictime up` runs as under `make run`, with its page open in a browser, and the faults follow one another.
The time runs from the moment before a fault until the page has painted every expected row. Further results
are the share of faults for which only the right rows appeared, and a line per fault with the page's rows. To
run only this part: `fabrictime bench detect web [--quick]`. The evidence of some faults takes longer than a
second. These faults have their reason in the table and are excluded from the worst time.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._fabric import CannotRun, running_fabric, state_of
from fabrictime.bench._waiting import wait_for
from fabrictime.bench.detect.web_reader import (
    BrowserReader,
    Named,
    Reader,
    Sight,
    TopicReader_,
    browser_missing,
)
from fabrictime.runtime import status
from fabrictime.runtime.supervisor import State
from fabrictime.testbed.control import ControlClient
from schemas.ids import cable_id

LINK_BPS: Final = 100_000_000
"""Rate of every link. Two flows on two cores can fill it, but not 1 Gbit/s. Other settings are defaults."""
SETTINGS: Final = f"""
[fabric]
host_rate_bps = {LINK_BPS}
fabric_rate_bps = {LINK_BPS}
"""
START_S: Final = 90.0
WARM_S: Final = 12.0
"""Time after the first delays in which paths are traced and agents learn what to expect."""
GIVE_UP_S: Final = 8.0
STAND_S: Final = 1.2
"""Time for which a fault stays after it was named: further verdicts about it count too."""
HEAL_S: Final = 20.0
CALM_S: Final = 1.0
PULL_S: Final = 0.05
MOVED_S: Final = 60.0
FLAPS: Final = 9
"""Number of flaps, which is more than `flaps_max`."""
FLAP_S: Final = 0.35
STANDS_BYTES: Final = 20_000
STANDS_MS: Final = 60.0
"""A true queue counts as standing if it has been deep in all samples of this time."""
TRAFFIC_S: Final = 8.0
TRAFFIC_BPS: Final = 70_000_000
"""Rate of each of two flows into one link; neither flow fills its sender's own link."""

LOSES_LITTLE: Final = "so few losses take time to be counted: grey_link_5pct_detect_s_p95 has 2 s"


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and the rows that the page must show for it.

    `make` and `heal` create and remove the fault. `expected_kinds` maps each subject that must be shown to
    its kind; `allowed` has further permitted rows. `slow` is a reason why the fault cannot be named within a
    second. With `from_end`, times count from the end of `make` and `heal`. With `stays`, the page keeps the
    row.
    """

    subject: str
    make: Callable[[], object]
    heal: Callable[[], object]
    expected_kinds: Mapping[str, str]
    allowed: frozenset[str] = frozenset()
    slow: str | None = None
    from_end: bool = False
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The page's rows for a case, s from the fault's creation and removal; None if too late."""

    case: Case
    named_s: float | None
    cleared_s: float | None
    wrong: tuple[str, ...]
    lines: str

    @property
    def right(self) -> bool:
        """Whether the page named every expected subject, and nothing else."""
        return self.named_s is not None and not self.wrong


def scored(case: Case, sights: Sequence[Sight], made_ms: float, healed_ms: float) -> Seen:
    """Return the result of a case, from all sightings from its creation to the end of the following quiet."""
    named_s = cleared_s = None
    wrong: dict[str, None] = {}
    lines = ""
    stands = False
    ends = [*(at_ms for at_ms, _ in sights[1:]), math.inf][: len(sights)]
    for (at_ms, rows), end_ms in zip(sights, ends, strict=True):
        row_by_subject = {row.subject: row for row in rows}
        kinds = {subject: row.kind for subject, row in row_by_subject.items()}
        here = case.expected_kinds.keys() & kinds
        right = case.expected_kinds.items() <= kinds.items()
        if named_s is None and right:
            named_s = (at_ms - made_ms) / 1e3
        stands = stands or (right and end_ms > made_ms)  # a cable that flaps is DOWN at times until then
        if not lines and here:
            lines = row_by_subject[min(here)].text
        wrong |= dict.fromkeys(_wrong(case, rows, stands))
        if at_ms <= healed_ms or here:
            cleared_s = None
        elif cleared_s is None:
            cleared_s = (at_ms - healed_ms) / 1e3
    if named_s is not None and cleared_s is None and _passed(case, sights[-1].rows):
        cleared_s = 0.0  # it had passed by itself, or was cleared, before it was undone
    return Seen(case, named_s, cleared_s, tuple(wrong), lines)


def _passed(case: Case, rows: Iterable[Named]) -> bool:
    return case.expected_kinds.keys().isdisjoint(row.subject for row in rows)


def _wrong(case: Case, rows: Iterable[Named], stands: bool) -> Iterator[str]:
    """Yield the rows that the case does not explain, given whether the expected kind `stands` already.

    A second kind for the same subject is wrong only once it `stands`.
    """
    for row in rows:
        is_expected = row.subject in case.expected_kinds or row.subject in case.allowed
        other = stands and case.expected_kinds.get(row.subject, row.kind) != row.kind
        if other or not is_expected:
            yield f"{row.subject} {row.kind}"


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return the figures by key, in about five minutes, or one and a quarter with `quick`."""
    with running_fabric(progress, SETTINGS) as (control, bootstrap, data):
        url = _web_url(data)
        missing = browser_missing()
        reader: Reader = TopicReader_(bootstrap) if missing else BrowserReader(url)
        with contextlib.closing(reader):
            _wait_drawn(reader, control)
            progress(f"web: {reader.how}" + (f", since {missing}" if missing else ""))
            results = _all(reader, control, progress, quick)
            moved_s = None if quick else _moved_s(reader, control)
    for line in table(results):
        progress(line)
    return _figures(results, moved_s, reader.how, quick)


def _figures(results: Sequence[Seen], moved_s: float | None, how: str, quick: bool) -> dict[str, Value]:
    figures: dict[str, Value] = {"web_names_fault_s_worst": _slowest(results, how)}
    wrong = [
        f"{result.case.subject}: {', '.join(result.wrong) or 'not named'}"
        for result in results
        if not result.right
    ]
    figures["web_names_fault_right"] = Figure(
        sum(result.right for result in results) / len(results),
        note="; ".join(wrong) or f"{len(results)} faults",
    )
    cleared = [result for result in results if result.cleared_s is not None]
    if cleared:
        last = max(cleared, key=lambda result: result.cleared_s or 0.0)
        figures["web_clears_fault_s_worst"] = Figure(last.cleared_s or 0.0, "s", last.case.subject)
    if not quick:
        figures["web_draws_moved_spine_s"] = (
            Missing(f"not drawn as it is {MOVED_S:g} s after the move")
            if moved_s is None
            else Figure(moved_s, "s", "from the move until it is drawn as it is")
        )
    return figures


def _slowest(results: Sequence[Seen], how: str) -> Value:
    """Return the longest time until a fault was named; the note alone covers slow kinds."""
    soon = [result for result in results if result.case.slow is None]
    missed = [result.case.subject for result in soon if result.named_s is None]
    if missed:
        return Missing(f"not named: {', '.join(missed)}")
    worst = max(soon, key=lambda result: result.named_s or 0.0)
    slow = [
        f"{result.case.subject} {_s(result.named_s)}: {result.case.slow}"
        for result in results
        if result.case.slow
    ]
    note = "; ".join([f"{worst.case.subject}, of {len(soon)} faults, {how}", *slow])
    return Figure(worst.named_s or 0.0, note=note)


def table(results: Sequence[Seen]) -> list[str]:
    """Return a line of text for each fault."""
    lines = [f"{'fault':<34} {'named':>8} {'cleared':>8}  rows of the page"]
    for result in results:
        rows_text = result.lines or "nothing"
        beside = f"; WRONGLY {', '.join(result.wrong)}" if result.wrong else ""
        slow = f" ({result.case.slow})" if result.case.slow else ""
        named, cleared = _s(result.named_s), _s(result.cleared_s)
        lines.append(f"{result.case.subject:<34} {named:>8} {cleared:>8}  {rows_text}{beside}{slow}")
    return lines


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


# ----------------------------------------------------------------------------------------------- the faults


def link_cases(
    links: Sequence[str], nics: Sequence[Mapping[str, Any]], ask: Callable[..., object]
) -> list[Case]:
    """Return a case for every kind of fault of the testbed and every kind of target.

    The first `QUICK` cases contain each kind once. `ask` sends a command to the testbed's control.
    """
    ends = {link: tuple(end.partition(":")[0] for end in link.split(">")) for link in links}

    def cable(a: str, b: str) -> str:
        return next(str(cable_id(link)) for link, pair in ends.items() if pair == (a, b))

    def cables(node: str) -> dict[str, str]:
        return {str(cable_id(link)): "DOWN" for link, pair in ends.items() if node in pair}

    def fault(
        line: str,
        expected_kinds: Mapping[str, str],
        allowed: frozenset[str] = frozenset(),
        slow: str | None = None,
    ) -> Case:
        return Case(
            line, lambda: ask("fault", line=line), lambda: ask("clear"), expected_kinds, allowed, slow=slow
        )

    own = {
        nic["host"]: str(cable_id(next(link for link in links if link.startswith(f"{nic['host']}:"))))
        for nic in nics
    }
    port = {nic["host"]: f"{nic['leaf']}:{nic['leaf_port']}" for nic in nics}
    host = [nic["host"] for nic in nics]
    rack = frozenset(nic["host"] for nic in nics if nic["leaf"] == "leaf1")
    leaf1 = frozenset(cables("leaf1"))
    at_leaf1 = {own[host]: "DOWN" for host in rack}
    return [
        fault("blackhole leaf1>spine2", {cable("leaf1", "spine2"): "DOWN"}),
        fault("down spine3>leaf2", {cable("leaf2", "spine3"): "DOWN"}),
        fault("grey 20% leaf3>spine1", {cable("leaf3", "spine1"): "GREY"}),
        fault(f"down {host[2]}", {own[host[2]]: "DOWN"}),
        fault("blackhole leaf2<>spine4", {cable("leaf2", "spine4"): "DOWN"}),
        fault("blackhole spine1>leaf4", {cable("leaf4", "spine1"): "DOWN"}),
        fault("down leaf3>spine2", {cable("leaf3", "spine2"): "DOWN"}),
        fault(f"blackhole {host[4]}", {own[host[4]]: "DOWN"}),
        fault(f"blackhole {host[5]}>leaf3", {own[host[5]]: "DOWN"}),
        fault(f"blackhole leaf4>{host[6]}", {own[host[6]]: "DOWN"}),
        fault(f"down {port[host[7]]}", {own[host[7]]: "DOWN"}),
        fault("blackhole spine3", cables("spine3")),
        fault("down leaf1", at_leaf1, leaf1 | rack),
        fault("blackhole leaf1", at_leaf1, leaf1 | rack),
        fault("grey 50% spine2>leaf1", {cable("leaf1", "spine2"): "GREY"}),
        fault("grey 20% leaf4<>spine4", {cable("leaf4", "spine4"): "GREY"}),
        fault(f"grey 20% {host[1]}>leaf1", {own[host[1]]: "GREY"}),
        fault("grey 10% leaf2>spine1", {cable("leaf2", "spine1"): "GREY"}),
        fault("grey 5% leaf1>spine4", {cable("leaf1", "spine4"): "GREY"}, slow=LOSES_LITTLE),
        fault("down spine2", cables("spine2")),
    ]


QUICK: Final = 4
"""Number of `link_cases` that a quick run uses."""


def _all(reader: Reader, control: ControlClient, progress: Progress, quick: bool) -> list[Seen]:
    fabric_state = control.ask("show")
    links, nics = fabric_state["links"], fabric_state["nics"]
    cases = link_cases(links, nics, control.ask)
    cases = cases[:QUICK] if quick else cases
    results: list[Seen] = []

    def run(case: Case) -> None:
        results.append(_one(reader, case))
        progress(table(results)[-1])

    for case in cases:
        run(case)
    if not quick:
        run(_flapping(links, control))
    reader.open("contention")
    for case in _traffic(links, control)[: 1 if quick else None]:
        run(case)
    return results


def _flapping(links: Sequence[str], control: ControlClient) -> Case:
    """Return the case of a link that flaps too often; its time counts from when the link is up again."""
    link = next(link for link in links if link.startswith("leaf4:") and ">spine3:" in link)

    def flap() -> None:
        for number in range(FLAPS):
            time.sleep(2 * FLAP_S if number else 0.0)
            control.ask("fault", line=f"blackhole {link}")
            time.sleep(FLAP_S)
            control.ask("clear")

    expected_kinds: dict[str, str] = {cable_id(link): "FLAPPING"}
    return Case(
        f"{FLAPS} flaps of leaf4>spine3", flap, lambda: None, expected_kinds, from_end=True, stays=True
    )


def _traffic(links: Sequence[str], control: ControlClient) -> list[Case]:
    """Return the cases of two flows that overload a link: one into a host, one within the fabric."""

    def disjoint(pairs: Sequence[tuple[str, str]], uplink: str | None) -> list[dict[str, Any]]:
        """Return flows whose paths share no link within the fabric, except `uplink` if given."""
        used: set[str] = set()
        flows = []
        for number, (source, destination) in enumerate(pairs):
            for sport in range(41_000 + 1000 * number, 42_000 + 1000 * number):
                inner = control.tcp_route(source, destination, sport, 45_000 + number)[1:-1]
                if (uplink in inner) if uplink else used.isdisjoint(inner):
                    used.update(inner)
                    flows.append(
                        {
                            "source": source,
                            "destination": destination,
                            "sport": sport,
                            "dport": 45_000 + number,
                        }
                    )
                    break
        return flows

    into = next(link for link in links if ">h8:" in link)
    up = next(link for link in links if link.startswith("leaf1:") and ">spine1:" in link)
    cases = []
    for subject, kind, link, flows in (
        ("incast of h1 and h5 at h8", "incast", into, disjoint([("h1", "h8"), ("h5", "h8")], None)),
        (
            "h1>h5 and h2>h7 by leaf1>spine1",
            "collision in the fabric",
            up,
            disjoint([("h1", "h5"), ("h2", "h7")], up),
        ),
    ):
        load = _Load(control, flows, link)
        cases.append(Case(subject, load.start, load.end, {link: kind}, from_end=True))
    return cases


class _Load:
    """TCP flows that run for `TRAFFIC_S`, and the link at which they are expected to queue."""

    def __init__(self, control: ControlClient, flows: Sequence[Mapping[str, Any]], link: str) -> None:
        self._control = control
        self._link = link
        self._flows = flows
        self._threads: list[threading.Thread] = []

    def start(self) -> float:
        """Start all flows; return when their true queue began to stand, ms of CLOCK_REALTIME.

        On a busy machine the queue begins some time after the flows.
        """
        running = [threading.Event() for _ in self._flows]

        def send(flow: Mapping[str, Any], runs: threading.Event) -> None:
            with contextlib.suppress(Exception):  # the fabric may go before its flows end
                for _ in self._control.stream(
                    "flow", TRAFFIC_S + 30, protocol="tcp", rate_bps=TRAFFIC_BPS, duration_s=TRAFFIC_S, **flow
                ):
                    runs.set()

        self._threads = [
            threading.Thread(target=send, args=pair, daemon=True)
            for pair in zip(self._flows, running, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        for runs in running:
            runs.wait(15)
        since_ms: float | None = None
        end_s = time.monotonic() + TRAFFIC_S
        while time.monotonic() < end_s:
            truth = self._control.ask("truth")
            at_ms = truth["at_ns"] / 1e6
            if truth["links"][self._link]["backlog_bytes"] < STANDS_BYTES:
                since_ms = None
            elif since_ms is None:
                since_ms = at_ms
            elif at_ms - since_ms >= STANDS_MS:
                return since_ms
            time.sleep(0.02)
        return time.time_ns() / 1e6

    def end(self) -> None:
        """Wait until the flows have ended."""
        for thread in self._threads:
            thread.join(TRAFFIC_S + 10)


# ------------------------------------------------------------------------------------------------- one fault


def _one(reader: Reader, case: Case) -> Seen:
    """Make a fault, watch the page until some time after it names the fault, heal it, watch on."""
    sights: list[Sight] = []

    def check(seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end_s = time.monotonic() + seconds
        while True:
            sights.extend(reader.news())
            if until() or time.monotonic() > end_s:
                return
            time.sleep(PULL_S)

    def named() -> bool:
        return scored(case, sights, 0.0, float("inf")).named_s is not None

    reader.news()
    made_ms = _timed(case.make, case.from_end)
    sights = _since(reader.news(), made_ms)
    check(GIVE_UP_S, named)
    check(STAND_S)
    healed_ms = _timed(case.heal, case.from_end)
    if not case.stays:
        check(CALM_S)
        check(HEAL_S, lambda: not sights[-1].rows)
    check(CALM_S)
    return scored(case, sights, made_ms, healed_ms)


def _timed(do: Callable[[], object], from_end: bool) -> float:
    """Run `do`; return the start that it reports, or when it began or ended, ms of CLOCK_REALTIME.

    Returns the end if `from_end`, unless `do` reports a start.
    """
    began_ms = time.time_ns() / 1e6
    published = do()
    if isinstance(published, float):
        return published
    return time.time_ns() / 1e6 if from_end else began_ms


def _since(sights: Sequence[Sight], at_ms: float) -> list[Sight]:
    """Return the sightings from `at_ms` on, preceded by the rows shown at that time."""
    before = [sight for sight in sights if sight.at_ms < at_ms]
    stood = Sight(at_ms, before[-1].rows if before else ())
    return [stood, *(sight for sight in sights if sight.at_ms >= at_ms)]


def _moved_s(reader: Reader, control: ControlClient) -> float | None:
    """Exchange two spines at a leaf; return the s until the page draws the new cables, or None."""
    reader.open("fabric")
    _wait_drawn(reader, control)
    before = {cable_id(link) for link in control.ask("show")["links"]}
    began_s = time.monotonic()
    control.ask("move", spine="spine1", other="spine2", leaves=["leaf2"])
    after = {cable_id(link) for link in control.ask("show")["links"]}

    def is_drawn() -> bool:
        drawn = reader.cables()
        return after <= drawn and not drawn & (before - after)

    left_s = MOVED_S - (time.monotonic() - began_s)
    return None if wait_for(is_drawn, left_s) is None else time.monotonic() - began_s


def _web_url(data: Path) -> str:
    """Wait until the page answers and return its address. Raises CannotRun."""

    def is_ready() -> bool:
        rows = (state_of(data) or {"children": []})["children"]
        return any(row["name"] == "web" and row["state"] == State.READY.value for row in rows)

    if wait_for(is_ready, START_S, poll_s=0.2) is None:
        raise CannotRun(f"web: not ready after {START_S:g} s")
    return str(status.read(data)["addresses"]["web"])


def _wait_drawn(reader: Reader, control: ControlClient) -> None:
    """Wait until the page has drawn every cable of the fabric for a while. Raises CannotRun."""
    reader.open("fabric")
    cables = {cable_id(link) for link in control.ask("show")["links"]}
    if wait_for(lambda: cables <= reader.cables(), START_S, poll_s=0.2) is None:
        drawn = len(cables & reader.cables())
        raise CannotRun(f"web: {drawn} of {len(cables)} cables drawn after {START_S:g} s")
    time.sleep(WARM_S)
