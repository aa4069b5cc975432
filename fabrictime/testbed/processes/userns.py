"""Creates a user and a mount namespace for this process, without privilege or helper binary.

The process can then create network namespaces, mount them under /run/netns and pass them to its children, in
the machine's network. The module uses the standard library only, because it must run before any thread
starts. As a program it checks whether namespaces are allowed (exit code 0, or 1 with the reason in one line).
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

NETNS_DIRECTORY = "/run/netns"

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_PR_SET_DUMPABLE = 4
_CHECK_TIMEOUT_S = 20.0
_CHILD_TABLE = "/proc/sys/net/ipv4/tcp_child_ehash_entries"
_TABLE_ENTRIES = 1024

_libc = ctypes.CDLL(None, use_errno=True)


class NamespacesDenied(RuntimeError):
    """Namespaces cannot be entered here; `str()` gives the reason in one line."""


def inside() -> bool:
    """Return whether this process is in the namespaces that `enter` creates, with a /run of their own."""
    return Path(NETNS_DIRECTORY, ".fabrictime").exists()


def enter() -> None:
    """Move this process into a user and a mount namespace of its own; a second call does nothing.

    Call it before any thread starts (importing numpy starts some). Afterwards this process is root inside,
    its children inherit both namespaces, /run holds its former content plus an empty /run/netns, and the
    network is still the machine's. Raises NamespacesDenied, with the process unchanged, if forbidden.
    """
    if inside():
        return
    threads = _threads()
    if len(threads) > 1:
        raise NamespacesDenied(
            f"this process already runs {len(threads)} threads ({', '.join(sorted(set(threads)))}): "
            "namespaces are entered before any thread starts; numpy and thread pools start some when imported"
        )
    reason = namespaces_allowed()
    if reason is not None:
        raise NamespacesDenied(reason)
    _enter()


def namespaces_allowed() -> str | None:
    """Return None if `enter` would work, else the reason in one line. A child process tries it."""
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"namespaces: the check could not run: {error}"
    if child.returncode == 0:
        return None
    lines = (child.stdout.strip() or child.stderr.strip()).splitlines()
    return lines[-1] if lines else f"namespaces: the check ended with code {child.returncode}"


def new_netns(name: str) -> str:
    """Create a network namespace, move the calling thread into it, and return its path under /run/netns.

    Call it only in a helper thread, since the thread cannot return to the machine's network. Raises
    NamespacesDenied if the process has not called `enter`, FileExistsError if the name is taken.
    """
    if not inside():
        raise NamespacesDenied("network namespaces are made after enter() only")
    path = f"{NETNS_DIRECTORY}/{name}"
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _unshare_net()
        _mount("/proc/thread-self/ns/net", path, None, _MS_BIND, None)
    except OSError:
        os.unlink(path)
        raise
    return path


def _unshare_net() -> None:
    """Move the calling thread into a network namespace with its own small table of TCP connections.

    Otherwise all namespaces share the machine's table of a quarter of a million entries, and listing one
    host's connections scans all of it. A namespace defines the table's size for namespaces created from it,
    so this function creates an intermediate one. Linux before 6.1 lacks this.
    """
    _call("unshare", _CLONE_NEWNET, subject="a network namespace")
    with suppress(FileNotFoundError):
        with open(_CHILD_TABLE, "r+b", buffering=0) as file:
            file.write(b"%d" % _TABLE_ENTRIES)
        _call("unshare", _CLONE_NEWNET, subject="a network namespace")


def remove_netns(path: str) -> None:
    """Remove the name of a namespace made by `new_netns`; the end of its last process or socket frees it."""
    _libc.umount2(os.fsencode(path), _MNT_DETACH)
    with suppress(FileNotFoundError):
        os.unlink(path)


def setns(path: str) -> None:
    """Move the calling thread, never the main thread, into the netns at `path`. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", fd, _CLONE_NEWNET, subject=f"the network namespace {path}")
    finally:
        os.close(fd)


def in_netns(path: str | None, work: Callable[[], T]) -> T:
    """Run `work` in a helper thread inside the namespace at `path` (None: here) and return its result.
    Sockets that `work` opens stay in that namespace. Errors of `work` are raised here."""
    if path is None:
        return work()

    def body() -> T:
        setns(path)
        return work()

    return in_helper_thread(body)


def in_helper_thread(work: Callable[[], T]) -> T:
    """Run `work` in a new thread, wait for it, and return its result or raise its error."""
    result: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001  # carried over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=body, name="netns", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _enter() -> None:
    """Create and enter the namespaces. A failure leaves the process half-way, so a child tries it first."""
    uid, gid = os.geteuid(), os.getegid()
    limits = _limits()
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # a process that gave up root does not own its /proc/self
    try:
        try:
            _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS, subject="a user and a mount namespace")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        except OSError:
            if uid != 0:
                raise
            _call(
                "unshare", _CLONE_NEWNS, subject="a mount namespace"
            )  # root needs no user namespace for the rest
        _mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)
        _own_run()
    except OSError as error:
        raise NamespacesDenied(_why(error, limits)) from error


def _own_run() -> None:
    """Mount a tmpfs on /run, with the content of the former /run and its own /run/netns."""
    old = os.open("/run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        entries = sorted(os.scandir(old), key=lambda entry: entry.name)
        _mount("tmpfs", "/run", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=4m")
        os.mkdir(NETNS_DIRECTORY, 0o755)
        for entry in entries:
            if entry.name == "netns":
                continue
            target = f"/run/{entry.name}"
            # entries that cannot be shown again (a dead link, a foreign mount) are left out
            with suppress(OSError):
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.name, dir_fd=old), target)
                    continue
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(target, 0o755)
                else:
                    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                _mount(f"/proc/self/fd/{old}/{entry.name}", target, None, _MS_BIND | _MS_REC, None)
        Path(NETNS_DIRECTORY, ".fabrictime").write_text(f"{os.getpid()}\n")
    finally:
        os.close(old)


def _check() -> None:
    """Try each kernel feature that a testbed needs, in this process, which is a child for this check."""
    limits = _limits()
    _enter()
    try:
        new_netns("check")
        forward = Path("/proc/sys/net/ipv4/ip_forward")
        try:
            forward.write_text("1")
        except OSError as error:
            raise NamespacesDenied(
                f"namespaces: {forward} cannot be written inside one: {error.strerror}"
            ) from error
    except OSError as error:
        raise NamespacesDenied(_why(error, limits)) from error


def _threads() -> list[str]:
    """Return the names of this process's threads, as the kernel lists them."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return names


def _limits() -> dict[str, str | None]:
    """Return the settings that can forbid namespaces, by name, as read before entering a namespace."""
    names = ("kernel/unprivileged_userns_clone", "kernel/apparmor_restrict_unprivileged_userns")
    kinds = (f"user/max_{kind}_namespaces" for kind in ("user", "mnt", "net"))
    return {name.replace("/", "."): _read(f"/proc/sys/{name}") for name in (*names, *kinds)}


def _why(error: OSError, limits: dict[str, str | None]) -> str:
    """Return the reason why a namespace was refused: the setting that forbids it, or the error's text."""
    for name, value in limits.items():
        if value == "0" and "apparmor" not in name:
            return f"namespaces are off: sysctl {name} is 0, expected more"
    if limits["kernel.apparmor_restrict_unprivileged_userns"] == "1":
        return (
            "namespaces are off for ordinary users: sysctl kernel.apparmor_restrict_unprivileged_userns "
            "is 1, expected 0 (or an AppArmor profile that allows them)"
        )
    if error.errno == errno.ENOSPC:
        return "namespaces: the machine's limit of namespaces is reached (sysctl user.max_user_namespaces)"
    if error.errno in (errno.ENOSYS, errno.EINVAL):
        return f"namespaces: this kernel has not all of user, mount and network namespaces: {error}"
    if error.errno in (errno.EPERM, errno.EACCES):
        status = (_read("/proc/self/status") or "").splitlines()
        if any(line.split() == ["Seccomp:", "2"] for line in status):
            return f"namespaces are refused, as by a container's seccomp filter: {error}"
    return f"namespaces are refused: {error}"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _call(name: str, *arguments: int, subject: str) -> None:
    if getattr(_libc, name)(*(ctypes.c_int(argument) for argument in arguments)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name} ({subject}): {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        None if data is None else data.encode(),
    )
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount on {target}: {os.strerror(code)}")


if __name__ == "__main__":
    try:
        _check()
    except NamespacesDenied as denied:
        print(denied)
        sys.exit(1)
