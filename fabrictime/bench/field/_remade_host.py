"""Recreates resources of a host: network devices, files, dumps of the Flight Recorder, and cgroups."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fabrictime.bench._fabric import CannotRun
from fabrictime.bench.field._remade import MADE_AGAIN_S, NICS, Operations, Remade
from fabrictime.bench.field._small_network import HOST
from fabrictime.runtime.processors import MOUNT, V1_CONTROLLERS

DUMPS: Final = "dumps"
"""Name of the Flight Recorder's folder, beside the data directory."""
PERIOD_US: Final = 100_000


def network_things(remade: Remade) -> None:
    """Recreate a NIC's device and namespace, rename the device, and take its port down."""
    network, last = remade.network, NICS
    device, away = f"eth{last}", "enp9s0"

    def remake_device() -> None:
        network.remove_device(last)
        time.sleep(MADE_AGAIN_S)
        network.cable(last)

    def remake_space() -> None:
        network.remove_space(last)
        time.sleep(MADE_AGAIN_S)
        network.add_space(last)
        network.cable(last)

    def rename() -> None:
        network.rename(last, device, away)
        time.sleep(MADE_AGAIN_S)
        network.rename(last, away, device)

    def take_down() -> None:
        network.take_down(last, "down")
        time.sleep(MADE_AGAIN_S)
        network.take_down(last, "up")

    remade.measure("interface", remake_device, HOST)
    remade.measure("network namespace", remake_space, HOST)
    remade.measure("renamed device", rename, HOST)
    remade.measure("port taken down", take_down, HOST)


def files(remade: Remade) -> None:
    """Remove the sockets, the lock, the probe key and the clock pages of a running pipeline."""
    run = remade.data / "run"
    for path in sorted(run.glob("*.sock")):
        remade.measure(f"socket {path.name}", path.unlink, also=path.exists)
    lock = run / "lock"
    remade.measure("lock", lock.unlink, also=lock.exists)
    key = remade.data / "secrets" / "probe.key"
    if key.exists():
        remade.measure("probe key", lambda: _rewrite(key))
    for page in sorted((run / "clock").glob("*")):
        if page.is_file():
            remade.measure(f"clock page {page.name}", page.unlink, also=page.exists)


def _rewrite(path: Path) -> None:
    """Remove a file and create it again with the same content."""
    content, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    time.sleep(MADE_AGAIN_S)
    path.touch(mode=mode & 0o777)
    path.write_bytes(content)


def flight_recorder(remade: Remade) -> None:
    """Replace a dump of the Flight Recorder, and recreate its folder."""
    folder = remade.data.parent / DUMPS
    dumped: list[str] = []

    def write_dump(path: Path) -> None:
        created_ns = time.time_ns() - 1_000_000_000
        entry = {
            "process_group": ["0", "default_pg"],
            "collective_seq_id": len(dumped) + 1,
            "profiling_name": "nccl:all_gather",
            "time_created_ns": created_ns,
            "time_discovered_completed_ns": created_ns + 1_000_000,
        }
        fresh = path.with_name(".fresh")
        fresh.write_text(json.dumps({"version": "2.10", "entries": [entry]}), encoding="utf-8")
        fresh.replace(path)
        dumped.append(f"recorder-0-{path.stat().st_mtime_ns}")

    def remake_folder() -> None:
        shutil.rmtree(folder)
        time.sleep(MADE_AGAIN_S)
        folder.mkdir()
        write_dump(folder / "nccl_trace_rank_0")

    def set_aside() -> None:
        folder.rename(folder.with_name("dumps.old"))
        time.sleep(MADE_AGAIN_S)
        folder.mkdir()
        write_dump(folder / "nccl_trace_rank_0")

    with contextlib.closing(Operations(remade)) as operations:

        def is_published() -> bool:
            return operations.has(lambda record: record["process"] == dumped[-1])

        dump = folder / "nccl_trace_rank_0"
        remade.measure("Flight Recorder dump", lambda: write_dump(dump), also=is_published)
        remade.measure("Flight Recorder folder", remake_folder, also=is_published)
        remade.measure("Flight Recorder folder set aside", set_aside, also=is_published)


class Cgroup:
    """A separate cgroup for the pipeline, with a processor quota. Raises CannotRun."""

    def __init__(self) -> None:
        v2 = MOUNT / "cgroup.subtree_control"
        if v2.exists():
            if "cpu" not in v2.read_text(encoding="ascii").split():
                raise CannotRun(f"{v2}: no controller cpu, expected one for cgroups with a quota")
            self._above = MOUNT
        else:
            above = [MOUNT / name for name in V1_CONTROLLERS if (MOUNT / name / "cgroup.procs").exists()]
            if not above:
                raise CannotRun(f"{MOUNT}: no folder of the controller cpu, expected cgroups")
            self._above = above[0]
        self._is_v2 = v2.exists()
        self.path = self._above / f"fabrictime-remade-{os.getpid()}-{time.time_ns()}"

    def make(self, processors: float) -> None:
        """Create the cgroup with a processor quota. Raises CannotRun if this user has no permission."""
        quota_us = round(processors * PERIOD_US)
        try:
            self.path.mkdir()
            if self._is_v2:
                (self.path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}", encoding="ascii")
            else:
                (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
                (self.path / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
        except OSError as error:
            raise CannotRun(
                f"{self.path}: {error.strerror}, expected cgroups that this user can make"
            ) from None

    def enter(self, pids: Iterable[int]) -> None:
        """Move processes into the cgroup."""
        _move(pids, self.path)

    def remove(self, pids: Iterable[int]) -> None:
        """Move processes out of the cgroup and remove it."""
        _move(pids, self._above)
        self.path.rmdir()


def _move(pids: Iterable[int], folder: Path) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")


def cgroups(remade: Remade) -> None:
    """Run the pipeline in a cgroup with a quota, recreate the cgroup, and lower its quota."""
    made: list[Cgroup] = []

    def pipeline() -> list[int]:
        return [remade.up, *remade.pids("").values()]

    def enter() -> None:
        cgroup = Cgroup()
        cgroup.make(NICS)
        made.append(cgroup)
        cgroup.enter(pipeline())

    def remake() -> None:
        made[0].remove(pipeline())
        time.sleep(MADE_AGAIN_S)
        made[0].make(NICS)
        made[0].enter(pipeline())

    remade.measure("cgroup", enter)
    if made:
        try:
            remade.measure("cgroup made again", remake)
        finally:
            made[0].remove(pipeline())
