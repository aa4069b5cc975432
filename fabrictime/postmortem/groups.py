"""Unifies process groups that the files of different ranks describe differently. Does no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fabrictime.postmortem.observations import Group, Observations


def unify_groups(out: Observations) -> None:
    """Replace each rank's groups without known members by groups of the same name that contain the rank."""
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in out.groups:
        if group.ranks:
            by_name[group.name].append(group)
    replacements: dict[tuple[Group, int], Group] = {}

    def unified(group: Group, rank: int) -> Group:
        if group.ranks:
            return group
        if (group, rank) not in replacements:
            choices = [other for other in by_name[group.name] if rank in other.ranks]
            replacements[group, rank] = choices[0] if len(choices) == 1 else group
        return replacements[group, rank]

    for rank, calls in out.calls.items():
        out.calls[rank] = [call._replace(group=unified(call.group, rank)) for call in calls]
    out.messages[:] = [
        message._replace(group=unified(message.group, message.rank)) for message in out.messages
    ]
    for rank, statuses in out.statuses.items():
        out.statuses[rank] = {unified(group, rank): status for group, status in statuses.items()}
    out.spans[:] = [span._replace(group=unified(span.group, span.rank)) for span in out.spans]


def members_of(group: Group, ranks: Iterable[int], out: Observations) -> set[int]:
    """Return the stated members of a group; without them, all ranks of the job for its only or largest group,
    else the ranks that used the group.
    """
    if group.ranks:
        return set(group.ranks)
    users = set(ranks)
    is_world = group.name in ("0", "", "default", "default_pg") or group.description == "default_pg"
    return users | set(range(min(out.expected, 1_000_000))) if is_world else users
