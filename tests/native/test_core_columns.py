"""Columns of native/core: rows of pair fits as elements of `ClockFits.pairs`."""

from __future__ import annotations

import numpy as np

from native.core.columns import PairFits
from schemas import codec
from tests.records import make

FIGURES = ("drift_ppb", "sigma_ns", "drift_sigma_ppb", "rtt_min_ns", "margin_ns", "noise_ns")


def fits() -> PairFits:
    """Return two rows: the first has two corners forward and one in reverse, the second only one forward."""
    figures = {name: np.array([index + 1.0, index + 100.0]) for index, name in enumerate(FIGURES)}
    return PairFits(
        peers=["b/e", "c/e"],
        at_ns=np.array([2**60, 7]),
        offset_ns=np.array([2**60 + 1, -3]),
        offset_fraction_ns=np.array([0.25, -0.5]),
        samples=np.array([10, 20]),
        accepted=np.array([5, 6]),
        forward_start=np.array([0, 2, 3]),
        forward_after_ns=np.array([1, 2, 3]),
        forward_delay_ns=np.array([1.5, 2.5, 3.5]),
        reverse_start=np.array([0, 1, 1]),
        reverse_after_ns=np.array([4]),
        reverse_delay_ns=np.array([4.5]),
        **figures,
    )


def test_each_row_has_its_own_corners() -> None:
    first, second = fits().records("a/e")
    assert (first["prober"], first["peer"], first["at_ns"]) == ("a/e", "b/e", 2**60)
    assert (first["offset_ns"], first["offset_fraction_ns"]) == (2**60 + 1, 0.25)
    assert (first["forward_after_ns"], first["forward_delay_ns"]) == ([1, 2], [1.5, 2.5])
    assert (first["reverse_after_ns"], first["reverse_delay_ns"]) == ([4], [4.5])
    assert (second["forward_after_ns"], second["reverse_after_ns"]) == ([3], [])
    assert [second[name] for name in FIGURES] == [100.0 + index for index in range(len(FIGURES))]


def test_rows_fit_the_schema() -> None:
    record = make("ClockFits", pairs=fits().records("a/e"))
    assert codec.decode(codec.encode("ClockFits", record), "ClockFits") == record
