"""Measures replays of a recorded log: whether every stage produces the same records, and how fast.

The default `up` runs with random faults, colliding transfers and a job; in the middle its workers are killed
with SIGKILL. Then `fabrictime replay all` replays the whole log in one process and compares, as a user would.
Meanwhile, all services but the log are paused, so the speed is that of a replay alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from fabrictime.bench import Figure, Progress, Target, Value
from fabrictime.bench._fabric import CannotRun, needs_fabric
from fabrictime.bench.pipeline._product import Product, running_product
from fabrictime.commands.replay.run import STAGES
from fabrictime.testbed.control import ControlClient, socket_path
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.topics import STEPS, TOPICS

NAME: Final = "replay"
TARGETS: Final[Mapping[str, Target]] = {
    **{f"replay_same_{stage}": Target("1", ">=", 1) for stage in STAGES},
    "replay_speed": Target("x", ">=", 20),
    "steps_share": Target("1", "<=", 0.01),
    **{f"replay_speed_{stage}": Target("x") for stage in STAGES},
}

SECONDS, QUICK_SECONDS = 600.0, 60.0
WARM_S: Final = 15.0
FAULT_S, REST_S = (3.0, 8.0), (4.0, 12.0)
KINDS: Final = ("blackhole {}", "grey 5% {}", "grey 20% {}", "down {}")
KILLED: Final = ("worker", "links", "policy")
"""Prefixes of the names of the services that are killed."""
SHOWN: Final = 3
"""Number of differences that are printed for each stage."""
REPLAY_LIMIT_S: Final = 600.0
SETTLE_S: Final = 12.0
"""Pause after the last record, in which everything that follows from it is published."""


def run(progress: Progress, quick: bool = False) -> Mapping[str, Value]:
    """Measure and return the figures by key, in about twelve minutes, or three with `quick`."""
    return measure(progress, quick)


@needs_fabric(tuple(TARGETS))
def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Record a log, replay it, and return the figures by key."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with running_product(progress, None) as product:
        time.sleep(WARM_S)
        begin_s = time.time()
        _record(product, seconds, progress)
        end_s = time.time()
        time.sleep(SETTLE_S)
        progress("replay all")
        with _paused(product):
            began_s = time.monotonic()
            result = _replayed(product, begin_s - WARM_S, end_s)
            took_s = time.monotonic() - began_s
        share = _steps_share(product)
    figures: dict[str, Value] = {"steps_share": share}
    for stage in result["stages"]:
        name, count = stage["stage"], len(stage["differences"])
        note = f"{stage['published']} published, {stage['replayed']} replayed, {count} differ"
        if stage["unrecorded"]:
            note += f", {stage['unrecorded']} without steps at the kill"
        for difference in stage["differences"][:SHOWN]:
            progress(f"{name}: {json.dumps(difference)[:500]}")
        figures[f"replay_same_{name}"] = Figure(stage["replay_same"], "1", note)
        figures[f"replay_speed_{name}"] = (end_s - begin_s) / max(stage["took_s"], 1e-3)
    return figures | {
        "replay_speed": Figure((end_s - begin_s) / took_s, "x", f"{took_s:.1f} s, with the start of Python")
    }


def _record(product: Product, seconds: float, progress: Progress) -> None:
    """Run `seconds` of random faults, transfers and a job; kill the workers half-way."""
    control, chance = ControlClient(socket_path(product.data)), random.SystemRandom()
    links = [link for link in sorted(control.ask("show")["links"]) if ">spine" in link]
    until_s, is_killed = time.monotonic() + seconds, False
    loads = [_fabric(product, "job", "allreduce", "--size", "200kb", "--for", f"{seconds:.0f}s")]
    try:
        while (left_s := until_s - time.monotonic()) > 0:
            if not is_killed and left_s < seconds / 2:
                is_killed = True
                progress(f"killed: {', '.join(_kill(product))}")
            fault = chance.choice(KINDS).format(chance.choice(links))
            lasts_s = chance.uniform(*FAULT_S)
            control.ask("fault", line=f"{fault} for {lasts_s:.1f}s")
            hosts = chance.sample(range(1, 9), 3)
            for sender in hosts[1:]:
                arguments = (f"h{sender}", f"h{hosts[0]}", "--rate", "70mbit", "--for", f"{lasts_s:.0f}s")
                loads.append(_fabric(product, "flow", *arguments))
            progress(f"{left_s:.0f} s left: {fault} for {lasts_s:.1f} s, transfers to h{hosts[0]}")
            time.sleep(min(max(0.0, left_s), lasts_s + chance.uniform(*REST_S)))
    finally:
        for load in loads:
            load.terminate()
            load.wait(10)


def _fabric(product: Product, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fabrictime", "fabric", *arguments, "--dir", str(product.data)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _kill(product: Product) -> list[str]:
    """Kill the workers with SIGKILL; return their names."""
    names = []
    for pid, name in product.services().items():
        if name.startswith(KILLED):
            os.kill(pid, signal.SIGKILL)
            names.append(name)
    return names


@contextmanager
def _paused(product: Product) -> Iterator[None]:
    """Pause all processes of `up` but the log."""
    pids = [pid for pid, name in product.services().items() if name != "log"]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _replayed(product: Product, begin_s: float, end_s: float) -> Any:
    command = [sys.executable, "-m", "fabrictime", "replay", "all", "--json", "--dir", str(product.data)]
    command += ["--from", f"{begin_s:.3f}", "--to", f"{end_s:.3f}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=REPLAY_LIMIT_S, cwd=Path.cwd())
    if not done.stdout.strip():
        raise CannotRun(f"fabrictime replay: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _steps_share(product: Product) -> Figure:
    """Return the size of all records of steps divided by the size of all other messages in the log."""
    sizes = dict.fromkeys(TOPICS, 0)
    with TopicReader.open(product.bootstrap, dict.fromkeys(TOPICS.values(), BEGINNING)) as reader:
        for message in reader.read_to_end():
            sizes[message.topic] += len(message.value or b"") + len(message.key_bytes or b"")
    steps = sizes.pop(STEPS.name)
    others = sum(sizes.values())
    return Figure(steps / others, "1", f"{steps / 1e3:.0f} of {others / 1e3:.0f} kB")
