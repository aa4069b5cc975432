"""Splits the processor time of a stream worker into transport, operators and inference.

A sampling profiler outside of the process (py-spy) takes the Python stacks of all threads. The innermost
frame of this project's code decides: queue inference; any other domain, schemas or native code: operators;
the runtime, or libraries alone: transport. Each thread's processor time is divided by its own samples.
Samples inside of the event loop's `select` count only as far as the thread's processor time exceeds its other
samples: else they waited. Threads without Python code, those of librdkafka, are transport.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fabrictime.bench import Missing
from fabrictime.bench.pipeline._product import threads_cpu_s

KINDS: Final = ("transport", "operators", "inference")
RATE_HZ: Final = 100
_THREAD: Final = re.compile(r"^thread \((\d+)\)")
_FILE: Final = re.compile(r"\(([^()]+?)(?::\d+)?\)$")
_WAITS: Final = re.compile(r"\((?:\S*/)?(?:selectors|threading|queue)\.py(?::\d+)?\)$")
"""Matches innermost frames that wait, or only poll."""
_OURS: Final = re.compile(r"(?:^|/)(streams|schemas|native|fabrictime)/(\w+(?:/\w+)*)\.\w+$")
_RUNTIME: Final = ("streams/runtime/", "streams/app", "fabrictime/", "schemas/kafka/")
_INFERENCE: Final = "streams/queues/"
_INFERENCE_STAGE: Final = "streams/queues/stage"
"""This module receives and publishes, so it counts as an operator."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a worker's processor time over an interval divides into kinds."""

    seconds: Mapping[str, float]
    """Processor seconds of each kind, by kind, one of KINDS."""
    total_s: float
    span_s: float
    begin_ns: int
    end_ns: int
    samples: int


def profile(pid: int, seconds: float) -> Split | Missing:
    """Sample a worker for `seconds` and return its split, or Missing if no profiler can run here."""
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if program is None:
        return Missing("py-spy is not installed: pip install 'fabrictime[bench]'")
    with tempfile.TemporaryDirectory(prefix="fabrictime-bench-") as folder:
        output = Path(folder, "stacks")
        command = [program, "record", "--pid", str(pid), "--duration", str(round(seconds)), "--rate"]
        command += [str(RATE_HZ), "--format", "raw", "--threads", "--nonblocking", "--output", str(output)]
        before, begin_ns = threads_cpu_s(pid), time.time_ns()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        after, end_ns = threads_cpu_s(pid), time.time_ns()
        if done.returncode or not output.exists():
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            return Missing(f"py-spy: {lines[-1] if lines else f'ended with {done.returncode}'}")
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    used_s = {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}
    kinds, samples = split(lines, used_s)
    return Split(kinds, sum(used_s.values()), (end_ns - begin_ns) / 1e9, begin_ns, end_ns, samples)


def split(lines: Iterable[str], used_s: Mapping[int, float]) -> tuple[dict[str, float], int]:
    """Divide threads' processor seconds by the kinds of their samples; return seconds and sample count.

    `lines` are in py-spy's raw format: frames from the outermost, separated by semicolons, and a count.
    """
    busy: dict[int, Counter[str]] = {}
    waiting: Counter[int] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        thread = _THREAD.match(stack)
        if thread is None or not count.isdigit():
            continue
        number = int(thread[1])
        if _WAITS.search(stack):
            waiting[number] += int(count)
        else:
            busy.setdefault(number, Counter())[kind_of(stack.split(";")[1:])] += int(count)
    kinds = dict.fromkeys(KINDS, 0.0)
    for number, seconds in used_s.items():
        counts = busy.get(number, Counter())
        polls = min(waiting[number], max(0.0, seconds * RATE_HZ - counts.total()))
        total = counts.total() + polls
        for kind, samples in counts.items():
            kinds[kind] += seconds * samples / total
        kinds["transport"] += seconds * polls / total if total else seconds
    return kinds, sum(counts.total() for counts in busy.values())


def kind_of(frames: Iterable[str]) -> str:
    """Return the kind of a stack, decided by its innermost frame in this project; the outermost is first."""
    for frame in reversed(list(frames)):
        file = _FILE.search(frame)
        ours = None if file is None or "site-packages" in file[1] else _OURS.search(file[1])
        if ours is not None:
            module = f"{ours[1]}/{ours[2]}"
            if module.startswith(_RUNTIME):
                return "transport"
            is_inference = module.startswith(_INFERENCE) and module != _INFERENCE_STAGE
            return "inference" if is_inference else "operators"
    return "transport"
