"""Measures how clock windows survive jumps of log time: ahead, back, a leader that is behind, CreateTime.

The bench runs an embedded log whose append time can step, a stream worker, and synthetic probes of six NICs.
A jump is survived if windows in the new log time follow, all clocks are SYNCED again, the worker has not
ended, and `fabrictime clock --check` reports whether log time is right. Topics with CreateTime must be
refused or corrected before anything is read from them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime.bench._apache_kafka import NotAvailable, running
from fabrictime.bench._fleet import SyntheticFleet
from fabrictime.bench._pipeline import Service, stream_worker
from fabrictime.bench._stepped_log import SteppedLog
from schemas.kafka.admin import TIMESTAMP_TYPE, TopicsError, create_topic, create_topics, topic_config
from schemas.kafka.producer import load_producer
from schemas.kafka.reader import END, TopicReader
from schemas.topics import CLOCK_OFFSETS, PROBES

PARTITIONS: Final = 4
NICS: Final = 6
WINDOW_MS: Final = 1000
"""Length of a clock window: the default."""
WORKER: Final = {"stages": ["map", "solve"], "session_timeout_s": 3, "window_ms": WINDOW_MS}
FLUSH_S: Final = 0.05
PAIRS: Final = 4
"""Number of coded pairs per peer and flush."""
WARM_S: Final = 60.0
WATCH_S: Final = 12.0
"""Time for which windows are watched after a jump."""
GIVE_UP_S: Final = 60.0
"""Time after a jump until all clocks must be SYNCED again."""
CHECK_S: Final = 60.0
MAX_APART_NS: Final = 10_000_000_000
"""A window this far or farther from the present log time belongs to the time before the jump."""
SYNCED: Final = "SYNCED"


class Jump(NamedTuple):
    """A step of the log's clock, after which it differs from the system clock by `wrong_s`.

    With `is_leader` only every second partition's clock steps. `check_code` is the exit code that `fabrictime
    clock --check` must have from then on.
    """

    name: str
    wrong_s: int
    check_code: int
    is_leader: bool = False


JUMPS: Final = (
    Jump("+120 s", 120, 1),
    Jump("back from +120 s", 0, 0),
    Jump("+8 h", 8 * 3600, 1),
    Jump("back from +8 h", 0, 0),
    Jump("leader 30 s behind", -30, 0, is_leader=True),
)
CREATE_TIME: Final = "CreateTime"
QUICK_JUMPS: Final = (JUMPS[0], JUMPS[1], JUMPS[4])


class Window(NamedTuple):
    """A received clock window; `_s` times count from the jump, `_ns` times are log time."""

    received_s: float
    end_ns: int
    """End of the window, computed from its number, which counts in log time."""
    is_synced: bool
    """Whether all clocks are SYNCED."""


class Outcome(NamedTuple):
    """The effect of a jump; a time is None if it was not reached while windows were watched."""

    resume_s: float | None
    """Longest time without a new window in the new log time."""
    synced_s: float | None
    """Time until all clocks were SYNCED in a window of the new log time."""


def evaluated(windows: Sequence[Window], jump_ns: int, watched_s: float) -> Outcome:
    """Return the effect of a jump to log time `jump_ns`, from the windows received within `watched_s`."""
    new = [
        window
        for window in windows
        if 0 < window.end_ns - jump_ns < watched_s * 1e9 + MAX_APART_NS and window.received_s <= watched_s
    ]
    if not new:
        return Outcome(None, None)
    ends = dict.fromkeys(window.end_ns for window in new)
    first = [min(window.received_s for window in new if window.end_ns == end) for end in ends]
    times = [0.0, *sorted(first), watched_s]
    synced = [window.received_s for window in new if window.is_synced]
    gaps = [after - before for before, after in pairwise(times)]
    return Outcome(max(gaps), min(synced, default=None))


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Measure and return figures by key, in three minutes; `quick` omits the jump of eight hours."""
    jumps = QUICK_JUMPS if quick else JUMPS
    problems: dict[str, list[str]] = {}
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="ft-log-time-") as name:
        folder = Path(name)
        with (
            SteppedLog(folder / "log", PARTITIONS) as log,
            stream_worker(log.bootstrap, folder, **WORKER) as worker,
        ):
            probing = _Probing(log.bootstrap)
            try:
                progress("log time: the clocks become SYNCED")
                probing.until(WARM_S, lambda: probing.is_synced)
                for jump in jumps:
                    outcome, problems[jump.name] = _one(log, probing, worker, jump)
                    outcomes.append(outcome)
                    progress(f"log time: {jump.name}: {_text(outcome, problems[jump.name])}")
            finally:
                probing.close()
            problems[CREATE_TIME], how = _create_time(log.bootstrap, folder / "apache")
        progress(f"log time: {'; '.join(problems[CREATE_TIME]) or how}")
    return _figures(outcomes, problems, how)


def _figures(outcomes: Iterable[Outcome], problems: dict[str, list[str]], how: str) -> dict[str, Value]:
    bad = [f"{name}: {', '.join(texts)}" for name, texts in problems.items() if texts]
    survived = sum(not texts for texts in problems.values())
    resumed = [outcome.resume_s for outcome in outcomes]
    synced = [outcome.synced_s for outcome in outcomes]
    figures: dict[str, Value] = {
        "log_time_jumps_survived": Figure(
            survived / len(problems), note="; ".join([f"{survived} of {len(problems)}", *bad, how])
        )
    }
    times = {"windows_resume_s": resumed, "clocks_synced_after_jump_s": synced}
    for key, durations in times.items():
        measured = [duration for duration in durations if duration is not None]
        figures[key] = (
            Figure(max(measured), "s", f"worst of {len(measured)} jumps, windows of 1 s")
            if measured and len(measured) == len(durations)
            else Missing(
                f"not within {GIVE_UP_S:g} s after {len(durations) - len(measured)} of {len(durations)} jumps"
            )
        )
    return figures


def _one(log: SteppedLog, probing: _Probing, worker: Service, jump: Jump) -> tuple[Outcome, list[str]]:
    """Step log time; return the outcome and the problems as lines of text."""
    jump_ns, began_s = time.time_ns(), time.monotonic()
    if jump.is_leader:
        log.change_leader(jump.wrong_s)
    else:
        log.wrong_s = jump.wrong_s
        jump_ns += jump.wrong_s * 1_000_000_000
    probing.windows.clear()
    probing.until(WATCH_S)

    def outcome() -> Outcome:
        watched_s = time.monotonic() - began_s
        windows = [w._replace(received_s=w.received_s - began_s) for w in probing.windows]
        return evaluated(windows, jump_ns, watched_s)

    probing.until(GIVE_UP_S - WATCH_S, lambda: outcome().synced_s is not None)
    result = outcome()
    problems = []
    if result.resume_s is None:
        problems.append("no window in the new log time")
    if result.synced_s is None:
        problems.append("clocks not SYNCED again")
    if worker.process.poll() is not None:
        problems.append(f"the worker ended with {worker.process.returncode}")
    code, line = _check(log.bootstrap, probing)
    if code != jump.check_code:
        problems.append(f"clock --check exits with {code}, expected {jump.check_code}: {line}")
    return result, problems


def _text(outcome: Outcome, problems: Sequence[str]) -> str:
    resume = "no window" if outcome.resume_s is None else f"windows after {outcome.resume_s:.2f} s"
    synced = "not SYNCED" if outcome.synced_s is None else f"SYNCED after {outcome.synced_s:.2f} s"
    return "; ".join([resume, synced, *problems])


def _check(bootstrap: str, probing: _Probing) -> tuple[int | None, str]:
    """Return the exit code and the last line of `fabrictime clock --check`, while probes continue."""
    command = [sys.executable, "-m", "fabrictime", "clock", "--check", "--log", bootstrap]
    check = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    probing.until(CHECK_S, lambda: check.poll() is not None)
    if check.poll() is None:
        check.kill()
    lines = check.communicate()[1].strip().splitlines() or [""]
    return check.returncode, lines[-1]


def _create_time(embedded: str, folder: Path) -> tuple[list[str], str]:
    """Return the problems with topics that use CreateTime, and a text on the method of the trial."""
    problems = [] if _refuses_create_time(embedded) else ["the embedded log takes it"]
    folder.mkdir()
    try:
        with running(folder, "log.message.timestamp.type=CreateTime\n") as bootstrap:
            time_type = _at_start(bootstrap)
    except NotAvailable as reason:
        return problems, f"CreateTime: refused by the embedded log; Apache Kafka not tried: {reason}"
    if time_type not in ("refused", "LogAppendTime"):
        problems.append(f"{PROBES.name} of Apache Kafka is accepted with {time_type}")
    return problems, f"CreateTime: refused by the embedded log, {time_type} at the start on Apache Kafka"


def _refuses_create_time(bootstrap: str) -> bool:
    try:
        create_topic(bootstrap, "create-time", PARTITIONS, {TIMESTAMP_TYPE: CREATE_TIME})
    except TopicsError:
        return True
    return False


def _at_start(bootstrap: str) -> str:
    """Create a topic with CreateTime, and let the product create its topics.

    Returns `refused` if it raised an error, or else the topic's timestamp type afterwards.
    """
    create_topic(bootstrap, PROBES.name, PARTITIONS, {TIMESTAMP_TYPE: CREATE_TIME})
    try:
        create_topics(bootstrap, partitions=PARTITIONS, topics={PROBES.name: PROBES})
    except TopicsError:
        return "refused"
    return topic_config(bootstrap, PROBES.name)[TIMESTAMP_TYPE]


class _Probing:
    """Sends the batches of all NICs every 50 ms, and receives the clock windows."""

    def __init__(self, bootstrap: str) -> None:
        self.windows: list[Window] = []
        """Received windows; their `received_s` is monotonic time."""
        self._fleet = SyntheticFleet(NICS, peers=NICS - 1, paths=1, epoch_ns=time.time_ns())
        self._producer = load_producer(bootstrap, {})
        self._reader = TopicReader.open(bootstrap, {CLOCK_OFFSETS: END}, fetch_wait_ms=10)

    @property
    def is_synced(self) -> bool:
        """Whether all clocks of the newest window are SYNCED."""
        return bool(self.windows) and self.windows[-1].is_synced

    def until(self, seconds: float, condition: Callable[[], bool] | None = None) -> None:
        """Send probes for `seconds`, or until `condition()` is true."""
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s and not (condition is not None and condition()):
            now_ns = time.time_ns()
            for name in self._fleet.members:
                value = self._fleet.message(name, now_ns - int(FLUSH_S * 1e9), now_ns, PAIRS)
                self._producer.produce(PROBES.name, value, name)
            self._producer.poll(0)
            self._receive(max(0.001, FLUSH_S - (time.monotonic() - now_s)))

    def _receive(self, wait_s: float) -> None:
        for _, record in self._reader.decoded(self._reader.poll(wait_s)):
            if record is not None:
                states = {clock["state"] for clock in record["clocks"]}
                is_synced = states == {SYNCED} and len(record["clocks"]) == NICS
                end_ns = (record["window"] + 1) * WINDOW_MS * 1_000_000
                self.windows.append(Window(time.monotonic(), end_ns, is_synced))

    def close(self) -> None:
        """Close the connections to the log."""
        self._producer.flush(5)
        self._reader.close()
