"""The draws of a tour: the same with the same seed, others with another one."""

from __future__ import annotations

from fabrictime.demo.draw import GREY_PERCENT, PAUSE_MAX_S, TRANSFER_SHARE, Draw, new_seed


def draws(seed: int) -> tuple[object, ...]:
    draw = Draw(seed)
    return draw.pause_s(), draw.grey_percent(), draw.one(range(100)), tuple(draw.shuffled(range(20)))


def test_a_seed_draws_the_same_again_and_another_one_does_not() -> None:
    assert draws(3) == draws(3)
    assert draws(3) != draws(4)
    assert new_seed() != new_seed()


def test_sizes_stay_where_the_fault_shows_and_either_transfer_fits_its_link() -> None:
    for seed in range(50):
        draw = Draw(seed)
        assert 0 <= draw.pause_s() <= PAUSE_MAX_S
        assert GREY_PERCENT[0] <= draw.grey_percent() <= GREY_PERCENT[1]
        assert 0.5 < TRANSFER_SHARE[0] <= draw.transfer_share() <= TRANSFER_SHARE[1] < 1
        assert draw.senders() >= 3
