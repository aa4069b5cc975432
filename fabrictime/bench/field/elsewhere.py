"""Counts the commands that reach another pipeline than the one that their options name.

A listener stands where commands connect by default: at the settings' `log.port`. Each command then names a
data directory on which no `up` runs, and once names nothing. It must end with an error and must not connect.
The list of commands comes from the command line itself, so new commands are measured too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from fabrictime.bench import Progress, Value
from fabrictime.commands.cli import app
from schemas.run_module import module_command
from schemas.topics import ALERTS

LIMIT_S: Final = 60.0
"""Time, s, after which a command is ended: it waits for something that nobody named."""
_AT_ONCE: Final = 4
"""Commands that run at a time."""
_NEEDS_NONE: Final = ("up", "demo", "bench", "fabric up", "config show")
"""Commands that start a pipeline of their own if none runs, or that print the settings alone."""
_ARGUMENTS: Final[Mapping[str, Sequence[str]]] = {
    "audit": ("--fleet",),
    "audit act": ("slurm",),
    "audit baseline learn": ("run-1",),
    "audit baseline save": ("run-1",),
    "audit diff": ("run-1", "run-2"),
    "config set": ("mode", "OBSERVE"),
    "config unset": ("mode",),
    "explain": ("train",),
    "replay": ("alerts", "--from", "1m"),
    "tail": (ALERTS.name,),
    "topology drift": ("topology.json",),
}
"""Command to the arguments that it requires, or that make it use the log."""


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield name and command (of typer) of all commands that take `--dir` or `--log`."""
    command = typer.main.get_command(app) if group is None else group
    if any({"--dir", "--log"} & set(option.opts) for option in command.params):
        yield " ".join(path), command
    if isinstance(command, TyperGroup):
        for name in command.list_commands(None):  # type: ignore[arg-type]  # no command of ours asks its context
            yield from commands(command.get_command(None, name), (*path, name))  # type: ignore[arg-type]


def command_lines(missing: Path) -> dict[str, list[str]]:
    """Return command lines by name: each with `--dir` of no `up`, and with neither `--dir` nor `--log`."""
    lines = {}
    for name, command in commands():
        if name in _NEEDS_NONE:
            continue
        arguments = [*name.split(), *_ARGUMENTS.get(name, _placeholders(command))]
        lines[name] = arguments
        if any("--dir" in option.opts for option in command.params):
            lines[f"{name} --dir"] = [*arguments, "--dir", str(missing)]
    return lines


def _placeholders(command: Any) -> list[str]:
    """Return a value for each argument that a command of typer requires."""
    return ["h1" for option in command.params if option.param_type_name == "argument" and option.required]


def measure(progress: Progress, quick: bool) -> dict[str, Value]:
    """Return the number of commands that act on a pipeline that their options do not name."""
    with tempfile.TemporaryDirectory(prefix="fabrictime-elsewhere-") as name:
        lines = command_lines(Path(name, "missing"))
        names = list(lines)[:: 4 if quick else 1]
        acting = asyncio.run(acting_elsewhere({key: lines[key] for key in names}, Path(name)))
    for line in acting:
        progress(line)
    return {"commands_tried": len(names), "commands_that_act_elsewhere": len(acting)}


async def acting_elsewhere(lines: Mapping[str, Sequence[str]], folder: Path) -> list[str]:
    """Run command lines in an empty folder; return a line for each that connects to the port of the settings,
    succeeds, or does not end. `{port}` in a command line stands for that port.
    """
    slots = asyncio.Semaphore(_AT_ONCE)

    async def fault(name: str, line: Sequence[str]) -> str | None:
        async with slots, _other_pipeline() as (port, connections):
            workplace = folder / name.replace(" ", "_")
            workplace.mkdir()
            text = f'[log]\nport = {port}\n[up]\ndata_directory = "{workplace / "data"}"\n'
            (workplace / "fabrictime.toml").write_text(text, encoding="utf-8")
            code, output = await _run([part.replace("{port}", str(port)) for part in line], workplace)
            if connections:
                return f"{name}: connects to the log of another pipeline"
            return (
                f"{name}: exit code {code}, expected an error: {output[-200:]}" if code in (0, None) else None
            )

    faults = await asyncio.gather(*(fault(name, line) for name, line in lines.items()))
    return [line for line in faults if line is not None]


@contextlib.asynccontextmanager
async def _other_pipeline() -> AsyncIterator[tuple[int, list[str]]]:
    """Listen as another pipeline's log; yield the port, and a list that collects connected peers."""
    connections: list[str] = []

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(str(writer.get_extra_info("peername")))
        writer.close()

    server = await asyncio.start_server(note, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], connections


async def _run(line: Iterable[str], folder: Path) -> tuple[int | None, str]:
    """Run a command in a folder; return its exit code, None if it did not end, and its output."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("FABRICTIME_")}
    process = await asyncio.create_subprocess_exec(
        *module_command("fabrictime", *line),
        cwd=folder,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_S)
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
        return None, output.decode(errors="replace")
    return process.returncode, output.decode(errors="replace")
