"""Small real child processes for the supervisor."""

import sys
from pathlib import Path

from fabrictime.runtime.supervisor import Child

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = f"""
import os, signal, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from fabrictime.runtime.ready import die_with_parent
die_with_parent()
def notify(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect("\\0" + os.environ["NOTIFY_SOCKET"][1:]); s.send(text.encode())
"""


def program(name: str, body: str, **fields) -> Child:
    """Return a child that runs `body`, which may call `notify`."""
    return Child(name, (sys.executable, "-c", PRELUDE + body), **fields)
