"""Measures the cost of reading fabric time with the C header and with the pure-Python package.

The bench writes the clock page in the actuator's format. The figure is ns per call, the minimum of many
loops, beside the system's own clock calls in the same loops.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Final

from actuators.clock.page import ClockRow, Content, PageFile
from actuators.clock.timescale import RawClockModel, SlewedModel
from fabrictime.bench import Figure, Missing, Progress, Value
from fabrictime_client import Clock
from native.core.hostclock import raw_ns
from schemas.records import ClockSync

CLIENTS: Final = Path(__file__).resolve().parents[3] / "clients"
_S: Final = 1_000_000_000
_LOOPS: Final = 200
"""Number of loops. They are short and many, so that some run undisturbed on a busy machine."""
_PROGRAM: Final = """
#include "fabrictime_clock.h"

static double best_ns(ft_reader *clock, int kind, int loops, int calls) {
  double best = 1e18;
  int64_t time_ns, bound_ns, stamp_ns = (int64_t)time(NULL) * INT64_C(1000000000);
  struct timespec t;
  for (int loop = 0; loop < loops; loop++) {
    int64_t begin = ft_raw_ns_();
    for (int i = 0; i < calls; i++) {
      if (kind == 0 && ft_now(clock, &time_ns, &bound_ns) != FT_SYNCED) return -1;
      if (kind == 1) clock_gettime(CLOCK_REALTIME, &t);
      if (kind == 2 && ft_convert(clock, "eth0", stamp_ns, &time_ns, &bound_ns) != FT_SYNCED) return -1;
    }
    double took = (double)(ft_raw_ns_() - begin) / calls;
    if (took < best) best = took;
  }
  return best;
}

int main(int count, char **words) {
  ft_reader clock;
  if (count != 3 || ft_open(&clock, words[1])) return 1;
  int calls = atoi(words[2]);
  for (int kind = 0; kind < 3; kind++) printf("%.3f\\n", best_ns(&clock, kind, LOOPS, calls));
  ft_close(&clock);
  return 0;
}
"""


def measure(progress: Progress, quick: bool = False) -> dict[str, Value]:
    """Return `now_ns_per_call_c`, `now_ns_per_call_python`, and the system's clock calls for comparison."""
    if not CLIENTS.is_dir():
        why = Missing(f"{CLIENTS.name}/ is not beside this package: it takes a checkout")
        return {"now_ns_per_call_c": why, "now_ns_per_call_python": why}
    with tempfile.TemporaryDirectory(prefix="fabrictime-now-") as folder:
        page = PageFile(Path(folder) / "clock", "h1")
        try:
            page.write(_content())
            progress("fabric time: calls in C")
            figures = _in_c(Path(folder), page.path, 500 if quick else 5_000)
            progress("fabric time: calls in pure Python")
            page.write(_content())
            return figures | _in_python(page.path, 100 if quick else 500)
        finally:
            page.close()


def _content() -> Content:
    """Return a clock page that is SYNCED during the whole bench and is being slewed, as pages often are."""
    now_ns, system_ns = raw_ns(), time.time_ns()
    end_ns = now_ns + 600 * _S
    slewed = SlewedModel(RawClockModel(now_ns, system_ns, 1_234.5, 80.0, 25.0, 1.0), -40.0, end_ns)
    row = ClockRow(ClockSync.SYNCED, system_ns, 123, -1_234.5, 80.0, 25.0, 1.0, offset_fraction_ns=0.5)
    return Content(
        ClockSync.SYNCED,
        slewed,
        end_ns,
        end_ns,
        end_ns,
        now_ns,
        0,
        1,
        "h1/ptp0",
        "ptp0",
        600_000,
        600_000,
        {"ptp0": row, "system": row},
        {"eth0": "ptp0"},
    )


def _in_c(folder: Path, page: Path, calls: int) -> dict[str, Value]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return {"now_ns_per_call_c": Missing("no C compiler here: cc, gcc and clang are missing")}
    source, program = folder / "now.c", folder / "now"
    source.write_text(_PROGRAM, encoding="utf-8")
    built = subprocess.run(
        [compiler, "-O2", f"-DLOOPS={_LOOPS}", "-I", CLIENTS / "c", source, "-o", program],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        return {"now_ns_per_call_c": Missing(f"does not compile: {built.stderr.strip().splitlines()[:1]}")}
    done = subprocess.run([program, page, str(calls)], capture_output=True, text=True, check=False)
    if done.returncode or "-1.000" in done.stdout:
        return {"now_ns_per_call_c": Missing("the page could not be read by the C program")}
    now, system, convert = (float(line) for line in done.stdout.split())
    return {
        "now_ns_per_call_c": now,
        "clock_gettime_ns_per_call_c": Figure(system, "ns"),
        "convert_ns_per_call_c": Figure(convert, "ns"),
    }


def _in_python(page: Path, calls: int) -> dict[str, Value]:
    clock = Clock(str(page))
    stamp_ns = time.time_ns()

    def best_ns(call: Callable[[], object]) -> float:
        return min(timeit.repeat(call, number=calls, repeat=_LOOPS)) / calls * 1e9

    figures: dict[str, Value] = {
        "now_ns_per_call_python": best_ns(clock.now),
        "time_ns_per_call_python": Figure(best_ns(time.time_ns), "ns"),
        "convert_ns_per_call_python": Figure(best_ns(lambda: clock.convert(stamp_ns, "eth0")), "ns"),
    }
    clock.close()
    return figures
