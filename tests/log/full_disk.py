"""Runs a command in a user and mount namespace whose DIRECTORY is a small tmpfs. Exit code 77: not allowed.

full_disk.py DIRECTORY SIZE COMMAND…
"""

import ctypes
import os
import sys

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000

directory, size, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
user, group = os.getuid(), os.getgid()


def checked(result, call):
    if result:
        print(f"{call}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(77)


checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "no user and mount namespace here")
try:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
except OSError as error:
    print(f"no user namespace here: {error}", file=sys.stderr)
    sys.exit(77)
checked(
    libc.mount(b"none", directory.encode(), b"tmpfs", 0, f"size={size}".encode()), f"no tmpfs on {directory}"
)
os.execv(command[0], command)
