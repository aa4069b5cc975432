"""The file of the page's users, and cookies that nobody else can make."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabrictime.web.settings import LoginSettings
from fabrictime.web.users import Users, parse_users

TOKEN = "act-0123456789abcdef0123"


@given(value=st.text(max_size=200))
def test_no_forged_cookie_is_accepted(value: str) -> None:
    users = Users(LoginSettings())
    users._by_token = parse_users(f"act@x act {TOKEN}")
    genuine = users.cookie(TOKEN.encode(), 0)
    assert genuine is not None
    for forged in (value, f"act@x:99999999999:{value}", genuine.replace("act@x", "root"), genuine[:-1] + "g"):
        assert users.by_cookie(forged, 0) is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("alice act", "expected NAME ROLE TOKEN"),
        ("al/ice act 0123456789abcdef0123", "expected NAME ROLE TOKEN"),
        ("alice root 0123456789abcdef0123", "role 'root': expected look, configure, act"),
        ("alice act 0123456789", "token of 10 characters, expected 20 or more"),
        ("alice act 0123456789abcdef0123\nalice look 0123456789abcdef0124", "line 2: alice .* twice"),
        ("alice act 0123456789abcdef0123\nbob look 0123456789abcdef0123", "line 2: bob .* twice"),
    ],
)
def test_a_wrong_line_is_named_without_its_token(line: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        parse_users(line)
    assert "0123456789" not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"act@x act {TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="mode 0644, expected 0600"):
        Users(LoginSettings(users_file=path))
