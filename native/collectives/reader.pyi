"""Reader of a profiled process's segment. In the reporter, per process:

    reader = Reader(fd)                   # SegmentError: answer "ERROR <text>"; else "OK"
    events = reader.drain()               # structured array of EVENT: events["kind"] == END, …
    publish(...)
    reader.commit()                       # or reader.rewind() if it could not be published

After the connection has ended, drain until it returns nothing while `waiting` is 0, then close. Times are
CLOCK_MONOTONIC_RAW of this host. `end_raw_ns` 0: running. `peer` -1, `communicator` NO_COMMUNICATOR or an
index that communicators() lacks: unknown. All sums of 131,072 events fit in int64.
"""

import numpy as np
from numpy.typing import NDArray

from native.collectives import Communicator as Communicator
from native.collectives import Counters as Counters
from native.collectives import SegmentError as SegmentError

BEGIN: int
END: int
TRANSFER: int
QUEUE_PAIR: int
SENDS: int
SPLIT: int
NO_COMMUNICATOR: int
SOURCES: tuple[str, ...]
FUNCTIONS: tuple[str, ...]
ALGORITHMS: tuple[str, ...]
PROTOCOLS: tuple[str, ...]
EVENT: np.dtype[np.void]

class Reader:
    def __init__(self, fd: int) -> None: ...
    def drain(self, max_events: int = 65536) -> NDArray[np.void]: ...
    def commit(self) -> None: ...
    def rewind(self) -> None: ...
    def close(self) -> None: ...
    def counters(self) -> Counters: ...
    def communicators(self) -> dict[int, Communicator]: ...
    def devices(self) -> dict[int, str]: ...
    @property
    def waiting(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def created_raw_ns(self) -> int: ...
    @property
    def job(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def capacity(self) -> tuple[int, int]: ...
