"""One consumer group: members join, the leader assigns partitions, and the loss of a member starts a
rebalance.

A join waits until every member has joined again or the rebalance timeout is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from fabrictime.log.errors import Code, LogError

log = logging.getLogger(__name__)


class State(StrEnum):
    """The state of a group, by Kafka's names of the states."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True)
class Join:
    """A client's request to join. With an empty `member_id`, the client requests a new id."""

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
    """The response to a join. `members` are (id, instance id, metadata) for the leader, empty for others."""

    generation: int
    protocol: str
    leader_id: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(eq=False)
class Member:
    """One member of a group, with its session timer and its waiting requests."""

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


class Waiting(NamedTuple):
    """A member whose request to join is answered at the start of the next generation."""

    group: Group
    member: Member
    future: asyncio.Future[Joined]


class Group:
    """One consumer group: its members and its present generation. All methods run on one event loop.

    `on_change` is called after a member or a pending id was removed.
    """

    def __init__(self, name: str, join_delay_ms: int, on_change: Callable[[Group], None]) -> None:
        self.name = name
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader_id = ""
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Instance id of a static member to its member id."""
        self.pending: dict[str, asyncio.TimerHandle] = {}
        """Ids given to clients which have not joined with them yet, and the timers that remove them."""
        self._join_delay_s = join_delay_ms / 1000
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_for_first = False

    def expect(self, member_id: str, session_ms: int) -> None:
        """Reserve a member id for a client, which must join with this id within `session_ms`."""
        self.pending[member_id] = self._loop.call_later(session_ms / 1000, self._drop_pending, member_id)

    def add(self, request: Join, member_id: str) -> Waiting:
        """Add a member that waits for the next generation."""
        if not self.members:
            self.protocol_type = request.protocol_type
        member = self.members[member_id] = Member(member_id, request)
        if request.instance_id is not None:
            self.static[request.instance_id] = member_id
        return self.start_join(member)

    def wait_for_assignment(self, member: Member) -> asyncio.Future[bytes]:
        """Return a future of the member's assignment. An earlier future of the same member fails."""
        _settle(member.syncing, LogError(Code.REBALANCE_IN_PROGRESS, "asked again"))
        member.syncing = self._loop.create_future()
        return member.syncing

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Give each member its part of the leader's assignments. The group's state is then stable."""
        self.state = State.STABLE
        self._cancel_timer()
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                if not member.syncing.done():
                    member.syncing.set_result(member.assignment)
                member.syncing = None
            self.touch(member)

    def start_join(self, member: Member) -> Waiting:
        """Make a member wait for the next generation, and start a rebalance unless one is running."""
        _settle(member.joining, LogError(Code.REBALANCE_IN_PROGRESS, "asked again"))
        future: asyncio.Future[Joined] = self._loop.create_future()
        member.joining = future
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None
        if self.state is not State.PREPARING:
            self._prepare()
        elif self._waiting_for_first:
            self._cancel_timer()
            self._arm_first()
        else:
            self._complete_if_all()
        return Waiting(self, member, future)

    def _prepare(self) -> None:
        first = self.state is State.EMPTY
        self.state = State.PREPARING
        for member in self.members.values():
            _settle(member.syncing, LogError(Code.REBALANCE_IN_PROGRESS, f"group {self.name} is rebalancing"))
            member.syncing = None
        self._cancel_timer()
        if first:
            self._waiting_for_first = True
            self._arm_first()
            return
        self._timer = self._loop.call_later(self._rebalance_s(), self._complete)
        self._complete_if_all()

    def _arm_first(self) -> None:
        self._timer = self._loop.call_later(self._join_delay_s, self._complete)

    def _complete_if_all(self) -> None:
        if not self._waiting_for_first and all(member.joining for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Start the next generation with all members that have joined."""
        self._cancel_timer()
        self._waiting_for_first = False
        self._drop_absent()
        self.generation += 1
        joined = [member for member in self.members.values() if member.joining is not None]
        if joined:
            self._open_generation(joined)
        elif self.members:
            self._timer = self._loop.call_later(self._rebalance_s(), self._complete)
        else:
            self.state = State.EMPTY
            self._on_change(self)

    def _drop_absent(self) -> None:
        """Remove the members that have not joined again. Static members stay until their session ends."""
        dynamic = [m for m in self.members.values() if m.request.instance_id is None]
        for member in [m for m in dynamic if m.joining is None]:
            log.info("group %s: member %s did not join in time", self.name, member.member_id)
            self._detach(member)

    def _open_generation(self, joined: list[Member]) -> None:
        self.state = State.COMPLETING
        if self.leader_id not in [member.member_id for member in joined]:
            self.leader_id = joined[0].member_id
        self.protocol = self._vote()
        self._timer = self._loop.call_later(self._rebalance_s(), self._sync_overdue, self.generation)
        log.info("group %s: generation %d with %d members", self.name, self.generation, len(self.members))
        for member in self.members.values():
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(self.answer(member))
            member.joining = None
            self.touch(member)

    def _rebalance_s(self) -> float:
        """Return the rebalance timeout, s: the longest timeout that a member requests."""
        return max(member.request.rebalance_ms for member in self.members.values()) / 1000

    def answer(self, member: Member) -> Joined:
        """Return the response to a member's join, with the present generation."""
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.member_id == self.leader_id:
            members = tuple(
                (other.member_id, other.request.instance_id, other.metadata(self.protocol))
                for other in self.members.values()
            )
        return Joined(self.generation, self.protocol, self.leader_id, member.member_id, members)

    def _vote(self) -> str:
        offers = [[name for name, _ in member.request.protocols] for member in self.members.values()]
        common = set.intersection(*(set(offer) for offer in offers))
        votes = Counter(next(name for name in offer if name in common) for offer in offers)
        return votes.most_common(1)[0][0]

    def _sync_overdue(self, generation: int) -> None:
        if self.state is State.COMPLETING and self.generation == generation:
            for member in [m for m in self.members.values() if m.syncing is None]:
                self.remove(member, "did not sync in time")

    def touch(self, member: Member) -> None:
        """Restart a member's session timeout. The timer itself is only moved when it expires."""
        member.deadline_s = self._loop.time() + member.request.session_ms / 1000
        if member.timer is None and member.joining is None:
            member.timer = self._loop.call_at(member.deadline_s, self._session_over, member)

    def _session_over(self, member: Member) -> None:
        member.timer = None
        if self.members.get(member.member_id) is not member or member.joining is not None:
            return
        if self._loop.time() < member.deadline_s:
            member.timer = self._loop.call_at(member.deadline_s, self._session_over, member)
            return
        self.remove(member, f"silent for {member.request.session_ms} ms")

    def _drop_pending(self, member_id: str) -> None:
        self.pending.pop(member_id, None)
        self._on_change(self)

    def release(self, member: Member, error: LogError) -> None:
        """Fail the requests for which the member waits, and stop the member's timer."""
        _settle(member.joining, error)
        _settle(member.syncing, error)
        member.joining = member.syncing = None
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None

    def _detach(self, member: Member) -> None:
        self.release(member, LogError(Code.UNKNOWN_MEMBER_ID, f"member {member.member_id} is out"))
        self.members.pop(member.member_id, None)
        instance_id = member.request.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.member_id:
            del self.static[instance_id]

    def remove(self, member: Member, why: str) -> None:
        """Remove a member. The other members share its partitions in the next generation."""
        if self.members.get(member.member_id) is not member:
            return
        log.info("group %s: member %s %s", self.name, member.member_id, why)
        self._detach(member)
        if not self.members:
            self._cancel_timer()
            self._waiting_for_first = False
            self.state = State.EMPTY
            self.generation += 1
            self.leader_id = self.protocol = ""
            self._on_change(self)
        elif self.state is State.PREPARING:
            self._complete_if_all()
        else:
            self._prepare()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop every timer and cancel every waiting request."""
        self._cancel_timer()
        for timer in self.pending.values():
            timer.cancel()
        for member in self.members.values():
            for future in (member.joining, member.syncing):
                if future is not None:
                    future.cancel()
            if member.timer is not None:
                member.timer.cancel()


def _settle(future: asyncio.Future[Joined] | asyncio.Future[bytes] | None, error: LogError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
