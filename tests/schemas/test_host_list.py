"""Host lists of Slurm: the forms of its documentation, and lists that would not end."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.host_list import host_list, host_names


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


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["h1", "h2", "h3", "h10"], "h[1-3,10]"),
        (["h09", "h10", "h11"], "h[09-11]"),
        (["gpu-1-ib0", "gpu-2-ib0"], "gpu-1-ib0,gpu-2-ib0"),
        (["rack1n1", "rack1n2", "rack2n1"], "rack1n[1-2],rack2n1"),
        (["login", "h7"], "h7,login"),
        ([], ""),
    ],
)
def test_names_are_folded(names: list[str], pattern: str) -> None:
    assert host_list(names) == pattern


@given(st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{0,4}(-[a-z]{1,2}[0-9]{0,3})?", fullmatch=True), max_size=30))
def test_a_list_expands_to_its_names(names: list[str]) -> None:
    assert sorted(host_names(host_list(names), 1000)) == sorted(set(names))
