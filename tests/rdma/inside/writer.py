"""A program that writes without pause to another NIC, and tells when it stalls, goes on and fails.

Times are its monotonic clock's: `last <s>`, of the last write completed before a stall; `first <s>`, of the
first one after it; `error <s> <status>`, when the transport gave up.
"""

import sys
import time

from rc import connected

STALL_S = 0.04
WINDOW = 8


def main(flow_label: int, retries: int) -> int:
    source, sink = connected(flow_label=flow_label, timeout=14, retries=retries)
    print(f"ready {source.qp.qp_num}", flush=True)
    posted, waiting, last, stalled = 0, 0, time.monotonic(), False
    while True:
        while waiting < WINDOW:
            source.write(sink, posted)
            posted, waiting = posted + 1, waiting + 1
        found = source.completed()
        now = time.monotonic()
        for each in found:
            if each.status:
                print(f"error {now} {each.status} {last}", flush=True)
                return 0
        if found:
            waiting -= len(found)
            if stalled:
                print(f"first {now}", flush=True)
            last, stalled = now, False
        elif now - last > STALL_S and not stalled:
            print(f"last {last}", flush=True)
            stalled = True
        else:
            time.sleep(0.0003)


sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
