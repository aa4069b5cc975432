"""Write the reference pages that come from the code: commands, thresholds, settings.

`python tools/reference_docs.py` writes them; the test suite compares. `tools/topics_doc.py` writes topics.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fabrictime.commands.cli import app  # noqa: E402 (the checkout is on the path only now)
from fabrictime.runtime.example_config import example  # noqa: E402
from streams.runtime.thresholds import THRESHOLDS  # noqa: E402

COMMANDS_HEAD = """# Commands

Generated from the command line by `tools/reference_docs.py`.
"""
THRESHOLDS_HEAD = """# Thresholds

Generated from `streams/runtime/thresholds.py` by `tools/reference_docs.py`.

`fabrictime config set NAME=VALUE` changes a threshold in every running stage. `--unset NAME` restores its
default, and `fabrictime config diff` lists the changes. The unit is part of the name.

| threshold | default | range | meaning |
|---|---|---|---|
"""


def cell(text: str) -> str:
    """Return text as one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command below a group with its full name, in order of definition.

    A group that runs without a subcommand comes before them. Typer brings its own copy of click, so no class
    of click is compared.
    """
    if hasattr(command, "list_commands"):
        if command.invoke_without_command and " " in name:
            yield name, command
        for key in command.list_commands(None):
            yield from leaves(command.get_command(None, key), f"{name} {key}")
    elif not command.hidden:
        yield name, command


def commands_page() -> str:
    """Return docs/commands.md."""
    parts = [COMMANDS_HEAD]
    for name, command in leaves(typer.main.get_command(app), "fabrictime"):
        parts.append(f"\n## {name}\n\n{(command.help or '').strip()}\n")
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
        if not arguments and not options:
            continue
        parts.append("\n| argument or option | meaning |\n|---|---|\n")
        parts += [_row([argument.metavar or argument.name], argument) for argument in arguments]
        parts += [_row([*option.opts, *option.secondary_opts], option) for option in options]
    return "".join(parts)


def _row(names: list[str], parameter: Any) -> str:
    text = getattr(parameter, "help", None) or ""
    return f"| {', '.join(f'`{name}`' for name in names)} | {cell(text)} |\n"


def thresholds_page() -> str:
    """Return docs/thresholds.md."""
    rows = []
    for name in sorted(THRESHOLDS):
        threshold = THRESHOLDS[name]
        limits = f"{threshold.min_value:g} to {threshold.max_value:g}"
        rows.append(f"| `{name}` | {threshold.default:g} | {limits} | {cell(threshold.doc)} |\n")
    return THRESHOLDS_HEAD + "".join(rows)


def pages() -> dict[str, str]:
    """Return the generated pages by their path below the checkout."""
    return {
        "docs/commands.md": commands_page(),
        "docs/thresholds.md": thresholds_page(),
        "docs/fabrictime.toml": example(),
    }


def main() -> int:
    """Write the pages. Returns the exit code."""
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
