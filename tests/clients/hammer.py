"""A writer in a process of its own: `hammer.py PATH lines|joins`. It writes until it is killed.

lines: model n is n * 10^12 ns ahead of the raw clock, with a bound of n ns, as fast as possible. joins: a new
model every 2 ms, up to 2 us from the last one, and slewed as by the actuator.
"""

import random
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from actuators.clock.page import Content, PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel, slew
from native.core.hostclock import raw_ns
from schemas.records import ClockSync

S = 1_000_000_000


def content(slewed: SlewedModel) -> Content:
    now_ns = raw_ns()
    return Content(ClockSync.SYNCED, slewed, now_ns + 60 * S, now_ns + 60 * S, now_ns + 60 * S, now_ns)


def lines(page: PageFile) -> None:
    number = 1
    base = Content(ClockSync.SYNCED, SlewedModel(RawClockModel(1, 1, 0.0, 1.0, 0.0, 0.0)))
    while True:
        now_ns = raw_ns()
        model = RawClockModel(now_ns, now_ns + number * 10**12, 0.0, float(number), 0.0, 0.0)
        page.write(
            replace(
                base,
                slewed=SlewedModel(model),
                holdover_raw_ns=now_ns + 60 * S,
                written_raw_ns=now_ns,
                expires_raw_ns=now_ns + 60 * S,
                reopen_raw_ns=now_ns + 60 * S,
            )
        )
        number = number % 1_000_000 + 1
        if number == 2:
            print("writing", flush=True)


def joins(page: PageFile) -> None:
    draw = random.Random(1)
    slewed = None
    first = True
    while True:
        now_ns = raw_ns()
        own = RawClockModel(now_ns, now_ns + draw.randint(-1000, 1000), draw.uniform(-20, 20), 1.0, 0.0, 0.0)
        begin_ns = now_ns + 300_000
        following, stepped_ns = slew(slewed, own, begin_ns, 0.5, 50.0, 100_000.0)
        assert not stepped_ns
        if page.write(content(following), begin_ns, begin_ns + 5_000):
            slewed = following
            if first:  # not before the first model: one that misses its start time is not written
                first = False
                print("writing", flush=True)
        time.sleep(0.002)


if __name__ == "__main__":
    {"lines": lines, "joins": joins}[sys.argv[2]](PageFile(Path(sys.argv[1]), "h1"))
