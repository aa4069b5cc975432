"""Draws the runs of the foreign bench from a seed: cause, program, size, hosts and times."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fabrictime.bench.foreign._truth import CAUSES, FAULTS, HANGS, INNOCENT, LASTING, OTHERS

RUNS, HANG_RUNS, PAUSE_RUNS, PAUSES_PER_RUN = 60, 60, 15, 4
HEALTHY_SHARE: Final = 0.4
QUICK: Final = ("none", "computes longer", "slow NIC", "stop", "fills its NIC", "kill")
BEFORE_S, DURING_S, AFTER_S = 15.0, 30.0, 22.0
QUICK_BEFORE_S, QUICK_DURING_S = 10.0, 20.0
ENDED_SHARE: Final = 0.6
MIN_PAUSE_S, MAX_PAUSE_S = 5.0, 120.0
HOSTS: Final = tuple(f"h{number}" for number in range(1, 9))
SHARING_HOSTS: Final = ("h1", "h5", "h2", "h6")
"""Two hosts of each leaf in turns, for a job that a second one disturbs."""
BIG_HOSTS: Final = ("h3", "h7", "h4", "h8")
"""The other hosts of these leaves, for the second job."""
RANKS: Final = {"S": 4, "M": 6, "L": 8}
BYTES: Final = {
    "halo": (24_000, 48_000, 72_000),
    "transpose": (16_000, 12_000, 12_000),
    "ring": (32_000, 64_000, 96_000),
    "params": (16_000, 12_000, 12_000),
    "workers": (16_000, 16_000, 24_000),
    "reduce": (48_000, 96_000, 128_000),
    "small": (40, 60, 100),
    "files": (24_000, 48_000, 64_000),
}
"""Bytes of a message (for `small`: messages) by size: 15 to 60 ms of a link at 20 Mbit/s."""
COMPUTE_US: Final = (30_000, 40_000, 60_000)


@dataclass(frozen=True)
class Pause:
    """A pause that is not a hang: the rank, or -1 for all; the act, as in programs.c; the length."""

    rank: int
    act: int
    length_s: float


@dataclass(frozen=True)
class Case:
    """One run: cause, program, hosts, guilty rank, and the seconds before, during and after the fault."""

    name: str
    part: str
    cause: str
    program: str
    size: str
    hosts: tuple[str, ...]
    rank: int
    """Rank at which the fault is set."""
    second_rank: int
    """Rank of a second fault, or the partner of a circle."""
    before_s: float
    during_s: float
    after_s: float
    """0: the run ends with the fault."""
    pauses: tuple[Pause, ...] = ()


def draw(seed: int, part: str, installed: Collection[str], *, quick: bool = False) -> list[Case]:
    """Return the cases of a part: `runs`, `hangs` or `pauses`.

    `installed` has the programs and causes that this machine can run. The same seed and `installed` draw the
    same cases.
    """
    chance = random.Random(f"{seed} {part}")  # noqa: S311  # a draw that can be drawn again, no secret
    return [
        _case(chance, f"{part}-{seed}-{number}", part, cause, installed, quick)
        for number, cause in enumerate(_causes(chance, part, installed, quick))
    ]


def _causes(chance: random.Random, part: str, installed: Collection[str], quick: bool) -> Sequence[str]:
    if part == "pauses":
        return ["pauses"] * (1 if quick else PAUSE_RUNS)
    if part == "hangs":
        return _cycle(chance, HANGS, installed, 2 if quick else HANG_RUNS)
    if quick:
        return QUICK
    healthy = round(RUNS * HEALTHY_SHARE)
    causes = [
        *_cycle(chance, INNOCENT, installed, healthy),
        *_cycle(chance, FAULTS, installed, RUNS - healthy),
    ]
    chance.shuffle(causes)
    return causes


def _cycle(chance: random.Random, causes: Sequence[str], installed: Collection[str], count: int) -> list[str]:
    """Return `count` causes in random order, all equally often."""
    possible = [cause for cause in causes if cause in installed]
    drawn: list[str] = []
    while len(drawn) < count:
        chance.shuffle(possible)
        drawn += possible
    return drawn[:count]


def _case(
    chance: random.Random, name: str, part: str, cause: str, installed: Collection[str], quick: bool
) -> Case:
    kind = CAUSES[cause]
    program = chance.choice([program for program in kind.programs if program in installed])
    size = "S" if program in OTHERS else chance.choice(kind.sizes)
    hosts = _hosts(chance, cause, 2 if program == "netpipe" else RANKS[size])
    ranks = len(hosts)
    rank = chance.randrange(1, ranks)
    partner = (rank + 1) % ranks if cause == "circle" else (rank + chance.randrange(1, ranks)) % ranks
    times_s = _times_s(chance, cause, quick)
    count = (1 if quick else PAUSES_PER_RUN) if part == "pauses" else 0
    pauses = tuple(_pause(chance, ranks, quick) for _ in range(count))
    return Case(name, part, cause, program, size, hosts, rank, partner, *times_s, pauses)


def _times_s(chance: random.Random, cause: str, quick: bool) -> tuple[float, float, float]:
    """Return the seconds before, during and after the fault."""
    is_ended = cause not in LASTING and (cause == "two faults" or chance.random() < ENDED_SHARE)
    if quick:
        return QUICK_BEFORE_S, QUICK_DURING_S, 0.0
    return BEFORE_S, DURING_S, AFTER_S if is_ended else 0.0


def _hosts(chance: random.Random, cause: str, ranks: int) -> tuple[str, ...]:
    if cause == "another job":
        return SHARING_HOSTS
    return tuple(chance.sample(HOSTS, ranks))


def _pause(chance: random.Random, ranks: int, quick: bool) -> Pause:
    """Draw a checkpoint of all or of rank 0, an evaluation, a compilation, or a slow data loader."""
    rank, act = chance.choice(
        [(0, 1), (-1, 1), (-1, 2), (0, 2), (0, 0), (-1, 0), (chance.randrange(ranks), 3)]
    )
    longest_s = 12.0 if quick else MAX_PAUSE_S
    return Pause(rank, act, round(MIN_PAUSE_S * (longest_s / MIN_PAUSE_S) ** chance.random(), 1))
