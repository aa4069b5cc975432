"""A program that has a standby queue pair on its other NIC and tells the library so; and the rest of what a
process may do with the library loaded: fork, close, run without sockets."""

import ctypes
import os
import sys
import threading
import time

from rc import connected

TAKE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint16)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def main(message: str) -> int:
    before = threads()
    source, sink = connected()
    print(f"threads {before} {threads()}", flush=True)
    if message == "quiet":
        return 0 if source.written(sink) else 1
    if message == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0 if threads() == 1 else 1)
        print(f"child {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
        sys.stdin.readline()
        return 0 if source.written(sink) else 1
    other, far = connected("a1", "b0")
    taken = threading.Event()

    @TAKE
    def receive(arg: int, qp_num: int, source_port: int) -> int:
        taken.set()
        return 50_123

    library = ctypes.CDLL(None)
    text = library.fabrictime_qp_standby(source.device.encode(), source.qp.qp_num, receive, None)
    unknown = library.fabrictime_qp_standby(b"rxe_none", 1, receive, None)
    print(f"standby {text} {unknown}", flush=True)
    while not taken.wait(0.05):
        pass
    began = time.monotonic()
    done = other.written(far)
    print(f"written {done} {time.monotonic() - began}", flush=True)
    sys.stdin.readline()
    return 0


sys.exit(main(sys.argv[1]))
