"""The group coordinator without a broker: generations, leader, assignment, and wrong members."""

from __future__ import annotations

import asyncio

import pytest

from fabrictime.log.errors import Code, LogError
from fabrictime.log.groups import Coordinator, Join, MemberIdRequired, State
from fabrictime.log.settings import LogSettings


@pytest.fixture
def coordinator(tmp_path):
    """Make a coordinator inside the running loop, whose groups wait for nobody."""
    return lambda: Coordinator(LogSettings(directory=tmp_path, group_join_delay_ms=0))


def join(member_id="", *, group="g", protocols=("range",), instance=None, session_ms=10_000, known=False):
    offered = tuple((name, name.encode()) for name in protocols)
    return Join(group, member_id, instance, "c", "host", session_ms, 5_000, "consumer", offered, known)


async def test_one_member_leads_its_own_generation_and_gets_its_assignment(coordinator):
    groups = coordinator()
    joined = await groups.join(join())
    assert (joined.generation, joined.leader_id, len(joined.members)) == (1, joined.member_id, 1)
    assignment = {joined.member_id: b"all"}
    assert await groups.sync("g", 1, joined.member_id, None, assignment) == b"all"
    assert groups.groups["g"].state is State.STABLE
    groups.heartbeat("g", 1, joined.member_id, None)
    groups.close()


async def test_a_second_member_opens_a_generation_with_a_protocol_that_both_offer(coordinator):
    groups = coordinator()
    first = await groups.join(join(protocols=("sticky", "range")))
    await groups.sync("g", 1, first.member_id, None, {})
    second = asyncio.ensure_future(groups.join(join(protocols=("range",))))
    await asyncio.sleep(0)
    with pytest.raises(LogError, match="rebalancing"):
        groups.heartbeat("g", 1, first.member_id, None)
    again = await groups.join(join(first.member_id, protocols=("sticky", "range")))
    other = await second
    assert {again.generation, other.generation} == {2}
    assert {again.protocol, other.protocol} == {"range"}
    assert (len(again.members), other.members) == (2, ()), "only the leader gets the members"
    groups.close()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (join(group=""), Code.INVALID_GROUP_ID),
        (join(session_ms=0), Code.INVALID_SESSION_TIMEOUT),
        (join(protocols=()), Code.INCONSISTENT_GROUP_PROTOCOL),
        (join("nobody"), Code.UNKNOWN_MEMBER_ID),
    ],
    ids=["no group", "no session", "no protocol", "unknown member"],
)
async def test_a_join_that_cannot_be_is_refused_and_leaves_no_group(coordinator, request_, code):
    groups = coordinator()
    with pytest.raises(LogError) as refused:
        await groups.join(request_)
    assert refused.value.code is code
    assert not groups.groups


async def test_a_new_member_gets_an_id_first_and_a_static_one_fences_its_former_self(coordinator):
    groups = coordinator()
    with pytest.raises(MemberIdRequired) as given:
        await groups.join(join(known=True))
    assert (await groups.join(join(given.value.member_id, known=True))).member_id == given.value.member_id
    groups.leave("g", given.value.member_id)
    old = await groups.join(join(instance="i"))
    await groups.sync("g", old.generation, old.member_id, "i", {old.member_id: b"part"})
    new = await groups.join(join(instance="i"))
    assert new.generation == old.generation, "a restart of a static member is no rebalance"
    assert await groups.sync("g", new.generation, new.member_id, "i", {}) == b"part"
    with pytest.raises(LogError) as fenced:
        groups.heartbeat("g", old.generation, old.member_id, "i")
    assert fenced.value.code is Code.FENCED_INSTANCE_ID
    groups.close()


async def test_commits_of_another_generation_are_refused(coordinator):
    groups = coordinator()
    groups.check_commit("outside", -1, "")
    joined = await groups.join(join())
    with pytest.raises(LogError, match="at generation 1, not 9") as refused:
        groups.check_commit("g", 9, joined.member_id)
    assert refused.value.code is Code.ILLEGAL_GENERATION
    groups.leave("g", joined.member_id)
    assert not groups.groups
    groups.close()
