"""Finds ranks that called another collective than the rest of their group at the same number. Does no I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fabrictime.postmortem.base import Explanation, clock_text, culprits_of, ranks_text
from fabrictime.postmortem.observations import Call, Group, Observations

_ANY_SIZE: Final = frozenset({"all_to_all", "gather", "scatter", "coalesced"})
"""Functions whose sizes may differ between ranks."""


class _Signature(NamedTuple):
    function: str
    elements: int
    out_elements: int
    dtype: str


def mismatches(out: Observations) -> Iterator[Explanation]:
    """Yield at most one explanation: the earliest mismatch of a group."""
    groups = _calls(out)
    frequencies = Counter(
        _signature(calls)
        for by_seq in groups.values()
        for by_rank in by_seq.values()
        for calls in by_rank.values()
    )
    choices = [_mismatch(group, by_seq, frequencies, out) for group, by_seq in groups.items()]
    yield from sorted(filter(None, choices), key=lambda choice: -choice.confidence)[:1]


def _calls(out: Observations) -> dict[Group, dict[int, dict[int, list[Call]]]]:
    """Return the calls by group, sequence number and rank."""
    calls: dict[Group, dict[int, dict[int, list[Call]]]] = defaultdict(lambda: defaultdict(dict))
    for rank, of_rank in out.calls.items():
        for call in of_rank:
            calls[call.group][call.seq].setdefault(rank, []).append(call)
    return calls


def _signature(calls: list[Call]) -> tuple[_Signature, ...]:
    return tuple(
        _Signature(call.function, -1, -1, call.dtype)
        if call.function in _ANY_SIZE
        else _Signature(call.function, call.elements, call.out_elements, call.dtype)
        for call in calls
        if call.function != "coalesced"
    )


def _mismatch(
    group: Group,
    by_seq: Mapping[int, Mapping[int, list[Call]]],
    frequencies: Mapping[tuple[_Signature, ...], int],
    out: Observations,
) -> Explanation | None:
    for seq in sorted(by_seq):
        signatures = {rank: _signature(calls) for rank, calls in by_seq[seq].items()}
        signatures = {rank: signature for rank, signature in signatures.items() if signature}
        if len(set(signatures.values())) > 1 and _is_real(signatures, by_seq[seq]):
            return _explanation(group, seq, signatures, frequencies, by_seq[seq], out)
    return None


def _is_real(signatures: Mapping[int, tuple[_Signature, ...]], calls: Mapping[int, list[Call]]) -> bool:
    """Return whether ranks' calls really differ: in the function, or in the size while a rank waits."""
    functions = {tuple(part.function for part in signature) for signature in signatures.values()}
    if len(functions) > 1 and "" not in {name for names in functions for name in names}:
        return True
    return any(not call.is_complete for of_rank in calls.values() for call in of_rank)


def _explanation(
    group: Group,
    seq: int,
    signatures: Mapping[int, tuple[_Signature, ...]],
    frequencies: Mapping[tuple[_Signature, ...], int],
    calls: Mapping[int, list[Call]],
    out: Observations,
) -> Explanation:
    # In a group of two, the calls of the job's other groups decide which of both is the odd one.
    counts = {part: (number, frequencies[part]) for part, number in Counter(signatures.values()).items()}
    ranked = sorted(counts, key=counts.__getitem__, reverse=True)
    is_tie = counts[ranked[0]] == counts[ranked[1]]
    culprits = {rank for rank, part in signatures.items() if is_tie or part != ranked[0]}
    first = signatures[min(culprits)]
    other = next(part for part in ranked if part != first)
    since = clock_text(max(call.created_ns for of_rank in calls.values() for call in of_rank))
    rest = "and others" if is_tie else ranks_text(signatures.keys() - culprits)
    text = (
        f"{ranks_text(culprits)} called {_text(first, other)} as collective {seq} of {group.text()}, "
        f"{rest} {_text(other, first)}{f', at {since}' if since else ''}"
    )
    evidence = tuple(
        f"rank {rank}: {_text(signatures[rank], other)}, {calls[rank][0].state}"
        for rank in sorted(culprits)[:4]
    )
    confidence = 0.75 if is_tie else 0.95
    return Explanation("PROGRAM_MISMATCH", culprits_of(culprits, out), confidence, text, evidence)


def _text(signature: tuple[_Signature, ...], other: tuple[_Signature, ...]) -> str:
    """Return the functions of a signature, with sizes and types where they differ from another's."""
    parts = []
    for index, part in enumerate(signature[:3]):
        beside = other[index] if index < len(other) else part
        label = part.function
        if part.function == beside.function and part.elements >= 0:
            label += f" of {part.elements:,} elements"
        if part.function == beside.function and part.dtype != beside.dtype:
            label += f" of type {part.dtype}"
        parts.append(label)
    return " and ".join(parts)
