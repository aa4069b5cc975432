"""Completes names in the shell: jobs, links and NICs of the running log, and topics.

A shell waits while it completes, so a log that is slow or fails yields no names and no error.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from schemas.kafka.reader import Start
    from schemas.topics import Topic

MAX_NAMES: Final = 200
JOBS_S: Final = 600.0
"""How far back jobs are read, s."""


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of the last minutes whose names begin with `incomplete`."""
    from schemas.kafka.reader import back
    from schemas.topics import DIAGNOSES

    return _keys(ctx, DIAGNOSES, back(JOBS_S), incomplete)


def link_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the links, NICs and hosts on `fabric.link-health` whose names begin with `incomplete`."""
    from schemas.kafka.reader import BEGINNING
    from schemas.topics import LINK_HEALTH

    return _keys(ctx, LINK_HEALTH, BEGINNING, incomplete)


def nic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the NICs of the fleet whose names begin with `incomplete`."""
    from schemas.kafka.reader import BEGINNING
    from schemas.topics import INVENTORY

    return _keys(ctx, INVENTORY, BEGINNING, incomplete)


def topic_names(incomplete: str) -> list[str]:
    """Return the topics whose names begin with `incomplete`."""
    from schemas.topics import TOPICS

    return [name for name in TOPICS if name.startswith(incomplete)]


def _keys(ctx: typer.Context, topic: Topic, start: Start, incomplete: str) -> list[str]:
    """Return the keys of a topic in the running log that begin with `incomplete`, in natural order."""
    from fabrictime.commands.options import log_if_any, settings_of
    from schemas.ids import natural
    from schemas.kafka.reader import LogUnavailable, TopicReader

    params = ctx.params
    directory, config = (Path(params[name]) if params.get(name) else None for name in ("directory", "config"))
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            cluster = log_if_any(settings_of(config, directory, params.get("log")))
        except typer.Exit:  # settings that are wrong: the command itself says why
            return []
    if isinstance(cluster, str):
        return []
    try:
        with TopicReader.open(cluster, {topic: start}) as reader:
            newest = {message.key: message.value for message in reader.read_to_end()}
    except (LogUnavailable, ValueError):
        return []
    names = (key for key, value in newest.items() if value is not None and key.startswith(incomplete))
    return sorted(names, key=natural)[:MAX_NAMES]
