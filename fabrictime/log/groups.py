"""Coordinates consumer groups: which members may join, and in which generation their requests are valid.

Members are in memory only, so after a restart they join again; `offsets` keeps the committed offsets.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from fabrictime.log.errors import Code, LogError
from fabrictime.log.group import Group, Join, Joined, Member, State, Waiting
from fabrictime.log.settings import LogSettings

MAX_MEMBERS: Final = 10_000
MAX_GROUPS: Final = 10_000


class MemberIdRequired(LogError):
    """The client must join again with the member id that this error carries."""

    def __init__(self, member_id: str) -> None:
        super().__init__(Code.MEMBER_ID_REQUIRED, "join again under the given member id")
        self.member_id = member_id


class Coordinator:
    """All groups of the broker. All methods run on one event loop."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self.groups: dict[str, Group] = {}

    async def join(self, request: Join) -> Joined:
        """Join a group and return its next generation. Raises LogError, which can be MemberIdRequired."""
        entered = self._enter(request)
        if isinstance(entered, Joined):
            return entered
        group, member, future = entered
        try:
            return await future
        except asyncio.CancelledError:
            # The connection closed while its member waits: no client would receive the response.
            if member.joining is future and request.instance_id is None:
                member.joining = None
                group.remove(member, "disconnected while joining")
            raise

    def _enter(self, request: Join) -> Joined | Waiting:
        if not request.group:
            raise LogError(Code.INVALID_GROUP_ID, "empty group name")
        longest = self._settings.max_group_session_ms
        if not 1 <= request.session_ms <= longest:
            raise LogError(
                Code.INVALID_SESSION_TIMEOUT,
                f"session time-out {request.session_ms} ms: expected 1 to {longest}",
            )
        if not request.protocols or not request.protocol_type:
            raise LogError(Code.INCONSISTENT_GROUP_PROTOCOL, "no protocol offered")
        group = self.groups.get(request.group)
        if group is None:
            if request.member_id:
                raise LogError(
                    Code.UNKNOWN_MEMBER_ID, f"group {request.group} has no member {request.member_id}"
                )
            if len(self.groups) >= MAX_GROUPS:
                raise LogError(Code.COORDINATOR_NOT_AVAILABLE, f"{MAX_GROUPS} groups are enough")
            group = self.groups[request.group] = Group(
                request.group, self._settings.group_join_delay_ms, self._forget_if_unused
            )
        try:
            return self._admit(group, request)
        finally:
            self._forget_if_unused(group)

    def _admit(self, group: Group, request: Join) -> Joined | Waiting:
        if group.members:
            common = set.intersection(
                *({name for name, _ in member.request.protocols} for member in group.members.values())
            )
            if request.protocol_type != group.protocol_type or not common & {n for n, _ in request.protocols}:
                raise LogError(
                    Code.INCONSISTENT_GROUP_PROTOCOL,
                    f"group {group.name} speaks {group.protocol_type} {sorted(common)}",
                )
        if request.instance_id is not None:
            return self._admit_static(group, request, request.instance_id)
        if not request.member_id:
            member_id = self._new_id(request)
            if request.needs_known_id:
                if len(group.pending) >= MAX_MEMBERS:
                    raise LogError(Code.COORDINATOR_NOT_AVAILABLE, f"group {group.name}: too many joining")
                group.expect(member_id, request.session_ms)
                raise MemberIdRequired(member_id)
            return self._add(group, request, member_id)
        if request.member_id in group.pending:
            group.pending.pop(request.member_id).cancel()
            return self._add(group, request, request.member_id)
        return self._rejoin(group, request)

    def _admit_static(self, group: Group, request: Join, instance_id: str) -> Joined | Waiting:
        current_id = group.static.get(instance_id)
        if request.member_id:
            if current_id is not None and current_id != request.member_id:
                raise LogError(Code.FENCED_INSTANCE_ID, f"instance {instance_id} joined again elsewhere")
            return self._rejoin(group, request)
        member_id = self._new_id(request)
        if current_id is None:
            return self._add(group, request, member_id)
        old = group.members.pop(current_id)
        group.release(
            old, LogError(Code.FENCED_INSTANCE_ID, f"instance {instance_id} joined again elsewhere")
        )
        same = old.request.protocols == request.protocols
        member = Member(member_id, request, assignment=old.assignment)
        group.members[member_id] = member
        group.static[instance_id] = member_id
        leader_before = group.leader_id
        if group.leader_id == current_id:
            group.leader_id = member_id
        group.touch(member)
        if group.state is State.STABLE and same:
            # The former leader's id shows the client that it has nothing to assign.
            return Joined(group.generation, group.protocol, leader_before, member_id)
        return group.start_join(member)

    def _new_id(self, request: Join) -> str:
        return f"{request.instance_id or request.client_id or 'member'}-{uuid.uuid4()}"

    def _add(self, group: Group, request: Join, member_id: str) -> Waiting:
        if len(group.members) >= MAX_MEMBERS:
            raise LogError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {group.name}: {MAX_MEMBERS} members are enough"
            )
        return group.add(request, member_id)

    def _rejoin(self, group: Group, request: Join) -> Joined | Waiting:
        member = group.members.get(request.member_id)
        if member is None:
            raise LogError(Code.UNKNOWN_MEMBER_ID, f"group {group.name} has no member {request.member_id}")
        same = member.request.protocols == request.protocols
        member.request = request
        group.touch(member)
        leads = group.leader_id == member.member_id
        settled = group.state is State.COMPLETING or (group.state is State.STABLE and not leads)
        if same and settled:
            return group.answer(member)
        return group.start_join(member)

    async def sync(
        self,
        group_name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignments: dict[str, bytes],
    ) -> bytes:
        """Return the member's assignment, once the leader has called `sync` with the `assignments` of all
        members. Raises LogError.
        """
        group, member = self._member(group_name, member_id, instance_id, generation)
        if group.state is State.PREPARING:
            raise LogError(Code.REBALANCE_IN_PROGRESS, f"group {group_name} is rebalancing")
        group.touch(member)
        if group.state is State.STABLE:
            return member.assignment
        future = group.wait_for_assignment(member)
        if member_id == group.leader_id:
            group.assign(assignments)
        return await future

    def heartbeat(self, group_name: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Restart a member's session timeout. Raises LogError if the member must join again."""
        group, member = self._member(group_name, member_id, instance_id, generation)
        group.touch(member)
        if group.state is State.PREPARING:
            raise LogError(Code.REBALANCE_IN_PROGRESS, f"group {group_name} is rebalancing")

    def leave(self, group_name: str, member_id: str) -> None:
        """Remove a member from its group at once. Raises LogError."""
        group = self.groups.get(group_name)
        if group is not None and member_id in group.pending:
            group.pending.pop(member_id).cancel()
            self._forget_if_unused(group)
            return
        if group is None or member_id not in group.members:
            raise LogError(Code.UNKNOWN_MEMBER_ID, f"group {group_name} has no member {member_id}")
        group.remove(group.members[member_id], "left")

    def check_commit(self, group_name: str, generation: int, member_id: str) -> None:
        """Raise LogError if a member that commits offsets does not belong to this generation."""
        if not group_name:
            raise LogError(Code.INVALID_GROUP_ID, "empty group name")
        group = self.groups.get(group_name)
        if generation < 0 and (group is None or group.state is State.EMPTY):
            return
        if group is None:
            raise LogError(Code.ILLEGAL_GENERATION, f"group {group_name} is not at generation {generation}")
        group, member = self._member(group_name, member_id, None, generation)
        group.touch(member)
        if group.state is State.COMPLETING:
            raise LogError(Code.REBALANCE_IN_PROGRESS, f"group {group_name} is rebalancing")

    def _member(
        self, group_name: str, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Group, Member]:
        if not group_name:
            raise LogError(Code.INVALID_GROUP_ID, "empty group name")
        group = self.groups.get(group_name)
        if (
            group is not None
            and instance_id is not None
            and group.static.get(instance_id, member_id) != member_id
        ):
            raise LogError(Code.FENCED_INSTANCE_ID, f"instance {instance_id} joined again elsewhere")
        member = group.members.get(member_id) if group is not None else None
        if group is None or member is None:
            raise LogError(Code.UNKNOWN_MEMBER_ID, f"group {group_name} has no member {member_id}")
        if generation != group.generation:
            raise LogError(
                Code.ILLEGAL_GENERATION,
                f"group {group_name} is at generation {group.generation}, not {generation}",
            )
        return group, member

    def _forget_if_unused(self, group: Group) -> None:
        if not group.members and not group.pending and self.groups.get(group.name) is group:
            del self.groups[group.name]

    def close(self) -> None:
        """Close every group: stop its timers and cancel its waiting requests."""
        for group in self.groups.values():
            group.close()
