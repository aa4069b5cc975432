"""Recreates resources of the log and the history: topics, consumer groups, the broker, tables."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from fabrictime.bench._waiting import wait_for
from fabrictime.bench.field._remade import BENCH, MADE_AGAIN_S, Remade
from fabrictime.bench.field._small_network import HOST
from fabrictime.log.settings import LogSettings
from schemas import tables
from schemas.kafka.admin import GroupsError, create_topics, delete_groups, delete_topics, group_state
from schemas.kafka.offset_reader import OffsetReader
from schemas.run_module import module_command
from schemas.topics import INVENTORY, LINKS, PROBES, TOPICS

TABLES: Final = (tables.DELAYS, tables.CLOCKS, tables.NIC_WINDOWS)
QUICK_TOPICS: Final = (PROBES.name, LINKS.name, INVENTORY.name)
GROUPS: Final = {
    "fabrictime": "worker",
    "fabrictime-links": "links",
    "fabrictime-policy": "policy",
    "fabrictime-sink": "sink",
}
"""Maps consumer group to the names of its members' services."""
QUICK_GROUPS: Final = ("fabrictime",)
BROKER_NAME: Final = "broker.remade.test"
"""The name by which the services know a log of the bench's own."""
BROKER_ADDRESSES: Final = ("127.0.0.1", "127.0.0.2")
_HOSTS: Final = Path("/etc/hosts")
_LEFT_S: Final = 30.0


def topics(remade: Remade, quick: bool) -> None:
    """Delete each topic and create it again."""
    with contextlib.closing(OffsetReader(remade.log, [PROBES], BENCH)) as reader:
        partitions = len(reader.ends())

    def remake(topic: str) -> None:
        delete_topics(remade.log, [topic])
        time.sleep(MADE_AGAIN_S)
        create_topics(remade.log, partitions=partitions)

    for topic in QUICK_TOPICS if quick else TOPICS:
        remade.measure(f"topic {topic}", partial(remake, topic))


def groups(remade: Remade, quick: bool) -> None:
    """Delete each consumer group while its members are suspended; then resume or restart the members."""

    def delete(group: str, members: str) -> None:
        """Suspend the members until the log has dropped them, then delete the group with its offsets."""
        remade.signal(members, signal.SIGSTOP)
        if wait_for(lambda: group_state(remade.log, group)[1] == 0, _LEFT_S) is None:
            raise RuntimeError(f"group {group} has members after {_LEFT_S:.0f} s")
        try:
            delete_groups(remade.log, [group])
        except GroupsError as error:
            if "GROUP_ID_NOT_FOUND" not in str(error):  # a group that commits nothing ends with its members
                raise

    def resume(group: str, members: str) -> None:
        try:
            delete(group, members)
        finally:
            remade.signal(members, signal.SIGCONT)

    def start_again(group: str, members: str) -> None:
        try:
            delete(group, members)
        finally:
            remade.signal(members, signal.SIGKILL)

    def is_stable(group: str) -> bool:
        state, members = group_state(remade.log, group)
        return state == "STABLE" and members > 0

    for group in QUICK_GROUPS if quick else GROUPS:
        also, members = partial(is_stable, group), GROUPS[group]
        remade.measure(f"consumer group {group}", partial(resume, group, members), also=also)
        name = f"consumer group {group}, members start again"
        remade.measure(name, partial(start_again, group, members), also=also)


def history(remade: Remade, quick: bool) -> None:
    """Drop tables of the history, then the whole database."""
    for table in TABLES:
        drop = partial(remade.sql, f"DROP TABLE fabrictime.{table} SYNC")
        remade.measure(f"table {table}", drop, also=partial(remade.has_rows, table))
    if not quick:
        drop = partial(remade.sql, "DROP DATABASE fabrictime SYNC")
        remade.measure("database", drop, also=partial(remade.has_rows, TABLES[0]))


def data_directory(remade: Remade) -> None:
    """Remove the data directory."""
    remade.measure("data directory", lambda: shutil.rmtree(remade.data, ignore_errors=True), HOST)


class MovingLog:
    """A separate log that services reach by host name, and that can move to another address.

    It mounts its own /etc/hosts in this process's mount namespace.
    """

    def __init__(self, folder: Path) -> None:
        self._hosts, self._directory = folder / "hosts", folder / "log"
        with socket.socket() as free:
            free.bind((BROKER_ADDRESSES[0], 0))
            self._port: int = free.getsockname()[1]
        self._system_hosts = _HOSTS.read_text(encoding="utf-8")
        self._hosts.touch()
        subprocess.run(["mount", "--bind", str(self._hosts), str(_HOSTS)], check=True, capture_output=True)
        self._output = (folder / "log.log").open("wb")
        self._number = 0
        self._log = self._start()

    @property
    def url(self) -> str:
        """The log's address, by name, that the services get."""
        return f"{BROKER_NAME}:{self._port}"

    def _start(self) -> subprocess.Popen[bytes]:
        address = BROKER_ADDRESSES[self._number]
        self._hosts.write_text(f"{self._system_hosts}\n{address} {BROKER_NAME}\n", encoding="utf-8")
        settings = LogSettings(directory=self._directory, host=address, port=self._port)
        command = module_command("fabrictime.log", settings.model_dump_json())
        return subprocess.Popen(command, stdout=self._output, stderr=self._output)

    def move(self) -> None:
        """Stop the log, and start it with the same data at its other address."""
        self._stop()
        time.sleep(MADE_AGAIN_S)
        self._number = 1 - self._number
        self._log = self._start()

    def _stop(self) -> None:
        self._log.kill()
        self._log.wait()

    def close(self) -> None:
        """Stop the log and unmount its /etc/hosts."""
        self._stop()
        self._output.close()
        subprocess.run(["umount", str(_HOSTS)], check=True, capture_output=True)


@contextlib.contextmanager
def moving_log(folder: Path) -> Iterator[MovingLog]:
    """Run a log that can move to another address."""
    log = MovingLog(folder)
    try:
        yield log
    finally:
        log.close()
