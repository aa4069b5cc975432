"""Coordinates consumer groups: members, leader and assignment.

A join waits until every member has joined again or its time is over. Members live in memory only, so a
restart makes them join again; `offsets` keeps the offsets.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from fabrictime.log.errors import Code, LogError
from fabrictime.log.settings import LogSettings

log = logging.getLogger(__name__)

MAX_MEMBERS: Final = 10_000
MAX_GROUPS: Final = 10_000


class State(StrEnum):
    """The state of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True)
class Join:
    """A member's request to join. An empty `member_id` requests a new one."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_known_id: bool


@dataclass(frozen=True)
class Joined:
    """The response to a join; only the leader gets the `members` as (id, instance id, metadata)."""

    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class MemberIdRequired(LogError):
    """The member has to join again under the id given here."""

    def __init__(self, member_id: str) -> None:
        super().__init__(Code.MEMBER_ID_REQUIRED, "join again under the given member id")
        self.member_id = member_id


@dataclass(eq=False)
class Member:
    """One member of a group."""

    member_id: str
    request: Join
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[bytes] | None = None
    deadline_s: float = 0.0
    timer: asyncio.TimerHandle | None = None

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata that the member sent for `protocol`."""
        return dict(self.request.protocols).get(protocol, b"")


@dataclass(eq=False)
class Group:
    """One consumer group."""

    name: str
    state: State = State.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader_id: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    waiting_for_first: bool = False


class Waiting(NamedTuple):
    """A member whose join is answered when the next generation opens."""

    group: Group
    member: Member
    future: asyncio.Future[Joined]


class Coordinator:
    """All groups of the broker. Lives on one event loop."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.groups: dict[str, Group] = {}

    # -- requests

    async def join(self, request: Join) -> Joined:
        """Join a group and wait for its next generation. Raises LogError, MemberIdRequired among them."""
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
                self._remove(group, member, "disconnected while joining")
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
            group = self.groups[request.group] = Group(request.group)
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
                group.pending[member_id] = self._loop.call_later(
                    request.session_ms / 1000, self._drop_pending, group, member_id
                )
                raise MemberIdRequired(member_id)
            return self._add(group, request, member_id)
        if request.member_id in group.pending:
            group.pending.pop(request.member_id).cancel()
            return self._add(group, request, request.member_id)
        return self._rejoin(group, request)

    def _admit_static(self, group: Group, request: Join, instance_id: str) -> Joined | Waiting:
        known = group.static.get(instance_id)
        if request.member_id:
            if known is not None and known != request.member_id:
                raise LogError(Code.FENCED_INSTANCE_ID, f"instance {instance_id} joined again elsewhere")
            return self._rejoin(group, request)
        member_id = self._new_id(request)
        if known is None:
            return self._add(group, request, member_id)
        old = group.members.pop(known)
        self._release(
            old, LogError(Code.FENCED_INSTANCE_ID, f"instance {instance_id} joined again elsewhere")
        )
        same = old.request.protocols == request.protocols
        member = Member(member_id, request, assignment=old.assignment)
        group.members[member_id] = member
        group.static[instance_id] = member_id
        leader_before = group.leader_id
        if group.leader_id == known:
            group.leader_id = member_id
        self._touch(group, member)
        if group.state is State.STABLE and same:
            # The former leader's id shows the client that it has nothing to assign.
            return Joined(group.generation, group.protocol, leader_before, member_id)
        return self._start_join(group, member)

    def _new_id(self, request: Join) -> str:
        return f"{request.instance_id or request.client_id or 'member'}-{uuid.uuid4()}"

    def _add(self, group: Group, request: Join, member_id: str) -> Waiting:
        if len(group.members) >= MAX_MEMBERS:
            raise LogError(
                Code.COORDINATOR_NOT_AVAILABLE, f"group {group.name}: {MAX_MEMBERS} members are enough"
            )
        if not group.members:
            group.protocol_type = request.protocol_type
        member = group.members[member_id] = Member(member_id, request)
        if request.instance_id is not None:
            group.static[request.instance_id] = member_id
        return self._start_join(group, member)

    def _rejoin(self, group: Group, request: Join) -> Joined | Waiting:
        member = group.members.get(request.member_id)
        if member is None:
            raise LogError(Code.UNKNOWN_MEMBER_ID, f"group {group.name} has no member {request.member_id}")
        same = member.request.protocols == request.protocols
        member.request = request
        self._touch(group, member)
        leads = group.leader_id == member.member_id
        settled = group.state is State.COMPLETING or (group.state is State.STABLE and not leads)
        if same and settled:
            return self._answer(group, member)
        return self._start_join(group, member)

    async def sync(
        self,
        group_name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        given: dict[str, bytes],
    ) -> bytes:
        """Return the member's assignment; the leader brings everyone's. Raises LogError."""
        group, member = self._member(group_name, member_id, instance_id, generation)
        if group.state is State.PREPARING:
            raise LogError(Code.REBALANCE_IN_PROGRESS, f"group {group_name} is rebalancing")
        self._touch(group, member)
        if group.state is State.STABLE:
            return member.assignment
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._settle(member.syncing, LogError(Code.REBALANCE_IN_PROGRESS, "asked again"))
        member.syncing = future
        if member_id == group.leader_id:
            group.state = State.STABLE
            self._cancel_timer(group)
            for other in group.members.values():
                other.assignment = given.get(other.member_id, b"")
                if other.syncing is not None:
                    if not other.syncing.done():
                        other.syncing.set_result(other.assignment)
                    other.syncing = None
                self._touch(group, other)
        return await future

    def heartbeat(self, group_name: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Keep a member alive. Raises LogError where it has to join again."""
        group, member = self._member(group_name, member_id, instance_id, generation)
        self._touch(group, member)
        if group.state is State.PREPARING:
            raise LogError(Code.REBALANCE_IN_PROGRESS, f"group {group_name} is rebalancing")

    def leave(self, group_name: str, member_id: str) -> None:
        """Take a member out at once. Raises LogError."""
        group = self.groups.get(group_name)
        if group is not None and member_id in group.pending:
            group.pending.pop(member_id).cancel()
            self._forget_if_unused(group)
            return
        if group is None or member_id not in group.members:
            raise LogError(Code.UNKNOWN_MEMBER_ID, f"group {group_name} has no member {member_id}")
        self._remove(group, group.members[member_id], "left")

    def check_commit(self, group_name: str, generation: int, member_id: str) -> None:
        """Whether a commit may be taken. Raises LogError where the committer is not of this generation."""
        if not group_name:
            raise LogError(Code.INVALID_GROUP_ID, "empty group name")
        group = self.groups.get(group_name)
        if generation < 0 and (group is None or group.state is State.EMPTY):
            return
        if group is None:
            raise LogError(Code.ILLEGAL_GENERATION, f"group {group_name} is not at generation {generation}")
        group, member = self._member(group_name, member_id, None, generation)
        self._touch(group, member)
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

    # -- rebalancing

    def _start_join(self, group: Group, member: Member) -> Waiting:
        self._settle(member.joining, LogError(Code.REBALANCE_IN_PROGRESS, "asked again"))
        future: asyncio.Future[Joined] = self._loop.create_future()
        member.joining = future
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None
        if group.state is not State.PREPARING:
            self._prepare(group)
        elif group.waiting_for_first:
            self._cancel_timer(group)
            self._arm_first(group)
        else:
            self._complete_if_all(group)
        return Waiting(group, member, future)

    def _prepare(self, group: Group) -> None:
        first = group.state is State.EMPTY
        group.state = State.PREPARING
        for member in group.members.values():
            self._settle(
                member.syncing, LogError(Code.REBALANCE_IN_PROGRESS, f"group {group.name} is rebalancing")
            )
            member.syncing = None
        self._cancel_timer(group)
        if first:
            group.waiting_for_first = True
            self._arm_first(group)
            return
        wait_ms = max(member.request.rebalance_ms for member in group.members.values())
        group.timer = self._loop.call_later(wait_ms / 1000, self._complete, group)
        self._complete_if_all(group)

    def _arm_first(self, group: Group) -> None:
        group.timer = self._loop.call_later(self._settings.group_join_delay_ms / 1000, self._complete, group)

    def _complete_if_all(self, group: Group) -> None:
        if not group.waiting_for_first and all(member.joining for member in group.members.values()):
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """Open the next generation with all members that have joined."""
        self._cancel_timer(group)
        group.waiting_for_first = False
        for member in [
            m for m in group.members.values() if m.joining is None and m.request.instance_id is None
        ]:
            log.info("group %s: member %s did not join in time", group.name, member.member_id)
            self._detach(group, member)
        group.generation += 1
        joined = [member for member in group.members.values() if member.joining is not None]
        if not joined:
            if group.members:
                wait_ms = max(member.request.rebalance_ms for member in group.members.values())
                group.timer = self._loop.call_later(wait_ms / 1000, self._complete, group)
            else:
                group.state = State.EMPTY
                self._forget_if_unused(group)
            return
        group.state = State.COMPLETING
        leader = group.members.get(group.leader_id)
        if leader is None or leader.joining is None:
            group.leader_id = joined[0].member_id
        group.protocol = self._vote(group)
        wait_ms = max(member.request.rebalance_ms for member in group.members.values())
        group.timer = self._loop.call_later(wait_ms / 1000, self._sync_overdue, group, group.generation)
        log.info("group %s: generation %d with %d members", group.name, group.generation, len(group.members))
        for member in group.members.values():
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self._answer(group, member))
            member.joining = None
            self._touch(group, member)

    def _answer(self, group: Group, member: Member) -> Joined:
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == group.leader_id:
            members = tuple(
                (other.member_id, other.request.instance_id, other.metadata(group.protocol))
                for other in group.members.values()
            )
        return Joined(group.generation, group.protocol, group.leader_id, member.member_id, members)

    def _vote(self, group: Group) -> str:
        offers = [[name for name, _ in member.request.protocols] for member in group.members.values()]
        common = set.intersection(*(set(offer) for offer in offers))
        votes = Counter(next(name for name in offer if name in common) for offer in offers)
        return votes.most_common(1)[0][0]

    def _sync_overdue(self, group: Group, generation: int) -> None:
        if group.state is State.COMPLETING and group.generation == generation:
            for member in [m for m in group.members.values() if m.syncing is None]:
                self._remove(group, member, "did not sync in time")

    # -- members coming and going

    def _touch(self, group: Group, member: Member) -> None:
        """Restart a member's session; its timer moves only when it fires."""
        member.deadline_s = self._loop.time() + member.request.session_ms / 1000
        if member.timer is None and member.joining is None:
            member.timer = self._loop.call_at(member.deadline_s, self._session_over, group, member)

    def _session_over(self, group: Group, member: Member) -> None:
        member.timer = None
        if group.members.get(member.member_id) is not member or member.joining is not None:
            return
        if self._loop.time() < member.deadline_s:
            member.timer = self._loop.call_at(member.deadline_s, self._session_over, group, member)
            return
        self._remove(group, member, f"silent for {member.request.session_ms} ms")

    def _drop_pending(self, group: Group, member_id: str) -> None:
        group.pending.pop(member_id, None)
        self._forget_if_unused(group)

    def _release(self, member: Member, error: LogError) -> None:
        self._settle(member.joining, error)
        self._settle(member.syncing, error)
        member.joining = member.syncing = None
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None

    def _detach(self, group: Group, member: Member) -> None:
        self._release(member, LogError(Code.UNKNOWN_MEMBER_ID, f"member {member.member_id} is out"))
        group.members.pop(member.member_id, None)
        instance_id = member.request.instance_id
        if instance_id is not None and group.static.get(instance_id) == member.member_id:
            del group.static[instance_id]

    def _remove(self, group: Group, member: Member, why: str) -> None:
        if group.members.get(member.member_id) is not member:
            return
        log.info("group %s: member %s %s", group.name, member.member_id, why)
        self._detach(group, member)
        if not group.members:
            self._cancel_timer(group)
            group.waiting_for_first = False
            group.state = State.EMPTY
            group.generation += 1
            group.leader_id = group.protocol = ""
            self._forget_if_unused(group)
        elif group.state is State.PREPARING:
            self._complete_if_all(group)
        else:
            self._prepare(group)

    def _forget_if_unused(self, group: Group) -> None:
        if not group.members and not group.pending and self.groups.get(group.name) is group:
            del self.groups[group.name]

    def _cancel_timer(self, group: Group) -> None:
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None

    @staticmethod
    def _settle(future: asyncio.Future[Joined] | asyncio.Future[bytes] | None, error: LogError) -> None:
        if future is not None and not future.done():
            future.set_exception(error)

    def close(self) -> None:
        """Let go of every timer and every waiting member."""
        for group in self.groups.values():
            self._cancel_timer(group)
            for timer in group.pending.values():
                timer.cancel()
            for member in group.members.values():
                for future in (member.joining, member.syncing):
                    if future is not None:
                        future.cancel()
                if member.timer is not None:
                    member.timer.cancel()
