"""Measures the bandwidth of the host's memory like STREAM's triad, and prints it in GB/s.

The triad a = b + s * c takes two passes of numpy, a = s * c and a = a + b. Together they read or write five
arrays, all of which count. Each processor has a thread with its own arrays; numpy releases the GIL.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

import numpy as np

ARRAY_BYTES: Final = 64 << 20
"""Size of each array of a thread: more than the thread's share of the last-level cache."""
MAX_THREADS: Final = 256
TIMES: Final = 5
MOVED: Final = 5


def triad_gb_per_s(threads: int, array_bytes: int = ARRAY_BYTES, times: int = TIMES) -> float:
    """Return the bandwidth of all threads together in the fastest of `times` rounds, GB/s."""
    elements = array_bytes // 8
    start, end = threading.Barrier(threads + 1), threading.Barrier(threads + 1)

    def work() -> None:
        a, b, c = (np.full(elements, value) for value in (0.0, 1.0, 2.0))
        for _ in range(times):
            start.wait()
            np.multiply(c, 3.0, out=a)
            np.add(a, b, out=a)
            end.wait()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    best_s = float("inf")
    for _ in range(times):
        start.wait()
        began_s = time.perf_counter()
        end.wait()
        best_s = min(best_s, time.perf_counter() - began_s)
    for worker in workers:
        worker.join()
    return MOVED * elements * 8 * threads / best_s / 1e9


def main() -> None:
    """Print the figure for all processors that this process may use."""
    print(f"{triad_gb_per_s(min(len(os.sched_getaffinity(0)), MAX_THREADS)):.1f}")


if __name__ == "__main__":
    main()
