"""Overlap of computation and communication: the arithmetic, and the script on processors with torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.audit.host.base import OVERLAP
from producers.audit.host.live import LiveHost
from producers.audit.load import overlap
from producers.audit.load.overlap import MAX_REPEATS, bus_gb_per_s, hidden_share, repeats_for

TIMES = st.floats(1e-6, 10.0)


@pytest.mark.parametrize(
    ("compute_s", "gather_s", "both_s", "expected"),
    [
        (3.0, 2.0, 3.0, 1.0),  # the gather is hidden wholly
        (3.0, 2.0, 5.0, 0.0),  # one after the other
        (3.0, 2.0, 4.0, 0.5),
        (2.0, 3.0, 4.0, 0.5),
        (3.0, 2.0, 2.9, 1.0),  # noise
        (3.0, 2.0, 6.0, 0.0),  # both together disturb each other
    ],
)
def test_hidden_share(compute_s: float, gather_s: float, both_s: float, expected: float) -> None:
    assert hidden_share(compute_s, gather_s, both_s) == pytest.approx(expected)


@given(TIMES, TIMES, st.floats(0.0, 1.0))
def test_the_share_of_any_partial_overlap_is_found(compute_s: float, gather_s: float, share: float) -> None:
    both_s = max(compute_s, gather_s) + (1 - share) * min(compute_s, gather_s)
    assert hidden_share(compute_s, gather_s, both_s) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    "times", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, 0.0), (1.0, float("nan"), 1.0)]
)
def test_times_that_are_not_positive_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="expected above 0"):
        hidden_share(*times)


def test_repeats_and_bandwidth() -> None:
    assert repeats_for(0.010, 0.003) == 3
    assert repeats_for(0.001, 0.003) == 1
    assert repeats_for(1.0, 1e-6) == MAX_REPEATS
    assert bus_gb_per_s(8 * 10**9, 8, 0.1) == pytest.approx(70.0)


def test_the_script_on_two_processors() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    done = subprocess.run(
        [sys.executable, str(Path(overlap.__file__)), "--device", "cpu"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["right_ranks"] == found["ranks"] == 2
    assert 0 <= found["hidden_share"] <= 1


def test_without_torch_or_gpus_the_reason_is_printed() -> None:
    assert json.loads(LiveHost().load(120.0, OVERLAP))["missing"] in (
        "torch is not installed",
        "torch finds 0 GPUs, expected at least 2",
    )
