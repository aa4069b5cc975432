"""Each `fabrictime` command in README, guide and runbooks has the options that its page shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from fabrictime.commands.cli import app
from producers.audit.agent import chosen
from producers.audit.checks import CHECKS

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FORWARDED = {"fabric", "sim", "bench"}
"""Commands that parse their options themselves."""


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield what follows `fabrictime` of each command in blocks and between backquotes."""
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in (*lines, *inline):
        command = re.match(r"(?:\S*/)?fabrictime ([a-z][^#|;&>]*)", line.strip())
        if command and command[1].count("'") % 2 == command[1].count('"') % 2 == 0:
            yield shlex.split(command[1])


def option_names(command: Any, tokens: list[str]) -> set[str]:
    """Return the options of the commands that the tokens name."""
    names = {"--help"}
    for token in ["", *tokens]:
        command = getattr(command, "commands", {}).get(token, command)
        names |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return names


def test_options_and_checks_of_all_documented_commands_exist() -> None:
    root, wrong, count = typer.main.get_command(app), [], 0
    for page in PAGES:
        for tokens in commands_in(page.read_text(encoding="utf-8")):
            count += 1
            options = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", " ".join(tokens)))
            is_audit = tokens[:2] == ["audit", "--only"]
            unknown_checks = chosen(CHECKS, tokens[2:3], active=False).unknown if is_audit else []
            if tokens[0] not in FORWARDED and (options - option_names(root, tokens) or unknown_checks):
                wrong.append((page.name, " ".join(tokens)))
    assert wrong == []
    assert count > 200
