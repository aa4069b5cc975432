"""Pickles of plain data: the same values as `pickle`, and nothing else."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.collectives.plain_pickle import NotPlain, load_plain

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=64),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@given(PLAIN, st.sampled_from([3, 4, 5]))
def test_plain_values_are_those_of_pickle(value, protocol):
    assert load_plain(pickle.dumps(value, protocol)) == value


def test_protocol_2_is_that_of_pytorch():
    value = {
        "entries": [{"seq": 1, "sizes": [[3, 4]], "group": ("0", "default"), "ms": 0.5, "p2p": False}] * 3
    }
    assert load_plain(pickle.dumps(value, 2)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_all_protocols_are_read(protocol):
    value = {"entries": [{"seq": 1, "big": 10**30, "ms": 0.5, "name": "é", "p2p": False, "none": None}]}
    assert load_plain(pickle.dumps(value, protocol)) == value


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_program_runs(protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPlain, match=r"opcode|pickle"):
        load_plain(pickle.dumps([1, Evil()], protocol))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b".", b"(.", b"]K\x01u.", b"h\x05.", b"t.", b"\x86.", b"K\x01a.", b"(K\x01.", b"]]}s."],
)
def test_wrong_pickles_are_refused(data):
    with pytest.raises(NotPlain) as caught:
        load_plain(data)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data):
    try:
        load_plain(data)
    except NotPlain:
        return
