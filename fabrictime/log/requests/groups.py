"""Answers the Kafka requests about consumer groups, their members and their coordinator."""

from __future__ import annotations

import logging

from fabrictime.log import wire
from fabrictime.log.errors import Code, LogError
from fabrictime.log.group import Join, State
from fabrictime.log.groups import Coordinator, MemberIdRequired
from fabrictime.log.offsets import OffsetStore
from fabrictime.log.requests.base import NODE_ID, Peer, Response
from fabrictime.log.wire import Api, Fields, RequestHead

log = logging.getLogger(__name__)


class GroupRequests:
    """Handles requests about consumer groups."""

    def __init__(self, address: Peer, offsets: OffsetStore, groups: Coordinator) -> None:
        self._address = address
        self._offsets = offsets
        self._groups = groups

    def find_coordinator(self, _: int, fields: Fields) -> Fields:
        """Return this node as the coordinator of every group."""
        is_group = fields.get("coordinator_type", 0) == 0
        return {
            "error_code": Code.NONE if is_group else Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "error_message": None if is_group else "transactions are not supported",
            "coordinator_id": NODE_ID if is_group else -1,
            "host": self._address.host if is_group else "",
            "port": self._address.port if is_group else -1,
        }

    async def join(self, head: RequestHead, fields: Fields, peer: Peer) -> Response:
        """Join a group and wait for its next generation."""
        request = Join(
            group=fields["group"] or "",
            member_id=fields["member_id"] or "",
            instance_id=fields.get("group_instance_id"),
            client_id=head.client_id,
            client_host=peer.host,
            session_ms=fields["session_timeout"],
            rebalance_ms=max(fields["rebalance_timeout"] if head.version else fields["session_timeout"], 0),
            protocol_type=fields["protocol_type"] or "",
            protocols=tuple(
                (offer["protocol_name"] or "", offer["protocol_metadata"] or b"")
                for offer in fields["group_protocols"] or ()
            ),
            needs_known_id=head.version >= 4,
        )
        answer: Fields = {
            "error_code": Code.NONE,
            "generation_id": -1,
            "group_protocol": "",
            "leader_id": "",
            "member_id": request.member_id,
            "members": [],
        }
        try:
            joined = await self._groups.join(request)
        except MemberIdRequired as error:
            answer |= {"error_code": error.code, "member_id": error.member_id}
        except LogError as error:
            answer["error_code"] = error.code
        else:
            answer |= {
                "generation_id": joined.generation,
                "group_protocol": joined.protocol,
                "leader_id": joined.leader_id,
                "member_id": joined.member_id,
                "members": [
                    {"member_id": member, "group_instance_id": instance, "member_metadata": data}
                    for member, instance, data in joined.members
                ],
            }
        return [wire.encode(Api.JOIN_GROUP, head.version, answer)]

    async def sync(self, version: int, fields: Fields) -> Response:
        """Return the member's assignment, after the leader has sent the assignments of all members."""
        code, assignment = Code.NONE, b""
        assignments = {
            entry["member_id"] or "": entry["member_metadata"] or b""
            for entry in fields["group_assignment"] or ()
        }
        try:
            assignment = await self._groups.sync(
                fields["group"] or "",
                fields["generation_id"],
                fields["member_id"] or "",
                fields.get("group_instance_id"),
                assignments,
            )
        except LogError as error:
            code = error.code
        return [wire.encode(Api.SYNC_GROUP, version, {"error_code": code, "member_assignment": assignment})]

    def heartbeat(self, _: int, fields: Fields) -> Fields:
        """Restart a member's session timeout."""
        try:
            self._groups.heartbeat(
                fields["group"] or "",
                fields["generation_id"],
                fields["member_id"] or "",
                fields.get("group_instance_id"),
            )
        except LogError as error:
            return {"error_code": error.code}
        return {"error_code": Code.NONE}

    def leave(self, _: int, fields: Fields) -> Fields:
        """Remove a member from its group."""
        try:
            self._groups.leave(fields["group"] or "", fields["member_id"] or "")
        except LogError as error:
            return {"error_code": error.code}
        return {"error_code": Code.NONE}

    def describe_groups(self, _: int, fields: Fields) -> Fields:
        """Return state, protocol and members of the requested groups."""
        return {"groups": [self._describe_group(name or "") for name in fields["groups"] or ()]}

    def _describe_group(self, name: str) -> Fields:
        answer: Fields = {
            "error_code": Code.NONE,
            "group": name,
            "state": State.DEAD,
            "protocol_type": "",
            "protocol": "",
            "members": [],
        }
        group = self._groups.groups.get(name)
        if group is None:
            if self._offsets.fetch(name):
                answer["state"] = State.EMPTY
            return answer
        settled = group.state is State.STABLE
        answer |= {
            "state": group.state,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol if settled else "",
            "members": [
                {
                    "member_id": member.member_id,
                    "client_id": member.request.client_id,
                    "client_host": f"/{member.request.client_host}",
                    "member_metadata": member.metadata(group.protocol) if settled else b"",
                    "member_assignment": member.assignment if settled else b"",
                }
                for member in group.members.values()
            ],
        }
        return answer

    def list_groups(self, _: int, fields: Fields) -> Fields:
        """Return the groups that have members or committed offsets."""
        live = {name: group.protocol_type for name, group in self._groups.groups.items()}
        names = live | {name: "consumer" for name in self._offsets.groups() if name not in live}
        return {
            "error_code": Code.NONE,
            "groups": [{"group": name, "protocol_type": kind} for name, kind in names.items()],
        }

    def delete_groups(self, _: int, fields: Fields) -> Fields:
        """Delete groups without members, and the offsets that these groups have committed."""
        results = [
            {"group_id": name, "error_code": self._delete_group(name or "")}
            for name in fields["groups_names"] or ()
        ]
        return {"results": results}

    def _delete_group(self, name: str) -> Code:
        group = self._groups.groups.get(name)
        if group is not None:  # it has members, or some are about to join: others are forgotten
            return Code.NON_EMPTY_GROUP
        if not self._offsets.fetch(name):
            return Code.GROUP_ID_NOT_FOUND
        try:
            self._offsets.forget(group=name)
        except OSError as error:
            log.warning("offsets of group %s stay: %s", name, error.strerror)
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE
