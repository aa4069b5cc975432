"""Backup and restore of history, with the statements of docs/deploy.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from schemas import tables
from tests.streams.history.test_stage import Log, settings, sums

GUIDE = Path(__file__).parents[3] / "docs" / "deploy.md"


def documented(keyword: str) -> str:
    """Return the statement of the guide that begins with a keyword, without its placeholder of a name."""
    [statement] = re.findall(rf'"({keyword} [^"]*)"', GUIDE.read_text(encoding="utf-8"))
    return str(statement).replace("NAME", "monday")


def contents(client: Any) -> dict[str, list[Any]]:
    """Return the rows of each table, in order."""
    return {
        name: sorted(client.query(f"SELECT * FROM fabrictime.{name} FINAL").result_rows, key=repr)
        for name in tables.TABLES
    }


def filled_log(path_delays: Any) -> Log:
    """Return a log with twenty records."""
    log = Log()
    for window in range(5):
        for nic in range(4):
            log.append(path_delays.encode(path_delays(f"n{nic}/eth0", window)))
    return log


async def stored(log: Log, server: Any, begin: int, end: int) -> None:
    """Store messages with a sink that begins at an offset."""
    sink = log.sink(settings(server))
    sink.take(*range(begin, end))
    await sink.flush()


async def test_a_restored_backup_has_the_same_rows_and_a_sink_continues(
    own_server: Any, path_delays: Any
) -> None:
    server, log = own_server().start(), filled_log(path_delays)
    await stored(log, server, 0, 12)
    client = server.client()
    before = contents(client)
    assert sums(client)[0][0] == 12
    client.command(documented("BACKUP"))
    await stored(log, server, 12, 16)
    client.command(documented("DROP"))
    client.command(documented("RESTORE"))
    assert contents(client) == before
    # offsets of the sink were set back to before the backup
    await stored(log, server, 7, 20)
    right = (20, 200, 20, 40, 200, 200)
    assert sums(client) == (right, right)
    after = contents(client)
    client.close()
    assert server.stop() == 0
    copy = own_server()
    shutil.copytree(server.directory, copy.directory, symlinks=True)
    client = copy.start().client()
    assert contents(client) == after, "a copy of the folder is a backup too"
    client.close()
