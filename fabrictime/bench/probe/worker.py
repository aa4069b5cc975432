"""Runs one NIC of the probe bench in a separate process, as prober or responder, and measures its cost.

The input is one JSON object as argument, then commands as lines on standard input. Each command has one line
of JSON as its answer.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np

from native.core.probe import Engine, Peer, open_sockets
from producers.netns import in_netns

BUFFER_BYTES = 4 << 20
TIMEOUT_MS = 500.0


def main() -> int:
    """Process commands until standard input ends; return the exit code."""
    options = json.loads(sys.argv[1])
    sockets = in_netns(
        options["netns"], lambda: open_sockets(options["address"], 9319, 9320, options["paths"], BUFFER_BYTES)
    )
    engine = Engine(
        sockets,
        nic=options["nic"],
        key=bytes(16),
        rate_pps=options["rate_pps"],
        max_pps=1e6,
        answer_max_pps=1e6,
        timeout_ms=TIMEOUT_MS,
    )
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    _report({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if "ask" in command:
            _report(_ask(engine, Peer(*command["ask"]), command["seconds"]))
        else:
            _report(engine.counters())
    engine.stop()
    thread.join()
    engine.close()
    return 0


def _ask(engine: Engine, peer: Peer, seconds: float) -> dict[str, Any]:
    """Probe `peer` for `seconds`; return the numbers of complete and incomplete probes, and the cost."""
    before = engine.counters()
    cpu, start = time.process_time(), time.monotonic()
    engine.set_peers([peer])
    batches, forward = [], []
    while time.monotonic() - start < seconds:
        time.sleep(0.1)
        batches.append(engine.drain())
        forward.append(batches[-1].forward.copy())
    took_s, cpu_s = time.monotonic() - start, time.process_time() - cpu
    engine.set_peers([])
    samples = sum(len(column) for column in forward)
    time.sleep(2.2 * TIMEOUT_MS / 1e3)  # probes in flight return or are lost
    batches.append(engine.drain())
    after = engine.counters()
    counted = {name: after[name] - before[name] for name in after}
    p1, p50, p99 = np.percentile(np.concatenate(forward), [1, 50, 99]).tolist() if samples else [0.0] * 3
    return {
        "samples": samples,
        "took_s": took_s,
        "cpu_s": cpu_s,
        "sent": counted["requests_sent"],
        "missing": counted["requests_sent"] - counted["samples"],
        "lost": counted["lost"],
        "incomplete": counted["no_t3"] + counted["overflow_samples"] + counted["send_errors"],
        "pairs": counted["pairs"],
        "forward_ns": [p1, p50, p99],
    }


def _report(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
