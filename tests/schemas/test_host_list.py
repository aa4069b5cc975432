"""Host lists of Slurm: the forms of its documentation, and lists that would not end."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.host_list import host_names


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("h[1-3,07],g1", ["h1", "h2", "h3", "h07", "g1"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
    ],
)
def test_the_names_of_a_list(pattern: str, names: list[str]) -> None:
    assert list(host_names(pattern, 100)) == names


def test_a_list_above_the_limit_is_refused_before_it_is_expanded() -> None:
    with pytest.raises(ValueError, match="more than 4 names"):
        list(host_names("h[1-999999999]", 4))


@given(st.text("h0123[],-", max_size=20))
def test_any_text_gives_a_limited_number_of_names_or_one_error(pattern: str) -> None:
    with contextlib.suppress(ValueError):
        assert len(list(host_names(pattern, 50))) <= 50
