"""Statements for tables of history: which are needed beside the tables that are there."""

from __future__ import annotations

from schemas import table_statements, tables


def test_nothing_created_needs_every_statement_but_the_changes() -> None:
    statements = table_statements.missing([], tables.DAYS)
    assert len(statements) == len(tables.TABLES) + 2
    assert not any("ALTER" in statement for statement in statements)
    assert statements[0].startswith("CREATE DATABASE")
