"""The command `token` prints lines that the page's file of users accepts."""

from __future__ import annotations

from typer.testing import CliRunner

from fabrictime.commands.cli import app
from fabrictime.web.users import Role, parse_users


def test_the_command_prints_a_line_with_a_new_token() -> None:
    lines = [CliRunner().invoke(app, ["token", "alice", "--role", "act"]).output for _ in range(2)]
    assert lines[0] != lines[1]
    entries = parse_users(lines[0].replace("alice", "bob") + lines[1])
    assert [(entry.user.name, entry.user.role) for entry in entries.values()] == [
        ("bob", Role.ACT),
        ("alice", Role.ACT),
    ]
    refused = CliRunner().invoke(app, ["token", "alice", "--role", "root"])
    assert (refused.exit_code, refused.output) == (
        2,
        "fabrictime: role 'root': expected look, configure, act\n",
    )
