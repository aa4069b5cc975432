"""Reads Kineto's traces, also called PyTorch profiler traces: the kernels of collectives. Does no I/O.

Sources of the format: pytorch/kineto, libkineto/src/output_json.cpp; pytorch/pytorch,
torch/csrc/distributed/c10d/ParamCommsUtils.hpp; facebookresearch/HolisticTraceAnalysis. A trace is read event
by event, so its size is not limited by memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fabrictime.postmortem.observations import MAX_RANK, Group, Observations, Span
from fabrictime.postmortem.readers.json_stream import JsonText, named_value
from fabrictime.postmortem.readers.values import clean_function, count, members, real, text, whole
from producers.collectives.flight_recorder import ITEM_BYTES, rank_of_name

MAX_SPANS: Final = 200_000
"""Largest number of operations that are read from one trace."""
_HEAD: Final = 1 << 20
_FILE_HOST: Final = re.compile(r"([A-Za-z][\w.-]*?)_(\d+)\.(?:\d+\.)?pt\.trace\.json")
_KERNEL: Final = re.compile(r"^(?:void )?(?:nccl|rccl|mscclpp?)[\w:]*", re.IGNORECASE)


def read_kineto(name: str, chunks: Iterator[str], out: Observations) -> None:
    """Add the collectives of a rank's trace. Raises ValueError for an unknown rank or a damaged trace."""
    stream = JsonText(chunks)
    head = stream.head(_HEAD)
    info = named_value(head, "distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = whole(info.get("rank"), MAX_RANK)
    rank = rank_of_name(name.partition(".")[0]) if rank is None else rank
    if not stream.skip_to("traceEvents"):
        raise ValueError("trace: expected a list 'traceEvents'")
    if rank is None:
        raise ValueError("trace: no rank in 'distributedInfo' and none in its name")
    host = _FILE_HOST.search(name)
    out.place(rank, text(named_value(head, "hostname")) or (host[1] if host is not None else ""))
    out.expect(count(info.get("world_size"), MAX_RANK))
    base_ns = count(named_value(head, "baseTimeNanoseconds"))
    ordinals: Counter[tuple[Group, str]] = Counter()
    spans = 0
    for event in stream.values():
        span = _span(event, rank, base_ns, ordinals) if isinstance(event, dict) else None
        if span is not None:
            out.spans.append(span)
            out.groups[span.group] = None
            spans += 1
        if spans >= MAX_SPANS:
            out.notes.append(f"{name}: more than {MAX_SPANS:,} collectives, the rest is not read")
            return


def _span(
    event: Mapping[str, Any], rank: int, base_ns: int, ordinals: Counter[tuple[Group, str]]
) -> Span | None:
    """Return the operation of an event that is an NCCL kernel; None for other events."""
    name = event.get("name")
    if not isinstance(name, str) or event.get("ph") != "X" or _KERNEL.match(name) is None:
        return None
    category = event.get("cat")
    if not isinstance(category, str) or "kernel" not in category.lower():
        return None
    stated = event.get("args")
    args = stated if isinstance(stated, dict) else {}
    function = clean_function(text(args.get("Collective name")) or name.partition("(")[0].partition("_")[2])
    size = count(args.get("Group size"), MAX_RANK)
    ranks = members(args.get("Process Group Ranks"), MAX_RANK)
    ranks = ranks if size in (0, len(ranks)) else ()  # PyTorch writes the first 30 only
    group = Group(text(args.get("Process Group Name")), text(args.get("Process Group Description")), ranks)
    pair = _pair(args, function, rank, ranks)
    ordinals[group, f"{function} {pair}"] += 1
    seq = whole(args.get("Seq"))
    elements = count(args.get("In msg nelems"), 10**15)
    return Span(
        "kineto",
        rank,
        group,
        size or len(ranks),
        ordinals[group, f"{function} {pair}"] if seq is None else seq,
        function,
        elements * ITEM_BYTES.get(text(args.get("dtype")), 1),
        base_ns + round(real(event.get("ts")) * 1000),
        round(real(event.get("dur"), 1e12) * 1000),
        pair=pair,
    )


def _pair(args: Mapping[str, Any], function: str, rank: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return (sender, receiver) of a message; empty for a collective."""
    if not function.startswith(("send", "recv")):
        return ()
    source, target = (whole(args.get(key), MAX_RANK) for key in ("Src Rank", "Dst Rank"))
    pair = tuple(rank if peer is None else peer for peer in (source, target))
    return tuple(ranks.index(peer) if peer in ranks else peer for peer in pair)
