"""Drops by nftables: shares that are possible, the exact loss pattern, and the kernel's refusal."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabrictime.testbed.fabric import nft


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused_before_the_kernel_is_asked(share: float) -> None:
    with pytest.raises(ValueError, match="expected above 0 and at most 1"):
        nft.add_drop("t", "eth0", share, 1)


def slots(share: float, seed: int) -> list[int]:
    """Return the slots of the loss pattern that the kernel would get."""
    found = []
    for message in nft._loss_set("t", share, seed)[1:]:
        for element in dict(message["attrs"])["NFTA_SET_ELEM_LIST_ELEMENTS"]:
            key = dict(element["attrs"])["NFTA_SET_ELEM_KEY"]
            found += struct.unpack("=I", dict(key["attrs"])["NFTA_DATA_VALUE"])
    return found


@given(share=st.floats(1e-6, 1, exclude_max=True), seed=st.integers(0, 2**32))
@settings(max_examples=10)
def test_the_pattern_has_exactly_its_share_of_slots_each_once(share: float, seed: int) -> None:
    found = slots(share, seed)
    assert len(found) == len(set(found)) == max(1, round(share * nft.SLOTS))
    assert 0 <= min(found) <= max(found) < nft.SLOTS
    assert found == slots(share, seed), "the same packets of the same order are dropped"


def test_a_device_that_is_not_there_is_the_kernels_own_error() -> None:
    with pytest.raises(OSError, match=r"nftables: |Operation not permitted|not supported"):
        nft.remove_drop("fabrictime-no-such-table")
