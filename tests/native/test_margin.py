"""The widest gap and the corners (margin.c) against brute force over every slope that could matter."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples

CORE = Path(__file__).resolve().parents[2] / "native" / "core"
MAX_SLOPE = 1e-3
CORNERS = 8

Doubles = ctypes.POINTER(ctypes.c_double)


class Cloud(ctypes.Structure):
    _fields_ = [("x", Doubles), ("y", Doubles), ("n", ctypes.c_int64)]


class Gap(ctypes.Structure):
    _fields_ = [("slope", ctypes.c_double), ("forward", ctypes.c_double), ("reverse", ctypes.c_double)]


def pointer(array):
    return array.ctypes.data_as(Doubles)


@pytest.fixture(scope="module")
def margin(tmp_path_factory):
    """The C functions on numpy columns: gap(f, r) and corners(cloud, slope, around)."""
    gcc = shutil.which(os.environ.get("CC", "gcc"))
    if gcc is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("margin") / "margin.so"
    built = subprocess.run(
        [gcc, "-std=gnu11", "-O2", "-shared", "-fPIC", "-Werror", CORE / "margin.c", "-lm", "-o", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    library = ctypes.CDLL(str(path))
    library.ft_widest_gap.restype = Gap

    def cloud(points):
        x, y = (np.ascontiguousarray(column, np.float64) for column in points)
        return x, y, Cloud(pointer(x), pointer(y), len(x))

    def gap(f, r):
        (_, _, of_f), (_, _, of_r) = kept = cloud(f), cloud(r)
        margins = np.full(2 * (of_f.n + of_r.n), np.nan)
        found = library.ft_widest_gap(
            ctypes.byref(of_f), ctypes.byref(of_r), ctypes.c_double(MAX_SLOPE), pointer(margins)
        )
        del kept
        return found

    def corners(points, slope, around):
        _, _, of = kept = cloud(points)
        margins, x, y = np.full(4 * of.n, np.nan), np.empty(CORNERS), np.empty(CORNERS)
        n = library.ft_corners(
            ctypes.byref(of),
            ctypes.c_double(slope),
            ctypes.c_double(around),
            pointer(margins),
            pointer(x),
            pointer(y),
        )
        del kept
        return x[:n], y[:n]

    return gap, corners


def width(f, r, slope):
    return (f[1] - slope * f[0]).min() + (r[1] + slope * r[0]).min()


def widest(f, r):
    """The most that any slope gives: it is piecewise linear, bent where two points of a cloud tie."""
    slopes = [0.0, MAX_SLOPE, -MAX_SLOPE]
    for (x, y), sign in ((f, 1), (r, -1)):
        for i, j in itertools.combinations(range(len(x)), 2):
            if x[i] != x[j]:
                slopes.append(sign * (y[i] - y[j]) / (x[i] - x[j]))
    return max(width(f, r, slope) for slope in slopes if abs(slope) <= MAX_SLOPE)


def points(largest):
    """Clouds as a window has them and as it should not: clumps, ties, columns of equal x, one point."""
    x = st.one_of(st.integers(0, 2_000_000_000), st.integers(0, 5), st.sampled_from([0, 10**9, 2 * 10**9]))
    y = st.one_of(st.integers(-20_000, 20_000), st.integers(-3, 3), st.integers(-(10**9), 10**9))
    return st.lists(st.tuples(x, y), min_size=1, max_size=largest).map(
        lambda rows: tuple(np.array(column, np.float64) for column in zip(*rows, strict=True))
    )


@given(points(14), points(14))
@settings(max_examples=examples(500))
def test_no_slope_has_a_wider_gap(margin, f, r):
    gap, _ = margin
    found = gap(f, r)
    assert abs(found.slope) <= MAX_SLOPE
    assert found.forward == pytest.approx((f[1] - found.slope * f[0]).min(), abs=1e-5)
    assert found.reverse == pytest.approx((r[1] + found.slope * r[0]).min(), abs=1e-5)
    assert found.forward + found.reverse == pytest.approx(widest(f, r), abs=1e-5)


@pytest.mark.parametrize("drift", [0.0, 7e-9, -5e-6, 9e-5, -8e-4])
@pytest.mark.parametrize("n", [37, 1_000])
def test_the_gap_of_a_window_is_the_widest(margin, drift, n):
    gap, _ = margin
    rng = np.random.default_rng(n)
    f, r = (
        (x, np.rint(sign * drift * x + rng.exponential(3_000, n)))
        for sign in (1, -1)
        for x in [rng.uniform(-1e9, 1e9, n)]
    )
    found = gap(f, r)
    best = found.forward + found.reverse
    near = found.slope + np.concatenate([np.linspace(-1e-6, 1e-6, 2_001), np.linspace(-1e-10, 1e-10, 201)])
    assert (
        max(width(f, r, slope) for slope in [*near, *np.linspace(-MAX_SLOPE, MAX_SLOPE, 2_001)])
        <= best + 1e-5
    )
    assert abs(found.slope - drift) < 1e-5


@given(
    points(60),
    st.floats(-1e-4, 1e-4),
    st.sampled_from([1e-7, 1e-6, 1e-4]),
    st.lists(st.floats(-1, 1), max_size=8),
)
@settings(max_examples=examples(500))
def test_hull_vertices_suffice_for_every_slope_in_reach(margin, cloud, slope, around, slope_offsets):
    _, corners = margin
    x, y = corners(cloud, slope, around)
    assert 1 <= len(x) <= CORNERS
    assert (np.diff(x) > 0).all()
    there = set(zip(*cloud, strict=True))
    assert all((a, round(b)) in there and abs(b - round(b)) < 1e-4 for a, b in zip(x, y, strict=True))
    for slope_offset in [0.0] if len(x) == CORNERS else [0.0, -1.0, 1.0, *slope_offsets]:
        at = slope + slope_offset * around
        assert (y - at * x).min() == pytest.approx((cloud[1] - at * cloud[0]).min(), abs=1e-4)


def test_of_many_hull_vertices_those_about_the_slope_are_kept(margin):
    _, corners = margin
    x = np.arange(-50.0, 51.0) * 1e7
    y = (x / 1e7) ** 2  # a bowl: its bends are 2e-7 apart
    kept, _ = corners((x, y), 0.0, 1e-4)
    assert len(kept) == CORNERS
    assert 0.0 in kept
    assert np.abs(kept).max() <= CORNERS / 2 * 1e7
