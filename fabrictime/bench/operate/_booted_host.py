"""Boots the systemd of a root file system in namespaces: packages and units run as on a separate host.

systemd is process 1 of a PID namespace, with its own control group and network namespace. Kernel parameters
and /sys are read-only inside, so that the booted host changes nothing on this machine.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Final, Self

from fabrictime.bench._waiting import end_child, wait_until

START_S: Final = 120.0
STOP_S: Final = 30.0
CGROUPS: Final = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
"""Places at which the second version of control groups may be mounted."""
ENVIRONMENT: Final = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")
BOOT: Final = """
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"
done
mknod -m 666 dev/tty c 5 0
hostname "$name"
mkdir -p .former
pivot_root . .former
cd /
exec chroot . /bin/sh -c 'umount -l /.former; exec env -i container=namespaces /lib/systemd/systemd' <dev/null
"""
"""Makes this process the systemd of the root file system."""


def reason_without_groups() -> str | None:
    """Return why systemd cannot run here; None if it can."""
    return None if _groups() is not None else f"no second version of control groups at {' or '.join(CGROUPS)}"


def _groups() -> Path | None:
    """Return the folder where version 2 of control groups is mounted; None if it is not mounted."""
    return next((folder for folder in map(Path, CGROUPS) if (folder / "cgroup.procs").exists()), None)


class BootedHost:
    """A root file system whose systemd runs until the `with` block ends."""

    def __init__(self, root: Path, name: str, netns: str) -> None:
        """Set up a host with this name and the path `netns` of its network namespace.

        Raises RuntimeError without the second version of control groups.
        """
        self.root, self.name = root, name
        self._netns = netns
        mounted = _groups()
        if mounted is None:
            raise RuntimeError(reason_without_groups())
        self._cgroup = mounted / f"{root.parent.name}-{name}"

    def __enter__(self) -> Self:
        self._cgroup.mkdir()
        enter = f'echo $$ >"{self._cgroup}/cgroup.procs"; exec "$@"'
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup"]
        command = ["sh", "-ec", enter, "sh", "nsenter", f"--net={self._netns}", "unshare", *namespaces]
        script = f'root="{self.root}" name="{self.name}"\n{BOOT}'
        with (self.root.parent / f"{self.name}.boot").open("wb") as output:
            self._process = subprocess.Popen(
                [*command, "sh", "-ec", script],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        try:
            wait_until(self._has_booted, START_S, f"{self.name}: systemd")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the host's processes."""
        end_child(self._process, signal.SIGKILL, STOP_S)
        wait_until(self._has_ended, STOP_S, f"{self.name}: its processes")
        for folder in sorted(self._cgroup.rglob("*/"), reverse=True):
            folder.rmdir()
        self._cgroup.rmdir()

    def _has_ended(self) -> bool:
        return "populated 0" in (self._cgroup / "cgroup.events").read_text()

    def _has_booted(self) -> bool:
        if self._process.poll() is not None:
            text = (self.root.parent / f"{self.name}.boot").read_text(errors="replace")[-600:]
            raise RuntimeError(f"{self.name}: systemd ended with {self._process.returncode}: {text}")
        state = self.tried("systemctl is-system-running").stdout.strip()
        return state in {"running", "degraded"}

    def tried(
        self, command: str, *, outside: bool = False, limit_s: float = 900.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command line as root of the host and return its result.

        With `outside` the command uses this machine's network, to reach a package registry.
        """
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            return subprocess.CompletedProcess(command, 1, "", "not started")
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", *([] if outside else ["--net"])]
        inside = ["nsenter", f"--target={children[0]}", "--root", *namespaces, "--", "/usr/bin/env", "-i"]
        return subprocess.run(
            [*inside, *ENVIRONMENT, "sh", "-c", f"cd /root; {command}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )

    def run(self, command: str, *, outside: bool = False, limit_s: float = 900.0) -> str:
        """Return the output of a command line that must succeed. Raises RuntimeError."""
        done = self.tried(command, outside=outside, limit_s=limit_s)
        if done.returncode:
            raise RuntimeError(
                f"{self.name}: {command}: {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
            )
        return done.stdout
