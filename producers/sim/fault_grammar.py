"""The fault lines of the simulated fleet: the testbed's lines and more. Pure, and light to import."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

GRAMMAR: Final = """\
down TARGET             carrier lost: both directions of the cable; the switches at its ends go around it
blackhole TARGET        all packets on the link are lost; carrier and routes stay
grey P% TARGET          that share of the packets on the link is lost
flap N TARGET           goes down and comes back N times, by default `every 2s` (half of it down)
dead NIC|HOST           a NIC passes nothing, but its agent lives; a host falls silent with its agent
incast N NIC            N other NICs send to it at full rate
slow-receiver P% NIC    it receives only at that share of its line rate; the rest waits at its leaf
slow-sender P% NIC      it sends only at that share; the rest waits in its own queue
pause-storm NIC         it pauses its leaf: its own link stops, links towards that leaf nearly stop

straggler 20ms JOB:RANK       the rank computes so much longer in each iteration
launch-skew 5ms JOB:RANK      its kernels begin so long after their call
slow-pcie P% JOB:RANK         its NIC reads and writes the GPU's memory at that share of its line rate
hang JOB:RANK                 it never enters its next operation
killed JOB:RANK               its process ends
mismatch JOB:RANK             it calls another operation than the other ranks
wrong-rail JOB:RANK           it uses the next NIC of its host
unreported JOB:RANK           its profiler publishes nothing
unsynced JOB:RANK             its host's clock is not synchronised
wrong-class 250us JOB         its data wait so long in another traffic class than that of probes
paced P% JOB                  decisions limit its flows to that share of their line rate
few-queue-pairs JOB           it starts again with one connection between two NICs

optionally followed by `after 5s` and `for 10s`. TARGET: a directed link by its nodes or its full id
(leaf1>spine2, leaf1:swp3>spine2:swp1), both directions (leaf1<>spine2), a NIC or host, or a switch.
JOB: a job's name; RANK: the number of one of its ranks."""

BARE: Final = ("down", "blackhole", "dead", "pause-storm")
WITH_SHARE: Final = ("grey", "slow-receiver", "slow-sender", "slow-pcie", "paced")
WITH_DELAY: Final = ("straggler", "launch-skew", "wrong-class")
ON_RANKS: Final = (
    "straggler",
    "launch-skew",
    "slow-pcie",
    "hang",
    "killed",
    "mismatch",
    "wrong-rail",
    "unreported",
    "unsynced",
)
"""Kinds of faults of one rank of a job."""
ON_JOBS: Final = ("wrong-class", "paced", "few-queue-pairs")
"""Kinds of faults of a whole job."""
_JOB_BARE: Final = tuple(
    kind for kind in (*ON_RANKS, *ON_JOBS) if kind not in WITH_SHARE and kind not in WITH_DELAY
)

FLAP_EVERY_S: Final = 2.0
_UNIT_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_MAX_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """A parsed fault. `share` (0..1): lost packets or remaining rate. `for_s`: s; None until cleared."""

    kind: str
    target: str
    share: float = 1.0
    times: int = 0
    """Number of repetitions of a flap, or of senders of an incast."""
    every_s: float = FLAP_EVERY_S
    delay_s: float = 0.0
    """Time that a straggler, a launch or a traffic class adds."""
    seed: int = 0
    after_s: float = 0.0
    for_s: float | None = None

    def __str__(self) -> str:
        tokens: list[str] = [self.kind]
        if self.kind in WITH_SHARE:
            tokens.append(f"{self.share * 100:g}%")
        if self.kind in WITH_DELAY:
            tokens.append(f"{self.delay_s * 1e6:g}us")
        if self.kind in ("flap", "incast"):
            tokens.append(str(self.times))
        tokens.append(self.target)
        if self.kind == "flap":
            tokens.append(f"every {self.every_s:g}s")
        if self.seed:
            tokens.append(f"seed {self.seed}")
        if self.after_s:
            tokens.append(f"after {self.after_s:g}s")
        if self.for_s is not None:
            tokens.append(f"for {self.for_s:g}s")
        return " ".join(tokens)


def parse_duration(text: str) -> float:
    """Return the seconds in a text such as `500ms`, `10s`, `2m` or `1h`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text.strip())
    seconds = float(match[1]) * _UNIT_S[match[2]] if match else 0.0
    if not 0 < seconds <= _DURATION_MAX_S:
        raise ValueError(f"duration {text!r}: expected a number and us, ms, s, m or h, at most 7 days")
    return seconds


def parse_fault(text: str) -> FaultSpec:
    """Parse a fault line. Raises ValueError with the expected form."""
    tokens, durations, seed = _split_options(text.split())
    if len(tokens) == 4 and tokens[2] == "times":
        tokens.pop(2)
    after_s, for_s = durations.get("after", 0.0), durations.get("for")
    if "every" in durations and tokens[:1] != ["flap"]:
        raise ValueError(f"fault {text!r}: `every` is only for a flap")
    match tokens:
        case [kind, target] if kind in BARE or kind in _JOB_BARE:
            return FaultSpec(kind=kind, target=target, seed=seed, after_s=after_s, for_s=for_s)
        case [kind, share_text, target] if kind in WITH_SHARE:
            share = _share(text, kind, share_text)
            return FaultSpec(kind=kind, target=target, share=share, seed=seed, after_s=after_s, for_s=for_s)
        case [kind, delay_text, target] if kind in WITH_DELAY:
            delay_s = parse_duration(delay_text)
            return FaultSpec(
                kind=kind, target=target, delay_s=delay_s, seed=seed, after_s=after_s, for_s=for_s
            )
        case ["flap" | "incast" as kind, count, target] if re.fullmatch(r"[1-9]\d{0,5}", count):
            every_s = durations.get("every", FLAP_EVERY_S)
            if kind == "flap" and for_s is not None:
                raise ValueError(f"fault {text!r}: a flap ends after its {count} times, expected no `for`")
            return FaultSpec(
                kind=kind,
                target=target,
                times=int(count),
                every_s=every_s,
                seed=seed,
                after_s=after_s,
                for_s=for_s,
            )
    raise ValueError(
        f"fault {text!r}: expected `down|blackhole|dead|pause-storm TARGET`, "
        "`grey|slow-receiver|slow-sender P% TARGET`, `flap N TARGET every 2s`, `incast N NIC`, "
        f"`{'|'.join(_JOB_BARE)} JOB[:RANK]`, `slow-pcie|paced P% JOB[:RANK]` or "
        f"`{'|'.join(WITH_DELAY)} 20ms JOB[:RANK]`, "
        "optionally followed by `after 5s` and `for 10s`"
    )


def _split_options(tokens: list[str]) -> tuple[list[str], dict[str, float], int]:
    """Return the tokens before the trailing options, the options' durations (s) by name, and the seed."""
    durations: dict[str, float] = {}
    seed = 0
    while len(tokens) > 2:
        option, value = tokens[-2:]
        if option in ("after", "for", "every"):
            durations[option] = parse_duration(value)
        elif option == "seed" and re.fullmatch(r"\d{1,18}", value):
            seed = int(value)
        else:
            break
        tokens = tokens[:-2]
    return tokens, durations, seed


def _share(text: str, kind: str, share_text: str) -> float:
    """Return the share (0..1) in a text such as `20%`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", share_text)
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share < 1:
        raise ValueError(f"fault {text!r}: expected above 0% and below 100%, as in {kind} 20% h1/eth1")
    return share
