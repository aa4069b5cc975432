"""How faults of the simulated fleet are said: the testbed's lines, and more. Pure, and light to import.

In: a line, as `GRAMMAR` has them. Out: `FaultSpec`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["GRAMMAR", "FaultSpec", "parse_duration", "parse_fault"]

GRAMMAR: Final = """\
down TARGET             carrier lost: both directions of the cable; the switches at its ends go around it
blackhole TARGET        everything sent into the link is lost, carrier and routes stay
grey P% TARGET          that share of what is sent into the link is lost
flap N TARGET           goes down and comes back N times, `every 2s` (half of it down) where not said
dead NIC|HOST           a NIC passes nothing more, though its agent lives; a host falls silent with its agent
incast N NIC            N other NICs send to it as fast as they may
slow-receiver P% NIC    it takes only that share of its line rate; the rest waits at its leaf
slow-sender P% NIC      it sends only at that share; the rest waits in its own queue
pause-storm NIC         it stops its leaf: its own link stands still, links towards that leaf nearly so

then `after 5s` and `for 10s` where wanted. TARGET: a directed link by its nodes or its full id
(leaf1>spine2, leaf1:swp3>spine2:swp1), both directions (leaf1<>spine2), a NIC or host, or a switch."""

FLAP_EVERY_S: Final = 2.0
_UNIT_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_MAX_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """What to break. `share` 0..1: of packets lost, or of the rate left; `for_s` None: until cleared."""

    kind: str
    target: str
    share: float = 1.0
    times: int = 0
    """Of a flap, how often; of an incast, how many senders."""
    every_s: float = FLAP_EVERY_S
    seed: int = 0
    after_s: float = 0.0
    for_s: float | None = None

    def __str__(self) -> str:
        words: list[str] = [self.kind]
        if self.kind in ("grey", "slow-receiver", "slow-sender"):
            words.append(f"{self.share * 100:g}%")
        if self.kind in ("flap", "incast"):
            words.append(str(self.times))
        words.append(self.target)
        if self.kind == "flap":
            words.append(f"every {self.every_s:g}s")
        if self.seed:
            words.append(f"seed {self.seed}")
        if self.after_s:
            words.append(f"after {self.after_s:g}s")
        if self.for_s is not None:
            words.append(f"for {self.for_s:g}s")
        return " ".join(words)


def parse_duration(text: str) -> float:
    """Return seconds of `500ms`, `10s`, `2m` or `1h`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)", text.strip())
    seconds = float(match[1]) * _UNIT_S[match[2]] if match else 0.0
    if not 0 < seconds <= _DURATION_MAX_S:
        raise ValueError(f"duration {text!r}: expected a number and us, ms, s, m or h, at most 7 days")
    return seconds


def parse_fault(text: str) -> FaultSpec:
    """Return the fault that a line names. Raises ValueError that says what was expected."""
    words = text.split()
    told: dict[str, float] = {}
    seed = 0
    while len(words) > 3 or (len(words) > 2 and words[-2] in ("after", "for", "every", "seed")):
        if words[-2] in ("after", "for", "every"):
            told[words[-2]] = parse_duration(words[-1])
        elif words[-2] == "seed" and re.fullmatch(r"\d{1,18}", words[-1]):
            seed = int(words[-1])
        else:
            break
        words = words[:-2]
    if len(words) == 4 and words[2] == "times":
        words.pop(2)
    after_s, for_s = told.get("after", 0.0), told.get("for")
    if "every" in told and words[:1] != ["flap"]:
        raise ValueError(f"fault {text!r}: `every` is for a flap alone")
    match words:
        case ["down" | "blackhole" | "dead" | "pause-storm" as kind, target]:
            return FaultSpec(kind=kind, target=target, seed=seed, after_s=after_s, for_s=for_s)
        case ["grey" | "slow-receiver" | "slow-sender" as kind, share_text, target]:
            found = re.fullmatch(r"(\d+(?:\.\d+)?)%", share_text)
            share = float(found[1]) / 100 if found else 0.0
            if not 0 < share < 1:
                raise ValueError(
                    f"fault {text!r}: expected above 0% and below 100%, as in {kind} 20% h1/eth1"
                )
            return FaultSpec(kind=kind, target=target, share=share, seed=seed, after_s=after_s, for_s=for_s)
        case ["flap" | "incast" as kind, count, target] if re.fullmatch(r"[1-9]\d{0,5}", count):
            every_s = told.get("every", FLAP_EVERY_S)
            if kind == "flap" and for_s is not None:
                raise ValueError(f"fault {text!r}: a flap ends by itself, after its {count} times")
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
        "`grey|slow-receiver|slow-sender P% TARGET`, `flap N TARGET every 2s` or `incast N NIC`, "
        "then `after 5s` and `for 10s` where wanted"
    )
