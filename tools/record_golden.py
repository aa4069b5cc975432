"""Record the inputs of the stream stages for the golden tests.

`python tools/record_golden.py run fabric RAW` runs `fabrictime up` on the fabric of real packets, with its
faults one after another, and writes every topic to the folder RAW. `run sim RAW` writes the topics of the
simulated fleet and the stages in one process. It runs in simulated time, so that a busy machine changes
nothing. `cut CASE RAW` reduces RAW to `tests/golden/CASE/` and computes the expected outputs with the code of
this checkout. `expect CASE` computes the expected outputs again.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


from fabrictime.bench._fabric import running_up  # noqa: E402 - the checkout, wherever this is called from
from fabrictime.bench._sim_pipeline import FLEET_TOPICS, SimPipeline, all_stages  # noqa: E402
from fabrictime.runtime import status  # noqa: E402
from fabrictime.testbed.control import ControlClient, socket_path  # noqa: E402
from producers.sim.settings import SimSettings  # noqa: E402
from producers.sim.setup import topology_file  # noqa: E402
from producers.sim.simulation import Simulation  # noqa: E402
from schemas import codec  # noqa: E402
from schemas.kafka.message import Message  # noqa: E402
from schemas.kafka.reader import BEGINNING, TopicReader  # noqa: E402
from schemas.topics import PROBES, TOPICS  # noqa: E402
from streams.runtime.fabric_tables import FabricTables  # noqa: E402
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Output, Owner, Stage  # noqa: E402
from tests.golden import goldens, replay  # noqa: E402

START_S: Final = 400.0
MS: Final = 1_000_000
SETTINGS: Final = """
[up]
web = false
workers = 1
clock_pages = false
[log]
port = 0
[history]
port = 0
[web]
port = 0
"""
SIM_S: Final = 36
SIM_NICS: Final = 256
SIM: Final[dict[str, Any]] = {
    "shard": "sim",
    "peers": 5,
    "paths": 3,
    "rate_pps": 50,
    "load": 0,
    "rate_bps": 8_000_000_000,
    "candidate_ports": 16,
    "route_pairs": 64,
    "flush_ms": 100,
    "jobs": [
        {"name": "train", "kind": "allreduce", "nics": 16, "bytes": 4e7},
        {"name": "moe", "kind": "alltoall", "nics": 8, "bytes": 2e7, "placed": "apart"},
    ],
    "faults": [
        "down leaf1>spine2 after 6s for 4s",
        "blackhole leaf2>spine3 after 11s for 4s",
        "grey 20% leaf1>spine5 after 14s for 9s",
        "flap 6 leaf2>spine7 every 2s after 12s",
        "dead h20 after 18s for 4s",
        "incast 12 h9/eth1 after 25s for 4s",
        "slow-receiver 30% h3/eth2 after 30s for 2s",
        "pause-storm h5/eth3 after 33s for 2s",
    ],
}
FABRIC: Final = """
[fabric]
host_rate_bps = 100_000_000
fabric_rate_bps = 100_000_000
"""


@contextlib.contextmanager
def running(fleet: str, settings: str, work: Path) -> Iterator[tuple[Path, str]]:
    """Run `fabrictime up` in a context; yield its data directory and the address of its log."""
    config, data = work / "fabrictime.toml", work / "data"
    config.write_text(settings, encoding="utf-8")
    options = ["--fleet", fleet, "--for", "15m", "--config", str(config)]
    with running_up(options, data, work / "up.log") as bootstrap:
        yield data, bootstrap


def copy_log(bootstrap: str, data: Path, raw: Path) -> None:
    """Write all messages of the log to `raw`, and the topology file if there is one."""
    raw.mkdir(parents=True, exist_ok=True)
    messages = read_log(bootstrap)
    for file in (data / "run").glob("topology.json"):
        shutil.copy(file, raw / "topology.json")
    goldens.write_lines(raw / "messages.jsonl.xz", messages, preset=0)


def read_log(bootstrap: str) -> list[tuple[str, int, int, int, str, bytes | None]]:
    """Return (topic, partition, offset, append ms, key, value) of all messages up to now."""
    with TopicReader.open(bootstrap, dict.fromkeys(TOPICS.values(), BEGINNING)) as reader:
        return [
            (*message.place, message.offset, message.append_ns // MS, message.key, message.value)
            for message in reader.read_to_end()
        ]


def decode_log(raw: Path) -> None:
    """Decode the messages of a recording, and write them as rows, one file for each topic."""
    rows: dict[str, list[goldens.Row]] = {}
    for topic, partition, offset, append_ms, key, value in goldens.read_lines(raw / "messages.jsonl.xz"):
        try:
            record = None if value is None else codec.decode(value, TOPICS[topic].record)
        except codec.BadRecord as error:
            print(f"{topic}/{partition} {offset}: {error}")
            continue
        row = goldens.Row(topic, partition, offset, append_ms * MS, key, record)
        rows.setdefault(topic, []).append(row)
    for topic, of_topic in rows.items():
        goldens.write_rows(raw / f"{topic}.jsonl.xz", of_topic, preset=1)
        print(f"{topic}: {len(of_topic)} messages", flush=True)


# ------------------------------------------------------------------------------------ the two fleets


class Recorder(Operator):
    """Keeps every message of the log as a row, by topic."""

    def __init__(self, rows: dict[str, list[goldens.Row]]) -> None:
        super().__init__()
        self._rows = rows

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Decode the messages and keep them as rows."""
        for message in messages:
            record = (
                None if message.value is None else codec.decode(message.value, TOPICS[message.topic].record)
            )
            row = goldens.Row(
                message.topic, message.partition, message.offset, message.append_ns, message.key, record
            )
            self._rows.setdefault(message.topic, []).append(row)

    def due_ns(self) -> int:
        """Return NEVER_NS, since no work becomes due."""
        return NEVER_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Sequence[Output]:
        """Return no outputs."""
        return ()


class RecorderStage(Stage):
    """A stage that records the messages of all topics."""

    name = "recorder"
    owner = PROBES
    inputs = tuple(map(Input, TOPICS.values()))
    outputs = ()
    per_partition = False

    def __init__(self) -> None:
        self.rows: dict[str, list[goldens.Row]] = {}

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> Recorder:
        """Return an operator that records into the stage's `rows`."""
        return Recorder(self.rows)


def run_sim(raw: Path) -> None:
    """Run the simulated fleet with its faults, and write its topics to the folder `raw`."""
    raw.mkdir(parents=True, exist_ok=True)
    sim = Simulation(SimSettings.model_validate({"nics": SIM_NICS, **SIM}), topics=FLEET_TOPICS)
    recorder = RecorderStage()
    config = {"thresholds": [{"name": "flaps_max", "value": 2.0}]}
    pipeline = SimPipeline(sim, [*all_stages(), recorder], config=config)
    for second in range(SIM_S):
        for _ in range(100):
            pipeline.tick()
        counts = {topic: len(rows) for topic, rows in sorted(recorder.rows.items())}
        print(f"{second + 1} s: {counts}", flush=True)
    for topic, rows in recorder.rows.items():
        goldens.write_rows(raw / f"{topic}.jsonl.xz", rows, preset=1)
    text = topology_file(sim.fleet).model_dump_json(exclude_none=True)
    (raw / "topology.json").write_text(text, encoding="utf-8")


def run_fabric(raw: Path) -> None:
    """Run the fabric of real packets with every kind of fault and two jobs; write its topics to `raw`."""
    with (
        tempfile.TemporaryDirectory(prefix="golden-") as folder,
        running("fabric", SETTINGS + FABRIC, Path(folder)) as (data, bootstrap),
    ):
        control = ControlClient(socket_path(data))
        begin_s = time.monotonic()
        while not socket_path(data).exists() or not _shown(control):
            if time.monotonic() - begin_s > START_S:
                raise SystemExit("the fabric does not answer")
            time.sleep(0.5)
        time.sleep(10)
        _fabric_faults(control, data, bootstrap)
        copy_log(bootstrap, data, raw)
    decode_log(raw)


def _shown(control: ControlClient) -> Mapping[str, Any] | None:
    with contextlib.suppress(Exception):
        fabric_state: Mapping[str, Any] = control.ask("show")
        return fabric_state
    return None


def _fabric_faults(control: ControlClient, data: Path, bootstrap: str) -> None:
    def job(**spec: Any) -> threading.Thread:
        def follow() -> None:
            with contextlib.suppress(Exception):  # the fabric goes before the job ends
                for _ in control.stream("job", 200, slot_s=0, **spec):
                    pass

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        return thread

    def rule(*arguments: str) -> None:
        command = [sys.executable, "-m", "fabrictime", "config", "rule", *arguments, "--log", bootstrap]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def flap() -> None:
        link = next(
            one for one in control.ask("show")["links"] if one.startswith("leaf4:") and "spine3" in one
        )
        for _ in range(8):
            control.ask("fault", line=f"blackhole {link}")
            time.sleep(0.35)
            control.ask("clear")
            time.sleep(0.5)

    def fault(line: str, duration_s: float) -> Callable[[], None]:
        def make() -> None:
            control.ask("fault", line=line)
            time.sleep(duration_s)
            control.ask("clear")

        return make

    def silent() -> None:
        children = status.read(data)["children"]
        pid = next(row["pid"] for row in children if row["name"].startswith("prober h4"))
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
        time.sleep(4.5)
        subprocess.run(["kill", "-CONT", str(pid)], check=True)

    job(
        kind="alltoall",
        hosts=[],
        connections=1,
        size_bytes=400_000,
        gap_s=0.3,
        duration_s=115.0,
        seed=3,
        job="train",
    )
    job(
        kind="rpc",
        hosts=["h2", "h7"],
        connections=1,
        size_bytes=20_000,
        gap_s=0.05,
        duration_s=115.0,
        seed=5,
        job="rpc",
    )
    rule("golden", "h1>h5", "--p99-us", "1", "--for", "3s")
    time.sleep(10)
    steps: Sequence[tuple[str, Callable[[], None]]] = (
        ("blackhole", fault("blackhole leaf1>spine2", 3)),
        ("down", fault("down spine3>leaf2", 3)),
        ("grey", fault("grey 25% leaf3>spine1", 5)),
        ("host", fault("down h3", 3)),
        ("spine", fault("blackhole spine4", 3)),
        ("flaps", flap),
        ("silent", silent),
        (
            "incast",
            lambda: job(
                kind="incast",
                hosts=["h8", "h1", "h3", "h5"],
                connections=2,
                size_bytes=4_000_000,
                duration_s=7.0,
                seed=7,
                job="incast",
            ).join(15),
        ),
        (
            "collision",
            lambda: job(
                kind="alltoall",
                hosts=["h1", "h2", "h5", "h6"],
                connections=4,
                size_bytes=8_000_000,
                duration_s=8.0,
                seed=9,
                job="heavy",
            ).join(15),
        ),
    )
    for name, step in steps:
        print(name, flush=True)
        step()
        time.sleep(4)


# ------------------------------------------------------------------------------------ command line


def main() -> None:
    """Run the action that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "cut", "expect"))
    parser.add_argument("case", choices=("sim", "fabric"))
    parser.add_argument("raw", type=Path, nargs="?", help="folder of the whole recording")
    options = parser.parse_args()
    if options.what != "expect" and options.raw is None:
        parser.error("RAW: expected a folder")
    if options.what == "run":
        (run_sim if options.case == "sim" else run_fabric)(options.raw)
        return
    if options.what == "cut":
        goldens.cut(options.raw, options.case)
    goldens.write_expected(options.case, replay.outputs(options.case))


if __name__ == "__main__":
    main()
