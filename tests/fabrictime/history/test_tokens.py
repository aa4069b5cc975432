"""Tokens: made once, kept private."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabrictime.history.tokens import ensure_token, read_token


def test_a_token_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "token"
    made = ensure_token(path)
    assert len(made) >= 32
    assert ensure_token(path) == read_token(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_two_tokens_differ(tmp_path: Path) -> None:
    assert ensure_token(tmp_path / "a") != ensure_token(tmp_path / "b")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_token_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    ensure_token(path)
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"mode {mode:04o}, expected 0600"):
        ensure_token(path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    with pytest.raises(ValueError, match="empty"):
        read_token(path)
