"""A NIC that was made again under its name is noticed; one that is renamed or away is none."""

import ctypes
import os
import subprocess
import threading
from pathlib import Path

from producers.nic_identity import CHECK_S, NicIdentities
from producers.settings import NicSettings

CLONE_NEWNET = 0x40000000


def unshare() -> None:
    assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def add_namespace(path: Path) -> None:
    """Make a network namespace and keep it at `path`, as `ip netns add` does."""

    def make() -> None:
        unshare()
        task = f"/proc/{os.getpid()}/task/{threading.get_native_id()}"
        subprocess.run(["mount", "--bind", f"{task}/ns/net", path], check=True)

    path.touch()
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()


def test_a_device_that_was_made_again_is_another_one(inside):
    def body():
        unshare()
        ip("link", "add", "p0", "type", "veth", "peer", "name", "p1")
        nics = NicIdentities([NicSettings(host="h1", device="p0", address="10.0.0.1")])
        lines = [nics.changed(0)]
        ip("link", "set", "p0", "name", "enp9s0")
        lines.append(nics.changed(1))
        ip("link", "set", "enp9s0", "name", "p0")
        lines.append(nics.changed(2))
        ip("link", "del", "p0")
        lines.append(nics.changed(3))
        ip("link", "add", "p0", "type", "veth", "peer", "name", "p1")
        lines.append(nics.changed(3 + CHECK_S / 2))
        lines.append(nics.changed(4))
        return lines

    *others, last = inside(body)
    assert others == [None] * 5
    assert last.startswith("h1/p0: its device was made again, index ")


def test_a_namespace_that_was_made_again_is_another_one(inside, tmp_path):
    path = tmp_path / "space"

    def body():
        add_namespace(path)
        nics = NicIdentities([NicSettings(host="h1", device="lo", address="10.0.0.1", netns=str(path))])
        lines = [nics.changed(0)]
        subprocess.run(["umount", path], check=True)
        path.unlink()
        lines.append(nics.changed(1))
        add_namespace(path)
        lines.append(nics.changed(2))
        return lines

    first, gone, again = inside(body)
    assert (first, gone) == (None, None)
    assert again == f"h1/lo: its network namespace {path} was made again"
