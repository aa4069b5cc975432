"""A Soft-RoCE guest: Debian's 6.1 kernel and verbs in QEMU without KVM, made from packages alone.

In: mmdebstrap and qemu-system-x86_64 on this machine, a script of this repository. Out: the guest's results,
one JSON object a line, and its console. The kernel and an initramfs are made once and kept in a cache
directory; the repository is shared read-only, so a change in it needs no new image.

    python tests/rdma/guest.py tests/rdma/inside/everything.py
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = "bookworm"
PACKAGES = (
    "linux-image-amd64",
    "dash",
    "busybox-static",
    "coreutils",
    "python3-minimal",
    "libpython3-stdlib",
    "python3-pyverbs",
    "ibverbs-providers",
    "ibverbs-utils",
    "librdmacm1",
    "perftest",
    "libucx0",
    "ucx-utils",
    "openmpi-bin",
    "python3-mpi4py",
    "iproute2",
)
MODULES = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "veth",
    "ib_uverbs",
    "rdma_ucm",
    "crc32_generic",
    "rdma_rxe",
    "sch_netem",
    "sch_htb",
    "sch_ingress",
    "cls_u32",
    "cls_matchall",
    "act_gact",
)
UNUSED = (
    "boot",
    "usr/share",
    "var",
    "lib/firmware",
    "lib/modules",
    "usr/lib/modules",
    "usr/share/perl",
    "usr/lib/x86_64-linux-gnu/perl",
    "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/python3.11/ensurepip",
    "usr/lib/python3.11/idlelib",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/share/initramfs-tools",
    "usr/lib/locale",
    "etc/alternatives",
    "lib/udev",
    "bin/udevadm",
    "usr/bin/perl",
    "usr/bin/perl5.36.0",
    "usr/bin/ssh",
    "usr/bin/ssh-keygen",
    "usr/bin/ssh-keyscan",
    "usr/lib/openssh",
    "usr/lib/klibc",
    "usr/lib/x86_64-linux-gnu/hwloc",
    "usr/lib/x86_64-linux-gnu/libX11.so.6.4.0",
    "usr/lib/x86_64-linux-gnu/libdb-5.3.so",
    "usr/lib/x86_64-linux-gnu/libicudata.so.72.1",
    "usr/lib/x86_64-linux-gnu/libicui18n.so.72.1",
    "usr/lib/x86_64-linux-gnu/libicuuc.so.72.1",
    "usr/lib/x86_64-linux-gnu/libperl.so.5.36.0",
    "usr/lib/x86_64-linux-gnu/libxml2.so.2.9.14",
)
"""What of the packages does not go into the guest."""
EXIT_PORT = 0xF4
CMDLINE = "console=ttyS0 quiet panic=-1 softlockup_panic=1 random.trust_cpu=on"
INIT = f"""#!/bin/dash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1
for applet in mount insmod mkdir ip ping; do [ -e /bin/$applet ] || busybox ln -s busybox /bin/$applet; done
mkdir -p /proc /sys /dev /run /tmp /repo
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /run/netns; mount -t tmpfs shm /dev/shm; mount -t tmpfs run /run
for module in /modules/*.ko; do insmod $module || echo "insmod $module: failed"; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 repo /repo
for word in $(cat /proc/cmdline); do case $word in fabrictime.run=*) script=${{word#*=}};; esac; done
cd /repo && PYTHONPATH=/repo python3 $script >/dev/ttyS1
code=$?
echo "guest: $script ended with $code"
python3 -c "import os; os.pwrite(os.open('/dev/port', os.O_WRONLY), bytes([$code & 127]), {EXIT_PORT})"
"""


class GuestError(RuntimeError):
    """The guest could not be made, or died."""


@dataclass(frozen=True)
class Image:
    """What QEMU starts."""

    kernel: Path
    initramfs: Path


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the script's exit code, its lines of JSON, everything the console showed."""

    code: int
    results: list[dict[str, Any]]
    console: str


def missing() -> str | None:
    """Return why no guest can be made here, None where one can."""
    absent = [name for name in ("qemu-system-x86_64", "mmdebstrap") if shutil.which(name) is None]
    if absent:
        return f"{' and '.join(absent)} not installed (Debian: apt-get install qemu-system-x86 mmdebstrap)"
    return None


def image(cache: Path | None = None) -> Image:
    """Return the guest's kernel and initramfs, made where they are not there yet. Raises GuestError."""
    if cache is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fabrictime"
        cache = base / f"rdma-guest-{_recipe()}"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Image(cache / "vmlinuz", cache / "initramfs")
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.initramfs.exists():
            _make(made, cache)
    return made


def run(script: str, image: Image, timeout_s: float = 300.0, root: Path = ROOT) -> Outcome:
    """Run a script of the repository in a fresh guest. Raises GuestError where the guest dies."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-guest-") as folder:
        console, results = Path(folder, "console"), Path(folder, "results")
        command = [
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "1024",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-kernel",
            str(image.kernel),
            "-initrd",
            str(image.initramfs),
            "-append",
            f"{CMDLINE} fabrictime.run={script}",
            "-serial",
            f"file:{console}",
            "-serial",
            f"file:{results}",
            "-device",
            f"isa-debug-exit,iobase={EXIT_PORT:#x},iosize=0x04",
            "-virtfs",
            f"local,path={root},mount_tag=repo,security_model=none,readonly=on,multidevs=remap",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
            code, error_text = done.returncode, done.stderr
        except subprocess.TimeoutExpired:
            code, error_text = 0, f"no end within {timeout_s:.0f} s"
        seen = console.read_text(errors="replace") if console.exists() else ""
        lines = results.read_text(errors="replace").splitlines() if results.exists() else []
        if code % 2 == 0:
            tail = "\n".join([*lines[-4:], seen[-8000:]])
            raise GuestError(f"guest died, QEMU ended with {code}: {error_text.strip()}\n{tail}")
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return Outcome(code // 2, found, seen)


def _recipe() -> str:
    """Return a name for what an image is made of."""
    parts = (SUITE, *PACKAGES, *MODULES, *UNUSED, INIT)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _make(made: Image, cache: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="making-", dir=cache) as folder:
        tree = Path(folder, "tree")
        done = subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=extract",
                f"--include={','.join(PACKAGES)}",
                SUITE,
                str(tree),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line.startswith("E:")] or [done.stderr]
            raise GuestError(f"mmdebstrap {SUITE}: {last[-1].strip()}")
        kernels = sorted((tree / "boot").glob("vmlinuz-*"))
        if not kernels:
            raise GuestError(f"mmdebstrap {SUITE}: no kernel in linux-image-amd64")
        shutil.copyfile(kernels[-1], made.kernel)
        modules = ordered_modules(tree / "lib/modules")
        fresh = Path(folder, "initramfs")
        with fresh.open("wb") as out:
            _pack(out, tree, modules)
        fresh.rename(made.initramfs)


def ordered_modules(folder: Path) -> list[Path]:
    """Return the files of MODULES and of all that they need, in the order to load them in."""
    files = {path.name.partition(".ko")[0].replace("-", "_"): path for path in folder.rglob("*.ko")}
    order: dict[str, Path] = {}

    def need(name: str) -> None:
        if name in order:
            return
        path = files.get(name)
        if path is None:
            raise GuestError(f"kernel module {name}: not in linux-image-amd64")
        for each in _depends(path):
            need(each)
        order[name] = path

    for name in MODULES:
        need(name)
    return list(order.values())


def _depends(module: Path) -> list[str]:
    """Return the modules that one names in its own `depends=`."""
    data = module.read_bytes()
    at = data.find(b"\0depends=")
    if at < 0:
        return []
    text = data[at + 9 : data.index(b"\0", at + 9)].decode()
    return [name.replace("-", "_") for name in text.split(",") if name]


def _pack(out: BinaryIO, tree: Path, modules: list[Path]) -> None:
    """Write an initramfs: the tree, /init, /dev/console, and the modules by number."""
    entries = _Newc(out)
    for path in _walk(tree, tree):
        entries.file(str(path.relative_to(tree)), path)
    entries.node("modules", stat.S_IFDIR | 0o755)
    for number, path in enumerate(modules):
        entries.node(f"modules/{number:02d}-{path.name}", stat.S_IFREG | 0o644, path.read_bytes())
    entries.node("init", stat.S_IFREG | 0o755, INIT.encode())
    if not (tree / "dev").is_dir():
        entries.node("dev", stat.S_IFDIR | 0o755)
    entries.node("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    entries.end()


def _walk(folder: Path, tree: Path) -> Iterator[Path]:
    with os.scandir(folder) as found:
        for each in sorted(found, key=lambda entry: entry.name):
            path = Path(each.path)
            if str(path.relative_to(tree)) in UNUSED or path == tree / "dev":
                continue
            yield path
            if each.is_dir(follow_symlinks=False):
                yield from _walk(path, tree)


class _Newc:
    """Writes a cpio archive as the kernel unpacks it, owned by root whoever makes it."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._inode = out, 0

    def file(self, name: str, path: Path) -> None:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            self.node(name, mode, os.readlink(path).encode())
        elif stat.S_ISDIR(mode):
            self.node(name, mode)
        elif stat.S_ISREG(mode):
            self.node(name, mode, path.read_bytes())

    def node(self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        raw = name.encode() + b"\0"
        numbers = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(raw), 0)
        head = b"070701" + b"".join(b"%08X" % number for number in numbers)
        self._out.write(head + raw + b"\0" * (-(len(head) + len(raw)) % 4) + data + b"\0" * (-len(data) % 4))

    def end(self) -> None:
        self.node("TRAILER!!!", 0)


def main(script: str) -> int:
    """Run a script and show what it said. Returns its exit code."""
    outcome = run(script, image())
    print(outcome.console)
    for result in outcome.results:
        print(json.dumps(result))
    return outcome.code


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
