"""A program in Python that hands its queue pair over itself, and writes all the while."""

import os
import select
import sys

from rc import connected

from fabrictime_client.rdma import QueuePairs

# The transport never gives up: how long a move takes is not the point here.
source, sink = connected(retries=7)
with QueuePairs(os.environ["FABRICTIME_CONTROL"]) as handed:
    key = handed.add(source.qp, source.device)
    waiting = number = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        while waiting < 8:
            source.write(sink, number)
            number, waiting = number + 1, waiting + 1
        for each in source.completed():
            if each.status:
                sys.exit(f"write {each.wr_id}: status {each.status}")
            waiting -= 1
        handed.serve(0.001)
    handed.remove(key)
